"""A job as rows of the file, and back.

``images`` runs once per written job, so an ordinary job takes a short way: no extra, no state row.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from bunqueue.engine.job import NO_EXTRA, DeadLetter, Extra, Job
from bunqueue.engine.ports import BODY, NEW, REMOVED, STATE
from bunqueue.engine.states import ACTIVE, ADMITTED, COMPLETED, FAILED, GONE, PARKED, QUEUED
from bunqueue.protocol.codec import pack, unpack
from bunqueue.protocol.options import (
    DEFAULT_OPTIONS,
    OPTION_SETS_MAX,
    SHARED_BYTES_MAX,
    JobOptions,
    shared_options,
)
from bunqueue.storage import schema
from bunqueue.storage.schema import JOBS
from bunqueue.storage.schema import STATE as STATE_TABLE

log = logging.getLogger(__name__)

Row = tuple[Any, ...]
Statements = list[tuple[str, int, list[Any]]]  # as ``writer.Rows``
T = TypeVar("T")

# Columns of the short forms: what an ordinary job fills.
PLAIN_COLUMNS: Final = (
    "seq", "id", "queue", "name", "priority", "created_at", "run_at", "opts", "data",
)  # fmt: skip
PLAIN_STATE_COLUMNS: Final = (
    "seq", "state", "run_at", "started_at", "finished_at", "attempts", "stall_count", "token",
    "result",
)  # fmt: skip

UPSERT_PLAIN: Final = schema.upsert(JOBS, PLAIN_COLUMNS)
UPSERT_FULL: Final = schema.upsert(JOBS)
UPSERT_PLAIN_STATE: Final = schema.upsert(STATE_TABLE, PLAIN_STATE_COLUMNS)
UPSERT_FULL_STATE: Final = schema.upsert(STATE_TABLE)
_WIDTH_PLAIN: Final = len(PLAIN_COLUMNS)
_WIDTH_FULL: Final = len(JOBS.columns)
_WIDTH_PLAIN_STATE: Final = len(PLAIN_STATE_COLUMNS)
_WIDTH_FULL_STATE: Final = len(STATE_TABLE.columns)

_WHOLE = NEW | BODY
_PLACES: Final = {place: place for place in (QUEUED, PARKED, ACTIVE, COMPLETED, FAILED)}
_FRESH: Final = (QUEUED, ADMITTED)
_NAMES_MAX: Final = 10_000  # job names kept as one string each while a file is read


@dataclass(slots=True)
class Images:
    """What one batch writes of the hot tables.

    Rows follow each other in one flat list of values, which is what a statement of many rows is
    bound to: 0.4 us less per row than a tuple each, on both sides of the socket.

    Attributes:
        plain, full: Rows of ``jobs``, short and with all columns.
        plain_states, full_states: Rows of ``state``, likewise.
        removed: Admission numbers whose rows go.
    """

    plain: list[Any] = field(default_factory=list)
    full: list[Any] = field(default_factory=list)
    plain_states: list[Any] = field(default_factory=list)
    full_states: list[Any] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether no row of a job comes or goes."""
        return not (
            self.plain or self.full or self.plain_states or self.full_states or self.removed
        )

    @property
    def highest_seq(self) -> int:
        """The newest admission number among the rows of ``jobs``, or 0."""
        return max(
            max(self.plain[::_WIDTH_PLAIN], default=0),
            max(self.full[::_WIDTH_FULL], default=0),
        )

    def batch(
        self, number: int, is_durable: bool, upserts: Statements, deletes: Statements
    ) -> tuple[int, bool, Statements, Statements, list[int]]:
        """Return the batch that writes these rows and those of small tables."""
        hot = [
            (head, width, values)
            for head, width, values in (
                (UPSERT_PLAIN, _WIDTH_PLAIN, self.plain),
                (UPSERT_FULL, _WIDTH_FULL, self.full),
                (UPSERT_PLAIN_STATE, _WIDTH_PLAIN_STATE, self.plain_states),
                (UPSERT_FULL_STATE, _WIDTH_FULL_STATE, self.full_states),
            )
            if values
        ]
        return number, is_durable, hot + upserts, deletes, self.removed


