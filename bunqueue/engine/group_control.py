"""Operations on one group of a queue: limits, pause, counts (engine.md 2.2, wire.md 2.9)."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bunqueue.engine.claiming import look_soon
from bunqueue.engine.groups import Group, Rate
from bunqueue.engine.queue import Queue

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

TABLE = "groups"

Settings = tuple[Rate | None, int | None, bool]  # rate, concurrency, paused


def row_key(queue_name: str, group_id: str) -> str:
    """Return the key of a group's row; neither part can hold the separator."""
    return f"{queue_name}\0{group_id}"


def _find(engine: "Engine", queue_name: str, group_id: str) -> Group | None:
    queue = engine.queues.get(queue_name)
    if queue is None or queue.run_set.groups is None:
        return None
    return queue.run_set.groups.by_id.get(group_id)


def _settings(group: Group) -> Settings:
    return group.rate, group.concurrency, group.is_paused


def _changed(engine: "Engine", queue: Queue, group: Group, before: Settings, now: int) -> None:
    """Write the group's settings, answer after the commit, serve who may go now."""
    _store(engine, queue, group)
    engine.storage.sync(_unchange, (engine, queue, group.id, before))
    queue.used_at = now
    queue.run_set.wake_group(group.id)
    if queue.waiters:
        engine.serve(queue, now)


def _unchange(engine: "Engine", queue: Queue, group_id: str, before: Settings) -> None:
    """Put back settings that could not be written."""
    if engine.queues.get(queue.name) is not queue:
        return
    group = queue.run_set.open_group(group_id)
    rate, group.concurrency, group.is_paused = before
    if rate != group.rate:
        group.set_rate(rate)
    _store(engine, queue, group)
    queue.run_set.wake_group(group_id)
    look_soon(engine, queue)


def _store(engine: "Engine", queue: Queue, group: Group) -> None:
    """Write the group's settings; one that has none left loses its row."""
    key = row_key(queue.name, group.id)
    if group.has_settings:
        rate = group.rate
        engine.storage.put(
            TABLE,
            key,
            (
                queue.name,
                group.id,
                None if rate is None else rate.max,
                None if rate is None else rate.duration_ms,
                group.concurrency,
                int(group.is_paused),
            ),
        )
    else:
        engine.storage.delete(TABLE, key)


def store_rows(engine: "Engine", queue: Queue) -> None:
    """Write the settings of every group of the queue again."""
    for group in _all(queue):
        if group.has_settings:
            _store(engine, queue, group)


def _all(queue: Queue) -> Iterable[Group]:
    groups = queue.run_set.groups
    return () if groups is None else groups.by_id.values()


def restore_group(engine: "Engine", values: tuple[Any, ...]) -> None:
    """Set a group up from its row."""
    queue_name, group_id, limit, duration_ms, concurrency, paused = values[:6]
    group = engine.open_queue(queue_name).run_set.open_group(group_id)
    group.rate = None if limit is None else Rate(limit, duration_ms)
    group.concurrency = concurrency
    group.is_paused = bool(paused)


def drop_rows(engine: "Engine", queue: Queue) -> None:
    """Forget the stored settings of every group of the queue."""
    for group in _all(queue):
        if group.has_settings:
            engine.storage.delete(TABLE, row_key(queue.name, group.id))


def set_group_rate_limit(
    engine: "Engine", queue_name: str, group_id: str, most: int, duration_ms: int, now: int
) -> None:
    """Store a rate that replaces the default of pullers that bring one."""
    queue = engine.open_queue(queue_name)
    with queue.shard.lock:
        group = queue.run_set.open_group(group_id)
        before = _settings(group)
        group.set_rate(Rate(most, duration_ms))
        _changed(engine, queue, group, before, now)


def group_rate_limit(engine: "Engine", queue_name: str, group_id: str) -> Rate | None:
    """Return the stored rate, or None."""
    group = _find(engine, queue_name, group_id)
    return None if group is None else group.rate


