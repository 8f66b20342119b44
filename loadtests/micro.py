"""Time the hot pieces, each alone and in memory.

Usage:
  micro [options] [WORD ...]

Called as python -m loadtests.micro. With words only the rows run whose name holds one of them.
The best of several repeats is printed: what is above it is the machine, not the code.

Options:
  --repeats=N  Repeats of each row. [default: 5]
"""

from __future__ import annotations

import random
import sys
import timeit
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
from docopt import docopt

from bunqueue.commands import dispatch
from bunqueue.commands.job_wire import pack_job
from bunqueue.commands.registry import COMMANDS
from bunqueue.engine.cron_text import parse
from bunqueue.engine.cron_times import next_run, zone_of
from bunqueue.engine.engine import Engine
from bunqueue.engine.ids import Ids
from bunqueue.engine.job import Job
from bunqueue.engine.later import Later
from bunqueue.engine.states import QUEUED
from bunqueue.protocol.codec import decode, pack
from bunqueue.protocol.options import DEFAULT_OPTIONS, shared_options
from bunqueue.protocol.replies import encode_reply
from bunqueue.storage.memory import MemoryStorage
from loadtests.workloads import payload

NOW = 1_700_000_000_000
OPTIONS = {"priority": 5, "maxAttempts": 7, "backoff": 500, "timeout": 60_000}
BATCH = 50
ROUND_S_MIN = 0.2  # one repeat takes at least so long

PUSH = {"cmd": "PUSH", "queue": "emails", "name": "send", "data": payload(1, 64)}

Row = tuple[str, Callable[[], object]]


class LocalPeer:
    """A peer without a connection."""

    is_authenticated = True
    int64 = False

    def __init__(self) -> None:
        self.engine: Any = Engine(MemoryStorage(), rng=random.Random(1))
        self.id = "micro"
        self.held: dict[Job, Any] = {}
        self.parked: set[Later] = set()
        self.is_open = True

    def now(self) -> int:
        """Return a time that stands still."""
        return NOW

    def authenticate(self, _token: object) -> bool:
        """Let everybody in."""
        return True


def cycle(peer: LocalPeer) -> None:
    """Push, pull and acknowledge one job."""
    dispatch(peer, PUSH)
    dispatch(peer, {"cmd": "PULL", "queue": "emails", "owner": "w"})
    queue = peer.engine.queues["emails"]
    job = next(iter(queue.active.values()))
    dispatch(peer, {"cmd": "ACK", "id": job.id, "token": job.token})


def cycle_in_batches(peer: LocalPeer) -> None:
    """Push, pull and acknowledge `BATCH` jobs."""
    entry = {"name": "send", "data": payload(1, 64)}
    dispatch(peer, {"cmd": "PUSHB", "queue": "emails", "jobs": [entry] * BATCH})
    dispatch(peer, {"cmd": "PULLB", "queue": "emails", "owner": "w", "count": BATCH})
    jobs = list(peer.engine.queues["emails"].active.values())
    ids, tokens = [job.id for job in jobs], [job.token for job in jobs]
    dispatch(peer, {"cmd": "ACKB", "ids": ids, "tokens": tokens})


def rows() -> list[Row]:
    """Set up every row; the names are what comments in the code refer to."""
    ids = Ids(random.Random(1).randbytes)
    queue_peer, push_peer, cycle_peer, batch_peer = (LocalPeer() for _ in range(4))
    dispatch(queue_peer, PUSH)
    queue = queue_peer.engine.queues["emails"]
    job = next(queue.run_set.jobs())
    data = pack(payload(1, 64))
    body = pack({**PUSH, "reqId": "00000001"})
    whole: dict[str, Any] = msgpack.unpackb(pack_job(job, False), strict_map_key=False)
    check = COMMANDS["PUSH"].check
    with_options = {**PUSH, **OPTIONS}
    weekdays, rome = parse("0 9 * * MON-FRI"), zone_of("Europe/Rome")

    def make_job() -> Job:
        return Job("id", 1, queue, "send", data, DEFAULT_OPTIONS, 0, NOW, NOW, QUEUED)

    return [
        ("id", lambda: ids.new(NOW)),
        ("job record", make_job),
        ("job reply", lambda: pack_job(job, False)),
        ("job reply, packed from a map", lambda: pack(whole)),
        ("decode PUSH", lambda: decode(body)),
        ("check PUSH", lambda: check(PUSH)),
        ("check PUSH with options", lambda: check(with_options)),
        ("shared options", lambda: shared_options(with_options)),
        ("reply with reqId", lambda: encode_reply(b"\x81\xa2ok\xc3", b"\xa800000001", False)),
        ("dispatch PUSH", lambda: dispatch(push_peer, PUSH)),
        ("dispatch PUSH, PULL, ACK", lambda: cycle(cycle_peer)),
        ("cron, the next run in a zone", lambda: next_run(weekdays, rome, NOW)),
        (f"dispatch PUSHB, PULLB, ACKB of {BATCH}", lambda: cycle_in_batches(batch_peer)),
    ]


def best_ns(action: Callable[[], object], repeats: int) -> float:
    """Return the shortest time of one call, in ns."""
    timer = timeit.Timer(action)
    number, seconds = timer.autorange()
    number = max(1, round(number * ROUND_S_MIN / seconds))
    return min(timer.repeat(repeats, number)) / number * 1e9


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    given = docopt(__doc__ or "", argv=None if argv is None else list(argv))
    words = given["WORD"]
    for name, action in rows():
        if not words or any(word in name for word in words):
            print(f"{name:36} {best_ns(action, int(given['--repeats'])):10,.0f} ns")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
