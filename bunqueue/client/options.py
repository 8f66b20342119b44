"""Job options as Python writes them, turned into the fields of PUSH.

Plain options are the rows of ``protocol/options.py``, renamed. What Python spells differently
(durations as ``timedelta``, moments as ``datetime``, one dict that becomes two fields) has a small
function here.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from bunqueue.client.values import queue_key
from bunqueue.protocol.options import OPTIONS


class BackoffOptions(TypedDict, total=False):
    """The wait before the next attempt."""

    type: str
    delay: float | timedelta
    max_delay: float | timedelta


class JobOptions(TypedDict, total=False):
    """What ``Queue.add`` takes beside name and data; see client.md 1.1."""

    priority: int | None
    delay: float | timedelta | None
    attempts: int | None
    backoff: float | timedelta | BackoffOptions | None
    ttl: float | timedelta | None
    timeout: float | timedelta | None
    stall_timeout: float | timedelta | None
    job_id: str | None
    unique_key: str | None
    deduplication: Mapping[str, Any] | None
    debounce: Mapping[str, Any] | None
    depends_on: Sequence[str] | None
    children_ids: Sequence[str] | None
    tags: Sequence[str] | None
    parent_id: str | None
    parent: Mapping[str, str] | None
    group_id: str | int | None
    group: Mapping[str, Any] | None
    lifo: bool | None
    durable: bool | None
    remove_on_complete: bool | None
    remove_on_fail: bool | None
    repeat: Mapping[str, Any] | None
    stack_trace_limit: int | None
    keep_logs: int | None
    size_limit: int | None
    timestamp: float | datetime | None
    fail_parent_on_failure: bool | None
    remove_dependency_on_failure: bool | None
    ignore_dependency_on_failure: bool | None
    continue_parent_on_failure: bool | None


def compact(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``command`` without the fields that are None, which means "not sent"."""
    return {key: value for key, value in command.items() if value is not None}


def to_wire(options: Mapping[str, Any]) -> dict[str, Any]:
    """Turn job options into the fields of PUSH.

    Raises:
        TypeError: An unknown option, or a container of the wrong kind.
    """
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            if name not in _WIRE_NAMES and name not in _CONVERTERS:
                raise _unknown(name)
            continue
        convert = _CONVERTERS.get(name)
        if convert is not None:
            convert(fields, value, options)
        elif name in _WIRE_NAMES:
            fields[_WIRE_NAMES[name]] = value
        else:
            raise _unknown(name)
    return fields


def job_options(**options: Any) -> dict[str, Any]:
    """Turn job options given as keywords into the fields of PUSH."""
    return to_wire(options)


def with_parent_link(data: Any, parent: Mapping[str, str] | None) -> Any:
    """Return ``data`` with the keys that make ``parent`` a true link.

    Raises:
        TypeError: ``data`` cannot carry them.
    """
    if parent is None:
        return data
    if data is not None and not isinstance(data, Mapping):
        raise TypeError("data must be a dict or None when parent is given")
    return {**(data or {}), "__parentId": parent["id"], "__parentQueue": queue_key(parent["queue"])}


def milliseconds(value: Any) -> Any:
    """Return a duration in ms; anything that is no ``timedelta`` passes as it is."""
    return value / timedelta(milliseconds=1) if isinstance(value, timedelta) else value


def epoch_ms(value: Any) -> Any:
    """Return a moment in epoch ms; anything that is no ``datetime`` passes as it is."""
    return value.timestamp() * 1000 if isinstance(value, datetime) else value


def camel(name: str) -> str:
    """Return a snake_case name as the wire spells it."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def job_payload(name: str, data: Any) -> dict[str, Any]:
    """Return the payload of protocol version 2; kept for importers, nothing here calls it."""
    if data is None:
        return {"name": name}
    return {"name": name, **data} if isinstance(data, dict) else {"name": name, "payload": data}


def build_cron_job_options(job_opts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the ``jobOptions`` of a Cron command, or None when nothing of it is set."""
    fields = {
        wire: (job_opts or {}).get(name)
        for name, wire in _WIRE_NAMES.items()
        if name in CRON_OPTIONS
    }
    for name in ("removeOnComplete", "removeOnFail"):
        if not isinstance(fields[name], bool):
            fields[name] = None
    return compact(fields) or None


