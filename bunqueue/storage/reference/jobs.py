"""A job of the original server as one of ours.

Live and completed jobs are rows of ``jobs``; dead letters are ``dlq`` entries with the whole job
inside, and nowhere else. Both are read as the map that the server tells on the wire (wire.md 3.1),
and one function makes the job of it. What a job cannot do without makes it unfit; what is only one
of its options, or a line of its history, is left out and told.
"""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final

from bunqueue.engine import repeats
from bunqueue.engine.admission import STAMP_SLACK_MS
from bunqueue.engine.deadletters import REASONS
from bunqueue.engine.job import TIMELINE_MAX, DeadLetter, Job, timeline_of
from bunqueue.engine.ports import NEW, STATE
from bunqueue.engine.states import ACTIVE, COMPLETED, FAILED, PARKED, QUEUED
from bunqueue.protocol.codec import pack
from bunqueue.protocol.fields import JobName, QueueName
from bunqueue.protocol.group_fields import GroupId
from bunqueue.protocol.options import (
    BACKOFF_MS_DEFAULT,
    DEFAULT_OPTIONS,
    OPTION_SETS_MAX,
    OPTIONS,
    JobOptions,
    shared_options,
)
from bunqueue.storage.reference.report import Note, Unfit
from bunqueue.storage.reference.values import (
    list_of,
    map_of,
    moment,
    text,
    value_of,
    whole,
)

# column -> name in the map; blobs are decoded.
COLUMNS: Final = {
    "id": "id",
    "queue": "queue",
    "name": "name",
    "data": "data",
    "priority": "priority",
    "created_at": "createdAt",
    "run_at": "runAt",
    "started_at": "startedAt",
    "completed_at": "completedAt",
    "attempts": "attempts",
    "max_attempts": "maxAttempts",
    "backoff": "backoff",
    "ttl": "ttl",
    "timeout": "timeout",
    "unique_key": "uniqueKey",
    "custom_id": "customId",
    "depends_on": "dependsOn",
    "parent_id": "parentId",
    "children_ids": "childrenIds",
    "tags": "tags",
    "state": "state",
    "lifo": "lifo",
    "group_id": "groupId",
    "progress": "progress",
    "progress_msg": "progressMessage",
    "remove_on_complete": "removeOnComplete",
    "remove_on_fail": "removeOnFail",
    "fail_parent_on_failure": "failParentOnFailure",
    "remove_dependency_on_failure": "removeDependencyOnFailure",
    "continue_parent_on_failure": "continueParentOnFailure",
    "ignore_dependency_on_failure": "ignoreDependencyOnFailure",
    "stall_timeout": "stallTimeout",
    "stall_count": "stallCount",
    "timeline": "timeline",
    "stacktrace": "stacktrace",
    "dlq_retry_state": "dlqRetryState",
    "extended_options": "extendedOptions",
}
SELECT_JOBS: Final = (
    f"SELECT {', '.join(f'jobs.{name}' for name in COLUMNS)}, job_results.result"
    " FROM jobs LEFT JOIN job_results ON job_results.job_id = jobs.id ORDER BY jobs.rowid"
)
# Of several entries of one job the newest counts; a live job of that id counts more.
SELECT_DEAD: Final = (
    "SELECT id, job_id, queue, entry, entered_at,"
    " EXISTS (SELECT 1 FROM jobs WHERE jobs.id = dlq.job_id),"
    " id < (SELECT max(newer.id) FROM dlq AS newer WHERE newer.job_id = dlq.job_id)"
    " FROM dlq ORDER BY id"
)
SELECT_WAITING: Final = (
    "SELECT id, depends_on FROM jobs WHERE state = 'waiting-children' AND depends_on IS NOT NULL"
)
DEAD_COLUMNS: Final = ("id", "job_id", "queue", "entry", "entered_at")

# The order of a new job in its queue goes by the moment; what waits for others is parked.
PLACES: Final = {
    "waiting": QUEUED,
    "prioritized": QUEUED,
    "delayed": QUEUED,
    "waiting-children": PARKED,
    "active": ACTIVE,
    "completed": COMPLETED,
}
CORRUPT_LINKS: Final = "corrupt-dependency-metadata"  # engine.md 11.5
INTEGER_MAX: Final = 2**53 - 1

