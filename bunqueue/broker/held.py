"""Answers that waited for a commit: what of them leaves once it has been tried."""

from collections.abc import Mapping
from typing import Any, Final

import msgpack

from bunqueue.engine.ports import MUST_COMMIT, Committed
from bunqueue.protocol.codec import decode
from bunqueue.protocol.frames import HEADER_BYTES, frame, unpack_length
from bunqueue.protocol.replies import INTERNAL_ERROR, Reply, encode_reply, error_reply, req_id_of

# The row of a job of this answer is one that no file takes: to ask again would not help.
NOT_STORED: Final = "Job could not be stored"


_ABOUT: Final = ("ids", "jobId", "childId", "parentId")


def about(request: Mapping[str, Any]) -> Any:
    """Return the ids of the jobs that a request is about: one, or a list."""
    return request.get("id") or [request[name] for name in _ABOUT if name in request]


def settled(reply: Reply, commits: int, committed: Committed, ids: Any = None) -> Reply:
    """Return the answer, or the error that takes its place.

    Args:
        reply: The answer.
        commits: What it waited for, as ``ports.Storage.answer_waits``.
        committed: What became of the commit.
        ids: Of the jobs that the request was ``about``.
    """
    if committed is True:
        return reply
    if not committed:
        return error_reply(INTERNAL_ERROR) if commits & MUST_COMMIT else reply
    told = decode(reply) if isinstance(reply, bytes) else dict(reply)
    told.pop("reqId", None)
    is_about_any = _names_any(told, committed) or _names_any(ids, committed)
    return error_reply(NOT_STORED) if is_about_any else reply


def settled_frames(frames: bytes, waits: bytes, ids: bytes, committed: Committed) -> bytes:
    """Do the same with answers of the compiled core.

    Args:
        frames: The answers as frames, one behind the other.
        waits: What each of them waited for, a byte.
        ids: Of the jobs that each was about, packed, one value behind the other.
        committed: What became of the commit.
    """
    if committed is True:
        return frames
    pieces = []
    begin = 0
    values = msgpack.Unpacker()
    values.feed(ids)
    for commits, named in zip(waits, values, strict=True):
        end = begin + HEADER_BYTES + unpack_length(frames, begin)[0]
        body = frames[begin + HEADER_BYTES : end]
        reply = settled(body, commits, committed, named)
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
