"""What the kernel knows about a server: its processes, their CPU time, their memory.

A server is charged with its whole process tree, because ours writes its file in a child
process. CPU time comes from the kernel's clock of each process, which counts all its threads,
also those that have ended; it is much less noisy than wall time on a shared machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CORES = os.sched_getaffinity(0)  # what this process was started on

CALM_STEP_S = 0.02  # how often a server is asked whether it has come to rest
CALM_STEPS = 3  # so many quiet steps in a row are rest
CALM_CPU_NS = 2_000_000  # a step that costs less is quiet: a tenth of one core
CALM_WAIT_S_MAX = 15.0


class ProcessGone(RuntimeError):
    """A process of a measured server ended, so its figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a process tree, in bytes.

    ``resident`` counts pages shared by two processes twice; ``proportional`` shares them out.
    """

    resident: int
    proportional: int


def tree(pids: Sequence[int]) -> list[int]:
    """List the given processes and everything they have started."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we were looking
            # The name, in brackets, may hold spaces; the parent is the second field after it.
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = list(pids)
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found


def cpu_ns(pids: Sequence[int]) -> int:
    """Return user plus system time of the process tree in ns.

    Raises:
        ProcessGone: One of them has ended.
    """
    try:
        # The kernel's encoding of "the CPU clock of that process": clock_getcpuclockid(3).
        return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in tree(pids))
    except OSError as error:
        raise ProcessGone(f"a process of the server {list(pids)} has ended") from error


def settled_cpu_ns(pids: Sequence[int]) -> int:
    """Wait until the servers are at rest and return their CPU time.

    What a server still does after its last answer, such as writing its buffer to the file,
    belongs to the jobs too: without this a buffered server looks up to twice as cheap.
    """
    deadline = time.monotonic() + CALM_WAIT_S_MAX
    last, calm = cpu_ns(pids), 0
    while calm < CALM_STEPS and time.monotonic() < deadline:
        time.sleep(CALM_STEP_S)
        now = cpu_ns(pids)
        calm = calm + 1 if now - last < CALM_CPU_NS else 0
        last = now
    return last


def memory(pids: Sequence[int]) -> Memory:
    """Return the memory of the process tree.

    Raises:
        ProcessGone: One of them has ended.
    """
    fields = {"Rss": 0, "Pss": 0}
    for pid in tree(pids):
        try:
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
        except (FileNotFoundError, ProcessLookupError) as error:
            raise ProcessGone(f"process {pid} has ended") from error
        for line in lines:
            name, _, rest = line.partition(":")
            if name in fields:
                fields[name] += int(rest.split()[0]) * 1024
    return Memory(resident=fields["Rss"], proportional=fields["Pss"])


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Bind this process to one core for a while; what it starts meanwhile stays there.

    Also within another such while, as a server is started by a bound driver. On a machine without
    that core nothing is bound, and the figures say so by their noise.
    """
    before = os.sched_getaffinity(0)
    if core is not None and core in CORES:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
