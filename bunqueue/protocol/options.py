"""The job options, one row each; everything that knows an option reads it here.

Options that real producers repeat from job to job live in one shared, interned ``JobOptions``;
those that differ per job (``per_job`` rows: ids, keys, delay, edges) are read once at admission
into the job itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bunqueue.protocol.codec import InvalidFrame, decode, pack
from bunqueue.protocol.fields import (
    TAG_CHARS_MAX,
    Check,
    Field,
    Flag,
    IdList,
    Map,
    Number,
    Text,
    TextList,
    compile_check,
)
from bunqueue.protocol.group_fields import GroupId, GroupPriority, GroupSize

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
PRIORITY_MAX = 1_000_000
ATTEMPTS_MAX = 1000
DATA_CHARS_MAX = 10_485_760  # wire.md 4.2: the JSON form of a job's data
KEEP_LOGS_MAX = 100  # log lines kept per job, engine.md 6.2
TIMESTAMP_MAX = 2**62  # epoch ms; with any delay or time to live it still fits into 64 bits
BACKOFF_MS_DEFAULT = 1000
BACKOFF_MS_CAP = 3_600_000  # no retry waits longer, engine.md 4.1
# Ids that one job names as its dependencies, or as its children: five times the jobs of a flow.
# They are entered and taken out in one go: loadtests/hub.py push-children.
EDGES_MAX = 50_000
_EDGES_CURE = "let jobs in between gather some of them each"
SHARED_BYTES_MAX = 4_096  # of a set's lists, maps and texts; one that holds more is nobody else's
OPTION_SETS_MAX = 2000  # interned option sets; when there are more, sharing begins anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff(Field):
    """A base delay in ms, or ``{type, delay, maxDelay}``."""

    def problem(self, name: str, value: Any) -> str | None:
        if not isinstance(value, dict):
            return _BACKOFF_MS.problem(name, value)
        if value.get("type") not in ("fixed", "exponential"):
            return f"{name}.type must be 'fixed' or 'exponential'"
        for key in ("delay", "maxDelay"):
            found = (
                None if value.get(key) is None else _BACKOFF_MS.problem(f"{name}.{key}", value[key])
            )
            if found:
                return found
        return None

    def fast(self) -> str:
        return f"x.__class__ is int and 0 <= x <= {DAY_MS}"

    def kind(self) -> str:
        return f"number 0..{DAY_MS} or map {{type, delay, maxDelay}}"


_BACKOFF_MS = Number(max=DAY_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomId(Field):
    """An id chosen by the caller; the empty string counts as absent."""

    def problem(self, name: str, value: Any) -> str | None:
        if not isinstance(value, str):
            return f"{name} must be a string"
        try:
            value.encode()
        except UnicodeEncodeError:
            return "custom ID must be well-formed Unicode"
        return None

    def fast(self) -> str:
        return "x.__class__ is str and x.isascii()"

    def kind(self) -> str:
        return "string"


@dataclass(frozen=True, slots=True)
class Option:
    """One job option.

    Attributes:
        wire: Its name in requests.
        python: Its name in the Python client and in ``JobOptions``.
        default: What an absent option means.
        field: What is accepted.
        per_job: It differs from job to job and is kept in the job, not in the shared options.
    """

    wire: str
    python: str
    default: Any
    field: Field
    per_job: bool = False


OPTIONS: tuple[Option, ...] = (
    Option(
        "priority",
        "priority",
        0,
        Number(min=-PRIORITY_MAX, max=PRIORITY_MAX, integer=True, doc="Higher runs sooner."),
        per_job=True,
    ),
    Option(
        "delay", "delay", 0, Number(max=YEAR_MS, doc="Ms before the job may run."), per_job=True
    ),
    Option("ttl", "ttl", None, Number(max=YEAR_MS, doc="Ms after which a queued job expires.")),
    Option("timeout", "timeout", None, Number(max=DAY_MS, doc="Ms one run may take; 0 is none.")),
    Option(
        "maxAttempts",
        "attempts",
        3,
        Number(min=1, max=ATTEMPTS_MAX, integer=True, doc="Runs in all, the first included."),
    ),
    Option(
        "backoff",
        "backoff",
        None,
        Backoff(doc="Wait before the next run; a number is exponential."),
    ),
    Option(
        "jobId",
        "job_id",
        None,
        CustomId(doc="The caller's own id; PUSHB calls it customId."),
        per_job=True,
    ),
    Option(
        "customId", "custom_id", None, CustomId(doc="The caller's own id in PUSHB."), per_job=True
    ),
    Option(
        "uniqueKey", "unique_key", None, Text(doc="Refuses a twin while one lives."), per_job=True
    ),
    Option(
        "dedup",
        "deduplication",
        None,
        Map(
            fields={"ttl": Number(max=YEAR_MS), "extend": Flag(), "replace": Flag()},
            doc="What a twin does: {ttl, extend, replace}; needs uniqueKey.",
        ),
    ),
    Option(
        "groupId",
        "group_id",
        None,
        GroupId(doc="Label that shares a turn and limits."),
        per_job=True,
    ),
    Option(
        "groupMaxSize",
        "group_max_size",
        None,
        GroupSize(doc="Refuse when the group holds as many pending jobs."),
        per_job=True,
    ),
    Option("lifo", "lifo", False, Flag(doc="Among equal priorities: first, newest first.")),
    Option(
        "removeOnComplete",
        "remove_on_complete",
        False,
        Flag(truthy=True, doc="Forget the job once it is done."),
    ),
    Option(
        "removeOnFail",
        "remove_on_fail",
        False,
        Flag(truthy=True, doc="Forget the job once it has failed for good."),
    ),
    Option("durable", "durable", False, Flag(doc="On disk before the reply.")),
    Option(
        "stallTimeout",
        "stall_timeout",
        None,
        Number(
            max=DAY_MS, between=True, doc="Ms without a heartbeat until the job counts as stalled."
        ),
    ),
    Option(
        "stackTraceLimit",
        "stack_trace_limit",
        10,
        Number(
            max=10_000, integer=True, between=True, doc="Lines of a failure's stack that are kept."
        ),
    ),
    Option(
        "keepLogs",
        "keep_logs",
        None,
        Number(
            max=1_000_000,
            integer=True,
            between=True,
            doc=f"Log lines that are kept, at most {KEEP_LOGS_MAX}.",
        ),
    ),
    Option(
        "sizeLimit",
        "size_limit",
        None,
        Number(
            max=DATA_CHARS_MAX,
            integer=True,
            between=True,
            doc="Refuse data whose JSON form is longer, in characters.",
        ),
    ),
    Option(
        "timestamp",
        "timestamp",
        None,
        Number(max=TIMESTAMP_MAX, doc="Epoch ms that becomes createdAt."),
        per_job=True,
    ),
    Option("tags", "tags", (), TextList(chars_max=TAG_CHARS_MAX, doc="Labels.")),
    Option("debounceId", "debounce_id", None, Text(doc="Stored only.")),
    Option("debounceTtl", "debounce_ttl", None, Number(max=YEAR_MS, doc="Stored only.")),
    Option(
        "dependsOn",
        "depends_on",
        (),
        IdList(doc="Ids that must complete first.", items_max=EDGES_MAX, cure=_EDGES_CURE),
        per_job=True,
    ),
    Option("parentId", "parent_id", None, Text(doc="Id of the parent."), per_job=True),
    Option(
        "childrenIds",
        "children_ids",
        (),
        IdList(doc="Ids of the children.", items_max=EDGES_MAX, cure=_EDGES_CURE),
        per_job=True,
    ),
    Option(
        "failParentOnFailure",
        "fail_parent_on_failure",
        False,
        Flag(truthy=True, doc="If it fails for good, so does its parent."),
    ),
    Option(
        "removeDependencyOnFailure",
        "remove_dependency_on_failure",
        False,
        Flag(truthy=True, doc="If it fails for good, its parent does without."),
    ),
    Option(
        "continueParentOnFailure",
        "continue_parent_on_failure",
        False,
        Flag(truthy=True, doc="If it fails for good, its parent waits for nothing more."),
    ),
    Option(
        "ignoreDependencyOnFailure",
        "ignore_dependency_on_failure",
        False,
        Flag(truthy=True, doc="As removeDependencyOnFailure; the parent can ask for the error."),
    ),
    Option("repeat", "repeat", None, Map(doc="Make the next one on completion.")),
)

BY_WIRE: Mapping[str, Option] = {option.wire: option for option in OPTIONS}
WIRE_NAMES = frozenset(BY_WIRE)
_SHARED = tuple(option for option in OPTIONS if not option.per_job)
_SHARED_NAMES = frozenset(option.wire for option in _SHARED)

OPTION_FIELDS: Mapping[str, Field] = {option.wire: option.field for option in OPTIONS}
_check_plain: Check = compile_check(OPTION_FIELDS)
# A label changes what a priority is.
_check_grouped: Check = compile_check({**OPTION_FIELDS, "priority": GroupPriority()})


def check_options(request: Mapping[str, Any]) -> str | None:
    """Return the first problem of a request's job options, or None."""
    return _check_grouped(request) if "groupId" in request else _check_plain(request)


