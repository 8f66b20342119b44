"""The mutation log with a writer and a loop under the test's hand."""

import logging

import pytest

from bunqueue.engine.ports import MUST_COMMIT, NO_WAIT, SHOULD_COMMIT
from bunqueue.engine.states import ACTIVE, ADMITTED, COMPLETED, GONE, QUEUED
from bunqueue.errors import StorageFailed
from bunqueue.storage import log as log_module
from bunqueue.storage.log import (
    FLUSH_MS,
    FLUSH_ROWS,
    RETRY_MS,
    RETRY_MS_ASKED,
    SUBMITTED_AT_ONCE_ROWS,
    MutationLog,
)
from tests.support.stores import HandLoop, HandWriter, make_job


class Rig:
    """A log between a hand-driven loop and a hand-driven writer."""

    def __init__(self):
        self.loop = HandLoop()
        self.writer = HandWriter()
        self.log = MutationLog(self.writer, self.loop, clock_ms=lambda: 1_000)
        self.writer.start(self.log)

    def settle(self):
        """Have everything that was noted committed."""
        self.loop.end_turn()
        self.loop.ring()
        while self.log.backlog_rows:
            self.writer.commit()
            self.loop.end_turn()

    def saved_job(self, seq=1):
        job = make_job(seq)
        self.log.added(job)
        self.settle()
        return job


@pytest.fixture
def rig():
    return Rig()


@pytest.fixture(autouse=True)
def expected_errors(caplog):
    caplog.set_level(logging.CRITICAL + 1, logger=log_module.__name__)


# -- when a batch is cut ---------------------------------------------------------------------------


def test_a_plain_push_is_written_after_ten_milliseconds(rig):
    rig.log.added(make_job(1))

    rig.loop.end_turn()
    assert [] == rig.writer.batches
    assert [FLUSH_MS] == rig.loop.ring()
    assert 1 == len(rig.writer.rows("jobs"))


def test_a_hundred_rows_are_written_at_the_end_of_the_turn(rig):
    for seq in range(1, FLUSH_ROWS + 1):
        rig.log.added(make_job(seq))

    assert [] == rig.writer.batches
    rig.loop.end_turn()
    assert FLUSH_ROWS == len(rig.writer.rows("jobs"))


def test_an_answer_that_waits_has_everything_written_at_the_end_of_the_turn(rig):
    rig.log.added(make_job(1))
    rig.log.sync()
    rig.log.added(make_job(2))

    rig.loop.end_turn()
    assert 2 == len(rig.writer.rows("jobs"))


def test_what_comes_while_a_batch_is_in_flight_is_the_next_batch(rig):
    answers = []
    rig.log.added(make_job(1))
    rig.log.sync()
    rig.loop.end_turn()
    for seq in (2, 3):
        rig.log.added(make_job(seq))
        rig.log.sync()
        rig.log.hold(answers.append)
    rig.loop.end_turn()
    assert 1 == len(rig.writer.batches)

    rig.writer.commit()
    rig.loop.end_turn()
    assert [2, 3] == [row[0] for row in rig.writer.rows("jobs")]
    assert [] == answers
    rig.writer.commit()
    assert [True, True] == answers


def test_a_plain_push_behind_a_slow_batch_waits_for_no_second_timer(rig):
    rig.log.sync()
    rig.log.added(make_job(1))
    rig.loop.end_turn()
    rig.log.added(make_job(2))
    rig.log.added(make_job(3))
    rig.writer.commit()  # too early for the timer
    rig.log.sync()
    rig.loop.end_turn()
    rig.log.added(make_job(4))
    rig.loop.ring()
    rig.writer.commit()
    rig.loop.end_turn()

    assert [4] == [row[0] for row in rig.writer.rows("jobs")]


def test_one_durable_operation_makes_the_whole_batch_durable(rig):
    rig.log.added(make_job(1))
    rig.log.sync(durable=True)
    rig.log.added(make_job(2))
    rig.log.sync()
    rig.loop.end_turn()
    assert rig.writer.batches[-1][1] is True

    rig.writer.commit()
    rig.log.added(make_job(3))
    rig.log.sync()
    rig.loop.end_turn()
    assert rig.writer.batches[-1][1] is False


