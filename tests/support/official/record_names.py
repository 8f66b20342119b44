"""Record what the official client offers: run it in that client's environment.

``python record_names.py > names.json`` writes module -> name -> what it is: a function's
parameters as they are written, ``{method: parameters}`` of a class; null for anything else, and for
what another of the modules describes.

Left out are names of the standard library, mixins that only its own classes are made of, and
private parameters and methods.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from typing import Any

MODULES = (
    "bunqueue",
    "bunqueue.ack_batcher",
    "bunqueue.connection",
    "bunqueue.errors",
    "bunqueue.events",
    "bunqueue.flow",
    "bunqueue.job",
    "bunqueue.options",
    "bunqueue.queue",
    "bunqueue.simple",
    "bunqueue.telemetry",
    "bunqueue.transport",
    "bunqueue.wire",
    "bunqueue.worker",
    "bunqueue.worker_runtime",
)
TYPES = {"TelemetryEvent", "TelemetryHandler", "TlsOption"}
MIXINS = {
    "ConnectionLifecycle",
    "QueueAdminOps",
    "QueueQueryOps",
    "WorkerRuntime",
    "enable_keepalive",
}


def names() -> dict[str, dict[str, Any]]:
    """Return everything that can be imported, by module."""
    return {name: _of_module(importlib.import_module(name)) for name in MODULES}


def _of_module(module: Any) -> dict[str, Any]:
    return {
        name: _described(value) if _is_home(module, value) else None
        for name, value in sorted(vars(module).items())
        if name in TYPES or (not name.startswith("__") and name not in MIXINS and _is_own(value))
    }


def _is_own(value: Any) -> bool:
    if inspect.ismodule(value):
        return False
    home = getattr(value, "__module__", None)
    return home is None or home.startswith("bunqueue")


def _is_home(module: Any, value: Any) -> bool:
    home = str(getattr(value, "__module__", ""))
    return module.__name__ != "bunqueue" and home.startswith(module.__name__)


def _described(value: Any) -> Any:
    if not inspect.isclass(value):
        return _parameters(value)
    return {
        name: _parameters(getattr(value, name))
        for name in dir(value)
        if (name == "__init__" or not name.startswith("_")) and not _is_of_builtins(value, name)
    }


def _is_of_builtins(kind: type, name: str) -> bool:
    return next(each for each in kind.__mro__ if name in vars(each)).__module__ == "builtins"


def _parameters(value: Any) -> str | None:
    if not callable(value):
        return None
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for name, each in inspect.signature(value).parameters.items()
        if not name.startswith("_")
    ]
    return str(inspect.Signature(parameters))


if __name__ == "__main__":
    json.dump(names(), sys.stdout, indent=1, sort_keys=True)
    print()
