"""What every storage promises: the same sentences of each of them."""

import errno
import logging
import os
import signal
from enum import IntEnum

import pytest

from bunqueue.engine.states import ACTIVE, ADMITTED, COMPLETED, GONE, QUEUED
from bunqueue.errors import StorageFailed
from bunqueue.storage import log as log_module
from bunqueue.storage import process, sqlite
from bunqueue.storage.loop import PollLoop
from bunqueue.storage.memory import MemoryStorage
from bunqueue.storage.native_thread import twin
from bunqueue.storage.sqlite import SqliteStorage
from tests.support.stores import NamedQueue, make_job

PATIENCE_MS = 20_000  # for the machine; nothing here takes that long
QUEUE_ROW = (1, 10, 1000.5, None, 4, '{"enabled":true}', None, 7, 2)


class Priority(IntEnum):
    HIGH = 7


class House:
    """A place where one kind of storage is opened, closed and opened again."""

    def __init__(self, kind, path):
        self.kind = kind
        self.path = path
        self.loop = PollLoop()
        self.storage = None

    def open(self, **options):
        self.loop = PollLoop()
        if self.kind == "memory":
            self.storage = MemoryStorage()
        else:
            self.storage = SqliteStorage.open(self.path, self.loop, writer=self.kind, **options)
        return self.storage

    def reopen(self):
        self.storage.close()
        return self.open()

    def saved(self):
        """Return what the storage starts from: id -> job."""
        return {job.id: job for job in self.storage.load().jobs(NamedQueue)}

    def committed(self):
        """Wait for the commit of what was logged until now, as an answer does."""
        answers = []
        self.storage.sync()
        self.storage.hold(answers.append)
        assert self.loop.run_until(lambda: answers, PATIENCE_MS)
        return answers[0]


NATIVE = pytest.param(
    "native", marks=pytest.mark.skipif(twin() is None, reason="the compiled core is not built")
)


@pytest.fixture(params=["memory", "process", "thread", NATIVE])
def any_house(request, tmp_path):
    house = House(request.param, tmp_path / "data.db")
    house.open()
    yield house
    house.storage.close()


@pytest.fixture(params=["process", "thread", NATIVE])
def house(request, tmp_path):
    house = House(request.param, tmp_path / "data.db")
    house.open()
    yield house
    house.storage.close()


@pytest.fixture
def quiet(caplog):
    for name in (log_module.__name__, process.__name__):
        caplog.set_level(logging.CRITICAL + 1, logger=name)


# -- of every storage ------------------------------------------------------------------------------


def test_a_new_storage_starts_from_nothing(any_house):
    saved = any_house.storage.load()

    assert (0, True) == (saved.seq, saved.was_clean)
    assert [] == list(saved.jobs(NamedQueue))
    assert {} == saved.tables.get("queues", {})


def test_then_is_called_and_then_the_answer_leaves(any_house):
    calls = []
    storage = any_house.storage
    storage.added(make_job(1, place=ADMITTED))
    storage.sync(then=calls.append, args=("then",))
    storage.hold(calls.append)

    assert any_house.loop.run_until(lambda: len(calls) == 2, PATIENCE_MS)
    assert ["then", True] == calls


def test_answers_leave_in_the_order_they_were_held(any_house):
    calls = []
    for seq in range(1, 50):
        any_house.storage.added(make_job(seq))
        any_house.storage.sync()
        any_house.storage.hold(lambda _, seq=seq: calls.append(seq))
        any_house.loop.run_once(0)

    assert any_house.loop.run_until(lambda: len(calls) == 49, PATIENCE_MS)
    assert list(range(1, 50)) == calls


def test_a_healthy_storage_says_so(any_house):
    any_house.storage.added(make_job(1))
    any_house.storage.flush()

    assert {"diskFull": False, "error": None, "since": None} == any_house.storage.status()
    assert not any_house.storage.is_refusing
    assert not any_house.storage.is_congested


def test_closing_twice_is_closing_once(any_house):
    any_house.storage.close()


# -- of those with a file --------------------------------------------------------------------------


