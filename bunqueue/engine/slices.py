"""Operations on many jobs, done in slices between which others are served.

Such an operation is written as a *work*: a generator that goes through its jobs and, every few of
them, yields what they cost in microseconds (a rough constant of its own); its return value is the
answer. ``run`` takes it as far as one slice goes. A work that is through by then, as nearly all
are, was an ordinary operation: its answer is returned, undo and commit are as ever. Any other one
is answered with a ``Later``. It joins a ring, and each tick of the engine runs one slice of the
work whose turn it is, so that many works take no more of a tick than one.

What others see meanwhile. A yield is a door: behind it, everybody else may have come in. So a work
holds no lock when it yields, and looks again at a job that it chose before. Readers find the jobs
that it has dealt with as they are now, and the others as they were. What enters the queue after
the work has begun is not its business. A reader's work tells of each job as it was when that job
was looked at.

What is written meanwhile. The next slice waits for the commit of the one before, so a work fills no
backlog, and the file always holds a whole number of slices. If a commit fails, that slice is undone
as any operation is, and ``StorageFailed`` is raised in the work, where it yielded; what was
committed before stays. A broker that dies leaves the same: some jobs done, the others untouched,
nobody told that it was through.
"""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bunqueue.engine.later import Later
from bunqueue.engine.ports import NO_WAIT, Committed
from bunqueue.errors import Refused, StorageFailed
from bunqueue.protocol.fields import INT64_MAX

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

log = logging.getLogger(__name__)

T = TypeVar("T")

# Yields the cost of what it did since it was last asked, in us; is sent the time (epoch ms).
Work = Generator[int, int, T]

# What one slice may cost. With the commit of its rows, and on a core that is shared, that stays far
# below the 50 ms that nobody is to wait for the hub.
SLICE_US: Final = 5_000
COMMITTED: Final = SLICE_US  # yield it to go on when all that was done until now is committed

SORTED_PER_STEP: Final = 1_000
SORTED_US: Final = 1  # an item of a list to be sorted, its key included
MERGED_US: Final = 2  # an item that comes out of many sorted lists


class _Running:
    """A work that is not through.

    Attributes:
        later: Whoever asked.
        failure: What is to be raised in the work when its turn comes.
    """

    __slots__ = ("work", "later", "failure")

    def __init__(self, work: Work[Any], later: Later) -> None:
        self.work = work
        self.later = later
        self.failure: StorageFailed | None = None


class Works:
    """The works that are not through.

    Attributes:
        ring: Those that wait for their turn; the others wait for a commit.
        unfinished: How many there are of both; the one that runs now is not among them.
    """

    __slots__ = ("ring", "unfinished")

    def __init__(self) -> None:
        self.ring: deque[_Running] = deque()
        self.unfinished = 0

    def enter(self, engine: "Engine", running: _Running, now: int) -> None:
        """Have the work go on when its turn comes."""
        self.ring.append(running)
        if engine.on_sooner is not None:
            engine.on_sooner(now)

    def turn(self, engine: "Engine", now: int) -> None:
        """Run one slice of whichever is next."""
        if self.ring:
            _advance(engine, self.ring.popleft(), now)


def run(engine: "Engine", work: Work[T], now: int, is_kept_on: bool = True) -> T | Later:
    """Do a work, as much of it as one slice holds.

    Args:
        work: Not begun.
        is_kept_on: It goes on to its end although nobody waits for its answer any more.

    Returns:
        Its answer, or a ``Later`` that resolves to it, or to the exception that ended it.
    """
    try:
        _slice(work, next(work), now)
    except StopIteration as end:
        answer: T = end.value
        return answer
    later = Later()
    if not is_kept_on:
        later.on_cancel = work.close
    _go_on(engine, _Running(work, later), now)
    return later


def _slice(work: Work[Any], spent_us: int, now: int) -> None:
    """Run one slice; ``spent_us`` of it are over.

    Raises:
        StopIteration: The work is through; holds its answer.
    """
    send = work.send
    while spent_us < SLICE_US:
        spent_us += send(now)


def _advance(engine: "Engine", running: _Running, now: int) -> None:
    storage = engine.storage
    storage.answer_waits = NO_WAIT
    engine.works.unfinished -= 1
    work, failure, running.failure = running.work, running.failure, None
    answer: object
    try:
        _slice(work, work.send(now) if failure is None else work.throw(failure), now)
    except StopIteration as end:
        answer = end.value
    except (Refused, StorageFailed) as error:
        answer = error
        storage.answer_waits = NO_WAIT
    except Exception as error:
        log.exception("work failed work=%r", work)
        answer = error
        storage.answer_waits = NO_WAIT
    else:
        _go_on(engine, running, now)
        storage.answer_waits = NO_WAIT
        return
    running.later.resolve(answer, storage.answer_waits)
    storage.answer_waits = NO_WAIT


def _go_on(engine: "Engine", running: _Running, now: int) -> None:
    """See to it that the next slice comes, after the commit of this one if it changed anything."""
    engine.works.unfinished += 1
    if engine.storage.answer_waits:
        engine.storage.follow(partial(_note_dropped, running.later))
        engine.storage.sync(_not_committed, (engine, running, now), _committed)
    else:
        engine.works.enter(engine, running, now)


def _committed(engine: "Engine", running: _Running, now: int) -> None:
    engine.works.enter(engine, running, engine.time_after(now))


def _note_dropped(later: Later, committed: Committed) -> None:
    if not isinstance(committed, bool):
        later.dropped |= committed


def _not_committed(engine: "Engine", running: _Running, now: int) -> None:
    running.failure = StorageFailed("a part of the work could not be written")
    _committed(engine, running, now)


def parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of ``size``, the last maybe shorter."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part


def weighed(
    items: Iterable[T], size: int, weight: Callable[[T], int] | None
) -> Iterator[tuple[list[T], int]]:
    """Yield the items in lists that weigh ``size``, or a bit more, and with each what it weighs.

    Args:
        weight: Of an item; None if each weighs 1.
    """
    if weight is None:
        for part in parts(items, size):
            yield part, len(part)
        return
    part = []
    total = 0
    for item in items:
        part.append(item)
        total += weight(item)
        if total >= size:
            yield part, total
            part, total = [], 0
    if part:
        yield part, total


def consumed(items: list[T]) -> Iterator[T]:
    """Yield the items of a list and let go of each: freeing many jobs at the end takes long."""
    items.reverse()
    while items:
        yield items.pop()


def in_order(
    items: Iterable[T], key: Callable[[T], Any], most: int | None, is_reversed: bool = False
) -> Work[Iterator[T]]:
    """Sort any number of items.

    Args:
        most: Only the first so many are wanted; None is all of them.

    Returns:
        An iterator over them in order; an item costs ``MERGED_US`` there.
    """
    runs = []
    for part in parts(items, SORTED_PER_STEP):
        part.sort(key=key, reverse=is_reversed)
        if most is not None:
            del part[most:]
        runs.append(part)
        yield SORTED_PER_STEP * SORTED_US
    merged = runs[0] if len(runs) == 1 else heapq.merge(*runs, key=key, reverse=is_reversed)
    return islice(merged, None if most is None else min(most, INT64_MAX))
