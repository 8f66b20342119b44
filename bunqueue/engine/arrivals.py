"""Jobs on their way in, and the pushes that are put off until they are there.

A large batch or a flow takes its ids and keys long before it is committed. A push that is about one
of these jobs, be it a twin or one that depends on it, is not answered on the strength of a commit
that may fail: it waits until all of them have been noted, and is then done as if it came only now,
so that both share a commit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bunqueue.engine.entries import named
from bunqueue.engine.job import Job
from bunqueue.engine.later import Later
from bunqueue.engine.ports import NO_WAIT
from bunqueue.errors import Refused, StorageFailed

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine


class Arrival:
    """Jobs on their way in: their ids and keys are theirs already, their commit is still to come.

    Attributes:
        ids: Custom ids.
        keys: (queue name, dedup key).
        jobs: Returns those of them that are admitted so far.
        waiting: Pushes that are put off until they are in: answers, functions and arguments.
    """

    __slots__ = ("ids", "keys", "jobs", "waiting")

    def __init__(
        self,
        ids: frozenset[str],
        keys: frozenset[tuple[str, str]],
        jobs: Callable[[], Iterable[Job]],
    ) -> None:
        self.ids = ids
        self.keys = keys
        self.jobs = jobs
        self.waiting: list[tuple[Later, Callable[..., Any], tuple[Any, ...]]] = []

    def concerns(self, ids: Set[str], keys: Set[tuple[str, str]]) -> bool:
        """Say whether a push that has or names these is about such a job."""
        return not ids.isdisjoint(self.ids) or not keys.isdisjoint(self.keys)


@contextmanager
def arriving(
    engine: "Engine",
    ids: Iterable[str],
    keys: Iterable[tuple[str, str]],
    jobs: Callable[[], Iterable[Job]],
) -> Iterator[None]:
    """Put pushes off that are about jobs on their way in, until all of these have been noted.

    Such a job is not to be relied on before: the commit may fail. After that, they share it.
    """
    arrival = Arrival(frozenset(ids), frozenset(keys), jobs)
    engine.arriving.append(arrival)
    try:
        yield
    except GeneratorExit:  # the engine was let go, and the work with it
        arrival.waiting.clear()
        raise
    finally:
        engine.arriving.remove(arrival)
        waits = engine.storage.answer_waits
        for waiting in arrival.waiting:
            _push_now(engine, *waiting)
        engine.storage.answer_waits = waits


def after_arrival(
    engine: "Engine",
    owns: Iterable[Mapping[str, Any]],
    action: Callable[..., Any],
    queue_name: str,
    *args: Any,
) -> Later | None:
    """Put a push off until the jobs are in that it is about; None if there are none."""
    ids, keys = named(queue_name, owns)
    for arrival in engine.arriving:
        if arrival.concerns(ids, keys):
            later = Later()
            arrival.waiting.append((later, action, (queue_name, *args)))
            return later
    return None


def _push_now(
    engine: "Engine", later: Later, action: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Do a push that was put off."""
    engine.storage.answer_waits = NO_WAIT
    try:
        answer = action(engine, *args)
    except (Refused, StorageFailed) as error:
        answer = error
    if isinstance(answer, Later):  # it is about others that arrive too
        answer.then(later.resolve)
    else:
        later.resolve(answer, engine.storage.answer_waits)