def test_an_answer_without_anything_to_write_leaves_without_a_batch(rig):
    calls = []
    rig.log.sync(then=calls.append, args=("then",))
    rig.log.hold(calls.append)
    rig.loop.end_turn()

    assert ["then", True] == calls
    assert [] == rig.writer.batches


def test_what_an_answer_waits_for_is_the_stronger_of_claim_and_outcome(rig):
    rig.log.claimed()
    assert SHOULD_COMMIT == rig.log.answer_waits
    rig.log.sync()
    assert MUST_COMMIT == rig.log.answer_waits
    rig.log.claimed()
    assert MUST_COMMIT == rig.log.answer_waits


# -- what it holds ---------------------------------------------------------------------------------


def test_a_job_that_changes_often_within_a_batch_costs_one_row_of_each_kind(rig):
    job = make_job(1)
    rig.log.added(job)
    for place in (ACTIVE, QUEUED, ACTIVE, COMPLETED):
        job.place = place
        rig.log.changed(job)
    rig.loop.ring()

    assert 1 == len(rig.writer.rows("jobs"))
    assert [COMPLETED] == [row[1] for row in rig.writer.rows("state")]


def test_trap_23_a_claim_wins_over_the_insert_that_is_still_buffered(rig):
    job = make_job(1)
    rig.log.added(job)
    job.place = ACTIVE
    rig.log.changed(job)
    rig.loop.ring()

    assert [ACTIVE] == [row[1] for row in rig.writer.rows("state")]


def test_trap_24_a_job_that_came_and_went_within_a_batch_costs_nothing(rig):
    job = make_job(1)
    rig.log.added(job)
    job.place = GONE
    rig.log.removed(job)
    rig.loop.ring()

    assert [] == rig.writer.batches


def test_a_job_removed_while_its_insert_is_in_flight_is_removed_by_the_next_batch(rig):
    job = make_job(1)
    rig.log.added(job)
    rig.loop.ring()
    job.place = GONE
    rig.log.removed(job)
    rig.writer.commit()
    rig.loop.ring()

    assert [1] == rig.writer.removed


def test_a_state_that_changes_while_a_batch_is_in_flight_is_in_the_next_one(rig):
    job = rig.saved_job()
    job.place = ACTIVE
    rig.log.changed(job)
    rig.loop.ring()
    job.place = COMPLETED
    rig.log.changed(job)
    rig.writer.commit()
    rig.loop.ring()

    assert [COMPLETED] == [row[1] for row in rig.writer.rows("state")]


def test_an_admitted_job_is_written_as_queued(rig):
    rig.log.added(make_job(1, place=ADMITTED))
    rig.loop.ring()

    assert 1 == len(rig.writer.rows("jobs"))
    assert [] == rig.writer.rows("state")


def test_who_follows_hurries_nothing_and_is_told_after_the_undos(rig):
    told = []
    rig.log.added(make_job(1))
    rig.log.follow(told.append)
    rig.loop.end_turn()
    assert [] == rig.writer.batches

    rig.log.sync(told.append, ("undone",))
    rig.loop.end_turn()
    rig.writer.fail()
    assert ["undone", False] == told


def test_who_follows_nothing_is_told_by_the_timer(rig):
    told = []
    rig.log.follow(told.append)
    assert [FLUSH_MS] == rig.loop.ring()

    assert [True] == told
    assert [] == rig.writer.batches


def test_what_is_noted_just_before_a_cut_is_in_that_batch(rig):
    rig.log.before_cut = lambda: rig.log.put("metrics_minute", "q|1", (2, 3))
    rig.log.added(make_job(1))
    rig.settle()

    assert [["q|1", 2, 3]] == rig.writer.rows("metrics_minute")


