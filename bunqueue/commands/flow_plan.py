"""The plan of a flow, as PUSHF brings it: every rule that one request can break (wire.md 2.1.2).

``planned`` yields job after job, checked by itself and packed, and at its end checks how they hang
together. It is a generator so that the engine can take a large flow in slices, with others served
in between; nothing is admitted before it has come to its end.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bunqueue.commands.core import payload
from bunqueue.engine.face import EngineFace
from bunqueue.engine.failures import policy_of
from bunqueue.engine.flow_admission import FlowJob
from bunqueue.errors import InvalidField
from bunqueue.protocol.fields import (
    JOB_NAME_CHARS_MAX,
    SAFE_INTEGER_MAX,
    TAG_CHARS_MAX,
    Flag,
    JobName,
    Number,
    QueueName,
    length_problem,
)
from bunqueue.protocol.group_fields import GROUP_PRIORITY_MAX, GroupId
from bunqueue.protocol.large import (
    CHILDREN_KEY,
    PARENT_KEY,
    PARENT_QUEUE_KEY,
    json_chars,
    marks_of,
)
from bunqueue.protocol.options import DAY_MS, OPTION_FIELDS, OPTIONS, JobOptions, shared_options

FLOW_JOBS_MAX: Final = 10_000  # wire.md 2.1.2
FLOW_DATA_CHARS_MAX: Final = 67_108_864  # JSON characters of all jobs together, wire.md 2.1.2
FLOW_ID_CHARS_MAX: Final = 1024
EDGES_PER_STEP: Final = 8  # that are checked in the time of a job without any
ORDERED_PER_STEP: Final = 8  # jobs whose order is checked in the time of one that is checked itself
DATA_BYTES_UNCOUNTED: Final = 4096  # packed data this small counts by its bytes: near enough

_POLICIES: Final = (
    "failParentOnFailure",
    "removeDependencyOnFailure",
    "continueParentOnFailure",
    "ignoreDependencyOnFailure",
)
_FORBIDDEN: Final = {
    "repeat": "repeat",
    "uniqueKey": "deduplication",
    "dedup": "deduplication",
    "debounceId": "debounce",
    "debounceTtl": "debounce",
}
_FLAGS: Final = tuple(option.wire for option in OPTIONS if isinstance(option.field, Flag))
# wire name -> label in texts, least, most, whole
_NUMBERS: Final[Mapping[str, tuple[str, float, float, bool]]] = {
    option.wire: (
        "attempts" if option.wire == "maxAttempts" else option.wire,
        option.field.min or 0,
        min(option.field.max or SAFE_INTEGER_MAX, SAFE_INTEGER_MAX),
        option.field.integer,
    )
    for option in OPTIONS
    if isinstance(option.field, Number) and option.wire not in _FORBIDDEN
}
_group_id = GroupId()
_queue_name = QueueName()
_job_name = JobName()

# What hangs together: queue, input, dependencies, children, children as a set
_Node = tuple[str, Mapping[str, Any], list[str], list[str], frozenset[str]]


def planned(jobs: Sequence[Any], engine: EngineFace, is_large: bool) -> Iterator[FlowJob | None]:
    """Yield the jobs of a flow in the order given, each checked and packed.

    Then it yields None at every step of the checks that concern several jobs. ``is_large``: They
    may hold more than a small frame could.

    Raises:
        InvalidField: The first rule that is broken; those about single jobs come first.
    """
    nodes: dict[str, _Node] = {}
    chars = 0
    for job in jobs:
        given = job if isinstance(job, dict) else {}
        job_id = _checked_id(given.get("id"), nodes)
        entry = given.get("input")
        own = entry if isinstance(entry, dict) else {}
        if own.get("customId") is not None and own["customId"] != job_id:
            raise InvalidField(f"custom id does not match planned id: {job_id}")
        queue_name: Any = given.get("queue")
        if _queue_name.problem("queue", queue_name):
            raise InvalidField(f"invalid flow queue: {_text(queue_name)}")
        if marks_of(own.get("data")) is None:
            raise InvalidField("flow job data must be an object")
        if "name" in own and _job_name.problem("name", own["name"]):
            raise InvalidField(
                f"Job name must be a non-empty string of at most {JOB_NAME_CHARS_MAX} characters"
            )
        problem = length_problem(own, OPTION_FIELDS) if is_large else None
        if problem is not None:
            raise InvalidField(problem)
        options = _checked_options(own)
        depends_on = _checked_ids("dependsOn", own)
        children_ids = _checked_ids("childrenIds", own)
        name, packed = payload(own, options, engine)
        is_small = len(packed) <= DATA_BYTES_UNCOUNTED
        chars += len(packed) if is_small else json_chars(own["data"])
        if chars > FLOW_DATA_CHARS_MAX:
            raise InvalidField("flow data is too large (max 64MB per atomic batch)")
        nodes[job_id] = (queue_name, own, depends_on, children_ids, frozenset(children_ids))
        yield FlowJob(job_id, queue_name, name, packed, options, own)
    for job_id, node in nodes.items():
        _check_edges(job_id, nodes)
        for _ in range(1 + (len(node[2]) + len(node[3])) // EDGES_PER_STEP):
            yield None
    yield from _check_order(nodes)


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


def _checked_id(job_id: Any, nodes: Mapping[str, _Node]) -> str:
    if not isinstance(job_id, str):
        raise InvalidField("flow job id must be a string")
    if not _is_id(job_id):
        raise InvalidField("flow job id is invalid or is not well-formed Unicode")
    if ":" in job_id:
        raise InvalidField("flow job id cannot contain a colon")
    if job_id in nodes:
        raise InvalidField(f"duplicate flow job id: {job_id}")
    return job_id


def _is_id(value: Any) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= FLOW_ID_CHARS_MAX
        and (value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value))
    )


def _checked_ids(option: str, own: Mapping[str, Any]) -> list[str]:
    if option not in own:
        return []
    ids = own[option]
    if not isinstance(ids, list) or not all(map(_is_id, ids)):
        raise InvalidField(f"{option} must be an array of valid string job ids")
    return ids


# -- one job by itself ----------------------------------------------------------------------------


def _checked_options(own: Mapping[str, Any]) -> JobOptions:
    for option, what in _FORBIDDEN.items():
        if option in own:
            raise InvalidField(f"{what} is not supported inside an atomic flow")
    for option, (label, least, most, whole) in _NUMBERS.items():
        if own.get(option) is not None and not (option == "priority" and "groupId" in own):
            _check_number(label, own[option], least, most, whole)
    for option in _FLAGS:
        if option in own and not isinstance(own[option], bool):
            raise InvalidField(f"{option} must be a boolean")
    if "tags" in own:
        _check_tags(own["tags"])
    if own.get("backoff") is not None:
        _check_backoff(own["backoff"])
    if "groupId" in own:
        _check_group(own)
    set_policies = [option for option in _POLICIES if own.get(option)]
    if len(set_policies) > 1:
        raise InvalidField("flow failure policies are mutually exclusive")
    options = shared_options(own)
    if policy_of(options) is not None and "parentId" not in own:
        raise InvalidField("a flow failure policy requires a parent")
    return options


def _check_number(label: str, value: Any, least: float, most: float, whole: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidField(f"{label} must be a finite number")
    if whole and value != int(value):
        raise InvalidField(f"{label} must be an integer")
    if not least <= value <= most:
        raise InvalidField(f"{label} must be between {int(least)} and {int(most)}")


def _check_tags(tags: Any) -> None:
    if not isinstance(tags, list) or not all(
        isinstance(tag, str) and len(tag) <= TAG_CHARS_MAX for tag in tags
    ):
        raise InvalidField(
            f"tags must be an array of strings of at most {TAG_CHARS_MAX} characters"
        )


def _check_backoff(backoff: Any) -> None:
    if not isinstance(backoff, (dict, list)):
        _check_number("backoff", backoff, 0, DAY_MS, False)
        return
    if not isinstance(backoff, dict) or backoff.get("type") not in ("fixed", "exponential"):
        raise InvalidField("backoff.type must be 'fixed' or 'exponential'")
    for key in ("delay", "maxDelay"):
        if backoff.get(key) is not None:
            _check_number(f"backoff.{key}", backoff[key], 0, DAY_MS, False)


def _check_group(own: Mapping[str, Any]) -> None:
    found = _group_id.problem("groupId", own["groupId"])
    if found is not None:
        raise InvalidField(found)
    if "priority" in own:
        _check_number("group.priority", own["priority"], 0, GROUP_PRIORITY_MAX, True)
    if own.get("groupMaxSize") is not None:
        _check_number("group.maxSize", own["groupMaxSize"], 1, SAFE_INTEGER_MAX, True)


# -- how they hang together -----------------------------------------------------------------------


def _check_edges(job_id: str, nodes: Mapping[str, _Node]) -> None:
    _, own, depends_on, children_ids, _ = nodes[job_id]
    dependencies = set(depends_on)
    for other_id in depends_on:
        if other_id == job_id:
            raise InvalidField(f"flow job cannot depend on itself: {job_id}")
        if other_id not in nodes:
            raise InvalidField(f"flow dependency not found: {other_id}")
    if len(dependencies) < len(depends_on):
        raise InvalidField(f"duplicate dependency in flow job: {job_id}")
    if len(set(children_ids)) < len(children_ids):
        raise InvalidField(f"duplicate child in flow job: {job_id}")
    for child_id in children_ids:
        if child_id not in dependencies:
            raise InvalidField(f"flow child is missing from dependencies: {child_id}")
        if child_id not in nodes:
            raise InvalidField(f"flow child not found: {child_id}")
        if nodes[child_id][1].get("parentId") != job_id:
            raise InvalidField(f"flow child {child_id} does not point back to parent {job_id}")
    marks = marks_of(own["data"]) or {}
    if children_ids and marks.get(CHILDREN_KEY) != children_ids:
        raise InvalidField(
            f"flow parent {job_id} children does not match the canonical flow topology"
        )
    if "parentId" in own:
        _check_parent(job_id, own, marks, nodes)


def _check_parent(
    job_id: str, own: Mapping[str, Any], marks: Mapping[str, Any], nodes: Mapping[str, _Node]
) -> None:
    parent_id = own["parentId"]
    if not isinstance(parent_id, str) or not parent_id:
        raise InvalidField(f"flow parent id is invalid: {job_id}")
    parent = nodes.get(parent_id)
    if parent is None:
        raise InvalidField(f"flow parent not found: {parent_id}")
    if job_id not in parent[4]:
        raise InvalidField(f"flow parent {parent_id} does not own child {job_id}")
    if marks.get(PARENT_KEY) != parent_id or marks.get(PARENT_QUEUE_KEY) != parent[0]:
        raise InvalidField(f"flow child {job_id} metadata does not match parent {parent_id}")


def _check_order(nodes: Mapping[str, _Node]) -> Iterator[None]:
    """Refuse a flow in which a job waits, over however many others, for itself."""
    waiting: dict[str, int] = {}
    followers: dict[str, list[str]] = {}
    for job_id, node in nodes.items():
        waiting[job_id] = len(node[2])
        for other_id in node[2]:
            followers.setdefault(other_id, []).append(job_id)
        if not len(waiting) % ORDERED_PER_STEP:
            yield None
    free = deque(job_id for job_id, count in waiting.items() if not count)
    done = 0
    while free:
        done += 1
        if not done % ORDERED_PER_STEP:
            yield None
        for job_id in followers.get(free.popleft(), ()):
            waiting[job_id] -= 1
            if not waiting[job_id]:
                free.append(job_id)
    if done < len(nodes):
        raise InvalidField("flow contains a dependency cycle")
