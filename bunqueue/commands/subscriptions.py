"""Listening to a queue's events over the wire."""

from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.protocol.fields import QueueName
from bunqueue.protocol.replies import OK, Reply


@command("SubscribeEvents", {"queue": QueueName()})
def subscribe_events(peer: Peer, request: Request) -> Reply:
    """Send every event of the queue from now on, each in a frame of its own without ``reqId``.

    A connection listens to one queue; another call replaces it.
    An event leaves once what it tells is committed; those of one job come in order.
    Who does not read them is disconnected when too much is unsent.
    """
    peer.engine.subscribe(peer, request["queue"])
    return OK


@command("UnsubscribeEvents")
def unsubscribe_events(peer: Peer, _request: Request) -> Reply:
    """Send no more events."""
    peer.engine.unsubscribe(peer)
    return OK
