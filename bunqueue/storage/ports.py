"""What the mutation log needs: someone who commits its batches, and how that one answers."""

from typing import Protocol

from bunqueue.storage import writer


class Writer(Protocol):
    """Who commits batches, one at a time. All calls back are made by the loop or by ``wait``."""

    def start(self, listener: "Listener") -> None:
        """Begin."""

    def submit(self, batch: writer.Batch) -> None:
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