def test_what_was_noted_is_there_after_a_restart(house):
    storage = house.storage
    jobs = [make_job(seq, b"\xc0" * seq) for seq in range(1, 700)]
    for job in jobs:
        storage.added(job)
    jobs[0].place, jobs[0].token = ACTIVE, "token"
    storage.changed(jobs[0])
    storage.put("queues", "emails", QUEUE_ROW)
    house.reopen()

    saved = house.storage.load()
    assert {"emails": QUEUE_ROW} == saved.tables["queues"]
    assert 699 == saved.seq
    found = house.saved()
    assert [job.id for job in jobs] == list(found)
    assert [job.data for job in jobs] == [job.data for job in found.values()]
    assert (ACTIVE, "token") == (found["job-1"].place, found["job-1"].token)
    assert {QUEUED} == {job.place for job in found.values() if job.seq > 1}


def test_a_plain_push_gets_into_the_file_by_itself(house):
    house.storage.added(make_job(1))

    assert house.loop.run_until(lambda: house.storage.backlog_rows == 0, PATIENCE_MS)
    house.reopen()
    assert ["job-1"] == list(house.saved())


def test_changes_of_every_kind_follow_each_other(house):
    storage = house.storage
    jobs = [make_job(seq) for seq in range(1, 5)]
    for job in jobs:
        storage.added(job)
    storage.put("queues", "gone", QUEUE_ROW)
    house.committed()
    jobs[0].place, jobs[0].result, jobs[0].finished_at = COMPLETED, b"\x01", 5
    storage.changed(jobs[0])
    jobs[1].data, jobs[1].priority = b"\x02", 9
    storage.rewritten(jobs[1])
    jobs[2].place = GONE
    storage.removed(jobs[2])
    storage.delete("queues", "gone")
    house.reopen()

    found = house.saved()
    assert ["job-1", "job-2", "job-4"] == list(found)
    assert (COMPLETED, b"\x01", 5) == (
        found["job-1"].place,
        found["job-1"].result,
        found["job-1"].finished_at,
    )
    assert (b"\x02", 9) == (found["job-2"].data, found["job-2"].priority)
    assert {} == house.storage.load().tables["queues"]


def test_trap_25_removed_jobs_stay_away(house):
    jobs = [make_job(seq) for seq in range(1, 1001)]
    for job in jobs:
        house.storage.added(job)
    house.committed()
    for job in jobs:
        if job.seq % 3:
            job.place = GONE
            house.storage.removed(job)
    house.reopen()

    assert [seq for seq in range(1, 1001) if not seq % 3] == [
        job.seq for job in house.saved().values()
    ]


def test_trap_1_a_successor_and_the_end_of_its_predecessor_are_one_commit(house):
    old, new = make_job(1), make_job(2)
    old.place = COMPLETED
    house.storage.added(old)
    house.committed()
    old.place = GONE
    house.storage.removed(old)
    house.storage.added(new)
    house.loop.call_soon(lambda: None)
    submitted = []
    submit = house.storage._writer.submit
    house.storage._writer.submit = lambda batch: (submitted.append(batch), submit(batch))
    house.committed()

    (batch,) = submitted
    if house.kind == "native":
        assert [1] == batch.removed
    else:
        assert [1] == batch[4]
        assert 1 == len(batch[2])
    house.reopen()
    assert ["job-2"] == list(house.saved())


def test_a_second_restart_changes_nothing_more(house):
    for seq in range(1, 10):
        house.storage.added(make_job(seq))
    house.reopen()
    first = house.saved()
    house.reopen()

    assert list(first) == list(house.saved())
    assert 9 == house.storage.load().seq


def test_admission_numbers_are_never_given_again(house):
    old, job = make_job(1), make_job(500)
    house.storage.added(old)
    house.committed()
    house.storage.added(job)
    house.storage.rewritten(old)
    house.committed()
    job.place = GONE
    house.storage.removed(job)
    house.reopen()

    assert 500 == house.storage.load().seq


def test_jobs_may_be_noted_while_the_file_is_still_being_read(house):
    for seq in range(1, 3001):
        house.storage.added(make_job(seq))
    house.reopen()
    found = []
    for job in house.storage.load().jobs(NamedQueue):
        found.append(job.seq)
        job.place = ACTIVE
        house.storage.changed(job)
        if job.seq % 500 == 0:
            assert house.committed()
    house.reopen()

    assert list(range(1, 3001)) == found
    assert {ACTIVE} == {job.place for job in house.saved().values()}


