"""Where to find a job by its id: all jobs that are kept, in whatever place.

Split into many small dicts, because one dict of a million entries stops everything for 100 ms each
time it grows; the pieces grow one after the other. Which piece, bits of the hash tell that the
dicts do not begin with, or all keys of a piece would want the same few slots.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bunqueue.engine.job import Job

PIECES = 256
PIECE_BYTES_SMALL = 16_384  # pieces below this are left alone
GONE_MIN = 20_000  # jobs, some 10 MiB: fewer are not worth a look at all of memory
ENTRY_BYTES_LOOSE = 400  # a dict takes 30 to 110 bytes an entry; above this most of it is empty


class JobIndex:
    """id -> job.

    Attributes:
        peak: Most jobs at a time since memory was last given back, as far as ``sample`` saw it.
    """

    __slots__ = ("peak", "_pieces")

    def __init__(self) -> None:
        self.peak = 0
        self._pieces: list[dict[str, Job]] = [{} for _ in range(PIECES)]

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def __iter__(self) -> "Iterator[Job]":
        for piece in self._pieces:
            yield from piece.values()

    def get(self, job_id: str) -> "Job | None":
        """Return the job, or None."""
        return self._pieces[hash(job_id) >> 32 & 255].get(job_id)

    def put(self, job: "Job") -> None:
        """Remember the job under its id, in place of whatever was there."""
        job_id = job.id
        self._pieces[hash(job_id) >> 32 & 255][job_id] = job

    def put_all(self, jobs: "Iterable[Job]") -> None:
        """Remember jobs, each as ``put`` does."""
        pieces = self._pieces
        for job in jobs:
            job_id = job.id
            pieces[hash(job_id) >> 32 & 255][job_id] = job

    def drop(self, job: "Job") -> None:
        """Forget the job, unless the id has passed to another one."""
        piece = self._pieces[hash(job.id) >> 32 & 255]
        if piece.get(job.id) is job:
            del piece[job.id]

    def clear(self) -> None:
        """Forget every job."""
        for piece in self._pieces:
            piece.clear()

    def sample(self) -> None:
        """Look how many jobs there are."""
        self.peak = max(self.peak, len(self))

    def shrinking(self) -> "Iterator[int]":
        """Give the room of jobs that are gone back, for a dict never does by itself.

        Yields:
            1 after each piece that was copied.
        """
        for number in range(PIECES):
            piece = self._pieces[number]
            size_bytes = piece.__sizeof__()
            if size_bytes > PIECE_BYTES_SMALL and size_bytes > len(piece) * ENTRY_BYTES_LOOSE:
                self._pieces[number] = dict(piece)
                yield 1

    def has_shrunk(self) -> bool:
        """Say whether so many have gone that the process may return memory to the system."""
        count = len(self)
        if self.peak - count < GONE_MIN or count * 2 > self.peak:
            return False
        self.peak = count
        return True
