"""Find the row that a command line means, run it, and turn what happens into an exit status."""

import os
import sys

import bunqueue
from bunqueue.cli import (
    cron,
    demo,
    doctor,
    figures,
    import_db,
    jobs,
    queues,
    start,
    webhooks,
    workers,
)
from bunqueue.cli.call import send
from bunqueue.cli.cures import cure
from bunqueue.cli.leading import split_leading
from bunqueue.cli.show import compact
from bunqueue.cli.table import SUBCOMMANDS, Action, Subcommand
from bunqueue.cli.usage import Args, UsageError, nearest, parse
from bunqueue.errors import BunqueueError

# Importing them has filled the table.
ROWS = (cron, demo, doctor, figures, import_db, jobs, queues, start, webhooks, workers)

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130


def dispatch(argv: list[str]) -> int:
    """Run a command line and return its exit status; all errors end here, on stderr."""
    as_json = "--json" in argv
    try:
        status = _run(argv)
        sys.stdout.flush()  # here, where its failure is understood
        return status
    except UsageError as error:
        _tell(str(error), as_json)
        return MISUSED
    except BunqueueError as error:
        _tell(str(error), as_json, cure(error))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep the interpreter from flushing to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def overview() -> str:
    """Return the text of ``bunqueue --help``."""
    lines = [(bunqueue.__doc__ or "").partition("\n")[0], ""]
    lines += ["Usage:", "  bunqueue [options] COMMAND ...", "", "Commands:"]
    width = max(map(len, SUBCOMMANDS))
    lines += [f"  {name.ljust(width)}  {row.summary}" for name, row in sorted(SUBCOMMANDS.items())]
    lines += ["", "Without a command it starts the broker."]
    lines += ["'bunqueue COMMAND --help' tells its options, with an example."]
    return "\n".join(lines)


def _run(argv: list[str]) -> int:
    leading, rest = split_leading(argv)
    if rest[:1] in (["-h"], ["--help"]):
        print(overview())
        return DONE
    if rest[:1] in (["-v"], ["--version"]):
        print(f"bunqueue {bunqueue.__version__}")
        return DONE
    if not rest or rest[0].startswith("-"):
        rest = ["start", *rest]
    name, words = rest[0], rest[1:]
    row = SUBCOMMANDS.get(name)
    if row is None:
        raise BunqueueError(f"Unknown command: {name}{nearest(name, list(SUBCOMMANDS))}")
    if wants_help(words):
        print(row.usage, end="")
        return DONE
    try:
        return _perform(row, parse(row.usage, [name, *leading, *words]))
    except UsageError as error:
        raise UsageError(f"{error}\nTry 'bunqueue {name} --help'.") from None


def _perform(row: Subcommand, args: Args) -> int:
    if callable(row.run):
        return row.run(args)
    action = next(act for word, act in row.run.items() if not word or args[word])
    return send(action, args) if isinstance(action, Action) else action(args)


def wants_help(words: list[str]) -> bool:
    """Tell whether the options, not the payload behind ``--``, ask for help."""
    options = words[: words.index("--")] if "--" in words else words
    return "-h" in options or "--help" in options


def _tell(text: str, as_json: bool, hint: str | None = None) -> None:
    if as_json:
        told = {"ok": False, "error": text} | ({} if hint is None else {"hint": hint})
        print(compact(told), file=sys.stderr)
    else:
        print(f"Error: {text}" + ("" if hint is None else f"; {hint}"), file=sys.stderr)