def test_the_newest_row_of_a_small_table_wins(rig):
    rig.log.put("queues", "emails", (1, *[None] * 6, 0, 0))
    rig.log.put("queues", "emails", (0, *[None] * 6, 5, 0))
    rig.log.put("queues", "gone", (0, *[None] * 6, 0, 0))
    rig.log.delete("queues", "gone")
    rig.loop.ring()

    assert [["emails", 0, *[None] * 6, 5, 0]] == rig.writer.rows("queues")
    assert ["gone"] == rig.writer.batches[-1][3][0][2]


def test_the_first_batch_marks_the_file_as_in_use(rig):
    rig.log.added(make_job(1))
    rig.loop.ring()
    assert ["clean", 0] in rig.writer.rows("meta")

    rig.writer.commit()
    rig.log.added(make_job(2))
    rig.loop.ring()
    assert [] == rig.writer.rows("meta")


# -- after the commit ------------------------------------------------------------------------------


def test_then_runs_before_the_answers_leave_and_its_notes_go_on(rig):
    calls = []
    job = make_job(1, place=ADMITTED)

    def publish():
        calls.append("published")
        rig.log.added(make_job(2))
        rig.log.claimed()

    rig.log.added(job)
    rig.log.sync(then=publish)
    rig.log.hold(calls.append)
    rig.loop.end_turn()
    rig.writer.commit()

    assert ["published", True] == calls
    rig.loop.end_turn()
    assert [2] == [row[0] for row in rig.writer.rows("jobs")]


def test_an_answer_that_raises_costs_the_others_nothing(rig):
    answers = []

    def broken(_):
        raise RuntimeError("gone")

    rig.log.added(make_job(1))
    rig.log.hold(broken)
    rig.log.hold(answers.append)
    rig.loop.end_turn()
    with pytest.raises(RuntimeError, match="gone"):
        rig.writer.commit()
    rig.loop.end_turn()

    assert [True] == answers


def test_a_then_that_raises_costs_the_others_nothing(rig):
    calls = []

    def broken():
        raise RuntimeError("gone")

    rig.log.added(make_job(1))
    rig.log.sync(then=broken)
    rig.log.sync(then=calls.append, args=("second",))
    rig.log.hold(calls.append)
    rig.loop.end_turn()
    with pytest.raises(RuntimeError, match="gone"):
        rig.writer.commit()
    rig.loop.end_turn()

    assert ["second", True] == calls


# -- a commit that fails ---------------------------------------------------------------------------


def test_trap_10_a_failed_commit_is_undone_newest_first_before_any_answer_leaves(rig):
    calls = []
    job = rig.saved_job()
    for number in (1, 2):
        rig.log.changed(job)
        rig.log.sync(undo=calls.append, args=(number,))
        rig.log.hold(lambda committed: calls.append(committed))
    rig.loop.end_turn()
    rig.log.changed(job)
    rig.log.sync(undo=calls.append, args=(3,))  # after the cut: acted on what is not there
    rig.log.hold(calls.append)
    rig.writer.fail()

    assert [3, 2, 1, False, False, False] == calls


def test_what_failed_is_tried_again_as_it_is_after_the_undoing(rig):
    job = rig.saved_job()
    job.place = ACTIVE
    rig.log.changed(job)
    rig.settle()

    def undo():
        job.place = ACTIVE
        rig.log.added(job)  # to be safe, undos say so

    job.place = COMPLETED
    rig.log.changed(job)
    rig.log.sync(undo=undo)
    rig.loop.end_turn()
    rig.writer.fail()
    rig.loop.ring()

    assert [ACTIVE] == [row[1] for row in rig.writer.rows("state")]


def test_a_removal_that_failed_and_was_undone_leaves_the_job_in_the_file(rig):
    job = rig.saved_job()

    def undo():
        job.place = ACTIVE
        rig.log.added(job)

    job.place = GONE
    rig.log.removed(job)
    rig.log.sync(undo=undo)
    rig.loop.end_turn()
    rig.writer.fail()
    rig.loop.ring()
    assert [] == rig.writer.removed
    assert [ACTIVE] == [row[1] for row in rig.writer.rows("state")]

    rig.writer.commit()
    job.place = GONE
    rig.log.removed(job)
    rig.loop.ring()
    assert [1] == rig.writer.removed


