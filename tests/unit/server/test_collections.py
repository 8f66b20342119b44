"""Everything bounded: each collection of a broker has a row here, with its bound and its gauge.

The collections are found in two ways: in the source, every attribute that is given a collection or
annotated as one; and in a running server under load, every attribute that holds one. One that has
no row fails, and so does a row whose collection is gone.

A bound is a constant, or a live thing that the collection has entries for, or several of them: that
many for each. What a live thing is, ``LIVE`` says; each is counted by a gauge too.
"""

from __future__ import annotations

import ast
import importlib
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gevent
import gevent.socket
import pytest
from prometheus_client.parser import text_string_to_metric_families

import bunqueue
from bunqueue.config import load_settings
from bunqueue.engine.lanes import Ring
from bunqueue.server.main import Server
from bunqueue.server.prometheus import SERVER_BUFFERS, SERVER_ENTRIES
from tests.support.wire import Reader, frame

ROOMS = ("engine", "broker", "server", "storage", "commands", "protocol")
ROOT = Path(bunqueue.__file__).parent
COLLECTIONS = (list, dict, set, deque, OrderedDict, bytearray, Ring)
NAMES = {kind.__name__ for kind in COLLECTIONS} | {"Counter", "Rows", "Puts", "defaultdict"}
CONTENTS_MAX = 100  # entries of a collection that are looked at for others

# thing -> the gauge that counts it
LIVE = {
    "job": "jobs",
    "queue": "queues",
    "group": "groups",
    "edge": "dependencies",
    "worker": "workers",
    "webhook": "webhooks",
    "schedule": "schedules",
    "connection": "connections",
    "http connection": "http_connections",
    "command": "waiting_commands",  # that was begun, and not answered
    "operation": "backlog_operations",  # that waits for its commit
    "read": "latency_notes",  # since the last second
    "event": "untold_events",
    "fixed": None,  # made with what it belongs to, and never grows
    "setting": None,  # as the operator has set it
    "start": None,  # empty once the broker runs
    "suite": None,  # no broker has any
}

