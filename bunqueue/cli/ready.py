"""How a worker process tells its supervisor that its workers run: one byte through a pipe.

The end that writes outlives an ``exec``, such as the one into a patched interpreter.
"""

import os
from dataclasses import dataclass

READY = b"1"


class Readiness:
    """The supervisor's end: whether a child's workers run.

    Attributes:
        fd: The child's end, to be handed on to it and then closed here.
        is_told: The child has said it.
    """

    def __init__(self) -> None:
        self._own, self.fd = os.pipe()
        os.set_blocking(self._own, False)
        self.is_told = False

    def handed_on(self) -> None:
        """Close the end that is now the child's."""
        os.close(self.fd)

    def look(self) -> bool:
        """Read what there is, and tell whether the child is ready."""
        try:
            self.is_told = self.is_told or os.read(self._own, 1) == READY
        except BlockingIOError:
            return False
        return self.is_told

    def close(self) -> None:
        """Let go of the pipe: the child has ended."""
        os.close(self._own)


@dataclass
class Mark:
    """What a child knows of its supervisor.

    Attributes:
        process_id: Whose child it is.
        fd: Where to say that it is ready; None once that was done.
    """

    process_id: int
    fd: int | None

    def __str__(self) -> str:
        return f"{self.process_id}:{self.fd}"

    @classmethod
    def read(cls, text: str) -> "Mark":
        """Return the mark that reads so."""
        process_id, fd = text.split(":")
        return cls(int(process_id), int(fd))

    def tell_ready(self) -> None:
        """Tell the supervisor, once, that the workers run; one that is gone hears nothing."""
        if self.fd is None:
            return
        fd, self.fd = self.fd, None
        try:
            os.write(fd, READY)
        except BrokenPipeError:
            return  # the watch notices by itself that the supervisor has gone
        finally:
            os.close(fd)
