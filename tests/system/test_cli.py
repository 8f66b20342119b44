"""The command line against a real broker, from the outside."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trustme

from bunqueue import Queue
from tests.support.broker_process import (
    POLL_S,
    START_S_MAX,
    STOP_S_MAX,
    BrokerProcess,
    clean_environment,
    free_port,
)
from tests.support.cli import RUN_S_MAX, bunqueue
from tests.support.readme import ROOT

pytestmark = pytest.mark.slow


def pushed(broker, *args, data="{}", queue="emails"):
    """Push a job and return its id."""
    done = bunqueue("push", queue, data, *args, broker=broker)
    assert 0 == done.status, done.err
    return done.out.removeprefix("Job created: ").strip()


def test_a_job_goes_from_push_to_ack(memory_broker):
    job_id = pushed(memory_broker, "--name", "welcome", "-P", "5", data='{"to": "ann"}')

    pulled = bunqueue("pull", "emails", broker=memory_broker)
    acked = bunqueue("ack", job_id, "-r", '{"sent": true}', broker=memory_broker)
    result = bunqueue("job", "result", job_id, broker=memory_broker)

    assert re.search(rf'Job: +{job_id}\n(.*\n)*Data: +{{"to": "ann"}}', pulled.out)
    assert (0, "OK\n") == (acked.status, acked.out)
    assert 'Result: {"sent": true}\n' == result.out


def test_an_empty_queue_is_no_error(memory_broker):
    done = bunqueue("pull", "emails", broker=memory_broker)

    assert (0, "No job available\n") == (done.status, done.out)


def test_a_failed_job_can_be_seen_and_tried_again(memory_broker):
    job_id = pushed(memory_broker, "--max-attempts", "1")
    bunqueue("pull", "emails", broker=memory_broker)
    assert 0 == bunqueue("fail", job_id, "-e", "mailbox full", broker=memory_broker).status

    listed = bunqueue("dlq", "list", "emails", broker=memory_broker)
    retried = bunqueue("dlq", "retry", "emails", "--id", job_id, broker=memory_broker)
    state = bunqueue("job", "state", job_id, broker=memory_broker)

    assert "mailbox full" in listed.out
    assert "Count: 1\n" == retried.out
    assert "State: waiting\n" == state.out


def test_a_job_can_be_looked_at_and_changed(memory_broker):
    job_id = pushed(memory_broker, "--delay", "1h", "--job-id", "ann")

    assert "ann" == job_id
    for command in (
        ("job", "update", "ann", '{"to": "bob"}'),
        ("job", "priority", "ann", "7"),
        ("job", "delay", "ann", "2h"),
        ("job", "promote", "ann"),
        ("job", "log", "ann", "looked at", "--level", "warn"),
    ):
        done = bunqueue(*command, broker=memory_broker)
        assert (0, "OK\n") == (done.status, done.out), done.err
    shown = bunqueue("job", "get", "ann", broker=memory_broker).out
    assert re.search(r"State: +prioritized\n", shown)
    assert re.search(r"Priority: +7\n", shown)
    assert '{"to": "bob"}' in shown
    assert "] WARN: looked at\n" in bunqueue("job", "logs", "ann", broker=memory_broker).out
    assert "OK\n" == bunqueue("job", "cancel", "ann", broker=memory_broker).out
    unknown = bunqueue("job", "state", "ann", broker=memory_broker)
    assert (1, "State: unknown\n") == (unknown.status, unknown.out)


def test_progress_is_told_of_an_active_job(memory_broker):
    job_id = pushed(memory_broker)
    bunqueue("pull", "emails", broker=memory_broker)

    done = bunqueue("job", "progress", job_id, "40", "-m", "half way", broker=memory_broker)

    assert (0, "OK\n") == (done.status, done.out)
    assert "40%" in bunqueue("job", "get", job_id, broker=memory_broker).out


def test_a_wait_that_runs_out_is_exit_1(memory_broker):
    job_id = pushed(memory_broker)

    assert 1 == bunqueue("job", "wait", job_id, "-t", "50", broker=memory_broker).status


def test_queues_can_be_looked_at_and_controlled(memory_broker):
    first, second = pushed(memory_broker), pushed(memory_broker)

    def queue(*words):
        done = bunqueue("queue", *words, broker=memory_broker)
        assert 0 == done.status, done.err
        return done.out

    assert "  - emails\n" == queue("list")
    assert "Count: 2\n" == queue("count", "emails")
    assert "OK\n" == queue("pause", "emails")
    assert "Queue is paused\n" == queue("paused", "emails")
    assert "OK\n" == queue("resume", "emails")
    assert "Queue is active\n" == queue("paused", "emails")
    assert first in queue("jobs", "emails", "-l", "1")
    assert second in queue("jobs", "emails", "-o", "1")
    assert "Cleaned 2 jobs: " in queue("clean", "emails", "--grace", "0", "-s", "waiting")
    assert "OK\n" == queue("drain", "emails")
    assert "OK\n" == queue("obliterate", "emails")
    assert "No jobs found\n" == queue("jobs", "emails")


def test_limits_can_be_set_and_cleared(memory_broker):
    pushed(memory_broker), pushed(memory_broker)
    for command in (
        ("rate-limit", "set", "emails", "10", "--duration", "1m"),
        ("rate-limit", "clear", "emails"),
        ("concurrency", "set", "emails", "1"),
    ):
        assert "OK\n" == bunqueue(*command, broker=memory_broker).out

    assert "Job:" in bunqueue("pull", "emails", broker=memory_broker).out
    assert "No job available\n" == bunqueue("pull", "emails", broker=memory_broker).out
    assert "OK\n" == bunqueue("concurrency", "clear", "emails", broker=memory_broker).out
    assert "Job:" in bunqueue("pull", "emails", broker=memory_broker).out


def test_the_worker_list_can_be_seen(memory_broker):
    registered = bunqueue("worker", "register", "me", "-q", "a,b", broker=memory_broker)

    assert re.fullmatch(r"Worker registered: \S+\n", registered.out)
    assert "ends with this connection" in registered.err
    assert "No workers registered\n" == bunqueue("worker", "list", broker=memory_broker).out
    assert 1 == bunqueue("worker", "unregister", "nobody", broker=memory_broker).status


def test_the_broker_tells_how_it_is(memory_broker):
    pushed(memory_broker)

    assert re.search(r"Waiting: +1\n", bunqueue("stats", broker=memory_broker).out)
    assert "healthy" in bunqueue("health", broker=memory_broker).out
    assert re.match(r"PONG in [\d.]+ ms\n", bunqueue("ping", broker=memory_broker).out)
    assert re.fullmatch(
        r"client 0\.1\.0 \(.+\)\nserver compatible with 2\.9\.5; "
        r"its own version: no answer at \S+\n",
        bunqueue("version", broker=memory_broker).out,
    )


def test_version_asks_http_one_port_above(tmp_path):
    with BrokerProcess(tmp_path, env={"AUTH_TOKENS": "secret"}) as broker:
        broker.kill()
        broker.port = free_port(and_next=1)
        broker.http_port = broker.port + 1
        broker.start()

        version = bunqueue("version", broker=broker).out

    # Over TCP it would have needed the token.
    assert re.fullmatch(r"client 0\.1\.0 \(.+\)\nserver \d+\.\d+\.\d+ \(.+\)\n", version)


def test_explain_says_why_a_job_is_not_running(broker):
    pushed = bunqueue("push", "later", "1", "--delay", "60s", broker=broker)
    job_id = pushed.out.removeprefix("Job created: ").strip()

    told = bunqueue("explain", job_id, broker=broker)

    assert 0 == told.status
    lines = told.out.splitlines()
    assert [f"Job: {job_id}", "Queue: later", "State: delayed"] == lines[:3]
    assert lines[3].startswith("  - It is delayed. (until ")
    assert 1 == bunqueue("explain", "nobody", broker=broker).status


def test_a_version_that_reaches_no_server_is_no_error():
    done = bunqueue("version", "-p", str(free_port()))

    assert 0 == done.status
    assert re.match(r"client 0\.1\.0 \(.+\)\nserver not reached: localhost:", done.out)


def test_every_reading_command_speaks_json(memory_broker):
    job_id = pushed(memory_broker)
    for command in (
        ("queue", "list"),
        ("queue", "jobs", "emails"),
        ("job", "get", job_id),
        ("dlq", "list", "emails"),
        ("worker", "list"),
        ("stats",),
        ("health",),
        ("ping",),
        ("pull", "emails"),
    ):
        done = bunqueue(*command, "--json", broker=memory_broker)
        assert json.loads(done.out)["ok"] is True, command
    assert 0 == bunqueue("version", "--json", broker=memory_broker).status


def test_a_refusal_is_exit_1_and_json_when_asked(memory_broker):
    plain = bunqueue("job", "get", "nothing", broker=memory_broker)
    asked = bunqueue("job", "get", "nothing", "--json", broker=memory_broker)

    assert (1, "", "Error: Job not found\n") == (plain.status, plain.out, plain.err)
    assert (1, "") == (asked.status, asked.out)
    assert {"ok": False, "error": "Job not found"} == json.loads(asked.err)


def test_data_may_come_from_standard_input(memory_broker):
    bunqueue("push", "emails", "-", broker=memory_broker, stdin='{"big": 9007199254740993}')

    assert "9007199254740993" in bunqueue("pull", "emails", broker=memory_broker).out


def test_an_unreachable_broker_is_exit_1():
    port = free_port()
    done = bunqueue("stats", "-p", str(port))

    assert 1 == done.status
    assert f"localhost:{port}" in done.err
    assert "start it with 'bunqueue start'" in done.err
    assert 1 == len(done.err.splitlines())


def test_bad_usage_is_exit_2():
    done = bunqueue("push", "emails", "{bad")

    assert (2, "") == (done.status, done.out)


def test_tokens_let_in_from_option_url_and_environment(tmp_path):
    with BrokerProcess(tmp_path, env={"AUTH_TOKENS": "secret,other"}) as broker:
        url = f"bunqueue://:other@{broker.host}:{broker.port}"
        assert 1 == bunqueue("stats", broker=broker).status
        assert 1 == bunqueue("stats", "-t", "wrong", broker=broker).status
        assert 0 == bunqueue("-t", "secret", "stats", broker=broker).status
        assert 0 == bunqueue("stats", "--url", url).status
        assert 0 == bunqueue("stats", broker=broker, env={"BQ_TOKEN": "secret"}).status
        assert 0 == bunqueue("-t", "secret", "pull", "q", "-t", "1", broker=broker).status


def test_tls_is_checked_unless_told_otherwise(tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    args = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with BrokerProcess(tmp_path, args=args) as broker:
        at = ("-H", "localhost", "-p", str(broker.port))
        assert 0 == bunqueue("stats", "--tls-ca", str(tmp_path / "ca.pem"), *at).status
        assert 0 == bunqueue("stats", "--tls-no-verify", *at).status
        assert "--tls-ca FILE" in bunqueue("stats", "--tls", *at).err
        assert "give --tls" in bunqueue("stats", *at).err
        bad = bunqueue("stats", "--tls-ca", str(tmp_path / "key.pem"), *at)
        assert (2, True) == (bad.status, "holds no certificates" in bad.err)
        broker.terminate()
        assert re.search(r"TLS: +on\n", broker.log)
        assert "bunqueues://127.0.0.1" in broker.log


def test_the_banner_tells_what_listens_and_no_secret(tmp_path):
    path = tmp_path / "jobs.db"
    with BrokerProcess(tmp_path, data_path=path, env={"AUTH_TOKENS": "hush-hush"}) as broker:
        broker.terminate()
        banner = broker.log

    assert f"bunqueue://{broker.host}:{broker.port}\n" in banner
    assert f"http://{broker.host}:{broker.http_port}\n" in banner
    assert str(path) in banner
    assert "token required" in banner
    assert "hush" not in banner


def test_tokens_on_the_command_line_are_hidden(tmp_path):
    with BrokerProcess(tmp_path, args=("--auth-tokens", "hush-hush")) as broker:
        shown = Path(f"/proc/{broker.pid}/cmdline")
        if shown.exists():
            assert "hush" not in shown.read_text()
        assert 1 == bunqueue("stats", broker=broker).status
        assert 0 == bunqueue("stats", "-t", "hush-hush", broker=broker).status
        broker.terminate()

    assert 1 == broker.log.count("AUTH_TOKENS_FILE")
    assert "hush" not in broker.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_broker_ends_with_0_on_a_signal(memory_broker, number):
    assert 0 == memory_broker.terminate(number)


def test_without_a_command_the_broker_starts(tmp_path):
    ports = ("--tcp-port", "70000", "--http-port", "0")
    done = bunqueue(*ports, directory=tmp_path)

    assert 1 == done.status
    assert "--tcp-port must be between 0 and 65535" in done.err


def test_a_missing_config_file_is_exit_1(tmp_path):
    done = bunqueue("start", "-c", "nowhere.toml", directory=tmp_path)

    assert 1 == done.status
    assert "Config file not found" in done.err


def test_a_second_broker_on_the_file_is_exit_1(broker, tmp_path):
    ports = ("--host", "127.0.0.1", "--tcp-port", "0", "--http-port", "0")
    done = bunqueue("start", *ports, "--data-path", str(broker.data_path), directory=tmp_path)

    assert 1 == done.status
    assert "Traceback" not in done.err


def test_the_launcher_runs_from_a_checkout(tmp_path):
    # A checkout without a virtual environment of its own takes the first Python there is.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(ROOT / "bin/bunqueue"), "--version"],
        cwd=tmp_path,
        env=clean_environment() | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )

    assert (0, "bunqueue 0.1.0\n") == (done.returncode, done.stdout)


def test_demo_adds_up(tmp_path):
    done = bunqueue("demo", directory=tmp_path)

    assert 0 == done.status, done.err + done.out
    assert re.search(r"\nall +1000 +950 +50 +\d+ +\d+\n", done.out)
    assert "Everything adds up" in done.out
    assert [] == list(tmp_path.iterdir())


def test_demo_keeps_the_file_it_is_given(tmp_path):
    path = tmp_path / "demo.db"
    for _ in range(2):
        assert 0 == bunqueue("demo", "--data-path", str(path), directory=tmp_path).status

    assert path.exists()


HANDLERS = """
import logging, os, socket, time
from bunqueue import Worker

