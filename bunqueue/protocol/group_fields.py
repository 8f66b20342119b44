"""Fields about groups: labels, their limits, and what a puller says about them.

Null is a wrong value in most of them, as the reference has it; their texts have names of their own.
"""

import math
from dataclasses import dataclass
from typing import Any

from bunqueue.protocol.fields import GROUP_ID_CHARS_MAX, Field, SafeInteger

GROUP_PRIORITY_MAX = 2_097_151  # wire.md 4.2


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupId(Field):
    """The label of a group."""

    @property
    def refuses_null(self) -> bool:
        """Null is no label."""
        return True

    def problem(self, name: str, value: Any) -> str | None:
        if not isinstance(value, str):
            return f"{name} must be a string"
        if not value:
            return f"{name} must be a non-empty string"
        if len(value) > GROUP_ID_CHARS_MAX:
            return f"{name} must be at most {GROUP_ID_CHARS_MAX} characters"
        if "\0" in value:
            return f"{name} must not contain NUL characters"
        return None

    def fast(self) -> str:
        return f"x.__class__ is str and 0 < len(x) <= {GROUP_ID_CHARS_MAX} and '\\0' not in x"

    def kind(self) -> str:
        return f"string 1..{GROUP_ID_CHARS_MAX} without NUL"


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededGroupId(GroupId):
    """The group that a command is about."""

    required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPriority(Field):
    """The priority of a job with a label: lower goes first."""

    @property
    def refuses_null(self) -> bool:
        """Null is no number."""
        return True

    def problem(self, name: str, value: Any) -> str | None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            return f"group.{name} must be a finite number"
        if value != int(value):
            return f"group.{name} must be an integer"
        if not 0 <= value <= GROUP_PRIORITY_MAX:
            return f"group.{name} must be between 0 and {GROUP_PRIORITY_MAX}"
        return None

    def fast(self) -> str:
        return f"x.__class__ is int and 0 <= x <= {GROUP_PRIORITY_MAX}"

    def kind(self) -> str:
        return f"integer 0..{GROUP_PRIORITY_MAX}"


_POSITIVE = SafeInteger(required=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSize(Field):
    """The most jobs that a group may hold."""

    @property
    def refuses_null(self) -> bool:
        """Null is no number."""
        return True

    def problem(self, name: str, value: Any) -> str | None:  # noqa: ARG002  # a name of its own
        return _POSITIVE.problem("group.maxSize", value)

    def fast(self) -> str:
        return "x.__class__ is int and 0 < x < 1 << 53"

    def kind(self) -> str:
        return "integer 1.."


@dataclass(frozen=True, slots=True, kw_only=True)
class PullerGroup(Field):
    """``{concurrency, limit: {max, duration}, affinity}`` of a pull."""

    @property
    def refuses_null(self) -> bool:
        """Null is no map."""
        return True

    def problem(self, name: str, value: Any) -> str | None:
        if not isinstance(value, dict):
            return f"{name} must be an object"
        if "concurrency" in value:
            found = _POSITIVE.problem(f"{name}.concurrency", value["concurrency"])
            if found:
                return found
        if "limit" in value:
            limit = value["limit"]
            if not isinstance(limit, dict):
                return f"{name}.limit must be an object"
            for key in ("max", "duration"):
                found = _POSITIVE.problem(f"{name}.limit.{key}", limit.get(key))
                if found:
                    return found
        if value.get("affinity") is not None and not isinstance(value["affinity"], str):
            return f"{name}.affinity must be a string or null"
        return None

    def fast(self) -> str:
        return "False"

    def kind(self) -> str:
        return "map {concurrency, limit {max, duration}, affinity}"
