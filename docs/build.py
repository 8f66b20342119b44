"""Write the reference pages, and the tables of docs/protocol.md, from the tables in the code.

``python docs/build.py`` writes them; with ``--check`` nothing is written, and the exit status is 1
when a page is not what the tables say. Of docs/protocol.md only what stands between the marks
``<!-- made: ... -->`` and ``<!-- /made -->`` is written; the rest is by hand.
"""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PROTOCOL = "protocol.md"
NOTE = "<!-- Made by docs/build.py from the tables in the code: change those, then run it. -->"


def main(argv: list[str]) -> int:
    """Write or check all pages and return the exit status."""
    is_check = "--check" in argv
    stale = [page for page, build in BUILDERS.items() if not settle(page, build(), is_check)]
    for page in stale:
        print(f"docs/{page} is stale: run python docs/build.py", file=sys.stderr)
    return 1 if stale else 0


def settle(page: str, lines: Iterable[str], is_check: bool) -> bool:
    """Write a page, or tell whether it is up to date."""
    path, text = DOCS / page, "\n".join(lines).rstrip() + "\n"
    if is_check:
        return path.exists() and path.read_text("utf-8") == text
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    return True


def commands() -> Iterator[str]:
    """Yield the page of wire commands."""
    from bunqueue.protocol.options import OPTION_FIELDS

    commands = all_commands()
    yield from ("# Commands", "", NOTE, "")
    yield f"The broker answers {len(commands)} commands."
    yield "Each is a MessagePack map with `cmd`, its fields, and `reqId`, echoed when it is given."
    yield "A reply has `ok`, and `error` when that is false."
    yield "Fields are checked in the order shown; the first problem is the answer."
    yield "What each answers, with examples, is told by [the protocol](../protocol.md)."
    for name in sorted(commands, key=str.lower):
        yield from ("", f"## {name}", "", *command(commands[name], "#job-options"))
    yield from ("", "## Job options", "", "What PUSH takes beside its fields, and PUSHB per job.")
    yield from fields_table(OPTION_FIELDS)


def all_commands() -> dict[str, Any]:
    """Return the rows of all commands by name."""
    import bunqueue.commands
    from bunqueue.commands.registry import COMMANDS

    # A command is in the table once its module has been imported.
    for module in pkgutil.iter_modules(bunqueue.commands.__path__):
        importlib.import_module(f"bunqueue.commands.{module.name}")
    return COMMANDS


def command(row: Any, options_anchor: str) -> Iterator[str]:
    """Yield what is known of a command: its purpose, its marks, its fields."""
    from bunqueue.protocol.options import OPTION_FIELDS

    yield from prose(row.run.__doc__)
    marks = {
        "Needs no authentication.": row.is_open,
        "Changes something.": row.mutates,
        "May wait before it answers.": row.waits,
        "About many jobs, it is done in slices and others are served in between.": row.is_long,
        f"Takes the [job options]({options_anchor}) beside its fields.": row.takes_options,
    }
    held = [mark for mark, holds in marks.items() if holds]
    if held:
        yield from ("", *held)
    own = row.fields
    if row.takes_options:
        own = {field: own[field] for field in own if field not in OPTION_FIELDS}
    yield from fields_table(own)


def protocol() -> Iterator[str]:
    """Yield the page of the protocol, its made parts anew."""
    rows = all_commands()
    text = (DOCS / PROTOCOL).read_text("utf-8")

    def made(mark: re.Match[str]) -> str:
        kind, _, name = mark[1].partition(" ")
        lines = command(rows[name], "#job-options") if kind == "command" else options_table()
        return "\n".join((f"<!-- made: {mark[1]} -->", *lines, "<!-- /made -->"))

    yield re.sub(r"<!-- made: (.+?) -->\n.*?<!-- /made -->", made, text, flags=re.DOTALL)


def options_table() -> Iterator[str]:
    """Yield a table of the job options."""
    from bunqueue.protocol.options import OPTIONS

    yield from ("| option | type | default | meaning |", "| --- | --- | --- | --- |")
    for row in OPTIONS:
        kind, doc = cell(row.field.kind()), cell(row.field.doc)
        yield f"| `{row.wire}` | {kind} | {default(row.default)} | {doc} |"


def fields_table(fields: object) -> Iterator[str]:
    """Yield a table of fields: type and bounds, need, meaning."""
    assert isinstance(fields, dict)
    if not fields:
        return
    yield from ("", "| field | type | required | meaning |", "| --- | --- | --- | --- |")
    for name, field in fields.items():
        need = "yes" if field.required else ""
        yield f"| `{name}` | {cell(field.kind())} | {need} | {cell(field.doc)} |"


