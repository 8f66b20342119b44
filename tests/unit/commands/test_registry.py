"""The command table and ``dispatch``: what is no command, who may ask, what is checked."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bunqueue.commands import COMMANDS, Command, dispatch
from bunqueue.commands.registry import command
from bunqueue.engine.later import Later
from bunqueue.protocol.codec import UNDEFINED
from bunqueue.protocol.fields import SAFE_INTEGER_MAX, Number, QueueName, SafeInteger
from tests.support.engine import World
from tests.support.logs import said

# wire.md 2, section by section.
NAMES = """
    Hello Auth
    PUSH PUSHB PUSHF PULL PULLB ACK ACKB FAIL
    GetJob GetJobByCustomId GetJobs GetState GetResult GetProgress GetJobCounts
    GetCountsPerPriority Count WaitJob GetLogs
    AddLog ClearLogs Progress Update Cancel Discard Promote PromoteJobs ChangePriority ChangeDelay
    MoveToWait MoveToDelayed RetryCompleted
    JobHeartbeat JobHeartbeatB ExtendLock ExtendLocks
    UpdateParent MoveToWaitingChildren GetChildrenValues GetFailedChildrenValues
    GetIgnoredChildrenFailures RemoveChildDependency RemoveUnprocessedChildren
    GetDeduplicationJobId RemoveDeduplicationKey RemoveJobDeduplicationKey
    Pause Resume IsPaused Drain Obliterate Clean ListQueues
    RateLimit RateLimitClear SetConcurrency ClearConcurrency GetQueueLimits
    GetGroupJobsCount GetGroupActiveCount GetGroupsJobsCount SetGroupRateLimit GetGroupRateLimit
    RemoveGroupRateLimit SetGroupConcurrency GetGroupConcurrency RemoveGroupConcurrency
    RateLimitGroup GetGroupRateLimitTtl PauseGroup ResumeGroup IsGroupPaused
    Dlq GetDlqStats RetryDlq PurgeDlq RemoveDlqJob SetStallConfig GetStallConfig SetDlqConfig
    GetDlqConfig
    Cron CronGet CronDelete CronList
    RegisterWorker UnregisterWorker ListWorkers Heartbeat
    AddWebhook RemoveWebhook ListWebhooks SetWebhookEnabled
    Stats Metrics Prometheus TrimEvents StorageStatus CompactMemory Ping
    DashboardOverview DashboardQueues DashboardQueue
    SubscribeEvents UnsubscribeEvents
