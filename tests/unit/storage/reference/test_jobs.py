"""Rows of the original server as jobs; what does not occur in a recorded file."""

from __future__ import annotations

import msgpack
import pytest

from bunqueue.engine.ports import NEW
from bunqueue.engine.states import FAILED, PARKED, QUEUED
from bunqueue.protocol.codec import unpack
from bunqueue.protocol.options import DEFAULT_OPTIONS
from bunqueue.storage.reference.importing import NamedQueue
from bunqueue.storage.reference.jobs import COLUMNS, job_of_entry, job_of_row, keep_key_until
from bunqueue.storage.reference.report import Unfit

NOW = 1_800_000_000_000
ROW = {
    "id": "a",
    "queue": "emails",
    "name": "welcome",
    "data": msgpack.packb({"n": 1}),
    "priority": 0,
    "created_at": 1_700_000_000_000,
    "run_at": 1_700_000_000_000,
    "attempts": 0,
    "max_attempts": 3,
    "backoff": 1000,
    "state": "waiting",
    "lifo": 0,
    "stall_count": 0,
}


def read(result=None, **columns):
    """Return the job of a row, and what was noted."""
    row = tuple((ROW | columns).get(name) for name in COLUMNS)
    notes = []
    job = job_of_row((*row, result), 7, NamedQueue, NOW, notes.append)
    return job, notes


def entry(job=None, **members):
    notes = []
    told = {"job": {"id": "a", "queue": "emails", "name": "welcome", "data": None} | (job or {})}
    return job_of_entry(told | members, 7, NamedQueue, NOW, notes.append), notes


def test_an_ordinary_job_has_nothing_of_its_own():
    timeline = [{"state": "waiting", "timestamp": 1_700_000_000_002.0}]

    job, notes = read(timeline=msgpack.packb(timeline))

    assert ("a", "emails", "welcome", QUEUED, 7, NEW) == (
        job.id,
        job.queue.name,
        job.name,
        job.place,
        job.seq,
        job.dirty,
    )
    assert {"n": 1} == unpack(job.data)
    assert job.options is DEFAULT_OPTIONS
    assert job.extra.timeline is None
    assert not job.extra.is_custom_id
    assert [] == notes


def test_moments_lose_their_fractions():
    assert 1_700_000_000_123 == read(run_at=1_700_000_000_123.75)[0].run_at


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"id": None}, "its id is no text"),
        ({"id": b"a"}, "its id is no text"),
        ({"queue": "no spaces"}, "Queue name contains invalid characters"),
        ({"name": ""}, "Job name must be a non-empty string of at most 256 characters"),
        ({"state": "paused"}, "unknown state 'paused'"),
        ({"data": b"\xc1"}, "data cannot be read: no msgpack"),
        ({"data": "text"}, "data is no msgpack"),
        ({"data": b"\xd4\x05\x00"}, "data cannot be read: extension type 5"),
        ({"priority": float("inf")}, "priority is no number between"),
        ({"created_at": -1}, "createdAt is no number between 0 and"),
        ({"run_at": "soon"}, "runAt is no number between 0 and"),
        ({"unique_key": 7}, "uniqueKey is no text"),
        ({"group_id": "x" * 257}, "groupId must be at most 256 characters"),
        ({"extended_options": b"\xc1"}, "extended_options cannot be read"),
        ({"extended_options": b"\x01"}, "extended_options is no map"),
    ],
)
def test_a_row_without_what_a_job_needs_is_unfit(columns, why):
    with pytest.raises(Unfit) as refused:
        read(**columns)

    assert str(refused.value).startswith(why)


def test_a_name_that_an_old_client_left_in_the_data_becomes_the_name():
    job, _ = read(name=None, data=msgpack.packb({"name": "old", "n": 1}))

    assert ("old", {"n": 1}) == (job.name, unpack(job.data))


def test_a_job_without_any_name_has_the_default_one():
    assert "default" == read(name=None)[0].name


def test_an_option_that_nobody_may_set_is_left_out_and_the_job_stays():
    job, notes = read(stall_timeout=-5, timeout=100, tags=msgpack.packb(["ok"]))

    assert (None, 100, ["ok"]) == (job.options.stall_timeout, job.options.timeout, job.options.tags)
    assert ["stallTimeout must be between 0 and 86400000: left out"] == notes


def test_the_fault_of_an_option_is_told_for_every_job_that_has_it():
    assert read(stall_timeout=-6)[1] == read(stall_timeout=-6)[1] != []


def test_options_cannot_change_what_a_column_says():
    job, _ = read(extended_options=msgpack.packb({"id": "b", "maxAttempts": 9, "durable": True}))

    assert ("a", 3, True) == (job.id, job.options.attempts, job.options.durable)


