"""What a field of a request may hold at most, over the whole table of commands."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.commands import COMMANDS, dispatch
from bunqueue.commands.webhooks import EVENTS_MAX
from bunqueue.engine.later import Later
from bunqueue.protocol.codec import unpack
from bunqueue.protocol.fields import ITEMS_MAX, TEXT_CHARS_MAX, Field, length_problem
from bunqueue.protocol.options import EDGES_MAX, OPTION_FIELDS
from bunqueue.protocol.replies import encode_reply
from tests.support.engine import World

# Payloads, texts of which the rest is cut off, and the lists that a batch is about.
LONG = {
    ("ACK", "result"),
    ("ACKB", "ids"),
    ("ACKB", "tokens"),
    ("ACKB", "results"),
    ("ACKB", "removeOnCompletes"),
    ("AddLog", "message"),
    ("Cron", "data"),
    ("ExtendLocks", "ids"),
    ("ExtendLocks", "tokens"),
    ("ExtendLocks", "durations"),
    ("FAIL", "error"),
    ("FAIL", "stack"),
    ("JobHeartbeatB", "ids"),
    ("JobHeartbeatB", "tokens"),
    ("Progress", "message"),
    ("PUSH", "data"),
    ("PUSHB", "jobs"),
    ("PUSHF", "jobs"),
    ("Update", "data"),
}
SHORT = [
    (name, wire, field)
    for name, row in COMMANDS.items()
    for wire, field in row.fields.items()
    if (name, wire) not in LONG
]


@pytest.fixture
def world() -> World:
    return World()


def large(world: World, **request: Any) -> dict[str, Any]:
    """Answer a request that came in a large frame."""
    replies: list[Any] = []
    reply = dispatch(world.peer, request, is_large=True)
    if isinstance(reply, Later):
        reply.then(lambda told, _commits: replies.append(told))
        while not replies:
            world.forward(1)
            world.settle()
        (reply,) = replies
    answer: dict[str, Any] = unpack(encode_reply(reply, None, True))
    return answer


def test_only_these_are_bounded_by_the_frame_alone() -> None:
    found = {
        (name, wire)
        for name, row in COMMANDS.items()
        for wire, field in row.fields.items()
        if field.is_long
    }
    assert LONG == found


@pytest.mark.parametrize(
    ("command", "wire", "field"), SHORT, ids=[f"{name}-{wire}" for name, wire, _ in SHORT]
)
def test_every_other_field_of_a_large_frame_is_bounded(
    world: World, command: str, wire: str, field: Field
) -> None:
    most = field.items_max
    texts = f"{wire} has too long a text (max {TEXT_CHARS_MAX} characters)"
    items = f"{wire} has too many items (max {most})"
    for value, expected in (
        ("x" * (TEXT_CHARS_MAX + 1), texts),
        (b"x" * (TEXT_CHARS_MAX + 1), texts),
        ({"a": ["x" * (TEXT_CHARS_MAX + 1)]}, texts),
        ({"x" * (TEXT_CHARS_MAX + 1): 1}, texts),
        ([1] * (most + 1), items),
        ({"a": [[1] * most]}, items),
        (dict.fromkeys(range(most + 1)), items),
    ):
        error = large(world, cmd=command, **{wire: value})["error"]
        assert error.startswith(expected), error


@pytest.mark.parametrize(
    "value", ["x" * TEXT_CHARS_MAX, [1] * ITEMS_MAX, {"a": [1] * (ITEMS_MAX - 1)}, 5, None]
)
def test_what_is_at_the_bounds_is_taken(value: Any) -> None:
    assert length_problem({"tags": value}, OPTION_FIELDS) is None


def test_what_no_field_is_about_is_not_looked_at(world: World) -> None:
    assert large(world, cmd="Ping", x=[1] * (EDGES_MAX + 1))["ok"]


@pytest.mark.parametrize("wire", ["dependsOn", "childrenIds"])
@pytest.mark.parametrize("command", ["PUSH", "PUSHB", "PUSHF"])
def test_a_job_names_so_many_others_and_no_more(world: World, command: str, wire: str) -> None:
    text = (
        f"{wire} has too many items (max {EDGES_MAX}): let jobs in between gather some of them each"
    )
    ids = [str(number) for number in range(EDGES_MAX + 1)]
    entry = {"data": {}, wire: ids}
    request = {
        "PUSH": {"queue": "q", **entry},
        "PUSHB": {"queue": "q", "jobs": [{}, entry]},
        "PUSHF": {"jobs": [{"id": "a", "queue": "q", "input": entry}]},
    }[command]

    error = large(world, cmd=command, **request)["error"]

    assert (f"jobs[1]: {text}" if command == "PUSHB" else text) == error
    assert 0 == len(world.engine.index)


@pytest.mark.parametrize("command", ["PUSH", "PUSHB", "PUSHF"])
def test_the_options_of_a_small_frame_are_bounded_by_the_frame(world: World, command: str) -> None:
    entry = {"data": {}, "tags": [""] * (ITEMS_MAX + 1)}
    request = {
        "PUSH": {"queue": "q", **entry},
        "PUSHB": {"queue": "q", "jobs": [entry]},
        "PUSHF": {"jobs": [{"id": "a", "queue": "q", "input": entry}]},
    }[command]
    text = f"tags has too many items (max {ITEMS_MAX})"

    assert large(world, cmd=command, **request)["error"].endswith(text)
    world.ok(command, **request)


def test_a_job_may_name_as_many_children_as_there_may_be(world: World) -> None:
    ids = [f"c{number}" for number in range(EDGES_MAX)]
    job_id = large(world, cmd="PUSH", queue="q", childrenIds=ids)["id"]

    assert ids == world.ok("GetJob", id=job_id)["job"]["childrenIds"]


def test_a_webhook_names_each_event_once(world: World) -> None:
    fields = {"url": "https://example.com/x", "events": ["job.failed"] * (EVENTS_MAX + 1)}
    text = f"events has too many items (max {EVENTS_MAX}): name each event once"

    assert text == world.error("AddWebhook", **fields)


def test_long_messages_are_cut(world: World) -> None:
    job_id = world.ok("PUSH", queue="q")["id"]
    world.ok("PULL", queue="q")
    world.ok("AddLog", id=job_id, message="x" * (TEXT_CHARS_MAX + 1))
    world.ok("Progress", id=job_id, progress=5, message="y" * (TEXT_CHARS_MAX + 1))

    assert "x" * TEXT_CHARS_MAX == world.ok("GetLogs", id=job_id)["data"]["logs"][0]["message"]
    assert "y" * TEXT_CHARS_MAX == world.ok("GetProgress", id=job_id)["message"]
