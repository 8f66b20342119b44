"""Work jobs until killed, and write down every acknowledgement the broker has confirmed.

Arguments: PORT QUEUE JOURNAL NAME SEED. The work is nothing, or a moment; some leases are renewed
(a renewed lease outlives its connection), some jobs fail, and after a broken connection the
acknowledgements are sometimes sent again, as a client that reconnects does.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from journal import Journal
from wire import Link, Lost, Message

LEASE_MS = 2_000
POLL_MS = 300
BATCH_MAX = 20
RENEW_SHARE = 0.05
FAIL_SHARE = 0.02
SLOW_SHARE = 0.1
SLOW_S = 0.02


def main() -> None:
    """Work until killed."""
    port, queue, path, name, seed = sys.argv[1:]
    worker = Worker(Link(int(port)), queue, Journal(Path(path)), name, random.Random(seed))
    while True:
        worker.turn()


class Worker:
    """One pulling loop."""

    def __init__(
        self, link: Link, queue: str, journal: Journal, name: str, rng: random.Random
    ) -> None:
        self.link = link
        self.queue = queue
        self.journal = journal
        self.name = name
        self.rng = rng

    def turn(self) -> None:
        """Pull some jobs, do them, acknowledge them."""
        count = self.rng.randint(1, BATCH_MAX)
        pull = {"cmd": "PULLB", "queue": self.queue, "count": count, "timeout": POLL_MS}
        pull |= {"owner": self.name, "lockTtl": LEASE_MS}
        try:
            pulled = self.link.call(pull)
        except Lost:
            return
        assert pulled["ok"], pulled
        jobs = dict(zip((job["id"] for job in pulled["jobs"]), pulled["tokens"], strict=True))
        if not jobs:
            return
        self.journal.note("pulled", *jobs)
        try:
            self.work(jobs)
            self.finish(jobs)
        except Lost:
            if self.rng.random() < 0.5:
                try:
                    self.finish(jobs)
                except Lost:
                    return

    def work(self, jobs: dict[str, str]) -> None:
        """Take a moment, renew, fail: whatever chance says. Failed jobs leave ``jobs``."""
        if self.rng.random() < RENEW_SHARE:
            ids, tokens = list(jobs), list(jobs.values())
            self.link.call({"cmd": "JobHeartbeatB", "ids": ids, "tokens": tokens})
        if self.rng.random() < SLOW_SHARE:
            time.sleep(SLOW_S)
        for job_id in [job_id for job_id in jobs if self.rng.random() < FAIL_SHARE]:
            token = jobs.pop(job_id)
            self.link.call({"cmd": "FAIL", "id": job_id, "token": token, "error": "chance"})

    def finish(self, jobs: dict[str, str]) -> None:
        """Acknowledge as a batch or one by one; what is confirmed leaves ``jobs``."""
        if self.rng.random() < 0.5 and jobs:
            batch = {"cmd": "ACKB", "ids": list(jobs), "tokens": list(jobs.values())}
            answer = self.link.call(batch)
            ignored = set((answer.get("data") or {}).get("ignoredIds") or ())
            if answer["ok"]:
                self.journal.note("completed", *(i for i in jobs if i not in ignored))
            jobs.clear()
            return
        requests: list[Message] = [
            {"cmd": "ACK", "id": job_id, "token": token} for job_id, token in jobs.items()
        ]
        for index, answer in self.link.exchange(requests):
            job_id = requests[index]["id"]
            jobs.pop(job_id)
            if answer["ok"] and (answer.get("data") or {}).get("applied") is not False:
                self.journal.note("completed", job_id)


if __name__ == "__main__":
    main()