""".split()  # noqa: SIM905  # words read better than a list of strings
EVERY = sorted(COMMANDS)


@pytest.fixture
def world() -> World:
    return World()


# -- the table -----------------------------------------------------------------------------------

OURS = ("Diagnose", "ExplainJob")  # what the original server does not know


def test_the_commands_are_those_of_the_protocol() -> None:
    assert 107 == len(NAMES)
    assert sorted([*NAMES, *OURS]) == EVERY


@pytest.mark.parametrize("name", EVERY)
def test_a_row_is_complete(name: str) -> None:
    row = COMMANDS[name]

    assert name == row.name
    assert row.run.__doc__
    for wire, field in row.fields.items():
        assert wire.isascii()
        assert field.kind()


def test_reads_are_not_marked_as_changes() -> None:
    reading = {name for name, row in COMMANDS.items() if not row.mutates}

    assert {name for name in COMMANDS if name.startswith(("Get", "List", "Is"))} <= reading
    assert not {"PUSH", "PULL", "ACK", "FAIL", "Pause", "Drain"} & reading


def test_only_polls_wait_long() -> None:
    assert {"PULL", "PULLB", "WaitJob"} <= {name for name, row in COMMANDS.items() if row.waits}
    assert not {"PUSH", "ACK", "Ping", "JobHeartbeat"} & {
        name for name, row in COMMANDS.items() if row.waits
    }


def test_only_auth_is_answered_before_authentication() -> None:
    assert ["Auth"] == [name for name, row in COMMANDS.items() if row.is_open]


def test_a_name_is_declared_once() -> None:
    with pytest.raises(AssertionError, match="declared twice"):
        command("PUSH")(COMMANDS["PUSH"].run)


def test_a_command_needs_a_docstring() -> None:
    with pytest.raises(AssertionError, match="docstring"):
        command("Undocumented")(lambda _peer, _request: {"ok": True})
    assert "Undocumented" not in COMMANDS


# -- what is no command --------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [None, False])
def test_nothing_at_all_has_an_invalid_format(world: World, request_: object) -> None:
    assert {"ok": False, "error": "Invalid command format"} == world.send_raw(request_).reply


@pytest.mark.parametrize(
    "request_",
    [
        [],
        ["cmd"],
        "Ping",
        "",
        5,
        0,
        True,
        1.5,
        {},
        {"a": 1},
        {"cmd": ""},
        {"cmd": None},
        {"cmd": 0},
        {"cmd": False},
        {"cmd": 5},
        {"cmd": True},
        {"cmd": ["Ping"]},
        {"cmd": {"a": 1}},
        b"Ping",
    ],
    ids=repr,
)
def test_what_has_no_usable_cmd_is_an_invalid_command(world: World, request_: object) -> None:
    assert {"ok": False, "error": "Invalid command"} == world.send_raw(request_).reply


@pytest.mark.parametrize(
    "name", ["ping", "PING", "push", "Bye", "Quit", "Exit", " Ping", "__class__"]
)
def test_names_are_case_sensitive(world: World, name: str) -> None:
    assert f"Unknown command: {name}" == world.error(name)


def test_an_undefined_cmd_is_no_command(world: World) -> None:
    assert {"ok": False, "error": "Invalid command"} == dispatch(world.peer, {"cmd": UNDEFINED})


# -- who may ask ---------------------------------------------------------------------------------


@pytest.fixture
def stranger(world: World) -> World:
    world.peer.is_authenticated = False
    world.peer.tokens = {"secret"}
    return world


@pytest.mark.parametrize("name", [name for name in EVERY if name != "Auth"])
def test_nothing_but_auth_is_answered_to_a_stranger(stranger: World, name: str) -> None:
    assert "Not authenticated" == stranger.error(name)


def test_an_unknown_command_of_a_stranger_is_not_told_apart(stranger: World) -> None:
    assert "Not authenticated" == stranger.error("NoSuchThing")


def test_a_malformed_command_of_a_stranger_is_malformed(stranger: World) -> None:
    assert {"ok": False, "error": "Invalid command"} == stranger.send_raw({"cmd": ""}).reply
    assert {"ok": False, "error": "Invalid command format"} == stranger.send_raw(None).reply


@pytest.mark.parametrize("token", [None, "", "wrong", 5, ["secret"], {}, b"secret"])
def test_a_wrong_token_leaves_everything_as_it_was(stranger: World, token: object) -> None:
    assert "Invalid token" == stranger.error("Auth", token=token)
    assert not stranger.peer.is_authenticated
    assert {} == stranger.ok("Auth", token="secret")
    assert "Invalid token" == stranger.error("Auth", token=token)
    stranger.ok("Ping")


def test_without_tokens_everyone_is_in_and_auth_fails(world: World) -> None:
    assert "Invalid token" == world.error("Auth", token="stray")
    world.ok("Ping")


# -- greetings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"protocolVersion": 1, "capabilities": "x"}])
def test_hello_tells_who_we_are_and_refuses_no_version(world: World, fields: Any) -> None:
    assert {
        "protocolVersion": 3,
        "capabilities": ["pipelining", "separate-job-name"],
        "server": "bunqueue",
        "version": "2.9.5",
    } == world.ok("Hello", **fields)


def test_ping_tells_the_time_as_a_float(world: World) -> None:
    data = world.ok("Ping")["data"]

    assert {"pong": True, "time": world.now} == data
    assert isinstance(data["time"], float)


# -- checks --------------------------------------------------------------------------------------


def required(row: Command) -> list[str]:
    return [name for name, field in row.fields.items() if field.required]


MISSING = [
    (name, fields, missing)
    for name in EVERY
    for fields in [required(COMMANDS[name])]
    for missing in fields
]


@pytest.mark.parametrize(("name", "fields", "missing"), MISSING)
def test_a_missing_field_is_named(world: World, name: str, fields: list[str], missing: str) -> None:
    good: dict[str, Any] = {
        "queue": "q",
        "config": {},
        "jobs": [],
        "ids": [],
        "tokens": [],
        "durations": [],
        "delay": 0,
        "progress": 0,
        "priority": 0,
        "max": 1,
        "duration": 1,
        "concurrency": 1,
    }
    request = {field: good.get(field, "x") for field in fields if field != missing}

    field = COMMANDS[name].fields[missing]
    if isinstance(field, SafeInteger):  # the reference has one text for all that is wrong
        text = f"{missing} must be a positive safe integer"
    else:
        text = "Queue name is required" if missing == "queue" else f"{missing} is required"
    null_text = "groupId must be a string" if missing == "groupId" else text
    assert text == world.error(name, **request)
    assert null_text == world.error(name, **request, **{missing: None})


QUEUE_IS_OPTIONAL = {"Metrics", "AddWebhook"}
WITH_QUEUE = [name for name in EVERY if isinstance(COMMANDS[name].fields.get("queue"), QueueName)]


@pytest.mark.parametrize("name", WITH_QUEUE)
@pytest.mark.parametrize(
    ("queue", "text"),
    [
        (5, "Queue name is required"),
        ("", "Queue name is required"),
        (["q"], "Queue name is required"),
        ("q" * 257, "Queue name too long (max 256 characters)"),
        ("a b", "Queue name contains invalid characters"),
    ],
)
def test_every_command_checks_its_queues_name(
    world: World, name: str, queue: object, text: str
) -> None:
    assert text == world.error(name, queue=queue)
    assert [] == world.ok("ListQueues")["queues"]


NUMBERS = [
    (name, wire)
    for name in EVERY
    for wire, field in COMMANDS[name].fields.items()
    if isinstance(field, Number)
]


@pytest.mark.parametrize(("name", "wire"), NUMBERS)
@pytest.mark.parametrize("huge", [1e300, -1e300, 2**63, -(2**63)])
def test_a_number_that_no_client_can_hold_is_refused(
    world: World, name: str, wire: str, huge: float
) -> None:
    """Some became an integer that no reply could carry, or that no slice of a list could take."""
    good = {"queue": "q", "id": "a", "ids": ["a"], "tokens": ["t"], "durations": [1], "name": "n"}
    request = {key: value for key, value in good.items() if key in COMMANDS[name].fields}
    reply = dispatch(world.peer, {**request, "cmd": name, wire: huge})

    assert isinstance(reply, dict)
    assert f"{wire} must be" in reply["error"]


@pytest.mark.parametrize("huge", [1e300, -1e300, "1e300", 2**63])
def test_a_limit_that_no_client_can_hold_is_told_as_one_that_can_be_held(
    world: World, huge: object
) -> None:
    world.ok("RateLimit", queue="q", limit=huge, duration=huge, ttl=None)
    world.ok("SetConcurrency", queue="q", limit=huge)
    told = world.ok("GetQueueLimits", queue="q", maxJobs=5)["data"]["limits"]

    assert all(
        abs(value) <= SAFE_INTEGER_MAX for value in told.values() if isinstance(value, (int, float))
    )


def test_every_command_that_takes_a_queue_declares_it() -> None:
    takes = {name for name, row in COMMANDS.items() if "queue" in row.fields}

    assert takes - QUEUE_IS_OPTIONAL == set(WITH_QUEUE)
    assert 30 < len(takes)


def test_unknown_fields_are_ignored(world: World) -> None:
    world.push(colour="red", priorty=5, reqId="x")

    assert {"waiting": 1} == world.counts()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("garbage", [5, "text", [], {}, True, -1, float("nan"), b"bytes"], ids=repr)
def test_garbage_in_any_field_gets_an_answer(
    world: World, name: str, garbage: object, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"queue": "q", "id": "a", "ids": ["a"], "tokens": ["t"], "durations": [1], "jobs": [{}]}
    with caplog.at_level(logging.ERROR):
        for field in COMMANDS[name].fields:
            request = {key: value for key, value in good.items() if key in COMMANDS[name].fields}
            reply = dispatch(world.peer, {**request, "cmd": name, field: garbage})

            if isinstance(reply, Later):
                reply.cancel()
            elif isinstance(reply, dict):
                assert reply.get("error") != "Internal server error", (field, garbage)

    assert [] == said(caplog, "bunqueue.commands")


def test_what_nobody_foresaw_is_logged_and_told_as_internal(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_arguments: object) -> None:
        raise RuntimeError("secret details of host 10.0.0.1")

    monkeypatch.setattr(type(world.engine), "count", broken)
    with caplog.at_level(logging.ERROR):
        assert "Internal server error" == world.error("Count", queue="q")

    assert "secret details" in caplog.text
    assert "cmd=Count" in caplog.text
