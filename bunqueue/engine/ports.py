"""What the engine needs from outside: somewhere to write, and someone who asks."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from bunqueue.engine.events import Event
    from bunqueue.engine.job import Job
    from bunqueue.engine.later import Later

# Bits of Job.dirty: what the storage has still to write of it.
NEW: Final = 1  # never written: the whole row
STATE: Final = 2  # the narrow state row
BODY: Final = 4  # the wide row again: payload, options, priority
REMOVED: Final = 8  # both rows go
WITHHELD: Final = 16  # set by the engine, of a job not added yet: no note of it comes to anything

# What an answer waits for; values of Storage.answer_waits and of Later.commits.
NO_WAIT: Final = 0
MUST_COMMIT: Final = (
    1  # it leaves after the commit; if that fails, an internal error leaves instead
)
SHOULD_COMMIT: Final = 2  # it leaves after the commit, and also if that fails (claims)

# What became of a commit: False if it failed; True, or the ids of those jobs whose rows no file
# takes and that were dropped, if it succeeded.
Committed = bool | frozenset[str]


class Storage(Protocol):
    """The mutation log and what was saved before.

    The engine tells what changed, in order; the storage writes later, in batches. It writes the
    image that a job has at that moment, so that several changes within one batch cost one row, and
    a job that came and went within a batch costs none. A batch commits as a whole or not at all.

    Attributes:
        is_persistent: Something survives the process. False turns every method but ``load`` and
            ``sync`` into nothing.
        answer_waits: Set by ``sync`` and ``claimed``: the answer of the operation that runs now
            must not leave before the commit of what was logged until now (``MUST_COMMIT`` or
            ``SHOULD_COMMIT``). The adapter that ran the command reads it and sets ``NO_WAIT``.
        is_refusing: The backlog is full; plain pushes must be refused.
        before_cut: Set by the engine: called just before a batch is made of what has been noted;
            may note more.
        is_hanging: The disk has not answered for a while: nobody is listened to meanwhile.
    """

    is_persistent: bool
    answer_waits: int
    is_refusing: bool
    before_cut: Callable[[], None] | None

    @property
    def is_hanging(self) -> bool:
        """See above."""

    def added(self, job: "Job") -> None:
        """Note a job that was never written before."""

    def changed(self, job: "Job") -> None:
        """Note a change of the job's state row: place, moments, attempts, token, result, extra."""

    def rewritten(self, job: "Job") -> None:
        """Note a change of the job's payload, options or priority."""

    def removed(self, job: "Job") -> None:
        """Note that the job is gone from the file, with all that belongs to it."""

    def put(self, table: str, key: str, values: tuple[Any, ...]) -> None:
        """Note a row of a small table (``storage/schema.py``); it replaces the old one."""

    def delete(self, table: str, key: str) -> None:
        """Note that a row of a small table is gone."""

    def sync(
        self,
        undo: Callable[..., None] | None = None,
        args: tuple[Any, ...] = (),
        then: Callable[..., None] | None = None,
        durable: bool = False,
    ) -> None:
        """Let the running operation's answer wait for the commit of all that was logged until now.

        Args:
            undo: ``undo(*args)`` is called if that commit fails, newest first, before any answer
                leaves; it puts memory back to what it was, and its notes go into the next batch.
            args: Arguments of ``undo`` and of ``then``.
            then: ``then(*args)`` is called once it has been committed, before the answers leave.
            durable: The commit must survive a loss of power, not only of the process.
        """

    def claimed(self) -> None:
        """Let the running operation's answer wait for the commit, but leave even if that fails."""

    def follow(self, deliver: Callable[[Committed], None]) -> None:
        """Call ``deliver`` once the commit of what was logged until now has been tried.

        Undos have run by then; it is told what became of the commit. Nothing is hurried by it.
        """

    def load(self) -> "Saved":
        """Read what is in the file. Only before the first note."""


class Saved(Protocol):
    """What a file held when it was opened.

    Attributes:
        seq: Highest admission number ever given.
        tables: table -> key -> values, of the small tables.
        was_clean: The last process ended in good order.
    """

    seq: int
    tables: dict[str, dict[str, tuple[Any, ...]]]
    was_clean: bool

    def jobs(self, queue_of: Callable[[str], Any]) -> Iterator["Job"]:
        """Yield all jobs by ascending ``seq``, each in the place it was saved in, delivery None.

        Args:
            queue_of: Returns the engine's queue object of a name.
        """


class Peer(Protocol):
    """The connection or request that asks, as the engine sees it.

    Attributes:
        id: Names it in logs and in the workers' list.
        held: Jobs that were delivered to it and are not settled: job -> its delivery.
        parked: Its answers that are still to come.
        is_open: False once it has gone; nothing is delivered to it any more.
    """

    id: str
    held: "dict[Job, Any]"
    parked: "set[Later]"
    is_open: bool

    def hear(self, event: "Event") -> None:
        """Take an event of the queue that the peer has subscribed to. Never waits."""
