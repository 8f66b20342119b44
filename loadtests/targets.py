"""What is measured side by side: our server, compiled and pure, and the reference server."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from loadtests.servers import (
    Server,
    free_port,
    our_command,
    reference_command,
)

COMPILED, PURE, REFERENCE = "compiled", "pure", "reference"
ENGINES = (COMPILED, PURE, REFERENCE)
FILE, MEMORY = "file", "memory"
PLACES = (FILE, MEMORY)
PURE_ENV = "BUNQUEUE_PURE"


@dataclass(frozen=True, slots=True)
class Target:
    """One server of a run.

    Attributes:
        engine: Which server: ``compiled``, ``pure`` or ``reference``.
        place: Where its jobs are: ``file`` or ``memory``.
    """

    engine: str
    place: str

    @property
    def name(self) -> str:
        """Its name in figures."""
        return f"{self.engine}-{self.place}"

    def server(self, directory: Path, core: int | None, reference: Path | None) -> Server:
        """Prepare a fresh server on a fresh file in ``directory``; the caller starts it."""
        port, http_port = free_port(), free_port()
        file = self.file(directory)
        if self.engine == REFERENCE:
            assert reference is not None
            command = reference_command(reference, port, http_port, file)
        else:
            command = our_command(port, http_port, file, environment=self.environment())
        return Server(command, port, directory / f"{self.name}.log", core)

    def file(self, directory: Path) -> Path | None:
        """Return the path of its file; None in memory."""
        return directory / f"{self.name}.db" if self.place == FILE else None

    def environment(self) -> dict[str, str]:
        """Return what makes our server the one that is meant."""
        return {PURE_ENV: "1" if self.engine == PURE else ""}


def targets(engines: list[str], places: list[str]) -> list[Target]:
    """List the targets of a run; those on a file come first."""
    return [Target(engine, place) for place in places for engine in engines]


def has_core() -> bool:
    """Tell whether this checkout was built with its compiled parts."""
    return find_spec("bunqueue.compiled.records") is not None


def file_bytes(file: Path) -> int:
    """Return the size of a database with all that belongs to it."""
    return sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*"))
