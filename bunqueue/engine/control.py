"""Operations on a whole queue: pause, limits, removing jobs, configuration."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from bunqueue.engine import claiming, deadletters, group_control, keys, metrics, reads
from bunqueue.engine.dependencies import has_live_consumer, outlive, tie_again, weight
from bunqueue.engine.events import announce
from bunqueue.engine.job import Job, note
from bunqueue.engine.limits import RATE_DURATION_MS_DEFAULT, TokenBucket
from bunqueue.engine.places import forget
from bunqueue.engine.queue import Queue, Waiter
from bunqueue.engine.settings import DlqConfig, StallConfig, config_to_wire, merged
from bunqueue.engine.slices import Work, consumed, in_order, parts, weighed
from bunqueue.engine.states import COMPLETED, FAILED, GONE, QUEUED, move
from bunqueue.engine.undo import light_memory, put_all_back, put_back, remember

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

CLEAN_LIMIT_DEFAULT = 1000  # wire.md 2.7

# How many jobs are done between two looks at what was spent, and what one costs with its row:
# loadtests/hub.py drain, purge-dlq.
REMOVED_PER_STEP: Final = 100
REMOVED_US: Final = 6
MOVED_PER_STEP: Final = 50
MOVED_US: Final = 20
LOOKED_AT_PER_STEP: Final = 1_000
LOOKED_AT_US: Final = 1


def store(engine: "Engine", queue: Queue) -> None:
    """Write the queue's settings; a queue that has none left loses its row."""
    gate = queue.gate
    rate = gate.rate
    if _is_plain(queue):
        if queue.is_stored:
            engine.storage.delete("queues", queue.name)
        queue.is_stored = False
        return
    queue.is_stored = True
    engine.storage.put(
        "queues",
        queue.name,
        (
            int(gate.is_paused),
            None if rate is None else rate.limit,
            None if rate is None else rate.duration_ms,
            None if rate is None else rate.expires_at,
            gate.concurrency,
            None if queue.stall == StallConfig() else json.dumps(config_to_wire(queue.stall)),
            None if queue.dlq == DlqConfig() else json.dumps(config_to_wire(queue.dlq)),
            queue.completed_total,
            queue.failed_total,
        ),
    )


def _is_plain(queue: Queue) -> bool:
    return queue.gate.is_open and queue.stall == StallConfig() and queue.dlq == DlqConfig()


def tidy(engine: "Engine", queue: Queue, now: int) -> None:
    """Let go of a rate limit whose time is over, or it would keep the queue's row and name."""
    if queue.is_stored and queue.gate.live_rate(now) is None and _is_plain(queue):
        store(engine, queue)


def restore(queue: Queue, values: tuple[Any, ...], now: int) -> None:
    """Set a queue up from its row."""
    paused, limit, duration_ms, expires_at, concurrency, stall, dlq = values[:7]
    gate = queue.gate
    gate.is_paused = bool(paused)
    if limit is not None and (expires_at is None or expires_at > now):
        gate.rate = TokenBucket(limit, duration_ms, expires_at, now)
    gate.concurrency = concurrency
    gate.changed()
    if stall:
        queue.stall = merged(queue.stall, json.loads(stall))
    if dlq:
        queue.dlq = merged(queue.dlq, json.loads(dlq))
    queue.is_stored = True


Settings = tuple[bool, TokenBucket | None, int | None, StallConfig, DlqConfig]


def _settings(queue: Queue) -> Settings:
    gate = queue.gate
    return gate.is_paused, gate.rate, gate.concurrency, queue.stall, queue.dlq


def _changed(engine: "Engine", queue: Queue, before: Settings, now: int) -> None:
    """Work the gate out anew, write it, answer after the commit, serve who may go now."""
    queue.used_at = now
    queue.gate.changed()
    store(engine, queue)
    engine.storage.sync(_unchange, (engine, queue, before))
    if queue.waiters:
        claiming.serve(engine, queue, now)


