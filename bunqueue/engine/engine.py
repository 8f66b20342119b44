"""The engine: everything a broker decides, without a socket, a clock or a disk.

``Engine`` holds the state; what it can do is a table of operations, each written in the module
that is about it. ``commands`` talks to this one object. Every operation is whole: it takes the
lock of the queue it is about, does all of its work without a switch, and returns its answer or a
``Later``.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bunqueue import compiled
from bunqueue.engine import (
    admission,
    arrivals,
    batch_admission,
    claiming,
    clock_steps,
    control,
    cron_control,
    deadletters,
    dependencies,
    diagnosis,
    explain,
    failures,
    figures,
    flow_admission,
    flows,
    group_control,
    large_batches,
    leases,
    metrics,
    moves,
    outcomes,
    reads,
    recovery,
    schedules,
    sizes,
    slices,
    subscriptions,
    sweeps,
    visibility,
    webhooks,
    workers,
)
from bunqueue.engine.events import Event, Listener
from bunqueue.engine.ids import Ids
from bunqueue.engine.index import JobIndex
from bunqueue.engine.job import Delivery, Job
from bunqueue.engine.latency import Latencies
from bunqueue.engine.later import Later
from bunqueue.engine.locks import LockFactory, Rank, no_lock
from bunqueue.engine.metrics_log import MetricsLog
from bunqueue.engine.places import forget
from bunqueue.engine.ports import Peer, Storage
from bunqueue.engine.queue import Queue, Shard
from bunqueue.engine.retained import Retained
from bunqueue.engine.settings import EngineSettings
from bunqueue.engine.timers import Timers
from bunqueue.errors import StorageFailed
from bunqueue.protocol.options import JobOptions

if TYPE_CHECKING:
    from random import Random

EVICTED_US = 10  # a completed job, with its row: loadtests/hub.py evict
RELEASED_PER_STEP = 50
RELEASED_US = 25  # a job that its peer has left: loadtests/hub.py hang-up
LAG_MS_MAX = 1_000  # of the newest time seen: ticks come at least so often; a set clock moves more
COMPLETED_EVICTED_PART = 10  # one in so many of the limit goes when it is passed, engine.md 12


_hot: Any = compiled.part("hot")


class Totals:
    """Counts since the start."""

    __slots__ = (
        "pushed",
        "pulled",
        "completed",
        "failed",
        "expired",
        "failed_sweeps",
        "worker_processed",
        "worker_failed",
    )

    def __init__(self) -> None:
        self.pushed = 0
        self.pulled = 0
        self.completed = 0
        self.failed = 0
        self.expired = 0
        self.failed_sweeps = 0
        self.worker_processed = 0
        self.worker_failed = 0


class EngineFields:
    """The attributes of ``Engine`` that are asked for or changed with every job."""

    __slots__ = ("storage", "core", "seq", "is_draining")


if not TYPE_CHECKING and compiled.IS_COMPILED:
    _records = compiled.part("records")
    Totals, EngineFields = _records.Totals, _records.EngineFields


class Rates:
    """What happens per second, as moving averages; updated by ``sample``."""

    ALPHA = 0.3  # engine.md 9

    def __init__(self) -> None:
        self.push_per_s = 0.0
        self.pull_per_s = 0.0
        self.complete_per_s = 0.0
        self.fail_per_s = 0.0
        self._at = 0
        self._counts = (0, 0, 0, 0)

    def sample(self, totals: Totals, now: int) -> None:
        """Take another sample, at least a second after the last one."""
        span_ms = now - self._at
        if span_ms < 1000:
            return
        counts = (totals.pushed, totals.pulled, totals.completed, totals.failed)
        if self._at:
            push, pull, complete, fail = (
                (new - old) * 1000 / span_ms for new, old in zip(counts, self._counts, strict=True)
            )
            self.push_per_s += self.ALPHA * (push - self.push_per_s)
            self.pull_per_s += self.ALPHA * (pull - self.pull_per_s)
            self.complete_per_s += self.ALPHA * (complete - self.complete_per_s)
            self.fail_per_s += self.ALPHA * (fail - self.fail_per_s)
        self._at, self._counts = now, counts


class Engine(EngineFields):
    """The broker's engine.

    Attributes:
        queues: name -> queue.
        index: id -> job, of everything that is kept.
        graph: Who waits for whom.
        arriving: Jobs whose ids are theirs already, and which are not in yet.
        identity_lock: Guards custom ids over all queues (rank job index).
        completed_lock: Guards the order of completion (rank completed).
        schedules: The schedulers.
        timers: Ends of spans; ``moments``: what was promised in wall time.
        clock_steps: Steps of the clock, ms and epoch ms, that jobs have still to follow.
        logged: Ids of jobs with a log, the one that was added to last at the end.
        successors: id -> id of the next generation, of jobs that repeat; the newest of them.
        sweeping: Names of the sweeps that are not through.
        works: Operations on many jobs that are not through.
        waits: id -> who waits for that job's end.
        listeners: Who is told of events.
        refused: Admitted jobs that were dropped since no file takes them, until the end of the
            admission is told.
        untold: (queue name, job id) -> events that wait for their commit, in order.
        subscriptions, webhooks: The two of ours.
        metrics: queue name -> figures; ``recounted``: names whose figures have to be written;
            ``metric_minutes``: how many minutes there are in all of them; ``metrics_log``: what
            the last batches wrote of them.
        census: What queues hold, as the last cleanup saw it.
        latencies: How long commands took; noted by whoever runs them.
        retained: The completed jobs that are kept, in order of completion.
        is_draining: A graceful stop has begun: nothing is handed out.
        last_now: The time of the last tick.
        deaf_at: The same while the disk hangs and nobody is listened to, else None.
        on_tidy: Called now and then, when memory may go back to the system; told whether so many
            jobs have gone that it should.
    """

    def __init__(
        self,
        storage: Storage,
        settings: EngineSettings | None = None,
        locks: LockFactory = no_lock,
        *,
        rng: "Random",
        random_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        """Args: rng: spreads retries; random_bytes: source of ids and tokens (seeded in tests)."""
        self.storage = storage
        self.settings = settings or EngineSettings()
        self.rng = rng
        self.ids = Ids(random_bytes or self.rng.randbytes)
        self.identity_lock = locks(Rank.JOB_INDEX, 0)
        self.completed_lock = locks(Rank.COMPLETED, 0)
        self.shards = [
            Shard(number, locks(Rank.SHARD, number)) for number in range(self.settings.shards)
        ]
        self.queues: dict[str, Queue] = {}
        self.index = JobIndex()
        self.graph = dependencies.Graph()
        self.arriving: list[arrivals.Arrival] = []
        self.seq = 0
        self.timers = Timers()
        self.moments = Timers()
        self.clock_steps: list[tuple[int, int]] = []
        self.works = slices.Works()
        self.timed_at: dict[str, int] = {}
        self.sweeping: set[str] = set()
        self.retired = leases.RetiredTokens()
        self.waits: dict[str, dict[Later, None]] = {}
        self.schedules = schedules.Schedules()
        self.logged: OrderedDict[str, None] = OrderedDict()
        self.successors: dict[str, str] = {}
        self.workers: dict[str, workers.RegisteredWorker] = {}
        # connection -> id -> what it registered last
        self.workers_of: dict[Peer, dict[str, workers.RegisteredWorker]] = {}
        self.listeners: list[Listener] = []
        self.unserved: dict[Queue, int] | None = None  # see ``claiming.hold_waiters``
        self.refused: set[Job] = set()
        self.untold: dict[tuple[str, str], list[Event]] = {}
        self.subscriptions = subscriptions.Subscriptions(self)
        self.webhooks = webhooks.Webhooks()
        self.metrics: dict[str, metrics.QueueMetrics] = {}
        self.metric_minutes = 0
        self.recounted: dict[str, Queue | None] = {}
        self.metrics_log = MetricsLog()
        storage.before_cut = partial(metrics.write, self)
        self.census = sizes.Census()
        self.totals = Totals()
        self.rates = Rates()
        self.latencies = Latencies()
        self.is_draining = False
        self.started_at = 0
        self.last_now = 0
        self.deaf_at: int | None = None
        self.core: Any = None  # what the compiled operations have found of it
        self.retained = Retained()
        self._is_evicting = False
        self.on_tidy: Callable[[bool], None] | None = None

    # -- the operations, each in the module that is about it --------------------------------------

    run = slices.run

    push = admission.push
    push_batch = batch_admission.push_batch
    push_many = large_batches.push_many
    push_flow = flow_admission.push_flow
    publish = visibility.publish

    pull = claiming.pull
    serve = claiming.serve
    served_after = claiming.served_after

    ack = outcomes.ack
    ack_batch = outcomes.ack_batch
    ack_many = outcomes.ack_many
    fail = outcomes.fail

    heartbeat = leases.heartbeat
    heartbeat_batch = leases.heartbeat_batch
    extend_lock = leases.extend_lock

    cancel = moves.cancel
    discard = moves.discard
    promote = moves.promote
    promote_jobs = moves.promote_jobs
    change_priority = moves.change_priority
    change_delay = moves.change_delay
    move_to_delayed = moves.move_to_delayed
    move_to_wait = moves.move_to_wait
    update_data = moves.update_data
    set_progress = moves.set_progress

    find = reads.find
    find_by_custom_id = reads.find_by_custom_id
    state = reads.state
    explain = explain.explain
    diagnose = diagnosis.diagnose
    list_jobs = reads.list_jobs
    counts = reads.counts
    count = reads.count
    counts_per_priority = reads.counts_per_priority
    queue_names = reads.queue_names
    wait_job = reads.wait_job
    end_waits = reads.end_waits
    stats = reads.stats
    logs = reads.logs
    add_log = reads.add_log
    clear_logs = reads.clear_logs

    pause = control.pause
    resume = control.resume
    is_paused = control.is_paused
    drain = control.drain
    obliterate = control.obliterate
    clean = control.clean
    set_rate_limit = control.set_rate_limit
    clear_rate_limit = control.clear_rate_limit
    set_concurrency = control.set_concurrency
    clear_concurrency = control.clear_concurrency
    queue_limits = control.queue_limits
    set_stall_config = control.set_stall_config
    stall_config = control.stall_config
    set_dlq_config = control.set_dlq_config
    dlq_config = control.dlq_config
    retry_completed = control.retry_completed
    dedup_owner = control.dedup_owner
    remove_dedup_key = control.remove_dedup_key
    remove_job_dedup_key = control.remove_job_dedup_key

    list_dead = deadletters.list_dead
    dlq_stats = deadletters.dlq_stats
    retry_dlq = deadletters.retry_dlq
    purge_dlq = deadletters.purge_dlq
    remove_dlq_job = deadletters.remove_dlq_job

    register_worker = workers.register_worker
    unregister_worker = workers.unregister_worker
    worker_heartbeat = workers.worker_heartbeat
    list_workers = workers.list_workers
    worker_stats = workers.worker_stats
    is_fresh = workers.is_fresh

    set_group_rate_limit = group_control.set_group_rate_limit
    group_rate_limit = group_control.group_rate_limit
    remove_group_rate_limit = group_control.remove_group_rate_limit
    set_group_concurrency = group_control.set_group_concurrency
    group_concurrency = group_control.group_concurrency
    remove_group_concurrency = group_control.remove_group_concurrency
    rest_group = group_control.rest_group
    group_rest_ms = group_control.group_rest_ms
    pause_group = group_control.pause_group
    resume_group = group_control.resume_group
    is_group_paused = group_control.is_group_paused
    group_count = group_control.group_count
    group_active_count = group_control.group_active_count
    groups_count = group_control.groups_count
    set_cron = cron_control.set_cron
    find_cron = cron_control.find_cron
    delete_cron = cron_control.delete_cron
    list_crons = cron_control.list_crons
    subscribe = subscriptions.subscribe
    unsubscribe = subscriptions.unsubscribe

    add_webhook = webhooks.add_webhook
    remove_webhook = webhooks.remove_webhook
    list_webhooks = webhooks.list_webhooks
    set_webhook_enabled = webhooks.set_webhook_enabled
    webhook_stats = webhooks.webhook_stats
    note_delivery = webhooks.note_delivery

    queue_metrics = metrics.queue_metrics
    trim_events = metrics.trim_events
    overview = figures.overview
    queue_figures = figures.queue_figures
    first_queue_figures = figures.first_queue_figures
    queue_totals = figures.queue_totals

    collection_sizes = sizes.collection_sizes

    update_parent = flows.update_parent
    remove_child_dependency = flows.remove_child_dependency
    remove_unprocessed_children = flows.remove_unprocessed_children
    move_to_waiting_children = flows.move_to_waiting_children
    children_values = flows.children_values
    failed_children = flows.failed_children
    ignored_children = flows.ignored_children
    kept_result = flows.kept_result
    child_failed = failures.child_failed
    apply_record = failures.apply
    fail_parked = failures.fail_parked
    dependency_gone = dependencies.gone
    untie = dependencies.untie
    release_again = dependencies.release_again

    tick = sweeps.tick
    clock_jumped = clock_steps.clock_jumped
    run_out = sweeps.run_out
    arm_ttl = sweeps.arm_ttl
    live_again = sweeps.live_again
    expire_ttl = sweeps.expire_ttl
    recover = recovery.recover

    # -- queues -----------------------------------------------------------------------------------

    def open_queue(self, name: str) -> Queue:
        """Return the queue of that name, made now if there is none."""
        queue = self.queues.get(name)
        if queue is None:
            shard = self.shards[_fnv1a(name) & (len(self.shards) - 1)]
            queue = self.queues[name] = shard.queues[name] = Queue(name, shard)
            queue.used_at = self.last_now
            metrics.resume(self, queue)
        return queue

    def close_queue(self, queue: Queue) -> None:
        """Forget the queue's name; its jobs are gone already."""
        if self.queues.get(queue.name) is queue:
            metrics.settle(self, queue)
            del self.queues[queue.name]
            del queue.shard.queues[queue.name]

    # -- completed jobs that are kept -------------------------------------------------------------

    def retain(self, job: Job) -> None:
        """Keep a completed job; the oldest go when there are too many."""
        if self.retained.add(job) > self.settings.max_completed_jobs:
            self.evict_soon()

    def unretain(self, job: Job) -> None:
        """Note that a completed job is not kept any more."""
        self.retained.discard(job)

    def evict_soon(self) -> None:
        """Let the oldest go at the next tick: there are too many."""
        if not self._is_evicting:
            self._is_evicting = True
            self.timers.add(self.last_now, self._evict, None)

    def _evict(self, _first: object, _second: object, now: int) -> None:
        self.run(self._evicting(), now)

    def _evicting(self) -> slices.Work[None]:
        """Drop the excess and a part of the limit more, so that this is rare."""
        most = self.settings.max_completed_jobs
        keep = most - most // COMPLETED_EVICTED_PART
        try:
            while len(self.retained) > keep:
                with self.completed_lock:
                    self.drop_oldest_completed()
                yield EVICTED_US
        finally:
            self._is_evicting = False

    def oldest_completed(self) -> Job | None:
        """Return the kept job that completed first, or None."""
        return self.retained.oldest()

    def drop_oldest_completed(self) -> None:
        """Forget the kept job that completed first."""
        job = self.oldest_completed()
        if job is None or (_hot is not None and _hot.forget_plain(self, job)):
            return
        with job.queue.shard.lock:
            forget(self, job)

    # -- the life of a connection and of the broker -----------------------------------------------

    @property
    def on_sooner(self) -> Callable[[int], None] | None:
        """Called with an epoch ms when ``tick`` must come earlier than it last said."""
        return self.timers.on_sooner

    @on_sooner.setter
    def on_sooner(self, callback: Callable[[int], None] | None) -> None:
        self.timers.on_sooner = self.moments.on_sooner = callback

    def peer_closed(self, peer: Peer, now: int) -> None:
        """Let go of a connection's polls, workers, and jobs whose lease it never renewed."""
        peer.is_open = False
        for later in list(peer.parked):
            later.cancel()
        peer.parked.clear()
        self.unsubscribe(peer)
        workers.unregister_all_of(self, peer)
        held = list(peer.held.items())
        peer.held.clear()
        waits = self.storage.answer_waits
        self.run(self._letting_go(held, now), now)
        self.storage.answer_waits = waits  # nobody has asked, and the next command is another's

    def _letting_go(self, held: "list[tuple[Job, Delivery]]", now: int) -> slices.Work[None]:
        for some in slices.parts(held, RELEASED_PER_STEP):
            touched: dict[Queue, None] = {}
            for job, delivery in some:
                if self._let_go_of(job, delivery, now):
                    touched[job.queue] = None
            for queue in touched:
                with queue.shard.lock:
                    self.serve(queue, now)
            try:
                now = yield len(some) * RELEASED_US
            except StorageFailed:
                # What others did in this slice is undone; the rest must go back all the same.
                now = self.last_now

    def _let_go_of(self, job: "Job", delivery: Delivery, now: int) -> bool:
        """Take back a run whose connection has closed; False if its lease goes on."""
        if job.delivery is not delivery or delivery is None:
            return False
        with job.queue.shard.lock:
            if delivery.renewals:
                delivery.peer = None
                return False
            sweeps.worker_lost(self, job, delivery, now)
            job.token = None  # a late outcome counts after T9, T10 and T15 only
            return True

    def run_left(self, job: "Job", delivery: Delivery, now: int) -> None:
        """Take back a run that was brought back by an undo after its connection had closed."""
        if self._let_go_of(job, delivery, now):
            with job.queue.shard.lock:
                self.serve(job.queue, now)

    def time_after(self, asked_at: int) -> int:
        """Return the time at which what was asked for at ``asked_at``, and had to wait, goes on.

        That is the newest that was seen, but for a time of before a clock was set back.
        """
        last = self.last_now
        return asked_at if last < asked_at < last + LAG_MS_MAX else last

    def drain_begin(self) -> None:
        """Begin a graceful stop: pulls answer empty, what is active may still be settled."""
        self.is_draining = True
        claiming.end_polls(self)

    def active_count(self) -> int:
        """Return how many jobs are active in all."""
        return sum(len(queue.active) for queue in self.queues.values())

    def release_all(self, now: int) -> int:
        """Hand back what is still active, uncharged; return how many."""
        jobs = [job for queue in self.queues.values() for job in queue.active.values()]
        for job in jobs:
            with job.queue.shard.lock:
                sweeps.release(self, job, now)
        return len(jobs)

    def let_go(self) -> None:
        """Forget every job, once the storage is closed; nothing is written of that.

        Compiled jobs are none of the collector's objects: one that refers to its queue, and is
        referred to by it, would stay for as long as the process lives.
        """
        self.timers.clear()
        self.moments.clear()
        self.index.clear()
        self.retained.clear()
        self.graph.consumers.clear()
        for queue in self.queues.values():
            queue.clear()

    def options_with(self, options: JobOptions, wire_name: str, value: object) -> JobOptions:
        """Return a copy of the shared options with one of them changed."""
        return JobOptions({**options.given, wire_name: value})


def _fnv1a(text: str) -> int:
    """Return the 32-bit FNV-1a hash that spreads queues over shards (engine.md 12)."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value
