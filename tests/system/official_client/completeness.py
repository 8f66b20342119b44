"""A scenario about the others: that nothing of the client is left out."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from scenario import World, scenario

from bunqueue import Bunqueue, Connection, FlowProducer, Job, Queue, Worker

EXEMPT = {"emit"}  # the client's own way to tell its listeners


@scenario()
def every_public_method_is_used_somewhere(_world: World) -> None:
    text = "\n".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("*.py"))
    missing = []
    for owner in (Queue, Worker, Job, FlowProducer, Bunqueue, Connection):
        for name, _ in inspect.getmembers(owner, inspect.isroutine):
            if name.startswith("_") or name in EXEMPT:
                continue
            if not re.search(rf"\.{name}\b", text):
                missing.append(f"{owner.__name__}.{name}")

    assert not missing, missing
