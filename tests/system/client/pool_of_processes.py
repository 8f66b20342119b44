"""Children of multiprocessing that share a queue of their module: pool_of_processes.py HOW PORT.

Prints ``added`` with what the children have added, and ``embedded`` with how an embedded queue of
the parent fares in a child.
"""

from __future__ import annotations

import multiprocessing
import sys

from bunqueue import Queue

queue = Queue("children", port=int(sys.argv[2]))


def add(number: int) -> int:
    data: int = queue.add("x", number).data
    return data


def join_the_parents_engine(_number: int) -> str:
    try:
        inner.count()
    except Exception as error:
        return type(error).__name__
    return "works"


if __name__ == "__main__":
    method = sys.argv[1]
    assert queue.ping()  # the parent has a connection of its own
    with multiprocessing.get_context(method).Pool(2) as pool:
        print("added", *sorted(pool.map(add, range(8))), flush=True)
    inner = Queue("inner", embedded=True)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print("embedded", *pool.map(join_the_parents_engine, [0]), flush=True)
