"""How many jobs of a queue have completed and failed, in all and by the minute (engine.md 9).

Counting costs an outcome one comparison: the queue's running totals are there anyway, and only the
first outcome of a minute, and the first after a batch was cut, do more (``recount``). Then what was
counted so far goes to the minute that it belongs to, and the queue is noted for the next batch.
Just before a batch is cut (``Storage.before_cut``), every noted queue writes one row, so that an
outcome and its count are committed together. A minute that is over is one more row.

The figures outlive the queue's jobs, its name and a restart, but not ``Obliterate``.
"""

from typing import TYPE_CHECKING, Any, Final

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

COMPLETED: Final = 0
FAILED: Final = 1
TYPES: Final = {"completed": COMPLETED, "failed": FAILED}

TOTALS: Final = "metrics_total"
MINUTES: Final = "metrics_minute"
_BETWEEN: Final = "|"  # of queue name and minute in a key; no queue name has one


class QueueMetrics:
    """The figures of one queue.

    Attributes:
        totals: Completed and failed, as far as they have been put into ``minutes``.
        at: Epoch ms of the newest of each, 0 for none.
        minutes: minute (of the epoch) -> [completed, failed]; none for minutes without any.
        minute: The one that is being counted.
    """

    __slots__ = ("totals", "at", "minutes", "minute")

    def __init__(self) -> None:
        self.totals = [0, 0]
        self.at = [0, 0]
        self.minutes: dict[int, list[int]] = {}
        self.minute = 0

    def fold(self, engine: "Engine", queue: "Queue") -> None:
        """Put what the queue has counted since the last time into the present minute."""
        totals = self.totals
        self.at[COMPLETED] = max(self.at[COMPLETED], queue.completed_at)
        self.at[FAILED] = max(self.at[FAILED], queue.failed_at)
        for kind, total in enumerate((queue.completed_total, queue.failed_total)):
            more = total - totals[kind]
            if more:
                totals[kind] = total
                counts = self.minutes.get(self.minute)
                if counts is None:
                    counts = self.minutes[self.minute] = [0, 0]
                    engine.metric_minutes += 1
                counts[kind] = max(0, counts[kind] + more)


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
    metrics.fold(engine, queue)
    if minute != metrics.minute:
        _store_minute(engine, queue.name, metrics, metrics.minute)
        metrics.minute = minute
        _trim(engine, queue.name, metrics)
    queue.recount_at = (minute + 1) * MINUTE_MS
    engine.recounted[queue.name] = None


def write(engine: "Engine") -> None:
    """Write the totals of every queue that was noted since the last batch."""
    if not engine.recounted:
        return
    noted, engine.recounted = engine.recounted, {}
    for name in noted:
        metrics = engine.metrics.get(name)
        if metrics is None:
            continue
        queue = engine.queues.get(name)
        if queue is not None:
            metrics.fold(engine, queue)
            queue.recount_at = 0
        _store_totals(engine, name, metrics)


def _store_totals(engine: "Engine", name: str, metrics: QueueMetrics) -> None:
    counts = metrics.minutes.get(metrics.minute, (0, 0))
    engine.storage.put(TOTALS, name, (*metrics.totals, *metrics.at, metrics.minute, *counts))


def _store_minute(engine: "Engine", name: str, metrics: QueueMetrics, minute: int) -> None:
    counts = metrics.minutes.get(minute)
    if counts is not None:
        engine.storage.put(MINUTES, minute_key(name, minute), tuple(counts))


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
    engine.recounted.pop(name, None)
    metrics = engine.metrics.pop(name, None)
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
    engine.recounted[name] = None
    _store_totals(engine, name, metrics)
    for minute in metrics.minutes:
        if minute != metrics.minute:
            _store_minute(engine, name, metrics, minute)


def settle(engine: "Engine", queue: "Queue") -> None:
    """Take over what a queue has counted whose name is about to go."""
    metrics = engine.metrics.get(queue.name)
    if metrics is not None:
        metrics.fold(engine, queue)


def resume(engine: "Engine", queue: "Queue") -> None:
    """Let a queue that is made now count on from what there is."""
    metrics = engine.metrics.get(queue.name)
    if metrics is not None:
        queue.completed_total, queue.failed_total = metrics.totals


def restore(engine: "Engine", tables: dict[str, dict[str, tuple[Any, ...]]]) -> None:
    """Read the figures back; before any queue is made."""
    for name, values in tables.get(TOTALS, {}).items():
        metrics = engine.metrics[name] = QueueMetrics()
        metrics.totals[:] = values[:2]
        metrics.at[:] = values[2:4]
        metrics.minute = values[4]
    for key, values in sorted(tables.get(MINUTES, {}).items(), key=_minute_of):
        name, _, minute = key.partition(_BETWEEN)
        of_queue = engine.metrics.get(name)
        if of_queue is not None:
            of_queue.minutes[int(minute)] = list(values)
    for name, values in tables.get(TOTALS, {}).items():
        if any(values[5:7]):
            engine.metrics[name].minutes[values[4]] = list(values[5:7])
    engine.metric_minutes = sum(len(metrics.minutes) for metrics in engine.metrics.values())


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
        metrics.fold(engine, queue)
    which = TYPES[kind]
    at = metrics.at[which]
    meta = {"count": metrics.totals[which], "prevTS": float(at) if at else 0, "prevCount": 0}
    minutes = [minute for minute, counts in metrics.minutes.items() if counts[which]]
    if not minutes:
        return {"meta": meta, "data": [], "count": 0}
    newest = max(minutes)
    meta["prevCount"] = metrics.minutes[newest][which]
    points = min(newest - min(minutes) + 1, WINDOW_MINUTES)
    last = points - 1 if end < 0 else min(end, points - 1)
    nothing = (0, 0)
    data = [metrics.minutes.get(newest - point, nothing)[which] for point in range(start, last + 1)]
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