# collection: what bounds it: gauge (that of the first live thing, if none is named)
ROWS = """
engine.arrivals.Arrival.waiting: command
engine.cron_text.parse(): engine.cron_text.SCHEDULES_PARSED_MAX: schedules
engine.cron_times._zone_of(): fixed
engine.cron_times._zone_names(): fixed
engine.cron_times._calendar(): engine.cron_times.CALENDARS_MAX: schedules
config.Settings.sources: setting
engine.cron.Cron.own: fixed
engine.dependencies.Ties.missing: edge
engine.dependencies.Ties.failed: edge
engine.dependencies.Ties.ignored: edge
engine.dependencies.Ties.records: edge
engine.dependencies.Graph.consumers: edge
engine.dependencies.Graph.consumers[]: edge
engine.dependencies.Graph.due: edge: consequences
engine.dependencies.Graph._timer: fixed
engine.engine.Engine.shards: fixed
engine.engine.Engine.queues: queue
engine.engine.Engine.clock_steps: fixed
engine.engine.Engine.arriving: command: arrivals
engine.engine.Engine.timed_at: fixed
engine.engine.Engine.sweeping: fixed
engine.engine.Engine.waits: command: job_waits
engine.engine.Engine.waits[]: command: job_waits
engine.engine.Engine.logged: engine.reads.LOGGED_JOBS_MAX: logged_jobs
engine.engine.Engine.successors: engine.successors.LINKS_MAX: repeat_links
engine.engine.Engine.unserved: queue
engine.engine.Engine.workers: engine.workers.WORKERS_MAX: workers
engine.engine.Engine.workers_of: engine.workers.WORKERS_MAX: workers
engine.engine.Engine.workers_of[]: engine.workers.WORKERS_MAX: workers
engine.engine.Engine.listeners: fixed: listeners
engine.engine.Engine.refused: operation
engine.engine.Engine.untold: event
engine.engine.Engine.untold[]: event
engine.engine.Engine.metrics: engine.metrics.QUEUES_MAX: metrics
engine.engine.Engine.recounted: engine.metrics.QUEUES_MAX: metrics
engine.events.Event.extra: fixed
engine.events.Event.forms: fixed
engine.groups.Group.ready: job: queued
engine.groups.Groups.by_id: group
engine.groups.Groups._ring: group
engine.groups.Groups._resting: group
engine.groups.Groups._rests: group
engine.ids.Ids._tails: engine.ids._BLOCK: jobs
engine.index.JobIndex._pieces: engine.index.PIECES: jobs
engine.index.JobIndex._pieces[]: job
engine.job.Delivery.timer: fixed
engine.job.Extra.depends_on: edge
engine.job.Extra.children_ids: edge
engine.job.Extra.timeline: job x engine.job.TIMELINE_MAX
engine.job.Extra.timeline[]: fixed
engine.job.Extra.stacktrace: job x engine.outcomes.STACK_LINES_MAX
engine.job.Extra.history: job x engine.outcomes.HISTORY_MAX
engine.job.Extra.history[]: fixed
engine.job.Extra.logs: job x protocol.options.KEEP_LOGS_MAX
engine.job.Extra.logs[]: fixed
engine.job.Extra.ttl_timer: fixed
engine.lanes.Lane.fifo: job: queued
engine.lanes.Lane.late: job: queued
engine.lanes.Lane.lifo: job: queued
engine.lanes.RunSet.lanes: job: lanes
engine.lanes.RunSet.order: job: lanes
engine.lanes.RunSet.delayed: job: queued
engine.latency.Latencies._noted: read
engine.latency.Histogram._counts: fixed
engine.leases.RetiredTokens._pairs: engine.leases.RETIRED_TOKENS_MAX: retired_tokens
engine.leases.RetiredTokens.ids: engine.leases.RETIRED_TOKENS_MAX: retired_tokens
engine.retained.Retained._shelves: engine.settings.COMPLETED_JOBS_MAX_DEFAULT: completed
engine.retained.Retained._shelves[]: engine.settings.COMPLETED_JOBS_MAX_DEFAULT: completed
engine.large_batches._SoFar.ids: job
engine.large_batches._SoFar.hidden: job: admitted
engine.large_batches._SoFar.to_come: job
engine.large_batches._SoFar.taking: engine.large_batches.TAKING_MAX: arrivals
engine.large_batches._SoFar.names: engine.large_batches.TAKING_MAX: arrivals
engine.large_batches._SoFar.labelled: job
engine.large_batches._SoFar.replaced: engine.large_batches.TAKING_MAX: arrivals
engine.large_batches._SoFar.awaited: edge
engine.listing.Listing._known: edge
engine.listing.Listing._ids: edge
engine.locks._held: suite
engine.metrics_log.MetricsLog._newest: engine.metrics_log.ENTRIES_MAX: metrics_log
engine.metrics_log.MetricsLog._rows: engine.metrics_log.ENTRIES_MAX: metrics_log
engine.metrics.QueueMetrics.minutes: engine.metrics.MINUTES_MAX: metric_minutes
engine.proofs.Proofs.free: engine.settings.COMPLETED_JOBS_MAX_DEFAULT: proofs
engine.proofs.Proofs.pinned: edge: pinned_proofs
engine.queue.Shard.queues: queue
engine.queue.Queue.admitted: job: admitted
engine.queue.Queue.parked: job: parked
engine.queue.Queue.active: job: active
engine.queue.Queue.completed: engine.settings.COMPLETED_JOBS_MAX_DEFAULT: completed
engine.queue.Queue.failed: job: dead_letters
engine.queue.Queue.waiters: command: long_polls
engine.queue.Queue.keys: job: keys
engine.queue.Queue.wake_timer: fixed
engine.queue.Waiter.timer: fixed
engine.schedules.Schedules.by_name: schedule
engine.schedules.Schedules._heap: schedule x engine.schedules.STALE_MAX: schedule_entries
engine.schedules.Schedules._timer: fixed
engine.sizes.Census.counts: fixed
engine.slices.Works.ring: command: works
engine.subscriptions.Subscriptions._behind: engine.subscriptions.BEHIND_MAX: late_events
engine.subscriptions.Subscriptions._of_queue: connection: subscriptions
engine.subscriptions.Subscriptions._of_queue[]: connection: subscriptions
engine.subscriptions.Subscriptions._queue_of: connection: subscriptions
engine.timers.Timers._heap: job + command + queue: timers
engine.timers.Timers._heap[]: fixed
engine.timers.Timers._old: job + command + queue: timers
engine.timers.Timers._old[]: fixed
engine.webhooks.Webhooks.by_id: webhook
engine.webhooks.Webhook.events: fixed
engine.workers.RegisteredWorker.queues: worker
broker.embedded.EmbeddedBroker._threads: fixed
broker.peer.LocalPeer.held: job: active
broker.peer.LocalPeer.parked: command
server.connection.Connection.held: job: held_jobs
server.connection.Connection.parked: connection x server.connection.COMMANDS_WAITING_MAX
server.connection.Connection._pieces: connection x protocol.frames.FRAME_BYTES_MAX: unread
server.connection.Connection._out: connection x protocol.frames.FRAME_BYTES_MAX: unsent
server.connection.Connection._large: connection x protocol.frames.FRAME_BYTES_MAX: unread
server.connection._Held._answers: operation: backlog_answers
server.http.Connections.greenlets: server.http.CONNECTIONS_MAX: http_connections
server.http.Connections.dying: server.http.CONNECTIONS_MAX: http_connections
server.http.HttpServer.environ: fixed
server.http.Connections._waiting: server.http.CONNECTIONS_MAX: http_connections
server.link.Link._unsent: connection x setting: unsent
server.link.Endings._line: connection
server.link.Turns._line: connection
server.rate.RequestRate._moments: connection x setting
server.tcp.TcpServer.links: connection
server.webhooks.Deliveries._senders: webhook: webhook_queues
server.webhooks._Sender.waiting: webhook x server.webhooks.WAITING_MAX: webhook_deliveries
server.webhooks.trust(): fixed
storage.log._InFlight.dropped: storage.log.REFUSED_ROWS: backlog_jobs
storage.log._InFlight.jobs: storage.log.REFUSED_ROWS: backlog_jobs
storage.log._InFlight.puts: operation: backlog_rows
storage.log._InFlight.ops: operation
storage.log._InFlight.held: operation: backlog_answers
storage.log.MutationLog._ops: operation
storage.log.MutationLog._puts: operation: backlog_rows
storage.log.MutationLog._held: operation: backlog_answers
storage.log.MutationLog._relief: connection: backlog_readers
storage.loop.PollLoop._soon: operation
storage.loop.PollLoop._timers: fixed
storage.loop.PollLoop._watches: fixed
storage.loop.PollLoop._watches[]: fixed
storage.memory.NothingSaved.tables: start
storage.native_thread.twin(): fixed
storage.native_thread.NativeWriter._setup: fixed
storage.native_thread.NativeWriter._setup[]: fixed
storage.native_thread.NativeWriter._refused: storage.log.REFUSED_ROWS: backlog_jobs
storage.notes.Notes._dirty: storage.log.REFUSED_ROWS: backlog_jobs
storage.notes.Notes._ops: operation
storage.process.WriterProcess._outbox: operation: backlog
storage.rows._packed: protocol.options.OPTION_SETS_MAX: jobs
storage.sqlite.SavedFile.tables: start
storage.thread.WriterThread._setup: fixed
storage.thread.WriterThread._setup[]: fixed
storage.thread.WriterThread._batches: fixed
storage.thread.WriterThread._outcomes: fixed
storage.writer.Database._remove: fixed
storage.writer.Database._statements: fixed
storage.writer.Frames._buffer: operation: backlog
commands.job_wire._names: commands.job_wire.NAMES_PACKED_MAX: jobs
commands.targets.AllowedTargets._names: setting
commands.targets.AllowedTargets._networks: setting
protocol.large.Packed.marks: fixed
protocol.options.JobOptions.given: fixed
protocol.options.JobOptions.given[]: fixed
protocol.options.JobOptions.repeat: fixed
protocol.options.JobOptions.reply: fixed
protocol.options.JobOptions.tags: fixed
protocol.options._interned: protocol.options.OPTION_SETS_MAX: jobs
"""


