"""The engine in this process: which file, who may join, how it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bunqueue import (
    CommandTimeoutError,
    Connection,
    ConnectionClosedError,
    DataPathConflictError,
    EmbeddedError,
    Queue,
    shutdown_manager,
)
from bunqueue.client import embedded


@pytest.fixture(autouse=True)
def _one_engine_per_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in embedded.PATH_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
    shutdown_manager(5)


def test_jobs_on_a_file_survive_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    job = Queue("q", embedded=True, data_path=path).add("x", {"a": 1}, durable=True)
    shutdown_manager(5)

    found = Queue("q", embedded=True, data_path=path).get_job(job.id)

    assert found is not None
    assert ("x", {"a": 1}) == (found.name, found.data)


def test_an_omitted_path_joins_the_engine_and_the_same_file_is_no_conflict(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    first = Queue("q", embedded=True, data_path=path)

    assert first.add("x").id == Queue("q", embedded=True).get_jobs()[0].id
    assert 1 == Queue("q", embedded=True, data_path=tmp_path / "." / "jobs.db").count()


def test_another_file_is_a_conflict(tmp_path: Path) -> None:
    Queue("q", embedded=True, data_path=tmp_path / "one.db")

    with pytest.raises(DataPathConflictError, match="one.db") as conflict:
        Queue("q", embedded=True, data_path=tmp_path / "two.db")

    assert isinstance(conflict.value, ValueError)
    assert isinstance(conflict.value, EmbeddedError)


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLITE_PATH", str(tmp_path / "last.db"))
    monkeypatch.setenv("BQ_DATA_PATH", str(tmp_path / "jobs.db"))

    Queue("q", embedded=True).add("x", durable=True)

    assert [True, False] == [(tmp_path / name).exists() for name in ("jobs.db", "last.db")]


def test_a_file_of_another_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    Queue("q", embedded=True, data_path=path).add("x", durable=True)
    code = (
        "import sys; from bunqueue import EmbeddedError, Queue\n"
        "try: Queue('q', embedded=True, data_path=sys.argv[1]).add('x')\n"
        "except EmbeddedError as error: print('refused', error)"
    )

    said = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    ).stdout

    assert said.startswith("refused")


def test_a_forked_child_cannot_use_the_engine_of_its_parent(tmp_path: Path) -> None:
    code = (
        "import os; from bunqueue import EmbeddedError, Queue\n"
        "queue = Queue('q', embedded=True); queue.add('x'); parent = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    try: queue.add('y')\n"
        "    except EmbeddedError as error: print(str(error).replace(str(parent), 'PARENT'))\n"
        "    print('own', Queue('q', embedded=True).count(), flush=True)\n"
        "    os._exit(0)\n"
        "os.wait(); print('parent', queue.count())"
    )

    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout.splitlines()

    assert [
        "embedded engine was opened in process PARENT",
        "own 0",
        "parent 1",
    ] == said


def test_what_waits_when_the_engine_ends_is_told() -> None:
    queue = Queue("q", embedded=True)
    waiting = threading.Event()
    outcomes: list[BaseException] = []

    def poll() -> None:
        waiting.set()
        try:
            queue.connection.call({"cmd": "PULL", "queue": "q", "timeout": 30_000})
        except EmbeddedError as error:
            outcomes.append(error)

    poller = threading.Thread(target=poll)
    poller.start()
    waiting.wait()
    while not queue.connection._pending:
        threading.Event().wait(0.001)

    shutdown_manager(5)
    poller.join(5)

    assert ["embedded engine was shut down"] == [str(error) for error in outcomes]
    with pytest.raises(EmbeddedError, match="was shut down"):
        queue.add("x")


def test_a_wait_has_an_end_and_its_late_reply_harms_nobody() -> None:
    connection = Connection(embedded=True)

    for _ in range(5):
        with pytest.raises(CommandTimeoutError, match="no response for PULL within timeout"):
            connection.call({"cmd": "PULL", "queue": "q", "timeout": 30}, timeout=0.01)
        assert connection.call({"cmd": "PULL", "queue": "q", "timeout": 20})["job"] is None
    connection.close()


def test_closing_ends_the_polls_of_that_connection_only() -> None:
    first, second = Connection(embedded=True), Connection(embedded=True)
    outcomes: list[BaseException] = []

    def poll() -> None:
        try:
            first.call({"cmd": "PULL", "queue": "q", "timeout": 30_000})
        except ConnectionClosedError as error:
            outcomes.append(error)

    poller = threading.Thread(target=poll)
    poller.start()
    while not first._pending:
        threading.Event().wait(0.001)

    first.close()
    poller.join(5)

    assert ["connection closed by client"] == [str(error) for error in outcomes]
    assert second.ping()


def test_a_poll_lets_other_threads_and_greenlets_go_on() -> None:
    queue = Queue("q", embedded=True)
    got: list[object] = []
    poller = threading.Thread(
        target=lambda: got.append(
            queue.connection.call({"cmd": "PULL", "queue": "q", "timeout": 5000})["job"]["name"]
        )
    )
    poller.start()
    while not queue.connection._pending:
        threading.Event().wait(0.001)

    queue.add("x")

    poller.join(5)
    assert ["x"] == got


def test_a_program_that_just_ends_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    code = (
        "import sys; from bunqueue import Queue\n"
        "Queue('q', embedded=True, data_path=sys.argv[1]).add_bulk([{'name': 'x'}] * 100)"
    )

    for patched in ([], ["-m", "gevent.monkey"]):
        script = tmp_path / "program.py"
        script.write_text(code)
        subprocess.run(
            [sys.executable, *patched, str(script), str(path)],
            check=True,
            env={"PYTHONPATH": str(Path(__file__).parents[3])},
        )

    assert 200 == Queue("q", embedded=True, data_path=path).count()
