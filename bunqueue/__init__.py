"""A job queue in one process and one file: nothing lost, and you can see it.

Importing this package opens nothing, starts nothing and patches nothing; each name below is loaded
from its module when it is first used.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bunqueue.client.cancel import CancellationManager, CancelSignal
    from bunqueue.client.connection import Connection, close_all_connections
    from bunqueue.client.current_job import JobIdFilter, current_job
    from bunqueue.client.dlq import DlqEntry, DlqStats
    from bunqueue.client.embedded import shutdown_manager
    from bunqueue.client.emitter import EventEmitter
    from bunqueue.client.event_data import EventData
    from bunqueue.client.flow import FlowNode, FlowProducer
    from bunqueue.client.forwarder import ForwardedInfo, Forwarder
    from bunqueue.client.job import Job
    from bunqueue.client.queue import Queue
    from bunqueue.client.queue_events import QueueEvents
    from bunqueue.client.queue_group import QueueGroup
    from bunqueue.client.sandbox.sandboxed_worker import SandboxedWorker
    from bunqueue.client.simple.app import Bunqueue
    from bunqueue.client.telemetry import TelemetryEvent, TelemetryHandler
    from bunqueue.client.types import (
        BackoffOptions,
        DlqConfig,
        DlqFilter,
        FlowSpec,
        JobOptions,
        LoggerLike,
        RepeatOptions,
        StallConfig,
        WorkerOptions,
    )
    from bunqueue.client.values import QueueName
    from bunqueue.client.worker import Worker
    from bunqueue.client.worker_group import WorkerGroup
    from bunqueue.errors import (
        AuthError,
        BunqueueError,
        CommandError,
        CommandTimeoutError,
        ConnectionClosedError,
        DataPathConflictError,
        DelayedError,
        EmbeddedError,
        JobCancelledError,
        JobFailedError,
        JobTimeoutError,
        LockLostError,
        RateLimitedError,
        RateLimitError,
        SerializationError,
        UnrecoverableError,
        WaitingChildrenError,
    )

# What a program does not ask to see, it does not see.
logging.getLogger("bunqueue").addHandler(logging.NullHandler())

_ERRORS = (
    "AuthError",
    "BunqueueError",
    "CommandError",
    "CommandTimeoutError",
    "ConnectionClosedError",
    "DataPathConflictError",
    "DelayedError",
    "EmbeddedError",
    "JobCancelledError",
    "JobFailedError",
    "JobTimeoutError",
    "LockLostError",
    "RateLimitedError",
    "RateLimitError",
    "SerializationError",
    "UnrecoverableError",
    "WaitingChildrenError",
)

_TYPES = (
    "BackoffOptions",
    "DlqConfig",
    "DlqFilter",
    "FlowSpec",
    "JobOptions",
    "LoggerLike",
    "RepeatOptions",
    "StallConfig",
    "WorkerOptions",
)

_HOMES = {
    **dict.fromkeys(_TYPES, "bunqueue.client.types"),
    **dict.fromkeys(_ERRORS, "bunqueue.errors"),
    "Bunqueue": "bunqueue.client.simple.app",
    "CancelSignal": "bunqueue.client.cancel",
    "CancellationManager": "bunqueue.client.cancel",
    "Connection": "bunqueue.client.connection",
    "close_all_connections": "bunqueue.client.connection",
    "DlqEntry": "bunqueue.client.dlq",
    "DlqStats": "bunqueue.client.dlq",
    "EventData": "bunqueue.client.event_data",
    "EventEmitter": "bunqueue.client.emitter",
    "FlowNode": "bunqueue.client.flow",
    "FlowProducer": "bunqueue.client.flow",
    "ForwardedInfo": "bunqueue.client.forwarder",
    "Forwarder": "bunqueue.client.forwarder",
    "Job": "bunqueue.client.job",
    "JobIdFilter": "bunqueue.client.current_job",
    "JobPro": "bunqueue.client.job",
    "Queue": "bunqueue.client.queue",
    "QueueEvents": "bunqueue.client.queue_events",
    "QueueEventsPro": "bunqueue.client.queue_events",
    "QueueGroup": "bunqueue.client.queue_group",
    "QueueName": "bunqueue.client.values",
    "QueuePro": "bunqueue.client.queue",
    "SandboxedWorker": "bunqueue.client.sandbox.sandboxed_worker",
    "TelemetryEvent": "bunqueue.client.telemetry",
    "TelemetryHandler": "bunqueue.client.telemetry",
    "Worker": "bunqueue.client.worker",
    "WorkerGroup": "bunqueue.client.worker_group",
    "WorkerPro": "bunqueue.client.worker",
    "current_job": "bunqueue.client.current_job",
    "shutdown_manager": "bunqueue.client.embedded",
}
_ALIASES = {
    "JobPro": "Job",
    "QueueEventsPro": "QueueEvents",
    "QueuePro": "Queue",
    "WorkerPro": "Worker",
}

__all__ = [
    "AuthError",
    "BackoffOptions",
    "Bunqueue",
    "BunqueueError",
    "CancelSignal",
    "CancellationManager",
    "CommandError",
    "CommandTimeoutError",
    "Connection",
    "ConnectionClosedError",
    "DataPathConflictError",
    "DelayedError",
    "DlqConfig",
    "DlqEntry",
    "DlqFilter",
    "DlqStats",
    "EmbeddedError",
    "EventData",
    "EventEmitter",
    "FlowNode",
    "FlowProducer",
    "FlowSpec",
    "ForwardedInfo",
    "Forwarder",
    "Job",
    "JobCancelledError",
    "JobFailedError",
    "JobIdFilter",
    "JobOptions",
    "JobPro",
    "JobTimeoutError",
    "LockLostError",
    "LoggerLike",
    "Queue",
    "QueueEvents",
    "QueueEventsPro",
    "QueueGroup",
    "QueueName",
    "QueuePro",
    "RateLimitError",
    "RateLimitedError",
    "RepeatOptions",
    "SandboxedWorker",
    "SerializationError",
    "StallConfig",
    "TelemetryEvent",
    "TelemetryHandler",
    "UnrecoverableError",
    "WaitingChildrenError",
    "Worker",
    "WorkerGroup",
    "WorkerOptions",
    "WorkerPro",
    "__version__",
    "close_all_connections",
    "current_job",
    "shutdown_manager",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), _ALIASES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
