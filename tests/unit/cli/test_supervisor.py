"""What a supervisor makes of the ends of its processes; none is started here."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bunqueue.cli.ready import Mark, Readiness
from bunqueue.cli.sources import Sources
from bunqueue.cli.supervisor import Supervisor, take_child_mark
from bunqueue.cli.watch import INTERRUPT


class Changes(Sources):
    """Files of which those named change, one after the other, and then none."""

    def __init__(self, directory: Path, *names: str) -> None:
        super().__init__(directory)
        self.names = list(names)

    def changed(self) -> str | None:
        return self.names.pop(0) if self.names else None


def supervisor(*, watching: Path | None = None) -> Supervisor:
    made = Supervisor(["true"], 2, None if watching is None else Changes(watching))
    for place in made._places:
        place.due_at = None
    return made


def test_one_that_is_done_is_not_started_again():
    made = supervisor()

    made._ended(made._places[0], 0)

    assert made._places[0].due_at is None
    assert not made._goes_on()


def test_one_that_has_run_its_jobs_is_replaced_at_once():
    made = supervisor()

    made._ended(made._places[0], 75)

    assert 0.0 == made._places[0].due_at


@pytest.mark.parametrize("status", [-9, -11, 7, 3])
def test_a_crashed_one_is_started_again_later_each_time(status, monkeypatch):
    monkeypatch.setattr("bunqueue.cli.supervisor.time.monotonic", lambda: 100.0)
    made = supervisor()
    place = made._places[0]
    place.started_at = 99.0

    waits = []
    for _ in range(6):
        made._ended(place, status)
        waits.append(place.due_at - 100.0)

    assert [0.5, 1.0, 2.0, 5.0, 5.0, 5.0] == waits


@pytest.mark.parametrize("status", [1, 2])
def test_one_that_cannot_run_stops_the_others(status):
    made = supervisor()
    first, second = made._places
    second.process = Process()

    made._ended(first, status)

    assert [signal.SIGTERM] == second.process.sent
    assert status == made._worst


def test_a_first_signal_interrupts_nobody_where_the_others_drain_already():
    made = supervisor()
    first, second = made._places
    second.process = Process()
    made._ended(first, 1)

    made._on_stop(signal.SIGTERM, None)
    made._hand_on()
    assert [signal.SIGTERM] * 2 == second.process.sent

    made._on_stop(signal.SIGINT, None)
    made._hand_on()
    assert INTERRUPT == second.process.sent[-1]


@pytest.mark.parametrize("status", [1, 2])
def test_one_that_cannot_run_is_tried_again_when_a_change_came_meanwhile(status, tmp_path):
    made = supervisor(watching=tmp_path)
    first, _second = made._places
    first.process, first.readiness = Process(), Readiness()  # it imports its handlers
    first.readiness.handed_on()
    made._on_hangup(signal.SIGHUP, None)
    made._roll()
    first.readiness.close()

    made._ended(first, status)

    assert first.due_at is not None


def test_while_files_are_watched_one_that_cannot_run_waits(tmp_path):
    made = supervisor(watching=tmp_path)

    made._ended(made._places[0], 1)

    assert made._goes_on()
    assert made._places[0].due_at is None


@pytest.mark.parametrize(
    ("statuses", "worst"), [((0, 0), 0), ((75, -15), 0), ((0, 3), 3), ((0, -9), 1), ((3, -9), 3)]
)
def test_the_worst_end_is_the_supervisors(statuses, worst):
    made = supervisor()
    made._signals.append(signal.SIGTERM)

    for place, status in zip(made._places, statuses, strict=True):
        made._ended(place, status)

    assert worst == made._worst


class Process:
    """A running child that notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def poll(self) -> None:
        """It never ends."""

    def send_signal(self, number: int) -> None:
        self.sent.append(number)


def test_the_next_one_is_replaced_when_the_one_before_is_ready():
    made = supervisor()
    first, second = made._places
    first.process, second.process = old = Process(), Process()
    made._on_hangup(signal.SIGHUP, None)

    made._roll()
    made._roll()
    assert ([signal.SIGTERM], []) == (old[0].sent, old[1].sent)  # it still drains

    first.process, first.is_leaving, first.readiness = Process(), False, Readiness()
    made._roll()
    assert [] == old[1].sent  # the new one imports its handlers

    Mark(1, first.readiness.fd).tell_ready()
    made._roll()
    assert [signal.SIGTERM] == old[1].sent
    first.readiness.close()


def test_nothing_more_is_replaced_when_a_new_one_ends_before_it_is_ready():
    made = supervisor()
    first, second = made._places
    first.process, second.process = Process(), Process()
    second.is_old = True
    first.readiness = Readiness()
    first.readiness.handed_on()

    made._roll()
    assert [] == second.process.sent

    first.readiness.close()
    first.process = first.readiness = None
    made._ended(first, -9)
    made._roll()
    assert [] == second.process.sent  # the crashed one comes again first


def test_what_is_started_after_a_change_is_not_replaced(tmp_path):
    made = Supervisor(["true"], 2, Changes(tmp_path, "shop.py"))
    first, second = made._places
    first.due_at = second.due_at = None
    second.process = old = Process()

    made._roll()
    assert [0.0, None] == [first.due_at, second.due_at]

    first.process, first.due_at = (new := Process()), None
    made._roll()
    assert ([], [signal.SIGTERM]) == (new.sent, old.sent)


def test_a_supervisor_that_is_gone_is_told_nothing():
    readiness = Readiness()
    readiness.close()
    mark = Mark(1, readiness.fd)

    mark.tell_ready()
    mark.tell_ready()

    assert mark.fd is None


def test_the_mark_of_a_child_is_read_once(monkeypatch):
    monkeypatch.setenv("BUNQUEUE_WORKER_CHILD", "77:5")

    assert Mark(77, 5) == take_child_mark()
    assert take_child_mark() is None


def test_sources_tell_changed_added_and_removed_files(tmp_path, monkeypatch):
    moment = [0.0]
    monkeypatch.setattr("bunqueue.cli.sources.time.monotonic", lambda: moment[0])
    (tmp_path / "a.py").write_text("1")
    (tmp_path / ".hidden").mkdir()
    sources = Sources(tmp_path)

    def told() -> str | None:
        moment[0] += 1.0
        return sources.changed()

    assert told() is None
    (tmp_path / ".hidden" / "b.py").write_text("1")
    (tmp_path / "c.txt").write_text("1")
    assert told() is None
    (tmp_path / "b.py").write_text("1")
    assert str(tmp_path / "b.py") == told()
    (tmp_path / "a.py").unlink()
    assert str(tmp_path / "a.py") == told()
    assert told() is None