def greet(job):
    logging.getLogger("shop").info("greeting")
    return f"hello {job.data}"

def patched(job):
    from gevent import monkey
    return monkey.is_module_patched("socket") and type(socket.socket).__module__

def slow(job):
    open("started", "w").close()
    time.sleep(float(job.data))
    return "slept"

def make():
    return [Worker("made", greet, autorun=False, port=int(os.environ["BUNQUEUE_TCP_PORT"]))]

def started():
    return Worker("made", greet, port=int(os.environ["BUNQUEUE_TCP_PORT"]))
"""


@pytest.fixture
def shop(tmp_path):
    """A directory with a module of handlers."""
    (tmp_path / "shop.py").write_text(HANDLERS)
    (tmp_path / "broken.py").write_text("1 / 0")
    return tmp_path


def worker(*args, broker, shop):
    """Run ``bunqueue worker`` to its end."""
    return bunqueue("worker", *args, broker=broker, directory=shop)


def stopped_worker(*args, number, broker, shop):
    """Start ``bunqueue worker``, signal it once it runs a job of ``slow``; return status, log."""
    environ = clean_environment() | {"BUNQUEUE_TCP_PORT": str(broker.port)}
    with (
        (shop / "worker.log").open("w+") as log,
        subprocess.Popen(
            [sys.executable, "-m", "bunqueue", "worker", *args, "-H", broker.host],
            cwd=shop,
            env=environ,
            stderr=log,
        ) as process,
    ):
        try:
            deadline = time.monotonic() + START_S_MAX
            while not (shop / "started").exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(POLL_S)
            process.send_signal(number)
            status = process.wait(STOP_S_MAX)
        finally:
            process.kill()
        log.seek(0)
        return status, log.read()


@pytest.mark.parametrize("executor", ["greenlet", "thread"])
def test_worker_runs_a_handler_until_the_queue_is_empty(memory_broker, shop, executor):
    ids = [pushed(memory_broker, data=str(n)) for n in range(5)]

    done = worker(
        "shop:greet", "-q", "emails", "--burst", "-x", executor, broker=memory_broker, shop=shop
    )

    assert 0 == done.status, done.err
    for n, job_id in enumerate(ids):
        assert f"hello {n}" in bunqueue("job", "result", job_id, broker=memory_broker).out
        assert f"shop greeting job_id={job_id} job_queue=emails" in done.err


def test_worker_patches_before_anything_is_imported(memory_broker, shop):
    job_id = pushed(memory_broker)

    done = worker("shop:patched", "-q", "emails", "--burst", broker=memory_broker, shop=shop)

    assert 0 == done.status, done.err
    assert "Warning" not in done.err
    assert "Result: null" not in bunqueue("job", "result", job_id, broker=memory_broker).out
    assert "Result: false" not in bunqueue("job", "result", job_id, broker=memory_broker).out


def test_worker_stops_after_so_many_jobs(memory_broker, shop):
    for _ in range(3):
        pushed(memory_broker)

    done = worker(
        *("shop:greet", "-q", "emails", "--max-jobs", "2", "-c", "1"),
        broker=memory_broker,
        shop=shop,
    )

    assert 0 == done.status, done.err
    assert "Count: 1\n" == bunqueue("queue", "count", "emails", broker=memory_broker).out


def test_worker_takes_a_factory(memory_broker, shop):
    job_id = pushed(memory_broker, data="1", queue="made")

    done = worker("run", "shop:make", "--burst", "-n", "greeter", broker=memory_broker, shop=shop)

    assert 0 == done.status, done.err
    assert "hello 1" in bunqueue("job", "result", job_id, broker=memory_broker).out


def test_options_win_over_a_worker_that_has_not_started(memory_broker, shop):
    job_id = pushed(memory_broker, data="1", queue="made")
    elsewhere = {"BUNQUEUE_TCP_PORT": str(free_port())}

    done = bunqueue(
        *("worker", "shop:make", "-x", "thread", "-c", "2", "-n", "ann", "--batch-size", "3"),
        *("--poll-timeout", "50", "--max-jobs", "1", "--lock-ttl", "9s", "--heartbeat", "1"),
        *("--grace", "5", "--url", f"bunqueue://{memory_broker.host}:{memory_broker.port}"),
        directory=shop,
        env=elsewhere,
    )

    assert 0 == done.status, done.err
    assert "name=ann" in done.err
    assert "hello 1" in bunqueue("job", "result", job_id, broker=memory_broker).out


def test_a_bunqueue_works_for_the_broker_of_the_command_line_only(memory_broker, shop):
    """Its queue stayed with the module's broker: settings, triggers and aging went there."""
    (shop / "app.py").write_text(
        "from bunqueue import Bunqueue\n"
        f"app = Bunqueue.deferred('apps', port={free_port()}, dlq={{'max_entries': 7}})\n"
        "app.trigger({'on': 'first', 'create': 'second'})\n"
        "app.processor(lambda job: job.name)\n"
    )
    bunqueue("push", "apps", "1", "--name", "first", broker=memory_broker)

    done = bunqueue(
        *("worker", "app:app", "--max-jobs", "2", "-c", "1"),
        *("--url", f"bunqueue://{memory_broker.host}:{memory_broker.port}"),
        directory=shop,
    )

    assert 0 == done.status, done.err
    with Queue("apps", memory_broker.host, memory_broker.port) as queue:
        assert 7 == queue.get_dlq_config()["maxEntries"]
        assert ["first", "second"] == sorted(job.name for job in queue.get_completed())


