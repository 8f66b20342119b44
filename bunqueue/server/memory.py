"""Giving memory back to the system, at moments when nobody waits for the hub.

Python frees what a million jobs or a large frame took, but the C library keeps it for the next
ones. Nobody needs it then: a broker that had frames of 64 MiB stayed at several times their size.

The C library looks at all it has free and holds its lock meanwhile, so that it would be no help to
do this in a thread: 0.1 ms per MiB that goes back, up to 1 in a virtual machine, and 0.5 us per
free piece between others that are used. After a million jobs of a KiB that is 0.1 s and more. So it
is done when no job has moved for as long as lies between two calls of ``tidy``: what is free serves
the next jobs of a busy broker anyway. Long pieces do not wait for that: from 16 MiB on they are
mapped by themselves and go back when they are freed.

The collector has its pauses too. Those for young objects are short (``main.GC_THRESHOLDS``); all of
memory is looked at here, where it takes some ms because jobs are few.
"""

import ctypes
import gc
import logging
from typing import Any, Final

from bunqueue.compiled import IS_COMPILED

log = logging.getLogger(__name__)

FREED_BYTES_MIN: Final = 1_048_576  # less is not worth it
# A piece of this size takes many ms to fill; below it, batches of rows for the disk would be mapped
# again and again, which made PUSHB dearer by an eighth.
MAPPED_BYTES_MIN: Final = 16_777_216
# Jobs beside which the collector looks at all of memory, and nobody else has a turn: 3 us for each;
# with the compiled core 1.7 for each that has an id of its own, a group or a parent.
LOOKED_AT_MAX: Final = 20_000 if IS_COMPILED else 5_000
# Looks at what is young until all of memory is looked at; a look moves some thousand objects on.
YOUNG_LOOKS_MIN: Final = 1_000

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def _libc() -> Any:
    try:
        libc = ctypes.CDLL("libc.so.6")
        return libc if libc.malloc_trim and libc.mallopt else None
    except (OSError, AttributeError):
        return None  # another C library; it does without


_c: Any = _libc()
_freed_bytes = 0
_moves = -1


def map_long_pieces() -> None:
    """Have long pieces of memory go back to the system when they are freed, always.

    The C library would keep ever longer ones: as long as the longest that it has seen freed.
    """
    if _c is not None:
        _c.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        _c.mallopt(_M_TRIM_THRESHOLD, 2 * MAPPED_BYTES_MIN)  # as the C library itself would


def is_quickly_collected(jobs: int) -> bool:
    """Say whether the collector can look at all of memory in some ms, beside so many jobs."""
    return jobs <= LOOKED_AT_MAX


def give_back(jobs: int) -> None:
    """Collect what is left in cycles and free lists, and hand free pages back. Takes its time.

    Args:
        jobs: How many there are; beside many only what is young is collected.
    """
    global _freed_bytes
    gc.collect(2 if is_quickly_collected(jobs) else 1)
    _freed_bytes = 0
    if _c is not None:
        _c.malloc_trim(0)
    log.debug("free memory handed back")


def has_freed(size_bytes: int) -> None:
    """Note that something large is free again."""
    global _freed_bytes
    _freed_bytes += size_bytes


def tidy(has_shrunk: bool, jobs: int, moves: int, works: int) -> None:
    """Hand back what is free, if it is worth it and nothing goes on; called every some seconds.

    Args:
        has_shrunk: Many jobs have gone since the last time.
        jobs: How many there are.
        moves: How many have come, gone out and ended since the start.
        works: How many operations in slices are not through. A frame is one until it has been
            freed, and the collector takes 0.1 s for a million lists of it.
    """
    global _moves
    if has_shrunk:
        has_freed(FREED_BYTES_MIN)
    is_quiet, _moves = moves == _moves, moves
    if works:
        return
    if is_quiet and _freed_bytes >= FREED_BYTES_MIN:
        give_back(jobs)
    elif gc.get_count()[2] >= YOUNG_LOOKS_MIN and is_quickly_collected(jobs):
        gc.collect()