def test_a_second_opening_is_refused(house):
    with pytest.raises(StorageFailed, match=f"{house.path} is in use .*pid {os.getpid()}"):
        SqliteStorage.open(house.path, PollLoop(), writer="thread", lock_wait_ms=0)


def test_a_good_end_leaves_a_clean_mark_and_the_first_batch_takes_it_away(house):
    house.storage.added(make_job(1))
    house.reopen()
    assert house.storage.load().was_clean

    house.reopen()
    assert house.storage.load().was_clean


def test_values_of_odd_kinds_are_stored_as_what_they_are(house):
    class Text(str):
        pass

    job = make_job(1)
    job.name, job.priority = Text("odd"), Priority.HIGH
    house.storage.added(job)
    assert house.committed()
    house.reopen()

    found = house.saved()["job-1"]
    assert ("odd", 7) == (found.name, found.priority)


def test_a_large_payload_passes(house):
    house.storage.added(make_job(1, b"x" * (20 << 20)))
    assert house.committed()
    house.reopen()

    assert 20 << 20 == len(house.saved()["job-1"].data)


def test_a_flood_is_written_while_it_lasts(house):
    for seq in range(1, 50_001):
        house.storage.added(make_job(seq))
        if seq % 1000 == 0:
            house.loop.run_once(0)
            if house.storage.is_congested:
                relief = []
                house.storage.on_relief(lambda relief=relief: relief.append(1))
                assert house.loop.run_until(lambda relief=relief: relief, PATIENCE_MS)
    house.reopen()

    assert 50_000 == len(house.saved())


# -- a disk without room ---------------------------------------------------------------------------


@pytest.fixture
def small_house(request, tmp_path, monkeypatch, quiet):  # noqa: ARG001  # quiet silences
    """A file that may grow to 64 pages, half a MiB."""
    pragmas = sqlite._SETUP["pragmas"] | {"max_page_count": 64}
    monkeypatch.setitem(sqlite._SETUP, "pragmas", pragmas)
    house = House(request.param, tmp_path / "data.db")
    house.open()
    return house


@pytest.mark.parametrize("small_house", ["process", "thread", NATIVE], indirect=True)
def test_trap_10_an_outcome_that_finds_no_room_is_undone_and_can_come_again(small_house):
    house, storage = small_house, small_house.storage
    filler, job = make_job(1, b"x" * 300_000), make_job(2)
    job.place = ACTIVE
    storage.added(filler)
    storage.added(job)
    assert house.committed()

    def ack():
        job.place, job.result = COMPLETED, b"x" * 200_000
        storage.changed(job)
        storage.sync(undo)

    def undo():
        job.place, job.result = ACTIVE, None
        storage.changed(job)

    ack()
    assert house.committed() is False
    assert (ACTIVE, None) == (job.place, job.result)
    assert storage.status()["diskFull"]

    filler.place = GONE
    storage.removed(filler)
    ack()
    assert house.committed() is True
    assert {"diskFull": False, "error": None, "since": None} == storage.status()
    house.reopen()
    assert [("job-2", COMPLETED)] == [(job.id, job.place) for job in house.saved().values()]
    house.storage.close()


@pytest.mark.parametrize("small_house", ["process", "thread", NATIVE], indirect=True)
def test_plain_pushes_stay_in_memory_while_the_disk_is_full(small_house):
    house, storage = small_house, small_house.storage
    jobs = [make_job(seq, b"x" * 300_000) for seq in (1, 2)]
    for job in jobs:
        storage.added(job)
    assert house.loop.run_until(lambda: storage.status()["diskFull"], PATIENCE_MS)
    assert not storage.is_refusing
    with pytest.raises(StorageFailed, match="full"):
        storage.flush()

    jobs[0].place = GONE
    storage.removed(jobs[0])
    assert house.loop.run_until(lambda: not storage.status()["diskFull"], PATIENCE_MS)
    house.reopen()
    assert ["job-2"] == list(house.saved())
    house.storage.close()


@pytest.mark.parametrize("small_house", ["process", "thread", NATIVE], indirect=True)
def test_a_close_that_could_not_write_says_so_and_lets_go_of_the_file(small_house):
    house, storage = small_house, small_house.storage
    storage.added(make_job(1))
    assert house.committed()
    storage.added(make_job(2, b"x" * 900_000))
    with pytest.raises(StorageFailed, match="full"):
        storage.close()

    house.open()
    assert not house.storage.load().was_clean
    assert ["job-1"] == list(house.saved())
    house.storage.close()