# The columns that hold options, as a key.
_OPTION_COLUMNS: Final = (
    "max_attempts", "backoff", "ttl", "timeout", "tags", "lifo", "remove_on_complete",
    "remove_on_fail", "fail_parent_on_failure", "remove_dependency_on_failure",
    "continue_parent_on_failure", "ignore_dependency_on_failure", "stall_timeout",
    "extended_options",
)  # fmt: skip
_of_options = itemgetter(*(list(COLUMNS).index(name) for name in _OPTION_COLUMNS))
_option_sets: dict[Any, JobOptions] = {}

_NAMES: Final = tuple(COLUMNS.values())
_BLOBS: Final = ("timeline", "stacktrace", "dlqRetryState")
_SHARED: Final = tuple(option for option in OPTIONS if not option.per_job)
_QUEUE, _JOB, _GROUP = QueueName(), JobName(), GroupId()

QueueOf = Callable[[str], Any]
Told = Mapping[str, Any]


def job_of_row(row: tuple[Any, ...], seq: int, queue_of: QueueOf, now: int, note: Note) -> Job:
    """Make the job of a row of ``SELECT_JOBS``.

    Args:
        row: The row.
        seq: Its admission number here.
        queue_of: Returns the queue object of a name.
        now: Epoch ms of the import.
        note: Told what is left out of it.

    Raises:
        Unfit: It cannot come over.
    """
    told = dict(zip(_NAMES, row, strict=False))
    place = PLACES.get(told["state"])
    if place is None:
        raise Unfit(f"unknown state {told['state']!r}")
    told["data"] = value_of(told["data"], "data")
    for name in _BLOBS:
        told[name] = _or_nothing(told[name], name, note)
    damage = None
    for name in ("dependsOn", "childrenIds"):
        try:
            told[name] = list_of(value_of(told[name], name), str, name)
        except Unfit as error:
            told[name] = []
            damage = str(error)
    options = _option_sets.get(_of_options(row)) or _options_of_row(row, told, note)
    job = _job(told, options, seq, queue_of, place, note)
    if place == COMPLETED:
        job.finished_at = moment(told["completedAt"], "completed_at") or job.created_at
        if row[-1] is not None:
            job.result = _result(row[-1], note)
    _tell_past(job, told, note)
    _ride_along(job, map_of(told["dlqRetryState"], "dlq_retry_state"))
    if damage is not None:
        note(f"{damage}: {'left out' if place == COMPLETED else 'given up as a dead letter'}")
        if place != COMPLETED:
            _bury(job, now)
    job.dirty = NEW | STATE if job.stall_count else NEW
    return job


def job_of_entry(
    entry: Mapping[str, Any], seq: int, queue_of: QueueOf, now: int, note: Note
) -> Job:
    """Make the job of a dead letter; see ``job_of_row``."""
    told = map_of(entry.get("job"), "job")
    told = {name: None for name in _NAMES} | told
    for name in ("dependsOn", "childrenIds"):
        told[name] = list_of(told[name], str, name)
    job = _job(told, _options(told, note), seq, queue_of, FAILED, note)
    reason, error = entry.get("reason"), text(entry.get("error"), "error")
    if reason not in REASONS:
        note(f"reason {reason!r} is unknown: now 'unknown'")
        reason = "unknown"
    entered_at = moment(entry.get("enteredAt"), "enteredAt") or now
    dead = DeadLetter(entered_at, reason, error)
    _read_retries(dead, entry)
    job.finished_at = entered_at
    extra = job.own_extra()
    extra.dead = dead
    extra.history = _history(entry.get("attempts"), job)
    _tell_past(job, told, note)
    extra.last_error = error or extra.last_error
    job.dirty = NEW
    return job


# -- the parts ------------------------------------------------------------------------------------


