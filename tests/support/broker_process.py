"""A broker in a process of its own, for tests that kill, restart and signal one.

The ports are chosen once and kept over restarts, as clients expect of a server that comes back.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

HOST = "127.0.0.1"
START_S_MAX = 20.0
STOP_S_MAX = 20.0
POLL_S = 0.02
PORTS = (15_000, 32_000)
CHOICE = random.SystemRandom()  # the other is seeded, the same in every suite

# Settings of the machine that runs the tests must not leak into the brokers under test.
SETTING_PREFIXES = ("BUNQUEUE_", "BQ_", "TCP_", "HTTP_", "TLS_", "S3_", "RATE_LIMIT_", "LOG_")
SETTING_NAMES = {"HOST", "AUTH_TOKENS", "DATA_PATH", "SQLITE_PATH"}


class BrokerProcess:
    """Runs ``bunqueue start`` and waits until it accepts connections.

    Use as a context manager; leaving it ends the process whatever state it is in.

    Attributes:
        host, port, http_port: Where it listens; the same after ``restart``.
        data_path: Its file, None for memory.
        log_path: Everything the process printed, over all its lives.
        process: The running process, None when there is none.
        start_s_max, stop_s_max: How long it may take.
    """

    start_s_max = START_S_MAX
    stop_s_max = STOP_S_MAX

    def __init__(
        self,
        directory: Path,
        *,
        data_path: Path | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.host = HOST
        self.port, self.http_port = free_port(), free_port()
        self.directory = directory
        self.data_path = data_path
        self.log_path = directory / "broker.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._args = list(args)
        self._env = clean_environment() | dict(env or {})

    @property
    def url(self) -> str:
        return f"bunqueue://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker is not running"
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8", errors="replace")

    def command(self) -> list[str]:
        """Return the arguments that run it."""
        command = [sys.executable, "-m", "bunqueue", "start", "--host", self.host]
        command += ["--tcp-port", str(self.port), "--http-port", str(self.http_port)]
        if self.data_path is not None:
            command += ["--data-path", str(self.data_path)]
        return [*command, *self._args]

    def start(self) -> None:
        """Waits until the broker accepts TCP connections."""
        assert self.process is None, "the broker is running already"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=self.directory,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + self.start_s_max
        while not accepts(self.host, self.port):
            status = self.process.poll()
            if status is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the broker did not start, status {status}:\n{self.log}")
            time.sleep(POLL_S)

    def kill(self) -> None:
        """End it with SIGKILL: no drain, no flush. Waits until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def terminate(self, signal_number: int = signal.SIGTERM, timeout_s: float | None = None) -> int:
        """Ask it to stop and return its exit status. Waits."""
        assert self.process is not None, "the broker is not running"
        self.process.send_signal(signal_number)
        timeout_s = self.stop_s_max if timeout_s is None else timeout_s
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the broker did not stop in {timeout_s} s:\n{self.log}") from None
        self.process = None
        return status

    def restart(self) -> None:
        """Kill it if it runs, then start it on the same file and ports."""
        self.kill()
        self.start()

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


def free_port(and_next: int = 0) -> int:
    """Return a TCP port that nobody listened on a moment ago, nor on the ``and_next`` after it.

    Not one of those that the system gives to outgoing connections: another suite's would take it.
    """
    while True:
        port = CHOICE.randrange(*PORTS)
        if all(is_free(port + step) for step in range(and_next + 1)):
            return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def clean_environment() -> dict[str, str]:
    """Return the environment without any setting of ours."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in SETTING_NAMES and not name.startswith(SETTING_PREFIXES)
    }
