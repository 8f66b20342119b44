"""The storage of a broker without a file: nothing is kept, so nothing is waited for."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bunqueue.engine.ports import NO_WAIT, Committed

if TYPE_CHECKING:
    from bunqueue.engine.job import Job


class MemoryStorage:
    """Fulfils ``ports.Storage`` by doing nothing."""

    is_persistent = False
    is_refusing = False
    is_congested = False
    is_hanging = False
    written_by: str | None = None

    def __init__(self) -> None:
        self.answer_waits = NO_WAIT
        self.before_cut: Callable[[], None] | None = None  # never called: there are no batches

    def added(self, job: "Job") -> None:
        """Nothing to note."""

    def changed(self, job: "Job") -> None:
        """Nothing to note."""

    def rewritten(self, job: "Job") -> None:
        """Nothing to note."""

    def removed(self, job: "Job") -> None:
        """Nothing to note."""

    def put(self, table: str, key: str, values: tuple[Any, ...]) -> None:
        """Nothing to note."""

    def delete(self, table: str, key: str) -> None:
        """Nothing to note."""

    def sync(
        self,
        undo: Callable[..., None] | None = None,  # noqa: ARG002  # nothing can fail
        args: tuple[Any, ...] = (),
        then: Callable[..., None] | None = None,
        durable: bool = False,  # noqa: ARG002  # there is no disk
    ) -> None:
        """Call ``then`` at once; no answer waits."""
        if then is not None:
            then(*args)

    def claimed(self) -> None:
        """Nothing to wait for."""

    def hold(self, deliver: Callable[[Committed], None]) -> None:
        """Let the answer leave at once."""
        deliver(True)

    def follow(self, deliver: Callable[[Committed], None]) -> None:
        """Nothing is committed, so nothing is waited for."""
        deliver(True)

    def on_relief(self, callback: Callable[[], None]) -> None:
        """Call back at once: there is no backlog."""
        callback()

    def status(self) -> dict[str, Any]:
        """Return that all is well."""
        return {"diskFull": False, "error": None, "since": None}

    def sizes(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return that nothing waits."""
        return {}, {}

    def load(self) -> "NothingSaved":
        """Return an empty file's content."""
        return NothingSaved()

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing to close."""


class NothingSaved:
    """What a broker without a file starts from."""

    seq = 0
    was_clean = True

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, tuple[Any, ...]]] = {}

    def jobs(self, queue_of: Callable[[str], Any]) -> Iterator["Job"]:  # noqa: ARG002  # none
        """Yield nothing."""
        return iter(())