def test_a_job_undone_and_then_removed_before_the_retry_still_leaves_the_file(rig):
    job = rig.saved_job()
    job.place = GONE
    rig.log.removed(job)
    rig.log.sync(undo=lambda: (setattr(job, "place", ACTIVE), rig.log.added(job)))
    rig.loop.end_turn()
    rig.writer.fail()
    job.place = GONE
    rig.log.removed(job)
    rig.loop.ring()

    assert [1] == rig.writer.removed


def test_a_new_job_of_a_failed_batch_stays_new(rig):
    job = make_job(1)
    rig.log.added(job)
    rig.loop.ring()
    job.place = ACTIVE
    rig.log.changed(job)
    rig.writer.fail()
    rig.loop.ring()

    assert 1 == len(rig.writer.rows("jobs"))
    assert [ACTIVE] == [row[1] for row in rig.writer.rows("state")]


def test_a_new_job_of_a_failed_batch_that_is_withdrawn_leaves_no_trace(rig):
    answers = []
    job = make_job(1, place=ADMITTED)

    def withdraw():
        job.place = GONE
        rig.log.removed(job)

    rig.log.added(job)
    rig.log.sync(undo=withdraw, durable=True)
    rig.log.hold(answers.append)
    rig.loop.end_turn()
    rig.writer.fail()
    rig.loop.ring()

    assert [False] == answers
    assert [] == rig.writer.rows("jobs")
    assert [] == rig.writer.removed


def test_a_small_row_of_a_failed_batch_gives_way_to_a_newer_one(rig):
    rig.log.put("queues", "a", (1, *[None] * 6, 0, 0))
    rig.log.put("queues", "b", (1, *[None] * 6, 0, 0))
    rig.loop.ring()
    rig.log.put("queues", "a", (0, *[None] * 6, 0, 0))
    rig.writer.fail()
    rig.loop.ring()

    assert {"a": 0, "b": 1} == {row[0]: row[1] for row in rig.writer.rows("queues")}
    assert ["clean", 0] in rig.writer.rows("meta")


def test_retries_come_after_growing_pauses(rig):
    rig.log.added(make_job(1))
    rig.loop.ring()
    pauses = []
    for _ in range(12):
        rig.writer.fail()
        pauses += rig.loop.ring()

    assert [RETRY_MS * 2**number for number in range(9)] == pauses[:9]
    assert [30_000] * 3 == pauses[9:]


def test_an_answer_that_waits_has_the_next_try_made_soon(rig):
    answers = []
    rig.log.added(make_job(1))
    rig.loop.ring()
    for _ in range(5):
        rig.writer.fail()
        rig.loop.ring()
    rig.writer.fail()
    rig.log.sync()
    rig.log.hold(answers.append)

    assert [RETRY_MS_ASKED] == rig.loop.ring()
    rig.writer.fail()
    assert [False] == answers


def test_the_status_tells_a_full_disk_until_a_write_succeeds(rig):
    assert {"diskFull": False, "error": None, "since": None} == rig.log.status()
    rig.log.added(make_job(1))
    rig.loop.ring()
    rig.writer.fail("full", "FullError: database or disk is full")
    assert {
        "diskFull": True,
        "error": "FullError: database or disk is full",
        "since": 1_000,
    } == rig.log.status()

    rig.loop.ring()
    rig.writer.commit()
    assert {"diskFull": False, "error": None, "since": None} == rig.log.status()


def test_a_full_disk_is_told_until_there_is_room_although_small_commits_fit(rig, monkeypatch):
    is_full = True
    monkeypatch.setattr(rig.log, "is_disk_full", lambda: is_full)
    rig.log.added(make_job(1))
    rig.log.sync()
    rig.loop.end_turn()
    rig.writer.fail("full", "FullError: database or disk is full")
    rig.loop.ring()
    rig.writer.commit()

    status = rig.log.status()
    assert (True, 1_000) == (status["diskFull"], status["since"])
    assert "no room is left" in status["error"]
    is_full = False
    assert {"diskFull": False, "error": None, "since": None} == rig.log.status()
    is_full = True
    assert {"diskFull": False, "error": None, "since": None} == rig.log.status()


