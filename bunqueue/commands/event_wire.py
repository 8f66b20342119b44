"""An event on its way out: the frame's body, and the map that other transports make JSON of."""

from typing import Any, Final

from bunqueue.commands.job_wire import narrowed
from bunqueue.engine.events import Event
from bunqueue.protocol.codec import pack, pack_for, unpack

# Kinds whose payload is the frame's ``data``; others keep it for webhooks only.
WITH_PAYLOAD: Final = frozenset({"completed", "failed"})

_HEAD: Final = b"\x82" + pack("type") + pack("event") + pack("event")
_DATA: Final = pack("data")
_TIMESTAMP: Final = pack("timestamp")


def pack_event(event: Event, int64: bool) -> bytes:
    """Return the packed ``{type, event}`` of wire.md 3.7; it is made once per kind of receiver.

    Args:
        int64: The receiver takes 64-bit integers.
    """
    packed: bytes | None = event.forms.get(int64)
    if packed is None:
        packed = event.forms[int64] = _HEAD + _packed_map(event, int64)
    return packed


def _packed_map(event: Event, int64: bool) -> bytes:
    extra = event.extra
    payload = event.payload if event.kind in WITH_PAYLOAD else None
    pieces = [
        bytes((0x80 | (4 + len(extra) + (payload is not None)),)),
        pack("eventType"),
        pack(event.kind),
        pack("queue"),
        pack(event.queue_name),
        pack("jobId"),
        pack(event.job_id),
        _TIMESTAMP,
        pack(float(event.timestamp)),
    ]
    for name, value in extra.items():
        pieces += (pack(name), pack_for(value, int64))
    if payload is not None:
        pieces += (_DATA, payload if int64 else narrowed(payload))
    return b"".join(pieces)


def event_map(event: Event) -> dict[str, Any]:
    """Return the event of wire.md 3.7 as a map, its payload decoded."""
    told: dict[str, Any] = {
        "eventType": event.kind,
        "queue": event.queue_name,
        "jobId": event.job_id,
        "timestamp": event.timestamp,
        **event.extra,
    }
    if event.kind in WITH_PAYLOAD and event.payload is not None:
        told["data"] = unpack(event.payload)
    return told
