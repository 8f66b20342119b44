"""Shapes of the dicts that applications write, for their type checkers."""

from bunqueue.client.types import (
    BackoffOptions,
    DlqConfig,
    DlqFilter,
    FlowSpec,
    IntegerPolicy,
    JobOptions,
    LoggerLike,
    RepeatOptions,
    StallConfig,
    WorkerOptions,
)

__all__ = [
    "BackoffOptions",
    "DlqConfig",
    "DlqFilter",
    "FlowSpec",
    "IntegerPolicy",
    "JobOptions",
    "LoggerLike",
    "RepeatOptions",
    "StallConfig",
    "WorkerOptions",
]