def _unchange(engine: "Engine", queue: Queue, before: Settings) -> None:
    """Put back settings that could not be written."""
    if engine.queues.get(queue.name) is not queue:
        return
    gate = queue.gate
    gate.is_paused, gate.rate, gate.concurrency, queue.stall, queue.dlq = before
    gate.changed()
    store(engine, queue)
    claiming.look_soon(engine, queue)


def pause(engine: "Engine", queue_name: str, now: int) -> None:
    """Hand nothing out any more; what is running finishes."""
    queue = engine.open_queue(queue_name)
    with queue.shard.lock:
        before = _settings(queue)
        queue.gate.is_paused = True
        _changed(engine, queue, before, now)
        announce(engine, "paused", queue.name, "", now)


def resume(engine: "Engine", queue_name: str, now: int) -> None:
    """Hand jobs out again; waiting pulls are served."""
    queue = engine.queues.get(queue_name)
    if queue is None:
        announce(engine, "resumed", queue_name, "", now)
        return
    with queue.shard.lock:
        before = _settings(queue)
        queue.gate.is_paused = False
        _changed(engine, queue, before, now)
        announce(engine, "resumed", queue.name, "", now)


def is_paused(engine: "Engine", queue_name: str) -> bool:
    """Say whether the queue is paused."""
    queue = engine.queues.get(queue_name)
    return queue is not None and queue.gate.is_paused


def set_rate_limit(
    engine: "Engine",
    queue_name: str,
    limit: float,
    duration_ms: float | None,
    ttl_ms: float | None,
    now: int,
) -> None:
    """Let at most ``limit`` jobs go per ``duration_ms``, for ``ttl_ms`` from now or for good."""
    queue = engine.open_queue(queue_name)
    span = duration_ms if duration_ms and duration_ms > 0 else RATE_DURATION_MS_DEFAULT
    expires_at = now + int(ttl_ms) if ttl_ms and ttl_ms > 0 else None
    with queue.shard.lock:
        before = _settings(queue)
        queue.gate.rate = TokenBucket(limit, span, expires_at, now)
        _changed(engine, queue, before, now)


def clear_rate_limit(engine: "Engine", queue_name: str, now: int) -> None:
    """Drop the rate limit."""
    queue = engine.queues.get(queue_name)
    if queue is None:
        return
    with queue.shard.lock:
        before = _settings(queue)
        queue.gate.rate = None
        _changed(engine, queue, before, now)


def set_concurrency(engine: "Engine", queue_name: str, limit: int, now: int) -> None:
    """Let at most ``limit`` jobs be active; 0 and below let none go."""
    queue = engine.open_queue(queue_name)
    with queue.shard.lock:
        before = _settings(queue)
        queue.gate.concurrency = limit
        _changed(engine, queue, before, now)


def clear_concurrency(engine: "Engine", queue_name: str, now: int) -> None:
    """Drop the concurrency limit."""
    queue = engine.queues.get(queue_name)
    if queue is None:
        return
    with queue.shard.lock:
        before = _settings(queue)
        queue.gate.concurrency = None
        _changed(engine, queue, before, now)


def queue_limits(
    engine: "Engine", queue_name: str, max_jobs: int | None, now: int
) -> dict[str, Any]:
    """Return ``{rateLimit, rateLimitTtl, concurrencyLimit, maxed}`` as wire.md 2.8 reads them."""
    queue = engine.queues.get(queue_name)
    if queue is None:
        return {"rateLimit": None, "rateLimitTtl": -2, "concurrencyLimit": None, "maxed": False}
    gate = queue.gate
    rate = gate.live_rate(now)
    limit = gate.concurrency
    ttl: float = -2
    if rate is not None:
        if rate.expires_at is not None:
            ttl = rate.expires_at - now
        else:
            used = rate.limit - math.floor(rate.tokens(now))
            wait_ms = rate.wait_ms(now) if max_jobs is None or used >= max_jobs else 0
            ttl = rate.duration_ms if wait_ms == math.inf else wait_ms
    return {
        "rateLimit": None if rate is None else {"max": rate.limit, "duration": rate.duration_ms},
        "rateLimitTtl": ttl,
        "concurrencyLimit": limit,
        "maxed": limit is not None and len(queue.active) >= limit,
    }