def test_an_undo_that_raises_costs_the_others_nothing(rig):
    calls = []

    def broken():
        raise RuntimeError("gone")

    rig.log.added(make_job(1))
    rig.log.sync(undo=calls.append, args=("first",))
    rig.log.sync(undo=broken)
    rig.log.hold(calls.append)
    rig.loop.end_turn()
    with pytest.raises(RuntimeError, match="gone"):
        rig.writer.fail()
    rig.loop.end_turn()

    assert ["first", False] == calls


def test_trouble_that_left_nothing_to_write_again_is_probed_until_it_is_over(rig):
    job = make_job(1, place=ADMITTED)

    def withdraw():
        job.place = GONE
        rig.log.removed(job)

    rig.saved_job(9)
    rig.log.added(job)
    rig.log.sync(undo=withdraw)
    rig.loop.end_turn()
    rig.writer.fail("full")
    for _ in range(3):
        rig.loop.ring()
        rig.writer.fail("full")
    rig.loop.ring()
    assert [["clean", 0]] == rig.writer.rows("meta")
    rig.writer.commit()
    assert not rig.log.status()["diskFull"]

    rig.log.added(make_job(2))
    rig.loop.ring()
    assert [2] == [row[0] for row in rig.writer.rows("jobs")]


# -- the backlog -----------------------------------------------------------------------------------


def test_pushes_are_refused_once_too_many_rows_wait_and_until_a_commit(rig, monkeypatch):
    monkeypatch.setattr(log_module, "REFUSED_ROWS", 10)
    rig.log.added(make_job(1))
    rig.loop.ring()
    rig.writer.fail("full")
    for seq in range(2, 10):
        rig.log.added(make_job(seq))
    assert not rig.log.is_refusing
    rig.log.added(make_job(10))
    assert rig.log.is_refusing

    rig.loop.ring()
    rig.writer.commit()
    assert not rig.log.is_refusing


def test_pushes_are_refused_once_too_many_bytes_wait(rig, monkeypatch):
    monkeypatch.setattr(log_module, "REFUSED_BYTES", 1000)
    rig.log._bytes_mark = 1000
    rig.log.added(make_job(1, b"x" * 500))
    rig.loop.ring()
    rig.writer.fail("full")
    rig.log.added(make_job(2, b"x" * 500))

    assert rig.log.is_refusing


def test_a_payload_counts_once_however_often_it_is_noted_again(rig):
    job = make_job(1, b"x" * 500)
    rig.log.added(job)
    rig.settle()
    for _ in range(3):  # an outcome that cannot be written, and is undone each time
        rig.log.changed(job)
        rig.log.sync(rig.log.rewritten, (job,))
        rig.loop.end_turn()
        rig.loop.ring()
        rig.writer.fail("full")

    assert 500 == rig.log.sizes()[1]["backlog"]


@pytest.mark.parametrize("outcome", ["committed", "failed"])
def test_what_follows_from_a_commit_leaves_the_next_answer_alone(rig, outcome):
    rig.log.added(make_job(1))
    rig.log.sync(rig.log.sync, (), rig.log.sync)
    rig.loop.end_turn()
    rig.log.answer_waits = NO_WAIT  # as whoever ran the command does
    if outcome == "committed":
        rig.writer.commit()
    else:
        rig.writer.fail("full")

    assert NO_WAIT == rig.log.answer_waits


