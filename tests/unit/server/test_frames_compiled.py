"""The compiled runner of frames against the Python that it stands beside: same bytes in and out.

Two brokers with the same chance and the same time hear the same streams; one connection runs its
frames compiled, the other by ``decode`` and ``dispatch``. Answers are compared byte for byte, and
what the engines hold afterwards field by field. Values are packed in every form that msgpack has
for them, not only the shortest, and frames are damaged too.
"""

from __future__ import annotations

import struct
import tracemalloc
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue import compiled
from bunqueue.engine.ids import Ids
from bunqueue.engine.job import NO_EXTRA, Job
from bunqueue.engine.places import forget
from bunqueue.server.connection import Connection
from tests.support.wire import HoldingStorage, frame_of, make_broker
from tests.unit.server.test_connection import Line

hot: Any = compiled.part("hot")
pytestmark = pytest.mark.skipif(not compiled.IS_COMPILED, reason="the compiled core is not built")

NOW = 1_700_000_000_000
QUEUE_NAMES = ("q", "other", "never-opened", "not a name", "")
FIELDS_COMPARED = (
    "seq", "name", "data", "options", "place", "priority", "created_at", "run_at", "started_at",
    "finished_at", "is_ripe", "attempts", "stamp", "token", "result",
)  # fmt: skip
TOTALS = ("pushed", "pulled", "completed", "failed", "expired")


class Side:
    """One of the two: a broker and a connection to it."""

    def __init__(self, is_compiled: bool, holds: bool, int64: bool) -> None:
        self.storage = HoldingStorage()
        self.storage.holds = holds
        self.broker = make_broker(self.storage)
        self.broker.engine.ids = Ids(Random(1).randbytes)
        self.broker.engine.last_now = NOW
        self.lines = [Line(), Line()]
        self.connections = [Connection(self.broker, line, "peer", None) for line in self.lines]
        self.connection, self.line = self.connections[0], self.lines[0]
        for connection in self.connections:
            connection.now = lambda: NOW
            connection.int64 = int64
            if not is_compiled:
                connection._runner = None
        for name in QUEUE_NAMES[:2]:
            self.broker.engine.open_queue(name)

    def say(self, data: bytes, is_committed: bool) -> bytes:
        """Return what is written for these bytes, with a commit after them."""
        self.connection.received(data)
        self.before_commit = self.state()
        self.storage.commit(is_committed)
        self.line.turn()
        said, self.line.writes = b"".join(self.line.writes), []
        return said

    def say_at(self, which: int, data: bytes, is_committed: bool) -> list[bytes]:
        """Return what is written to each of two connections for bytes that one of them sent."""
        self.connections[which].received(data)
        self.storage.commit(is_committed)
        told = []
        for line in self.lines:
            line.turn()
            told.append(b"".join(line.writes))
            line.writes = []
        return told

    def waiting(self) -> list[Any]:
        """Return who waits for jobs, in order."""
        return [
            (queue.name, [(waiter.count, waiter.owner, waiter.ttl_ms) for waiter in queue.waiters])
            for queue in self.broker.engine.queues.values()
        ] + [len(connection.parked) for connection in self.connections]

    def state(self) -> Any:
        """Return all that is kept of jobs and queues."""
        engine = self.broker.engine
        queues = {
            queue.name: (
                [
                    list(getattr(queue, place))
                    for place in ("admitted", "active", "completed", "failed")
                ],
                (queue.events_total, queue.completed_total, queue.completed_at),
                (queue.run_set.ready, queue.run_set.ready_high, queue.run_set.not_due),
                [
                    (priority, [job.id for job in lane.fifo], lane.last_run_at, lane.last_seq)
                    for priority, lane in queue.run_set.lanes.items()
                ],
            )
            for queue in engine.queues.values()
        }
        held = [job.id for job in self.connection.held]
        totals = [getattr(engine.totals, name) for name in TOTALS]
        return {job.id: told(job) for job in engine.index}, queues, held, totals, engine.seq


def told(job: Job) -> Any:
    run = job.delivery
    lease = None if run is None else (run.owner, run.started_at, run.expires_at, run.ttl_ms)
    return [getattr(job, name) for name in FIELDS_COMPARED], lease, job.extra is NO_EXTRA


# -- packing in any form ---------------------------------------------------------------------------


