"""Golden conversations: what a peer sends and what it gets back, as data.

A file is a list of conversations; each has a ``name``, its ``source``, optional ``tokens`` of the
broker, and ``says``: steps of one connection, in order.

    {"send": {...}}              a request, packed and framed
    {"send_value": ...}          any value as the frame's body
    {"send_body": "c0c0"}        a frame with these bytes as its body
    {"send_raw": "47455420"}     bytes without a length
    {"get": {...}}               the next answer, exactly
    {"get_some": {...}}          the next answer has at least these keys
    {"closed": true}             the broker has closed the connection

A step whose answer differs on purpose from that of the reference server says why in ``note`` and
what the reference answers in ``reference``; ``get`` is ours. ``record.py`` writes the answers.

Every ``send`` step but the last of a run leaves in the same write as the next one, so that a
conversation says by itself what is pipelined. In what is expected, ``{"$any": "str"}`` stands for
any value of that type (str, int, float, number, list, dict), ``{"$some": {...}}`` for a map with at
least these keys, and ``{"$keep": "name"}`` for any value, which ``{"$kept": "name"}`` in later
steps means again. ``{"$undefined": true}`` in a request is what JavaScript sends for ``undefined``.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

FOLDER = Path(__file__).parent / "conversations"
TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": float,
    "number": (int, float),
    "list": list,
    "dict": dict,
}
BESIDE = ("note", "reference")
UNDEFINED = msgpack.ExtType(0, b"\0")  # wire.md 1.3


@dataclass(frozen=True, slots=True)
class Conversation:
    """One entry of a file."""

    file: str
    name: str
    source: str
    tokens: tuple[str, ...]
    says: tuple[dict[str, Any], ...]


def conversations() -> list[Conversation]:
    """Read all files."""
    return [
        Conversation(
            path.stem,
            entry["name"],
            entry["source"],
            tuple(entry.get("tokens", ())),
            tuple(entry["says"]),
        )
        for path in sorted(FOLDER.glob("*.json"))
        for entry in json.loads(path.read_text("utf-8"))
    ]


def verb_of(step: dict[str, Any]) -> tuple[str, Any]:
    """Return a step's verb and what stands behind it."""
    (verb, content), *more = ((key, step[key]) for key in step if key not in BESIDE)
    assert not more, f"more than one verb in {step}"
    return verb, content


def body_of(verb: str, content: Any, kept: dict[str, Any]) -> bytes:
    """Return the bytes that a ``send`` step puts on the wire."""
    if verb == "send_raw":
        return bytes.fromhex(content)
    body = bytes.fromhex(content) if verb == "send_body" else msgpack.packb(_filled(content, kept))
    return struct.pack(">I", len(body)) + body


def _filled(value: Any, kept: dict[str, Any]) -> Any:
    """Put what was kept into a request."""
    if isinstance(value, dict):
        if list(value) == ["$kept"]:
            return kept[value["$kept"]]
        if list(value) == ["$undefined"]:
            return UNDEFINED
        return {key: _filled(item, kept) for key, item in value.items()}
    return [_filled(item, kept) for item in value] if isinstance(value, list) else value


class Replay:
    """Plays one conversation over a link: something with ``send``, ``value`` and ``is_at_end``."""

    def __init__(self, link: Any) -> None:
        self._link = link
        self._kept: dict[str, Any] = {}
        self._unsent = b""

    def run(self, says: tuple[dict[str, Any], ...]) -> None:
        """Waits for every answer and holds it against what is expected."""
        for number, step in enumerate(says):
            verb, content = verb_of(step)
            if verb.startswith("send"):
                self._unsent += body_of(verb, content, self._kept)
                continue
            if self._unsent:
                self._link.send(self._unsent)
                self._unsent = b""
            if verb == "closed":
                assert content is self._link.is_at_end(), f"step {number}"
                continue
            answer = self._link.value()
            told = f"step {number}: expected {content}, got {answer}"
            if verb == "get_some":
                answer = {key: value for key, value in answer.items() if key in content}
            else:
                assert "get" == verb, f"step {number}: no verb {verb}"
            assert self._is(content, answer), told

    def _is(self, expected: Any, value: Any) -> bool:
        if isinstance(expected, dict):
            if "$any" in expected:
                return isinstance(value, TYPES[expected["$any"]])
            if "$keep" in expected:
                self._kept[expected["$keep"]] = value
                return True
            if "$kept" in expected:
                return bool(self._kept[expected["$kept"]] == value)
            if "$some" in expected:
                some = expected["$some"]
                return isinstance(value, dict) and all(
                    key in value and self._is(item, value[key]) for key, item in some.items()
                )
            return (
                isinstance(value, dict)
                and expected.keys() == value.keys()
                and all(self._is(item, value[key]) for key, item in expected.items())
            )
        if isinstance(expected, list):
            return (
                isinstance(value, list)
                and len(expected) == len(value)
                and all(map(self._is, expected, value))
            )
        return type(expected) is type(value) and expected == value