def images(jobs: Iterable[Job]) -> Images:
    """Return the rows that ``jobs`` need now, as their dirty bits say; changes nothing in them.

    A job that is gone and was never written needs none.
    """
    made = Images()
    plain, plain_states, removed = made.plain, made.plain_states, made.removed
    for job in jobs:
        dirty = job.dirty
        place = job.place
        if dirty & REMOVED or place == GONE:
            if not dirty & NEW:
                removed.append(job.seq)
            continue
        extra = job.extra
        if dirty & _WHOLE:
            options = job.options
            opts = None if options is DEFAULT_OPTIONS else _packed_options(options)
            if extra is NO_EXTRA:
                plain += (
                    job.seq, job.id, job.queue.name, job.name, job.priority,
                    job.created_at, job.run_at, opts, job.data,
                )  # fmt: skip
                is_fresh = dirty == NEW and place in _FRESH
                if is_fresh and not job.started_at and not job.attempts:
                    continue
            else:
                made.full += _full_row(job, extra, opts)
        if not dirty & STATE and not (dirty & NEW and _has_left_its_first_waiting(job)):
            continue
        flow = extra.flow
        if place == ADMITTED:
            place = PARKED if flow is not None and flow.missing else QUEUED
        elif place == PARKED and flow is not None and flow.is_released:
            place = QUEUED
        if extra is NO_EXTRA:
            plain_states += (
                job.seq, place, job.run_at, job.started_at or None, job.finished_at or None,
                job.attempts, job.stall_count, job.token, job.result,
            )  # fmt: skip
        else:
            made.full_states += _full_state_row(job, extra, place)
    return made


def _has_left_its_first_waiting(job: Job) -> bool:
    if job.place != QUEUED and job.place != ADMITTED:
        return True
    if job.attempts or job.stall_count or job.started_at or job.finished_at:
        return True
    if job.token is not None or job.result is not None:
        return True
    extra = job.extra
    if extra.flow is not None and extra.flow.missing:
        return True
    return extra is not NO_EXTRA and bool(
        extra.progress or extra.last_error is not None or _detail(extra)
    )


def _full_row(job: Job, extra: Extra, opts: bytes | None) -> Row:
    return (
        job.seq,
        job.id,
        job.queue.name,
        job.name,
        job.priority,
        job.created_at,
        job.run_at,
        1 if extra.is_custom_id else None,
        extra.unique_key,
        extra.unique_until,
        extra.parent_id,
        extra.group_id,
        pack(list(extra.depends_on)) if extra.depends_on else None,
        pack(list(extra.children_ids)) if extra.children_ids else None,
        opts,
        job.data,
    )


def _full_state_row(job: Job, extra: Extra, place: str) -> Row:
    detail = _detail(extra)
    return (
        job.seq,
        place,
        job.run_at,
        job.started_at or None,
        job.finished_at or None,
        job.attempts,
        job.stall_count,
        job.token,
        extra.progress or None,
        extra.last_error,
        job.result,
        pack(detail) if detail else None,
    )


def _detail(extra: Extra) -> dict[str, Any]:
    """Return the rare fields that have no column of their own, those that are set."""
    detail: dict[str, Any] = {}
    if extra.timeline is not None:
        detail["timeline"] = extra.timeline
    if extra.stacktrace is not None:
        detail["stacktrace"] = extra.stacktrace
    if extra.history:
        detail["history"] = extra.history
    if extra.progress_message is not None:
        detail["progress_message"] = extra.progress_message
    if extra.lives_from:
        detail["lives_from"] = extra.lives_from
    for name, letter in (("dead", extra.dead), ("retry", extra.retry)):
        if letter is not None:
            detail[name] = {part: getattr(letter, part) for part in DeadLetter.__slots__}
    return detail


_packed: dict[JobOptions, bytes] = {}


def _packed_options(options: JobOptions) -> bytes:
    """Return the stored form of an option set; sets are shared, so it is made once."""
    packed = _packed.get(options)
    if packed is None:
        packed = pack(options.given)
        if len(packed) > SHARED_BYTES_MAX:
            return packed
        if len(_packed) >= OPTION_SETS_MAX:
            _packed.clear()
        _packed[options] = packed
    return packed


# What ``compiled/disk.pyx``, the twin of `images`, has these functions for.
FOR_TWIN: Final = SimpleNamespace(
    NO_EXTRA=NO_EXTRA,
    DEFAULT_OPTIONS=DEFAULT_OPTIONS,
    GONE=GONE,
    QUEUED=QUEUED,
    ADMITTED=ADMITTED,
    PARKED=PARKED,
    packed_options=_packed_options,
    full_row=_full_row,
    full_state_row=_full_state_row,
    has_moved=_has_left_its_first_waiting,
)


# -- and back -------------------------------------------------------------------------------------

SELECT_JOBS: Final = (
    "SELECT "
    + ", ".join(f"jobs.{name}" for name in JOBS.names)
    + ", "
    + ", ".join(f"state.{name}" for name in STATE_TABLE.names[1:])
    + " FROM jobs LEFT JOIN state USING (seq) ORDER BY jobs.seq"
)


