"""The subcommand import-db: go on from the database of the original server."""

import base64
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bunqueue.cli.progress import Display, meter
from bunqueue.cli.show import as_json, plain, table
from bunqueue.cli.table import declare
from bunqueue.cli.usage import Args, UsageError
from bunqueue.config import load_settings
from bunqueue.errors import BunqueueError

if TYPE_CHECKING:
    from bunqueue.storage.reference.report import OnRefused, Report, Told

INCOMPLETE: Final = 3  # it has come over, but for what was refused
SHOWN_MAX: Final = 20  # refused and changed rows that are shown one by one; --json has more
DATABASE_SUFFIXES: Final = ("", "-wal", "-shm", "-journal", ".lock")  # what lies beside one
LONG_JOBS_MIN: Final = 20_000  # from here on it takes more than a moment, and says how far it is


def import_db(args: Args) -> int:
    """Waits until the file has come over; 0 when all of it has, 3 when rows were refused."""
    from bunqueue.storage.reference.importing import import_file

    target = load_settings(
        {"data_path": args["--data-path"]}, config_file=args["--config"]
    ).data_path
    if target is None:
        raise UsageError("name the file to import into with --data-path or BUNQUEUE_DATA_PATH")
    with ExitStack() as stack:
        report = import_file(
            args["<file>"],
            target,
            is_dry=args["--dry-run"],
            tell=_teller(stack),
            on_refused=_keeper(args["--refused"], (args["<file>"], target), stack),
        )
    names = {"source": args["<file>"], "target": target, "dryRun": args["--dry-run"]}
    if args["--json"]:
        print(as_json({"ok": True, **names, **_as_map(report)}))
    else:
        print("\n".join(_lines(names, report)))
    return INCOMPLETE if report.refused_total else 0


def _teller(stack: ExitStack) -> Callable[[int, int], None]:
    """Return what shows how far a long import is, on standard error."""
    display: Display | None = None

    def tell(done: int, total: int) -> None:
        nonlocal display
        if total < LONG_JOBS_MIN:
            return
        if display is None:
            display = meter(total, "jobs read", sys.stderr)
            stack.callback(display[1])
        display[0](done)

    return tell


def _keeper(path: str | None, databases: tuple[str, str], stack: ExitStack) -> "OnRefused | None":
    """Return what writes each refused row to a file, one JSON map per line.

    The rows take the place of what the file held, so an import that is refused leaves it alone.
    """
    from bunqueue.storage.reference.importing import is_same_file

    if path is None:
        return None
    for database in databases:
        if any(is_same_file(path, database + suffix) for suffix in DATABASE_SUFFIXES):
            raise BunqueueError(f"{path} belongs to {database}: name another file with --refused")
    try:
        file = stack.enter_context(Path(path).open("a", encoding="utf-8"))  # noqa: SIM115  # it does
    except OSError as error:
        raise BunqueueError(f"cannot write {path}: {error.strerror}") from error
    is_first = True

    def keep(told: "Told", columns: dict[str, Any]) -> None:
        nonlocal is_first
        if is_first and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.truncate(0)
        is_first = False
        row = {"table": told.table, "key": told.key, "reason": told.why, "row": columns}
        file.write(json.dumps(row, ensure_ascii=False, default=_blob) + "\n")

    return keep


def _blob(value: object) -> object:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else str(value)


def _as_map(report: "Report") -> dict[str, Any]:
    from bunqueue.storage.reference.report import NOT_IN_THE_FILE

    return {
        "jobs": dict(report.jobs),
        "imported": dict(report.rows),
        "refusedTotal": report.refused_total,
        "refused": _told_maps(report.refused, "reason"),
        "changedTotal": report.changed_total,
        "changed": _told_maps(report.changed, "change"),
        "leftOut": dict(report.left_out),
        "notInTheFile": list(NOT_IN_THE_FILE),
    }


def _told_maps(rows: "Iterable[Told]", why: str) -> list[dict[str, str]]:
    return [{"table": row.table, "key": row.key, why: row.why} for row in rows]


def _lines(names: dict[str, Any], report: "Report") -> Iterator[str]:
    """Tell what came of it."""
    from bunqueue.storage.reference.report import NOT_IN_THE_FILE

    done = "Would import" if names["dryRun"] else "Imported"
    yield f"{done} {names['source']} into {names['target']}"
    yield ""
    rows = [(f"jobs {state}", count) for state, count in report.jobs.items()]
    rows += [(name, count) for name, count in report.rows.items() if count]
    yield from table(("What came over", "Number"), rows)
    for title, total, told in (
        ("Refused", report.refused_total, report.refused),
        ("Changed", report.changed_total, report.changed),
    ):
        yield ""
        yield f"{title}: {plain(total)}"
        yield from (f"  {row.table} {row.key}: {row.why}" for row in told[:SHOWN_MAX])
        if total > SHOWN_MAX:
            yield f"  and {total - SHOWN_MAX} more: see --json" + (
                " and --refused" if title == "Refused" else ""
            )
    yield ""
    for name, count in report.left_out.items():
        if count:
            yield f"Left out: {count} {name}"
    yield f"Never in such a file: {', '.join(NOT_IN_THE_FILE)}"


declare(
    "import-db",
    """
Go on from the database of the original server 2.9.5.

Usage:
  bunqueue import-db [options] [--] <file>

Stop the original server first, and do not start this one before it is done. The
file is only read. Either all of it comes over or, if anything goes wrong or the
process is killed, nothing; rows that cannot be read are refused one by one, and
told. The target must not hold anything yet.

Exit status: 0 all has come over, 3 all but what was refused, 1 nothing.

Options:
  -d FILE, --data-path FILE
                          Our file, made if it does not exist (else BUNQUEUE_DATA_PATH
                          and the other names that 'bunqueue start' takes it from).
  -c FILE, --config FILE  Settings in TOML; bunqueue.toml or pyproject.toml here if not given.
  -n, --dry-run           Read and check everything, write nothing.
  --refused FILE          Write each refused row with its reason to this file, as JSON lines.
  --json                  Print the figures as JSON, errors as JSON on stderr.
""",
    import_db,
    examples="""bunqueue import-db --dry-run --data-path queue.db bunq.db
  bunqueue import-db --data-path queue.db --refused refused.jsonl bunq.db""",
    connects=False,
)
