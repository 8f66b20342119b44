"""Who listens to the events of which queue: one queue per peer (wire.md 2.16)."""

from typing import TYPE_CHECKING

from bunqueue.engine.events import OF_JOBS, Event

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine
    from bunqueue.engine.ports import Peer


class Subscriptions:
    """The listener on behalf of all subscribed peers."""

    def __init__(self) -> None:
        self._of_queue: dict[str, dict[Peer, None]] = {}
        self._queue_of: dict[Peer, str] = {}

    def __len__(self) -> int:
        return len(self._queue_of)

    def wants(self, kind: str, queue_name: str) -> bool:
        """Say whether somebody listens to the queue."""
        return queue_name in self._of_queue and kind in OF_JOBS

    def hear(self, event: Event) -> None:
        """Pass the event on."""
        for peer in tuple(self._of_queue.get(event.queue_name, ())):
            peer.hear(event)

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
