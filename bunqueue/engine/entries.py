"""What a push brings, and what its own options name: ids, keys, edges."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from bunqueue.engine import dependencies
from bunqueue.protocol.options import JobOptions

# name, packed data, shared options, the request's own options or None
Entry = tuple[str, bytes, JobOptions, Mapping[str, Any] | None]

# How many ids that entries name are looked up, or noted, between two looks at what was spent, and
# what one costs: loadtests/hub.py push-depends-on.
NAMED_PER_STEP: Final = 1_000
NAMED_PER_US: Final = 1
EDGES_PER_US: Final = 4


def custom_id_of(own: Mapping[str, Any] | None) -> str | None:
    """Return the caller's own id: PUSH calls it jobId, batches customId; both are taken."""
    return None if own is None else own.get("jobId") or own.get("customId") or None


def named(
    queue_name: str, owns: Iterable[Mapping[str, Any] | None]
) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the ids that pushes have or depend on, and their keys."""
    ids: set[str] = set()
    keys: set[tuple[str, str]] = set()
    for own in owns:
        if own is not None:
            ids.update(own.get("dependsOn") or (), filter(None, (custom_id_of(own),)))
            if own.get("uniqueKey"):
                keys.add((queue_name, own["uniqueKey"]))
    return ids, keys


def edges_and_one(own: Mapping[str, Any] | None) -> int:
    """Return how many jobs an entry is about: its own, and those that it depends on or names."""
    return 1 + dependencies.edges_in(own)
