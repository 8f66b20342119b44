"""The subcommand worker: the broker's registry of workers, and running handlers here."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from bunqueue.cli.readers import text
from bunqueue.cli.show import worker_lines
from bunqueue.cli.table import Action, declare
from bunqueue.cli.usage import Args

Reply = Mapping[str, Any]


def registered(reply: Reply) -> Iterable[str]:
    print(
        "Warning: the registration ends with this connection, that is now.",
        file=sys.stderr,
    )
    return (f"Worker registered: {reply['data']['workerId']}",)


def run(args: Args) -> int:
    """Waits until the workers have closed."""
    from bunqueue.cli.worker_run import run_workers

    return run_workers(args)


def queue_names(args: Args) -> list[str]:
    """Return the names of all ``-q``: it may be repeated, and each may be a list."""
    names = [name.strip() for given in args["--queues"] for name in given.split(",")]
    return [name for name in names if name]


declare(
    "worker",
    """
Run handlers on jobs, or look after the broker's list of workers.

Usage:
  bunqueue worker list [options]
  bunqueue worker register [options] [-q NAMES]... [--] <name>
  bunqueue worker unregister [options] [--] <id>
  bunqueue worker run [options] [-q NAMES]... [--] <module:attr>...
  bunqueue worker [options] [-q NAMES]... [--] <module:attr>...

The attribute is a Worker, a WorkerGroup, a SandboxedWorker, a Bunqueue, a list of them, a function
without parameters that returns one of those, or a handler, for which -q is required.
Options given here win over those of a Worker that has not started, so make it with autorun=False;
one that has started refuses them. Without options it keeps the broker its module names.
SIGTERM or SIGINT lets running jobs finish; a second one interrupts them, a third ends everything.
SIGHUP restarts the workers, one process after the other; SIGUSR1 writes all stacks to the log.
It ends with 0 when drained, 1 when it cannot run or a process of it died meanwhile, 3 when it was
forced.

Worker options:
  -q NAMES, --queues NAMES
                          Queues of a handler, separated by commas; may be repeated.
  -c N, --concurrency N   Jobs at a time, per queue.
  -x KIND, --executor KIND
                          greenlet (the default, patches the standard library before anything is
                          imported), thread, process (handlers in processes of their own) or auto.
  --processes N           Run N such workers, each in a process, and start crashed ones again.
  -n NAME, --name NAME    Name of the workers in the broker's list.
  --batch-size N          Jobs taken per pull, at most.
  --lock-ttl MS           How long a job stays ours without a heartbeat.
  --heartbeat S           Seconds between heartbeats.
  --poll-timeout MS       How long one pull waits at the broker.
  --ack-batch N           Hold successes back to send up to N at once.
  --burst                 Stop when the queues are empty.
  --max-jobs N            Stop after so many jobs, per worker.
  --max-jobs-per-child N  Replace a process after so many jobs: the handlers' with -x process, else
                          the workers'.
  --max-memory MB         Bound the address space of those processes.
  --watch DIR             Restart when a *.py file below the directory changes; for development.
  --pid-file FILE         Keep the process id there while it runs.
  --grace S               Seconds that running jobs get to finish after a signal; 30 if not given.
  --path DIR              Import modules from there too; the current directory always is.
  --prefix KEY            Prefix of the queue names.
  --log-level LEVEL       debug, info, warning or error; info if not given.
""",
    {
        "list": Action("ListWorkers", {}, worker_lines),
        "register": Action(
            "RegisterWorker",
            {"name": text("<name>"), "queues": queue_names},
            registered,
        ),
        "unregister": Action("UnregisterWorker", {"workerId": text("<id>")}),
        "": run,
    },
    examples="""bunqueue worker shop.jobs:send_email -q emails -c 20
  bunqueue worker shop.jobs:workers --grace 60
  bunqueue worker shop.jobs:resize -q images -x thread --burst
  bunqueue worker shop.jobs:resize -q images --processes 4 --max-jobs-per-child 1000
  bunqueue worker list""",
)
