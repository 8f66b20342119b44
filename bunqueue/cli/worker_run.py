"""Make the workers that the command line names, and run them."""

import logging
import os

from bunqueue.cli.call import address, named_address
from bunqueue.cli.readers import ABSENT, Reader, number, span_ms, text, whole
from bunqueue.cli.targets import import_from, is_handler, resolve, workers_of
from bunqueue.cli.usage import Args, UsageError
from bunqueue.cli.watch import Watch
from bunqueue.cli.workers import queue_names
from bunqueue.client.current_job import JobIdFilter
from bunqueue.client.worker import Worker
from bunqueue.logs import configure

GRACE_S_DEFAULT = 30.0  # client.md 3.8
LEVELS = ("debug", "info", "warn", "warning", "error")

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
}


def run_workers(args: Args) -> int:
    """Waits until all workers have closed.

    Returns:
        0 drained, 1 a worker cannot go on, 3 forced.
    """
    grace_s = number("--grace")(args)
    configure_log(args)
    import_from([*([args["--path"]] if args["--path"] else []), os.getcwd()])
    given = {name: read(args) for name, read in OPTIONS.items()}
    options = {name: value for name, value in given.items() if value is not ABSENT}
    place = {**address(args, os.environ), "autorun": False}
    moved_to = named_address(args, os.environ)
    targets, queues = args["<module:attr>"], queue_names(args)
    workers: list[Worker] = []
    for target in targets:
        workers += workers_of(target, queues, options, place, moved_to)
    if queues and not any(is_handler(resolve(target)) for target in targets):
        raise UsageError(f"-q is for handlers; {' '.join(targets)} has its queues already")
    watch = Watch(workers, GRACE_S_DEFAULT if grace_s is ABSENT else grace_s, args["--burst"])
    return watch.run()


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
