"""What must be forgotten in a forked child: links, locks and tasks that only the parent has.

Objects that hold such things are put on one list. In the child, each is told to start afresh; what
it drops must not send a byte, because the descriptors are the parent's as well.
"""

import os
from typing import Protocol
from weakref import WeakSet

from bunqueue.client import worlds


class Forgetful(Protocol):
    """Something that can start afresh in a forked child."""

    def forget_parent(self) -> None:
        """Drop links, locks and tasks inherited from the parent, in silence."""


_watched: "WeakSet[Forgetful]" = WeakSet()
_is_hooked = False


def watch(thing: Forgetful) -> None:
    """Tell ``thing`` about every later fork, in the child."""
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        os.register_at_fork(after_in_child=_forget)
    _watched.add(thing)


def _forget() -> None:
    for thing in list(_watched):
        thing.forget_parent()
    worlds.decide_anew()  # last: what was dropped may have asked