def test_a_flood_is_congestion_until_a_commit_gives_room(rig, monkeypatch):
    monkeypatch.setattr(log_module, "CONGESTED_ROWS", 10)
    calls = []
    rig.log.on_relief(lambda: calls.append("at once"))
    for seq in range(1, 7):
        rig.log.added(make_job(seq))
    rig.loop.ring()
    for seq in range(7, 11):
        rig.log.added(make_job(seq))
    assert rig.log.is_congested
    rig.log.on_relief(lambda: calls.append("relief"))
    assert ["at once"] == calls

    rig.writer.commit()
    assert ["at once", "relief"] == calls


def test_a_flood_is_congestion_before_the_loop_has_had_a_turn_to_write_it(rig, monkeypatch):
    monkeypatch.setattr(log_module, "FLUSH_ROWS", 5)
    monkeypatch.setattr(log_module, "CONGESTED_ROWS", 10)
    calls = []
    for seq in range(1, 11):
        rig.log.added(make_job(seq))
    assert rig.log.is_congested
    rig.log.on_relief(lambda: calls.append("relief"))
    rig.loop.ring()
    assert [] == calls

    rig.writer.commit()
    assert ["relief"] == calls


def test_large_payloads_are_congestion(rig, monkeypatch):
    monkeypatch.setattr(log_module, "CONGESTED_BYTES", 1000)
    rig.log.added(make_job(1, b"x" * 600))
    rig.loop.ring()
    assert not rig.log.is_congested
    rig.log.added(make_job(2, b"x" * 400))
    assert rig.log.is_congested


def test_a_slow_disk_is_congestion(rig, monkeypatch):
    rig.log.added(make_job(1))
    rig.loop.ring()
    assert not rig.log.is_congested
    monkeypatch.setattr(log_module, "CONGESTED_MS", 0)
    assert rig.log.is_congested


def test_a_disk_that_has_long_been_silent_is_told_as_trouble(rig, monkeypatch):
    rig.log.added(make_job(1))
    rig.loop.ring()
    assert rig.log.status()["error"] is None
    monkeypatch.setattr(log_module, "SILENT_MS", 0)
    status = rig.log.status()

    assert status["error"].startswith("the disk has not answered for ")
    assert status["since"] <= 1_000
    assert not status["diskFull"]
    rig.writer.commit()
    assert rig.log.status()["error"] is None


def test_a_disk_that_refuses_is_no_congestion_so_that_pushes_are_served_from_memory(
    rig, monkeypatch
):
    monkeypatch.setattr(log_module, "CONGESTED_ROWS", 2)
    calls = []
    for seq in range(1, 5):
        rig.log.added(make_job(seq))
    rig.loop.ring()
    rig.log.on_relief(lambda: calls.append("relief"))
    rig.writer.fail("full")

    assert ["relief"] == calls
    assert not rig.log.is_congested


# -- rows that no disk takes -----------------------------------------------------------------------


def test_trap_22_a_job_that_cannot_be_stored_leaves_memory_and_its_siblings_stay(rig):
    dropped = []
    rig.log.on_dropped = lambda job, text: dropped.append((job.id, text)) or ()
    jobs = [make_job(seq) for seq in (1, 2)]
    for job in jobs:
        rig.log.added(job)
    rig.loop.ring()
    rig.writer.commit(dropped=[(2, "TooBigError: string or blob too big")])
    rig.loop.ring()

    assert [("job-2", "TooBigError: string or blob too big")] == dropped
    assert [2] == rig.writer.removed


def test_an_answer_is_told_of_the_jobs_that_could_not_be_stored(rig):
    told = []
    for seq in (1, 2):
        rig.log.added(make_job(seq))
    rig.log.sync(durable=True)
    rig.log.hold(told.append)
    rig.loop.end_turn()
    rig.writer.commit(dropped=[(2, "TooBigError: string or blob too big")])

    assert [frozenset({"job-2"})] == told


def with_one_in_flight(rig):
    """Put a durable job in flight whose row will be refused."""
    bad = make_job(2, place=ADMITTED)
    rig.log.added(bad)
    rig.log.sync(durable=True)
    rig.loop.end_turn()
    return bad


