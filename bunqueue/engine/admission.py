"""How one job gets in: its id, its key, its twins, and when it becomes visible.

A plain push is in the run set at once and on disk some ms later. A push that must not be lost, or
that ends an older generation of its id or key, is *admitted*: it holds its id and its key from
now on, but nobody sees or pulls it until old and new have been committed together. If that commit
fails, everything is as it was before and the peer reads an error (``visibility``).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bunqueue import compiled
from bunqueue.engine import dependencies, keys, proofs, repeats
from bunqueue.engine.arrivals import after_arrival
from bunqueue.engine.entries import Entry, custom_id_of
from bunqueue.engine.events import announce, emit
from bunqueue.engine.flows import link, linked_parent
from bunqueue.engine.job import Job
from bunqueue.engine.keys import LIVE
from bunqueue.engine.later import Later
from bunqueue.engine.locks import in_order, wait_for
from bunqueue.engine.places import stop_ttl, take_out
from bunqueue.engine.ports import WITHHELD
from bunqueue.engine.queue import Queue, Shard
from bunqueue.engine.refusals import (
    backlog_is_full,
    edge_refusal,
    full_group,
    loss_refusal,
    own_refusal,
)
from bunqueue.engine.states import ACTIVE, ADMITTED, GONE, QUEUED, state_of
from bunqueue.engine.undo import remember
from bunqueue.engine.visibility import Hidden, enter, publish, withdraw
from bunqueue.errors import Refused
from bunqueue.protocol.options import DEFAULT_OPTIONS, JobOptions

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

NO_IDS: Mapping[str, None] = {}

# A ``timestamp`` this close to the present is the present: a timeline that can be derived from the
# job's moments costs no memory, and clients that stamp every job do it as they push.
STAMP_SLACK_MS = 1_000


def push(
    engine: "Engine",
    queue_name: str,
    name: str,
    data: bytes,
    options: JobOptions,
    own: Mapping[str, Any] | None,
    now: int,
) -> str | Later:
    """Add one job.

    Args:
        queue_name, name: Checked.
        data: Packed payload.
        options: What the job shares with others.
        own: wire name -> value of its own options, or None if it sets no option at all.
        now: Epoch ms.

    Returns:
        The id of the job, or of the live one that already holds its id or key. A ``Later`` if the
        push is about a job of a flow that is on its way in: to that, or to the exception.

    Raises:
        Refused: A rule of identity says no.
        StorageFailed: The backlog is full.
    """
    queue = engine.queues.get(queue_name) or engine.open_queue(queue_name)
    if own is None:
        if engine.storage.is_refusing:
            raise backlog_is_full()
        if queue.shard.lock.locked():
            wait_for(queue.shard.lock)
        return admit_plain(engine, queue, name, data, DEFAULT_OPTIONS, now).id
    if engine.arriving:
        later = after_arrival(engine, [own], push, queue_name, name, data, options, own, now)
        if later is not None:
            return later
    custom_id = custom_id_of(own)
    if custom_id is None and "parentId" not in own:
        with queue.shard.lock:
            return admit(engine, queue, (name, data, options, own), None, now)
    with engine.identity_lock, in_order({queue.shard, *other_shards(engine, own, custom_id)}):
        return admit(engine, queue, (name, data, options, own), custom_id, now)


def other_shards(
    engine: "Engine", own: Mapping[str, Any] | None, custom_id: str | None
) -> list[Shard]:
    """Return the shards of the jobs that a push may change: its id's owner and its parent."""
    parent_id = None if own is None else linked_parent(own)
    jobs = [engine.index.get(job_id) for job_id in (custom_id, parent_id) if job_id]
    return [job.queue.shard for job in jobs if job is not None]


def admit_plain(
    engine: "Engine", queue: Queue, name: str, data: bytes, options: JobOptions, now: int
) -> Job:
    """Put a job without any option of its own into the run set."""
    storage = engine.storage
    seq = engine.seq = engine.seq + 1
    job = Job(engine.ids.new(now), seq, queue, name, data, options, 0, now, now, QUEUED)
    engine.index.put(job)
    queue.run_set.enter(job, now)
    engine.totals.pushed += 1
    storage.added(job)
    if engine.listeners:
        emit(engine, "pushed", queue.name, job.id, now, data)
    else:
        queue.events_total += 1
    if queue.waiters:
        engine.serve(queue, now)
    return job