class Packer:
    """Packs values in forms that chance picks; ``odd`` is how often not the shortest."""

    def __init__(self, rng: Random, odd: float) -> None:
        self._rng, self._odd = rng, odd

    def __call__(self, value: Any) -> bytes:
        is_odd = self._rng.random() < self._odd
        if isinstance(value, dict):
            parts = [self(key) + self(item) for key, item in value.items()]
            body = b"".join(parts)
            if is_odd and parts and self._rng.random() < 0.2:  # a key twice
                body, parts = body + parts[0], [*parts, parts[0]]
            return self._head(len(parts), 0x80, b"\xde", b"\xdf", is_odd) + body
        if isinstance(value, list):
            return self._head(len(value), 0x90, b"\xdc", b"\xdd", is_odd) + b"".join(
                map(self, value)
            )
        if is_odd and isinstance(value, str):
            data = value.encode()
            return b"\xda" + struct.pack(">H", len(data)) + data
        if is_odd and type(value) is int and -(2**31) <= value < 2**31:
            return self._rng.choice(
                (b"\xd2" + struct.pack(">i", value), struct.pack(">Bq", 0xD3, value))
            )
        if is_odd and isinstance(value, float):
            return b"\xca" + struct.pack(">f", value)
        packed: bytes = msgpack.packb(value)
        return packed

    def _head(self, count: int, fix: int, wide: bytes, widest: bytes, is_odd: bool) -> bytes:
        if is_odd:
            return self._rng.choice(
                (wide + struct.pack(">H", count), widest + struct.pack(">I", count))
            )
        return bytes((fix | count,)) if count < 16 else wide + struct.pack(">H", count)


# -- requests --------------------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-300, 70_000)
    | st.floats(width=32, allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=5)
)
keys = st.sampled_from(("name", "a", "b", "ключ")) | st.text(max_size=4)
payloads = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(keys, inner, max_size=5),
    max_leaves=12,
)  # fmt: skip
names = st.sampled_from(("welcome", "имя", "x" * 40)) | payloads
options = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from((0, 1, 5, -3, 2.0, "high")),
        "maxAttempts": st.sampled_from((1, 5, 2000)),
        "backoff": st.sampled_from((100, {"type": "fixed", "delay": 5})),
        "lifo": st.booleans(),
        "delay": st.sampled_from((0, 60_000)),
        "timeout": st.sampled_from((0, 5000)),
        "removeOnComplete": st.booleans(),
        "durable": st.booleans(),
        "unknown": scalars,
    },
)
queue_names = st.sampled_from(("q", "q", "q", *QUEUE_NAMES)) | scalars
entries = st.tuples(
    st.fixed_dictionaries({}, optional={"name": names, "data": payloads}),
    st.just({}) | st.just({"durable": True}) | options,
).map(lambda parts: {**parts[0], **parts[1]})


