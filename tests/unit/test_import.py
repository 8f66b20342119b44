"""Importing the package does nothing: no thread, no socket, no file, no patching."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys, threading
before = set(sys.modules)
events = []
watched = ("open", "socket.", "subprocess.", "os.putenv", "os.mkdir", "sqlite3.")

def hook(event, arguments):
    if event.startswith(watched) and not (event == "open" and is_code(arguments[0])):
        events.append(f"{event} {arguments!r}")

def is_code(path):
    return str(path).endswith((".py", ".pyc", ".so"))

sys.addaudithook(hook)
exec(sys.argv[1])
loaded = set(sys.modules) - before
print(json.dumps({
    "threads": threading.active_count(),
    "events": events,
    "loaded": sorted(name for name in loaded if name.split(".")[0] in
        ("gevent", "greenlet", "sqlite3", "apsw", "croniter", "boto3", "docopt", "flask")),
}))
"""


def told(statement: str) -> dict[str, object]:
    program = f"import sys; sys.path[:0] = {sys.path!r}\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", program, statement],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "statement",
    [
        "import bunqueue",
        "from bunqueue import *",
        "from bunqueue import Queue; Queue('q', port=1)",
        "from bunqueue import FlowProducer, QueueGroup; FlowProducer(port=1); QueueGroup('g')",
    ],
)
def test_importing_and_making_producers_opens_and_starts_nothing(statement: str) -> None:
    assert {"threads": 1, "events": [], "loaded": []} == told(statement)