def _job(
    told: Told, options: JobOptions, seq: int, queue_of: QueueOf, place: str, note: Note
) -> Job:
    """Make the job, without its past."""
    job_id, queue_name, name, data = told["id"], told["queue"], told["name"], told["data"]
    if not isinstance(job_id, str) or not job_id:
        raise Unfit("its id is no text")
    if name is None:  # a client of version 2 may have left it in the data
        name = "default"
        if isinstance(data, dict) and isinstance(data.get("name"), str):
            data = dict(data)
            name = data.pop("name")
    problem = _QUEUE.problem("queue", queue_name) or _JOB.problem("name", name)
    if problem:
        raise Unfit(problem)
    created_at = moment(told["createdAt"], "createdAt")
    job = Job(
        job_id,
        seq,
        queue_of(queue_name),
        name,
        pack(data),
        options,
        whole(told["priority"] or 0, "priority", -INTEGER_MAX, INTEGER_MAX),
        created_at,
        moment(told["runAt"], "runAt") or created_at,
        place,
    )
    job.started_at = moment(told["startedAt"], "startedAt")
    job.attempts = whole(told["attempts"] or 0, "attempts", 0, INTEGER_MAX)
    job.stall_count = whole(told["stallCount"] or 0, "stallCount", 0, INTEGER_MAX)
    _link(job, told, note)
    return job


def _link(job: Job, told: Told, note: Note) -> None:
    """Fill in keys and edges."""
    custom_id = text(told["customId"], "customId")
    if custom_id is not None and custom_id != job.id:
        note(f"custom id {custom_id!r} is not its id and left out")
        custom_id = None
    key, group_id = text(told["uniqueKey"], "uniqueKey"), text(told["groupId"], "groupId")
    parent_id = text(told["parentId"], "parentId")
    depends_on, children_ids = told["dependsOn"], told["childrenIds"]
    if not (custom_id or key or group_id or parent_id or depends_on or children_ids):
        return
    if group_id is not None and (problem := _GROUP.problem("groupId", group_id)):
        raise Unfit(problem)
    extra = job.own_extra()
    extra.is_custom_id = custom_id is not None
    extra.unique_key, extra.group_id, extra.parent_id = key, group_id, parent_id
    extra.depends_on = dict.fromkeys(depends_on)
    extra.children_ids = dict.fromkeys(children_ids)


def keep_key_until(job: Job, now: int) -> None:
    """Set when the job's dedup key is free again, where its producer gave it a life.

    The file does not have the moment. A key that every twin extends may have been extended until
    just now; the others live from the push on.
    """
    extra, policy = job.extra, job.options.deduplication or {}
    ttl = policy.get("ttl")
    if extra.unique_key is not None and ttl:
        extra.unique_until = int((now if policy.get("extend") else job.created_at) + ttl)


def _options_of_row(row: tuple[Any, ...], told: Told, note: Note) -> JobOptions:
    """Return the options of a row; those without a fault are kept for the rows that have the same.

    Producers repeat their options from job to job: 30,000 rows alike cost 68 us of CPU each, and
    85 where the options are read every time.
    """
    faults: list[str] = []
    extended = map_of(value_of(told["extendedOptions"], "extended_options"), "extended_options")
    options = _options({**extended, **told, "tags": value_of(told["tags"], "tags")}, faults.append)
    for fault in faults:
        note(fault)
    if not faults:
        if len(_option_sets) >= OPTION_SETS_MAX:
            _option_sets.clear()
        _option_sets[_of_options(row)] = options
    return options


def _options(told: Told, note: Note) -> JobOptions:
    """Return the options that are not as they would be anyway; those nobody may set are told."""
    given: dict[str, Any] = {}
    for option in _SHARED:
        name, default = option.wire, option.default
        if name == "backoff":
            value = told.get("backoffConfig")
            if value is None:
                value = told["backoff"]
                default = BACKOFF_MS_DEFAULT
        elif name == "dedup":
            value = _policy(told)
        elif name == "repeat":
            value = _repeat(told.get("repeat"), note)
        else:
            value = told.get(name)
        if isinstance(default, bool) and value is not None:
            value = bool(value)
        if value is None or value == default or (value == [] and default == ()):
            continue
        problem = option.field.problem(name, value)
        if problem is None:
            given[name] = value
        else:
            note(f"{problem}: left out")
    return shared_options(given) if given else DEFAULT_OPTIONS


def _policy(told: Told) -> dict[str, Any] | None:
    policy = {
        name: told.get(f"deduplication{name.capitalize()}") for name in ("ttl", "extend", "replace")
    }
    return {name: value for name, value in policy.items() if value} or None


def _repeat(repeat: object, note: Note) -> dict[str, Any] | None:
    if not isinstance(repeat, dict):
        return None
    problem = repeats.refusal({"repeat": repeat})
    if problem:
        note(f"{problem}: it will run, but not repeat")
        return None
    return repeats.normalised(repeat)