if not TYPE_CHECKING and compiled.IS_COMPILED:
    admit_plain = compiled.part("hot").admit_plain


def admit(
    engine: "Engine",
    queue: Queue,
    entry: Entry,
    custom_id: str | None,
    now: int,
    batch: Mapping[str, None] = NO_IDS,
    hidden: list[Hidden] | None = None,
    is_together: bool = False,
) -> str:
    """Admit a job with options; its shard, its id's old owner's and its parent's are locked.

    Args:
        batch: Custom ids of the same call whose jobs are still to come.
        hidden: Gets the job, which stays invisible and is not written before it is ``added``.
        is_together: It becomes visible with others, after the commit.
    """
    name, data, options, own = entry
    if own is None:
        if is_together:
            return _admit_later(engine, queue, entry, now)
        return admit_plain(engine, queue, name, data, options, now).id
    old = engine.index.get(custom_id) if custom_id else None
    if old is not None and old.place in LIVE:
        problem = own_refusal(own, custom_id)
        if problem:
            raise Refused(problem)
        return _twin(engine, old, options)
    problem = edge_refusal(engine, own, custom_id, batch)
    if problem:
        raise Refused(problem)
    key = own.get("uniqueKey") or None
    replaced = robbed = None
    if key is not None:
        owner = keys.owner_of(queue, key, now)
        if owner is not None:
            until = owner.extra.unique_until
            if not keys.meet(engine, queue, owner, key, options, now, batch is not NO_IDS):
                is_undone = is_together or hidden is not None
                _note_duplicate(engine, owner, key, until, options, is_undone, now)
                return _twin(engine, owner, options)
            if owner.place == ACTIVE:
                robbed = owner
            else:
                problem = loss_refusal(own, owner.id)
                if problem:
                    raise Refused(problem)
                replaced = owner
    full = None if replaced is not None else full_group(queue, own, 0)
    if full is not None:
        raise Refused(full)
    if batch is NO_IDS and engine.storage.is_refusing:
        raise backlog_is_full()
    job = new_job(engine, queue, entry, custom_id, now)
    if hidden is not None:
        job.dirty = WITHHELD
    is_tied = bool(job.extra.depends_on or job.extra.children_ids)
    waits = is_tied and dependencies.waits_for_commit(engine, job.extra.depends_on)
    # What ends with this admission leaves memory now and comes back if the commit fails.
    ended = [(gone, remember(gone)) for gone in (old, replaced) if gone is not None]
    for gone, _ in ended:
        _retire(engine, gone)
        if hidden is None:
            engine.storage.removed(gone)
    had_until = None
    if key is not None:
        if robbed is not None:
            had_until = keys.lose(robbed)
            if hidden is None:
                engine.storage.rewritten(robbed)
        ttl = (options.deduplication or {}).get("ttl")
        keys.take(queue, job, key, now + int(ttl) if ttl else None)
    if custom_id is not None and custom_id in engine.graph.proofs:
        is_referred_to = custom_id in engine.graph.consumers
        proof = proofs.drop(engine, custom_id)
        waits = waits or is_referred_to or linked_parent(own) is not None
        if options.durable or ended or waits or is_together or hidden is not None:
            engine.storage.sync(_reprove, (engine, custom_id, proof))
        if is_referred_to:
            dependencies.outlive(engine, custom_id)
    engine.index.put(job)
    if is_tied:
        dependencies.tie(engine, job, batch)
        if job.extra.flow is not None and job.extra.flow.missing:
            dependencies.begin_parked(job, now)
    if hidden is not None:
        job.place = ADMITTED
        queue.admitted[job.id] = job
        hidden.append((job, ended, robbed, had_until, now))
        return job.id
    engine.storage.added(job)
    parent_id = linked_parent(own)
    if parent_id is not None:
        parent = engine.index.get(parent_id)
        assert parent is not None
        link(engine, parent, job.id, now)
        waits = True
    if options.durable or ended or waits or is_together:
        job.place = ADMITTED
        queue.admitted[job.id] = job
        args = (engine, job, ended, robbed, had_until, now)
        engine.storage.sync(withdraw, args, publish, durable=bool(options.durable))
    else:
        enter(engine, job, now)
    return job.id


