"""The recorder of golden conversations: what it keeps of an answer, and where."""

from __future__ import annotations

import json
from typing import Any

from tests.wire.conversation import UNDEFINED, Replay
from tests.wire.record import file_text, record
from tests.wire.test_conversations import Direct


class Scripted:
    """A link to a server whose answers the test gives."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def send(self, data: bytes) -> None:
        """Take a request and leave it."""

    def value(self) -> Any:
        return self._answers.pop(0)


def asked(*answers: Any, **beside: Any) -> list[dict[str, Any]]:
    """Return a conversation of one request that is recorded from these answers."""
    says = [{"send": {"cmd": "Ping"}}, {"get": "?", **beside}]
    record(says, Scripted(*answers))
    return says


def test_what_was_recorded_is_replayed() -> None:
    says: list[dict[str, Any]] = [
        {"send": {"cmd": "PUSH", "queue": "q", "data": {"n": 1}}},
        {"get": {"ok": True, "id": {"$keep": "job"}}},
        {"send": {"cmd": "PULL", "queue": "q", "owner": "w"}},
        {"get": {"token": {"$keep": "token"}}},
        {"send": {"cmd": "ACK", "id": {"$kept": "job"}, "token": {"$kept": "token"}}},
        {"get": "?"},
    ]
    record(says, Direct(()))

    assert {"ok": True} == says[-1]["get"]
    assert {"$kept": "job"} == says[3]["get"]["job"]["id"]
    Replay(Direct(())).run(tuple(says))


def test_ids_and_moments_are_masked() -> None:
    job_id = "01908f3e-0000-7000-8000-000000000000"
    says = asked({"id": job_id, "again": job_id, "at": 1_790_000_000_000.5, "n": 7})

    assert {
        "id": {"$keep": "id1"},
        "again": {"$kept": "id1"},
        "at": {"$any": "float"},
        "n": 7,
    } == says[1]["get"]


def test_undefined_members_are_left_out() -> None:
    assert {"ok": True} == asked({"ok": True, "id": UNDEFINED})[1]["get"]


def test_a_mask_that_does_not_fit_is_lifted() -> None:
    says: list[dict[str, Any]] = [{"send": {}}, {"get": {"uptime": {"$any": "float"}}}]
    record(says, Scripted({"uptime": 5}))

    assert {"uptime": 5} == says[1]["get"]


def test_recording_again_keeps_the_order_of_keys() -> None:
    says: list[dict[str, Any]] = [{"send": {}}, {"get": {"b": 1, "gone": 2, "a": 3}}]
    record(says, Scripted({"a": 4, "b": 5, "new": 6}))

    assert ["b", "a", "new"] == list(says[1]["get"])


def test_of_a_part_only_the_part_is_kept() -> None:
    says: list[dict[str, Any]] = [{"send": {}}, {"get_some": {"ok": None}}]
    record(says, Scripted({"ok": True, "time": 5}))

    assert {"ok": True} == says[1]["get_some"]


def test_a_noted_answer_goes_beside_ours() -> None:
    says: list[dict[str, Any]] = [{"send": {}}, {"get": {"ok": True}, "note": "why"}]
    record(says, Scripted({"ok": False}))

    assert {"get": {"ok": True}, "note": "why", "reference": {"ok": False}} == says[1]


def test_from_our_own_server_only_noted_answers_are_taken() -> None:
    says: list[dict[str, Any]] = [
        {"send": {}},
        {"get": "plain"},
        {"get": "old", "note": "why", "reference": "theirs"},
    ]
    record(says, Scripted("other", "new"), ours=True)

    assert ["plain", "new"] == [step["get"] for step in says[1:]]
    assert "theirs" == says[2]["reference"]


def test_a_file_has_one_step_per_line() -> None:
    entries = [{"name": "n", "source": "s", "says": [{"send": {}}, {"get": {"é": 1}}]}]
    text = file_text(entries)

    assert entries == json.loads(text)
    assert 2 == sum(line.lstrip().startswith(('{"send', '{"get')) for line in text.splitlines())
