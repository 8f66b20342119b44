"""What the mutation log needs: someone who commits its batches, and how that one answers."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from bunqueue.storage import writer

if TYPE_CHECKING:
    from bunqueue.engine.job import Job


class Images(Protocol):
    """The rows that one batch writes of the hot tables, in the form that its writer takes.

    Attributes:
        is_empty: No row comes or goes.
        highest_seq: The newest admission number among the rows of ``jobs``, or 0.
    """

    @property
    def is_empty(self) -> bool:
        """See above."""

    @property
    def highest_seq(self) -> int:
        """See above."""

    def batch(
        self, number: int, is_durable: bool, upserts: writer.Rows, deletes: writer.Rows
    ) -> Any:
        """Return what ``Writer.submit`` takes: these rows and those of small tables."""


class Writer(Protocol):
    """Who commits batches, one at a time. All calls back are made by the loop or by ``wait``.

    Attributes:
        kind: What it is, for people.
    """

    kind: str

    def start(self, listener: "Listener") -> None:
        """Begin."""

    def images(self, jobs: "Iterable[Job]") -> Images:
        """Return the rows that the jobs need now, as their dirty bits say; changes nothing.

        Raises:
            Exception: One of ``batch.NO_IMAGE``: a job is not such that a row could hold it.
        """

    def submit(self, batch: Any) -> None:
        """Have the batch committed; the listener is told by its number."""

    def wait(self, timeout_ms: float) -> None:
        """Waits until the submitted batch has been answered, at most that long."""

    def close(self, timeout_ms: float) -> None:
        """Waits until the file is closed; nothing is in flight."""


class Listener(Protocol):
    """Who is told what became of a batch."""

    def on_outcome(self, outcome: writer.Outcome) -> None:
        """Take the answer to the batch in flight."""

    def on_writer_down(self, why: str) -> None:
        """Note that the writer has died and is being replaced; the batch will still be answered."""

    def on_writer_up(self) -> None:
        """Note that a new writer has opened the file."""

    def on_writer_lost(self, why: str) -> None:
        """Note that there is no writer any more; the batch will not be answered."""
