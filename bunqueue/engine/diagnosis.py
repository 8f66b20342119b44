"""What is wrong with the jobs, the queues and those who serve them, check by check.

Nothing here changes anything. It is for whoever asks ``bunqueue doctor`` what to look at first, so
each check sums up all queues in one finding and names the worst of them; ``explain`` then tells of
a single job.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from bunqueue.engine.job import Job
from bunqueue.engine.queue import Queue, Waiter
from bunqueue.engine.slices import Work, parts
from bunqueue.engine.workers import is_fresh
from bunqueue.protocol.findings import (
    OK,
    PROBLEM,
    WARNING,
    Finding,
    Note,
    counted,
    finding,
    span_text,
    summed_up,
)

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

OVERDUE_MS: Final = 300_000  # a job that has been due for longer waits too long
UNSERVED_MS: Final = 5_000  # one that has been due for longer, although a worker asks, is stuck
STUCK_MS: Final = 10_000  # the sweep of leases comes every second
UNLEASED_MS: Final = 3_600_000  # run without a lease and without a stall check
LATE_MS: Final = 60_000  # a schedule that is so far behind its time
TICK_MS: Final = 30_000  # timed work that is so far behind its time
RENEWED_PART: Final = 0.75  # of a lease: a worker that renews in time never lets as much go by
HEARTBEAT_MS: Final = 10_000  # of a worker that sets none
DEAD_MANY: Final = 100  # dead letters of a queue that someone should look at
FAILED_PART: Final = 0.1  # deliveries of a webhook that were given up

LOOKED_AT_PER_STEP: Final = 1_000
LOOKED_AT_US: Final = 1
QUEUE_US: Final = 5

# check -> its text where all is well, and what to do otherwise
CHECKS: Final = {
    "overdue": (
        f"no job has been due for more than {span_text(OVERDUE_MS)}",
        "add workers or raise their concurrency; 'bunqueue explain ID' tells of one job",
    ),
    "leases": (
        "no lease has run out",
        "see 'bunqueue worker list' and the workers' logs; a heartbeat should come three times in"
        " a lease (--heartbeat, --lock-ttl)",
    ),
    "workers": (
        "every queue with jobs to do has a worker",
        "start one with 'bunqueue worker', and look at the names of the queues",
    ),
    "paused": (
        "no queue with jobs is paused",
        "'bunqueue queue resume QUEUE' if it is not meant",
    ),
    "dead letters": (
        f"no queue has {DEAD_MANY} dead letters",
        "'bunqueue dlq list QUEUE' tells why; then 'bunqueue dlq retry' or 'bunqueue dlq purge'",
    ),
    "queue settings": (
        "no queue's settings contradict each other",
        "set what was meant: 'bunqueue rate-limit', 'bunqueue concurrency', the configuration for"
        " stalls and dead letters",
    ),
    "schedules": (
        f"no schedule is behind by more than {span_text(LATE_MS)}",
        "look at the broker's log, and at its clock",
    ),
    "webhooks": (
        "no webhook's deliveries are given up",
        "'bunqueue webhook list' shows the counts, the broker's log why",
    ),
}


def diagnose(engine: "Engine", now: int) -> Work[list[Finding]]:
    """Look at everything; one finding for each check, the fine ones too."""
    notes: dict[str, list[Note]] = {check: [] for check in CHECKS}
    served = {name for worker in engine.workers.values() for name in worker.queues}
    for queue in list(engine.queues.values()):
        due, oldest = yield from _due(queue, now)
        if oldest is not None:
            notes["overdue"] += _overdue(queue, due, oldest, queue.name in served, now)
            notes["workers"] += _unserved(queue, due, queue.name in served)
        for jobs in parts(list(queue.active.values()), LOOKED_AT_PER_STEP):
            for job in jobs:
                notes["leases"] += _lease(job, now)
            yield len(jobs) * LOOKED_AT_US
        notes["paused"] += _paused(queue)
        notes["dead letters"] += _dead(queue)
        notes["queue settings"] += _settings(queue)
        yield QUEUE_US
    notes["workers"] += _silent_workers(engine, now)
    notes["schedules"] += _late_schedules(engine, now)
    notes["webhooks"] += _failing_webhooks(engine)
    return [
        *(summed_up(check, notes[check], *texts) for check, texts in CHECKS.items()),
        _timed_work(engine, now),
    ]


def _due(queue: Queue, now: int) -> Work[tuple[int, Job | None]]:
    """Count the jobs that could run by now; return the one among them that waits longest too."""
    count, oldest = 0, None
    if len(queue.run_set):
        for jobs in parts(queue.run_set.jobs(), LOOKED_AT_PER_STEP):
            for job in jobs:
                if job.run_at <= now:
                    count += 1
                    if oldest is None or job.run_at < oldest.run_at:
                        oldest = job
            yield len(jobs) * LOOKED_AT_US
    return count, oldest


def _overdue(queue: Queue, due: int, oldest: Job, is_served: bool, now: int) -> Iterator[Note]:
    """Tell of jobs that wait although nothing else here says why."""
    waited_ms = now - oldest.run_at
    since = f"{oldest.id} for {span_text(waited_ms)}"
    has_room = queue.gate.room(len(queue.active), now) > 0
    is_plain = oldest.extra.group_id is None
    if waited_ms > UNSERVED_MS and has_room and is_plain and any(map(_takes_any, queue.waiters)):
        yield PROBLEM, f"queue {queue.name} hands out nothing although workers ask, {since}"
    elif waited_ms > OVERDUE_MS and not queue.gate.is_paused and (is_served or queue.active):
        yield WARNING, f"queue {queue.name} has {counted(due, 'job')} due, {since}"


def _takes_any(waiter: Waiter) -> bool:
    """Say whether whoever waits would take a job without a group."""
    terms = waiter.terms
    return terms is None or not terms.is_affine or terms.affinity is None


def _unserved(queue: Queue, due: int, is_served: bool) -> Iterator[Note]:
    if not (is_served or queue.waiters or queue.active or queue.gate.is_paused):
        yield WARNING, f"queue {queue.name} has {counted(due, 'job')} to do and no worker"


def _lease(job: Job, now: int) -> Iterator[Note]:
    delivery = job.delivery
    if delivery is None:
        return
    what = f"job {job.id} of queue {job.queue.name}"
    if delivery.owner is None:
        own = job.options.stall_timeout
        if not job.queue.stall.enabled and now - delivery.started_at > (own or UNLEASED_MS):
            span = span_text(now - delivery.started_at)
            yield WARNING, f"{what} has run for {span} without a lease, and the stall check is off"
    elif delivery.expires_at + STUCK_MS <= now:
        span = span_text(now - delivery.expires_at)
        yield PROBLEM, f"{what} is active although its lease ran out {span} ago"
    elif now - delivery.heartbeat_at > delivery.ttl_ms * RENEWED_PART:
        span = span_text(now - delivery.heartbeat_at)
        yield WARNING, f"{what} has not renewed its lease of {delivery.ttl_ms} ms for {span}"


def _paused(queue: Queue) -> Iterator[Note]:
    if queue.gate.is_paused:
        if len(queue.run_set):
            count = counted(len(queue.run_set), "job")
            yield WARNING, f"queue {queue.name} is paused with {count}"
        return
    groups = queue.run_set.groups
    if groups is None or not groups.pending:
        return
    paused = [group for group in groups.by_id.values() if group.is_paused and group.pending]
    if paused:
        count = counted(sum(group.pending for group in paused), "job")
        groups_paused = counted(len(paused), "paused group")
        yield WARNING, f"queue {queue.name} has {groups_paused} with {count}"


def _dead(queue: Queue) -> Iterator[Note]:
    count, most = len(queue.failed), queue.dlq.max_entries
    if count >= most:
        text = f"queue {queue.name} has {count} dead letters, all it keeps: the oldest are dropped"
        yield PROBLEM, text
    elif count >= DEAD_MANY:
        yield WARNING, f"queue {queue.name} has {count} dead letters"


def _settings(queue: Queue) -> Iterator[Note]:
    gate, stall, dlq = queue.gate, queue.stall, queue.dlq
    where = f"queue {queue.name}:"
    if gate.rate is not None and gate.rate.limit < 1 and gate.rate.expires_at is None:
        yield PROBLEM, f"{where} its rate limit of {gate.rate.limit:g} lets nothing through"
    if gate.concurrency is not None and gate.concurrency <= 0:
        yield PROBLEM, f"{where} its concurrency of {gate.concurrency} lets nothing through"
    if stall.enabled and stall.stall_interval < HEARTBEAT_MS:
        text = f"a job counts as stalled after {stall.stall_interval} ms, workers' heartbeats come"
        yield WARNING, f"{where} {text} every {HEARTBEAT_MS} ms by default"
    if dlq.auto_retry and not dlq.max_auto_retries:
        yield WARNING, f"{where} dead letters are to be retried by themselves, but 0 times"
    if dlq.auto_retry and dlq.max_age is not None and dlq.max_age < dlq.auto_retry_interval:
        text = f"dead letters expire after {dlq.max_age} ms, before their retry"
        yield WARNING, f"{where} {text} ({dlq.auto_retry_interval} ms)"
    groups = queue.run_set.groups
    if groups is None or gate.concurrency is None:
        return
    above = [
        group
        for group in groups.by_id.values()
        if group.concurrency is not None and group.concurrency > gate.concurrency
    ]
    if above:
        text = f"may run more jobs than the whole queue ({gate.concurrency})"
        yield WARNING, f"{where} {counted(len(above), 'group')} {text}"


def _silent_workers(engine: "Engine", now: int) -> Iterator[Note]:
    for worker in engine.workers.values():
        if not is_fresh(engine, worker, now):
            span = span_text(now - worker.seen_at)
            yield WARNING, f"worker {worker.name or worker.id} has been silent for {span}"


def _late_schedules(engine: "Engine", now: int) -> Iterator[Note]:
    for cron in engine.list_crons():
        if now - cron.next_run > LATE_MS:
            span = span_text(now - cron.next_run)
            yield PROBLEM, f"schedule {cron.name} should have made its next job {span} ago"


def _failing_webhooks(engine: "Engine") -> Iterator[Note]:
    for webhook in engine.list_webhooks():
        failed, total = webhook.failure_count, webhook.success_count + webhook.failure_count
        if webhook.is_enabled and failed and failed >= total * FAILED_PART:
            yield WARNING, f"webhook {webhook.id}: {failed} of {total} deliveries were given up"


def _timed_work(engine: "Engine", now: int) -> Finding:
    """Say whether the sweeps come, and whether they run to their ends."""
    cure = "look at the broker's log; if nothing there explains it, restart the broker"
    late_ms = now - min(engine.timed_at.values(), default=now)
    if late_ms > TICK_MS:
        text = f"timed work is {span_text(late_ms)} late: nothing expires, no schedule fires"
        return finding("timed work", PROBLEM, text, cure)
    failed = engine.totals.failed_sweeps
    if failed:
        text = f"{counted(failed, 'sweep')} failed since the start"
        return finding("timed work", PROBLEM, text, cure)
    return finding("timed work", OK, "timed work is on time")