def settings() -> Iterator[str]:
    """Yield the page of settings."""
    from bunqueue.config import ROWS

    yield from ("# Settings", "", NOTE, "")
    yield "A value comes from the first of: flag of `bunqueue start`, environment, file, default."
    yield "The file is TOML: `bunqueue.toml`, or the table `tool.bunqueue` of `pyproject.toml`."
    yield "Spans are milliseconds, or have a unit: `500ms`, `30s`, `5m`, `2h`, `1d`."
    yield "A secret may also be read from a file whose path is in `NAME_FILE`."
    yield from ("", "| environment | in the file | flag | default | meaning |")
    yield "| --- | --- | --- | --- | --- |"
    for row in ROWS:
        names = ", ".join(f"`{name}`" for name in row.env)
        key = f"`{'.'.join(row.toml)}`" if row.toml else ""
        flag = f"`{row.flag}`" if row.flag else ""
        yield f"| {names} | {key} | {flag} | {default(row.default)} | {cell(row.doc)} |"


def default(value: object) -> str:
    """Return a default as the page shows it; nothing for none."""
    if value in (None, (), ""):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def command_line() -> Iterator[str]:
    """Yield the page of subcommands: their help texts as they are."""
    from bunqueue.cli.dispatch import overview
    from bunqueue.cli.table import SUBCOMMANDS

    yield from ("# Command line", "", NOTE, "")
    yield "Exit status 0: done; 1: refused, unreachable or unknown command; 2: bad usage."
    yield from ("", "```text", *overview().splitlines(), "```")
    for _, row in sorted(SUBCOMMANDS.items()):
        yield from ("", f"## bunqueue {row.name}", "", "```text", *row.usage.splitlines(), "```")


def metrics() -> Iterator[str]:
    """Yield the page of what Prometheus is told."""
    from bunqueue.broker import Broker, EngineSettings
    from bunqueue.commands.targets import AllowedTargets
    from bunqueue.config import load_settings
    from bunqueue.engine.sizes import QUEUE_SIZES, SIZES
    from bunqueue.server.host import ServerHost
    from bunqueue.server.loop import HubAlarm, NoGate
    from bunqueue.server.prometheus import SERVER_BUFFERS, SERVER_ENTRIES, Prometheus
    from bunqueue.storage.memory import MemoryStorage

    broker = Broker(MemoryStorage(), EngineSettings(), alarm=HubAlarm(), gate=NoGate())
    settings = load_settings({}, environ={})
    host = ServerHost(broker, lambda: {"tcp": 0, "ws": 0, "sse": 0}, settings, AllowedTargets())
    host.file_bytes = lambda: 0  # as with a file
    broker.host = host
    broker.engine.open_queue("q")
    yield from ("# Metrics", "", NOTE, "")
    yield "What the command `Prometheus` and `bunqueue metrics` tell."
    yield "The names of collections and buffers stand below."
    yield from ("", "| metric | type | labels | meaning |", "| --- | --- | --- | --- |")
    for family in Prometheus(broker, 1, _every_size).collect():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        told = ", ".join(f"`{label}`" for label in sorted(labels))
        yield f"| `{name}` | {family.type} | {told} | {cell(family.documentation)} |"
    yield from ("", "## Collections", "", "`bunqueue_collection_entries` by `collection`.")
    yield "Those of queues are counted by the cleanup, which comes every ten seconds."
    yield from ("", "| collection | meaning |", "| --- | --- |")
    rows = [(row.name, row.told) for row in (*SIZES, *QUEUE_SIZES)]
    yield from (f"| `{name}` | {cell(told)} |" for name, told in (*rows, *SERVER_ENTRIES.items()))
    yield from ("", "## Buffers", "", "`bunqueue_buffer_bytes` by `buffer`.")
    yield from ("", "| buffer | meaning |", "| --- | --- |")
    yield from (f"| `{name}` | {cell(told)} |" for name, told in SERVER_BUFFERS.items())


def _every_size() -> tuple[dict[str, int], dict[str, int]]:
    from bunqueue.server.prometheus import SERVER_BUFFERS, SERVER_ENTRIES

    return dict.fromkeys(SERVER_ENTRIES, 0), dict.fromkeys(SERVER_BUFFERS, 0)


def prose(docstring: str | None) -> Iterator[str]:
    """Yield a docstring's lines without their indentation."""
    first, _, rest = (docstring or "").partition("\n")
    yield first.strip()
    yield from (line.strip() for line in rest.rstrip().splitlines())


def cell(text: str) -> str:
    """Return text that cannot break a table's row."""
    return text.replace("|", "\\|").replace("\n", " ")


BUILDERS: dict[str, Callable[[], Iterator[str]]] = {
    PROTOCOL: protocol,
    "reference/commands.md": commands,
    "reference/settings.md": settings,
    "reference/metrics.md": metrics,
    "reference/cli.md": command_line,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