def table() -> dict[str, tuple[str, str | None]]:
    """Return collection -> its bound and its gauge."""
    rows = {}
    for line in filter(None, ROWS.splitlines()):
        name, bound, *gauge = line.split(": ")
        rows[name] = bound, gauge[0] if gauge else LIVE.get(bound.split(" ")[0].strip())
    return rows


# -- in the source ---------------------------------------------------------------------------------


def in_source() -> set[str]:
    """Find the collections of every room's modules, classes and caches."""
    found = set()
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "reference" in path.parts:
                continue  # it reads another program's file, and ends
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found |= {f"{module}.{name}" for name in _in_module(ast.parse(path.read_text()))}
    return found


def _in_module(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for function in node.body:
                if isinstance(function, ast.FunctionDef):
                    yield from (f"{node.name}.{name}" for name in _of_self(function))
        elif isinstance(node, ast.FunctionDef):
            if any("cache" in ast.unparse(decorator) for decorator in node.decorator_list):
                yield f"{node.name}()"
        else:
            for target, value, annotation in _assigned(node):
                name = ast.unparse(target)
                is_own = isinstance(target, ast.Name) and not name.isupper() and name != "__all__"
                if is_own and _is_collection(value, annotation, {}):
                    yield name


def _of_self(function: ast.FunctionDef) -> Iterator[str]:
    given = function.args.args + function.args.kwonlyargs
    annotations = {each.arg: each.annotation for each in given if each.annotation}
    for node in ast.walk(function):
        for target, value, annotation in _assigned(node):
            is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
            if is_own and _is_collection(value, annotation, annotations):
                yield ast.unparse(target).removeprefix("self.")


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None, ast.expr | None]]:
    if isinstance(node, ast.AnnAssign):
        yield node.target, node.value, node.annotation
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=True)
                yield from ((each, value, None) for each, value in pairs)
            else:
                yield target, node.value, None


