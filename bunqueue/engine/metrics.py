"""How many jobs of a queue have completed and failed, in all and by the minute (engine.md 9).

Counting costs an outcome one comparison: the queue's running totals are there anyway, and only the
first outcome of a minute, and the first after a batch was cut, do more (``recount``). Then the
queue is noted for the next batch, and a minute that is over becomes a row. Just before a batch is
cut (``Storage.before_cut``), the figures of all noted queues are written in one row of a log
(``metrics_log.py``), so that an outcome and its count are committed together.

The figures outlive the queue's jobs, its name and a restart, but not ``Obliterate``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from bunqueue.engine.metrics_log import Entry

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine
    from bunqueue.engine.queue import Queue

MINUTE_MS: Final = 60_000
WINDOW_MINUTES: Final = 20_160  # two weeks, engine.md 9
# Minutes that are kept of all queues together, 200 bytes each: 25 queues that work day and night
# have two weeks; with more of them, each has its part of it. At most twice as many: a queue that
# nothing happens in keeps what it has.
MINUTES_MAX: Final = 500_000
QUEUES_MAX: Final = 50_000  # per-queue counters that are kept, engine.md 12
FORGET_LOOKS_MAX: Final = 100  # names looked at, at a time, for those that can go
JOURNAL_MAX: Final = 10_000  # events of a queue that count as stored, engine.md 9

TYPES: Final = ("completed", "failed")

TOTALS: Final = "metrics_total"
MINUTES: Final = "metrics_minute"
_BETWEEN: Final = "|"  # of queue name and minute in a key; no queue name has one


class QueueMetrics:
    """The figures of one queue.

    Attributes:
        completed, failed: The queue's running totals, as far as the minute has them.
        completed_at, failed_at: Epoch ms of the newest of each, 0 for none.
        minute: The one that is being counted, of the epoch.
        minute_completed, minute_failed: What it has so far.
        minutes: Minute -> (completed, failed) of the others; none for those without any.
    """

    __slots__ = (
        "completed",
        "failed",
        "completed_at",
        "failed_at",
        "minute",
        "minute_completed",
        "minute_failed",
        "minutes",
    )

    def __init__(self, row: Sequence[int] = (0,) * 7) -> None:
        (
            self.completed,
            self.failed,
            self.completed_at,
            self.failed_at,
            self.minute,
            self.minute_completed,
            self.minute_failed,
        ) = row
        self.minutes: dict[int, tuple[int, int]] = {}

    def row(self) -> tuple[int, ...]:
        """Return what ``QueueMetrics(row)`` has again, but for the minutes."""
        return (
            self.completed,
            self.failed,
            self.completed_at,
            self.failed_at,
            self.minute,
            self.minute_completed,
            self.minute_failed,
        )

    def fold(self, queue: "Queue") -> None:
        """Put what the queue has counted since the last time into the present minute."""
        more = queue.completed_total - self.completed
        if more:
            self.completed += more
            self.completed_at = max(self.completed_at, queue.completed_at)
            self.minute_completed = max(0, self.minute_completed + more)
        more = queue.failed_total - self.failed
        if more:
            self.failed += more
            self.failed_at = max(self.failed_at, queue.failed_at)
            self.minute_failed = max(0, self.minute_failed + more)

    def counted(self, which: int) -> dict[int, int]:
        """Return minute -> count of one type, 0 for completed, 1 for failed."""
        found = {minute: counts[which] for minute, counts in self.minutes.items() if counts[which]}
        if present := (self.minute_completed, self.minute_failed)[which]:
            found[self.minute] = present
        return found


def minute_key(name: str, minute: int) -> str:
    """Return the key of the row of one minute of a queue."""
    return f"{name}{_BETWEEN}{minute}"


def count_failure(engine: "Engine", queue: "Queue", now: int) -> None:
    """Count a job that has failed for good."""
    if now >= queue.recount_at:
        recount(engine, queue, now)
    queue.failed_total += 1
    queue.failed_at = now
    engine.totals.failed += 1


def recount(engine: "Engine", queue: "Queue", now: int) -> None:
    """Come before the next count: settle what the past minute had, and note the queue."""
    minute = now // MINUTE_MS
    metrics = engine.metrics.get(queue.name)
    if metrics is None:
        metrics = engine.metrics[queue.name] = QueueMetrics()
        metrics.minute = minute
        _forget_excess(engine)
    elif minute != metrics.minute:
        metrics.fold(queue)
        _turn(engine, queue.name, metrics, minute)
    queue.recount_at = (minute + 1) * MINUTE_MS
    engine.recounted[queue.name] = queue


def _turn(engine: "Engine", name: str, metrics: QueueMetrics, minute: int) -> None:
    """Begin another minute, which the queue has counted in before if the clock was set back."""
    if metrics.minute_completed or metrics.minute_failed:
        metrics.minutes[metrics.minute] = (metrics.minute_completed, metrics.minute_failed)
        engine.metric_minutes += 1
        _store_minute(engine, name, metrics, metrics.minute)
    metrics.minute = minute
    counts = metrics.minutes.pop(minute, None)
    if counts is not None:
        engine.metric_minutes -= 1
        engine.storage.delete(MINUTES, minute_key(name, minute))
    metrics.minute_completed, metrics.minute_failed = counts or (0, 0)
    _trim(engine, name, metrics)


def write(engine: "Engine") -> None:
    """Write the figures of every queue that was noted since the last batch."""
    if not engine.recounted:
        return
    noted, engine.recounted = engine.recounted, {}
    entries: list[Entry] = []
    for name, queue in noted.items():
        metrics = engine.metrics.get(name)
        if metrics is None:
            entries.append((name,))
            continue
        if queue is not None:
            metrics.fold(queue)
            queue.recount_at = 0
        entries.append((name, *metrics.row()))
    for name in engine.metrics_log.add(engine.storage, entries):
        _store_totals(engine, name)


def _store_totals(engine: "Engine", name: str) -> None:
    metrics = engine.metrics.get(name)
    if metrics is not None:
        engine.storage.put(TOTALS, name, metrics.row())


def _store_minute(engine: "Engine", name: str, metrics: QueueMetrics, minute: int) -> None:
    engine.storage.put(MINUTES, minute_key(name, minute), metrics.minutes[minute])


def _trim(engine: "Engine", name: str, metrics: QueueMetrics) -> None:
    """Drop the minutes that have left the window, and the oldest if there are too many in all."""
    oldest = metrics.minute - WINDOW_MINUTES + 1
    excess = 0
    if engine.metric_minutes > MINUTES_MAX:
        excess = len(metrics.minutes) - MINUTES_MAX // len(engine.metrics)
    old: list[int] = []
    for minute in metrics.minutes:  # in order, but for steps of the clock
        if minute >= oldest and len(old) >= excess:
            break
        old.append(minute)
    for minute in old:
        del metrics.minutes[minute]
        engine.metric_minutes -= 1
        engine.storage.delete(MINUTES, minute_key(name, minute))


def _forget_excess(engine: "Engine") -> None:
    """Drop the oldest figures whose queue is not there any more, if there are too many.

    Those of queues that are there go to the end, so that they are not looked at again and again:
    a hundred old queues would else keep the figures of all later ones for ever.
    """
    looks = 0
    while len(engine.metrics) > QUEUES_MAX and looks < FORGET_LOOKS_MAX:
        looks += 1
        name = next(iter(engine.metrics))
        if name in engine.queues:
            engine.metrics[name] = engine.metrics.pop(name)
        else:
            forget(engine, name)


def forget(engine: "Engine", name: str) -> QueueMetrics | None:
    """Drop the figures of a queue for good; return them for an undo."""
    metrics = engine.metrics.pop(name, None)
    if name in engine.metrics_log:
        engine.recounted[name] = None  # so that nobody reads them there
    else:
        engine.recounted.pop(name, None)
    if metrics is not None:
        engine.metric_minutes -= len(metrics.minutes)
        engine.storage.delete(TOTALS, name)
        for minute in metrics.minutes:
            engine.storage.delete(MINUTES, minute_key(name, minute))
    return metrics


def bring_back(engine: "Engine", name: str, metrics: QueueMetrics | None) -> None:
    """Undo ``forget``."""
    if metrics is None:
        return
    engine.metrics[name] = metrics
    engine.metric_minutes += len(metrics.minutes)
    engine.recounted[name] = engine.queues.get(name)
    for minute in metrics.minutes:
        _store_minute(engine, name, metrics, minute)


def settle(engine: "Engine", queue: "Queue") -> None:
    """Take over what a queue has counted whose name is about to go."""
    metrics = engine.metrics.get(queue.name)
    if metrics is not None:
        metrics.fold(queue)


def resume(engine: "Engine", queue: "Queue") -> None:
    """Let a queue that is made now count on from what there is."""
    metrics = engine.metrics.get(queue.name)
    if metrics is not None:
        queue.completed_total, queue.failed_total = metrics.completed, metrics.failed


def restore(engine: "Engine", tables: dict[str, dict[str, tuple[Any, ...]]]) -> None:
    """Read the figures back; before any queue is made."""
    newest = {**tables.get(TOTALS, {}), **engine.metrics_log.restore(tables)}
    for name, row in newest.items():
        if row:
            engine.metrics[name] = QueueMetrics(row)
    for key, values in sorted(tables.get(MINUTES, {}).items(), key=_minute_of):
        name, _, minute = key.partition(_BETWEEN)
        metrics = engine.metrics.get(name)
        if metrics is not None and int(minute) != metrics.minute:
            metrics.minutes[int(minute)] = values
            engine.metric_minutes += 1


def _minute_of(row: tuple[str, Any]) -> int:
    return int(row[0].partition(_BETWEEN)[2])


# -- reading --------------------------------------------------------------------------------------


def queue_metrics(
    engine: "Engine", queue_name: str, kind: str, start: int, end: int
) -> dict[str, Any]:
    """Return ``{meta, data, count}`` of wire.md 2.14.

    Args:
        kind: "completed" or "failed".
        start, end: Which points, the newest is 0; ``end`` inclusive, -1 is the last.
    """
    metrics = engine.metrics.get(queue_name)
    if metrics is None:
        return {"meta": {"count": 0, "prevTS": 0, "prevCount": 0}, "data": [], "count": 0}
    queue = engine.queues.get(queue_name)
    if queue is not None:
        metrics.fold(queue)
    which = TYPES.index(kind)
    at = (metrics.completed_at, metrics.failed_at)[which]
    total = (metrics.completed, metrics.failed)[which]
    meta = {"count": total, "prevTS": float(at) if at else 0, "prevCount": 0}
    counts = metrics.counted(which)
    if not counts:
        return {"meta": meta, "data": [], "count": 0}
    newest = max(counts)
    meta["prevCount"] = counts[newest]
    points = min(newest - min(counts) + 1, WINDOW_MINUTES)
    last = points - 1 if end < 0 else min(end, points - 1)
    data = [counts.get(newest - point, 0) for point in range(start, last + 1)]
    return {"meta": meta, "data": data, "count": points}


def trim_events(engine: "Engine", queue_name: str, length_max: int) -> int:
    """Shorten the queue's journal of events, of which only the length is kept.

    Returns:
        How many events were dropped.
    """
    queue = engine.queues.get(queue_name)
    if queue is None:
        return 0
    length = min(queue.events_total, JOURNAL_MAX)
    queue.events_total = min(length, length_max)
    return length - queue.events_total