def test_an_answer_given_while_it_was_in_flight_is_told_of_the_dropped_job(rig):
    told = []
    with_one_in_flight(rig)
    rig.log.sync()  # a twin: nothing of its own to be written
    rig.log.hold(told.append)
    rig.writer.commit(dropped=[(2, "TooBigError: string or blob too big")])
    assert [] == told

    rig.settle()
    assert [frozenset({"job-2"})] == told


def test_an_answer_given_after_the_drop_is_not_told_of_it(rig):
    told = []
    with_one_in_flight(rig)
    rig.writer.commit(dropped=[(2, "TooBigError: string or blob too big")])
    rig.log.sync()
    rig.log.hold(told.append)

    rig.settle()
    assert [True] == told


def test_an_answer_whose_own_commit_fails_is_told_that(rig):
    told = []
    with_one_in_flight(rig)
    rig.log.added(make_job(3))
    rig.log.sync()
    rig.log.hold(told.append)
    rig.writer.commit(dropped=[(2, "TooBigError: string or blob too big")])
    rig.loop.end_turn()
    rig.writer.fail()

    assert [False] == told


def test_an_answer_is_told_of_the_drops_of_both_batches(rig):
    told = []
    with_one_in_flight(rig)
    rig.log.added(make_job(3))
    rig.log.sync()
    rig.log.hold(told.append)
    rig.writer.commit(dropped=[(2, "TooBigError: string or blob too big")])
    rig.loop.end_turn()
    rig.writer.commit(dropped=[(3, "TooBigError: string or blob too big")])

    assert [frozenset({"job-2", "job-3"})] == told


def test_an_id_that_is_new_again_is_told_to_no_later_answer(rig):
    told = []
    bad = with_one_in_flight(rig)
    rig.log.removed(bad)
    anew = make_job(3)
    anew.id = bad.id
    rig.log.added(anew)
    rig.log.sync()
    rig.log.hold(told.append)
    rig.writer.commit(dropped=[(2, "TooBigError: string or blob too big")])

    rig.settle()
    assert [True] == told


def test_what_came_and_went_in_a_batch_with_a_refused_row_is_told_too(rig):
    told = []
    gone = make_job(1, place=ADMITTED)
    rig.log.added(gone)
    rig.log.removed(gone)
    rig.log.hold(told.append)
    with_one_in_flight(rig)
    rig.writer.commit(dropped=[(2, "TooBigError: string or blob too big")])

    assert [frozenset({"job-1", "job-2"})] == told


def test_those_that_rely_on_a_dropped_job_go_with_it(rig):
    told = []
    bad = with_one_in_flight(rig)
    relying = make_job(3, place=ADMITTED)
    rig.log.on_dropped = lambda job, _: [relying] if job is bad else []
    rig.log.added(relying)
    rig.log.sync()
    rig.log.hold(told.append)
    rig.writer.commit(dropped=[(2, "TooBigError: string or blob too big")])

    rig.settle()
    assert [frozenset({"job-2", "job-3"})] == told
    assert [] == [row for _ in rig.writer.batches[1:] for row in rig.writer.rows("jobs")]


def test_an_answer_is_told_of_a_job_without_an_image(rig):
    told = []
    bad = make_job(1)
    bad.own_extra().depends_on = {object(): None}
    rig.log.added(bad)
    rig.log.sync(durable=True)
    rig.log.hold(told.append)
    rig.loop.end_turn()
    if rig.writer.batches:
        rig.writer.commit()

    assert [frozenset({"job-1"})] == told


def test_a_job_without_an_image_does_not_stop_the_batch_and_leaves_the_file(rig):
    dropped = []
    rig.log.on_dropped = lambda job, _: dropped.append(job.id) or ()
    bad = rig.saved_job(1)
    bad.own_extra().stacktrace = [object()]
    rig.log.changed(bad)
    rig.log.added(make_job(2))
    rig.loop.ring()
    assert ["job-1"] == dropped
    assert [2] == [row[0] for row in rig.writer.rows("jobs")]

    rig.writer.commit()
    rig.loop.ring()
    assert [1] == rig.writer.removed


