"""The options of a Worker: what is accepted, and in what form the worker wants it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import GeneratorType
from typing import Any

from bunqueue.client import worlds

BATCH_SIZE_DEFAULT, BATCH_SIZE_MAX = 10, 1000  # jobs per pull; the wire's bound
POLL_TIMEOUT_MS_DEFAULT, POLL_TIMEOUT_MS_MAX = 5000, 30_000
LOCK_TTL_MS_DEFAULT = 30_000  # the server's, wire.md 5.1
HEARTBEAT_S_DEFAULT = 10.0
BEATS_PER_LEASE = 3  # client.md 3: effective period min(value, lock_ttl/3)
EXECUTORS = ("auto", "greenlet", "thread", "process")


def concurrency(value: Any) -> int:
    """Return how many jobs run at once; ``ValueError`` below 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("concurrency must be an int")
    if value < 1:
        raise ValueError("concurrency must be >= 1")
    return value


def batch_size(value: Any) -> int:
    """Return how many jobs a pull may bring, within 1 and 1000."""
    if value is None:
        return BATCH_SIZE_DEFAULT
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise TypeError("batch_size must be a number or None")
    return int(max(1, min(value, BATCH_SIZE_MAX)))


def poll_timeout_ms(value: Any) -> float:
    """Return how long a pull waits at the server, within 0 and 30 seconds."""
    if isinstance(value, bool) or not (value is None or isinstance(value, (int, float))):
        raise TypeError("poll_timeout_ms must be a number or None")
    if value is None or math.isnan(value):
        return POLL_TIMEOUT_MS_DEFAULT
    return max(0, min(value, POLL_TIMEOUT_MS_MAX))


def lock_ttl_ms(value: Any) -> float | None:
    """Return the span of a lease, None for the server's."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("lock_ttl_ms must be a number or None")
    if not math.isfinite(value) or value < 1:
        raise ValueError("lock_ttl_ms must be finite and at least 1")
    return value


def beat_period_s(heartbeat_interval_s: Any, lock_ttl: float | None) -> float | None:
    """Return the seconds between beats, None when they are disabled."""
    value = HEARTBEAT_S_DEFAULT if heartbeat_interval_s is None else heartbeat_interval_s
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("heartbeat_interval_s must be a number or None")
    if not math.isfinite(value) or value <= 0:
        return None
    return min(float(value), (lock_ttl or LOCK_TTL_MS_DEFAULT) / 1000 / BEATS_PER_LEASE)


def executor_name(value: Any, processor: Any) -> str:
    """Return ``"greenlet"``, ``"thread"`` or ``"process"``.

    Raises:
        ValueError: The executor does not exist, or cannot work in this process.
    """
    if value not in EXECUTORS:
        raise ValueError(f"executor must be one of {', '.join(EXECUTORS)}")
    is_beside_hub = worlds.current().is_native and not worlds.standard().is_native
    if value == "auto" and isinstance(processor, (str, Path)):
        value = "process"
    if value == "auto":
        return "thread" if worlds.current().is_native else "greenlet"
    if value == "greenlet" and worlds.standard().is_native:
        why = worlds.why_native()
        if why is not None:
            raise ValueError(f"executor 'greenlet' cannot work: {why}")
        raise ValueError(
            "executor 'greenlet' needs a process patched by gevent: run it with `bunqueue worker`, "
            "or start the script with `from gevent import monkey; monkey.patch_all()`"
        )
    if value != "thread" and is_beside_hub:
        raise ValueError(
            f"executor {value!r} needs the main thread's hub in a process patched by gevent: "
            "make the worker there, or with executor='thread'"
        )
    return str(value)


# What a worker that has not started can still be told: option -> check.
CHANGES: dict[str, Callable[[Any], Any]] = {
    "concurrency": concurrency,
    "executor": str,
    "name": str,
    "batch_size": batch_size,
    "poll_timeout_ms": poll_timeout_ms,
    "lock_ttl_ms": lock_ttl_ms,
    "heartbeat_interval_s": lambda value: value,  # checked against the lease, by beat_period_s
    "max_jobs": int,
    "prefix_key": str,
    "ack_batch": lambda value: value,  # checked where it is set
    "sandbox": dict,  # on top of what the constructor got
}


def handler(processor: Any) -> Callable[..., Any]:
    """Return a function of (job, context) that runs the user's processor to its end.

    Raises:
        TypeError: It cannot be called, or is a coroutine function.
    """
    if not callable(processor):
        raise TypeError("processor must be callable")
    if inspect.iscoroutinefunction(processor) or inspect.iscoroutinefunction(
        getattr(processor, "__call__", None)  # noqa: B004  # its own call may be the coroutine
    ):
        raise TypeError("processor must not be a coroutine function; there is no asyncio API")
    if _wants_context(processor):

        def run(job: Any, context: Any) -> Any:
            result = processor(job, context)
            return _driven(result, context) if result.__class__ is GeneratorType else result

    else:

        def run(job: Any, context: Any) -> Any:
            result = processor(job)
            return _driven(result, context) if result.__class__ is GeneratorType else result

    return run


def _driven(steps: Any, context: Any) -> Any:
    """Let a generator run to its end; its return value or last yielded value is the result."""
    last = None
    try:
        while not context.signal.aborted:
            last = next(steps)
    except StopIteration as end:
        return last if end.value is None else end.value
    finally:
        steps.close()
    context.signal.raise_if_aborted()
    return last


def _wants_context(processor: Callable[..., Any]) -> bool:
    """Tell whether it has two required positional parameters."""
    try:
        parameters = inspect.signature(processor).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 2


def ack_batch(given: Mapping[str, Any] | bool | None) -> tuple[int, float] | None:
    """Return (max_size, max_delay_ms) of the ACK batch, or None when it is off."""
    from bunqueue.client.add_batch import batch_settings

    return batch_settings(False if given is None else given)


def acks_meet(given: Mapping[str, Any] | bool | None) -> bool:
    """Tell whether ACKs that meet leave together: unless batches were switched off by name."""
    return given is None or (given is not False and ack_batch(given) is not None)


def group_terms(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what is said of groups with every pull, or None."""
    if given is None:
        return None
    unknown = given.keys() - {"concurrency", "limit"}
    if unknown:
        raise TypeError(f"unknown group option: {', '.join(sorted(unknown))}")
    return {name: value for name, value in given.items() if value is not None} or None


def key_cap(limiter: Mapping[str, Any] | None) -> tuple[str, int] | None:
    """Return (field of the data, jobs at once per value of it) of a limiter, or None."""
    if not limiter or "group_key" not in limiter:
        return None
    unknown = limiter.keys() - {"max", "duration", "group_key"}
    if unknown:
        raise TypeError(f"unknown limiter option: {', '.join(sorted(unknown))}")
    key, most = limiter["group_key"], limiter.get("max")
    if not isinstance(key, str) or not key:
        raise TypeError("limiter group_key must be the name of a field of the data")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ValueError("limiter max must be an int of at least 1")
    return key, most
