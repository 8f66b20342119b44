"""The figures that the last batches changed, one row for each batch.

A row for each queue that has an outcome would double what a job costs the disk once the jobs of a
batch are of many queues. So a batch writes one row with the figures of all its queues, and only
the newest of a queue count. A queue gets a row of its own when the last entry that it has in the
log leaves it: the log is bounded, and queues that are busy stay in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from bunqueue.protocol.codec import pack, unpack

if TYPE_CHECKING:
    from bunqueue.engine.ports import Storage

LOG: Final = "metrics_log"
ROWS_MAX: Final = 500
ENTRIES_MAX: Final = 50_000  # in all rows, 60 bytes each; one more batch for an instant

Entry = tuple[Any, ...]
"""A queue's name and its figures; the name alone if they are forgotten."""


class MetricsLog:
    """The rows that are in the file, oldest first."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, list[str]]] = deque()  # number, names of queues
        self._newest: dict[str, int] = {}  # name -> number of the newest row that has it
        self._entries = 0
        self._number = 0

    def __contains__(self, name: str) -> bool:
        return name in self._newest

    @property
    def entries(self) -> int:
        """How many entries all rows have."""
        return self._entries

    def add(self, storage: Storage, entries: Sequence[Entry]) -> list[str]:
        """Write one row; return the queues that have no entry any more: they need own rows."""
        self._number += 1
        names = [entry[0] for entry in entries]
        self._note(self._number, names)
        storage.put(LOG, _slot(self._number), (self._number, pack(entries)))
        left: list[str] = []
        while self._entries > ENTRIES_MAX or len(self._rows) > ROWS_MAX:
            number, names = self._rows.popleft()
            self._entries -= len(names)
            if _slot(number) != _slot(self._number):  # else it is overwritten
                storage.delete(LOG, _slot(number))
            for name in names:
                if self._newest[name] == number:
                    del self._newest[name]
                    left.append(name)
        return left

    def restore(self, tables: dict[str, dict[str, tuple[Any, ...]]]) -> dict[str, Sequence[int]]:
        """Read the rows back; return the newest figures of each queue that has some."""
        newest: dict[str, Sequence[int]] = {}
        for number, packed in sorted(tables.get(LOG, {}).values()):
            entries = unpack(packed)
            self._note(number, [entry[0] for entry in entries])
            self._number = number
            newest.update((name, figures) for name, *figures in entries)
        return newest

    def _note(self, number: int, names: list[str]) -> None:
        self._rows.append((number, names))
        self._entries += len(names)
        self._newest.update(dict.fromkeys(names, number))


def _slot(number: int) -> str:
    return str(number % ROWS_MAX)
