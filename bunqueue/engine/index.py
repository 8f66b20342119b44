"""Where to find a job by its id: all jobs that are kept, in whatever place.

Split into many small dicts, because one dict of a million entries stops everything for 100 ms each
time it grows; the pieces grow one after the other.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bunqueue.engine.job import Job

PIECES = 256
PIECE_BYTES_SMALL = 16_384  # pieces below this are left alone
ENTRY_BYTES_LOOSE = 400  # a dict takes 30 to 110 bytes an entry; above this most of it is empty


class JobIndex:
    """id -> job."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[dict[str, Job]] = [{} for _ in range(PIECES)]

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def __iter__(self) -> "Iterator[Job]":
        for piece in self._pieces:
            yield from piece.values()

    def get(self, job_id: str) -> "Job | None":
        """Return the job, or None."""
        return self._pieces[hash(job_id) & 255].get(job_id)

    def put(self, job: "Job") -> None:
        """Remember the job under its id, in place of whatever was there."""
        job_id = job.id
        self._pieces[hash(job_id) & 255][job_id] = job

    def drop(self, job: "Job") -> None:
        """Forget the job, unless the id has passed to another one."""
        piece = self._pieces[hash(job.id) & 255]
        if piece.get(job.id) is job:
            del piece[job.id]

    def shrink(self) -> bool:
        """Give the room of jobs that are gone back: a dict never does by itself.

        Returns:
            True if so much was given back that the process may return memory to the system.
        """
        shrunk = 0
        for number, piece in enumerate(self._pieces):
            size_bytes = piece.__sizeof__()
            if size_bytes > PIECE_BYTES_SMALL and size_bytes > len(piece) * ENTRY_BYTES_LOOSE:
                self._pieces[number] = dict(piece)
                shrunk += 1
        return shrunk * 2 > PIECES