def test_options_are_refused_by_a_worker_that_has_started(memory_broker, shop):
    done = worker("shop:started", "-c", "2", broker=memory_broker, shop=shop)

    assert (2, "") == (done.status, done.out)
    assert "use autorun=False" in done.err


def test_a_worker_says_that_it_reaches_no_broker(shop):
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "bunqueue", "worker", "shop:greet", "-q", "a", "-p", str(port)],
        cwd=shop,
        env=clean_environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            lines = iter(process.stderr.readline, "")
            assert any(f"no broker reached at localhost:{port}" in line for line in lines)
        finally:
            process.kill()


def test_a_queue_is_refused_where_no_handler_wants_it(memory_broker, shop):
    done = worker("shop:make", "-q", "emails", broker=memory_broker, shop=shop)

    assert 2 == done.status
    assert "-q is for handlers" in done.err


@pytest.mark.parametrize("executor", ["greenlet", "thread"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_finishes_its_jobs_on_a_signal(memory_broker, shop, executor, number):
    job_id = pushed(memory_broker, data="0.5")
    status, log = stopped_worker(
        *("shop:slow", "-q", "emails", "-x", executor),
        number=number,
        broker=memory_broker,
        shop=shop,
    )

    assert 0 == status, log
    assert 'Result: "slept"\n' == bunqueue("job", "result", job_id, broker=memory_broker).out


@pytest.mark.parametrize("executor", ["greenlet", "thread"])
def test_worker_gives_its_jobs_back_when_the_grace_is_over(memory_broker, shop, executor):
    job_id = pushed(memory_broker, data="30")
    status, log = stopped_worker(
        *("shop:slow", "-q", "emails", "-x", executor, "--grace", "0.2"),
        number=signal.SIGTERM,
        broker=memory_broker,
        shop=shop,
    )

    assert 3 == status, log
    assert "State: waiting\n" == bunqueue("job", "state", job_id, broker=memory_broker).out


@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        (("shop:greet",), 2, "name its queues with -q"),
        (("shop", "-q", "a"), 2, "form module:attr"),
        (("shop:HANDLERS", "-q", "a"), 1, "shop has no HANDLERS"),
        (("nowhere:greet", "-q", "a"), 1, "cannot import nowhere"),
        (("broken:greet", "-q", "a"), 1, "cannot import broken: ZeroDivisionError"),
        (("shop:os", "-q", "a"), 2, "not a worker or a handler"),
        (("shop:greet", "-q", "a", "-x", "fast"), 2, "executor must be one of"),
        (("shop:greet", "-q", "a", "-c", "0"), 2, "concurrency must be >= 1"),
        (("shop:greet", "-q", "a", "--log-level", "loud"), 2, "log level"),
    ],
)
def test_a_worker_that_cannot_run_says_why(shop, args, status, text):
    done = bunqueue("worker", *args, directory=shop)

    assert status == done.status, done.err
    assert text in done.err
    assert "bunqueue/cli" not in done.err


def test_a_worker_whose_token_is_refused_is_exit_1(tmp_path, shop):
    with BrokerProcess(tmp_path, env={"AUTH_TOKENS": "secret"}) as broker:
        done = worker("shop:greet", "-q", "a", "-t", "wrong", broker=broker, shop=shop)

    assert 1 == done.status, done.err
    assert os.linesep in done.err


def test_a_reader_that_has_gone_is_no_error():
    with subprocess.Popen(
        [sys.executable, "-m", "bunqueue", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    ) as running:
        running.stdout.close()

        assert b"" == running.stderr.read()
        assert 0 == running.wait(RUN_S_MAX)


def test_what_others_wrote_moves_no_cursor(memory_broker):
    job_id = pushed(memory_broker, "--name", "a\x1b[2Jb")
    bunqueue("job", "log", job_id, "c\rd", broker=memory_broker)

    got = bunqueue("job", "get", job_id, broker=memory_broker)
    logs = bunqueue("job", "logs", job_id, broker=memory_broker)

    assert r"a\x1b[2Jb" in got.out
    assert r"c\rd" in logs.out
