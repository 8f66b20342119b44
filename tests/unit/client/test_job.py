"""What a job says of itself, from the map the broker gives."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue import Job

RAW: dict[str, Any] = {
    "id": "7",
    "queue": "p:mail",
    "name": "send",
    "data": {"to": "ü", "__parentId": "1", "__parentQueue": "p:root"},
    "createdAt": 1000.0,
    "runAt": 1500.0,
    "startedAt": 2000.0,
    "completedAt": 3000.0,
    "attempts": 1,
    "maxAttempts": 5,
    "priority": 2,
    "backoff": 1000,
    "backoffConfig": {"type": "fixed", "delay": 9},
    "tags": ["a"],
    "groupId": "g",
    "parentId": "1",
    "childrenIds": ["8"],
    "dependsOn": ["8"],
    "progress": 40,
    "progressMessage": "half",
    "stallCount": 2,
    "uniqueKey": "k",
    "repeat": {"every": 5, "jobId": "r"},
    "timeline": [{"state": "waiting", "timestamp": 1.0}],
    "returnvalue": [1],
    "failedReason": "late",
    "state": "completed",
    "ttl": 50.0,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", "7"),
        ("queue", "p:mail"),
        ("queue_name", "p:mail"),
        ("queue_qualified_name", "p:mail"),
        ("name", "send"),
        ("attempts", 1),
        ("attempts_made", 1),
        ("attempts_started", 2),
        ("max_attempts", 5),
        ("created_at", 1000),
        ("timestamp", 1000),
        ("started_at", 2000),
        ("processed_on", 2000),
        ("completed_at", 3000),
        ("finished_on", 3000),
        ("run_at", 1500),
        ("delay", 500),
        ("priority", 2),
        ("backoff", {"type": "fixed", "delay": 9}),
        ("tags", ["a"]),
        ("group_id", "g"),
        ("parent_id", "1"),
        ("parent", {"id": "1", "queue": "p:root"}),
        ("parent_key", "p:root:1"),
        ("children_ids", ["8"]),
        ("depends_on", ["8"]),
        ("progress", 40),
        ("progress_message", "half"),
        ("stalled_counter", 2),
        ("deduplication_id", "k"),
        ("repeat_job_key", "r"),
        ("returnvalue", [1]),
        ("failed_reason", "late"),
        ("state", "completed"),
        ("ttl", 50),
        ("timeout", None),
        ("custom_id", None),
        ("lifo", False),
        ("durable", False),
        ("processed_by", None),
        ("lease_lost", False),
    ],
)
def test_a_field_is_read_by_its_python_name(name: str, value: Any) -> None:
    found = getattr(Job(RAW), name)

    assert (value, type(value)) == (found, type(found))


def test_options_are_those_that_differ_from_the_defaults() -> None:
    opts = Job(RAW).opts

    assert (5, 2, ["a"], "g", 50) == tuple(
        opts[key] for key in ("attempts", "priority", "tags", "group_id", "ttl")
    )
    assert "lifo" not in opts


def test_a_job_is_a_plain_dict_where_one_is_wanted() -> None:
    told = Job(RAW).to_dict()

    assert ("7", RAW["data"], 1000, 500, "p:root:1", 2) == (
        told["id"],
        told["data"],
        told["timestamp"],
        told["delay"],
        told["parentKey"],
        told["opts"]["priority"],
    )


def test_a_job_is_texts_where_those_are_wanted() -> None:
    told = Job(RAW).as_raw()

    assert ("7", "1000", "500", "1", "[1]", "40", None, "late") == tuple(
        told[key]
        for key in (
            "id", "timestamp", "delay", "attemptsMade", "returnvalue", "progress", "stacktrace",
            "failedReason",
        )
    )  # fmt: skip
    assert '{"to":"ü","__parentId":"1","__parentQueue":"p:root"}' == told["data"]
    assert "null" == Job({"id": "1", "queue": "q"}).as_raw()["data"]


def test_a_legacy_job_has_its_name_in_its_data() -> None:
    assert "old" == Job({"id": "1", "data": {"name": "old"}}).name
    assert None is Job({"id": "1", "data": {"name": 5}}).name
    assert None is Job({"id": "1", "data": "text"}).name


def test_jobs_are_equal_to_themselves_only() -> None:
    assert Job(RAW) != Job(RAW)
    assert 2 == len({Job(RAW), Job(RAW)})
