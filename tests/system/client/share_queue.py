"""One Queue shared by threads, greenlets or forked children: share_queue.py PORT HOW COUNT."""

from __future__ import annotations

import os
import sys
import threading

from bunqueue import Queue
from bunqueue.client.worlds import is_patched

CHILDREN = 4


def main() -> None:
    port, callers, each = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    queue = Queue("shared", host="127.0.0.1", port=port, token="secret")
    queue.add("before the fork", "parent")
    children = []
    for number in range(CHILDREN):
        child = os.fork()
        if child == 0:
            produce(queue, f"child {number}", callers, each)
            os._exit(0)
        children.append(child)
    produce(queue, "parent", callers, each)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    print("statuses", *statuses, flush=True)
    print("links", len(queue.connection.health()["links"]), is_patched(), flush=True)


def produce(queue: Queue, who: str, callers: int, each: int) -> None:
    failures = []

    def add(caller: int) -> None:
        try:
            for number in range(each):
                queue.add("x", f"{who}/{caller}/{number}")
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=add, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        print("failed", who, repr(failures[0]), flush=True)
        os._exit(1)


main()
