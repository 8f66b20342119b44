"""The ledger: whether every job that was added is accounted for when the run is over.

What was added and completed is read off the commands as they are answered; what is left is asked of
the broker. A command whose answer never came may or may not have taken effect, so its jobs widen
what is accepted. A process has one ledger, since only all its users together can be compared with
the broker; a run over several processes has no check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bunqueue.client.requests import is_late

ADDING = {"PUSH": None, "PUSHB": "jobs", "PUSHF": "jobs"}  # command -> its list of jobs, if any
COMPLETING = {"ACK": None, "ACKB": "ids"}


class Ledger:
    """Counts the jobs of a run.

    Attributes:
        added: Jobs that the broker has taken.
        completed: Jobs whose success it has taken.
        unknown: Jobs in commands whose answer never came.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin a run."""
        self.added = 0
        self.completed = 0
        self.unknown = 0

    def note(self, command: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
        """Count the jobs of a command that the broker has taken."""
        name = command["cmd"]
        if name in ADDING:
            self.added += jobs_in(command)
        elif name in COMPLETING and not is_late(dict(reply)):
            ignored = (reply.get("data") or {}).get("ignoredIds") or ()
            self.completed += jobs_in(command) - len(ignored)

    def note_unknown(self, command: Mapping[str, Any]) -> None:
        """Count the jobs of a command whose answer never came."""
        if command["cmd"] in ADDING or command["cmd"] in COMPLETING:
            self.unknown += jobs_in(command)

    def missing(self, left: int) -> int:
        """Return how many jobs are neither completed nor among those ``left`` at the broker.

        Below zero are jobs that nobody has added, or that count twice.
        """
        missing = self.added - self.completed - left
        return 0 if abs(missing) <= self.unknown else missing


LEDGER = Ledger()


def jobs_in(command: Mapping[str, Any]) -> int:
    """Return how many jobs a command is about."""
    key = ADDING.get(command["cmd"]) or COMPLETING.get(command["cmd"])
    return 1 if key is None else len(command[key])
