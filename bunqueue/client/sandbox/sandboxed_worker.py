"""SandboxedWorker: a worker whose handlers run in child processes, by the Bun package's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bunqueue.client.sandbox.options import NAMES
from bunqueue.client.worker import Worker

CONCURRENCY_DEFAULT = 1  # client.md 3.2

# The Bun package's names of options -> ours.
BUN_NAMES = {
    "timeout": "timeout_ms",
    "maxMemory": "max_memory_mb",
    "autoRestart": "auto_restart",
    "maxRestarts": "max_restarts",
    "idleTimeout": "idle_timeout_ms",
    "idleRecycleMs": "idle_recycle_ms",
    "autoStart": "auto_start",
    "autoStartPollMs": "auto_start_poll_ms",
    "pollInterval": "poll_interval_ms",
    "heartbeatInterval": "heartbeat_interval_s",
}


class SandboxedWorker(Worker):
    """Runs the jobs of one queue in child processes.

    A job whose child crashes, is killed or runs out of time fails; the slot gets a new child. This
    isolates faults, it is not a security boundary. It begins with ``start()`` or ``run()``.

    Args:
        queue: Logical name, or a ``Queue``'s ``name``.
        options: ``processor`` (``"module:function"`` or the path of a file), the options of
            ``SandboxOptions`` by their own or by the Bun package's names, and those of ``Worker``.
        kw: The same as keywords; they win.
    """

    def __init__(self, queue: str, options: Mapping[str, Any] | None = None, **kw: Any) -> None:
        given = {
            BUN_NAMES.get(name, name): _converted(name, value)
            for name, value in {**(options or {}), **kw}.items()
        }
        if "processor" not in given:
            raise TypeError("a SandboxedWorker needs a processor")
        sandbox = {**given.pop("sandbox", {}), **{n: given.pop(n) for n in NAMES if n in given}}
        defaults = {
            "concurrency": CONCURRENCY_DEFAULT,
            "autorun": False,
            "drain_delay_ms": sandbox.get("poll_interval_ms", 10),
        }
        super().__init__(
            queue,
            given.pop("processor"),
            executor="process",
            sandbox=sandbox,
            **{**defaults, **given},
        )

    def stop(  # type: ignore[override]  # the Bun package's parameter
        self, force: bool = False, timeout: float | None = None
    ) -> bool:
        """Close, gracefully or by force. Waits."""
        return self.close(timeout, force=force)

    def get_stats(self) -> dict[str, int]:
        """Return how many children there are, and how they do."""
        assert self.slots is not None
        return self.slots.stats()


def _converted(name: str, value: Any) -> Any:
    """Return a value in our unit: the Bun package's heartbeats are in ms."""
    return value / 1000 if name == "heartbeatInterval" else value
