"""Handing jobs out: pulls that find one, and long polls that wait for one.

A waiter is served in the very operation that makes a job claimable, in order of arrival; it never
has to come back and ask. For what only time brings (a delay over, a rate token grown) one timer
per queue with waiters looks again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bunqueue import compiled
from bunqueue.engine import suspects
from bunqueue.engine.events import emit
from bunqueue.engine.groups import NO_TERMS, GroupTerms
from bunqueue.engine.job import Delivery, Job, note
from bunqueue.engine.later import Later
from bunqueue.engine.locks import wait_for
from bunqueue.engine.places import take_group_slot
from bunqueue.engine.ports import SHOULD_COMMIT
from bunqueue.engine.queue import Queue, Waiter
from bunqueue.engine.settings import LEASE_MS_DEFAULT
from bunqueue.engine.states import move

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine
    from bunqueue.engine.ports import Peer

# A batch ends with the job that passes this. Its reply fits a frame of 64 MiB, with room for one
# more payload and the jobs' own fields; copying it holds nobody up: loadtests/hub.py pull-large.
CLAIM_BYTES_MAX = 16 << 20

_hot: Any = compiled.part("hot")


def pull(
    engine: "Engine",
    peer: "Peer",
    queue_name: str,
    count: int,
    wait_ms: int,
    owner: str | None,
    ttl_ms: int | None,
    is_detached: bool,
    terms: GroupTerms | None,
    now: int,
) -> list[Job] | Later:
    """Take up to ``count`` ready jobs, waiting for the first if asked.

    Args:
        peer: Who asks; what it does not settle goes back when it closes.
        count: At most so many; fewer are returned without waiting for more.
        wait_ms: How long to wait for the first job; 0 not at all.
        owner: Name of the worker; makes a lease with a token. None: no lease.
        ttl_ms: Span of the lease; None is the default.
        is_detached: Without owner: the jobs stay active when the peer closes.
        terms: What the puller says about groups, or None.

    Returns:
        The jobs, in the order of delivery; or a ``Later`` of them, empty at the deadline.
    """
    queue = engine.queues.get(queue_name)
    if queue is None:
        if not wait_ms or engine.is_draining:
            return []
        queue = engine.open_queue(queue_name)
    span = LEASE_MS_DEFAULT if ttl_ms is None else ttl_ms
    if queue.shard.lock.locked():
        wait_for(queue.shard.lock)
    if queue.waiters:
        serve(engine, queue, now)
    jobs = claim(engine, queue, peer, count, owner, span, is_detached, terms, now)
    if jobs:
        engine.storage.claimed()
        return jobs
    if not wait_ms or engine.is_draining or not peer.is_open:
        return jobs
    return park(engine, queue, peer, count, wait_ms, owner, span, is_detached, terms, now)


def claim(
    engine: "Engine",
    queue: Queue,
    peer: "Peer",
    count: int,
    owner: str | None,
    ttl_ms: int,
    is_detached: bool,
    terms: GroupTerms | None,
    now: int,
) -> list[Job]:
    """Move up to ``count`` ready jobs to active for ``peer``; the shard is locked."""
    if engine.is_draining or not peer.is_open:
        return []
    run_set = queue.run_set
    if run_set.delayed and run_set.delayed[0][0] <= now:
        run_set.mature(now)
    if not run_set.ready:
        return []
    gate = queue.gate
    if not gate.is_open:
        count = min(count, gate.room(len(queue.active), now))
    jobs: list[Job] = []
    room_bytes = CLAIM_BYTES_MAX
    counted = 0
    if _hot is not None and terms is None and not is_detached:
        jobs = _hot.claim_plain(engine, queue, peer, count, owner, ttl_ms, now)
        counted = len(jobs)
        if counted >= count:
            return jobs
        room_bytes -= sum([len(job.data) for job in jobs])
    storage = engine.storage
    holder = None if is_detached and owner is None else peer
    is_plain = terms is None and run_set.groups is None
    put_off = 0
    must_wait: bool | None = None  # jobs on their last chance; unknown until the first is met
    while len(jobs) < count and room_bytes > 0:
        job = run_set.take() if is_plain else run_set.take_for(terms, now)
        if job is None:
            break
        options = job.options
        if options.ttl is not None and now > job.ttl_ends_at:
            engine.expire_ttl(job, now, is_taken=True)
            continue
        if job.extra.losses and suspects.is_on_last_chance(job):
            if must_wait is None:
                must_wait = suspects.has_one(peer, now)
            if must_wait:
                suspects.put_off(engine, job, now)
                put_off += 1
                if put_off == suspects.PUT_OFF_MAX:
                    break
                continue
            must_wait = holder is not None  # for this one
        move(job, "pull")
        job.started_at = now
        delivery = job.delivery = Delivery(holder, owner, now, ttl_ms)
        job.token = None if owner is None else engine.ids.new(now)
        queue.active[job.id] = job
        if job.extra.group_id is not None:
            take_group_slot(job)
            run_set.open_group(job.extra.group_id).took(terms or NO_TERMS, now)
        if holder is not None:
            holder.held[job] = delivery
        if options.timeout:
            delivery.timer = engine.timers.add(
                now + int(options.timeout), engine.run_out, job, delivery
            )
        if job.extra.timeline is not None:
            note(job, "active", now)
        storage.changed(job)
        if engine.listeners:
            emit(engine, "pulled", queue.name, job.id, now, job.data)
        else:
            queue.events_total += 1
        jobs.append(job)
        room_bytes -= len(job.data)
    if jobs:
        engine.totals.pulled += len(jobs) - counted
        if not gate.is_open:  # then all of them are counted here
            gate.took(len(jobs))
    return jobs


def serve(engine: "Engine", queue: Queue, now: int) -> None:
    """Serve the queue's waiters with what is claimable now; the shard is locked."""
    if engine.unserved is not None:
        engine.unserved[queue] = now
        return
    waiters = queue.waiters
    run_set = queue.run_set
    refused: set[GroupTerms | None] = set()  # terms on which there is nothing to be had now
    while waiters and (run_set.ready or run_set.delayed):
        waiter = _next_one(waiters, refused)
        if waiter is None:
            break
        jobs = claim(
            engine,
            queue,
            waiter.peer,
            waiter.count,
            waiter.owner,
            waiter.ttl_ms,
            waiter.is_detached,
            waiter.terms,
            now,
        )
        if jobs:
            _unpark(engine, waiter)
            waiter.later.resolve(jobs, SHOULD_COMMIT if engine.storage.is_persistent else 0)
        elif not waiter.peer.is_open:
            _unpark(engine, waiter)
        elif not run_set.ready or (run_set.groups is None and waiter.terms is None):
            break
        else:
            refused.add(waiter.terms)
    if waiters:
        _look_again(engine, queue, now)