Converter = Callable[[dict[str, Any], Any, Mapping[str, Any]], None]

_NOT_OFFERED = {"custom_id", "debounce_id", "debounce_ttl", "group_max_size"}
_WIRE_NAMES = {row.python: row.wire for row in OPTIONS if row.python not in _NOT_OFFERED}
# The options that Cron takes as ``jobOptions``.
CRON_OPTIONS = frozenset(
    {
        "attempts",
        "backoff",
        "timeout",
        "delay",
        "stall_timeout",
        "remove_on_complete",
        "remove_on_fail",
    }
)


def _unknown(name: str) -> TypeError:
    return TypeError(f"unknown job option: {name!r}")


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict")
    return value


def _duration(name: str) -> Converter:
    wire = _WIRE_NAMES[name]

    def convert(fields: dict[str, Any], value: Any, _options: Mapping[str, Any]) -> None:
        fields[wire] = milliseconds(value)

    return convert


def _strings(name: str) -> Converter:
    wire = _WIRE_NAMES[name]

    def convert(fields: dict[str, Any], value: Any, _options: Mapping[str, Any]) -> None:
        if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, set, frozenset)):
            raise TypeError(f"{name} must be a list of strings")
        fields[wire] = list(value)

    return convert


def _backoff(fields: dict[str, Any], value: Any, _options: Mapping[str, Any]) -> None:
    if isinstance(value, Mapping):
        value = {camel(key): milliseconds(item) for key, item in compact(value).items()}
    fields["backoff"] = milliseconds(value)


def _deduplication(fields: dict[str, Any], value: Any, options: Mapping[str, Any]) -> None:
    given = _mapping("deduplication", value)
    if options.get("unique_key") is None and given.get("id") is not None:
        fields["uniqueKey"] = given["id"]
    policy = compact({key: milliseconds(given.get(key)) for key in ("ttl", "extend", "replace")})
    if policy:
        fields["dedup"] = policy


def _debounce(fields: dict[str, Any], value: Any, _options: Mapping[str, Any]) -> None:
    given = _mapping("debounce", value)
    fields.update(
        compact({"debounceId": given.get("id"), "debounceTtl": milliseconds(given.get("ttl"))})
    )


def _parent(fields: dict[str, Any], value: Any, _options: Mapping[str, Any]) -> None:
    given = _mapping("parent", value)
    if not given.get("id") or not given.get("queue"):
        raise TypeError("parent must be {'id': ..., 'queue': ...}")
    fields["parentId"] = given["id"]


def _group(fields: dict[str, Any], value: Any, options: Mapping[str, Any]) -> None:
    given = _mapping("group", value)
    if options.get("group_id") is not None:
        raise TypeError("group and group_id exclude each other")
    if given.get("id") is None:
        raise TypeError("group needs an id")
    fields["groupId"] = str(given["id"])
    size_max = given.get("max_size", given.get("maxSize"))
    fields.update(compact({"priority": given.get("priority"), "groupMaxSize": size_max}))


def _group_id(fields: dict[str, Any], value: Any, _options: Mapping[str, Any]) -> None:
    fields["groupId"] = str(value) if isinstance(value, int) else value


def _repeat(fields: dict[str, Any], value: Any, _options: Mapping[str, Any]) -> None:
    given = compact(_mapping("repeat", value))
    fields["repeat"] = {camel(key): epoch_ms(milliseconds(item)) for key, item in given.items()}


def _timestamp(fields: dict[str, Any], value: Any, _options: Mapping[str, Any]) -> None:
    fields["timestamp"] = epoch_ms(value)


_CONVERTERS: dict[str, Converter] = {
    **{name: _duration(name) for name in ("delay", "ttl", "timeout", "stall_timeout")},
    **{name: _strings(name) for name in ("depends_on", "children_ids", "tags")},
    "backoff": _backoff,
    "deduplication": _deduplication,
    "debounce": _debounce,
    "parent": _parent,
    "group": _group,
    "group_id": _group_id,
    "repeat": _repeat,
    "timestamp": _timestamp,
}
