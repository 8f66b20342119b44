"""Record a database of the original server, and what that server tells of it.

    BUNQUEUE_TEST_REFERENCE=DIRECTORY python -m tests.system.import_db.record

Fills a server with ``population``, stops it, and keeps its file; then starts it again on a copy
and keeps what it answers and how it goes on. Recorded once and committed, so that the import is
tested where the original server cannot be had; ``test_import_db.py`` makes a fresh one where it
can. The recording is set in the past, so that it has happened by whatever clock reads it.
"""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from tests.support.broker_process import BrokerProcess
from tests.support.reference import ReferenceProcess
from tests.support.wire import Reader
from tests.system.import_db.asking import answers
from tests.system.import_db.population import populate
from tests.system.import_db.working import work_off

HERE = Path(__file__).parent
FILE = HERE / "reference-2.9.5.db.gz"
TOLD = HERE / "reference-2.9.5.json"
CLOCK = HERE / "clock.mjs"
RECORDED_AT_MS = 1_704_110_400_000  # noon of the first day of 2024, UTC
FLUSHED_S = 0.3  # its plain pushes are on disk by then


def call_of(broker: BrokerProcess) -> Callable[..., dict[str, Any]]:
    """Return what sends one command and returns its reply, which must not be a refusal."""
    reader = Reader(socket.create_connection((broker.host, broker.port), timeout=10))

    def call(cmd: str, **fields: Any) -> dict[str, Any]:
        reply: dict[str, Any] = reader.call({"cmd": cmd, "reqId": "1", **fields})
        assert reply["ok"], (cmd, fields, reply)
        return reply

    call.__dict__["close"] = reader.sock.close
    return call


class ShiftedReference(ReferenceProcess):
    """The original server, with a clock of its own."""

    def command(self) -> list[str]:
        bun, *arguments = super().command()
        return [bun, "--preload", str(CLOCK), *arguments]


def record(
    directory: Path, at_ms: int | None = None, home: Path | None = None
) -> tuple[Path, dict[str, Any]]:
    """Return a closed file of the original server, and what it told of it. Waits.

    Args:
        directory: Where it works.
        at_ms: Epoch ms that its clock begins with; None for the machine's clock.
        home: Where it is installed, if not where the environment says.
    """
    kind = ReferenceProcess if at_ms is None else ShiftedReference
    file, copy = directory / "reference.db", directory / "copy.db"
    # Its jobs stay active: it does not wait for their workers.
    env = {"SHUTDOWN_TIMEOUT_MS": "300"}
    if at_ms is not None:
        env["CLOCK_SHIFT_MS"] = str(at_ms - int(time.time() * 1000))
    with kind(directory, data_path=file, env=env, home=home) as server:
        call = call_of(server)
        populate(call)
        time.sleep(FLUSHED_S)
        server.terminate()
        call.__dict__["close"]()
    shutil.copy(file, copy)
    with kind(directory, data_path=copy, env=env, home=home) as server:
        return file, tell(server)


def tell(server: BrokerProcess) -> dict[str, Any]:
    """Return what a server tells of everything, and how it goes on."""
    call = call_of(server)
    try:
        return {
            "at": int(time.time() * 1000),
            "answers": plain(answers(call)),
            "work": plain(work_off(call)),
        }
    finally:
        call.__dict__["close"]()


def plain(value: Any) -> Any:
    """Return a value as JSON has it; "undefined" members are left out, no client sees them."""
    if isinstance(value, dict):
        return {
            key: plain(item) for key, item in value.items() if not isinstance(item, msgpack.ExtType)
        }
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, msgpack.ExtType):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def as_text(told: dict[str, Any]) -> str:
    """Return JSON with an answer to the line."""
    parts = [f'"at": {told["at"]}']
    for name in ("answers", "work"):
        lines = ",\n".join(
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
            for key, value in told[name].items()
        )
        parts.append(f'"{name}": {{\n{lines}\n}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        file, told = record(Path(directory), RECORDED_AT_MS)
        FILE.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        TOLD.write_text(as_text(told), "utf-8")


if __name__ == "__main__":
    main()
