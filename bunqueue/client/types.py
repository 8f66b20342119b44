"""Shapes for type checkers: the dicts an application writes, and the logger it may hand in."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypedDict

from bunqueue.client.options import BackoffOptions, JobOptions
from bunqueue.client.values import IntegerPolicy

__all__ = [
    "BackoffOptions",
    "DlqConfig",
    "DlqFilter",
    "FlowSpec",
    "IntegerPolicy",
    "JobExplanation",
    "JobOptions",
    "LoggerLike",
    "RepeatOptions",
    "StallConfig",
    "WorkerOptions",
]


class LoggerLike(Protocol):
    """What ``logger=`` takes: a ``logging.Logger``, or anything that speaks like one."""

    def debug(self, msg: str, /, *args: Any, **kwargs: Any) -> Any:
        """Note something only developers want to see."""

    def info(self, msg: str, /, *args: Any, **kwargs: Any) -> Any:
        """Note a beginning or an end."""

    def warning(self, msg: str, /, *args: Any, **kwargs: Any) -> Any:
        """Note something that was coped with."""

    def error(self, msg: str, /, *args: Any, **kwargs: Any) -> Any:
        """Note something that somebody should look at."""


class RepeatOptions(TypedDict, total=False):
    """``repeat`` of a job, and of a scheduler."""

    every: float | timedelta | None
    pattern: str | None
    limit: int | None
    tz: str | None
    immediately: bool | None
    count: int | None
    start_date: float | datetime | None
    end_date: float | datetime | None
    offset: float | timedelta | None
    skip_if_no_worker: bool | None
    skip_missed_on_restart: bool | None
    prevent_overlap: bool | None


class JobExplanation(TypedDict, total=False):
    """Why a job is not running, ``Queue.explain``; a reason has ``code``, ``text``, ``until``..."""

    id: str
    queue: str
    state: str
    reasons: list[dict[str, Any]]
    ahead: int


class DlqFilter(TypedDict, total=False):
    """Which dead letters are meant."""

    reason: str | None
    older_than: float | datetime | None
    newer_than: float | datetime | None
    retriable: bool | None
    expired: bool | None
    limit: int | None
    offset: int | None


class DlqConfig(TypedDict, total=False):
    """How dead letters are kept; spans in ms."""

    auto_retry: bool
    auto_retry_interval: float | timedelta
    max_auto_retries: int
    max_age: float | timedelta | None
    max_entries: int


class StallConfig(TypedDict, total=False):
    """How silent workers are found; spans in ms."""

    enabled: bool
    stall_interval: float | timedelta
    max_stalls: int
    grace_period: float | timedelta


class FlowSpec(TypedDict, total=False):
    """A node of a flow; ``name`` and one of the queue's spellings are needed."""

    name: str
    queue_name: str
    queueName: str
    data: Mapping[str, Any] | None
    opts: JobOptions
    children: Sequence[FlowSpec]


class WorkerOptions(TypedDict, total=False):
    """What ``Worker`` takes beside queue and processor."""

    host: str
    port: int
    token: str | None
    tls: Any
    concurrency: int
    batch_size: int
    poll_timeout_ms: float
    lock_ttl_ms: float | None
    heartbeat_interval_s: float
    autorun: bool
    name: str | None
    ack_batch: Mapping[str, Any] | None
    on_telemetry: Callable[[dict[str, Any]], None] | None
    prefix_key: str
    connection: Any
    embedded: bool | None
    data_path: str | os.PathLike[str] | None
    url: str | None
    command_timeout: float | None
    connect_timeout: float | None
    pool_size: int
    max_in_flight: int
    logger: LoggerLike | None
    executor: str
    sandbox: Mapping[str, Any] | None
    shutdown_timeout_s: float | None
    limiter: Mapping[str, Any] | None
    group: Mapping[str, Any] | None
    batch: Mapping[str, Any] | None
    use_locks: bool
    skip_lock_renewal: bool
    skip_stalled_check: bool
    drain_delay_ms: float
    remove_on_complete: bool | None
    remove_on_fail: bool | None
    max_jobs: int
    on_timeout: str
    max_stalled_count: int | None
    int64: IntegerPolicy
    restore_ints: bool
