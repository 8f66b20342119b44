"""The subcommand start: read the settings, say what listens where, serve."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bunqueue.cli.show import block
from bunqueue.cli.table import declare
from bunqueue.cli.usage import Args
from bunqueue.config import ROWS, Row, load_settings

if TYPE_CHECKING:
    from bunqueue.server.main import Started

FLAGS = tuple(row for row in ROWS if row.flag is not None)


def start(args: Args) -> int:
    """Waits until the broker has stopped; 0 when it drained."""
    from bunqueue.server.main import serve

    flags = {row.name: args[row.flag] for row in FLAGS if row.flag}
    return serve(load_settings(flags, config_file=args["--config"]), tell)


def tell(started: "Started") -> None:
    """Print the banner."""
    print("\n".join(banner(started)), flush=True)


def banner(started: "Started") -> Iterator[str]:
    """Yield what listens where, and how safe it is; never a secret."""
    scheme = "https" if started.has_tls else "http"
    http = started.http
    yield f"bunqueue {started.version}, process {started.pid}"
    yield from block(
        (
            ("Jobs", f"bunqueue{'s' if started.has_tls else ''}://{place(started.tcp)}"),
            ("HTTP", http if isinstance(http, str) else f"{scheme}://{place(http)}"),
            ("Storage", started.data_path or "memory only, jobs end with this process"),
            ("TLS", "on" if started.has_tls else "off"),
            ("Authentication", "token required" if started.has_auth else "none, open to all"),
        )
    )


def place(address: tuple[str, int]) -> str:
    """Return host and port as a URL has them."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def option(row: Row) -> str:
    """Return the option line of a setting."""
    shown = f"{row.flag} {value_name(row)}"
    default = "" if row.default in (None, (), "") else f" ({row.default} if not given)"
    return f"  {shown}\n                          {row.doc}{default}"


def value_name(row: Row) -> str:
    """Return the word that stands for the value in the help text."""
    last = row.name.rpartition("_")[2]
    return {"port": "PORT", "file": "FILE", "path": "FILE", "ms": "MS", "tokens": "LIST"}.get(
        last, "HOST" if row.name == "host" else "N"
    )


declare(
    "start",
    f"""
Start the broker.

Usage:
  bunqueue start [options]

Every other setting comes from the environment or from a TOML file, see docs/reference/settings.md.

Options:
  -c FILE, --config FILE  Settings in TOML; bunqueue.toml or pyproject.toml here if not given.
{chr(10).join(map(option, FLAGS))}
""",
    start,
    examples="""bunqueue start --data-path /var/lib/bunqueue/queue.db
  AUTH_TOKENS=secret bunqueue start --host 127.0.0.1 --tcp-port 7000 --http-port 7001""",
    connects=False,
)