# -- a writer process that dies --------------------------------------------------------------------


@pytest.fixture
def process_house(tmp_path, quiet):  # noqa: ARG001  # quiet silences
    house = House("process", tmp_path / "data.db")
    house.open()
    yield house
    house.storage.close()


def test_a_killed_writer_is_replaced_and_nothing_is_missing(process_house):
    house, storage = process_house, process_house.storage
    assert house.committed()
    for seq in range(1, 2001):
        storage.added(make_job(seq))
        if seq % 500 == 0:
            os.kill(storage._writer.pid, signal.SIGKILL)
            assert house.committed()
    house.reopen()

    assert 2000 == len(house.saved())


def test_a_batch_in_flight_when_the_writer_dies_is_committed_by_the_next(process_house):
    house, storage = process_house, process_house.storage
    os.kill(storage._writer.pid, signal.SIGSTOP)
    answers = []
    storage.added(make_job(1))
    storage.sync(durable=True)
    storage.hold(answers.append)
    house.loop.run_once(0)
    assert storage.backlog_rows == 1
    os.kill(storage._writer.pid, signal.SIGKILL)

    assert house.loop.run_until(lambda: answers, PATIENCE_MS)
    assert [True] == answers
    assert house.loop.run_until(lambda: not storage.is_refusing, PATIENCE_MS)


def test_flush_waits_for_a_new_writer_if_it_must(process_house):
    storage = process_house.storage
    storage.added(make_job(1))
    os.kill(storage._writer.pid, signal.SIGKILL)
    storage.flush()

    assert 0 == storage.backlog_rows
    process_house.reopen()
    assert ["job-1"] == list(process_house.saved())


def test_a_writer_is_replaced_once_a_descriptor_can_be_had(process_house, monkeypatch):
    house, storage = process_house, process_house.storage
    assert house.committed()
    refusals = [OSError(errno.EMFILE, "Too many open files")] * 3
    socketpair = process.socket.socketpair

    def scarce():
        if refusals:
            raise refusals.pop()
        return socketpair()

    monkeypatch.setattr(process.socket, "socketpair", scarce)
    monkeypatch.setattr(process, "SPAWN_RETRY_MS", 1)
    os.kill(storage._writer.pid, signal.SIGKILL)
    storage.added(make_job(1))

    assert house.committed()
    assert not refusals


def test_an_idle_writer_that_dies_leaves_pushes_refused_only_until_the_next_is_up(process_house):
    house, storage = process_house, process_house.storage
    os.kill(storage._writer.pid, signal.SIGKILL)

    assert house.loop.run_until(lambda: storage.is_refusing, PATIENCE_MS)
    assert "killed by signal 9" in storage.status()["error"]
    assert house.loop.run_until(lambda: not storage.is_refusing, PATIENCE_MS)
    assert house.committed()


def test_a_terminal_s_interrupt_does_not_reach_the_writer(process_house):
    house, storage = process_house, process_house.storage
    pid = storage._writer.pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    storage.added(make_job(1))

    assert house.committed()
    assert pid == storage._writer.pid


@pytest.mark.usefixtures("quiet")
def test_writers_that_keep_dying_are_given_up_and_the_broker_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "RESTART_MS", 1)
    house = House("process", tmp_path / "data.db")
    storage = house.open()
    fatal, answers = [], []
    storage.on_fatal = fatal.append
    storage.added(make_job(1))
    assert house.committed()
    # From now on every new one fails to open the file.
    monkeypatch.setattr(storage._writer, "_path", str(tmp_path / "nowhere" / "data.db"))
    os.kill(storage._writer.pid, signal.SIGKILL)
    storage.added(make_job(2))
    storage.sync()
    storage.hold(answers.append)

    assert house.loop.run_until(lambda: fatal, PATIENCE_MS)
    assert [False] == answers
    assert storage.is_refusing
    with pytest.raises(StorageFailed, match=r"CantOpenError.*as did 3 before it"):
        storage.close()
    house.open()
    assert ["job-1"] == list(house.saved())
    house.storage.close()