def _remove_all(engine: "Engine", jobs: Sequence[Job], now: int) -> None:
    memories = [light_memory(job) for job in jobs]
    for job in jobs:
        forget(engine, job)
    if memories:
        engine.storage.sync(put_all_back, (engine, memories, now))


def drain(engine: "Engine", queue_name: str, now: int) -> Work[int]:
    """Remove every job that is queued now, due or not; return how many."""
    last_seq = engine.seq
    count = 0
    is_found = True
    # Once more as long as it pays: a job that another command moves in the line may be missed.
    while is_found:
        is_found = False
        queue = engine.queues.get(queue_name)
        if queue is None:
            return count
        for jobs, weighs in weighed(queue.run_set.jobs(), REMOVED_PER_STEP, weight):
            old = [job for job in jobs if job.seq <= last_seq]
            with queue.shard.lock:
                _remove_all(engine, old, now)
                queue.run_set.trim(old)
            count += len(old)
            is_found = is_found or bool(old)
            now = yield weighs * REMOVED_US
    assert queue is not None
    with queue.shard.lock:
        queue.run_set.tidy()
        if count and not len(queue.run_set):
            announce(engine, "drained", queue.name, "", now)
    return count


def obliterate(engine: "Engine", queue_name: str, now: int) -> Work[None]:
    """Remove the queue with every job in every place, its keys, limits and settings.

    Of a large queue the jobs go first, wherever they have moved meanwhile; what is pushed to it
    meanwhile stays, in a queue without settings.
    """
    queue = engine.queues.get(queue_name)
    if queue is None:
        return
    newest = engine.seq
    # A large batch or flow that is on its way comes as a whole, after this.
    arriving = {job for arrival in engine.arriving for job in arrival.jobs()}
    is_clear = False
    while not is_clear:
        is_clear = True
        for jobs in parts(_everywhere(queue), LOOKED_AT_PER_STEP):
            old = [job for job in jobs if job.seq <= newest]
            if arriving:
                old = [job for job in old if job not in arriving]
            is_clear = is_clear and not old
            now = yield len(jobs) * LOOKED_AT_US
            for some, weighs in weighed(old, REMOVED_PER_STEP, weight):
                with queue.shard.lock:
                    _remove_all(engine, [job for job in some if job.place != GONE], now)
                    queue.run_set.trim(some)
                now = yield weighs * REMOVED_US
        present = engine.queues.get(queue_name)
        if present is None:
            return  # somebody else was faster
        is_clear = is_clear and present is queue
        queue = present
    with queue.shard.lock:
        if queue.is_stored:
            engine.storage.delete("queues", queue.name)
        group_control.drop_rows(engine, queue)
        figures = metrics.forget(engine, queue.name)
        engine.storage.sync(_unobliterate, (engine, queue, figures))
        waiters = list(queue.waiters)
        engine.close_queue(queue)
    if queue.size() or queue.admitted or waiters:
        _begin_anew(engine, queue, waiters, now)


def _everywhere(queue: Queue) -> Iterator[Job]:
    """Return an iterator over the jobs of a queue in all places; it stands on copies."""
    places = (queue.admitted, queue.parked, queue.active, queue.completed, queue.failed)
    of_places = consumed([job for place in places for job in place.values()])
    return chain(of_places, queue.run_set.jobs())


def _begin_anew(engine: "Engine", old: Queue, waiters: Iterable[Waiter], now: int) -> None:
    """Make a queue without settings for whoever has come or waited while the old one went."""
    queue = engine.open_queue(old.name)
    with queue.shard.lock:
        queue.absorb(old, now)
        queue.completed_total = queue.failed_total = 0
    for waiter in waiters:
        claiming.move_waiter(engine, waiter, queue, now)
    with queue.shard.lock:
        claiming.serve(engine, queue, now)


def _unobliterate(engine: "Engine", queue: Queue, figures: metrics.QueueMetrics | None) -> None:
    """Bring the queue back if the commit failed; its jobs follow one by one."""
    other = engine.queues.get(queue.name)
    if other is not None and other is not queue:
        queue.absorb(other, engine.last_now)
        for waiter in list(other.waiters):
            claiming.move_waiter(engine, waiter, queue, engine.last_now)
    engine.queues[queue.name] = queue
    queue.shard.queues[queue.name] = queue
    metrics.bring_back(engine, queue.name, figures)
    store(engine, queue)
    group_control.store_rows(engine, queue)


