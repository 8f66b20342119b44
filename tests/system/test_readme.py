"""The README's snippets, each run as it stands but for the ports."""

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import clean_environment, free_port
from tests.support.readme import block
from tests.system.import_db.record import FILE as REFERENCE_FILE

pytestmark = pytest.mark.slow

RUN_S_MAX = 60
HOUR_MS = 3_600_000


@pytest.fixture
def environ():
    """An environment in which ``bunqueue`` and ``python`` are those that run the tests."""
    programs = Path(sys.executable).parent
    return clean_environment() | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def at(broker, text):
    """Return a snippet's text with the broker's address instead of the default one."""
    return text.replace("localhost:6789", f"{broker.host}:{broker.port}")


def run(text, directory, environ):
    """Run a Python snippet to its end and return what it printed."""
    script = directory / "snippet.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def test_embedded(tmp_path, environ):
    assert "sent to ann@example.org\n" == run(block("Embedded"), tmp_path, environ)
    assert (tmp_path / "queue.db").exists()


def test_server(tmp_path, environ):
    text = block("Server").replace("6789", str(free_port())).replace("6790", str(free_port()))
    port = text.partition("--tcp-port ")[2].split()[0]

    done = subprocess.run(
        ["bash", "-c", f"{text}\nkill -TERM %1 || exit\nwait %1"],
        cwd=tmp_path,
        env=environ | {"BUNQUEUE_TCP_PORT": port},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )

    assert 0 == done.returncode, done.stderr
    for line in ("Job created: bob", "ann@example.org", "delayed", 'Result: "sent"', "Uptime:"):
        assert line in done.stdout


def test_blocking_worker(broker, tmp_path, environ):
    from bunqueue import Queue

    script = tmp_path / "worker.py"
    script.write_text(at(broker, block("A worker that blocks")))
    with (
        Queue("images", url=broker.url) as queue,
        subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env=environ) as worker,
    ):
        try:
            job = queue.add("resize", {"width": 640})
            assert {"width": 320} == queue.wait_for_job(job.id, RUN_S_MAX * 1000)
            worker.send_signal(signal.SIGTERM)
            assert 0 == worker.wait(RUN_S_MAX)
        finally:
            worker.kill()


def test_flask_view(broker):
    from bunqueue import Queue

    scope = {"__name__": "shop"}
    exec(compile(at(broker, block("Flask")), "README Flask", "exec"), scope)

    answer = scope["app"].test_client().post("/welcome", json={"to": "ann@example.org"})

    assert 202 == answer.status_code
    with scope["emails"] as queue:
        job = queue.get_job(answer.json["job"])
    assert isinstance(queue, Queue)
    assert {"to": "ann@example.org"} == job.data


def test_gevent(broker, tmp_path, environ):
    assert "9900\n" == run(at(broker, block("gevent")), tmp_path, environ)


def test_groups_and_schedules(broker, tmp_path, environ):
    assert "['nightly']\n" == run(at(broker, block("Groups and schedules")), tmp_path, environ)


def test_watching(memory_broker, tmp_path, environ):
    from bunqueue import Queue

    with Queue("emails", url=memory_broker.url) as queue:
        queue.add("welcome", {}, job_id="bob", delay=HOUR_MS)

    done = subprocess.run(
        ["bash", "-ec", block("Watching")],
        cwd=tmp_path,
        env=environ | {"BUNQUEUE_TCP_PORT": str(memory_broker.port), "HOST": memory_broker.host},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )

    assert 0 == done.returncode, done.stderr
    for text in ("It is delayed.", "0 problems", "https://example.org/hook  job.failed  emails"):
        assert text in done.stdout


def test_moving_from_the_original_server(tmp_path, environ):
    (tmp_path / "bunq.db").write_bytes(gzip.decompress(REFERENCE_FILE.read_bytes()))

    done = subprocess.run(
        ["bash", "-ec", block("Moving from the original server")],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )

    assert 0 == done.returncode, done.stderr
    assert "Would import bunq.db into moved.db\n" in done.stdout
    assert "Imported bunq.db into moved.db\n" in done.stdout
