"""Schedulers: definitions by name that make a job whenever they are due (engine.md 7).

All of them stand in one heap by planned moment, and one timer of the engine waits for the first.
When a scheduler is due, the next planned moment is worked out once and the row with it is written;
the job is pushed when that has been committed. So a crash in between costs that one run, and no
crash makes two of it; if the commit fails, the run is due again a little later.

A planned moment may lie in the past for three reasons. A busy broker is late: it fires late, once,
and goes on along the grid. The broker was down, or its clock was set forward: each scheduler says
itself whether to make up for that once or to leave it (``skipMissedOnRestart``). A clock set back
puts planned moments too far ahead: they come forward, so that no more than one period is waited.
After a restart or a step of the clock each scheduler is looked at again when its turn comes, a
bounded number per tick, however many there are.
"""

import heapq
import logging
from typing import TYPE_CHECKING, Any, Final

from bunqueue.engine import keys, workers
from bunqueue.engine.cron import Cron, Timetable, from_row, to_row
from bunqueue.engine.events import announce, emit
from bunqueue.engine.timers import Timer
from bunqueue.errors import Refused, StorageFailed

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

log = logging.getLogger(__name__)

TABLE: Final = "crons"
FIRED_PER_TICK: Final = 50  # some ms of work; the rest follows a millisecond later
AGAIN_MS: Final = 1_000  # wait after a run that could not be written
OVERLAP_PART: Final = 0.8  # of an interval; a run this soon after the last one is left out
LATE_MS_MAX: Final = 60_000  # a run that a step of the clock passed over by less is only late
STALE_MAX: Final = 1_000  # entries of the heap that may be stale before it is built anew

RESTARTED: Final = "restarted"
CLOCK_SET: Final = "clock set"
ASKED_FOR: Final = ("cron:created", "cron:updated", "cron:deleted")


