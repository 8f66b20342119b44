"""Answers that waited for a commit: what of them leaves once it has been tried."""

from typing import Any, Final

from bunqueue.engine.ports import MUST_COMMIT, Committed
from bunqueue.protocol.codec import decode
from bunqueue.protocol.frames import HEADER_BYTES, frame, unpack_length
from bunqueue.protocol.replies import INTERNAL_ERROR, Reply, encode_reply, error_reply, req_id_of

# The row of a job of this answer is one that no file takes: to ask again would not help.
NOT_STORED: Final = "Job could not be stored"


def settled(reply: Reply, commits: int, committed: Committed) -> Reply:
    """Return the answer, or the error that takes its place.

    Args:
        reply: The answer.
        commits: What it waited for, as ``ports.Storage.answer_waits``.
        committed: What became of the commit.
    """
    if committed is True:
        return reply
    if not committed:
        return error_reply(INTERNAL_ERROR) if commits & MUST_COMMIT else reply
    told = decode(reply) if isinstance(reply, bytes) else dict(reply)
    told.pop("reqId", None)
    return error_reply(NOT_STORED) if _names_any(told, committed) else reply


def settled_frames(frames: bytes, waits: bytes, committed: Committed) -> bytes:
    """Do the same with answers of the compiled core.

    Args:
        frames: The answers as frames, one behind the other.
        waits: What each of them waited for, a byte.
        committed: What became of the commit.
    """
    if committed is True:
        return frames
    pieces = []
    begin = 0
    for commits in waits:
        end = begin + HEADER_BYTES + unpack_length(frames, begin)[0]
        body = frames[begin + HEADER_BYTES : end]
        reply = settled(body, commits, committed)
        if reply is body:
            pieces.append(frames[begin:end])
        else:
            pieces.append(frame(encode_reply(reply, req_id_of(body), False)))
        begin = end
    return b"".join(pieces)


def _names_any(value: Any, ids: frozenset[str]) -> bool:
    """Say whether one of the ids stands anywhere in an answer."""
    if isinstance(value, str):
        return value in ids
    if isinstance(value, dict):
        return any(_names_any(item, ids) for item in value.values())
    return isinstance(value, list) and any(_names_any(item, ids) for item in value)
