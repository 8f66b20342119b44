"""Giving memory back to the system.

Python frees what a million jobs or a large frame took, but the C library keeps it for the next
ones. Nobody needs it then: a broker that had frames of 64 MiB stayed at several times their size.
"""

import ctypes
import gc
import logging
from typing import Any, Final

log = logging.getLogger(__name__)

FREED_BYTES_MAX: Final = 16_777_216  # freed in large pieces until it is handed back at once
FREED_BYTES_MIN: Final = 1_048_576  # less is not worth it


def _trim_of_libc() -> Any:
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return None  # another C library; it does without


_trim: Any = _trim_of_libc()
_freed_bytes = 0


def give_back(is_thorough: bool = False) -> None:
    """Collect what is left in cycles and free lists, and hand free pages back.

    Args:
        is_thorough: Look at all of memory, which takes 0.3 s per 100,000 jobs that are there;
            otherwise only at what is young.
    """
    gc.collect(2 if is_thorough else 1)
    hand_back()
    log.debug("free memory handed back")


def hand_back() -> None:
    """Hand free pages back; 0.1 ms per MiB of them, up to 1 in a virtual machine."""
    global _freed_bytes
    _freed_bytes = 0
    if _trim is not None:
        _trim(0)


def has_freed(size_bytes: int) -> None:
    """Note that a large piece is free again, and hand memory back when it is much by now."""
    global _freed_bytes
    _freed_bytes += size_bytes
    if _freed_bytes >= FREED_BYTES_MAX:
        hand_back()


def tidy(has_shrunk: bool) -> None:
    """Hand back what is free since the last time, if it is worth it.

    Args:
        has_shrunk: Many jobs have gone.
    """
    if has_shrunk:
        give_back()
    elif _freed_bytes >= FREED_BYTES_MIN:
        hand_back()