class Schedules:
    """All schedulers of a broker.

    Attributes:
        by_name: In order of definition.
        fired, skipped: Runs since the start.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Cron] = {}
        self.fired = 0
        self.skipped = 0
        self._heap: list[tuple[int, int, int, Cron]] = []
        self._number = 0
        self._timer: Timer | None = None

    @property
    def entries(self) -> int:
        """How many entries the timetable has, stale ones among them."""
        return len(self._heap)

    def enter(self, engine: "Engine", cron: Cron, at: int) -> None:
        """Have the scheduler looked at at ``at``, and at no other moment."""
        cron.stamp += 1
        self._number += 1
        if len(self._heap) > 2 * len(self.by_name) + STALE_MAX:
            self._heap = [entry for entry in self._heap if entry[2] == entry[3].stamp]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (at, self._number, cron.stamp, cron))
        self._arm(engine, at)

    def enter_all(self, engine: "Engine", at: int) -> None:
        """Have every scheduler looked at soon, in order of definition."""
        self._heap.clear()
        for cron in self.by_name.values():
            cron.stamp += 1
            self._number += 1
            self._heap.append((at, self._number, cron.stamp, cron))
        if self._timer is not None:
            engine.timers.cancel(self._timer)
            self._timer = None
        if self._heap:
            self._arm(engine, at)

    def _arm(self, engine: "Engine", at: int) -> None:
        timer = self._timer
        if timer is not None:
            if engine.timers.due_at(timer) <= at:
                return
            engine.timers.cancel(timer)
        self._timer = engine.timers.add(at, self._due, engine)

    def _due(self, engine: "Engine", _second: object, now: int) -> None:
        """Look at what is due, a bounded number of them."""
        self._timer = None
        heap = self._heap
        served: dict[str, bool] = {}
        left = FIRED_PER_TICK
        try:
            while heap and left and heap[0][0] <= now:
                _, _, stamp, cron = heapq.heappop(heap)
                if stamp == cron.stamp:
                    left -= 1
                    _look_at(engine, cron, served, now)
                heap = self._heap
        finally:
            if self._heap:
                self._arm(engine, max(self._heap[0][0], now + 1))


# -- when one is due ------------------------------------------------------------------------------


def _look_at(engine: "Engine", cron: Cron, served: dict[str, bool], now: int) -> None:
    if cron.doubt:
        _settle(engine, cron, now)
    if cron.next_run > now:
        engine.schedules.enter(engine, cron, cron.next_run)
    elif engine.storage.is_refusing:
        engine.schedules.enter(engine, cron, now + AGAIN_MS)
    elif cron.is_at_limit():
        drop(engine, cron, now)
    else:
        _fire(engine, cron, served, now)


def _fire(engine: "Engine", cron: Cron, served: dict[str, bool], now: int) -> None:
    planned_at = cron.next_run
    following = cron.timetable.following(planned_at, now)
    if following is None:  # the calendar ends
        drop(engine, cron, now)
        return
    reason = _why_not(engine, cron, served, now)
    cron.next_run = following
    engine.schedules.enter(engine, cron, following)
    if reason is not None:
        engine.schedules.skipped += 1
        store(engine, cron)
        if engine.listeners:
            tell(engine, "cron:skipped", cron, now, reason=reason)
        return
    before = planned_at, following, cron.fired_at
    cron.executions += 1
    cron.pending += 1
    cron.fired_at = now
    store(engine, cron)
    engine.storage.sync(_unfire, (engine, cron, before, now), _push)


def _why_not(engine: "Engine", cron: Cron, served: dict[str, bool], now: int) -> str | None:
    """Return why a run is left out, or None."""
    definition = cron.definition
    if definition.skip_if_no_worker:
        is_served = served.get(definition.queue)
        if is_served is None:
            is_served = served[definition.queue] = _is_served(engine, definition.queue, now)
        if not is_served:
            return "no-worker"
    every = 0 if cron.timetable.schedule is not None else cron.timetable.every
    if definition.prevent_overlap and cron.fired_at and now - cron.fired_at < OVERLAP_PART * every:
        return "overlap"
    key = definition.key
    queue = engine.queues.get(definition.queue)
    if key is None or keys.strategy(cron.options) != "reject":
        return None
    if cron.pending:
        return "overlap"
    if queue is None:
        return None
    with queue.shard.lock:
        owner = keys.owner_of(queue, key, now)
        if owner is None:
            return None
        if engine.listeners:
            emit(engine, "duplicated", queue.name, owner.id, now)
        return "overlap"


def _is_served(engine: "Engine", queue_name: str, now: int) -> bool:
    return any(
        queue_name in worker.queues and workers.is_fresh(engine, worker, now)
        for worker in engine.workers.values()
    )


def _push(engine: "Engine", cron: Cron, _before: tuple[int, int, int], now: int) -> None:
    """Make the job of a run that has been written."""
    definition = cron.definition
    now = engine.time_after(now)
    cron.pending -= 1
    engine.schedules.fired += 1
    waits = engine.storage.answer_waits
    try:
        engine.push(
            definition.queue, definition.job_name, definition.data, cron.options, cron.own, now
        )
    except (Refused, StorageFailed) as refusal:
        log.warning("scheduler could not make its job name=%s: %s", cron.name, refusal)
        if engine.listeners:
            tell(engine, "cron:missed", cron, now, error=str(refusal))
        return
    finally:
        engine.storage.answer_waits = waits  # nobody has asked for the job
    if engine.listeners:
        tell(engine, "cron:fired", cron, now)


def _unfire(engine: "Engine", cron: Cron, before: tuple[int, int, int], now: int) -> None:
    """Undo a run that could not be written: it is due again a little later."""
    planned_at, following, fired_at = before
    now = engine.time_after(now)
    cron.executions -= 1
    cron.pending -= 1
    cron.fired_at = fired_at if fired_at <= now else 0  # a clock that was set back knows of none
    if engine.schedules.by_name.get(cron.name) is not cron:
        return
    if cron.next_run == following:
        cron.next_run = planned_at
        engine.schedules.enter(engine, cron, now + AGAIN_MS)
    store(engine, cron)


# -- after a restart or a step of the clock -------------------------------------------------------


def restore(engine: "Engine", rows: dict[str, tuple[Any, ...]], now: int) -> None:
    """Set the schedulers up from their rows.

    Raises:
        StorageFailed: One of them cannot run; the text names it.
    """
    schedules = engine.schedules
    for name, row in rows.items():
        try:
            cron = from_row(name, row)
        except (Refused, TypeError, ValueError) as error:
            raise StorageFailed(
                f"the stored definition of cron {name!r} is invalid: {error};"
                f" correct or remove its row in the table {TABLE}"
            ) from error
        schedules.by_name[name] = cron
        if 0 <= cron.next_run - now <= LATE_MS_MAX:
            schedules.enter(engine, cron, cron.next_run)
        else:  # it was missed, or the clock may have been set back meanwhile
            cron.doubt = RESTARTED
            schedules.enter(engine, cron, now)


def clock_jumped(engine: "Engine", delta_ms: int, now: int) -> None:
    """Look at every scheduler again, after the wall clock was set to ``now``."""
    schedules = engine.schedules
    for cron in schedules.by_name.values():
        cron.doubt = CLOCK_SET
        cron.fired_at = cron.fired_at and cron.fired_at + delta_ms
    schedules.enter_all(engine, now)
    if schedules.by_name:
        log.warning(
            "wall clock jumped, schedulers are looked at again crons=%d delta_ms=%d",
            len(schedules.by_name),
            delta_ms,
        )


def _settle(engine: "Engine", cron: Cron, now: int) -> None:
    """Put a planned moment right that a stop or the clock has moved away from now."""
    doubt, cron.doubt = cron.doubt, ""
    planned_at = cron.next_run
    timetable = cron.timetable
    if planned_at <= now:
        leaves = cron.definition.skip_missed or cron.definition.skip_if_no_worker
        if doubt == CLOCK_SET:
            is_late = now - planned_at < LATE_MS_MAX
        else:  # it fell due after the start, before anybody looked
            is_late = planned_at > engine.started_at
        if not leaves or is_late:
            return  # one run makes up for all that were missed
        following = timetable.following(planned_at, now)
        log.info("missed runs were left out name=%s since_ms=%d", cron.name, now - planned_at)
    else:
        following = _sooner(timetable, planned_at, now)
    if following is not None and following != planned_at:
        cron.next_run = following
        store(engine, cron)


def _sooner(timetable: Timetable, planned_at: int, now: int) -> int | None:
    """Return the planned moment, or an earlier one if it is more than a period away.

    The moment that comes next on a clock set back a little may have had its run already.
    """
    first = timetable.first(now)
    if timetable.schedule is None:
        return min(planned_at, first)
    if first == planned_at:
        return planned_at
    second = timetable.following(first, first)
    return first if second is not None and planned_at > second else planned_at


# -- what is written and told of it ---------------------------------------------------------------


def drop(engine: "Engine", cron: Cron, now: int) -> None:
    """Remove a scheduler."""
    del engine.schedules.by_name[cron.name]
    cron.stamp += 1
    engine.storage.delete(TABLE, cron.name)
    if engine.listeners:
        tell(engine, "cron:deleted", cron, now)


def store(engine: "Engine", cron: Cron) -> None:
    """Write a scheduler's row."""
    engine.storage.put(TABLE, cron.name, to_row(cron))


def tell(engine: "Engine", kind: str, cron: Cron, now: int, **extra: Any) -> None:
    """Tell listeners, which exist, of a scheduler; fields that are None are left out."""
    given = {name: value for name, value in extra.items() if value is not None}
    # What somebody asked for is undone if it cannot be written; what the clock did stays done.
    say = announce if kind in ASKED_FOR else emit
    say(engine, kind, cron.definition.queue, "", now, name=cron.name, **given)