# -- the past -------------------------------------------------------------------------------------


def _tell_past(job: Job, told: Told, note: Note) -> None:
    """Fill in progress, timeline and errors; an ordinary job has nothing of its own there."""
    progress, message = told["progress"] or 0, text(told["progressMessage"], "progressMessage")
    if message is not None or (progress and job.place != COMPLETED):
        extra = job.own_extra()
        extra.progress = max(0, min(100, progress)) if isinstance(progress, (int, float)) else 0
        extra.progress_message = message
    if told["stacktrace"]:
        job.own_extra().stacktrace = list_of(told["stacktrace"], str, "stacktrace")
    try:
        timeline = [_line(each) for each in list_of(told["timeline"], dict, "timeline")]
    except Unfit as error:
        note(f"{error}: left out")
        return
    if not timeline or _is_derived(timeline, timeline_of(job)):
        return
    extra = job.own_extra()
    extra.timeline = timeline[-TIMELINE_MAX:]
    errors = [error for _, _, error, _ in timeline if error is not None]
    if errors:
        extra.last_error = errors[-1]


def _line(entry: Mapping[str, Any]) -> list[Any]:
    state, attempt = entry.get("state"), entry.get("attempt")
    if not isinstance(state, str):
        raise Unfit("a state of the timeline is no text")
    return [
        state,
        moment(entry.get("timestamp"), "a moment of the timeline"),
        text(entry.get("error"), "an error of the timeline"),
        None if attempt is None else whole(attempt, "an attempt of the timeline", 0, INTEGER_MAX),
    ]


def _is_derived(timeline: list[list[Any]], derived: list[list[Any]]) -> bool:
    """Say whether the job's moments tell the same, give or take what a push takes."""
    return len(timeline) == len(derived) and all(
        line[0] == other[0] and line[2:] == other[2:] and abs(line[1] - other[1]) <= STAMP_SLACK_MS
        for line, other in zip(timeline, derived, strict=True)
    )


def _ride_along(job: Job, state: Mapping[str, Any]) -> None:
    """Fill in what a job that has failed before brings along for its next failure."""
    history = _history(state.get("attempts"), job)
    if history:
        extra = job.own_extra()
        extra.history = history
        extra.last_error = extra.last_error or history[-1][4]
    if state.get("enteredAt") is not None:
        reason, error = history[-1][3:] if history else ("unknown", None)
        letter = DeadLetter(moment(state["enteredAt"], "enteredAt"), reason, error)
        _read_retries(letter, state)
        job.own_extra().retry = letter


def _read_retries(letter: DeadLetter, told: Mapping[str, Any]) -> None:
    letter.retry_count = whole(told.get("retryCount") or 0, "retryCount", 0, INTEGER_MAX)
    letter.last_retry_at = moment(told.get("lastRetryAt"), "lastRetryAt") or None
    letter.next_retry_at = moment(told.get("nextRetryAt"), "nextRetryAt") or None
    letter.expires_at = moment(told.get("expiresAt"), "expiresAt") or None


def _history(attempts: object, job: Job) -> list[list[Any]]:
    """Return charged attempts; an end without a run is one that never started."""
    history = []
    for each in list_of(attempts, dict, "attempts"):
        started_at = moment(each.get("startedAt"), "startedAt")
        if started_at == job.created_at and not job.started_at:
            started_at = 0
        reason = each.get("reason")
        history.append(
            [
                whole(each.get("attempt") or 0, "attempt", 0, INTEGER_MAX),
                started_at,
                moment(each.get("failedAt"), "failedAt"),
                reason if reason in REASONS else "unknown",
                text(each.get("error"), "error"),
            ]
        )
    return history


def _or_nothing(blob: object, name: str, note: Note) -> Any:
    try:
        return value_of(blob, name)
    except Unfit as error:
        note(f"{error}: left out")
        return None


def _result(blob: object, note: Note) -> bytes | None:
    try:
        return pack(value_of(blob, "its result"))
    except Unfit as error:
        note(f"{error}: left out")
        return None


def _bury(job: Job, now: int) -> None:
    job.place = FAILED
    job.finished_at = now
    extra = job.own_extra()
    extra.last_error = CORRUPT_LINKS
    extra.dead = DeadLetter(now, "unknown", CORRUPT_LINKS)
