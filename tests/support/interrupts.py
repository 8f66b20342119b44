"""Interrupts wherever a signal handler may raise."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

# There a signal may come between a lock's __enter__ and the block, as bytecode stands: no code of
# Python's keeps a lock from being held then.
LEAVES_LOCKS = sys.version_info >= (3, 14)


class Interrupted(BaseException):
    """Raised by a signal handler in the middle of a call."""


def interrupted_at(point: int, call: Callable[[], object]) -> bool:
    """Make a call and interrupt it at the point of that number; False if it ends before.

    Points are where Python looks for signals: as a function begins, and when one in C has returned.
    Garbage is not collected meanwhile: what is raised in that goes nowhere.
    """
    left = point

    def look(_frame: object, event: str, _argument: object) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise Interrupted

    is_collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(look)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
        if is_collecting:
            gc.enable()
    return False
