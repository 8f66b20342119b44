"""A scheduler: what was defined, and how far it has got."""

import json
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any, Final

from bunqueue.engine.cron_text import Schedule, parse
from bunqueue.engine.cron_times import after_interval, next_run, zone_of
from bunqueue.engine.outcomes import CRON_KEY_PREFIX
from bunqueue.errors import InvalidField
from bunqueue.protocol.fields import SAFE_INTEGER_MAX
from bunqueue.protocol.options import JobOptions, shared_options

EVERY_REFUSED: Final = "Cron repeatEvery must be a positive safe integer number of milliseconds"

# The options of wire.md 4.2 that a scheduler's jobs may have; the others are the scheduler's own,
# or make no sense for more than one job.
JOB_OPTIONS: Final = (
    "maxAttempts",
    "backoff",
    "timeout",
    "delay",
    "ttl",
    "stallTimeout",
    "removeOnComplete",
    "removeOnFail",
    "lifo",
    "durable",
    "stackTraceLimit",
    "keepLogs",
    "sizeLimit",
    "tags",
)

# What is read of the options that are maps.
_MEMBERS: Final = {
    "backoff": ("type", "delay", "maxDelay"),
    "dedup": ("ttl", "extend", "replace"),
}


def known(name: str, value: Any) -> Any:
    """Return a checked option without what nobody reads of it, which may have no form in JSON."""
    members = _MEMBERS.get(name, ())
    if not members or not isinstance(value, dict):
        return value
    return {member: value[member] for member in members if member in value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a Cron command says; see wire.md 2.11.

    Attributes:
        data: Packed payload.
        schedule, timezone: Texts as given, or None; a schedule wins over ``repeat_every``.
        repeat_every: Ms.
        max_limit: Runs in all; None for no limit.
        dedup: Policy for ``unique_key``, as on a push; of known members only.
        job_options: wire name -> value, for the jobs that are made; the same.
    """

    name: str
    queue: str
    job_name: str
    data: bytes
    schedule: str | None = None
    repeat_every: int | None = None
    timezone: str | None = None
    priority: int = 0
    max_limit: int | None = None
    unique_key: str | None = None
    dedup: dict[str, Any] | None = None
    skip_missed: bool = True
    skip_if_no_worker: bool = False
    prevent_overlap: bool = True
    job_options: dict[str, Any] | None = None

    @property
    def key(self) -> str | None:
        """The dedup key of its jobs, or None."""
        if self.unique_key:
            return self.unique_key
        return CRON_KEY_PREFIX + self.name if self.prevent_overlap else None

    def has_moments_of(self, other: "Definition") -> bool:
        """Say whether both are due at the same moments."""
        if self.schedule or other.schedule:
            return (self.schedule, self.timezone) == (other.schedule, other.timezone)
        return self.repeat_every == other.repeat_every


class Timetable:
    """When a definition is due: its schedule or its interval, ready to be asked."""

    __slots__ = ("schedule", "zone", "every")

    def __init__(self, definition: Definition) -> None:
        """Read a definition.

        Raises:
            InvalidField: It has no moments, or they cannot be understood.
        """
        every = definition.repeat_every
        if not definition.schedule and every is None:
            raise InvalidField("Cron job must have either schedule or repeatEvery")
        if every is not None and not 1 <= every <= SAFE_INTEGER_MAX:
            raise InvalidField(EVERY_REFUSED)
        self.schedule: Schedule | None = None
        self.zone: tzinfo = UTC
        self.every = every or 0
        if definition.schedule:
            try:
                self.schedule = parse(definition.schedule)
                if definition.timezone:
                    self.zone = zone_of(definition.timezone)
            except ValueError as error:
                raise InvalidField(f"Invalid cron expression: {error}") from None

    def first(self, now: int) -> int:
        """Return the first planned moment of a definition that is made now."""
        if self.schedule is None:
            return now + self.every
        found = next_run(self.schedule, self.zone, now)
        return now if found is None else found

    def following(self, planned_at: int, now: int) -> int | None:
        """Return the planned moment after ``now``, given the one before."""
        if self.schedule is None:
            return after_interval(planned_at, self.every, now)
        return next_run(self.schedule, self.zone, now)


class Cron:
    """A scheduler.

    Attributes:
        definition, timetable: What it does and when.
        options, own: What its pushes carry: shared options, and wire name -> value of the others.
        executions: Jobs it has made.
        next_run: Planned moment of the next one, epoch ms.
        fired_at: When it fired last, epoch ms, 0 for not since the start.
        pending: Runs that are still being written; their jobs come after that.
        doubt: Why ``next_run`` has to be looked at before it is obeyed, "" for no reason.
        stamp: Counts its entries in the timetable; those of an older stamp are stale.
    """

    __slots__ = (
        "definition",
        "timetable",
        "options",
        "own",
        "executions",
        "next_run",
        "fired_at",
        "pending",
        "doubt",
        "stamp",
    )

    def __init__(self, definition: Definition, timetable: Timetable) -> None:
        self.executions = 0
        self.next_run = 0
        self.fired_at = 0
        self.pending = 0
        self.doubt = ""
        self.stamp = 0
        self.define(definition, timetable)

    @property
    def name(self) -> str:
        return self.definition.name

    def define(self, definition: Definition, timetable: Timetable) -> None:
        """Give it another definition; how far it has got stays."""
        self.definition = definition
        self.timetable = timetable
        given = dict(definition.job_options or {})
        if definition.key is not None:
            given["uniqueKey"] = definition.key
        if definition.dedup:
            given["dedup"] = definition.dedup
        given["priority"] = definition.priority
        self.own = given
        self.options: JobOptions = shared_options(given)

    def is_at_limit(self) -> bool:
        """Say whether it has made all the jobs that it may."""
        limit = self.definition.max_limit
        return limit is not None and 0 < limit <= self.executions


# -- as a row of the small table, readable with any SQLite browser --------------------------------


def to_row(cron: Cron) -> tuple[Any, ...]:
    """Return the row of a scheduler, without its key."""
    definition = cron.definition
    return (
        definition.queue,
        definition.job_name,
        definition.schedule,
        definition.repeat_every,
        definition.timezone,
        cron.next_run,
        cron.executions,
        definition.max_limit,
        definition.priority,
        definition.unique_key,
        _json(definition.dedup),
        int(definition.skip_missed),
        int(definition.skip_if_no_worker),
        int(definition.prevent_overlap),
        _json(definition.job_options),
        definition.data,
    )


def from_row(name: str, row: tuple[Any, ...]) -> Cron:
    """Return the scheduler of a row.

    Raises:
        ValueError, TypeError, InvalidField: It is none that can run.
    """
    (
        queue,
        job_name,
        schedule,
        repeat_every,
        timezone,
        planned_at,
        executions,
        max_limit,
        priority,
        unique_key,
        dedup,
        skip_missed,
        skip_if_no_worker,
        prevent_overlap,
        job_options,
        data,
    ) = row
    definition = Definition(
        name=name,
        queue=_text(queue, "queue"),
        job_name=_text(job_name, "job_name"),
        data=data,
        schedule=schedule,
        repeat_every=None if repeat_every is None else _whole(repeat_every, "repeat_every"),
        timezone=timezone,
        priority=_whole(priority, "priority"),
        max_limit=None if max_limit is None else _whole(max_limit, "max_limit"),
        unique_key=unique_key,
        dedup=None if dedup is None else _map(dedup, "dedup"),
        skip_missed=bool(skip_missed),
        skip_if_no_worker=bool(skip_if_no_worker),
        prevent_overlap=bool(prevent_overlap),
        job_options=None if job_options is None else _map(job_options, "job_options"),
    )
    if not isinstance(data, bytes):
        raise TypeError("data is no packed value")
    cron = Cron(definition, Timetable(definition))
    cron.next_run = _whole(planned_at, "next_run")
    cron.executions = _whole(executions, "executions")
    return cron


def _json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} is no text")
    return value


def _whole(value: object, name: str) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{name} is no whole number")
    return value


def _map(text: str, name: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"{name} is no map")
    return value
