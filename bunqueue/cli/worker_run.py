"""Make the workers that the command line names, and run them."""

import logging
import os
import resource
from pathlib import Path
from typing import Any

from bunqueue.cli.call import address, named_address
from bunqueue.cli.exits import DRAINED, RECYCLED
from bunqueue.cli.pid_file import pid_file
from bunqueue.cli.readers import ABSENT, Reader, number, span_ms, text, whole
from bunqueue.cli.ready import Mark
from bunqueue.cli.sources import Sources
from bunqueue.cli.supervisor import Supervisor, child_command, take_child_mark
from bunqueue.cli.targets import import_from, is_handler, resolve, workers_of
from bunqueue.cli.usage import Args, UsageError
from bunqueue.cli.watch import Watch
from bunqueue.cli.workers import queue_names
from bunqueue.client.current_job import JobIdFilter
from bunqueue.client.worker import Worker
from bunqueue.logs import configure

GRACE_S_DEFAULT = 30.0  # client.md 3.8
MIB = 1_048_576
LEVELS = ("debug", "info", "warn", "warning", "error")


def _given_size(key: str) -> Reader:
    read = whole(key)
    return lambda args: ABSENT if read(args) is ABSENT else {"max_size": read(args)}


# Parameter of Worker -> how the command line gives it.
OPTIONS: dict[str, Reader] = {
    "concurrency": whole("--concurrency"),
    "executor": text("--executor"),
    "name": text("--name"),
    "batch_size": whole("--batch-size"),
    "lock_ttl_ms": span_ms("--lock-ttl"),
    "heartbeat_interval_s": number("--heartbeat"),
    "poll_timeout_ms": span_ms("--poll-timeout"),
    "max_jobs": whole("--max-jobs"),
    "prefix_key": text("--prefix"),
    "ack_batch": _given_size("--ack-batch"),
}


def run_workers(args: Args) -> int:
    """Waits until all workers have closed.

    Returns:
        0 drained, 1 a worker cannot go on, 3 forced.
    """
    supervisor = take_child_mark()
    configure_log(args)
    limits = Limits(args)
    if supervisor is None and limits.need_supervisor:
        with pid_file(args["--pid-file"]):
            return Supervisor(child_command(), limits.processes, limits.sources).run()
    with pid_file(args["--pid-file"] if supervisor is None else None):
        return _run_here(args, limits, supervisor)


def _run_here(args: Args, limits: "Limits", supervisor: Mark | None) -> int:
    is_child = supervisor is not None
    grace_s = number("--grace")(args)
    if is_child:
        limits.bound_memory()
    import_from([*([args["--path"]] if args["--path"] else []), os.getcwd()])
    given = {name: read(args) for name, read in OPTIONS.items()}
    options = {name: value for name, value in given.items() if value is not ABSENT}
    options |= limits.options(is_child)
    place = {**address(args, os.environ), "autorun": False}
    moved_to = named_address(args, os.environ)
    targets, queues = args["<module:attr>"], queue_names(args)
    workers: list[Worker] = []
    for target in targets:
        workers += workers_of(target, queues, options, place, moved_to)
    if queues and not any(is_handler(resolve(target)) for target in targets):
        raise UsageError(f"-q is for handlers; {' '.join(targets)} has its queues already")
    grace_s = GRACE_S_DEFAULT if grace_s is ABSENT else grace_s
    status = Watch(workers, grace_s, args["--burst"], supervisor).run()
    if status == DRAINED and is_child and limits.has_recycled(workers):
        return RECYCLED
    return status


class Limits:
    """What bounds worker processes: how many, how long, how large.

    With ``-x process`` it is the processes of the handlers that are bounded in jobs and memory,
    else those of the workers, which takes a supervisor.
    """

    def __init__(self, args: Args) -> None:
        self._is_sandboxed = args["--executor"] == "process"
        self._jobs = _at_least_1("--max-jobs-per-child", args)
        self._memory_mb = _at_least_1("--max-memory", args)
        self._max_jobs = _at_least_1("--max-jobs", args)
        wanted = _at_least_1("--processes", args)
        self.processes = wanted or 1
        self._is_supervised = wanted > 0
        watched = args["--watch"]
        if watched is not None and not Path(watched).is_dir():
            raise UsageError(f"--watch {watched}: no such directory")
        self.sources = None if watched is None else Sources(Path(watched))

    @property
    def need_supervisor(self) -> bool:
        """Whether somebody must start worker processes again."""
        bounds_workers = bool(self._jobs or self._memory_mb) and not self._is_sandboxed
        return self._is_supervised or self.sources is not None or bounds_workers

    def options(self, is_child: bool) -> dict[str, Any]:
        """Return what the workers are told."""
        if self._is_sandboxed:
            given = {"max_jobs_per_child": self._jobs, "max_memory_mb": self._memory_mb}
            sandbox = {name: value for name, value in given.items() if value}
            return {"sandbox": sandbox} if sandbox else {}
        if not (is_child and self._jobs):
            return {}
        return {"max_jobs": min(self._jobs, self._max_jobs or self._jobs)}

    def bound_memory(self) -> None:
        """Bound this worker process."""
        if self._memory_mb and not self._is_sandboxed:
            size = self._memory_mb * MIB
            resource.setrlimit(resource.RLIMIT_AS, (size, size))

    def has_recycled(self, workers: list[Worker]) -> bool:
        """Tell whether a worker has closed for its jobs per process, and not for all its jobs."""
        jobs = self._jobs
        if not jobs or self._is_sandboxed or (self._max_jobs and self._max_jobs <= jobs):
            return False
        return any(worker.has_run_its_jobs for worker in workers)


def _at_least_1(key: str, args: Args) -> int:
    """Return a whole number, 0 where it was not given."""
    value = whole(key)(args)
    if value is ABSENT:
        return 0
    if value < 1:
        raise UsageError(f"{key} must be at least 1")
    return int(value)


def configure_log(args: Args) -> None:
    """Send the log to stderr, at the level of the option or the environment.

    What a handler logs says which job it is about.
    """
    level = args["--log-level"] or os.environ.get("LOG_LEVEL") or "info"
    if level not in LEVELS:
        raise UsageError(f"the log level must be one of {', '.join(LEVELS)}, not {level!r}")
    configure(level, os.environ.get("LOG_FORMAT", "text"))
    for handler in logging.getLogger().handlers:
        handler.addFilter(JobIdFilter(absent=None))
