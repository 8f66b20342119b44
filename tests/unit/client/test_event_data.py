"""What the broker tells of an event, and what listeners get."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from bunqueue.client.event_data import EventData, event_of


@pytest.mark.parametrize(
    ("told", "name", "event"),
    [
        ({"eventType": "pushed"}, "waiting", {"jobId": "7"}),
        ({"eventType": "pulled"}, "active", {"jobId": "7"}),
        ({"eventType": "waiting", "prev": "active"}, "waiting", {"jobId": "7"}),
        ({"eventType": "waiting-children"}, "waiting-children", {"jobId": "7"}),
        ({"eventType": "duplicated"}, "duplicated", {"jobId": "7"}),
        ({"eventType": "stalled", "data": {"stallCount": 1}}, "stalled", {"jobId": "7"}),
        ({"eventType": "completed", "data": 5}, "completed", {"jobId": "7", "returnvalue": 5}),
        ({"eventType": "completed"}, "completed", {"jobId": "7", "returnvalue": None}),
        (
            {"eventType": "failed", "error": "E", "data": {"a": 1}, "terminal": False},
            "failed",
            {"jobId": "7", "failedReason": "E", "data": {"a": 1}, "terminal": False},
        ),
        (
            {"eventType": "failed"},
            "failed",
            {"jobId": "7", "failedReason": None, "data": None, "terminal": True},
        ),
        (
            {"eventType": "progress", "progress": 40, "data": {"progress": 40, "message": "m"}},
            "progress",
            {"jobId": "7", "data": 40},
        ),
        ({"eventType": "progress", "data": {"progress": 3}}, "progress", {"jobId": "7", "data": 3}),
        ({"eventType": "delayed", "delay": 9}, "delayed", {"jobId": "7", "delay": 9}),
        ({"eventType": "removed", "prev": "waiting"}, "removed", {"jobId": "7", "prev": "waiting"}),
        ({"eventType": "retried", "prev": "failed"}, "retried", {"jobId": "7", "prev": "failed"}),
        ({"eventType": "drained"}, "drained", {"id": "7"}),
        ({"eventType": "paused"}, "paused", {}),
        ({"eventType": "resumed"}, "resumed", {}),
        ({"eventType": "of a later version"}, "of a later version", {"jobId": "7"}),
    ],
)
def test_an_event_has_the_keys_of_its_name(
    told: dict[str, Any], name: str, event: dict[str, Any]
) -> None:
    assert (name, event) == event_of({"queue": "q", "jobId": "7", **told})


def test_a_frame_that_tells_no_event_is_none() -> None:
    assert None is event_of({"queue": "q"})


def test_keys_are_attributes_too() -> None:
    event = EventData(jobId="7", failedReason="E")

    assert ("7", "E", None) == (event.job_id, event.failed_reason, event.returnvalue)
    with pytest.raises(AttributeError):
        _ = event.jobid
    for twin in (copy.copy(event), copy.deepcopy(event), pickle.loads(pickle.dumps(event))):
        assert event == twin
