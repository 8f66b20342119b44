"""The options of a sandbox, and what names a processor for it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

FILE_ATTRIBUTE = "processor"  # what a file defines, if none is named behind a colon


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """How children are started, watched and ended; the names and defaults of client.md 3.2.

    Attributes:
        timeout_ms: How long a job may run before its child is killed; 0 for ever.
        max_memory_mb: Address space of a child; 0 for no bound.
        auto_restart: Put a new child in the place of one that died.
        max_restarts: How many in a row, without a job that ended well, before a slot is given up.
        idle_timeout_ms: Without a job for so long, all children are ended and the worker closes;
            0 for never.
        idle_recycle_ms: A child without a job for so long is ended; the next job gets a new one.
        auto_start: After an idle timeout, stay and bring children up again when there are jobs.
        auto_start_poll_ms: Taken for compatibility: the waiting pull notices jobs at once.
        poll_interval_ms: Pause after an empty pull that did not wait at the broker.
        max_jobs_per_child: A child that has run so many jobs is replaced; 0 for never.
        start_timeout_s: How long a child may take to import the processor.
        env: Variables for the children, on top of this process's.
        cwd: Directory of the children; None for this process's.
    """

    timeout_ms: float = 30_000
    max_memory_mb: float = 0
    auto_restart: bool = True
    max_restarts: int = 10
    idle_timeout_ms: float = 0
    idle_recycle_ms: float = 30_000
    auto_start: bool = False
    auto_start_poll_ms: float = 5_000
    poll_interval_ms: float = 10
    max_jobs_per_child: int = 0
    start_timeout_s: float = 5
    env: Mapping[str, str] | None = None
    cwd: str | None = None


NAMES = tuple(field.name for field in fields(SandboxOptions))
_NUMBERS = tuple(
    name for name in NAMES if name.endswith(("_ms", "_s", "_mb")) or name.startswith("max_")
)


def sandbox_options(given: Mapping[str, Any] | None) -> SandboxOptions:
    """Check the options.

    Raises:
        TypeError: An unknown one, or a value of another kind.
        ValueError: A number that cannot work.
    """
    options = dict(given or {})
    unknown = options.keys() - set(NAMES)
    if unknown:
        raise TypeError(f"unknown sandbox option: {', '.join(sorted(unknown))}")
    for name in _NUMBERS:
        value = options.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"sandbox option {name} must be a number")
        if not 0 <= value < math.inf:
            raise ValueError(f"sandbox option {name} must be finite and at least 0")
    if options.get("start_timeout_s") == 0:
        raise ValueError("sandbox option start_timeout_s must be above 0")
    return SandboxOptions(**options)


def processor_name(processor: Any) -> str:
    """Return what names a processor in a child: ``module:attribute`` or ``/file.py:attribute``.

    Raises:
        TypeError: Neither text nor callable.
        ValueError: A child could not find it.
    """
    if isinstance(processor, (str, Path)):
        return _from_text(str(processor))
    if not callable(processor):
        raise TypeError("processor must be callable, an import string or a path")
    module, name = getattr(processor, "__module__", None), getattr(processor, "__qualname__", "")
    if module == "__main__" and (file := getattr(sys.modules["__main__"], "__file__", None)):
        raise ValueError(
            f"a child would run {file} again to find {name}: "
            "put the processor into a module of its own"
        )
    if not module or "<" in name or _found(module, name) is not processor:
        raise ValueError(
            "executor 'process' needs a processor that can be imported, as 'module:function'"
        )
    return f"{module}:{name}"


def _from_text(text: str) -> str:
    place, colon, name = text.rpartition(":")
    if colon and name.isidentifier() and place.endswith(".py"):
        return f"{Path(place).resolve()}:{name}"
    if text.endswith(".py"):
        return f"{Path(text).resolve()}:{FILE_ATTRIBUTE}"
    module, colon, path = text.partition(":")
    parts = [*module.split("."), *path.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{text!r} is neither 'module:function' nor the path of a .py file")
    return text


def _found(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
