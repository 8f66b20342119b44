"""The order of locks, and the lock that checks it.

Take them in this order, one ``with`` inside the other; several of one rank only through
``in_order()``. No lock is re-entrant, and none is held across a handler, a webhook or a socket.
Engine code can switch greenlets at one spot only, where it asks for a lock. Active jobs live in
their queue's shard, so that PUSH, PULL and ACK need a single one.

What cannot switch need not take a lock that is free: nobody comes in before it is through. It must
only wait for one that is held, and that is how single pushes, pulls and acknowledgements go about
it (``if lock.locked(): wait_for(lock)``): 0.1 us each, where taking and releasing costs 0.5 among
the rest of a command.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from typing import Any, Protocol


class Rank(IntEnum):
    """Ranks in the order in which locks are taken."""

    JOB_INDEX = 1
    COMPLETED = 2
    SHARD = 3  # by ascending shard number
    ACTIVE = 4  # by ascending shard number


class Lock(Protocol):
    """What excludes others from a part of the engine."""

    def __enter__(self) -> Any:
        """Take it; waits while another holds it."""

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> Any:
        """Release it."""

    def locked(self) -> bool:
        """Say whether somebody holds it."""


LockFactory = Callable[[Rank, int], Lock]


class LockOrderError(AssertionError):
    """A lock was taken out of the documented order."""


def wait_for(lock: Lock) -> None:
    """Wait until nobody holds the lock."""
    with lock:
        pass


class _Raw(Protocol):
    def acquire(self) -> Any: ...

    def release(self) -> Any: ...

    def locked(self) -> bool: ...


class CheckedLock:
    """A lock that refuses to be taken out of order; the suite builds every lock as one."""

    def __init__(self, rank: Rank, number: int, inner: _Raw, who: Callable[[], object]) -> None:
        """Args: inner: the real lock; who: names the running greenlet or thread."""
        self.order = (rank, number)
        self._inner = inner
        self._who = who

    def __enter__(self) -> "CheckedLock":
        held = self._check()
        self._inner.acquire()
        held.append(self.order)
        return self

    def locked(self) -> bool:
        """Say whether it is held; who asks could take it now."""
        self._check()
        return self._inner.locked()

    def _check(self) -> list[tuple[Rank, int]]:
        held = _held.setdefault(id(self._who()), [])
        if held and held[-1] >= self.order:
            raise LockOrderError(f"took {self.order} while holding {held[-1]}")
        return held

    def __exit__(self, *error: object) -> None:
        self._inner.release()
        _held[id(self._who())].remove(self.order)


_held: dict[int, list[tuple[Rank, int]]] = {}


class NoLock:
    """A lock for an engine whose caller already excludes everyone else.

    So does the gate of an embedded broker.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Go on."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Go on."""

    def locked(self) -> bool:
        """Say that nobody holds it."""
        return False


def no_lock(rank: Rank, number: int) -> Lock:  # noqa: ARG001  # the factory's signature
    """Build a lock that excludes nobody."""
    return NoLock()


class _Numbered(Protocol):
    number: int
    lock: Lock


@contextmanager
def in_order(shards: Iterable[_Numbered]) -> Iterator[None]:
    """Hold the locks of several shards, taken by ascending number."""
    with ExitStack() as stack:
        for shard in sorted({shard.number: shard for shard in shards}.values(), key=_number):
            stack.enter_context(shard.lock)
        yield


def _number(shard: _Numbered) -> int:
    return shard.number
