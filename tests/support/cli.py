"""The command line as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.broker_process import BrokerProcess, clean_environment

RUN_S_MAX = 60


@dataclass(frozen=True)
class Done:
    """What a run came to."""

    status: int
    out: str
    err: str


def bunqueue(
    *args: str,
    broker: BrokerProcess | None = None,
    directory: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> Done:
    """Run ``bunqueue`` to its end, against ``broker`` if one is given."""
    environ = clean_environment() | dict(env or {})
    if broker is not None:
        environ |= {"BUNQUEUE_HOST": broker.host, "BUNQUEUE_TCP_PORT": str(broker.port)}
    done = subprocess.run(
        [sys.executable, "-m", "bunqueue", *args],
        cwd=directory,
        env=environ,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )
    return Done(done.returncode, done.stdout, done.stderr)