def test_a_repeat_that_cannot_be_understood_is_left_out():
    job, notes = read(extended_options=msgpack.packb({"repeat": {"pattern": "L * * * *"}}))

    assert job.options.repeat is None
    assert notes[0].startswith("Invalid repeat pattern:")
    assert notes[0].endswith(": it will run, but not repeat")


def test_links_that_cannot_be_read_make_a_pending_job_a_dead_letter():
    job, notes = read(state="waiting-children", depends_on=b"\xc1")

    assert FAILED == job.place
    assert ("unknown", "corrupt-dependency-metadata", NOW) == (
        job.extra.dead.reason,
        job.extra.dead.error,
        job.extra.dead.entered_at,
    )
    assert notes[0].endswith(": given up as a dead letter")


def test_links_that_cannot_be_read_are_left_out_of_a_completed_job():
    job, notes = read(state="completed", children_ids=msgpack.packb("x"), completed_at=5)

    assert ("completed", {}) == (job.place, job.extra.children_ids)
    assert ["childrenIds is no list of str: left out"] == notes


def test_a_job_that_waits_for_others_is_parked():
    job, _ = read(state="waiting-children", depends_on=msgpack.packb(["b"]))

    assert (PARKED, ["b"]) == (job.place, list(job.extra.depends_on))


def test_a_custom_id_that_is_not_the_id_is_left_out_and_told():
    job, notes = read(custom_id="other")

    assert not job.extra.is_custom_id
    assert ["custom id 'other' is not its id and left out"] == notes


def test_a_completed_job_without_a_moment_of_completion_completed_when_it_was_made():
    assert ROW["created_at"] == read(state="completed")[0].finished_at


def test_a_result_that_cannot_be_read_is_left_out_and_told():
    job, notes = read(b"\xc1", state="completed", completed_at=5)

    assert job.result is None
    assert notes[0].startswith("its result cannot be read")


def test_a_result_of_an_earlier_run_is_no_result_of_a_waiting_job():
    assert read(msgpack.packb(1))[0].result is None


def test_a_history_that_cannot_be_read_is_left_out_and_told():
    job, notes = read(timeline=msgpack.packb([{"state": 1}]), stacktrace=b"\xc1")

    assert (None, None) == (job.extra.timeline, job.extra.stacktrace)
    assert 2 == len(notes)


def test_the_state_of_an_automatic_retry_rides_along():
    state = {
        "enteredAt": 1_700_000_000_000.0,
        "expiresAt": 1_900_000_000_000.0,
        "retryCount": 2,
        "lastRetryAt": 1_700_000_000_500.0,
        "nextRetryAt": None,
        "attempts": [
            {"attempt": 1, "startedAt": 10.0, "failedAt": 20.0, "reason": "timeout", "error": "e"}
        ],
    }

    job, _ = read(dlq_retry_state=msgpack.packb(state))

    letter = job.extra.retry
    assert (1_700_000_000_000, "timeout", "e", 2) == (
        letter.entered_at,
        letter.reason,
        letter.error,
        letter.retry_count,
    )
    assert (1_700_000_000_500, None, 1_900_000_000_000) == (
        letter.last_retry_at,
        letter.next_retry_at,
        letter.expires_at,
    )
    assert [[1, 10, 20, "timeout", "e"]] == job.extra.history
    assert "e" == job.extra.last_error


@pytest.mark.parametrize(
    ("policy", "until"),
    [
        ({}, None),
        ({"deduplicationTtl": 500.0}, ROW["created_at"] + 500),
        ({"deduplicationTtl": 500.0, "deduplicationExtend": True}, NOW + 500),
        ({"deduplicationReplace": True}, None),
    ],
)
def test_a_key_lives_as_long_as_its_producer_said(policy, until):
    job, _ = read(unique_key="k", extended_options=msgpack.packb(policy))

    keep_key_until(job, NOW)

    assert ("k", until) == (job.extra.unique_key, job.extra.unique_until)


def test_a_dead_letter_of_an_unknown_reason_is_told():
    job, notes = entry(reason="cosmic rays", error="zap", enteredAt=5.0)

    assert ("unknown", "zap", 5) == (
        job.extra.dead.reason,
        job.extra.dead.error,
        job.extra.dead.entered_at,
    )
    assert ["reason 'cosmic rays' is unknown: now 'unknown'"] == notes


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"job": {"id": ""}}, "its id is no text"),
        ({"job": {"dependsOn": "x"}}, "dependsOn is no list of str"),
        ({"attempts": 5}, "attempts is no list of dict"),
        ({"enteredAt": "now"}, "enteredAt is no number between 0 and"),
    ],
)
def test_a_dead_letter_without_what_it_needs_is_unfit(members, why):
    with pytest.raises(Unfit, match=why):
        entry(reason="unknown", **members)
