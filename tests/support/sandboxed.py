"""Handlers that the sandbox tests run in child processes; imported there, not in the suite."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

from bunqueue.errors import DelayedError, UnrecoverableError


def processor(job: Any) -> Any:
    """Do what the data asks for; by this name a file is run, too."""
    return globals()[f"do_{job.name}"](job)


def do_square(job: Any) -> Any:
    return job.data**2


def do_print(_job: Any) -> Any:
    print("\x00\x00\x00\x05 on standard output", flush=True)
    os.write(1, b"\xff\xff\xff\xff raw bytes")
    sys.stderr.write("and on standard error\n")
    return input_is_empty()


def input_is_empty() -> bool:
    return sys.stdin.read() == ""


def do_pid(_job: Any) -> Any:
    return os.getpid()


def do_kill(_job: Any) -> None:
    os.kill(os.getpid(), 9)


def do_segfault(_job: Any) -> None:
    ctypes.string_at(0)


def do_exit(_job: Any) -> None:
    os._exit(7)


def do_raise(job: Any) -> None:
    if job.data == "unrecoverable":
        raise UnrecoverableError("never")
    if job.data == "delayed":
        raise DelayedError(60_000)
    if job.data == "exit":
        raise SystemExit("leaving")
    raise ValueError("broken")


def do_spin(_job: Any) -> None:
    while True:
        pass


def do_memory(_job: Any) -> Any:
    return len(bytearray(1 << 31))


def do_tell(job: Any) -> Any:
    job.update_progress(50, "half")
    job.progress(60)
    job.log("a line")
    return [job.id, job.queue, job.attempts, job.parent_id]


def do_fail(job: Any) -> Any:
    job.fail("on purpose")
    return "ignored"


def do_wait(job: Any) -> Any:
    while not job.is_cancelled():
        time.sleep(0.005)
    job.raise_if_cancelled()


def do_strange(_job: Any) -> Any:
    return object()


def do_environment(_job: Any) -> Any:
    return [os.environ.get("SHOP"), os.getcwd()]


def steps(_job: Any) -> Any:
    """A generator."""
    yield 1
    yield 2


async def coroutine(_job: Any) -> None:
    """What is refused."""