# -- the writer dies -------------------------------------------------------------------------------


def test_pushes_are_refused_while_a_writer_is_replaced(rig):
    rig.log.on_writer_down("killed by signal 9")
    assert rig.log.is_refusing
    assert "killed by signal 9" == rig.log.status()["error"]

    rig.log.on_writer_up()
    assert not rig.log.is_refusing
    rig.log.added(make_job(1))
    assert [FLUSH_MS] == rig.loop.ring()
    assert 1 == len(rig.writer.batches)


def test_without_a_writer_everything_is_undone_and_the_broker_is_told(rig, monkeypatch):
    calls = []
    monkeypatch.setattr(log_module, "CONGESTED_ROWS", 1)
    rig.log.on_fatal = calls.append
    rig.log.added(make_job(1))
    rig.log.sync(undo=calls.append, args=("undone",))
    rig.log.hold(calls.append)
    rig.loop.end_turn()
    rig.log.on_relief(lambda: calls.append("relief"))
    rig.log.on_writer_lost("it keeps dying")
    assert ["undone", False, "relief", "it keeps dying"] == calls
    assert rig.log.is_refusing

    rig.log.sync(undo=calls.append, args=("again",))
    rig.log.hold(calls.append)
    rig.loop.end_turn()
    assert ["again", False] == calls[4:]
    with pytest.raises(StorageFailed, match="it keeps dying"):
        rig.log.flush()


def test_an_answer_that_comes_between_the_loss_of_the_writer_and_the_turns_end_is_told(rig):
    calls = []
    rig.log.sync()  # something is due at the end of the turn
    rig.log.on_writer_lost("it keeps dying")
    rig.log.sync(undo=calls.append, args=("undone",))
    rig.log.hold(calls.append)
    rig.loop.end_turn()
    assert ["undone", False] == calls


def test_a_damaged_file_is_written_no_more_and_the_broker_is_told(rig):
    calls = []
    rig.log.on_fatal = calls.append
    rig.log.added(make_job(1))
    rig.log.sync(undo=calls.append, args=("undone",))
    rig.log.hold(calls.append)
    rig.loop.end_turn()
    rig.writer.fail("damaged", "CorruptError: database disk image is malformed")

    assert ["undone", False, "CorruptError: database disk image is malformed"] == calls
    assert rig.log.is_refusing
    rig.loop.ring()
    rig.loop.end_turn()
    assert 1 == len(rig.writer.batches)


def test_flush_writes_all_and_delivers_all(rig):
    answers = []
    rig.log.added(make_job(1))
    rig.log.hold(answers.append)
    rig.log.flush()

    assert [True] == answers
    assert 0 == rig.log.backlog_rows


def test_a_large_batch_goes_to_the_writer_a_turn_after_it_was_cut(rig):
    for seq in range(1, SUBMITTED_AT_ONCE_ROWS + 1):
        rig.log.added(make_job(seq))
    rig.loop.end_turn()
    assert ([], SUBMITTED_AT_ONCE_ROWS) == (rig.writer.batches, rig.log.backlog_rows)

    assert 0 in rig.loop.ring()
    assert SUBMITTED_AT_ONCE_ROWS == len(rig.writer.rows("jobs"))


def test_flush_writes_a_batch_that_was_cut_and_not_submitted(rig):
    for seq in range(1, SUBMITTED_AT_ONCE_ROWS + 1):
        rig.log.added(make_job(seq))
    rig.loop.end_turn()
    rig.log.flush()

    assert SUBMITTED_AT_ONCE_ROWS == len(rig.writer.rows("jobs"))
    assert 0 == rig.log.backlog_rows
    rig.loop.ring()
    assert 1 == len(rig.writer.batches)


def test_flush_fails_with_the_commit(rig, monkeypatch):
    monkeypatch.setattr(rig.writer, "wait", lambda _: rig.writer.fail("full", "no room"))
    rig.log.added(make_job(1))

    with pytest.raises(StorageFailed, match="no room"):
        rig.log.flush()
