"""What an import came to: what came over, what was changed on the way, what was refused and why."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bunqueue.engine.states import STATES

# Refused and changed rows that are kept one by one; beyond it they are counted, and a listener
# still gets each refused one.
TOLD_MAX: Final = 1_000

# What the original server never writes to its file, so that nobody can take it over.
NOT_IN_THE_FILE: Final = ("webhooks", "logs of jobs", "leases", "registered workers")


class Unfit(Exception):
    """A row cannot come over; the text says why."""


@dataclass(frozen=True, slots=True)
class Told:
    """A row that was refused or changed.

    Attributes:
        table, key: Where it stands in the source.
        why: What is wrong with it, or what was left out of it.
    """

    table: str
    key: str
    why: str


Note = Callable[[str], None]  # called with what is left out of a row
# Called with each refused row: what is told of it, and its columns by name.
OnRefused = Callable[[Told, dict[str, Any]], None]


@dataclass(slots=True)
class Report:
    """Figures of one import.

    Attributes:
        jobs: state -> number that came over; dead letters are "failed".
        rows: other things by name -> number that came over.
        left_out: name -> number of rows that have no meaning here.
        refused, changed: The first ``TOLD_MAX`` of each.
        refused_total, changed_total: All of them.
    """

    jobs: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(STATES, 0)))
    rows: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    refused: list[Told] = field(default_factory=list)
    refused_total: int = 0
    changed: list[Told] = field(default_factory=list)
    changed_total: int = 0
    on_refused: OnRefused | None = None

    def refuse(self, table: str, key: object, why: str, columns: dict[str, Any]) -> None:
        """Note a row that does not come over."""
        told = Told(table, _shown(key), why)
        self.refused_total += 1
        if len(self.refused) < TOLD_MAX:
            self.refused.append(told)
        if self.on_refused is not None:
            self.on_refused(told, columns)

    def noting(self, table: str, key: object) -> Note:
        """Return what notes that a row comes over without a part of it."""

        def note(what: str) -> None:
            self.changed_total += 1
            if len(self.changed) < TOLD_MAX:
                self.changed.append(Told(table, _shown(key), what))

        return note


def _shown(key: object) -> str:
    return key if isinstance(key, str) else repr(key)