def clean(
    engine: "Engine",
    queue_name: str,
    grace_ms: float,
    state: str | None,
    limit: int | None,
    now: int,
) -> Work[list[str]]:
    """Remove jobs of a state that are older than ``grace_ms``; return their ids, oldest first.

    Args:
        state: None, "waiting" and "wait" mean everything queued, as the reference has it;
            "completed" and "failed" count from the end of the job.
        limit: At most so many; None is 1000.
    """
    queue = engine.queues.get(queue_name)
    most = CLEAN_LIMIT_DEFAULT if limit is None else max(0, limit)
    ids: list[str] = []
    if queue is None or not most:
        return ids
    before = now - grace_ms
    yield from reads.matured(queue, now)
    candidates, is_meant = _of_state(engine, queue, state)
    chosen: Iterable[Job] = []
    found = []
    for jobs in parts(candidates, LOOKED_AT_PER_STEP):
        found += [job for job in jobs if is_meant(job) and _moment(job) <= before]
        yield len(jobs) * LOOKED_AT_US
        if len(found) >= most and state in ("completed", "failed"):
            break  # they stand in order
    del candidates  # who holds none of the jobs need not free them all at the end
    if state in ("completed", "failed"):
        del found[most:]
        chosen = consumed(found)
    else:
        chosen = yield from in_order(consumed(found), _by_admission, most)
    for jobs, weighs in weighed(chosen, REMOVED_PER_STEP, weight):
        with queue.shard.lock:
            still_meant = [job for job in jobs if is_meant(job)]
            _remove_all(engine, still_meant, now)
            ids += [job.id for job in still_meant]
        now = yield weighs * REMOVED_US
    return ids


def _moment(job: Job) -> int:
    return job.finished_at or job.created_at


def _by_admission(job: Job) -> tuple[int, int]:
    return job.created_at, job.seq


def _of_state(
    engine: "Engine", queue: Queue, state: str | None
) -> tuple[Iterable[Job], Callable[[Job], bool]]:
    """Return the jobs among which those of a state are, and what tells them."""
    queue.straighten()
    if state == "completed":
        consumers = engine.graph.consumers
        return (
            list(queue.completed.values()),
            lambda job: (
                job.place == COMPLETED
                and not (job.id in consumers and has_live_consumer(engine, job.id))
            ),
        )
    if state == "failed":
        return list(queue.failed.values()), lambda job: job.place == FAILED
    pending = queue.run_set.jobs()
    if state in (None, "waiting", "wait"):
        return pending, lambda job: job.place == QUEUED
    if state == "delayed":
        return pending, lambda job: job.place == QUEUED and not job.is_ripe
    if state == "prioritized":
        return pending, lambda job: job.place == QUEUED and job.is_ripe and job.priority > 0
    if state == "paused" and queue.gate.is_paused:
        return pending, lambda job: job.place == QUEUED and job.is_ripe
    return (), lambda _job: False


def set_stall_config(engine: "Engine", queue_name: str, given: Mapping[str, Any], now: int) -> None:
    """Merge values (wire names) into the queue's stall configuration."""
    queue = engine.open_queue(queue_name)
    with queue.shard.lock:
        before = _settings(queue)
        queue.stall = merged(queue.stall, given)
        _changed(engine, queue, before, now)


def stall_config(engine: "Engine", queue_name: str) -> dict[str, Any]:
    """Return the queue's stall configuration under its wire names."""
    queue = engine.queues.get(queue_name)
    return config_to_wire(StallConfig() if queue is None else queue.stall)