class JobOptions:
    """The options of a job that never differ from job to job; immutable once made.

    Attributes have the Python names of the rows. ``given`` holds the wire form of what was set,
    which is what is stored; ``reply`` is a place for the wire room's packed form of this set.
    """

    __slots__ = (
        *(option.python for option in _SHARED),
        "given",
        "backoff_ms",
        "backoff_type",
        "backoff_max_ms",
        "reply",
    )

    ttl: float | None
    timeout: float | None
    attempts: int
    backoff: Any
    deduplication: dict[str, Any] | None
    lifo: bool
    remove_on_complete: bool
    remove_on_fail: bool
    durable: bool
    stall_timeout: float | None
    stack_trace_limit: int
    keep_logs: int | None
    size_limit: int | None
    tags: list[str]
    debounce_id: str | None
    debounce_ttl: float | None
    fail_parent_on_failure: bool
    remove_dependency_on_failure: bool
    continue_parent_on_failure: bool
    ignore_dependency_on_failure: bool
    repeat: dict[str, Any] | None

    def __init__(self, given: Mapping[str, Any]) -> None:
        """Args: given: wire name -> checked value, the shared rows only."""
        self.given = dict(given)
        for option in _SHARED:
            value = given.get(option.wire)
            if value is None:
                value = option.default
            elif isinstance(option.default, bool):
                value = is_truthy(value)
            elif isinstance(value, float) and value.is_integer():
                value = int(value)
            setattr(self, option.python, value)
        backoff = self.backoff
        is_map = isinstance(backoff, dict)
        base = (backoff.get("delay") if is_map else backoff) if backoff is not None else None
        self.backoff_ms: float = BACKOFF_MS_DEFAULT if base is None else base
        self.backoff_type: str = backoff["type"] if is_map else "exponential"
        cap = backoff.get("maxDelay") if is_map else None
        self.backoff_max_ms: float = BACKOFF_MS_CAP if cap is None else min(cap, BACKOFF_MS_CAP)
        self.reply: Any = None


