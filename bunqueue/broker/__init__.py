"""The joint between engine, storage and whoever serves them.

The engine is told the time and never asks for it; ``Clock`` makes it one steady line. ``Ticker``
runs the engine's timed work and sleeps until the engine wants it again. What differs between a
server and an embedded engine is handed in: how to wait (``Alarm``), what excludes others (``gate``,
the locks), which loop the storage's answers come through. Nothing here knows gevent.
"""

from bunqueue.broker.clock import Clock
from bunqueue.broker.core import Broker, open_storage
from bunqueue.broker.embedded import EmbeddedBroker, open_embedded
from bunqueue.broker.host import LocalHost
from bunqueue.broker.peer import LocalPeer
from bunqueue.broker.tokens import Tokens
from bunqueue.engine.events import Event
from bunqueue.engine.face import EngineFace
from bunqueue.engine.latency import BOUNDS_S, Histogram
from bunqueue.engine.later import Later
from bunqueue.engine.ports import NO_WAIT, SHOULD_COMMIT, Committed
from bunqueue.engine.settings import EngineSettings
from bunqueue.engine.slices import Work
from bunqueue.engine.webhooks import EVENTS as WEBHOOK_EVENTS
from bunqueue.engine.webhooks import Webhook

__all__ = [
    "BOUNDS_S",
    "NO_WAIT",
    "SHOULD_COMMIT",
    "WEBHOOK_EVENTS",
    "Broker",
    "Clock",
    "Committed",
    "EmbeddedBroker",
    "EngineFace",
    "EngineSettings",
    "Event",
    "Histogram",
    "Later",
    "LocalHost",
    "LocalPeer",
    "Tokens",
    "Work",
    "open_embedded",
    "Webhook",
    "open_storage",
]