def set_dlq_config(
    engine: "Engine", queue_name: str, given: Mapping[str, Any], now: int
) -> Work[None]:
    """Merge values (wire names) into the queue's dead-letter configuration, and apply it.

    What is beyond its bound goes first: if that cannot be written, the bound stays as it was.
    """
    queue = engine.open_queue(queue_name)
    yield from deadletters.evict_all(engine, queue, merged(queue.dlq, given).max_entries)
    queue = engine.open_queue(queue_name)  # it may have been forgotten meanwhile
    now = engine.time_after(now)
    with queue.shard.lock:
        before = _settings(queue)
        queue.dlq = merged(queue.dlq, given)
        deadletters.evict(engine, queue)  # what has come meanwhile
        _changed(engine, queue, before, now)


def dlq_config(engine: "Engine", queue_name: str) -> dict[str, Any]:
    """Return the queue's dead-letter configuration under its wire names."""
    queue = engine.queues.get(queue_name)
    return config_to_wire(DlqConfig() if queue is None else queue.dlq)


def retry_completed(
    engine: "Engine",
    queue_name: str,
    job_id: str | None,
    count: int | None,
    before: int | None,
    now: int,
) -> Work[int]:
    """Let completed jobs run again, without their result; oldest completion first.

    Args:
        job_id: Only this one.
        count: At most so many.
        before: Only those that completed before this moment (epoch ms).
    """
    queue = engine.queues.get(queue_name)
    if queue is None:
        return 0
    queue.straighten()
    chosen: Iterable[Job] = list(queue.completed.values())
    if job_id is not None:
        job = queue.completed.get(job_id)
        chosen = [] if job is None else [job]
    left = math.inf if count is None else max(0, count)
    done = 0
    for jobs in parts(chosen, MOVED_PER_STEP):
        spent_us = LOOKED_AT_US * len(jobs)
        with queue.shard.lock:
            for job in jobs:
                if left <= 0:
                    break
                if job.place != COMPLETED or (before is not None and job.finished_at >= before):
                    continue
                left -= 1
                memory = remember(job)
                if keys.reclaim(job, now):
                    _run_again(engine, job, now)
                    engine.storage.sync(put_back, (engine, job, memory, now))
                    done += 1
                    spent_us += MOVED_US
            if queue.waiters:
                claiming.serve(engine, queue, now)
        if left <= 0:
            break
        now = yield spent_us
    return done


def _run_again(engine: "Engine", job: Job, now: int) -> None:
    if job.id in engine.graph.consumers:
        outlive(engine, job.id)
    del job.queue.completed[job.id]
    engine.unretain(job)
    move(job, "rerun")
    note(job, "waiting", now)
    job.attempts = 0
    job.started_at = 0
    job.finished_at = 0
    job.result = None
    job.run_at = now
    extra = job.own_extra()
    extra.progress = 0
    extra.progress_message = None
    extra.losses = 0
    job.stamp += 1
    job.queue.run_set.enter(job, now)
    if extra.depends_on or extra.children_ids:
        tie_again(engine, job)
    engine.live_again(job, now)
    engine.storage.changed(job)


def dedup_owner(engine: "Engine", queue_name: str, key: str, now: int) -> str | None:
    """Return the id of the live job that holds the key, or None."""
    queue = engine.queues.get(queue_name)
    owner = None if queue is None else keys.owner_of(queue, key, now)
    return None if owner is None else owner.id


def remove_dedup_key(engine: "Engine", queue_name: str, key: str, now: int) -> int:
    """Free a key; return 1 if a live job held it, else 0."""
    queue = engine.queues.get(queue_name)
    if queue is None:
        return 0
    with queue.shard.lock:
        owner = keys.owner_of(queue, key, now)
        return 0 if owner is None else int(_free(engine, owner, now))


def remove_job_dedup_key(engine: "Engine", job_id: str, now: int) -> bool:
    """Free the key that the job holds; False if it holds none."""
    job = engine.index.get(job_id)
    if job is None:
        return False
    with job.queue.shard.lock:
        return _free(engine, job, now)


def _free(engine: "Engine", job: Job, now: int) -> bool:
    key = job.extra.unique_key
    if key is None or keys.owner_of(job.queue, key, now) is not job:
        return False
    memory = remember(job)
    keys.release(job)
    keys.lose(job)
    engine.storage.rewritten(job)
    engine.storage.sync(put_back, (engine, job, memory, now))
    return True
