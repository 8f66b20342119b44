"""Record golden conversations: play the requests of a file against a server, keep its answers.

    python -m tests.wire.record PORT [--ours] FILE...

The answers of the reference server are what clients rely on, so that a new conversation is written
with ``{"get": "?"}`` for each answer and recorded from the reference on a fresh data file. What
differs from run to run is masked as the runner understands it: generated ids and tokens become
``$keep`` and ``$kept``, moments become ``$any``. Masks that stand in the file already stay, as do
the keys that a ``get_some`` or ``$some`` picks. Members of the value "undefined" are left out,
since no client tells them from absent ones (wire.md 1.3).

Where a step has a ``note`` we differ on purpose, and the answer goes to its ``reference``; with
``--ours`` the server is our own, and only the ``get`` of such steps is written.

Every conversation starts with no queues, schedulers and webhooks. Those that need tokens are left
alone.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

from tests.support.wire import Reader
from tests.wire.conversation import TYPES, UNDEFINED, body_of, verb_of

HOST = "127.0.0.1"
WAIT_S_MAX = 5.0
MOMENT_MIN = 1_000_000_000_000  # numbers from here on are epoch milliseconds of the recording
GENERATED_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
UNKNOWN = "?"


def record(says: list[dict[str, Any]], link: Any, *, ours: bool = False) -> None:
    """Fill the answers of one conversation in. Waits for every answer.

    Args:
        says: The steps; changed in place.
        link: Something with ``send`` and ``value``.
        ours: The link leads to our server: write the ``get`` of noted steps, and nothing else.
    """
    mask = Mask()
    for step in says:
        verb, content = verb_of(step)
        if verb.startswith("send"):
            link.send(body_of(verb, content, mask.kept))
        elif verb != "closed":
            key = verb if ours or "note" not in step else "reference"
            pattern = {"$some": content} if verb == "get_some" else step.get(key, content)
            answer = mask(link.value(), pattern)
            if not ours or "note" in step:
                step[key] = answer["$some"] if verb == "get_some" else answer


class Mask:
    """Replaces what differs from run to run.

    Attributes:
        kept: Name of a ``$keep`` -> the value it stands for in this run.
    """

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def __call__(self, value: Any, pattern: Any) -> Any:
        """Return ``value`` with masks, those of ``pattern`` first."""
        if isinstance(pattern, dict) and len(pattern) == 1:
            ((mark, meant),) = pattern.items()
            if mark == "$keep":
                self.kept[meant] = value
                return pattern
            if mark == "$any" and isinstance(value, TYPES[meant]):
                return pattern
            if mark == "$some" and isinstance(value, dict):
                chosen = {key: value[key] for key in meant if key in value}
                return {"$some": self(chosen, meant)}
        if isinstance(value, dict):
            below = pattern if isinstance(pattern, dict) else {}
            return {  # in the order of before, so that recording again changes nothing
                key: self(value[key], below.get(key))
                for key in {**below, **value}
                if value.get(key, UNDEFINED) != UNDEFINED
            }
        if isinstance(value, list):
            each = pattern if isinstance(pattern, list) and len(pattern) == len(value) else value
            return [self(item, like) for item, like in zip(value, each, strict=True)]
        return self._plain(value)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, str):
            if not GENERATED_ID(value):
                return value
            for name, known in self.kept.items():
                if known == value:
                    return {"$kept": name}
            name = f"id{len(self.kept) + 1}"
            self.kept[name] = value
            return {"$keep": name}
        if isinstance(value, (int, float)) and value >= MOMENT_MIN:
            return {"$any": type(value).__name__}
        return value


class Link(Reader):
    """A connection to the server that is recorded."""

    def __init__(self, port: int) -> None:
        super().__init__(socket.create_connection((HOST, port), WAIT_S_MAX))

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def clear(self) -> None:
        """Remove all queues, schedulers and webhooks."""
        for name in self.call({"cmd": "ListQueues"})["queues"]:
            self.call({"cmd": "Obliterate", "queue": name})
        for cron in self.call({"cmd": "CronList"})["crons"]:
            self.call({"cmd": "CronDelete", "name": cron["name"]})
        for webhook in self.call({"cmd": "ListWebhooks"})["data"]["webhooks"]:
            self.call({"cmd": "RemoveWebhook", "webhookId": webhook["id"]})


def record_file(path: Path, port: int, *, ours: bool = False) -> None:
    """Record the conversations of a file and write it. Waits."""
    entries = json.loads(path.read_text("utf-8"))
    for entry in entries:
        if "tokens" in entry:
            continue
        link = Link(port)
        try:
            link.clear()
            record(entry["says"], link, ours=ours)
        finally:
            link.sock.close()
    path.write_text(file_text(entries), "utf-8")


def file_text(entries: list[dict[str, Any]]) -> str:
    """Return a file's text: one step per line."""
    return "[\n" + ",\n".join(map(_entry_text, entries)) + "\n]\n"


def _entry_text(entry: dict[str, Any]) -> str:
    head = ", ".join(
        f"{json.dumps(key)}: {_text(value)}" for key, value in entry.items() if key != "says"
    )
    says = ",\n".join(f"      {_text(step)}" for step in entry["says"])
    return f'  {{\n    {head},\n    "says": [\n{says}\n    ]\n  }}'


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def main(arguments: list[str]) -> None:
    """Record the files that are named."""
    ours = "--ours" in arguments
    port, *files = (argument for argument in arguments if argument != "--ours")
    for name in files:
        record_file(Path(name), int(port), ours=ours)


if __name__ == "__main__":
    main(sys.argv[1:])
