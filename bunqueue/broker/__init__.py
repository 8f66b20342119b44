"""The joint between engine, storage and whoever serves them.

The engine is told the time and never asks for it; ``Clock`` makes it one steady line. ``Ticker``
runs the engine's timed work and sleeps until the engine wants it again. What differs between a
server and an embedded engine is handed in: how to wait (``Alarm``), what excludes others (``gate``,
the locks), which loop the storage's answers come through. Nothing here knows gevent.
"""

from bunqueue.broker.clock import Clock
from bunqueue.broker.core import Broker, open_storage
from bunqueue.broker.embedded import EmbeddedBroker, open_embedded
from bunqueue.broker.peer import LocalPeer
from bunqueue.broker.tokens import Tokens
from bunqueue.engine.face import EngineFace
from bunqueue.engine.later import Later
from bunqueue.engine.ports import MUST_COMMIT, NO_WAIT
from bunqueue.engine.settings import EngineSettings

__all__ = [
    "MUST_COMMIT",
    "NO_WAIT",
    "Broker",
    "Clock",
    "EmbeddedBroker",
    "EngineFace",
    "EngineSettings",
    "Later",
    "LocalPeer",
    "Tokens",
    "open_embedded",
    "open_storage",
]