def _is_collection(
    value: ast.expr | None, annotation: ast.expr | None, given: Mapping[str, ast.expr]
) -> bool:
    if annotation is not None:
        return _names_one(annotation)
    if isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)):
        return True
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in NAMES | {"fromkeys"}
    if isinstance(value, ast.BinOp):
        return _is_collection(value.left, None, given)
    return isinstance(value, ast.Name) and value.id in given and _names_one(given[value.id])


def _names_one(annotation: ast.expr) -> bool:
    """Say whether the annotation is that of a collection, not only of one in a callback."""
    text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
    parts = [part.strip() for part in str(text).split("|")]
    return any(part.partition("[")[0] in NAMES | {"Timer"} for part in parts)


def test_every_collection_in_the_source_has_a_row() -> None:
    missing = in_source() - set(table())

    assert not missing, f"give each a bound, a gauge and a row: {sorted(missing)}"


# -- in a running server ---------------------------------------------------------------------------


class Found:
    """The collections of an object and of all of ours that it leads to."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # so that no id comes again

    def walk(self, root: object) -> None:
        """Look at everything that an object leads to."""
        todo = [root]
        while todo:
            each = todo.pop()
            if id(each) in self._seen or not type(each).__module__.startswith("bunqueue."):
                continue
            self._seen.add(id(each))
            self._kept.append(each)
            for kind, name, value in _attributes(each):
                todo += self._look(f"{kind}.{name}", value)

    def _look(self, name: str, value: object) -> list[object]:
        if isinstance(value, tuple):
            return list(value)
        if not isinstance(value, COLLECTIONS):
            return [getattr(value, "__self__", value)]
        self.sizes[name] = max(self.sizes.get(name, 0), len(value))
        inside: list[object] = []
        items: list[object] = list(value)[:CONTENTS_MAX] if not isinstance(value, bytearray) else []
        if isinstance(value, dict):
            items += list(value.values())[:CONTENTS_MAX]
        for item in items:
            inside += self._look(f"{name}[]", item) if _is_open(item) else [item]
        return inside


def _is_open(value: object) -> bool:
    return isinstance(value, (*COLLECTIONS, tuple))


def _attributes(each: object) -> Iterator[tuple[str, str, Any]]:
    """Yield the class that declares it, name and value of each attribute."""
    own = getattr(each, "__dict__", {})
    for name, value in own.items():
        yield _declared_by(type(each), name), name, value
    for kind in type(each).__mro__:
        for name, member in vars(kind).items():
            is_slot = type(member).__name__ in ("member_descriptor", "getset_descriptor")
            if is_slot and name != "__dict__" and name not in own:
                try:
                    yield _name_of(kind), name, getattr(each, name)
                except (AttributeError, TypeError):  # it is worked out, and makes no sense here
                    continue


def _declared_by(kind: type, name: str) -> str:
    """Return the class whose row it is: the first of ours above which nobody has it."""
    known = [f"{_name_of(each)}" for each in kind.__mro__ if each.__module__.startswith("bunqueue")]
    return next((each for each in known if f"{each}.{name}" in table()), known[0])


def _name_of(kind: type) -> str:
    module = kind.__module__.removeprefix("bunqueue.")
    name = kind.__name__.removesuffix("Fields")
    # A compiled class has the rows of the Python one that it stands for.
    twins = {"Job": "engine.job", "Delivery": "engine.job", "Ids": "engine.ids",
             "Notes": "storage.notes", "Lane": "engine.lanes", "RunSet": "engine.lanes",
             "Queue": "engine.queue"}  # fmt: skip
    if module.startswith("compiled."):
        module = twins.get(name, module)
    return f"{module}.{name}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = {"host": "127.0.0.1", "tcp_port": 0, "http_port": 0}
    path = tmp_path_factory.mktemp("collections") / "broker.db"
    settings = load_settings(
        {**flags, "data_path": str(path)},
        environ={
            "LOG_LEVEL": "error",
            "RATE_LIMIT_MAX_REQUESTS": "100000",
            "SHUTDOWN_TIMEOUT_MS": "1",
            "WEBHOOK_ALLOWED_TARGETS": "127.0.0.1",
        },
    )
    server = Server(settings)
    server.start()
    lines = Lines(server)
    _load(lines)
    yield server
    lines.close()
    for webhook_id in list(server.broker.engine.webhooks.by_id):
        server.deliveries.drop(webhook_id)
    server.stop()
    server.run()


class Lines:
    """Connections to the server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sockets: list[Any] = []

    def open(self) -> Reader:
        """Connect."""
        sock = gevent.socket.create_connection(self._server.tcp.address[:2])
        self._sockets.append(sock)
        return Reader(sock)

    def close(self) -> None:
        """Hang up."""
        for sock in self._sockets:
            sock.close()