def new_job(engine: "Engine", queue: Queue, entry: Entry, custom_id: str | None, now: int) -> Job:
    """Make a job with options, and number it; nobody knows of it yet."""
    name, data, options, own = entry
    assert own is not None
    stamp = own.get("timestamp")
    created_at = now if stamp is None else int(stamp)
    run_at = created_at + int(own.get("delay") or 0)
    seq = engine.seq = engine.seq + 1
    priority = int(own.get("priority") or 0)
    if options.repeat is not None:
        options = engine.options_with(options, "repeat", repeats.normalised(options.repeat))
    job_id = custom_id or engine.ids.new(now)
    job = Job(job_id, seq, queue, name, data, options, priority, created_at, run_at, QUEUED)
    if custom_id:
        job.own_extra().is_custom_id = True
    if abs(created_at - now) > STAMP_SLACK_MS:  # the first line tells of the admission
        job.own_extra().timeline = [[state_of(job, now), now, None, None]]
    if own.get("groupId"):
        job.own_extra().group_id = own["groupId"]
    parent_id, children_ids = own.get("parentId"), own.get("childrenIds")
    if parent_id:
        job.own_extra().parent_id = parent_id
    if children_ids:
        job.own_extra().children_ids = dict.fromkeys(children_ids)
    if own.get("dependsOn"):
        job.own_extra().depends_on = dict.fromkeys(own["dependsOn"])
    return job


def _note_duplicate(
    engine: "Engine",
    owner: Job,
    key: str,
    until: int | None,
    options: JobOptions,
    is_undone: bool,
    now: int,
) -> None:
    """Tell that a live job has answered for a newcomer of its key, or see to its extension's undo.

    Args:
        until: When the owner's key would have ended.
        is_undone: The newcomer comes with others, all or none.
    """
    strategy = keys.strategy(options)
    if strategy == "extend" and is_undone:
        engine.storage.sync(keys.unextend, (engine, owner, key, until))
    elif strategy == "reject":
        told = (engine, "duplicated", owner.queue.name, owner.id, now)
        if owner.place == ADMITTED:
            # Its own admission is told first, if it comes to it.
            engine.storage.sync(None, told, emit)
        elif is_undone:
            announce(*told)
        else:
            emit(*told)


def _retire(engine: "Engine", job: Job) -> None:
    """Take an ended generation out of memory, for its successor."""
    if job.id in engine.graph.consumers:
        dependencies.outlive(engine, job.id)
    if job.extra.flow is not None:
        dependencies.untie(engine, job)
    take_out(engine, job)
    keys.release(job)
    engine.index.drop(job)
    stop_ttl(engine, job)
    job.place = GONE


def _reprove(engine: "Engine", job_id: str, proof: proofs.Proof) -> None:
    """Undo the dropping of a proof whose successor could not be committed."""
    proofs.add(engine, job_id, proof, job_id in engine.graph.consumers)


def _twin(engine: "Engine", owner: Job, options: JobOptions) -> str:
    """Answer for a newcomer with the live job that holds its id or key."""
    if owner.place == ADMITTED or options.durable:
        engine.storage.sync(durable=bool(options.durable))
    return owner.id


def _admit_later(engine: "Engine", queue: Queue, entry: Entry, now: int) -> str:
    """Admit a job without any option of its own that becomes visible after its commit."""
    hidden: list[Hidden] = []
    job_id = hide_plain(engine, queue, entry, hidden, now)
    engine.storage.added(hidden[0][0])
    engine.storage.sync(withdraw, (engine, *hidden[0]), publish)
    return job_id


def hide_plain(engine: "Engine", queue: Queue, entry: Entry, hidden: list[Hidden], now: int) -> str:
    """Admit a job without any option of its own, invisible; return its id."""
    name, data, _, _ = entry
    seq = engine.seq = engine.seq + 1
    job = Job(engine.ids.new(now), seq, queue, name, data, DEFAULT_OPTIONS, 0, now, now, ADMITTED)
    engine.index.put(job)
    queue.admitted[job.id] = job
    hidden.append((job, (), None, None, now))
    return job.id
