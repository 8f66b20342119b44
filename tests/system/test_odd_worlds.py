"""Clients where programs really use them: patched late, early, partly or never; under gunicorn;
in multiprocessing's children. It works, or says one clear sentence.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bunqueue import Queue
from tests.support.broker_process import BrokerProcess, clean_environment, free_port
from tests.support.program import ROOT, Program

PROGRAMS = Path(__file__).parent / "client"
START_S_MAX = 60.0
REQUESTS = 24
CALLERS = 8

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("odd")) as broker:
        yield broker


@pytest.mark.parametrize(
    ("how", "executor", "sentence"),
    [
        ("late", "greenlet", None),
        ("early", "greenlet", None),
        ("never", "thread", None),
        ("never_in_greenlets", "thread", None),
        ("used_before", "thread", "since gevent patched this process after bunqueue was used"),
        ("sockets_only", "thread", "since gevent has not patched threading"),
        ("threads_only", "thread", "since gevent has not patched socket"),
        ("all_but_threads", "thread", "since gevent has not patched threading"),
        ("all_but_sockets", "thread", "since gevent has not patched socket"),
    ],
)
def test_a25_a_client_works_however_gevent_has_patched(
    how: str, executor: str, sentence: str | None, shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    with Program(PROGRAMS / "odd_world.py", [how, shared_broker.port], directory=tmp_path) as told:
        assert 0 == told.process.wait(60)
        assert f"ok {executor}" == told.wait_for("ok")

    warnings = told.starting_with("calls block the whole hub")
    assert (0 if sentence is None else 1) == len(warnings)
    assert sentence is None or sentence in warnings[0]


@pytest.mark.parametrize(
    "options",
    [
        ["-k", "gevent"],
        ["-k", "gevent", "--preload"],
        ["-k", "gthread", "--threads", "8"],
        ["-k", "gthread", "--threads", "8", "--preload"],
    ],
    ids=" ".join,
)
def test_a25_a_queue_of_a_module_works_under_gunicorn(
    options: list[str], shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    with gunicorn(options, shared_broker, tmp_path) as port, ThreadPoolExecutor(CALLERS) as callers:
        answers = list(callers.map(lambda _number: get(port), range(REQUESTS)))

    ids, waits = zip(*(answer.split() for answer in answers), strict=True)
    assert {"yields" if "gevent" in options else "blocks"} == set(waits)
    with Queue("web", port=shared_broker.port) as queue:
        assert set(ids) == {job.id for job in queue.iter_jobs()}
        queue.obliterate()


def test_a_queue_that_the_master_has_used_works_in_gunicorns_children(
    shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    options = ["-k", "gevent", "--preload"]
    with (
        gunicorn(options, shared_broker, tmp_path, USED_BY_MASTER="1") as port,
        ThreadPoolExecutor(CALLERS) as callers,
    ):
        answers = list(callers.map(lambda _number: get(port), range(REQUESTS)))

    assert {"yields"} == {answer.split()[1] for answer in answers}
    with Queue("web", port=shared_broker.port) as queue:
        assert REQUESTS == queue.count()
        queue.obliterate()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_queue_of_a_module_works_in_a_multiprocessing_child(
    method: str, shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    args = [method, shared_broker.port]
    with Program(PROGRAMS / "pool_of_processes.py", args, directory=tmp_path) as told:
        assert 0 == told.process.wait(60)

    assert ["added 0 1 2 3 4 5 6 7", "embedded EmbeddedError"] == told.lines


@contextmanager
def gunicorn(
    options: list[str], broker: BrokerProcess, directory: Path, **settings: str
) -> Iterator[int]:
    """Run the application with two workers and yield its port."""
    port = free_port()
    started = [sys.executable, "-m", "gunicorn", *options, "-w", "2", "--no-control-socket"]
    log = directory / "gunicorn.log"
    with log.open("wb") as output:
        master = subprocess.Popen(
            [*started, "--bind", f"127.0.0.1:{port}", "--chdir", str(PROGRAMS), "web:app"],
            env=clean_environment()
            | {"PYTHONPATH": str(ROOT), "BROKER_PORT": str(broker.port), **settings},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_S_MAX
        while log.read_text().count("Booting worker") < 2:
            assert master.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield port
    finally:
        with suppress(ProcessLookupError):
            os.killpg(master.pid, signal.SIGKILL)  # its drain is not what is looked at
        master.wait()


def get(port: int) -> str:
    """Return what the application answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_S_MAX)
    connection.request("GET", "/")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert 200 == answer.status, text
    return text