def remove_group_rate_limit(engine: "Engine", queue_name: str, group_id: str, now: int) -> int:
    """Drop the stored rate; return 1 if there was one, else 0."""
    queue = engine.queues.get(queue_name)
    group = _find(engine, queue_name, group_id)
    if queue is None or group is None or group.rate is None:
        return 0
    with queue.shard.lock:
        before = _settings(group)
        group.set_rate(None)
        _changed(engine, queue, group, before, now)
        return 1


def set_group_concurrency(
    engine: "Engine", queue_name: str, group_id: str, concurrency: int, now: int
) -> None:
    """Store a concurrency that replaces the default of pullers that bring one."""
    queue = engine.open_queue(queue_name)
    with queue.shard.lock:
        group = queue.run_set.open_group(group_id)
        before = _settings(group)
        group.concurrency = concurrency
        _changed(engine, queue, group, before, now)


def group_concurrency(engine: "Engine", queue_name: str, group_id: str) -> int | None:
    """Return the stored concurrency, or None."""
    group = _find(engine, queue_name, group_id)
    return None if group is None else group.concurrency


def remove_group_concurrency(engine: "Engine", queue_name: str, group_id: str, now: int) -> int:
    """Drop the stored concurrency; return 1 if there was one, else 0."""
    queue = engine.queues.get(queue_name)
    group = _find(engine, queue_name, group_id)
    if queue is None or group is None or group.concurrency is None:
        return 0
    with queue.shard.lock:
        before = _settings(group)
        group.concurrency = None
        _changed(engine, queue, group, before, now)
        return 1


def rest_group(
    engine: "Engine", queue_name: str, group_id: str, duration_ms: int, now: int
) -> None:
    """Let nothing of the group go for a while; in memory only."""
    queue = engine.open_queue(queue_name)
    with queue.shard.lock:
        queue.run_set.open_group(group_id).rests_until = now + duration_ms
        queue.used_at = now
        queue.run_set.wake_group(group_id)  # it may have been set aside for longer
        if queue.waiters:
            engine.serve(queue, now)


def group_rest_ms(engine: "Engine", queue_name: str, group_id: str, now: int) -> int:
    """Return what is left of the group's manual rest, else of its window, in ms; -2 for none.

    A window is told from its first delivery on, as 2.9.5 does, whether it is used up or not.
    """
    group = _find(engine, queue_name, group_id)
    rest_ms = None if group is None else group.rest_ms(now)
    return -2 if rest_ms is None else rest_ms


def pause_group(engine: "Engine", queue_name: str, group_id: str, now: int) -> bool:
    """Let nothing of the group go any more; False if it was paused already."""
    return _set_paused(engine, queue_name, group_id, True, now)


def resume_group(engine: "Engine", queue_name: str, group_id: str, now: int) -> bool:
    """Let the group go again; False if it was not paused."""
    return _set_paused(engine, queue_name, group_id, False, now)


def _set_paused(
    engine: "Engine", queue_name: str, group_id: str, is_paused: bool, now: int
) -> bool:
    if not is_paused and _find(engine, queue_name, group_id) is None:
        return False
    queue = engine.open_queue(queue_name)
    with queue.shard.lock:
        group = queue.run_set.open_group(group_id)
        if group.is_paused == is_paused:
            return False
        before = _settings(group)
        group.is_paused = is_paused
        _changed(engine, queue, group, before, now)
        return True


def is_group_paused(engine: "Engine", queue_name: str, group_id: str) -> bool:
    """Say whether the group is paused."""
    group = _find(engine, queue_name, group_id)
    return group is not None and group.is_paused


def group_count(engine: "Engine", queue_name: str, group_id: str) -> int:
    """Return how many jobs of the group are queued, due or not."""
    group = _find(engine, queue_name, group_id)
    return 0 if group is None else group.pending


def group_active_count(engine: "Engine", queue_name: str, group_id: str) -> int:
    """Return how many jobs of the group are running."""
    group = _find(engine, queue_name, group_id)
    return 0 if group is None else group.active


def groups_count(engine: "Engine", queue_name: str) -> int:
    """Return how many jobs of all groups are queued."""
    queue = engine.queues.get(queue_name)
    if queue is None or queue.run_set.groups is None:
        return 0
    return queue.run_set.groups.pending
