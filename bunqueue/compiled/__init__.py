"""The compiled parts: faster twins of small pieces of Python, used where they could be built.

Each twin stands behind the contract of the Python it replaces, and only for the ordinary case:
whatever is unusual it hands back to the Python function, so that rare rules are written once.
``records`` holds the job record and what is made or noted for every job, ``hot`` the operations
and the frames of PUSH, PULL, ACK and their batches, ``line`` the reads and writes of a socket,
``disk`` the writer's thread.

They are built by ``setup.py`` with Cython when the package is installed; without a compiler, or in
a checkout that was never built, the Python runs. ``BUNQUEUE_PURE=1`` forces that.
"""

import os
from importlib import import_module
from typing import Any, Final

PURE_VARIABLE: Final = "BUNQUEUE_PURE"
# Raised with what the parts offer: a checkout whose parts were built before runs the Python. Asked
# of ``records`` alone: parts are put in place in the order of their names, so it is the last one.
CONTRACT: Final = 13


def part(name: str) -> Any | None:
    """Return a compiled module of this folder, or None where the Python is to run."""
    return import_module(f"bunqueue.compiled.{name}") if IS_COMPILED else None


def _is_usable() -> bool:
    if os.environ.get(PURE_VARIABLE, "") not in ("", "0"):
        return False
    try:
        records = import_module("bunqueue.compiled.records")
    except ModuleNotFoundError:
        return False  # it was never built
    return getattr(records, "CONTRACT", 0) == CONTRACT


IS_COMPILED: Final = _is_usable()
CORE: Final = "compiled" if IS_COMPILED else "pure Python"