def fields(always: dict[str, Any], sometimes: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(always, optional=sometimes)


pull_fields = {
    "owner": st.sampled_from(("w", "", "работник")) | scalars,
    "lockTtl": st.sampled_from((1000, 0)) | scalars,
    "timeout": st.just(0) | scalars,
    "detach": st.booleans(),
    "unknown": scalars,
}
requests = st.one_of(
    st.tuples(
        fields({"cmd": st.just("PUSH"), "queue": queue_names}, {"name": names, "data": payloads}),
        st.just({}) | options,
    ).map(lambda parts: {**parts[0], **parts[1]}),
    fields(
        {
            "cmd": st.just("PUSHB"),
            "queue": queue_names,
            "jobs": st.lists(entries, max_size=4) | scalars,
        },
        {"unknown": scalars},
    ),
    fields({"cmd": st.just("PULL"), "queue": queue_names}, pull_fields),
    fields({"cmd": st.just("PULL"), "queue": st.just("q"), "owner": st.just("w")}, {}),
    fields(
        {"cmd": st.just("PULLB"), "queue": queue_names},
        {**pull_fields, "count": st.integers(0, 4) | scalars},
    ),
    fields(
        {"cmd": st.just("ACK"), "pulled": st.integers(0, 3)},
        {
            "result": payloads,
            "token": st.none() | st.text(max_size=3),
            "removeOnComplete": st.booleans(),
        },
    ),
    fields(
        {"cmd": st.just("ACKB"), "pulled": st.lists(st.integers(0, 5), max_size=4)},
        {"results": st.lists(payloads, max_size=4), "tokens": st.lists(scalars, max_size=2)},
    ),
    fields({"cmd": st.just("Ping")}, {}),
)  # fmt: skip
req_ids = st.none() | st.text(max_size=8) | st.integers(-5, 2**33)
steps = st.tuples(requests, req_ids, st.integers(0, 2**32), st.booleans())


def filled(request: dict[str, Any], pulled: list[tuple[Any, Any]]) -> dict[str, Any]:
    """Put ids and tokens of jobs that were pulled in place of their numbers."""
    which = request.pop("pulled", None)
    if isinstance(which, int):
        job_id, token = pulled[which % len(pulled)] if pulled else ("none", None)
        return {"id": job_id, **({} if token is None else {"token": token}), **request}
    if which is not None:
        some = [pulled[number % len(pulled)] if pulled else ("none", None) for number in which]
        return {"ids": [job[0] for job in some], "tokens": [job[1] for job in some], **request}
    return request


def pulled_in(engine: Any) -> list[tuple[Any, Any]]:
    active = [job for queue in engine.queues.values() for job in queue.active.values()]
    return [(job.id, job.token) for job in active]


@settings(max_examples=250, deadline=None)
@given(st.lists(steps, max_size=25), st.booleans(), st.booleans(), st.sampled_from((0.0, 0.0, 0.1)))
def test_both_answer_the_same_and_hold_the_same(
    given_steps: list[Any], holds: bool, int64: bool, odd: float
) -> None:
    python, compiled_one = (Side(is_compiled, holds, int64) for is_compiled in (False, True))
    for request, req_id, seed, is_damaged in given_steps:
        rng = Random(seed)
        wanted = filled(dict(request), pulled_in(python.broker.engine))
        if req_id is not None:
            wanted["reqId"] = req_id
        body = bytearray(Packer(rng, odd)(wanted))
        if is_damaged and rng.random() < 0.2:
            for _ in range(rng.randint(1, 3)):
                body[rng.randrange(len(body))] = rng.randrange(256)
        data = frame_of(bytes(body))
        is_committed = rng.random() < 0.9

        assert python.say(data, is_committed) == compiled_one.say(data, is_committed), bytes(body)
        assert python.before_commit == compiled_one.before_commit, bytes(body)
        assert python.state() == compiled_one.state(), bytes(body)


polls = st.one_of(
    fields(
        {"cmd": st.just("PUSH"), "queue": st.just("q"), "name": st.just("n")},
        {"data": st.integers(0, 9), "priority": st.sampled_from((0, 5)), "durable": st.booleans()},
    ),
    fields(
        {
            "cmd": st.just("PUSHB"),
            "queue": st.just("q"),
            "jobs": st.lists(st.just({"name": "n"}), max_size=3),
        },
        {},
    ),
    fields(
        {"cmd": st.just("PULL"), "queue": st.just("q"), "timeout": st.just(5000)},
        {"owner": st.just("w"), "lockTtl": st.just(1000)},
    ),
    fields(
        {"cmd": st.just("PULLB"), "queue": st.just("q"), "timeout": st.sampled_from((0, 5000))},
        {"owner": st.just("w"), "count": st.integers(1, 3)},
    ),
    fields(
        {"cmd": st.just("ACK"), "pulled": st.integers(0, 3)}, {"removeOnComplete": st.booleans()}
    ),
    fields({"cmd": st.sampled_from(("Pause", "Resume")), "queue": st.just("q")}, {}),
    fields(
        {"cmd": st.just("SetConcurrency"), "queue": st.just("q"), "limit": st.integers(1, 3)}, {}
    ),
    fields({"cmd": st.just("ClearConcurrency"), "queue": st.just("q")}, {}),
)
reads = st.tuples(
    st.integers(0, 1), st.lists(st.tuples(polls, req_ids), min_size=1, max_size=6), st.booleans()
)


@settings(max_examples=250, deadline=None)
@given(st.lists(reads, max_size=12), st.booleans(), st.booleans())
def test_both_serve_long_polls_the_same(given_reads: list[Any], holds: bool, int64: bool) -> None:
    """Several frames in a read, and two connections: answers keep their order too."""
    python, compiled_one = (Side(is_compiled, holds, int64) for is_compiled in (False, True))
    for which, said, is_committed in given_reads:
        frames = []
        for request, req_id in said:
            wanted = filled(dict(request), pulled_in(python.broker.engine))
            if req_id is not None:
                wanted["reqId"] = req_id
            frames.append(frame_of(msgpack.packb(wanted)))
        data = b"".join(frames)

        answers = [side.say_at(which, data, is_committed) for side in (python, compiled_one)]

        assert answers[0] == answers[1]
        assert python.waiting() == compiled_one.waiting()
        assert python.state() == compiled_one.state()


def test_long_polls_are_parked_and_served_without_decoding() -> None:
    side = Side(True, False, False)
    runner = side.connection._runner
    frames = [
        {"cmd": "PULL", "queue": "q", "owner": "w", "timeout": 5000, "reqId": "1"},
        {"cmd": "PULLB", "queue": "q", "owner": "w", "timeout": 5000, "count": 2},
        {"cmd": "PUSH", "queue": "q", "name": "n", "data": 1, "reqId": 2},
    ]
    data = b"".join(frame_of(msgpack.packb(request)) for request in frames)

    assert len(data) == runner.run(data, 0, NOW)[0]

    ((job_id, token),) = pulled_in(side.broker.engine)
    ack = frame_of(msgpack.packb({"cmd": "ACK", "id": job_id, "token": token}))
    assert len(ack) == runner.run(ack, 0, NOW)[0]
    assert 1 == len(side.connection.parked)


@pytest.mark.parametrize("jobs", [[{}, {"priority": 9}], [{"durable": True}, {"priority": 9}]])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_batch_is_there_before_who_waits_is_served(
    jobs: list[dict[str, Any]], is_compiled: bool
) -> None:
    side = Side(is_compiled, False, False)
    for request in (
        {"cmd": "PULL", "queue": "q", "owner": "w", "timeout": 5000},
        {"cmd": "PUSHB", "queue": "q", "jobs": jobs},
    ):
        side.say(frame_of(msgpack.packb(request)), True)

    ((job_id, _),) = pulled_in(side.broker.engine)
    assert 9 == side.broker.engine.index.get(job_id).priority


def test_a_plain_life_is_run_without_decoding() -> None:
    """The comparison above says nothing if the compiled side handed every frame to Python."""
    side = Side(True, False, False)
    frames = [
        {"cmd": "PUSH", "queue": "q", "name": "n", "data": {"a": [1, {"b": None}]}, "reqId": "1"},
        {"cmd": "PUSH", "queue": "q", "data": {"name": "lifted"}, "priority": 3, "reqId": 2},
        {"cmd": "PUSH", "queue": "q", "name": "n", "data": 1, "durable": True, "reqId": "3"},
        {"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "n", "data": 1}, {"data": {}}]},
        {"cmd": "PUSHB", "queue": "q", "jobs": [{"durable": True}, {"priority": 2}, {}]},
        {"cmd": "PULL", "queue": "q", "owner": "w", "timeout": 5000, "lockTtl": 30_000},
        {"cmd": "PULLB", "queue": "q", "owner": "w", "count": 2},
    ]
    data = b"".join(frame_of(msgpack.packb(request)) for request in frames)
    begin, answers, _, _ = side.connection._runner.run(data, 0, NOW)
    (first_id, token), *others = pulled_in(side.broker.engine)
    frames = [
        {"cmd": "ACK", "id": first_id, "token": token, "result": 7, "reqId": "x"},
        {"cmd": "ACKB", "ids": [job[0] for job in others], "tokens": [job[1] for job in others]},
    ]
    acks = b"".join(frame_of(msgpack.packb(request)) for request in frames)

    assert len(data) == begin
    assert len(acks) == side.connection._runner.run(acks, 0, NOW)[0]
    assert answers


def test_a_batch_with_options_that_is_done_in_slices_is_one_for_python() -> None:
    side = Side(True, False, False)
    for jobs, is_for_python in (
        ([{"priority": 1}] * 251, True),
        ([{"durable": True}] * 250, False),
    ):
        data = frame_of(msgpack.packb({"cmd": "PUSHB", "queue": "q", "jobs": jobs}))

        assert is_for_python == (side.connection._runner.run(data, 0, NOW)[0] == 0)


def test_a_batch_that_fills_the_backlog_is_taken_whole() -> None:
    side = Side(True, False, False)
    data = frame_of(msgpack.packb({"cmd": "PUSHB", "queue": "q", "jobs": [{}, {"priority": 2}]}))
    side.storage.added = lambda _job: setattr(side.storage, "is_refusing", True)

    begin, answers, _, _ = side.connection._runner.run(data, 0, NOW)

    assert len(data) == begin
    assert msgpack.unpackb(answers[4:])["ok"]
    assert 2 == len(side.broker.engine.queues["q"].run_set)
    assert 0 == side.connection._runner.run(data, 0, NOW)[0]  # Python refuses the next one


def test_an_ackb_that_is_done_in_slices_is_one_for_python() -> None:
    side = Side(True, False, False)
    runner = side.connection._runner
    for count, is_for_python in ((1_001, True), (1_000, False)):
        push = {"cmd": "PUSHB", "queue": "q", "jobs": [{}] * (count // 2)}
        pull = {"cmd": "PULLB", "queue": "q", "owner": "w", "count": 1_000}
        pushes = frame_of(msgpack.packb({"cmd": "PUSH", "queue": "q"})) * (count % 2)
        data = pushes + frame_of(msgpack.packb(push)) * 2 + frame_of(msgpack.packb(pull)) * 2
        assert len(data) == runner.run(data, 0, NOW)[0]
        ids, tokens = zip(*pulled_in(side.broker.engine)[-count:], strict=True)
        ack = frame_of(msgpack.packb({"cmd": "ACKB", "ids": ids, "tokens": tokens}))

        assert is_for_python == (runner.run(ack, 0, NOW)[0] == 0)


def test_a_completed_job_is_forgotten_by_both_alike() -> None:
    """A plain one compiled, one with an id of its own by Python."""
    python, compiled_one = Side(False, False, False), Side(True, False, False)
    plain = {"cmd": "PUSH", "queue": "q", "name": "n"}
    for side in (python, compiled_one):
        for request in (plain, {**plain, "jobId": "own"}, plain):
            side.say(frame_of(msgpack.packb(request)), True)
        side.say(frame_of(msgpack.packb({"cmd": "PULLB", "queue": "q", "count": 3})), True)
        ids = [job_id for job_id, _ in pulled_in(side.broker.engine)]
        needing = {**plain, "dependsOn": [ids[2]]}
        for request in (needing, {"cmd": "ACKB", "ids": ids}):
            side.say(frame_of(msgpack.packb(request)), True)
        engine = side.broker.engine
        if side is python:
            for job_id in ids:
                forget(engine, engine.index.get(job_id))
            continue
        by_twin = []
        for job_id in ids:
            job = engine.index.get(job_id)
            by_twin.append(hot.forget_plain(engine, job))
            if not by_twin[-1]:
                assert "completed" == job.place
                forget(engine, job)
            assert "gone" == job.place
        assert by_twin[:2] == [True, False]

    assert python.state() == compiled_one.state()
    assert len(python.broker.engine.retained) == len(compiled_one.broker.engine.retained) == 0


def test_an_interrupted_answer_is_no_part_of_the_next() -> None:
    class Name(str):
        def __hash__(self) -> int:
            raise KeyboardInterrupt

    side = Side(True, False, False)
    runner = side.connection._runner
    push = frame_of(msgpack.packb({"cmd": "PUSH", "queue": "q", "name": "n"}))
    _, pushed, _, _ = runner.run(push, 0, NOW)
    side.broker.engine.index.get(msgpack.unpackb(pushed[4:])["id"]).name = Name("n")

    with pytest.raises(KeyboardInterrupt):
        runner.run(frame_of(msgpack.packb({"cmd": "PULL", "queue": "q"})), 0, NOW)
    _, answer, _, _ = runner.run(push, 0, NOW)

    assert {"ok", "id"} == msgpack.unpackb(answer[4:]).keys()


def test_a_name_that_no_queue_may_have_is_not_kept() -> None:
    side = Side(True, False, False)
    runner = side.connection._runner
    pull = frame_of(msgpack.packb({"cmd": "PULL", "queue": "q" * 100_000}))
    tracemalloc.start()
    try:
        assert 0 == runner.run(pull, 0, NOW)[0]
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()
