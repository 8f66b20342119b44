"""One Queue shared by everybody at once: share_queue.py PORT NATIVES GREENLETS EACH.

NATIVES native threads, GREENLETS greenlets (none in a plain process) and four forked children, each
with as many of both, add EACH jobs apiece. Two children of a plain process are forked while the
threads are in the middle of it; the greenlets of a patched one would all go on in a child.

Prints ``status`` of each child, and for each process ``links`` and how many it has.
"""

from __future__ import annotations

import os
import sys
import threading

from bunqueue import Queue
from bunqueue.client.worlds import is_patched

CHILDREN = 4


def main() -> None:
    port, natives, greenlets, each = map(int, sys.argv[1:5])
    queue = Queue("shared", host="127.0.0.1", port=port, token="secret")
    queue.add("x", "before the fork")
    callers = (natives, greenlets, each)
    early = CHILDREN if is_patched() else CHILDREN // 2
    children = [fork(queue, number, callers) for number in range(early)]

    def fork_late() -> None:
        children.extend(fork(queue, number, callers) for number in range(early, CHILDREN))

    produce(queue, "parent", *callers, meanwhile=fork_late)
    for child in children:
        print("status", os.waitpid(child, 0)[1], flush=True)


def fork(queue: Queue, number: int, callers: tuple[int, int, int]) -> int:
    """Start a child that produces as well."""
    child = os.fork()
    if child == 0:
        produce(queue, f"child {number}", *callers)
        os._exit(0)
    return child


def produce(queue, who, natives, greenlets, each, meanwhile=lambda: None):
    """Have everybody add; one error of theirs ends the process."""
    failures = []

    def add(caller):
        try:
            for number in range(each):
                queue.add("x", f"{who}/{caller}/{number}")
        except BaseException as error:
            failures.append(error)
            raise

    tasks = [threading.Thread(target=add, args=(f"greenlet {n}",)) for n in range(greenlets)]
    if is_patched():
        from gevent.threadpool import ThreadPool

        pool = ThreadPool(natives)
        for number in range(natives):
            pool.spawn(add, f"thread {number}")
    else:
        pool = None
        tasks += [threading.Thread(target=add, args=(f"thread {n}",)) for n in range(natives)]
    for task in tasks:
        task.start()
    meanwhile()
    for task in tasks:
        task.join()
    if pool is not None:
        pool.join()
    if failures:
        print("failed", who, repr(failures[0]), flush=True)
        os._exit(1)
    sys.stdout.write(f"links {len(queue.connection.health()['links'])}\n")
    sys.stdout.flush()


main()
