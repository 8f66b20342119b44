"""How a run ends: success, failure, and everything that counts as a failed attempt.

``charge`` is the one place where an attempt is counted, whoever found that it ended badly: the
worker (FAIL), the clock (job timeout), the sweeps (stall, lease expiry) or a restart. It decides
between another attempt and the dead letters (engine.md 4.2).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bunqueue import compiled
from bunqueue.engine import keys, leases, proofs
from bunqueue.engine.backoff import retry_delay_ms
from bunqueue.engine.claiming import look_soon
from bunqueue.engine.deadletters import bury
from bunqueue.engine.dependencies import completed as dependencies_completed
from bunqueue.engine.dependencies import prove, settle, untie
from bunqueue.engine.events import announce, emit
from bunqueue.engine.job import Delivery, Job, keep_timeline, note, shorten_errors
from bunqueue.engine.locks import wait_for
from bunqueue.engine.metrics import count_failure, recount
from bunqueue.engine.places import (
    end_delivery,
    forget,
    free_group_slot,
    put_in,
    requeue,
    stop_ttl,
    take_out,
)
from bunqueue.engine.slices import COMMITTED, Work
from bunqueue.engine.states import ACTIVE, COMPLETED, GONE, QUEUED, move
from bunqueue.engine.successors import succeed
from bunqueue.engine.undo import Memory, has_successor, put_back, remember, write_again
from bunqueue.errors import Refused
from bunqueue.protocol.options import is_truthy

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

# How much of a large batch is done between two looks at what was spent, and what it costs:
# loadtests/hub.py ack-batch.
CHECKED_PER_STEP = 500
CHECKED_US = 1
ACKED_PER_STEP = 50
ACKED_US = 10

ERROR_CHARS_MAX = 32_768  # a failure's text is cut, so that failures cannot fill the store
STACK_LINES_MAX = 100  # engine.md 6.2
STACK_CHARS_MAX = 32_768  # of all its lines; the same for them
HISTORY_MAX = 1000  # charged attempts kept per generation; as many as a job may have
CRON_KEY_PREFIX = "cron:"

_hot: Any = compiled.part("hot")

T = TypeVar("T")


def ack(
    engine: "Engine",
    job_id: str,
    token: str | None,
    result: bytes | None,
    remove: bool,
    now: int,
) -> bool:
    """Complete a job.

    Args:
        token: The delivery's, needed if the job was pulled with an owner.
        result: Packed, or None for no result.
        remove: Forget the job, whatever its own option says.

    Returns:
        False if the broker had ended this delivery already: a success without effect.

    Raises:
        NotFound, LeaseLost: Nobody is running it, or not with this token.
    """
    job = engine.index.get(job_id)
    if job is None:
        return _never_mind(engine, job_id, token)
    lock = job.queue.shard.lock
    if lock.locked():
        wait_for(lock)
    place = job.place
    if place == ACTIVE:
        if token != job.token:
            if (job_id, token) in engine.retired:
                return False
            leases.check_token(job, token)
    elif not (place == QUEUED and token and token == job.token):
        return _never_mind(engine, job_id, token)
    _complete(engine, job, result, remove or job.options.remove_on_complete, now)
    if engine.graph.due:
        settle(engine, now)
    return True


def _never_mind(engine: "Engine", job_id: str, token: str | None) -> bool:
    """Answer an outcome for a job that is not running: no effect, or a refusal."""
    if (job_id, token) in engine.retired:
        return False
    raise leases.not_processing(job_id)


def _complete(engine: "Engine", job: Job, result: bytes | None, remove: bool, now: int) -> None:
    if _hot is not None and not remove and _hot.complete_plain(engine, job, result, now):
        return
    queue = job.queue
    place = job.place
    delivery = job.delivery
    token = job.token
    if place == ACTIVE:
        del queue.active[job.id]
        if job.extra.group_id is not None:
            free_group_slot(job)
        end_delivery(engine, job)
    else:  # a late outcome of a delivery that was taken back: it saves a second run
        queue.run_set.leave(job)
    job.finished_at = now
    job.result = result
    job.token = None
    if now >= queue.recount_at:
        recount(engine, queue, now)
    queue.completed_total += 1
    queue.completed_at = now
    engine.totals.completed += 1
    extra = job.extra
    if extra.unique_key is not None:
        keys.release(job)
    if extra.timeline is not None:
        note(job, "completed", now)
    move(job, "ack")
    graph = engine.graph
    if remove:
        job.place = GONE
        engine.index.drop(job)
        engine.storage.removed(job)
        prove(engine, job)
    else:
        queue.completed[job.id] = job
        if engine.retained.add(job) > engine.settings.max_completed_jobs:  # retain, without a call
            engine.evict_soon()
        engine.storage.changed(job)
    if extra.ttl_timer is not None:
        stop_ttl(engine, job)
    if extra.flow is not None:
        untie(engine, job)
    if job.id in graph.consumers:
        dependencies_completed(engine, job)
    engine.storage.sync(_uncomplete, (engine, job, place, delivery, token, now))
    if job.options.repeat is not None:
        succeed(engine, job, now)
    if engine.waits and job.id in engine.waits:
        engine.end_waits(job)
    if engine.listeners:
        announce(engine, "completed", queue.name, job.id, now, result)
    else:
        queue.events_total += 1
    if queue.waiters:
        engine.serve(queue, now)


def _uncomplete(
    engine: "Engine",
    job: Job,
    place: str,
    delivery: Delivery | None,
    token: str | None,
    now: int,
) -> None:
    """Undo a completion whose commit failed: the job runs on, with its lease."""
    if job.place not in (COMPLETED, GONE) or has_successor(engine, job):
        return
    if job.place == COMPLETED:
        take_out(engine, job)
    else:
        proofs.drop(engine, job.id)
    job.place = place
    job.delivery = delivery
    job.token = token
    job.result = None
    job.finished_at = 0
    job.queue.completed_total -= 1
    engine.totals.completed -= 1
    recount(engine, job.queue, now)
    timeline = job.extra.timeline
    if timeline and timeline[-1][0] == "completed":
        timeline.pop()
    put_in(engine, job, now)
    keys.reclaim(job, now)
    if job.options.ttl is not None:
        engine.arm_ttl(job)
    write_again(engine, job)
    look_soon(engine, job.queue)


def ack_batch(
    engine: "Engine",
    ids: Sequence[str],
    tokens: Sequence[str | None] | None,
    results: Sequence[bytes | None] | None,
    removes: Sequence[bool | None] | None,
    now: int,
) -> list[int]:
    """Complete several jobs; all tokens are checked before anything is applied.

    Returns:
        The positions that were without effect, because the broker had ended those deliveries.

    Raises:
        LeaseLost: A token is missing or wrong; nothing was applied.
        NotFound: An id is not running, or stands twice; the others were applied all the same.
    """
    jobs = _checked(engine, ids, tokens)
    ignored: list[int] = []
    first: Refused | None = None
    for number, job in enumerate(jobs):
        token = tokens[number] if tokens is not None else None
        result = results[number] if results is not None else None
        remove = is_truthy(removes[number]) if removes is not None else False
        try:
            if job is not None and job.place == ACTIVE and token == job.token:
                lock = job.queue.shard.lock
                if lock.locked():
                    wait_for(lock)
                _complete(engine, job, result, remove or job.options.remove_on_complete, now)
                if engine.graph.due:
                    settle(engine, now)
            elif not ack(engine, ids[number], token, result, remove, now):
                ignored.append(number)
        except Refused as refusal:
            first = first or refusal
    if first is not None:
        raise first
    return ignored


def _checked(
    engine: "Engine", ids: Sequence[str], tokens: Sequence[str | None] | None
) -> list[Job | None]:
    """Return the jobs of a batch, None for those that are not there.

    Raises:
        LeaseLost: The token of an active one is missing or wrong.
    """
    find = engine.index.get
    jobs: list[Job | None] = []
    for number, job_id in enumerate(ids):
        job = find(job_id)
        if job is not None and job.place == ACTIVE:
            token = tokens[number] if tokens is not None else None
            if token != job.token and (job_id, token) not in engine.retired:
                leases.check_token(job, token)
        jobs.append(job)
    return jobs


def ack_many(
    engine: "Engine",
    ids: Sequence[str],
    tokens: Sequence[str | None] | None,
    results: Sequence[bytes | None] | None,
    removes: Sequence[bool | None] | None,
    now: int,
) -> Work[list[int]]:
    """Complete any number of jobs, in slices; all tokens are checked before anything is applied.

    Returns, raises: As ``ack_batch``. A lease may be lost while the work is under way: that is
        raised at its end, and of the others only the few that were to be completed with it are not.
    """
    for begin in range(0, len(ids), CHECKED_PER_STEP):
        some = slice(begin, begin + CHECKED_PER_STEP)
        jobs = _checked(engine, ids[some], _part(tokens, some))
        now = yield len(jobs) * CHECKED_US
    ignored: list[int] = []
    first: Refused | None = None
    for begin in range(0, len(ids), ACKED_PER_STEP):
        some = slice(begin, begin + ACKED_PER_STEP)
        lists = _part(tokens, some), _part(results, some), _part(removes, some)
        try:
            ignored += [begin + number for number in ack_batch(engine, ids[some], *lists, now)]
        except Refused as refusal:
            first = first or refusal
        now = yield len(ids[some]) * ACKED_US
    if first is not None:
        yield COMMITTED
        raise first
    return ignored


def _part(values: Sequence[T] | None, some: slice) -> Sequence[T] | None:
    return None if values is None else values[some]


def fail(
    engine: "Engine",
    job_id: str,
    token: str | None,
    error: str | None,
    unrecoverable: bool,
    stack: Sequence[str] | None,
    remove: bool,
    now: int,
) -> bool:
    """Report that a run ended badly: another attempt later, or the dead letters.

    Args:
        error: Its text.
        unrecoverable: No further attempts.
        stack: Lines of the failure's stack; without any, those of an earlier failure stay.
        remove: If it was the last attempt: forget the job.

    Returns, raises: As ``ack``.
    """
    job = engine.index.get(job_id)
    if job is None:
        return _never_mind(engine, job_id, token)
    with job.queue.shard.lock:
        if job.place != ACTIVE:
            if job.place == QUEUED and token and token == job.token:
                return False  # taken back and already charged
            return _never_mind(engine, job_id, token)
        if token != job.token and (job_id, token) in engine.retired:
            return False
        leases.check_token(job, token)
        memory = remember(job)
        failures = engine.totals.failed
        lines = trimmed_stack(stack or (), job.options.stack_trace_limit)
        if lines:
            job.own_extra().stacktrace = lines
        text = None if error is None else error[:ERROR_CHARS_MAX]
        job.token = None
        charge(
            engine,
            job,
            now,
            reason="max_attempts_exceeded",
            error=text,
            is_final=unrecoverable,
            remove=remove,
        )
        gave_up = engine.totals.failed - failures
        engine.storage.sync(_unfail, (engine, job, memory, gave_up, now))
    if engine.graph.due:
        settle(engine, now)
    return True


def _unfail(engine: "Engine", job: Job, memory: Memory, gave_up: int, now: int) -> None:
    """Undo a failure whose commit failed: the job runs on, with its lease."""
    if gave_up:
        job.queue.failed_total -= gave_up
        engine.totals.failed -= gave_up
        recount(engine, job.queue, now)
    put_back(engine, job, memory, now)


def trimmed_stack(lines: Sequence[object], limit: int) -> list[str]:
    """Return the first ``limit`` non-blank lines, trimmed, as far as they are not too long."""
    texts: list[str] = []
    left = STACK_CHARS_MAX
    for line in lines[:STACK_LINES_MAX]:
        text = line.strip()[:left] if isinstance(line, str) else ""
        if text and len(texts) < limit:
            texts.append(text)
            left -= len(text)
    return texts


def charge(
    engine: "Engine",
    job: Job,
    now: int,
    *,
    reason: str,
    error: str | None,
    is_final: bool = False,
    is_stall: bool = False,
    with_backoff: bool = True,
    remove: bool = False,
    at_max: str | None = None,
    texts: tuple[str, str] | None = None,
) -> None:
    """Count an attempt that ended badly and send the job where it goes next.

    Args:
        reason: Dead-letter reason if this was the last attempt.
        error: Text of the failure.
        is_final: No further attempts, whatever is left.
        is_stall: Count a stall too; the stall bound applies.
        with_backoff: Wait before the next attempt; else the job keeps its place, and only its
            counts tell of the attempt (T9).
        remove: If it is the last attempt: forget the job.
        at_max: Reason to use instead when the attempts are used up.
        texts: For stalls: (text at the last attempt, text at the stall bound).
    """
    queue = job.queue
    extra = job.own_extra()
    extra.losses = 0
    job.attempts += 1
    if is_stall:
        job.stall_count += 1
    out_of_attempts = job.attempts >= job.options.attempts
    max_stalls = queue.stall.max_stalls
    out_of_stalls = is_stall and max_stalls > 0 and job.stall_count >= max_stalls
    is_over = is_final or out_of_attempts or out_of_stalls
    if is_over and texts is not None:
        error = texts[0] if out_of_attempts else texts[1]
    if out_of_attempts and at_max is not None:
        reason = at_max
    attempt_reason = reason if is_over or reason != "max_attempts_exceeded" else "explicit_fail"
    _record(extra.history, [job.attempts, job.started_at, now, attempt_reason, error])
    if is_over or with_backoff:
        if error:  # an empty text tells nothing, so that the one before it stays
            extra.last_error = error
        note(job, "failed", now, error, job.attempts)
    else:
        keep_timeline(job)
    if is_stall and with_backoff:
        action = "failed" if is_over else "retry"
        data = {"stallCount": job.stall_count, "action": action}
        emit(engine, "stalled", queue.name, job.id, now, data=data)
    elif is_stall:  # a lease that ran out tells no more
        emit(engine, "stalled", queue.name, job.id, now)
    if is_over:
        if is_stall:  # T11: what nobody reported stays to be looked at, removeOnFail or not
            job.started_at = 0
        else:
            remove = remove or job.options.remove_on_fail
        _give_up(engine, job, reason, error, remove, now)
    else:
        _try_again(engine, job, error, is_stall, with_backoff, now)
    if queue.waiters:
        engine.serve(queue, now)


def _record(history: list[list[Any]], entry: list[Any]) -> None:
    if entry[4] is not None:
        shorten_errors(history, 4)
    history.append(entry)
    if len(history) > HISTORY_MAX:
        del history[0]


def _try_again(
    engine: "Engine", job: Job, error: str | None, is_stall: bool, with_backoff: bool, now: int
) -> None:
    if with_backoff:
        job.run_at = now + retry_delay_ms(job.attempts, job.options, engine.rng)
    requeue(engine, job, "retry", now)
    job.started_at = 0
    if with_backoff:
        note(job, "waiting", now, None, job.attempts + 1)
    engine.storage.changed(job)
    if not is_stall:
        _tell_failure(engine, job, error, False, now)
        emit(engine, "retried", job.queue.name, job.id, now, prev="failed")


def _tell_failure(
    engine: "Engine", job: Job, error: str | None, is_terminal: bool, now: int
) -> None:
    extra = {} if error is None else {"error": error}
    emit(engine, "failed", job.queue.name, job.id, now, job.data, **extra, terminal=is_terminal)


def _give_up(
    engine: "Engine", job: Job, reason: str, error: str | None, remove: bool, now: int
) -> None:
    count_failure(engine, job.queue, now)
    _tell_failure(engine, job, error, True, now)
    if remove:
        if job.extra.parent_id is not None:
            engine.child_failed(job, error, now)
        forget(engine, job)
        return
    bury(engine, job, "give-up", reason, error, now)
