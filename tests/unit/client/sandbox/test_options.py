"""What a sandbox accepts, and what names a processor in a child."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bunqueue import SandboxedWorker
from bunqueue.client.sandbox.options import SandboxOptions, processor_name, sandbox_options
from bunqueue.client.sandbox.process import ending


def importable(_job: Any) -> None:
    """A processor that a child could import."""


def test_defaults_are_those_of_the_specification():
    assert SandboxOptions() == sandbox_options(None)
    assert (30_000, 0, True, 10, 0, 30_000, 5) == (
        SandboxOptions().timeout_ms,
        SandboxOptions().max_memory_mb,
        SandboxOptions().auto_restart,
        SandboxOptions().max_restarts,
        SandboxOptions().idle_timeout_ms,
        SandboxOptions().idle_recycle_ms,
        SandboxOptions().start_timeout_s,
    )


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"memory": 3}, TypeError),
        ({"timeout_ms": "3"}, TypeError),
        ({"timeout_ms": True}, TypeError),
        ({"timeout_ms": -1}, ValueError),
        ({"max_memory_mb": float("inf")}, ValueError),
        ({"start_timeout_s": 0}, ValueError),
    ],
)
def test_what_cannot_work_is_refused(given, error):
    with pytest.raises(error):
        sandbox_options(given)


def test_names_of_processors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert "shop.jobs:send" == processor_name("shop.jobs:send")
    assert "shop.jobs:Box.send" == processor_name("shop.jobs:Box.send")
    assert f"{tmp_path}/jobs.py:processor" == processor_name("jobs.py")
    assert f"{tmp_path}/jobs.py:send" == processor_name("./jobs.py:send")
    assert f"{tmp_path}/jobs.py:processor" == processor_name(Path("jobs.py"))
    assert f"{__name__}:importable" == processor_name(importable)


@pytest.mark.parametrize("text", ["", "shop", "shop:", ":send", "shop jobs:send", "a/b:send"])
def test_text_that_names_nothing_is_refused(text):
    with pytest.raises(ValueError, match=r"module:function"):
        processor_name(text)


def test_what_a_child_could_not_find_is_refused():
    def local(_job):
        return None

    for processor in (local, lambda _job: None):
        with pytest.raises(ValueError, match="can be imported"):
            processor_name(processor)
    with pytest.raises(TypeError):
        processor_name(7)


def test_endings_are_told_in_words():
    assert ["exit status 3", "killed by SIGKILL", "killed by signal 99"] == [
        ending(status) for status in (3, -9, -99)
    ]


def test_names_of_the_bun_package_are_taken():
    worker = SandboxedWorker(
        "q",
        {"processor": "shop:send", "timeout": 5, "maxMemory": 6, "heartbeatInterval": 2000},
        maxRestarts=7,
        env={"A": "b"},
    )

    assert {"timeout_ms": 5, "max_memory_mb": 6, "max_restarts": 7, "env": {"A": "b"}} == (
        worker.sandbox
    )
    assert (1, "process", 2.0) == (
        worker.concurrency,
        worker.executor,
        worker.heartbeat_interval_s,
    )
    assert not worker.is_running()


def test_a_sandboxed_worker_needs_a_processor():
    with pytest.raises(TypeError, match="processor"):
        SandboxedWorker("q", {"concurrency": 2})
