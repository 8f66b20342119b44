"""Listen, fork, and listen on both sides: fork_events.py PORT QUEUE.

Prints ``parent WHAT`` and ``child WHAT``: the name of each event heard there, and ``end``.
"""

from __future__ import annotations

import os
import sys
import threading

from bunqueue import Queue, QueueEvents

WAIT_S = 20


def main() -> None:
    port, name = int(sys.argv[1]), sys.argv[2]
    queue, events = Queue(name, port=port), QueueEvents(name, port=port)
    events.wait_until_ready()
    # The child says when it listens, the parent when it has heard.
    child_ready, parent_says = os.pipe()
    process = os.fork()
    side = "parent" if process else "child"
    heard = threading.Event()

    def hear(_event: object) -> None:
        sys.stdout.write(f"{side} waiting\n")
        sys.stdout.flush()
        heard.set()

    events.on("waiting", hear)
    events.wait_until_ready(WAIT_S)
    if process:
        os.read(child_ready, 1)
        queue.add("x")
        assert heard.wait(WAIT_S)
        os.waitpid(process, 0)
        heard.clear()
        queue.add("after the child")
        assert heard.wait(WAIT_S)
    else:
        os.write(parent_says, b"!")
        assert heard.wait(WAIT_S)
    events.close()
    queue.close()
    sys.stdout.write(f"{side} end\n")
    sys.stdout.flush()


main()
