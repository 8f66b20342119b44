"""Replies on their way out: maps, or byte templates for the hot ones.

A command answers with a map without ``reqId``, or with the packed form of one whose header is a
fixmap (up to 14 keys), so that echoing ``reqId`` is one byte more in the header and one key behind.
"""

from typing import Any, Final

from bunqueue.protocol.codec import decode, pack, pack_for

REQ_ID_KEY: Final = b"\xa5reqId"
HEADER_WITH_ONE_MORE: Final = tuple(bytes((min(byte + 1, 0x8F),)) for byte in range(256))

OK: Final = b"\x81\xa2ok\xc3"
ALREADY_FINALIZED: Final = pack(
    {"ok": True, "data": {"applied": False, "reason": "already-finalized"}}
)
INTERNAL_ERROR: Final = "Internal server error"
INVALID_FORMAT: Final = "Invalid command format"
INVALID_COMMAND: Final = "Invalid command"
NOT_AUTHENTICATED: Final = "Not authenticated"

Reply = dict[str, Any] | bytes


def error_reply(text: str) -> dict[str, Any]:
    """Build a refusal."""
    return {"ok": False, "error": text}


def encode_reply(reply: Reply, req_id: bytes | None, int64: bool) -> bytes:
    """Return the body of the frame that answers a request.

    Args:
        reply: A map without ``reqId``, or a packed one (see the module).
        req_id: The request's ``reqId``, packed, or None if it had none.
        int64: The peer takes 64-bit integers; packed replies were made for it already.
    """
    body = reply if isinstance(reply, bytes) else pack_for(reply, int64)
    if req_id is None:
        return body
    if body[0] & 0xF0 != 0x80 or body[0] == 0x8F:
        return _wide(body, req_id)
    return b"".join((HEADER_WITH_ONE_MORE[body[0]], body[1:], REQ_ID_KEY, req_id))


def req_id_of(body: bytes) -> bytes | None:
    """Return the packed ``reqId`` of an answer, or None if it has none."""
    answer = decode(body)
    return pack(answer["reqId"]) if "reqId" in answer else None


def encode_large(reply: bytes, req_id: bytes) -> bytes:
    """Return the same as ``encode_reply`` of a packed map of few keys, copying its bytes once."""
    return b"".join((HEADER_WITH_ONE_MORE[reply[0]], memoryview(reply)[1:], REQ_ID_KEY, req_id))


def _wide(reply: bytes, req_id: bytes) -> bytes:
    """Add ``reqId`` to a packed map of fifteen keys or more."""
    if reply[0] == 0x8F:
        count, rest = 15, reply[1:]
    else:
        count, rest = int.from_bytes(reply[1:3], "big"), reply[3:]
    return b"\xde" + (count + 1).to_bytes(2, "big") + rest + REQ_ID_KEY + req_id
