"""Taking a job out of the place where it is, and putting it into the place that it names.

Counters, lists, the peer that holds it and its timers follow; what the move means is the business
of the operation that makes it.
"""

from typing import TYPE_CHECKING

from bunqueue.engine import keys
from bunqueue.engine.job import Delivery, Job
from bunqueue.engine.states import ACTIVE, ADMITTED, COMPLETED, FAILED, GONE, PARKED, QUEUED, move

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine


def take_out(engine: "Engine", job: Job) -> None:
    """Take the job out of its place's list. Its ``place`` still says where it was."""
    place = job.place
    queue = job.queue
    if place == QUEUED:
        queue.run_set.leave(job)
    elif place == ACTIVE:
        del queue.active[job.id]
        if job.extra.group_id is not None:
            free_group_slot(job)
        end_delivery(engine, job)
    elif place == PARKED:
        del queue.parked[job.id]
    elif place == COMPLETED:
        del queue.completed[job.id]
        engine.unretain(job)
    elif place == FAILED:
        del queue.failed[job.id]
    elif place == ADMITTED:
        queue.admitted.pop(job.id, None)


def put_in(engine: "Engine", job: Job, now: int) -> None:
    """Put the job into the list of the place that it names, and into the index.

    Args:
        now: When that was asked for; the clock may have been set back since then.
    """
    place = job.place
    queue = job.queue
    if place == GONE:
        engine.index.drop(job)
        return
    if engine.queues.get(queue.name) is not queue:  # obliterated meanwhile
        queue = job.queue = engine.open_queue(queue.name)
    engine.index.put(job)
    if job.run_at <= now and place in keys.LIVE:  # as clock_steps does with those that were there
        job.run_at = min(job.run_at, engine.time_after(now))
    if place == QUEUED:
        job.stamp += 1
        queue.run_set.enter(job, now)
    elif place == ACTIVE:
        queue.active[job.id] = job
        if job.extra.group_id is not None:
            take_group_slot(job)
        if job.delivery is not None:
            _take_up(engine, job, job.delivery, now)
    elif place == PARKED:
        queue.parked[job.id] = job
        flow = job.extra.flow
        if flow is not None and (flow.is_released or not flow.missing):
            # As below: what let it go is undone too, or was committed and nobody else will.
            engine.timers.add(engine.last_now, _let_go, engine, job)
    elif place == COMPLETED:
        queue.completed[job.id] = job
        engine.retain(job)
        queue.is_disordered = True
    elif place == FAILED:
        queue.failed[job.id] = job
        queue.is_disordered = True
    elif place == ADMITTED:
        # If its own commit is undone too, it is gone again by then; if that is past, nobody else
        # will show it.
        queue.admitted[job.id] = job
        engine.timers.add(engine.last_now, _show, engine, job)


def _let_go(engine: "Engine", job: Job, now: int) -> None:
    engine.release_again(job, now)


def _show(engine: "Engine", job: Job, now: int) -> None:
    engine.publish(job, (), None, None, now)


def take_group_slot(job: Job) -> None:
    """Count the job among its group's running ones."""
    job.queue.run_set.open_group(job.extra.group_id or "").active += 1


def free_group_slot(job: Job) -> None:
    """Count the job out; its group may take turns again."""
    run_set = job.queue.run_set
    group_id = job.extra.group_id or ""
    run_set.open_group(group_id).active -= 1
    run_set.wake_group(group_id)


def _take_up(engine: "Engine", job: Job, delivery: Delivery, now: int) -> None:
    """Let a run go on that was thought to have ended."""
    early_ms = now - engine.time_after(now)
    if early_ms > 0 and delivery.heartbeat_at > engine.last_now:
        delivery.started_at -= early_ms
        delivery.heartbeat_at -= early_ms
        delivery.expires_at -= early_ms
    peer = delivery.peer
    if peer is not None and peer.is_open:
        peer.held[job] = delivery
    elif peer is not None:
        engine.timers.add(engine.last_now, engine.run_left, job, delivery)
    if job.options.timeout:
        at = delivery.started_at + int(job.options.timeout)
        delivery.timer = engine.timers.add(at, engine.run_out, job, delivery)


def end_delivery(engine: "Engine", job: Job) -> None:
    """Part the job from the peer that had it; the active list is the caller's."""
    delivery = job.delivery
    if delivery is None:
        return
    job.delivery = None
    if delivery.peer is not None:
        delivery.peer.held.pop(job, None)
    if delivery.timer is not None:
        engine.timers.cancel(delivery.timer)


def requeue(engine: "Engine", job: Job, event: str, now: int) -> None:
    """Move the job into the run set along ``event``, behind its new ``run_at``."""
    take_out(engine, job)
    move(job, event)
    job.stamp += 1
    job.queue.run_set.enter(job, now)
    if job.options.ttl is not None and job.extra.ttl_timer is None:
        engine.arm_ttl(job)  # its time may have come while it was running


def stop_ttl(engine: "Engine", job: Job) -> None:
    """Let the job's time to live no longer matter."""
    timer = job.extra.ttl_timer
    if timer is not None:
        engine.moments.cancel(timer)
        job.extra.ttl_timer = None


def forget(engine: "Engine", job: Job) -> None:
    """Remove the job altogether: list, index, key, edges, timers, file."""
    if job.id in engine.graph.consumers:
        engine.dependency_gone(job)
    if job.extra.flow is not None:
        engine.untie(job)
    take_out(engine, job)
    move(job, "remove")
    keys.release(job)
    engine.index.drop(job)
    stop_ttl(engine, job)
    engine.storage.removed(job)
    if job.id in engine.waits:
        engine.end_waits(job)
