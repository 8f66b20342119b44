"""What wire.md 1.1 and 1.2 say of every answer, and of what each frame may be answered with."""

from __future__ import annotations

from typing import Any

import msgpack

from bunqueue.commands import COMMANDS

INT_MIN, INT_MAX = -(2**31), 2**32 - 1
INVALID_FORMAT = "Invalid command format"
INVALID_COMMAND = "Invalid command"


class Undefined:
    """An "undefined"."""


class _Odd(ValueError):
    """An extension that no frame may have."""


def _extension(code: int, _data: bytes) -> object:
    if code == 0:
        return Undefined
    raise _Odd(code)


def read(body: bytes) -> Any:
    """Decode a request as wire.md 1.3 says, by other means than the broker.

    Raises:
        ValueError: It is not exactly one value.
    """
    try:
        return msgpack.unpackb(
            body, ext_hook=_extension, strict_map_key=False, unicode_errors="replace"
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(error) from error


def judge(body: bytes, reply: Any, raw: bytes, int64: bool = False) -> None:
    """Judge the answer to one frame.

    Args:
        body: The request's.
        reply: Its answer, decoded.
        raw: The answer's body.
        int64: The peer takes 64-bit integers.
    """
    assert isinstance(reply, dict), reply
    assert isinstance(reply.get("ok"), bool), reply
    if reply["ok"]:
        assert "error" not in reply, reply
    else:
        assert isinstance(reply.get("error"), str), reply
        assert reply["error"], reply
        assert reply["error"] != "Internal server error", reply
    plain(reply, int64)
    try:
        asked = read(body)
    except ValueError:
        assert reply in ({"ok": False, "error": INVALID_FORMAT}, _too_deep(reply)), reply
        return
    if asked is None or asked is False or asked is Undefined:
        assert reply["error"] in (INVALID_FORMAT, INVALID_COMMAND), reply
        assert "reqId" not in reply, reply
        return
    if _too_deep(reply) is not None:
        return
    name = asked.get("cmd") if isinstance(asked, dict) else None
    if not name or not isinstance(name, str):
        assert reply["error"] == INVALID_COMMAND, reply
        req_id = asked.get("reqId") if isinstance(asked, dict) else None
        if not isinstance(req_id, str):
            assert "reqId" not in reply, reply
            return
    elif name not in COMMANDS:
        assert reply["error"] == f"Unknown command: {name}", reply
    else:
        assert reply.get("error") not in (INVALID_FORMAT, INVALID_COMMAND), reply
    echoed(asked, reply, raw)


def echoed(asked: dict[Any, Any], reply: dict[str, Any], raw: bytes) -> None:
    """Judge the ``reqId``: as it came, and there only if it came (wire.md 1.4)."""
    if "reqId" not in asked or asked["reqId"] is Undefined:
        assert "reqId" not in reply, reply
        return
    assert "reqId" in reply, reply
    req_id = asked["reqId"]
    if isinstance(req_id, (str, int, bytes, float)) or req_id is None:
        assert raw.endswith(msgpack.packb(req_id)), (req_id, reply)


def plain(value: Any, int64: bool) -> None:
    """Judge that the value has nothing that a client could not read (wire.md 1.3)."""
    if isinstance(value, dict):
        for key, item in value.items():
            assert isinstance(key, str), value
            if key != "reqId":
                plain(item, int64)
    elif isinstance(value, list):
        for item in value:
            plain(item, int64)
    elif isinstance(value, int) and not int64:
        assert INT_MIN <= value <= INT_MAX, value
    else:
        assert isinstance(value, (str, int, float, bytes, type(None), msgpack.Timestamp)), value


def _too_deep(reply: dict[str, Any]) -> dict[str, Any] | None:
    return reply if str(reply.get("error")).startswith("Command nested too deeply") else None
