"""The cheapest process that could stand before several brokers: it only moves bytes.

Usage:
  front PORT

Started by loadtests.limits; called as python -m loadtests.front. Every connection gets one of its
own to the broker at PORT, and what comes on either goes out on the other, unread. Something that
spreads queues over brokers has to read every frame for its queue, and to know for every ACK which
broker the job is at; what it costs beyond this is its own affair. The first line tells the port.
"""

from __future__ import annotations

import select
import socket
import sys

RECEIVE_BYTES = 1 << 18
BACKLOG = 1_024
HOST = "127.0.0.1"


def main(port: int) -> None:
    """Move bytes until killed."""
    listener = socket.create_server((HOST, 0), backlog=BACKLOG)
    poll = select.epoll()
    poll.register(listener.fileno(), select.EPOLLIN)
    peers: dict[int, tuple[socket.socket, socket.socket]] = {}
    print(listener.getsockname()[1], flush=True)
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                outer, _ = listener.accept()
                inner = socket.create_connection((HOST, port))
                for one, other in ((outer, inner), (inner, outer)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    peers[one.fileno()] = (one, other)
                    poll.register(one.fileno(), select.EPOLLIN)
                continue
            if number not in peers:
                continue  # its peer has gone in the same turn
            one, other = peers[number]
            data = one.recv(RECEIVE_BYTES)
            if data:
                other.sendall(data)
                continue
            for end in (one, other):
                poll.unregister(end.fileno())
                del peers[end.fileno()]
                end.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