DEFAULT_OPTIONS = JobOptions({})

_interned: dict[Any, JobOptions] = {}
# One tuple of the shared rows' values, in row order: 0.9 us where a loop took 7.
_key_of: Callable[[Callable[[str], Any]], tuple[Any, ...]] = eval(
    f"lambda get: ({', '.join(f'get({option.wire!r})' for option in _SHARED)})"
)

_NONE_GIVEN = (None,) * len(_SHARED)
_interned[_NONE_GIVEN] = DEFAULT_OPTIONS


def is_truthy(value: Any) -> bool:
    """Read a value's truth as JavaScript does: an empty list or map is true, no number is not."""
    return isinstance(value, (list, dict, bytes)) or bool(value and value == value)


def shared_options(request: Mapping[str, Any]) -> JobOptions:
    """Return the shared options of a checked request; equal sets are one object.

    Args:
        request: A push, or one entry of a batch; other keys are ignored.
    """
    key: Any = _key_of(request.get)
    try:
        options = _interned.get(key)
    except TypeError:  # a map or a list among the values
        key = tuple(map(_hashable, key))
        options = _interned.get(key)
    if options is None:
        options = JobOptions(
            {name: request[name] for name in _SHARED_NAMES if request.get(name) is not None}
        )
        if sum(len(value) for value in key if isinstance(value, (bytes, str))) > SHARED_BYTES_MAX:
            return options
        if len(_interned) >= OPTION_SETS_MAX:  # sets that come once must not end it for the rest
            _interned.clear()
            _interned[_NONE_GIVEN] = DEFAULT_OPTIONS
        _interned[key] = options
    return options


def _hashable(value: Any) -> Any:
    """Return what stands for ``value`` in a key: packed, since tuples cannot be as deep as it."""
    return pack(value) if isinstance(value, (dict, list)) else value


# Says whether a request sets no job option at all; the set's own method, since every push asks.
sets_no_option: Callable[[Mapping[str, Any]], bool] = WIRE_NAMES.isdisjoint


# What makes a push more than a job in the run set.
_UNUSUAL = frozenset(
    {option.wire for option in OPTIONS if option.per_job and option.wire != "priority"}
    | {"ttl", "repeat", "sizeLimit"}
)


def ordinary_options(raw: bytes) -> tuple[JobOptions, int] | None:
    """Return the shared options and the priority that a packed map of options comes to.

    None if the map is refused or odd, or if the options ask for more than a place in the run set.
    """
    try:
        given = decode(raw)
    except InvalidFrame:
        return None
    if len(given) != int.from_bytes(raw[1:3], "big") or not _UNUSUAL.isdisjoint(given):
        return None
    if check_options(given) is not None:
        return None
    return shared_options(given), int(given.get("priority") or 0)
