"""The vocabulary of request fields: what a command or an option accepts, and how it says no.

A field is a value object; ``compile_check`` turns a table of them into one plain function at
import, so that a request pays for the comparisons and nothing else. Null counts as "not given"
everywhere but where a field says otherwise, since older clients send null for what they leave
out.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SAFE_INTEGER_MAX = 2**53 - 1  # the largest integer every client can hold
INT64_MAX = 2**63 - 1  # the largest integer that the wire and the file can hold
QUEUE_NAME_CHARS_MAX = 256
JOB_NAME_CHARS_MAX = 256
GROUP_ID_CHARS_MAX = 256
TAG_CHARS_MAX = 256

# Of a field that is no payload and none of the lists that a batch is about. Looked at in frames
# beyond 131,072 bytes (``server/connection.py`` LARGE_FRAME_BYTES): what holds more is one of them,
# or its items are of a byte or two.
TEXT_CHARS_MAX = 131_072
ITEMS_MAX = 10_000  # at all levels together; some ms for whoever checks, packs or compares them

JOB_NAME_REFUSAL = f"Job name must be a non-empty string of at most {JOB_NAME_CHARS_MAX} characters"

Check = Callable[[Mapping[str, Any]], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a request.

    Attributes:
        required: Refuse the request when the field is absent or null.
        doc: One sentence for the reference page.
        is_long: Only the frame bounds it: a payload, a text that is cut, a list of a batch.
        items_max: What it may hold otherwise, counted through all levels.
        cure: What to do where that is too little.
    """

    required: bool = False
    doc: str = ""
    is_long: bool = False
    items_max: int = ITEMS_MAX
    cure: str = ""

    @property
    def refuses_null(self) -> bool:
        """Null is not "absent" here but a wrong value."""
        return False

    def problem(self, name: str, value: Any) -> str | None:
        """Return what is wrong with ``value`` under ``name``, or None. Null: only when required."""
        if value is None and self.required:
            return f"{name} is required"
        return None

    def fast(self) -> str:
        """Return a cheap expression over ``x`` that is true only for acceptable values."""
        return ""

    def kind(self) -> str:
        """Return the type and bounds as the reference page shows them."""
        return "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anything(Field):
    """Any value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Field):
    """A string."""

    empty: bool = True

    def problem(self, name: str, value: Any) -> str | None:
        if value is None or (value == "" and not self.empty):
            return f"{name} is required"
        if not isinstance(value, str):
            return f"{name} must be a string"
        return None

    def fast(self) -> str:
        return "x.__class__ is str" if self.empty else "x.__class__ is str and x"

    def kind(self) -> str:
        return "string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Field):
    """A boolean; ``truthy`` fields take anything and read its truth, as the reference does."""

    truthy: bool = False

    def problem(self, name: str, value: Any) -> str | None:
        if value is None:
            return f"{name} is required"
        if not self.truthy and not isinstance(value, bool):
            return f"{name} must be a boolean"
        return None

    def fast(self) -> str:
        return "True" if self.truthy else "x is True or x is False"

    def kind(self) -> str:
        return "boolean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Field):
    """A finite number in a closed range; ``integer`` also takes integral floats.

    Without a bound of its own it still fits into 64 bits.
    """

    min: float | None = 0
    max: float | None = None
    integer: bool = False
    between: bool = False  # refuse with "X must be between A and B"

    def problem(self, name: str, value: Any) -> str | None:
        if value is None:
            return f"{name} is required"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"{name} must be a number"
        if not math.isfinite(value):
            return f"{name} must be a finite number"
        if self.integer and value != int(value):
            return f"{name} must be an integer"
        low, high = self._bounds()
        if self.between and not low <= value <= high:
            return f"{name} must be between {_plain(low)} and {_plain(high)}"
        if value < low:
            return f"{name} must be at least {_plain(low)}"
        if value > high:
            return f"{name} must be at most {_plain(high)}"
        return None

    def _bounds(self) -> tuple[float, float]:
        return (
            -INT64_MAX if self.min is None else self.min,
            INT64_MAX if self.max is None else self.max,
        )

    def fast(self) -> str:
        low, high = self._bounds()
        return f"x.__class__ is int and {low!r} <= x <= {high!r}"

    def kind(self) -> str:
        kind = "integer" if self.integer else "number"
        if self.min is None and self.max is None:
            return kind
        low = "" if self.min is None else _plain(self.min)
        high = "" if self.max is None else _plain(self.max)
        return f"{kind} {low}..{high}"


def _plain(bound: float | None) -> str:
    return str(int(bound)) if bound is not None and bound == int(bound) else str(bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeInteger(Field):
    """A positive (or non-negative) integer that every client can hold exactly."""

    positive: bool = True

    def problem(self, name: str, value: Any) -> str | None:
        if value is None and not self.required:
            return None
        least = 1 if self.positive else 0
        whole = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not whole or value != value or not least <= value <= SAFE_INTEGER_MAX:
            return self._refusal(name)
        return None if value == int(value) else self._refusal(name)

    def _refusal(self, name: str) -> str:
        return f"{name} must be a {'positive' if self.positive else 'non-negative'} safe integer"

    def kind(self) -> str:
        return f"integer {1 if self.positive else 0}.."


_queue_name = re.compile(r"[A-Za-z0-9_\-.:]+").fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueName(Field):
    """The name of a queue."""

    required: bool = True

    def problem(self, name: str, value: Any) -> str | None:  # noqa: ARG002  # fixed texts
        if not isinstance(value, str) or not value:
            return "Queue name is required"
        if len(value) > QUEUE_NAME_CHARS_MAX:
            return f"Queue name too long (max {QUEUE_NAME_CHARS_MAX} characters)"
        if not _queue_name(value):
            return "Queue name contains invalid characters"
        return None

    def fast(self) -> str:
        # A name that passed before is in the set: one lookup instead of a match.
        return "x in known"

    def kind(self) -> str:
        return f"queue name, 1..{QUEUE_NAME_CHARS_MAX} of A-Z a-z 0-9 _ - . :"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobName(Field):
    """The name of a job; absent is "default", null is refused."""

    @property
    def refuses_null(self) -> bool:
        return True

    def problem(self, name: str, value: Any) -> str | None:  # noqa: ARG002  # a fixed text
        if isinstance(value, str) and 0 < len(value) <= JOB_NAME_CHARS_MAX:
            return None
        return JOB_NAME_REFUSAL

    def fast(self) -> str:
        return f"x.__class__ is str and 0 < len(x) <= {JOB_NAME_CHARS_MAX}"

    def kind(self) -> str:
        return f"string 1..{JOB_NAME_CHARS_MAX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextList(Field):
    """A list of strings, each at most ``chars_max`` long."""

    chars_max: int | None = None

    def problem(self, name: str, value: Any) -> str | None:
        if value is None:
            return f"{name} is required"
        limit = self.chars_max
        if isinstance(value, list) and all(
            isinstance(item, str) and (limit is None or len(item) <= limit) for item in value
        ):
            return None
        of = "" if limit is None else f" of at most {limit} characters"
        return f"{name} must be an array of strings{of}"

    def kind(self) -> str:
        return "list of strings"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdList(Field):
    """A list of job ids."""

    def problem(self, name: str, value: Any) -> str | None:
        if value is None:
            return f"{name} is required"
        if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
            return None
        return f"{name} must be an array of valid string job ids"

    def kind(self) -> str:
        return "list of job ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class List(Field):
    """A list of anything."""

    def problem(self, name: str, value: Any) -> str | None:
        if value is None:
            return f"{name} is required"
        return None if isinstance(value, list) else f"{name} must be a list"

    def kind(self) -> str:
        return "list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Field):
    """A map; ``fields`` are checked inside it, under the name ``outer.inner``."""

    fields: Mapping[str, Field] | None = None

    def problem(self, name: str, value: Any) -> str | None:
        if value is None:
            return f"{name} is required"
        if not isinstance(value, dict):
            return f"{name} must be an object"
        for inner, field in (self.fields or {}).items():
            item = value.get(inner)
            if item is not None or field.required:
                found = field.problem(f"{name}.{inner}", item)
                if found:
                    return found
        return None

    def kind(self) -> str:
        return "map"


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf(Field):
    """One of several fields: the first whose types match judges the value."""

    fields: tuple[tuple[tuple[type, ...], Field], ...] = ()
    otherwise: Field = Anything()

    def problem(self, name: str, value: Any) -> str | None:
        if value is None:
            return f"{name} is required" if self.required else None
        for types, field in self.fields:
            if isinstance(value, types):
                return field.problem(name, value)
        return self.otherwise.problem(name, value)

    def kind(self) -> str:
        return " or ".join(field.kind() for _, field in self.fields)


def length_problem(given: Mapping[str, Any], fields: Mapping[str, Field]) -> str | None:
    """Return which field of a large request holds more than it may, or None.

    The time it takes depends on the bounds, not on what was sent.
    """
    names = given if len(given) < len(fields) else fields
    for name in names:
        value = given.get(name)
        if value.__class__ in _SIZED:
            field = fields.get(name)
            if field is not None and not field.is_long:
                problem = _excess(name, value, field)
                if problem is not None:
                    return problem
    return None


_SIZED = frozenset((str, bytes, list, dict))


def _excess(name: str, value: Any, field: Field) -> str | None:
    left = field.items_max
    found = [value]
    while found:
        item = found.pop()
        if item.__class__ is list or item.__class__ is dict:
            left -= len(item)
            if left < 0:
                cure = f": {field.cure}" if field.cure else ""
                return f"{name} has too many items (max {field.items_max}){cure}"
            found += item
            if item.__class__ is dict:
                found += item.values()
        elif item.__class__ in _SIZED and len(item) > TEXT_CHARS_MAX:
            return f"{name} has too long a text (max {TEXT_CHARS_MAX} characters)"
    return None


QUEUE_NAMES_KNOWN_MAX = 100_000


class KnownNames(set[str]):
    """Queue names that passed the check before; forgets all when it is full."""

    def learn(self, name: str) -> None:
        """Remember a good name."""
        if len(self) >= QUEUE_NAMES_KNOWN_MAX:
            self.clear()
        self.add(name)


_known = KnownNames()


def _queue_problem(field: QueueName) -> Callable[[str, Any], str | None]:
    def problem(name: str, value: Any) -> str | None:
        found = field.problem(name, value)
        if found is None:
            _known.learn(value)
        return found

    return problem


def compile_check(fields: Mapping[str, Field]) -> Check:
    """Build one function that returns the first problem of a request, in declaration order.

    Args:
        fields: wire name -> field.

    Returns:
        A function of the request (a map) that returns the refusal's text, or None.
    """
    scope: dict[str, Any] = {"known": _known}
    lines = ["def check(request):"]
    for index, (name, field) in enumerate(fields.items()):
        fast = field.fast()
        if not field.required and (type(field) is Anything or fast == "True"):
            continue
        is_queue = isinstance(field, QueueName)
        scope[f"problem_{index}"] = (
            _queue_problem(field) if isinstance(field, QueueName) else field.problem
        )
        call = f"problem_{index}({name!r}, x)"
        if not (field.required or field.refuses_null):  # mostly absent: looked for, 0.02 us each
            lines += [
                f"    if {name!r} in request:",
                f"        x = request[{name!r}]",
                f"        if x is not None and not ({fast or False}):",
                f"            found = {call}",
                "            if found is not None:",
                "                return found",
            ]
            continue
        lines.append(f"    x = request.get({name!r})")
        if is_queue:
            lines.append("    if x.__class__ is not str or x not in known:")
        elif field.refuses_null and field.required:
            lines += [
                f"    if {name!r} not in request:",
                f"        return {name + ' is required'!r}",
                f"    if not ({fast}):",
            ]
        elif field.refuses_null:
            lines.append(f"    if not ({fast}) and (x is not None or {name!r} in request):")
        else:
            lines.append(f"    if not ({fast or False}):")
        lines += [
            f"        found = {call}",
            "        if found is not None:",
            "            return found",
        ]
    lines.append("    return None")
    exec("\n".join(lines), scope)
    check: Check = scope["check"]
    return check
