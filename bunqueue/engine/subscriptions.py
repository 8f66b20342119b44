"""Who listens to the events of which queue: one queue per peer (wire.md 2.16).

An event is passed on as it comes. But where a thousand events meet a hundred peers, more than a
bounded number per tick would block the hub: the rest is passed on by a work, in order.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from bunqueue.engine.events import OF_JOBS, Event
from bunqueue.engine.slices import COMMITTED, Work

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine
    from bunqueue.engine.ports import Peer


TOLD_PER_TICK: Final = 2_000  # events times peers: some ms
TOLD_US: Final = 3  # loadtests/hub.py events-100
BEHIND_MAX: Final = 20_000  # events; beyond that whoever makes them pays for passing them on


class Subscriptions:
    """The listener on behalf of all subscribed peers."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._behind: deque[Event] = deque()
        self._is_behind = False
        self._left = TOLD_PER_TICK  # of the tick at ``_at``
        self._at = 0
        self._of_queue: dict[str, dict[Peer, None]] = {}
        self._queue_of: dict[Peer, str] = {}

    def __len__(self) -> int:
        return len(self._queue_of)

    @property
    def behind(self) -> int:
        """How many events wait to be passed on."""
        return len(self._behind)

    def wants(self, kind: str, queue_name: str) -> bool:
        """Say whether somebody listens to the queue."""
        return queue_name in self._of_queue and kind in OF_JOBS

    def hear(self, event: Event) -> None:
        """Pass the event on, soon."""
        if self._is_behind:
            self._behind.append(event)
            if len(self._behind) > BEHIND_MAX:
                self._tell(self._behind.popleft())
            return
        now = self._engine.last_now
        if now != self._at:
            self._at, self._left = now, TOLD_PER_TICK
        self._left -= self._tell(event)
        if self._left <= 0:
            self._is_behind = True
            self._engine.run(self._catch_up(), now)

    def _tell(self, event: Event) -> int:
        peers = tuple(self._of_queue.get(event.queue_name, ()))
        for peer in peers:
            peer.hear(event)
        return len(peers)

    def _catch_up(self) -> Work[None]:
        """Pass on what has been left, until nothing is."""
        yield COMMITTED
        while self._behind:
            yield self._tell(self._behind.popleft()) * TOLD_US
        self._is_behind = False

    def put(self, peer: "Peer", queue_name: str) -> None:
        """Let the peer listen to this queue, and to no other."""
        self.drop(peer)
        self._queue_of[peer] = queue_name
        self._of_queue.setdefault(queue_name, {})[peer] = None

    def drop(self, peer: "Peer") -> None:
        """Let the peer listen no more."""
        queue_name = self._queue_of.pop(peer, None)
        if queue_name is None:
            return
        peers = self._of_queue[queue_name]
        del peers[peer]
        if not peers:
            del self._of_queue[queue_name]


def subscribe(engine: "Engine", peer: "Peer", queue_name: str) -> None:
    """Tell the peer of every event of the queue from now on, in place of another queue's."""
    subscriptions = engine.subscriptions
    if not subscriptions:
        engine.listeners.append(subscriptions)
    subscriptions.put(peer, queue_name)


def unsubscribe(engine: "Engine", peer: "Peer") -> None:
    """Tell the peer of no more events."""
    subscriptions = engine.subscriptions
    if not subscriptions:
        return
    subscriptions.drop(peer)
    if not subscriptions:
        engine.listeners.remove(subscriptions)