def _load(lines: Lines) -> None:
    """Do a little of everything; some commands wait, and some jobs are still on their way."""
    line = lines.open()
    ok = _asking(line)
    ok(cmd="AddWebhook", url="http://127.0.0.1:9/hook", events=["job.pushed"])
    ok(cmd="RegisterWorker", name="w", queues=["q"])
    ok(cmd="Cron", name="c", queue="q", schedule="* * * * *", timezone="Europe/Rome")
    ok(cmd="SetGroupConcurrency", queue="q", groupId="g", concurrency=1)
    ok(cmd="PUSHB", queue="q", jobs=[{"name": "n", "data": number} for number in range(50)])
    options: list[dict[str, Any]] = [
        {"delay": 60_000}, {"priority": 3}, {"lifo": True}, {"groupId": "g"}, {"uniqueKey": "k"},
        {"ttl": 60_000, "tags": ["a"]}, {"timeout": 60_000}, {"jobId": "me", "durable": True},
        {"repeat": {"every": 60_000}},
    ]  # fmt: skip
    for each in options:
        ok(cmd="PUSH", queue="q", name="n", data=1, **each)
    children = {"__childrenIds": ["child"]}
    parent = {"data": children, "dependsOn": ["child"], "childrenIds": ["child"]}
    child = {"data": {"__parentId": "parent", "__parentQueue": "flow"}, "parentId": "parent"}
    ok(cmd="PUSHF", jobs=[{"id": "parent", "queue": "flow", "input": parent},
                          {"id": "child", "queue": "flow", "input": child}])  # fmt: skip
    for outcome in ({"cmd": "ACK", "result": 1}, {"cmd": "FAIL", "error": "no", "stack": ["s"]}):
        job = ok(cmd="PULL", queue="q", owner="w")
        ok(id=job["job"]["id"], token=job["token"], **outcome)
    job = ok(cmd="PULL", queue="q", owner="w", group={"limit": {"max": 1, "duration": 60_000}})
    ok(cmd="AddLog", id=job["job"]["id"], message="said")
    ok(cmd="Metrics", queue="q", type="completed")
    others = [lines.open() for _ in range(3)]
    _asking(others[0])(cmd="SubscribeEvents", queue="q")
    others[1].sock.sendall(frame({"cmd": "PULL", "queue": "empty", "timeout": 10_000}))
    others[2].sock.sendall(frame({"cmd": "WaitJob", "id": job["job"]["id"], "timeout": 10_000}))
    ok(cmd="Ping")
    line.sock.sendall(frame({"cmd": "PUSH", "queue": "q", "name": "n", "data": 1}) * 100)


