"""A broker that is killed: what its writer was given is in the file, nobody comes in between."""

import os
import select
import signal
import subprocess
import sys
import textwrap

import pytest

from bunqueue.errors import StorageFailed
from bunqueue.storage.loop import PollLoop
from bunqueue.storage.native_thread import twin
from bunqueue.storage.sqlite import SqliteStorage
from tests.support.stores import NamedQueue

pytestmark = pytest.mark.slow

# Writes without end; prints its writer's pid, 0 for a thread, then each number that was sent and
# committed.
BROKER = textwrap.dedent("""
    import sys
    from bunqueue.storage.loop import PollLoop
    from bunqueue.storage.sqlite import SqliteStorage
    from tests.support.stores import make_job
    loop = PollLoop()
    storage = SqliteStorage.open(sys.argv[1], loop, sys.argv[2])
    print(getattr(storage._writer, "pid", 0), flush=True)
    seq = storage.load().seq
    while True:
        for _ in range(50):
            seq += 1
            storage.added(make_job(seq))
        answers = []
        storage.sync(durable=seq % 100 == 0)
        storage.hold(answers.append)
        loop.call_soon(lambda: print("sent", seq, flush=True))
        loop.run_until(lambda: answers)
        print(seq, flush=True)
""")


class Broker:
    """A process that writes to the file until it is killed."""

    def __init__(self, path, writer="process"):
        self.process = subprocess.Popen(
            [sys.executable, "-c", BROKER, path, writer], stdout=subprocess.PIPE, bufsize=0
        )
        self.writer_pid = int(self.process.stdout.readline())
        self.sent = self.committed = 0

    def _read(self, line):
        words = line.split()
        if words[0] == b"sent":
            self.sent = int(words[1])
        else:
            self.committed = int(words[0])

    def run_to(self, seq):
        while self.committed < seq:
            self._read(self.process.stdout.readline())

    def stop_writer(self):
        """Stop its writer, and return once the broker waits for that."""
        os.kill(self.writer_pid, signal.SIGSTOP)
        while self.sent == self.committed or self._tells_more():
            self._read(self.process.stdout.readline())

    def _tells_more(self):
        """Say whether another line comes: the answer to a commit may have been on its way."""
        return bool(select.select([self.process.stdout], [], [], 0.5)[0])

    def kill(self):
        """Kill it, and return the last number that it has told as committed."""
        self.process.kill()
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self._read(line)
        self.process.stdout.close()
        self.process.wait()
        return self.committed


@pytest.fixture(
    params=[
        "process",
        pytest.param("native", marks=pytest.mark.skipif(twin() is None, reason="not compiled")),
    ]
)
def any_broker(request, path):
    broker = Broker(path, request.param)
    yield broker
    if broker.process.poll() is None:
        broker.kill()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "data.db")


@pytest.fixture
def broker(path):
    broker = Broker(path)
    yield broker
    if broker.process.poll() is None:
        broker.kill()


def saved(path, lock_wait_ms=5000):
    """Return what a successor finds: the clean mark and the numbers."""
    storage = SqliteStorage.open(path, PollLoop(), writer="thread", lock_wait_ms=lock_wait_ms)
    found = storage.load()
    seqs = [job.seq for job in found.jobs(NamedQueue)]
    was_clean = found.was_clean
    storage.close()
    return was_clean, seqs


def test_what_a_killed_broker_has_committed_is_there(path, any_broker):
    any_broker.run_to(2000)
    committed = any_broker.kill()
    was_clean, seqs = saved(path)

    assert not was_clean
    assert len(seqs) >= committed
    assert list(range(1, len(seqs) + 1)) == seqs


def test_a_successor_waits_for_the_writer_of_a_killed_broker(path, broker):
    broker.run_to(500)
    broker.stop_writer()
    committed = broker.kill()
    with pytest.raises(StorageFailed, match=f"in use by another process .pid {broker.process.pid}"):
        saved(path, lock_wait_ms=100)
    os.kill(broker.writer_pid, signal.SIGCONT)
    _, seqs = saved(path)

    # What had been sent before the kill is there too, though nobody was told.
    assert len(seqs) > committed


def test_broker_and_writer_killed_at_once_lose_no_committed_job(path, broker):
    broker.run_to(1000)
    os.kill(broker.writer_pid, signal.SIGKILL)
    committed = broker.kill()
    _, seqs = saved(path)

    assert list(range(1, len(seqs) + 1)) == seqs
    assert len(seqs) >= committed


def test_a_file_is_clean_again_after_a_good_end(path, any_broker):
    any_broker.run_to(50)
    any_broker.kill()
    saved(path)

    assert saved(path)[0]
