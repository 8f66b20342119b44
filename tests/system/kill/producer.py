"""Push jobs at a steady pace, whatever becomes of the broker, until all are acknowledged.

Arguments: PORT QUEUE JOURNAL JOBS JOBS_PER_S. A push without an answer is sent again as a new
job; the first may exist too, then it is one more job for the workers.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from journal import Journal
from wire import Link, Lost, Message

DURABLE_EVERY = 10
BURST = 20

# Every death of the broker charges an attempt to the jobs at work; none is to give up for that.
OPTIONS = {"maxAttempts": 1_000, "backoff": {"type": "fixed", "delay": 50}}


def main() -> None:
    """Push them all."""
    port, queue, path, jobs, jobs_per_s = sys.argv[1:]
    journal, link = Journal(Path(path)), Link(int(port))
    unsent: list[Message] = [
        {"cmd": "PUSH", "queue": queue, "name": "job", "data": {"n": number}, **OPTIONS}
        | ({"durable": True} if number % DURABLE_EVERY == 0 else {})
        for number in range(int(jobs))
    ]
    due = time.monotonic()
    while unsent:
        burst, unsent = unsent[:BURST], unsent[BURST:]
        unanswered = dict(enumerate(burst))
        try:
            for index, answer in link.exchange(burst):
                assert answer["ok"], answer
                kind = "durable" if unanswered.pop(index).get("durable") else "plain"
                journal.note(kind, answer["id"])
        except Lost:
            unsent += unanswered.values()
        due = max(due + BURST / float(jobs_per_s), time.monotonic() - 0.5)
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
