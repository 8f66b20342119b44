"""The table of subcommands.

A subcommand is one row: its name, its own docopt text and what it does. Most do nothing but send
one wire command and print the reply; those are rows of ``Action`` keyed by their action word
(``queue pause``), or by "" for a subcommand without one (``push``). Dispatch, help, the reference
page and the tests read these rows.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bunqueue.cli.readers import ABSENT, Reader
from bunqueue.cli.usage import Args

Reply = Mapping[str, Any]

CONNECTION_OPTIONS = """
Connection options:
  -H HOST, --host HOST    Host of the broker (else HOST, BUNQUEUE_HOST, BQ_HOST; localhost).
  -p PORT, --port PORT    Its TCP port (else TCP_PORT, BUNQUEUE_TCP_PORT, BQ_TCP_PORT; 6789).
  {token}Token (else BQ_TOKEN, BUNQUEUE_TOKEN, which other users cannot read).
  --url URL               bunqueue://[:token@]host[:port], bunqueues:// for TLS.
  --tls                   Encrypt the connection.
  --tls-ca FILE           Trust the certificates in this file; implies --tls.
  --tls-no-verify         Do not check the certificate; implies --tls.
  --json                  Print the raw reply as JSON, errors as JSON on stderr.
"""

HELP_OPTION = """  -h, --help              Show this text.
"""


def done(_reply: Reply) -> Iterable[str]:
    """Print ``OK``."""
    return ("OK",)


def succeeds(_reply: Reply) -> int:
    """Return exit status 0 for any reply that is no error."""
    return 0


@dataclass(frozen=True, slots=True)
class Action:
    """One wire command: how its map is built and how its reply is told.

    Attributes:
        cmd: Name of the wire command.
        fields: Wire name -> reader.
        show: Reply -> lines for standard output.
        status: Reply -> exit status.
        hold: Reader of the milliseconds the broker may hold the command; lengthens our deadline.
        confirm: Question asked on a terminal before it is sent, None for none.
    """

    cmd: str
    fields: Mapping[str, Reader] = field(default_factory=dict)
    show: Callable[[Reply], Iterable[str]] = done
    status: Callable[[Reply], int] = succeeds
    hold: Reader | None = None
    confirm: str | None = None

    def command(self, args: Args) -> dict[str, Any]:
        """Build the command map."""
        values = {name: read(args) for name, read in self.fields.items()}
        return {"cmd": self.cmd} | {n: v for n, v in values.items() if v is not ABSENT}


Run = Callable[[Args], int]


@dataclass(frozen=True, slots=True)
class Subcommand:
    """One row: ``run`` is a function, or the actions by word."""

    name: str
    usage: str
    run: Run | Mapping[str, Action | Run]

    @property
    def summary(self) -> str:
        return self.usage.split("\n", 1)[0]


SUBCOMMANDS: dict[str, Subcommand] = {}


def declare(
    name: str,
    usage: str,
    run: Run | Mapping[str, Action | Run],
    *,
    examples: str,
    connects: bool = True,
) -> None:
    """Add a row.

    Args:
        name: First word behind ``bunqueue``.
        usage: One line that says what it does, the usage section, its own options.
        run: What it does.
        examples: Lines to copy, shown last.
        connects: It talks to a broker, so it has the connection options too.
    """
    assert name not in SUBCOMMANDS, f"subcommand {name} declared twice"
    text = usage.strip() + "\n"
    if connects:
        token = "--token TOKEN" if "\n  -t " in text else "-t TOKEN, --token TOKEN"
        text += CONNECTION_OPTIONS.replace("{token}", token.ljust(22) + "  ")
    elif "options:" not in text.lower():
        text += "\nOptions:\n"
    text += f"{HELP_OPTION}\nExamples:\n  {examples.strip()}\n"
    SUBCOMMANDS[name] = Subcommand(name, text, run)