def hold_waiters(engine: "Engine") -> None:
    """Serve nobody until ``serve_held``: a batch comes in, and its best jobs are to go first."""
    if engine.unserved is None:
        engine.unserved = {}


def serve_held(engine: "Engine") -> None:
    """Serve those who could have been served since ``hold_waiters``."""
    unserved, engine.unserved = engine.unserved, None
    for queue, now in (unserved or {}).items():
        serve(engine, queue, now)


@contextmanager
def served_after(engine: "Engine", is_committed: bool = False) -> Iterator[None]:
    """Serve who waits only after the jobs that the block shows; nothing in it may wait.

    Args:
        is_committed: They are shown after their commit.
    """
    if is_committed:
        engine.storage.sync(None, (engine,), hold_waiters)
    hold_waiters(engine)
    try:
        yield
    finally:
        serve_held(engine)
        if is_committed:
            engine.storage.sync(None, (engine,), serve_held)


def _next_one(waiters: dict[Waiter, None], refused: set[GroupTerms | None]) -> Waiter | None:
    """Return whoever waits longest, but on refused terms."""
    for waiter in waiters:
        if not refused or waiter.terms not in refused:
            return waiter
    return None


def park(
    engine: "Engine",
    queue: Queue,
    peer: "Peer",
    count: int,
    wait_ms: int,
    owner: str | None,
    ttl_ms: int,
    is_detached: bool,
    terms: GroupTerms | None,
    now: int,
) -> Later:
    """Let a pull that found nothing wait; the shard is locked."""
    later = Later()
    waiter = Waiter(later, peer, queue, count, owner, ttl_ms, is_detached, terms)
    later.on_cancel = lambda: _unpark(engine, waiter)
    waiter.timer = engine.timers.add(now + wait_ms, _give_up, engine, waiter)
    queue.waiters[waiter] = None
    peer.parked.add(later)
    _look_again(engine, queue, now)
    return later


def _unpark(engine: "Engine", waiter: Waiter) -> None:
    waiter.queue.waiters.pop(waiter, None)
    waiter.peer.parked.discard(waiter.later)
    if waiter.timer is not None:
        engine.timers.cancel(waiter.timer)
        waiter.timer = None


def _give_up(engine: "Engine", waiter: Waiter, now: int) -> None:  # noqa: ARG001  # a timer's action
    """End a long poll at its deadline."""
    end_poll(engine, waiter)


def end_poll(engine: "Engine", waiter: Waiter) -> None:
    """Answer a long poll with nothing."""
    _unpark(engine, waiter)
    waiter.later.resolve([])


def end_polls(engine: "Engine") -> None:
    """Answer every long poll with nothing: the broker is about to stop."""
    for queue in list(engine.queues.values()):
        for waiter in list(queue.waiters):
            end_poll(engine, waiter)


def _look_again(engine: "Engine", queue: Queue, now: int) -> None:
    """Arm the queue's timer for the next moment at which time alone can make a job claimable."""
    gate = queue.gate
    run_set = queue.run_set
    if not (run_set.delayed or run_set.ready or run_set.groups or queue.wake_timer):
        return  # nothing will come by time alone
    at = run_set.next_due_at()
    if run_set.ready and not gate.is_open and not gate.room(len(queue.active), now):
        at = gate.next_token_at(now)
    elif run_set.groups is not None:
        rest_over = run_set.groups.next_rest_over(now)
        if rest_over is not None:
            at = rest_over if at is None else min(at, rest_over)
    timer = queue.wake_timer
    if timer is not None and timer[2] is not None:
        if at is not None and engine.timers.due_at(timer) == at:
            return
        engine.timers.cancel(timer)
    queue.wake_timer = None
    if at is not None:
        queue.wake_timer = engine.timers.add(max(at, now + 1), _look, engine, queue)


def look_soon(engine: "Engine", queue: Queue) -> None:
    """Have the waiters served at the next tick: an undo has made a job claimable, or room for one.

    Not at once, since older undos may be to come.
    """
    if not queue.waiters:
        return
    timer = queue.wake_timer
    if timer is not None and timer[2] is not None:
        engine.timers.cancel(timer)
    queue.wake_timer = engine.timers.add(engine.last_now, _look, engine, queue)


def _look(engine: "Engine", queue: Queue, now: int) -> None:
    queue.wake_timer = None
    with queue.shard.lock:
        serve(engine, queue, now)


def move_waiter(engine: "Engine", waiter: Waiter, queue: Queue, now: int) -> None:
    """Let a long poll wait on another queue object of the same name."""
    waiter.queue.waiters.pop(waiter, None)
    waiter.queue = queue
    queue.waiters[waiter] = None
    _look_again(engine, queue, now)