def jobs_of(
    rows: Iterable[Row],
    queue_of: Callable[[str], Any],
    now: int,
    on_repair: Callable[[Job], None],
) -> Iterator[Job]:
    """Yield the jobs of ``SELECT_JOBS``.

    Args:
        rows: In the order of the statement's columns.
        queue_of: Returns the engine's queue object of a name.
        now: Epoch ms; when a row that cannot be read counts as failed.
        on_repair: Told of every job that is no longer what the file says.
    """
    queues: dict[str, Any] = {}
    names: dict[str, str] = {}
    option_sets: dict[bytes | None, JobOptions] = {None: DEFAULT_OPTIONS}
    nothing = (None,) * 7
    for row in rows:
        queue_name, name, opts = row[2], row[3], row[14]
        queue = queues.get(queue_name)
        if queue is None:
            queue = queues[queue_name] = queue_of(queue_name)
        if name in names:
            name = names[name]
        elif len(names) < _NAMES_MAX:
            names[name] = name
        damage = None
        options = option_sets.get(opts)
        if options is None:
            options = _read_map(opts, shared_options)
            if options is None:
                damage, options = "corrupt-options", DEFAULT_OPTIONS
            elif len(option_sets) < OPTION_SETS_MAX:
                option_sets[opts] = options
        job = Job(row[1], row[0], queue, name, row[15], options, row[4], row[5], row[6], QUEUED)
        if row[7:14] != nothing:
            damage = _read_links(job, row) or damage
        if row[16] is not None:
            damage = _read_state(job, row[16:]) or damage
        if damage is not None:
            log.warning(
                "job cannot be read back whole: moved to the DLQ id=%s why=%s", job.id, damage
            )
            _bury(job, damage, now)
            on_repair(job)
        yield job


def _read_links(job: Job, row: Row) -> str | None:
    """Fill in keys and edges; returns what is damaged."""
    extra = job.own_extra()
    extra.is_custom_id = bool(row[7])
    extra.unique_key, extra.unique_until, extra.parent_id, extra.group_id = row[8:12]
    damage = None
    for name, packed in (("depends_on", row[12]), ("children_ids", row[13])):
        ids = [] if packed is None else _unpacked(packed)
        if isinstance(ids, list) and all(isinstance(id, str) for id in ids):
            setattr(extra, name, dict.fromkeys(ids))
        else:
            damage = "corrupt-dependency-metadata"
    return damage


def _read_state(job: Job, state: Row) -> str | None:
    """Fill in what happened to the job; returns what is damaged."""
    (
        place, job.run_at, started_at, finished_at, job.attempts, job.stall_count, job.token,
        progress, error, job.result, packed,
    ) = state  # fmt: skip
    job.started_at = started_at or 0
    job.finished_at = finished_at or 0
    if progress is not None or error is not None or packed is not None:
        extra = job.own_extra()
        extra.progress = progress or 0
        extra.last_error = error
        if (
            packed is not None
            and _read_map(packed, lambda detail: _read_detail(extra, detail)) is None
        ):
            return "corrupt-detail"
    if place not in _PLACES:
        return "corrupt-state"
    job.place = _PLACES[place]
    return None


def _read_detail(extra: Extra, detail: dict[str, Any]) -> Extra:
    extra.timeline = detail.get("timeline")
    extra.stacktrace = detail.get("stacktrace")
    extra.history = detail.get("history") or []
    extra.progress_message = detail.get("progress_message")
    extra.lives_from = detail.get("lives_from") or 0
    extra.dead = _read_letter(detail.get("dead"))
    extra.retry = _read_letter(detail.get("retry"))
    return extra


def _read_letter(saved: dict[str, Any] | None) -> DeadLetter | None:
    if saved is None:
        return None
    letter = DeadLetter(saved["entered_at"], saved["reason"], saved["error"])
    for name in DeadLetter.__slots__:
        setattr(letter, name, saved.get(name))
    return letter


def _read_map(packed: bytes, read: Callable[[dict[str, Any]], T]) -> T | None:
    """Return ``read(map)`` of a packed map, or None if it is none that can be read."""
    value = _unpacked(packed)
    if not isinstance(value, dict):
        return None
    try:
        return read(value)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _unpacked(packed: object) -> Any:
    try:
        return unpack(packed) if isinstance(packed, bytes) else None
    except (ValueError, TypeError, RecursionError):
        return None


def _bury(job: Job, damage: str, now: int) -> None:
    """Give the job up: what is left of it cannot be trusted to run."""
    job.place = FAILED
    extra = job.own_extra()
    extra.last_error = damage
    extra.dead = DeadLetter(now, "unknown", damage)
