"""The broker under test, its links and its clock."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.model.broker_main import CLOCK, CLOCK_FILE, FLUSH_MS
from tests.support.broker_process import BrokerProcess
from tests.support.wire import Reader

ROOT: Final = Path(__file__).parents[2]
LINKS: Final = 2
ANSWER_S_MAX: Final = 20.0
SOON_S: Final = 10.0  # what follows without a reply of its own is seen at the latest
KILL, STOP = "kill", "stop"
POLL_S: Final = 0.005

Message = dict[str, Any]


class MovableBroker(BrokerProcess):
    """A broker process that is started by ``broker_main.py``."""

    def command(self) -> list[str]:
        command = super().command()
        return [command[0], "-m", "tests.model.broker_main", *command[3:]]


class World:
    """One broker on one file, over all its lives.

    Args:
        patience: Multiplies all bounds on time.
        flush_ms: How long plain pushes stay in memory alone; the broker's own time if None.

    Attributes:
        counts: Commands sent, by name; ``kills``, ``stops`` and the like too, in lower case.
    """

    def __init__(self, patience: float = 1.0, flush_ms: int | None = None) -> None:
        self._answer_s_max = ANSWER_S_MAX * patience
        self._soon_s = SOON_S * patience
        self._directory = tempfile.TemporaryDirectory(prefix="bunqueue-model-")
        folder = Path(self._directory.name)
        self._clock_file = folder / "clock"
        self._set_ms = self._slept_ms = 0
        self._clock_file.write_bytes(CLOCK.pack(0, 0))
        self.broker = MovableBroker(
            folder,
            data_path=folder / "model.db",
            env={
                CLOCK_FILE: str(self._clock_file),
                "PYTHONPATH": str(ROOT),
                "SHUTDOWN_TIMEOUT_MS": "1",
                **({} if flush_ms is None else {FLUSH_MS: str(flush_ms)}),
                **{name: os.environ[name] for name in ("BUNQUEUE_PURE",) if name in os.environ},
            },
        )
        self.broker.start_s_max *= patience
        self.broker.stop_s_max *= patience
        self._links: list[Reader | None] = [None] * LINKS
        self.counts: Counter[str] = Counter()
        self.names = 0
        self.broker.start()

    def close(self) -> None:
        self._drop_links()
        self.broker.kill()
        self._directory.cleanup()

    def name(self, what: str) -> str:
        """Return a name that nobody else has."""
        self.names += 1
        return f"{what}-{self.names}"

    def now(self) -> int:
        """Return the broker's time."""
        return time.time_ns() // 1_000_000 + self._set_ms + self._slept_ms

    def call(self, cmd: str, link: int = 0, **fields: Any) -> Message:
        """Send one command and return its answer."""
        self.counts[cmd] += 1
        answer: Message = self.link(link).call({"cmd": cmd, **fields})
        return answer

    def send(self, cmd: str, **fields: Any) -> None:
        """Send one command and leave its answer; the link is not used again before a restart."""
        self.counts[cmd] += 1
        self.link(0).send({"cmd": cmd, **fields})

    def ok(self, cmd: str, link: int = 0, **fields: Any) -> Message:
        """Send one command that is to succeed."""
        answer = self.call(cmd, link, **fields)
        assert answer["ok"] is True, (cmd, fields, answer)
        return answer

    def state(self, job_id: str) -> str:
        return str(self.ok("GetState", id=job_id)["state"])

    def get(self, path: str) -> Any:
        """Read a route of HTTP."""
        self.counts["http"] += 1
        address = f"http://{self.broker.host}:{self.broker.http_port}{path}"
        with urllib.request.urlopen(address, timeout=self._answer_s_max) as answer:  # noqa: S310
            return json.load(answer)

    def link(self, index: int) -> Reader:
        """Return a link, opened when it is needed."""
        found = self._links[index]
        if found is None:
            found = self._links[index] = self.dial()
        return found

    def dial(self) -> Reader:
        """Open a link of one's own."""
        sock = socket.create_connection((self.broker.host, self.broker.port), self._answer_s_max)
        return Reader(sock)

    def drop(self, index: int) -> None:
        """Close a link without a word."""
        self.counts["drops"] += 1
        link, self._links[index] = self._links[index], None
        if link is not None:
            link.sock.close()

    def kill(self) -> None:
        """SIGKILL, and start again on the same file."""
        self.counts["kills"] += 1
        self.broker.kill()  # first, or it may see that the links end
        self._drop_links()
        self.broker.start()

    def stop(self) -> None:
        """SIGTERM, and start again on the same file."""
        self.counts["stops"] += 1
        status = self.broker.terminate()
        assert status >= 0, f"the broker was ended by signal {-status}"
        self._drop_links()
        self.broker.start()

    def sleep(self, ms: int) -> None:
        """Let time go by, on both clocks."""
        self.counts["sleeps"] += 1
        self._slept_ms += ms
        self._move()

    def set_clock(self, ms: int) -> None:
        """Set the wall clock, forward or back."""
        self.counts["clock steps"] += 1
        self._set_ms += ms
        self._move()

    def end(self, how: str) -> None:
        """End the broker, and start it again on the same file."""
        (self.kill if how == KILL else self.stop)()

    def eventually(self, expected: object, look: Any) -> None:
        """Waits until a look shows what is expected."""
        deadline = time.monotonic() + self._soon_s
        while (found := look()) != expected and time.monotonic() < deadline:
            time.sleep(POLL_S)
        assert expected == found

    def _move(self) -> None:
        with self._clock_file.open("r+b") as file:
            file.write(CLOCK.pack(self._set_ms, self._slept_ms))
        time.sleep(0.1)  # five ticks of the broker

    def _drop_links(self) -> None:
        for link in self._links:
            if link is not None:
                link.sock.close()
        self._links = [None] * LINKS
