"""What the hub lends to the rest."""

import gevent
from gevent.socket import socketpair

from bunqueue.server.loop import READ, HubAlarm


def test_a_wait_of_nothing_lets_the_loop_look_at_its_sockets() -> None:
    ours, theirs = socketpair()
    seen: list[bool] = []
    watcher = gevent.get_hub().loop.io(ours.fileno(), READ)
    try:
        watcher.start(lambda: (seen.append(True), watcher.stop()))
        theirs.send(b"x")

        for _ in range(2):  # what was seen in a turn may be called behind the one who waits
            HubAlarm().wait(0)

        assert [True] == seen
    finally:
        watcher.stop()
        watcher.close()
        ours.close()
        theirs.close()


def test_a_ring_ends_the_next_wait() -> None:
    alarm = HubAlarm()
    alarm.ring()

    with gevent.Timeout(5):
        alarm.wait(60)