def _asking(line: Reader) -> Any:
    def ok(**request: Any) -> Any:
        reply = line.call(request)
        assert reply["ok"], (request, reply)
        return reply

    return ok


def test_every_collection_of_a_running_server_has_a_row(server: Server) -> None:
    found = Found()
    for _ in range(20):  # what is in flight is there for a moment
        found.walk(server)
        gevent.sleep(0.001)

    missing = set(found.sizes) - set(table())
    assert not missing, f"give each a bound, a gauge and a row: {sorted(missing)}"
    assert {"engine.engine.Engine.queues", "storage.notes.Notes._dirty"} <= set(found.sizes)
    assert len(found.sizes) > 60, "the walk does not get far"
    assert 0 == found.sizes["storage.sqlite.SavedFile.tables"]


def test_no_row_is_of_a_collection_that_is_gone(server: Server) -> None:
    found = Found()
    found.walk(server)
    nested = {name for name in table() if name.endswith("[]")}

    assert set(table()) - nested <= in_source() | set(found.sizes)
    assert {name.removesuffix("[]") for name in nested} <= set(table())


def test_every_bound_is_a_constant_or_a_live_thing() -> None:
    for name, (bound, _) in table().items():
        for part in bound.replace(" x ", " + ").split(" + "):
            if part in LIVE:
                continue
            module, _, constant = part.rpartition(".")
            value = getattr(importlib.import_module(f"bunqueue.{module}"), constant)
            assert isinstance(value, int), f"{name} is bounded by {value!r}"


def test_the_collector_is_told_of_edges_as_of_jobs(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each id that is waited for has a container of its own."""
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr("bunqueue.server.memory.tidy", lambda *args: told.append(args))
    engine = server.broker.engine
    server._tidy(False)
    engine.graph.consumers |= {str(number): {} for number in range(7)}
    server._tidy(False)
    engine.graph.consumers.clear()

    (_, before, _, _), (_, after, _, _) = told
    assert 7 == after - before


def test_every_gauge_is_told(server: Server) -> None:
    text = server.broker.host.prometheus()
    told = {
        label
        for family in text_string_to_metric_families(text)
        if family.name in ("bunqueue_collection_entries", "bunqueue_buffer_bytes")
        for sample in family.samples
        for label in sample.labels.values()
    }

    assert set(SERVER_ENTRIES) | set(SERVER_BUFFERS) <= told
    wanted = {gauge for _, gauge in table().values() if gauge} | set(filter(None, LIVE.values()))
    assert wanted <= told
    assert len(told) > 40
    without = {name for name, (bound, gauge) in table().items() if gauge is None}
    assert not {name for name in without if table()[name][0] not in LIVE}


def test_the_gauges_follow_what_they_count(server: Server) -> None:
    server.broker.engine.timed_at["cleanup"] = 0  # its round is due
    for _ in range(200):
        gevent.sleep(0.01)
        sizes = server.broker.engine.collection_sizes() | server.sizes()[0]
        if sizes["queued"] and not sizes["backlog_jobs"]:
            break

    engine = server.broker.engine
    assert sizes["jobs"] == len(engine.index) > 150
    assert sizes["queued"] == sum(len(queue.run_set) for queue in engine.queues.values())
    assert 1 == sizes["keys"] == sizes["parked"] == sizes["webhooks"] == sizes["subscriptions"]
    assert 1 == sizes["long_polls"] == sizes["job_waits"] == sizes["workers"] == sizes["schedules"]
    assert 4 == sizes["connections"]
    assert 2 == sizes["waiting_commands"]
