"""One decorated function per wire command; importing the room fills the table."""

from bunqueue.commands import (
    core,
    crons,
    dashboard,
    dead_letters,
    flows,
    greeting,
    group_commands,
    job_changes,
    job_reads,
    lease_commands,
    metrics,
    queue_control,
    subscriptions,
    webhooks,
    worker_register,
)
from bunqueue.commands.registry import COMMANDS, Command, dispatch

__all__ = [
    "COMMANDS",
    "Command",
    "core",
    "crons",
    "dashboard",
    "dead_letters",
    "dispatch",
    "flows",
    "greeting",
    "group_commands",
    "job_changes",
    "job_reads",
    "lease_commands",
    "metrics",
    "queue_control",
    "subscriptions",
    "webhooks",
    "worker_register",
]
