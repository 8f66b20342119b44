"""Start our server, or the reference server, as a process of its own on a fresh file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from loadtests.processes import pinned

HOST = "127.0.0.1"
START_WAIT_S_MAX = 30.0
STOP_WAIT_S_MAX = 30.0
BUN_WAIT_S_MAX = 30.0
ROOT = Path(__file__).resolve().parent.parent

# The reference refuses the 10,001st request of a connection in a minute and drops idle ones;
# both would be measured instead of its work.
REFERENCE_ENV = {"RATE_LIMIT_MAX_REQUESTS": "1000000000", "TCP_IDLE_TIMEOUT_MS": "0"}

Command = tuple[list[str], dict[str, str]]
"""An argument list, and what it needs in its environment."""


class ServerDidNotStart(RuntimeError):
    """The server ended, or did not listen in time; the text shows what it printed."""


class Server:
    """One server process: start it, stop it, kill it, start it again on the same port and file."""

    def __init__(
        self,
        command: Command,
        port: int,
        log: Path,
        core: int | None = None,
        cwd: Path = ROOT,
    ) -> None:
        """Remember how to start it; nothing runs yet.

        Args:
            command: What to run.
            port: Where it will listen.
            log: File that gets its output, appended to over restarts.
            core: Core to bind it and its children to; None leaves it free.
            cwd: Directory it runs in.
        """
        self.command, self.environment = command
        self.port = port
        self.log = log
        self.core = core
        self.cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Waits until the server accepts connections.

        Raises:
            ServerDidNotStart: It ended or took too long.
        """
        with pinned(self.core), self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.cwd,
                start_new_session=True,  # a Ctrl-C in the terminal is ours to pass on
            )
        deadline = time.monotonic() + START_WAIT_S_MAX
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise ServerDidNotStart(self.log.read_text(errors="replace")[-4_000:])
            time.sleep(0.02)

    def stop(self) -> int:
        """Waits for a graceful end and returns the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Waits for the end of the server after SIGKILL."""
        return self._end(signal.SIGKILL)

    def __enter__(self) -> Server:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it, by force if it does not want to."""
        if self._process is not None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()

    def _listens(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(STOP_WAIT_S_MAX)


def stop_servers_on_sigterm() -> None:
    """Let SIGTERM end this process as an exception does, so that no server is left behind."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def free_port() -> int:
    """Return a port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def our_command(
    port: int,
    http_port: int,
    data_path: Path | None,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Command:
    """Build the command that runs this checkout's server."""
    arguments = [sys.executable, "-m", "bunqueue", "start", "--host", HOST]
    arguments += ["--tcp-port", str(port), "--http-port", str(http_port)]
    if data_path is not None:
        arguments += ["--data-path", str(data_path)]
    # An inherited data path would turn a run in memory into one on somebody's file.
    return [*arguments, *flags], {"BUNQUEUE_DATA_PATH": "", **(environment or {})}


def reference_command(
    directory: Path,
    port: int,
    http_port: int,
    data_path: Path | None,
    environment: Mapping[str, str] | None = None,
) -> Command:
    """Build the command that runs the reference server.

    Args:
        directory: Where bun and bunqueue@2.9.5 were installed with npm.
        port: Its TCP port.
        http_port: Its HTTP port.
        data_path: Its file; None for memory.
        environment: More settings.
    """
    main = directory / "node_modules" / "bunqueue" / "dist" / "main.js"
    settings = {"HOST": HOST, "TCP_PORT": str(port), "HTTP_PORT": str(http_port)}
    settings |= {"BUNQUEUE_DATA_PATH": str(data_path) if data_path is not None else ""}
    arguments = [str(bun_of(directory)), str(main), "start"]
    return arguments, {**settings, **REFERENCE_ENV, **(environment or {})}


@cache
def bun_of(directory: Path) -> Path:
    """Find the Bun that runs on this machine.

    npm may have unpacked builds for several kinds of processors and of C libraries; which of them
    runs, only trying tells. The launcher in .bin is no build: it fetches one by install script.

    Raises:
        FileNotFoundError: None runs.
    """
    for bun in sorted(directory.glob("node_modules/@oven/bun-*/bin/bun")):
        try:
            done = subprocess.run([bun, "--version"], capture_output=True, timeout=BUN_WAIT_S_MAX)
        except OSError:
            continue
        if done.returncode == 0:
            return bun
    raise FileNotFoundError(f"no Bun in {directory} runs on this machine")
