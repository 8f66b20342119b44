"""An edge node: keeps jobs in a file of its own and forwards them to a broker over TLS.

``edge.py FILE PORT CA COUNT``: adds the jobs up to number COUNT that the file does not have yet,
then forwards until it is killed. Prints ``added N``, ``forwarded REMOTE_ID`` and ``error``.
"""

from __future__ import annotations

import sys

from bunqueue import Queue


def say(*words: object) -> None:
    """Print a line in one piece: several threads do."""
    sys.stdout.write(f"{' '.join(map(str, words))}\n")
    sys.stdout.flush()


def main() -> None:
    path, port, authority, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    queue = Queue("readings", embedded=True, data_path=path)
    known = {job.data["n"] for job in queue.iter_jobs()}
    missing = [number for number in range(count) if number not in known]
    for number in missing:
        # Any failure while the broker is away costs an attempt.
        queue.add("reading", {"n": number}, attempts=1000, backoff=1, durable=number == missing[-1])
    say("added", len(missing))
    forwarder = queue.forward(
        {"host": "127.0.0.1", "port": port, "tls": {"ca_file": authority}},
        durable=True,
    )
    forwarder.on("forwarded", lambda info: say("forwarded", info.remote_id))
    forwarder.on("error", lambda error: say("error", error))
    forwarder.worker.closed.wait()


main()
