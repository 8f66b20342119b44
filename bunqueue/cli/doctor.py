"""The subcommand doctor: what is wrong with a broker and its file, and what to do about it.

The broker looks at itself (``Diagnose``), since it alone knows its jobs, its leases and its
settings. Here we look at what it cannot see: whether it is reached, whether its clock and version
are ours, and whether the file is sound. A file is looked at without a broker too.
"""

import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import bunqueue
from bunqueue.cli.call import address, connect
from bunqueue.cli.cures import causes, cure
from bunqueue.cli.show import as_json, printable
from bunqueue.cli.table import declare
from bunqueue.cli.usage import Args
from bunqueue.compiled import CORE
from bunqueue.config import load_settings
from bunqueue.errors import BunqueueError, ConfigError
from bunqueue.protocol.findings import (
    OK,
    PROBLEM,
    WARNING,
    Finding,
    counted,
    finding,
    span_text,
    worst,
)

if TYPE_CHECKING:
    from bunqueue.client.connection import Connection

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
LOOK_S: Final = 60.0  # a broker with a million jobs takes a second or two
APART_MS: Final = 2_000  # two clocks that the time service keeps are closer
APART_MS_MAX: Final = 60_000
BESIDE: Final = ("disk", "log", "permissions")  # told by the broker of its own file as well
CHECK_WIDTH: Final = 16

Facts = dict[str, Any]


def doctor(args: Args) -> int:
    """Waits until everything was looked at; 1 if something is a problem."""
    facts, findings = _of_broker(args)
    path, told = _data_path(args, facts)
    findings += told
    if path is not None:
        findings = list(_with_file(findings, path, facts))
    if args["--json"]:
        print(as_json({"ok": worst(findings) != PROBLEM, **facts, "findings": findings}))
    else:
        for line in lines(findings):
            print(line)
    return int(worst(findings) == PROBLEM)


def lines(findings: list[Finding]) -> Iterator[str]:
    """Yield a line for each finding, and one that counts them."""
    for each in findings:
        text = each["text"] + (f"; {each['cure']}" if each.get("cure") else "")
        yield printable(f"{each['level'].ljust(7)}  {each['check'].ljust(CHECK_WIDTH)}  {text}")
    problems, warnings, fine = (
        sum(each["level"] == level for each in findings) for level in (PROBLEM, WARNING, OK)
    )
    yield f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}, {fine} fine"


# -- the broker ------------------------------------------------------------------------------------


def _of_broker(args: Args) -> tuple[Facts, list[Finding]]:
    """Ask the broker; one that does not answer is a finding too."""
    place = address(args, os.environ)
    where = f"{place['host']}:{place['port']}"
    facts: Facts = {"client": bunqueue.__version__, "clientCore": CORE}
    try:
        with connect(place) as connection:
            greeting = connection.call({"cmd": "Hello"})
            facts |= {name: greeting[name] for name in ("protocolVersion", "server")}
            facts["compatibility"] = greeting["version"]
            clock = _clock(connection)
            told = _diagnosis(connection, where)
    except BunqueueError as error:
        return facts, [_unreached(args, where, error)]
    broker = {name: value for name, value in told.items() if name != "findings"}
    return facts | broker, [_versions(facts, broker), clock, *told["findings"]]


def _unreached(args: Args, where: str, error: BunqueueError) -> Finding:
    is_down = any(isinstance(each, ConnectionRefusedError) for each in causes(error))
    if args["--data-path"] and is_down:
        text = f"nothing answers at {where}: only the file was looked at"
        return finding("broker", WARNING, text, cure(error))
    return finding("broker", PROBLEM, str(error), cure(error))


def _diagnosis(connection: "Connection", where: str) -> dict[str, Any]:
    try:
        told = connection.call({"cmd": "Diagnose"}, timeout=LOOK_S)["diagnosis"]
    except BunqueueError as error:
        if not str(error).startswith("Unknown command"):
            raise
        text = f"the broker at {where} cannot look at itself"
        return {"findings": [finding("broker", WARNING, text, "upgrade it to this version")]}
    return dict(told)


def _versions(facts: Facts, broker: Facts) -> Finding:
    ours, theirs = facts["client"], broker.get("version")
    text = f"client {ours} ({CORE})"
    if theirs is not None:
        text += f"; broker {theirs} ({broker['core']}), Python {broker['python']}"
        if broker["sqlite"] is not None:
            text += f", SQLite {broker['sqlite']}, written by a {broker['writer']}"
    text += f"; protocol {facts['protocolVersion']}, compatible with {facts['compatibility']}"
    level = OK if theirs in (None, ours) else WARNING
    return finding("versions", level, text, "bring both to one version")


def _clock(connection: "Connection") -> Finding:
    """Compare both clocks by one round trip."""
    before = time.time()
    theirs = connection.call({"cmd": "Ping"})["data"]["time"]
    after = time.time()
    apart_ms = theirs - (before + after) * 500
    doubt_ms = (after - before) * 500
    sign = "ahead of" if apart_ms > 0 else "behind"
    text = f"the broker's clock is {span_text(abs(apart_ms))} {sign} this machine's"
    level = OK
    if abs(apart_ms) - doubt_ms > APART_MS:
        level = WARNING if abs(apart_ms) - doubt_ms <= APART_MS_MAX else PROBLEM
    return finding("clock", level, text, "have a time service keep both clocks")


# -- the file --------------------------------------------------------------------------------------


def _data_path(args: Args, facts: Facts) -> tuple[str | None, list[Finding]]:
    """Return the file to look at: the one named, the broker's if it is here, the settings'."""
    if args["--data-path"]:
        return args["--data-path"], []
    place = address(args, os.environ)
    path = facts.get("dataPath")
    if path is not None:
        is_here = place["host"] in LOOPBACK and _runs_here(path, facts["pid"])
        return (path if is_here else None), []
    if "version" in facts:
        return None, []  # it keeps its jobs in memory
    try:
        return load_settings().data_path, []
    except ConfigError as error:
        text = f"a broker would not start here: {error}"
        return None, [finding("settings here", WARNING, text, "mend the setting that it names")]


def _runs_here(path: str, pid: int) -> bool:
    """Say whether the file that the broker names is the one of that path here."""
    try:
        with open(f"{path}.lock", "rb") as lock:
            return lock.read(32).strip() == str(pid).encode() and os.path.isfile(path)
    except OSError:
        return False


def _with_file(findings: list[Finding], path: str, facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what is known with the file's findings in the place of the broker's own of it."""
    from bunqueue.storage import inspection  # late: it loads SQLite

    is_theirs = facts.get("dataPath") == os.path.realpath(path)
    for each in findings:
        if not (is_theirs and each["check"] in BESIDE):
            yield each
    yield from inspection.inspect(path)


declare(
    "doctor",
    """
Look for what is wrong with a broker and its data file, and tell what to do.

Usage:
  bunqueue doctor [options]

One line for each check: 'ok', 'warning' (it may be meant) or 'problem', with the cause and the
cure. The file is the one named; else the broker's, if that runs on this machine; else the one of
the settings here. It is only read, and may be in use or damaged; meanwhile its log cannot shrink.

Exit status: 0 nothing but warnings, 1 a problem, or no broker and no file to look at, 2 bad usage.

Doctor options:
  -d FILE, --data-path FILE
                          The data file; it is looked at without a broker too.
""",
    doctor,
    examples="""bunqueue doctor
  bunqueue doctor --data-path /var/lib/bunqueue/queue.db
  bunqueue doctor --host queue.example.org --json""",
)
