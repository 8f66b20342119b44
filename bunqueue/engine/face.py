"""The engine's face: the one object that commands talk to.

Another implementation, authoritative in a shared database, can wear the same face; so every
operation is whole (no read-then-write from outside), and one that has to wait for a job answers
with a ``Later``. One that may be about many jobs returns a ``Work``, which ``run`` does in slices.
An operation whose effect must be on disk before its answer says so to the storage
(``ports.Storage``). All moments and ``now`` are epoch ms; arguments are checked before they get
here. What each operation does, raises and returns in detail stands at its function, in the module
that is about it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from bunqueue.engine.cron import Cron, Definition
from bunqueue.engine.entries import Entry
from bunqueue.engine.flow_admission import FlowJob
from bunqueue.engine.groups import GroupTerms, Rate
from bunqueue.engine.job import Job
from bunqueue.engine.later import Later
from bunqueue.engine.ports import Peer
from bunqueue.engine.settings import EngineSettings
from bunqueue.engine.slices import Work
from bunqueue.engine.webhooks import Webhook
from bunqueue.engine.workers import RegisteredWorker
from bunqueue.protocol.findings import Finding
from bunqueue.protocol.options import JobOptions

T = TypeVar("T")


class EngineFace(Protocol):
    """What a broker can be asked to do."""

    settings: EngineSettings

    def run(self, work: Work[T], now: int, is_kept_on: bool = True) -> T | Later:
        """Do a work; return its answer, or a ``Later`` of it if it takes more than a slice."""
        ...

    # -- jobs in ---------------------------------------------------------------------------------

    def push(
        self,
        queue_name: str,
        name: str,
        data: bytes,
        options: JobOptions,
        own: Mapping[str, Any] | None,
        now: int,
    ) -> str | Later:
        """Add one job."""
        ...

    def push_batch(self, queue_name: str, entries: Sequence[Entry], now: int) -> list[str] | Later:
        """Add several jobs to one queue, all or none; ids come back in order."""
        ...

    def push_many(self, queue_name: str, entries: Sequence[Entry], now: int) -> Work[list[str]]:
        """The same for any number of jobs."""
        ...

    def push_flow(
        self, plan: Iterator[FlowJob | None], show: Callable[[Job], bytes], now: int
    ) -> Work[list[bytes]]:
        """Add all jobs of a plan, or none; return what ``show`` made of each."""
        ...

    # -- jobs out --------------------------------------------------------------------------------

    def pull(
        self,
        peer: Peer,
        queue_name: str,
        count: int,
        wait_ms: int,
        owner: str | None,
        ttl_ms: int | None,
        is_detached: bool,
        terms: GroupTerms | None,
        now: int,
    ) -> list[Job] | Later:
        """Take up to ``count`` ready jobs, waiting for the first if asked."""
        ...

    # -- outcomes --------------------------------------------------------------------------------

    def ack(
        self, job_id: str, token: str | None, result: bytes | None, remove: bool, now: int
    ) -> bool:
        """Complete a job."""
        ...

    def ack_batch(
        self,
        ids: Sequence[str],
        tokens: Sequence[str | None] | None,
        results: Sequence[bytes | None] | None,
        removes: Sequence[bool | None] | None,
        now: int,
    ) -> list[int]:
        """Complete several jobs; all tokens are checked before anything is applied."""
        ...

    def ack_many(
        self,
        ids: Sequence[str],
        tokens: Sequence[str | None] | None,
        results: Sequence[bytes | None] | None,
        removes: Sequence[bool | None] | None,
        now: int,
    ) -> Work[list[int]]:
        """Complete any number of jobs; all tokens are checked before anything is applied."""
        ...

    def fail(
        self,
        job_id: str,
        token: str | None,
        error: str | None,
        unrecoverable: bool,
        stack: Sequence[str] | None,
        remove: bool,
        now: int,
    ) -> bool:
        """Report that a run ended badly: another attempt later, or the dead letters."""
        ...

    # -- flows -----------------------------------------------------------------------------------

    def update_parent(self, child_id: str, parent_id: str, now: int) -> None:
        """Make one existing job the child of another."""
        ...

    def remove_child_dependency(self, child_id: str, now: int) -> bool:
        """Detach a child from its parent; False if the parent does not know it."""
        ...

    def remove_unprocessed_children(self, parent_id: str, now: int) -> Work[None]:
        """Cancel the children of a job that have not begun; the job does without them."""
        ...

    def move_to_waiting_children(self, job_id: str, token: str | None, now: int) -> None:
        """Park a running job until its children have settled."""
        ...

    def children_values(self, job_id: str) -> Work[list[tuple[str, bytes]]]:
        """Return ``queue:id`` (bare id if it is not kept) and result of each child with one."""
        ...

    def failed_children(self, job_id: str) -> Mapping[str, str]:
        """Return ``queue:id`` -> error of the children after whose failure the job goes on."""
        ...

    def ignored_children(self, job_id: str) -> Mapping[str, str]:
        """Return ``queue:id`` -> error of the children whose failure the job ignores."""
        ...

    def kept_result(self, job_id: str) -> bytes | None:
        """Return the result that a removed job has left for its consumers, or None."""
        ...

    # -- leases ----------------------------------------------------------------------------------

    def heartbeat(self, job_id: str, token: str | None, duration_ms: int | None, now: int) -> bool:
        """Say that the job is still being worked on; with the token, renew its lease."""
        ...

    def heartbeat_batch(
        self, ids: Sequence[str], tokens: Sequence[str | None] | None, now: int
    ) -> int:
        """Heartbeat several jobs; return how many took effect."""
        ...

    def extend_lock(
        self, job_id: str, token: str | None, duration_ms: int | None, now: int
    ) -> bool:
        """Renew a lease; a missing token passes. False if there is no such lease."""
        ...

    # -- changes of one job ----------------------------------------------------------------------

    def cancel(self, job_id: str, now: int) -> None:
        """Remove a job that nobody is running."""
        ...

    def discard(self, job_id: str, token: str | None, now: int) -> None:
        """Send a queued or running job to the dead letters, uncharged."""
        ...

    def promote(self, job_id: str, now: int) -> None:
        """Let a delayed job run now."""
        ...

    def promote_jobs(self, queue_name: str, count: int | None, now: int) -> Work[int]:
        """Let delayed jobs run now, oldest first; None is all of them. Return how many."""
        ...

    def change_priority(self, job_id: str, priority: int, lifo: bool | None, now: int) -> None:
        """Give a queued job another rank; ``lifo`` None leaves it as it is."""
        ...

    def change_delay(self, job_id: str, delay_ms: int, token: str | None, now: int) -> None:
        """Make a job due ``delay_ms`` from now; a running one goes back to the queue, uncharged."""
        ...

    def move_to_delayed(self, job_id: str, delay_ms: int, token: str | None, now: int) -> None:
        """Send a running job back to the queue, due ``delay_ms`` from now; uncharged."""
        ...

    def move_to_wait(self, job_id: str, token: str | None, now: int) -> None:
        """Send a running, delayed or failed job to waiting; waiting ones stay as they are."""
        ...

    def update_data(self, job_id: str, data: bytes, now: int) -> None:
        """Replace the payload (packed) of a job that has not ended."""
        ...

    def set_progress(self, job_id: str, progress: float, message: str | None, now: int) -> None:
        """Note how far a running job is: 0..100, fractions kept; None keeps the old message."""
        ...

    def add_log(self, job_id: str, message: str, level: str, now: int) -> None:
        """Add a line to the job's log; the oldest goes when there are too many."""
        ...

    def clear_logs(self, job_id: str, keep: int) -> None:
        """Drop the job's log but for the newest ``keep`` lines."""
        ...

    # -- reads -----------------------------------------------------------------------------------

    def find(self, job_id: str) -> Job | None:
        """Return the job of that id, or None."""
        ...

    def find_by_custom_id(self, custom_id: str) -> Job | None:
        """Return the unfinished job with that custom id, or None."""
        ...

    def state(self, job_id: str, now: int) -> str:
        """Return the job's state; "unknown" if there is none."""
        ...

    def explain(self, job_id: str, now: int) -> Work[dict[str, Any]]:
        """Tell why a job is not running."""
        ...

    def diagnose(self, now: int) -> Work[list[Finding]]:
        """Look for what is wrong, check by check."""
        ...

    def list_jobs(
        self,
        queue_name: str,
        states: Sequence[str],
        limit: int,
        offset: int,
        ascending: bool,
        now: int,
    ) -> Work[list[Job]]:
        """Return the jobs of the given states, by ``createdAt`` and id."""
        ...

    def counts(self, queue_name: str, now: int) -> Work[dict[str, int]]:
        """Return the number of jobs by state, with ``paused`` beside them (wire.md 3.6)."""
        ...

    def count(self, queue_name: str) -> int:
        """Return how many jobs are waiting, prioritized or delayed."""
        ...

    def counts_per_priority(self, queue_name: str) -> Work[dict[str, int]]:
        """Return the number of queued jobs, due or not, by priority as text."""
        ...

    def queue_names(self) -> list[str]:
        """Return the names of all queues, in order of appearance."""
        ...

    def wait_job(self, peer: Peer, job_id: str, wait_ms: int, now: int) -> Job | None | Later:
        """Wait until the job has ended."""
        ...

    def logs(self, job_id: str) -> list[list[Any]]:
        """Return the job's log lines, ``[timestamp, level, message]``, oldest first."""
        ...

    def stats(self, now: int) -> dict[str, Any]:
        """Return counts over all queues, totals since the start, and uptime in ms."""
        ...

    # -- queues ----------------------------------------------------------------------------------

    def pause(self, queue_name: str, now: int) -> None:
        """Hand nothing out any more; what is running finishes."""
        ...

    def resume(self, queue_name: str, now: int) -> None:
        """Hand jobs out again; waiting pulls are served."""
        ...

    def is_paused(self, queue_name: str) -> bool:
        """Say whether the queue is paused."""
        ...

    def drain(self, queue_name: str, now: int) -> Work[int]:
        """Remove every queued job, due or not; return how many."""
        ...

    def obliterate(self, queue_name: str, now: int) -> Work[None]:
        """Remove the queue with every job in every place, its keys, limits and settings."""
        ...

    def clean(
        self, queue_name: str, grace_ms: float, state: str | None, limit: int | None, now: int
    ) -> Work[list[str]]:
        """Remove old jobs of a state; return their ids, oldest first."""
        ...

    def retry_completed(
        self, queue_name: str, job_id: str | None, count: int | None, before: int | None, now: int
    ) -> Work[int]:
        """Let completed jobs run again, without their result; oldest completion first."""
        ...

    def set_rate_limit(
        self,
        queue_name: str,
        limit: float,
        duration_ms: float | None,
        ttl_ms: float | None,
        now: int,
    ) -> None:
        """Let at most ``limit`` jobs go per ``duration_ms``, for ``ttl_ms`` or for good."""
        ...

    def clear_rate_limit(self, queue_name: str, now: int) -> None:
        """Drop the rate limit."""
        ...

    def set_concurrency(self, queue_name: str, limit: int, now: int) -> None:
        """Let at most ``limit`` jobs be active; 0 and below let none go."""
        ...

    def clear_concurrency(self, queue_name: str, now: int) -> None:
        """Drop the concurrency limit."""
        ...

    def queue_limits(self, queue_name: str, max_jobs: int | None, now: int) -> dict[str, Any]:
        """Return ``{rateLimit, rateLimitTtl, concurrencyLimit, maxed}``."""
        ...

    def set_stall_config(self, queue_name: str, given: Mapping[str, Any], now: int) -> None:
        """Merge values (wire names) into the queue's stall configuration."""
        ...

    def stall_config(self, queue_name: str) -> dict[str, Any]:
        """Return the queue's stall configuration under its wire names."""
        ...

    def set_dlq_config(self, queue_name: str, given: Mapping[str, Any], now: int) -> Work[None]:
        """Merge values (wire names) into the queue's dead-letter configuration, and apply it."""
        ...

    def dlq_config(self, queue_name: str) -> dict[str, Any]:
        """Return the queue's dead-letter configuration under its wire names."""
        ...

    def dedup_owner(self, queue_name: str, key: str, now: int) -> str | None:
        """Return the id of the live job that holds the key, or None."""
        ...

    def remove_dedup_key(self, queue_name: str, key: str, now: int) -> int:
        """Free a key; return 1 if a live job held it, else 0."""
        ...

    def remove_job_dedup_key(self, job_id: str, now: int) -> bool:
        """Free the key that the job holds; False if it holds none."""
        ...

    # -- dead letters ----------------------------------------------------------------------------

    def list_dead(
        self, queue_name: str, filter: Mapping[str, Any] | None, count: int | None, now: int
    ) -> Work[list[Job]]:
        """Return the dead letters of a queue, in order of entry; arguments as ``select``."""
        ...

    def dlq_stats(self, queue_name: str, now: int) -> Work[dict[str, Any]]:
        """Return figures about the dead letters of a queue."""
        ...

    def retry_dlq(
        self,
        queue_name: str,
        job_id: str | None,
        filter: Mapping[str, Any] | None,
        count: int | None,
        now: int,
    ) -> Work[int]:
        """Send dead letters back to waiting: one by id, or those that a filter lets through."""
        ...

    def purge_dlq(self, queue_name: str, now: int) -> Work[int]:
        """Remove every dead letter of the queue; return how many there were."""
        ...

    def remove_dlq_job(self, queue_name: str, job_id: str, now: int) -> bool:
        """Remove one dead letter; False if it is not there."""
        ...

    # -- schedulers ------------------------------------------------------------------------------

    def set_cron(
        self, definition: Definition, immediately: bool, replaces_leftover: bool, now: int
    ) -> Cron:
        """Define a scheduler, or give the one of that name another definition."""
        ...

    def find_cron(self, name: str) -> Cron:
        """Return the scheduler of that name."""
        ...

    def delete_cron(self, name: str, now: int) -> None:
        """Remove a scheduler; the jobs that it has made stay."""
        ...

    def list_crons(self) -> list[Cron]:
        """Return all schedulers, in order of definition."""
        ...

    # -- workers ---------------------------------------------------------------------------------

    def register_worker(
        self,
        peer: Peer,
        worker_id: str | None,
        name: str,
        queues: Sequence[str],
        concurrency: int,
        hostname: str | None,
        pid: int | None,
        started_at: int | None,
        now: int,
    ) -> RegisteredWorker:
        """Enter a worker, or update the one of that id; it belongs to ``peer`` from now on."""
        ...

    def unregister_worker(self, worker_id: str) -> None:
        """Strike a worker out; its totals stay in the sums."""
        ...

    def worker_heartbeat(
        self,
        worker_id: str,
        active: int | None,
        processed: int | None,
        failed: int | None,
        now: int,
    ) -> None:
        """Note that a worker lives, and its own counts where given."""
        ...

    def list_workers(self) -> list[RegisteredWorker]:
        """Return the workers in order of registration."""
        ...

    def worker_stats(self, now: int) -> dict[str, Any]:
        """Return ``{total, active, totalProcessed, totalFailed, activeJobs, concurrencySlots}``."""
        ...

    def is_fresh(self, worker: RegisteredWorker, now: int) -> bool:
        """Say whether the worker was heard of lately."""
        ...

    # -- groups ----------------------------------------------------------------------------------

    def set_group_rate_limit(
        self, queue_name: str, group_id: str, most: int, duration_ms: int, now: int
    ) -> None:
        """Store a rate that replaces the default of pullers that bring one."""
        ...

    def group_rate_limit(self, queue_name: str, group_id: str) -> Rate | None:
        """Return the stored rate, or None."""
        ...

    def remove_group_rate_limit(self, queue_name: str, group_id: str, now: int) -> int:
        """Drop the stored rate; return 1 if there was one, else 0."""
        ...

    def set_group_concurrency(
        self, queue_name: str, group_id: str, concurrency: int, now: int
    ) -> None:
        """Store a concurrency that replaces the default of pullers that bring one."""
        ...

    def group_concurrency(self, queue_name: str, group_id: str) -> int | None:
        """Return the stored concurrency, or None."""
        ...

    def remove_group_concurrency(self, queue_name: str, group_id: str, now: int) -> int:
        """Drop the stored concurrency; return 1 if there was one, else 0."""
        ...

    def rest_group(self, queue_name: str, group_id: str, duration_ms: int, now: int) -> None:
        """Let nothing of the group go for a while; in memory only."""
        ...

    def group_rest_ms(self, queue_name: str, group_id: str, now: int) -> int:
        """Return how long until the group may go again, in ms; -2 if nothing holds it."""
        ...

    def pause_group(self, queue_name: str, group_id: str, now: int) -> bool:
        """Let nothing of the group go any more; False if it was paused already."""
        ...

    def resume_group(self, queue_name: str, group_id: str, now: int) -> bool:
        """Let the group go again; False if it was not paused."""
        ...

    def is_group_paused(self, queue_name: str, group_id: str) -> bool:
        """Say whether the group is paused."""
        ...

    def group_count(self, queue_name: str, group_id: str) -> int:
        """Return how many jobs of the group are queued, due or not."""
        ...

    def group_active_count(self, queue_name: str, group_id: str) -> int:
        """Return how many jobs of the group are running."""
        ...

    def groups_count(self, queue_name: str) -> int:
        """Return how many jobs of all groups are queued."""

    # -- events and webhooks ---------------------------------------------------------------------

    def subscribe(self, peer: Peer, queue_name: str) -> None:
        """Tell the peer of every event of the queue from now on, in place of another queue's."""
        ...

    def unsubscribe(self, peer: Peer) -> None:
        """Tell the peer of no more events."""
        ...

    def add_webhook(
        self,
        url: str,
        events: list[str],
        queue_name: str | None,
        secret: str | None,
        now: int,
    ) -> Webhook:
        """Tell ``url`` of these events from now on."""
        ...

    def remove_webhook(self, webhook_id: str) -> None:
        """Forget a webhook; what waits for its delivery is dropped."""
        ...

    def list_webhooks(self) -> list[Webhook]:
        """Return the definitions in order of addition."""
        ...

    def set_webhook_enabled(self, webhook_id: str, is_enabled: bool) -> None:
        """Switch a webhook on or off."""
        ...

    def webhook_stats(self) -> dict[str, int]:
        """Return ``{total, enabled}``."""
        ...

    # -- figures ---------------------------------------------------------------------------------

    def queue_metrics(self, queue_name: str, kind: str, start: int, end: int) -> dict[str, Any]:
        """Return ``{meta, data, count}``: jobs of a queue that ended so, by the minute."""
        ...

    def trim_events(self, queue_name: str, length_max: int) -> int:
        """Shorten the queue's journal of events; return by how many."""
        ...

    def overview(self, now: int) -> dict[str, Any]:
        """Return figures over all queues, for dashboards."""
        ...

    def queue_figures(self, now: int) -> Work[list[dict[str, Any]]]:
        """Return ``{name, waiting, prioritized, delayed, active, dlq, paused}`` of every queue."""
        ...

    def first_queue_figures(self, most: int, now: int) -> list[dict[str, Any]]:
        """Return the figures of the first queues only."""
        ...

    def collection_sizes(self) -> dict[str, int]:
        """Return name -> entries of every collection; those of queues some seconds old."""
        ...

    def queue_totals(self, queue_name: str) -> tuple[int, int]:
        """Return how many jobs of the queue have completed and failed, ever."""
        ...
