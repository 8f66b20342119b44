"""A job as the wire shows it (wire.md 3.1, 3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bunqueue import compiled
from bunqueue.commands.job_wire import JOB_KEYS, narrowed, pack_list, pack_listing
from bunqueue.engine.settings import EngineSettings
from bunqueue.errors import Refused
from bunqueue.protocol import codec
from bunqueue.protocol.codec import pack, unpack
from bunqueue.protocol.frames import FRAME_BYTES_MAX
from tests.support.engine import World, done

MOMENT = (float,)
MOMENT_OR_NULL = (float, type(None))
SPAN_OR_NULL = (int, float, type(None))
TEXT_OR_NULL = (str, type(None))

# The table of wire.md 3.1.
TYPES: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "queue": (str,),
    "name": (str,),
    "data": (object,),
    "createdAt": MOMENT,
    "runAt": MOMENT,
    "startedAt": MOMENT_OR_NULL,
    "completedAt": MOMENT_OR_NULL,
    "attempts": (int,),
    "backoff": (int, float),
    "backoffConfig": (dict, type(None)),
    "dependsOn": (list,),
    "childrenIds": (list,),
    "childrenCompleted": (int,),
    "tags": (list,),
    "progress": (int, float),
    "progressMessage": TEXT_OR_NULL,
    "stacktrace": (list, type(None)),
    "repeat": (dict, type(None)),
    "stallCount": (int,),
    "maxAttempts": (int,),
    "removeOnComplete": (bool,),
    "removeOnFail": (bool,),
    "ttl": SPAN_OR_NULL,
    "timeout": SPAN_OR_NULL,
    "stallTimeout": SPAN_OR_NULL,
    "uniqueKey": TEXT_OR_NULL,
    "customId": TEXT_OR_NULL,
    "parentId": TEXT_OR_NULL,
    "groupId": TEXT_OR_NULL,
    "stackTraceLimit": (int,),
    "keepLogs": (int, type(None)),
    "sizeLimit": (int, type(None)),
    "failParentOnFailure": (bool,),
    "removeDependencyOnFailure": (bool,),
    "continueParentOnFailure": (bool,),
    "ignoreDependencyOnFailure": (bool,),
    "deduplicationTtl": SPAN_OR_NULL,
    "deduplicationExtend": (bool,),
    "deduplicationReplace": (bool,),
    "debounceId": TEXT_OR_NULL,
    "debounceTtl": SPAN_OR_NULL,
    "priority": (int,),
    "lifo": (bool,),
    "durable": (bool,),
    "lastHeartbeat": MOMENT,
    "timeline": (list,),
}
EVERYTHING: dict[str, Any] = {
    "name": "welcome",
    "data": {"a": 1},
    "priority": 3,
    "delay": 5_000,
    "ttl": 31_536_000_000,
    "timeout": 86_400_000,
    "maxAttempts": 7,
    "backoff": {"type": "fixed", "delay": 250},
    "jobId": "a",
    "uniqueKey": "k",
    "dedup": {"ttl": 31_536_000_000, "extend": True, "replace": False},
    "lifo": True,
    "removeOnComplete": {"age": 5},
    "removeOnFail": 1,
    "durable": True,
    "stallTimeout": 1_000,
    "stackTraceLimit": 3,
    "keepLogs": 5,
    "sizeLimit": 10_000,
    "tags": ["x", "y"],
    "debounceId": "d",
    "debounceTtl": 10,
    "parentId": "p",
    "childrenIds": ["c"],
    "failParentOnFailure": True,
    "removeDependencyOnFailure": 1,
    "continueParentOnFailure": False,
    "ignoreDependencyOnFailure": False,
}


@pytest.fixture
def world() -> World:
    return World()


def plain(world: World) -> dict[str, Any]:
    world.push(jobId="a")
    return pulled(world)


def pulled(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.ok("PULL", queue="q")["job"]
    return found


def full(world: World) -> dict[str, Any]:
    world.push(**EVERYTHING)
    world.forward(5_000)
    return pulled(world)


def retried(world: World) -> dict[str, Any]:
    world.push(jobId="a", backoff=0)
    world.pull()
    world.ok("Progress", id="a", progress=12.5, message="m")
    world.ok("FAIL", id="a", error="no", stack=["line"])
    return pulled(world)


@pytest.mark.parametrize("make", [plain, full, retried])
def test_a_job_has_exactly_the_47_keys_with_their_types(world: World, make: Any) -> None:
    job = make(world)

    assert set(TYPES) == set(job)
    assert 47 == JOB_KEYS == len(job)
    wrong = {key: job[key] for key, types in TYPES.items() if not isinstance(job[key], types)}
    assert {} == wrong
    booleans = {key for key, value in job.items() if isinstance(value, bool)}
    assert booleans == {key for key, types in TYPES.items() if types == (bool,)}


def test_options_are_shown_as_they_were_given(world: World) -> None:
    created = world.now
    job = full(world)

    shown = {
        **{key: value for key, value in EVERYTHING.items() if key in TYPES},
        "id": "a",
        "queue": "q",
        "customId": "a",
        "createdAt": created,
        "runAt": created + 5_000,
        "startedAt": world.now,
        "lastHeartbeat": world.now,
        "backoff": 250,
        "backoffConfig": {"type": "fixed", "delay": 250},
        "removeOnComplete": True,
        "removeOnFail": True,
        "removeDependencyOnFailure": True,
        "deduplicationTtl": 31_536_000_000,
        "deduplicationExtend": True,
        "deduplicationReplace": False,
    }
    assert shown == {key: job[key] for key in shown}


def test_a_plain_job_shows_the_defaults(world: World) -> None:
    job = plain(world)

    nulls = {key for key, value in job.items() if value is None}
    assert {
        "data", "completedAt", "ttl", "timeout", "stallTimeout", "uniqueKey", "parentId", "groupId",
        "keepLogs", "sizeLimit", "deduplicationTtl", "debounceId", "debounceTtl", "repeat",
        "backoffConfig", "progressMessage", "stacktrace",
    } == nulls  # fmt: skip
    assert ("default", 1000, 3, 10) == tuple(
        job[key] for key in ("name", "backoff", "maxAttempts", "stackTraceLimit")
    )


def test_a_retried_job_shows_its_record(world: World) -> None:
    job = retried(world)

    assert (1, ["line"], 12.5, "m") == tuple(
        job[key] for key in ("attempts", "stacktrace", "progress", "progressMessage")
    )
    states = [entry["state"] for entry in job["timeline"]]
    assert ["waiting", "active", "failed", "waiting", "active"] == states
    assert {"state": "waiting", "timestamp": world.now, "attempt": 2} == job["timeline"][3]
    assert {
        "state": "failed",
        "timestamp": world.now,
        "error": "no",
        "attempt": 1,
    } == job["timeline"][2]
    assert {"state": "waiting", "timestamp": world.now} == job["timeline"][0]


def test_progress_of_a_completed_job_is_100(world: World) -> None:
    world.push(jobId="a")
    world.pull()
    assert 0 == world.job("a")["progress"]
    world.ok("ACK", id="a")

    assert 100 == world.job("a")["progress"]


# -- the view ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [plain, full, retried])
def test_a_view_is_a_job_with_its_state(world: World, make: Any) -> None:
    job = make(world)
    view = world.job("a")

    assert {"state"} == set(view) - set(job) - {"failedReason"}
    assert job == {key: view[key] for key in job}


def test_a_reason_is_there_only_after_a_failure(world: World) -> None:
    world.push(jobId="a")
    assert "failedReason" not in world.job("a")
    world.pull()
    world.ok("FAIL", id="a", error="no")

    assert "no" == world.job("a")["failedReason"]


def test_a_job_by_custom_id_has_no_state(world: World) -> None:
    world.push(jobId="a")

    assert set(TYPES) == set(world.ok("GetJobByCustomId", customId="a")["job"])


# -- payloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [None, 0, "", [], {}, "text", b"bytes", [1, [2, {"a": None}]], {"__proto__": 1}, 1.5, True],
    ids=repr,
)
def test_data_comes_back_as_given(world: World, data: Any) -> None:
    world.push(data=data)

    assert data == pulled(world)["data"]


def test_wide_integers_are_exact_only_for_who_asked_for_them(world: World) -> None:
    exact = 2**53 + 1
    world.push(jobId="a", data={"n": exact})
    world.pull()
    world.ok("ACK", id="a", result=exact)
    modern = world.connect()
    modern.int64 = True

    for command, fields, key in (
        ("GetJob", {}, "returnvalue"),
        ("GetResult", {}, "result"),
        ("WaitJob", {}, "result"),
    ):
        old = world.ok(command, id="a", **fields)
        new = world.ok(command, modern, id="a", **fields)
        assert float is type((old.get("job") or old)[key])
        assert exact == (new.get("job") or new)[key]
    assert float is type(world.job("a")["data"]["n"])
    assert exact == world.ok("GetJob", modern, id="a")["job"]["data"]["n"]


def test_a_name_inside_data_is_lifted_out(world: World) -> None:
    job_id = world.push(data={"name": "welcome", "to": "x"})

    view = world.job(job_id)
    assert ("welcome", {"to": "x"}) == (view["name"], view["data"])


NAMED: dict[str, Any] = {"name": "welcome", "to": "x"}


def test_a_name_inside_data_is_left_there_too_if_asked() -> None:
    world = World(settings=EngineSettings(keeps_names_in_data=True))
    world.push(data=NAMED)
    world.ok("PUSHB", queue="q", jobs=[{"data": NAMED}])
    world.ok("PUSHF", jobs=[{"id": "f", "queue": "q", "input": {"data": NAMED}}])
    world.ok("Cron", name="c", queue="q", repeatEvery=60_000, data=NAMED)
    world.forward(60_000)

    jobs = world.ok("GetJobs", queue="q")["jobs"]
    assert 4 * [("welcome", NAMED)] == [(job["name"], job["data"]) for job in jobs]


def test_a_name_beside_the_data_is_not_put_into_it_even_if_asked() -> None:
    world = World(settings=EngineSettings(keeps_names_in_data=True))

    view = world.job(world.push(name="welcome", data={"to": "x"}))

    assert ("welcome", {"to": "x"}) == (view["name"], view["data"])


@pytest.mark.parametrize("name", [5, None, ["a"]])
def test_a_name_inside_data_that_is_no_name_stays(world: World, name: object) -> None:
    view = world.job(world.push(data={"name": name}))

    assert ("default", {"name": name}) == (view["name"], view["data"])


def test_a_name_beside_data_leaves_data_alone(world: World) -> None:
    view = world.job(world.push(name="a", data={"name": "b"}))

    assert ("a", {"name": "b"}) == (view["name"], view["data"])


@pytest.mark.parametrize("name", [None, "", "n" * 257, 5])
@pytest.mark.parametrize("batch", [False, True])
def test_a_bad_name_is_refused(world: World, name: object, batch: bool) -> None:
    text = "Job name must be a non-empty string of at most 256 characters"
    if batch:
        assert f"jobs[0]: {text}" == world.error("PUSHB", queue="q", jobs=[{"name": name}])
    else:
        assert text == world.error("PUSH", queue="q", name=name)


def test_data_beyond_10_mb_is_refused(world: World) -> None:
    fits = "x" * (10_485_760 - 2)

    assert "Job data too large (max 10MB)" == world.error("PUSH", queue="q", data=fits + "x")
    text = "jobs[1]: Job data too large (max 10MB)"
    assert text == world.error("PUSHB", queue="q", jobs=[{}, {"data": fits + "x"}])
    job_id = world.push(data=fits)
    assert "Job data too large (max 10MB)" == world.error("Update", id=job_id, data=fits + "x")


def test_data_beyond_its_own_limit_is_refused(world: World) -> None:
    world.push(data="12345678", sizeLimit=10)

    text = "Job data too large (sizeLimit 10)"
    assert text == world.error("PUSH", queue="q", data="123456789", sizeLimit=10)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_a_list_of_any_length_is_packed(count: int) -> None:
    assert [1] * count == unpack(pack_list([pack(1)] * count))


def test_a_list_that_no_frame_can_hold_ends_before_it_is_made() -> None:
    looked_at: list[int] = []

    def items() -> Iterator[tuple[bytes]]:
        for number in range(100):
            looked_at.append(number)
            yield (b"x" * (FRAME_BYTES_MAX // 4),)

    with pytest.raises(Refused, match=f"Reply too large: more than {FRAME_BYTES_MAX} bytes"):
        done(pack_listing(items()))

    assert 5 == len(looked_at)


# -- integers beyond 32 bits -----------------------------------------------------------------------

values = st.recursive(
    st.none()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.just(msgpack.Timestamp(1, 0xCF)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@given(values)
@example([2**32, 2**32 - 1, -(2**31), -(2**31) - 1, 2**63, 2**64 - 1, -(2**63), 2**53 + 1])
def test_a_payload_is_narrowed_as_its_decoded_form_is(value: Any) -> None:
    packed = pack(value)

    assert codec.narrowed(packed) == narrowed(packed)


@pytest.mark.parametrize("mark", [b"\xcf", b"\xd3"])
def test_an_integer_that_is_wide_without_need_is_narrowed_alike(mark: bytes) -> None:
    packed = b"\x92" + pack(2**40) + mark + (5).to_bytes(8, "big")

    assert [float(2**40), 5] == unpack(narrowed(packed))
    assert codec.narrowed(packed) == narrowed(packed)


@pytest.mark.skipif(not compiled.IS_COMPILED, reason="the compiled core is not built")
def test_numbers_that_look_like_wide_integers_are_not_decoded() -> None:
    packed = pack([float(number) / 7 for number in range(10_000)])

    assert narrowed(packed) is packed
    assert codec.narrowed(packed) is not packed
