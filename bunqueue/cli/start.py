"""The subcommand start: read the settings, print the banner, serve."""

from bunqueue.cli.table import declare
from bunqueue.cli.usage import Args

SETTING_OPTIONS = ()


def start(args: Args) -> int:
    """Waits until the broker has stopped."""
    raise SystemExit(1)


declare(
    "start",
    """
Start the broker.

Usage:
  bunqueue start [options]

Options:
  --tcp-port PORT         Port of the job protocol.
""",
    start,
    examples="bunqueue start --data-path /var/lib/bunqueue/queue.db",
    connects=False,
)
