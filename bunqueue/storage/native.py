"""The real primitives of the operating system, also in a process that gevent has patched."""

import sys
from importlib import import_module
from typing import Any


def original(module: str, name: str) -> Any:
    """Return ``module.name`` as Python made it, whatever gevent's patching put in its place."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None:
        return monkey.get_original(module, name)
    return getattr(import_module(module), name)


def close_fd(fd: int) -> None:
    """Close the descriptor now; gevent's ``os.close`` does so a turn of its hub later."""
    original("os", "close")(fd)
