"""Job options as Python writes them, and as the wire takes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bunqueue.client.options import build_cron_job_options, job_payload, to_wire, with_parent_link
from bunqueue.protocol.options import BY_WIRE

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"attempts": 5, "priority": 0}, {"maxAttempts": 5, "priority": 0}),
        ({"delay": timedelta(seconds=2), "ttl": 10}, {"delay": 2000.0, "ttl": 10}),
        ({"backoff": 500}, {"backoff": 500}),
        (
            {"backoff": {"type": "fixed", "delay": 5, "max_delay": timedelta(seconds=1)}},
            {"backoff": {"type": "fixed", "delay": 5, "maxDelay": 1000.0}},
        ),
        ({"deduplication": {"id": "k"}}, {"uniqueKey": "k"}),
        (
            {"unique_key": "u", "deduplication": {"id": "k", "ttl": 5, "extend": True}},
            {"uniqueKey": "u", "dedup": {"ttl": 5, "extend": True}},
        ),
        ({"debounce": {"id": "d", "ttl": 7}}, {"debounceId": "d", "debounceTtl": 7}),
        ({"tags": [], "depends_on": ("a",)}, {"tags": [], "dependsOn": ["a"]}),
        ({"group_id": 7}, {"groupId": "7"}),
        (
            {"group": {"id": 7, "priority": 2, "max_size": 9}},
            {"groupId": "7", "priority": 2, "groupMaxSize": 9},
        ),
        ({"parent": {"id": "p", "queue": "q"}}, {"parentId": "p"}),
        (
            {"repeat": {"every": timedelta(minutes=1), "start_date": NEW_YEAR}},
            {"repeat": {"every": 60000.0, "startDate": 1767225600000.0}},
        ),
        ({"timestamp": NEW_YEAR}, {"timestamp": 1767225600000.0}),
        ({"remove_on_complete": False, "durable": None}, {"removeOnComplete": False}),
    ],
)
def test_options_become_fields(options: dict[str, Any], fields: dict[str, Any]) -> None:
    assert fields == to_wire(options)
    assert fields.keys() <= BY_WIRE.keys()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"prio": 1}, "unknown job option: 'prio'"),
        ({"prio": None}, "unknown job option: 'prio'"),
        ({"custom_id": "x"}, "unknown job option: 'custom_id'"),
        ({"tags": "abc"}, "tags must be a list of strings"),
        ({"deduplication": "k"}, "deduplication must be a dict"),
        ({"group": {"id": 1}, "group_id": 2}, "group and group_id exclude each other"),
        ({"parent": {"id": "p"}}, "parent must be"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        to_wire(options)


def test_a_parent_is_linked_through_the_data() -> None:
    parent = {"id": "p", "queue": "q"}

    assert {"a": 1, "__parentId": "p", "__parentQueue": "q"} == with_parent_link({"a": 1}, parent)
    assert {"__parentId": "p", "__parentQueue": "q"} == with_parent_link(None, parent)
    with pytest.raises(TypeError, match="data must be a dict or None"):
        with_parent_link([1], parent)


def test_cron_templates_keep_their_own_options_only() -> None:
    assert {"maxAttempts": 2, "removeOnFail": True} == build_cron_job_options(
        {"attempts": 2, "priority": 1, "remove_on_fail": True, "remove_on_complete": "yes"}
    )
    assert build_cron_job_options({}) is None


def test_the_payload_of_version_two_is_kept_for_importers() -> None:
    assert {"name": "n", "a": 1} == job_payload("n", {"a": 1})
    assert {"name": "n", "payload": 1} == job_payload("n", 1)
    assert {"name": "n"} == job_payload("n", None)
