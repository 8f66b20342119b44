"""A job on its way out, assembled from packed pieces.

The map has 47 keys, about 750 bytes, of which ten vary for an ordinary job. What depends on the
options alone is packed once per option set and kept there; the payload is copied as it is stored.
Putting the pieces together takes 4.9 us; packing the map, once it has been made, 6.3
(loadtests/micro.py reply).
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from bunqueue import compiled
from bunqueue.engine.job import NO_EXTRA, Extra, Job, timeline_of
from bunqueue.engine.slices import Work
from bunqueue.engine.states import COMPLETED
from bunqueue.errors import Refused
from bunqueue.protocol import codec
from bunqueue.protocol.codec import UINT32_MAX, pack, pack_plain
from bunqueue.protocol.frames import FRAME_BYTES_MAX
from bunqueue.protocol.options import JobOptions

JOB_KEYS: Final = 47  # wire.md 3.1

_hot: Any = compiled.part("hot")
# 90 KB of numbers: 1.9 ms decoded and packed again, 0.03 ms walked over.
narrowed: Callable[[bytes], bytes] = codec.narrowed if _hot is None else _hot.narrowed

# How much is packed between two looks at what was spent, and what it costs:
# loadtests/hub.py get-jobs-all, list-dlq.
PACKED_STEP_US: Final = 500
PACKED_US: Final = 15
PACKED_BYTES_PER_US: Final = 500

# How many items, and for each column its pieces.
Listing = tuple[int, list[list[bytes]]]

_NIL: Final = b"\xc0"
_float64 = struct.Struct(">d").pack


def _key(name: str) -> bytes:
    return pack(name)


_HEADER: Final = b"\xde" + JOB_KEYS.to_bytes(2, "big") + _key("id")
_QUEUE: Final = _key("queue")
_NAME: Final = _key("name")
_DATA: Final = _key("data")
_CREATED: Final = _key("createdAt") + b"\xcb"
_RUN: Final = _key("runAt") + b"\xcb"
_STARTED: Final = _key("startedAt")
_COMPLETED: Final = _key("completedAt")
_ATTEMPTS: Final = _key("attempts")
_PRIORITY: Final = _key("priority")
_STALLS: Final = _key("stallCount")
_HEARTBEAT: Final = _key("lastHeartbeat") + b"\xcb"
_TIMELINE: Final = _key("timeline")
_STATE: Final = _key("state")
_TIMESTAMP: Final = _key("timestamp") + b"\xcb"
_ACTIVE: Final = _key("active")
_FIRST: Final = {
    name: b"\x82" + _STATE + _key(name) + _TIMESTAMP
    for name in ("waiting", "prioritized", "delayed")
}
_RUNNING: Final = b"\x82" + _STATE + _ACTIVE + _TIMESTAMP
_DONE: Final = b"\x82" + _STATE + _key("completed") + _TIMESTAMP


def _pack_pairs(pairs: Iterable[tuple[str, Any]]) -> bytes:
    return b"".join(pack(key) + pack(value) for key, value in pairs)


def _pack_options(options: JobOptions) -> bytes:
    """Pack the keys that depend on the shared options alone."""
    policy = options.deduplication or {}
    config = {"type": options.backoff_type, "delay": options.backoff_ms}
    return _pack_pairs(
        (
            ("backoff", options.backoff_ms),
            ("backoffConfig", config if isinstance(options.backoff, dict) else None),
            ("tags", list(options.tags)),
            ("durable", options.durable),
            ("lifo", options.lifo),
            ("maxAttempts", options.attempts),
            ("removeOnComplete", options.remove_on_complete),
            ("removeOnFail", options.remove_on_fail),
            ("ttl", _span(options.ttl)),
            ("timeout", options.timeout),
            ("stallTimeout", options.stall_timeout),
            ("stackTraceLimit", options.stack_trace_limit),
            ("keepLogs", options.keep_logs),
            ("sizeLimit", options.size_limit),
            ("failParentOnFailure", options.fail_parent_on_failure),
            ("removeDependencyOnFailure", options.remove_dependency_on_failure),
            ("continueParentOnFailure", options.continue_parent_on_failure),
            ("ignoreDependencyOnFailure", options.ignore_dependency_on_failure),
            ("deduplicationTtl", _span(policy.get("ttl"))),
            ("deduplicationExtend", bool(policy.get("extend"))),
            ("deduplicationReplace", bool(policy.get("replace"))),
            ("debounceId", options.debounce_id),
            ("debounceTtl", _span(options.debounce_ttl)),
            ("repeat", options.repeat),
        )
    )


NUMBERS_PACKED_MAX = 1000  # (attempts, priority, stalls) kept packed per option set


def _numbers_part(job: Job) -> bytes:
    """Pack what depends on the options and on three small numbers, and keep it with the options."""
    options = job.options
    parts: dict[Any, bytes] | None = options.reply
    if parts is None:
        parts = options.reply = {None: _pack_options(options)}
    numbers = (job.attempts, job.priority, job.stall_count)
    part = parts.get(numbers)
    if part is None:
        part = b"".join(
            (
                parts[None],
                _ATTEMPTS,
                pack(job.attempts),
                _PRIORITY,
                pack(job.priority),
                _STALLS,
                pack(job.stall_count),
                _HEARTBEAT,
            )
        )
        if len(parts) <= NUMBERS_PACKED_MAX:
            parts[numbers] = part
    return part


def _span(ms: float | None) -> float | None:
    """A span up to a year may pass 32 bits: only then it is a float (wire.md 1.3)."""
    return float(ms) if ms is not None and ms > UINT32_MAX else ms


def _moment(at: int | None) -> float | None:
    return None if at is None else float(at)


def _extra_part(job: Job, extra: Extra) -> bytes:
    progress = 100 if job.place == COMPLETED else extra.progress
    return _pack_pairs(
        (
            ("dependsOn", list(extra.depends_on)),
            ("childrenIds", list(extra.children_ids)),
            ("childrenCompleted", 0),
            ("progress", progress),
            ("progressMessage", extra.progress_message),
            ("stacktrace", extra.stacktrace),
            ("uniqueKey", extra.unique_key),
            ("customId", job.id if extra.is_custom_id else None),
            ("parentId", extra.parent_id),
            ("groupId", extra.group_id),
        )
    )


_PLAIN = Job("", 0, None, "", b"", JobOptions({}), 0, 0, 0, "queued")  # type: ignore[arg-type]  # a mould
_NO_EXTRA_PART: Final = _extra_part(_PLAIN, NO_EXTRA)
_PLAIN.place = COMPLETED
_DONE_EXTRA_PART: Final = _extra_part(_PLAIN, NO_EXTRA)
# What stands between the moments of a job that has just been pulled.
_STARTED_AT: Final = _STARTED + b"\xcb"
_NOT_COMPLETED: Final = _COMPLETED + _NIL
_PULLED: Final = {
    name: _NO_EXTRA_PART + _TIMELINE + b"\x92" + first for name, first in _FIRST.items()
}

NAMES_PACKED_MAX = 10_000  # pairs of queue and job name kept packed
_names: dict[tuple[str, str], bytes] = {}


def _names_part(queue_name: str, name: str) -> bytes:
    part = _names.get((queue_name, name))
    if part is None:
        part = b"".join((_QUEUE, pack(queue_name), _NAME, pack(name), _DATA))
        if len(_names) >= NAMES_PACKED_MAX:  # names that come once must not end it for the rest
            _names.clear()
        _names[queue_name, name] = part
    return part


def _timeline(job: Job, created: bytes, started: bytes) -> bytes:
    if job.extra.timeline is not None:
        return _TIMELINE + pack([_entry(*line) for line in timeline_of(job)])
    if job.run_at > job.created_at:
        first = _FIRST["delayed"]
    else:
        first = _FIRST["prioritized" if job.priority > 0 else "waiting"]
    if not job.started_at:
        return b"".join((_TIMELINE, b"\x91", first, created))
    if not job.finished_at:
        return b"".join((_TIMELINE, b"\x92", first, created, _RUNNING, started))
    done = _float64(job.finished_at)
    return b"".join((_TIMELINE, b"\x93", first, created, _RUNNING, started, _DONE, done))


def _entry(state: str, timestamp: int, error: str | None, attempt: int | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"state": state, "timestamp": float(timestamp)}
    if error is not None:
        entry["error"] = error
    if attempt is not None:
        entry["attempt"] = attempt
    return entry


def pack_job(job: Job, int64: bool) -> bytes:
    """Return the packed Job map of wire.md 3.1.

    Args:
        int64: The receiver takes 64-bit integers in the payload.
    """
    return b"".join(job_pieces(b"", job, int64))


def job_pieces(head: bytes, job: Job, int64: bool) -> list[bytes]:
    """Return ``head`` and the same in pieces, for a reply that is joined once."""
    if _hot is not None:
        packed: bytes | None = _hot.packed_active(job, int64)
        if packed is not None:
            return [head, packed]
    delivery = job.delivery
    created_at, started_at = job.created_at, job.started_at
    if job.extra is not NO_EXTRA or delivery is None or delivery.heartbeat_at != started_at:
        return [head, *_any_pieces(job, int64)]
    # It has just been pulled, as nearly all are that are packed one by one.
    created = run = _float64(created_at)
    started = _float64(started_at)
    first = "prioritized" if job.priority > 0 else "waiting"
    if job.run_at != created_at:
        run = _float64(job.run_at)
        if job.run_at > created_at:
            first = "delayed"
    return [
        head,
        _HEADER,
        pack_plain(job.id),
        _names_part(job.queue.name, job.name),
        job.data if int64 else narrowed(job.data),
        _CREATED,
        created,
        _RUN,
        run,
        _STARTED_AT,
        started,
        _NOT_COMPLETED,
        _numbers_part(job),
        started,
        _PULLED[first],
        created,
        _RUNNING,
        started,
    ]


def _any_pieces(job: Job, int64: bool) -> tuple[bytes, ...]:
    extra = job.extra
    created = _float64(job.created_at)
    started = _float64(job.started_at)
    is_done = job.place == COMPLETED
    if extra is NO_EXTRA:
        rare = _DONE_EXTRA_PART if is_done else _NO_EXTRA_PART
    else:
        rare = _extra_part(job, extra)
    delivery = job.delivery
    if delivery is None:
        heartbeat = created
    else:
        beat_at = delivery.heartbeat_at
        heartbeat = started if beat_at == job.started_at else _float64(beat_at)
    return (
        _HEADER,
        pack_plain(job.id),
        _names_part(job.queue.name, job.name),
        job.data if int64 else narrowed(job.data),
        _CREATED,
        created,
        _RUN,
        created if job.run_at == job.created_at else _float64(job.run_at),
        _STARTED,
        b"\xcb" + started if job.started_at else _NIL,
        _COMPLETED,
        b"\xcb" + _float64(job.finished_at) if is_done else _NIL,
        _numbers_part(job),
        heartbeat,
        rare,
        _timeline(job, created, started),
    )


def pack_view(job: Job, state: str | None, int64: bool) -> bytes:
    """Return the packed job view of wire.md 3.2: the Job and ``state``, and its outcome if any.

    Args:
        state: What a reader is told; None for the one command that does not tell.
        int64: The receiver takes 64-bit integers in the payload.
    """
    pairs = [] if state is None else [_STATE + pack(state)]
    if job.result is not None and job.place == COMPLETED:
        result = job.result if int64 else narrowed(job.result)
        pairs.append(_key("returnvalue") + result)
    reason = job.extra.last_error
    if reason is not None:
        pairs.append(_key("failedReason") + pack(reason))
    body = pack_job(job, int64)
    count = JOB_KEYS + len(pairs)
    return b"".join((b"\xde", count.to_bytes(2, "big"), body[3:], *pairs))


def pack_entry(job: Job, int64: bool) -> bytes:
    """Return the packed dead-letter entry of wire.md 3.4."""
    dead = job.extra.dead
    assert dead is not None
    rest = {
        "enteredAt": float(dead.entered_at),
        "reason": dead.reason,
        "error": dead.error,
        "attempts": [_attempt(job, *record) for record in job.extra.history],
        "retryCount": dead.retry_count,
        "lastRetryAt": _moment(dead.last_retry_at),
        "nextRetryAt": _moment(dead.next_retry_at),
        "expiresAt": _moment(dead.expires_at),
    }
    head = bytes((0x80 | (1 + len(rest)),)) + _key("job")
    return head + pack_job(job, int64) + _pack_pairs(rest.items())


def _attempt(
    job: Job, attempt: int, started_at: int, failed_at: int, reason: str, error: str | None
) -> dict[str, Any]:
    """Describe an end of the job; one that never ran counts from its creation, in no time."""
    return {
        "attempt": attempt,
        "startedAt": float(started_at or job.created_at),
        "failedAt": float(failed_at),
        "reason": reason,
        "error": error,
        "duration": _span(max(0, failed_at - started_at)) if started_at else 0,
    }


def pack_listing(items: Iterable[Sequence[bytes]], columns: int = 1) -> Work[Listing]:
    """Pack any number of items for one reply.

    Args:
        items: What each is in each column.

    Returns:
        How many they are, and what each column holds, in a few pieces.

    Raises:
        Refused: It is too long for a frame; the items behind that are not asked for.
    """
    packed: list[list[bytes]] = [[] for _ in range(columns)]
    fresh: list[Sequence[bytes]] = []
    count = spent_us = 0
    room_bytes = FRAME_BYTES_MAX
    for item in items:
        size_bytes = sum(map(len, item))
        room_bytes -= size_bytes
        if room_bytes < 0:
            raise Refused(
                f"Reply too large: more than {FRAME_BYTES_MAX} bytes; ask for fewer at a time"
            )
        fresh.append(item)
        count += 1
        spent_us += PACKED_US + size_bytes // PACKED_BYTES_PER_US
        if spent_us >= PACKED_STEP_US:
            _join(packed, fresh)
            yield spent_us
            spent_us = 0
    _join(packed, fresh)
    yield spent_us
    return count, packed


def _join(packed: list[list[bytes]], fresh: list[Sequence[bytes]]) -> None:
    """Make one piece of what is new in each column: joining and freeing all at once takes long."""
    for column, pieces in zip(packed, zip(*fresh, strict=True), strict=False):
        column.append(b"".join(pieces))
    fresh.clear()


def pack_list(items: Sequence[bytes]) -> bytes:
    """Return the packed list of packed items that are known to fit a frame."""
    return b"".join((list_header(len(items)), *items))


def list_header(count: int) -> bytes:
    """Return what a packed list of so many items begins with."""
    if count < 16:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")
