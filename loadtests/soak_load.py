"""What the soak of the client does in a round.

Written with the standard names, so that a patched process does it all with greenlets. What may go
wrong while links are cut and brokers die is an error of the client's own; it is counted. Anything
else ends the soak.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from bunqueue import (
    Bunqueue,
    BunqueueError,
    FlowProducer,
    Job,
    Queue,
    QueueEvents,
    SandboxedWorker,
    Worker,
)
from bunqueue.client import worlds
from loadtests.servers import Server

QUEUE = "soak"
FORCED_QUEUE = "soak-forced"
CALLERS, ADDS = 16, 10
NATIVE_CALLERS = 4
COMMAND_TIMEOUT_S = 5.0
TIMEOUTS = 3  # so many in a row end a link
SHORT_S = 0.02
REST_S_MAX = 60.0
NEVER_MS = 3_600_000
SANDBOX_EVERY = 10  # rounds: a child is an interpreter of its own


class Interrupted(Exception):
    """What a signal handler raises in the middle of a call."""


class Load:
    """The long-lived objects, and the rounds.

    Attributes:
        counts: How often each thing was done.
    """

    def __init__(self, host: str, port: int) -> None:
        self.counts: Counter[str] = Counter()
        self._host, self._port = host, port
        self._lock = worlds.native().lock()  # native threads take it too; nothing waits inside
        self._address: dict[str, Any] = {
            "host": host,
            "port": port,
            "command_timeout": COMMAND_TIMEOUT_S,
        }
        self._is_patched = worlds.is_patched()
        self._queue = Queue(
            QUEUE, **self._address, pool_size=2, max_in_flight=8, max_command_timeouts=TIMEOUTS
        )
        self._worker = Worker(
            QUEUE, self._handle, **self._address, concurrency=8, heartbeat_interval_s=0.5
        )
        self._worker.on("error", lambda _error: self._count("worker errors"))

    def round(self) -> None:
        """Do everything once."""
        self._produce()
        for what in (
            self._pass_deadlines,
            self._interrupt,
            self._cancel,
            self._close_by_force,
            self._listen,
            self._flow,
            self._simple,
            self._forward,
            self._sandbox,
            self._cut_links,
        ):
            with self._forgiven():
                what()
        self._count("rounds")

    def outage(self, server: Server) -> None:
        """Kill the broker while callers call, and start it again."""
        callers = [threading.Thread(target=self._add_some) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        server.kill()
        for caller in callers:
            caller.join()
        server.start()
        self._count("outages")

    def rest(self) -> None:
        """Wait until nothing is under way any more, and leave the broker empty."""
        deadline = time.monotonic() + REST_S_MAX
        while True:
            with self._forgiven():
                self._queue.obliterate()
                self._forced().obliterate()
                if not self._worker.stats()["active"]:
                    break
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rest after {REST_S_MAX} s: {self._worker.stats()}")
            time.sleep(SHORT_S)

    def missed(self) -> list[str]:
        """Say what a soak of any length should have done and has not."""
        wanted = (
            "added", "handled", "outages", "timeouts", "interrupted", "cancelled", "outlived",
            "forced", "events", "flows", "apps", "forwarded",
            "children killed", "cuts",
        )  # fmt: skip
        return [f"{what}: never" for what in wanted if not self.counts[what]]

    def close(self) -> None:
        """Leave."""
        self._worker.close(5, force=True)
        self._queue.close()

    # -- what is done -------------------------------------------------------------------------

    def _handle(self, job: Job[Any]) -> Any:
        self._count("handled")
        if job.name == "long":
            job.signal.wait(COMMAND_TIMEOUT_S)
            self._count("outlived" if job.signal.reason == "timeout" else "called off")
            job.raise_if_cancelled()
        if job.name == "bad":
            raise RuntimeError("as wanted")
        job.update_progress(50)
        return {"n": job.data}

    def _produce(self) -> None:
        """Add from threads that end at once, and from native ones in a patched process."""
        callers = [threading.Thread(target=self._add_some) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        natives = [
            worlds.native().spawn(self._add_some, "soak-native")
            for _ in range(NATIVE_CALLERS if self._is_patched else 0)
        ]
        for caller in (*callers, *natives):
            caller.join()

    def _add_some(self) -> None:
        for number in range(ADDS):
            with self._forgiven():
                self._queue.add("bad" if number == 0 else "good", number, attempts=1)
                self._count("added")

    def _pass_deadlines(self) -> None:
        """Let commands time out until the link is given up, and jobs outlive their time."""
        self._queue.add("long", timeout=50, attempts=1)
        asked = self._queue.add("never", delay=NEVER_MS)
        command = {"cmd": "WaitJob", "id": asked.id, "timeout": 1_000}
        for _ in range(2 * TIMEOUTS):
            try:
                self._queue.connection.call(command, timeout=SHORT_S)
            except BunqueueError:
                self._count("timeouts")
        self._queue.remove(asked.id)

    def _interrupt(self) -> None:
        """Break into callers in the middle of a call."""
        asked = self._queue.add("never", delay=NEVER_MS)
        ask = lambda: self._queue.wait_for_job(asked.id, 10_000)  # noqa: E731
        if self._is_patched:
            self._kill_greenlets(ask)
        else:
            self._raise_in(ask)
        self._queue.remove(asked.id)

    def _kill_greenlets(self, ask: Callable[[], object]) -> None:
        import gevent

        with gevent.Timeout(SHORT_S, False):
            ask()
        killed = [gevent.spawn(ask) for _ in range(CALLERS)]
        adding = [gevent.spawn(self._queue.add, "good", 0) for _ in range(CALLERS)]
        gevent.sleep(SHORT_S)
        gevent.killall([*killed, *adding])
        self._count("interrupted", 1 + len(killed))

    def _raise_in(self, ask: Callable[[], object]) -> None:
        def raise_interrupted(_number: int, _frame: object) -> None:
            raise Interrupted

        before = signal.signal(signal.SIGALRM, raise_interrupted)
        try:
            signal.setitimer(signal.ITIMER_REAL, SHORT_S)
            ask()
        except Interrupted:
            self._count("interrupted")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _cancel(self) -> None:
        """Call a running job off."""
        job = self._queue.add("long", attempts=1)
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while not self._worker.cancel_job(job.id, "enough") and time.monotonic() < deadline:
            time.sleep(0.005)
        self._count("cancelled", self._worker.is_job_cancelled(job.id))

    def _close_by_force(self) -> None:
        """Close a worker by force while its handlers run, listening or deaf."""
        queue = self._forced()
        begun = threading.Semaphore(0)

        def handle(job: Job[Any]) -> None:
            begun.release()
            if job.name == "deaf":
                time.sleep(10 * SHORT_S)
            job.signal.wait(COMMAND_TIMEOUT_S)

        worker = Worker(FORCED_QUEUE, handle, **self._address, heartbeat_interval_s=0.1)
        worker.on("error", lambda _error: self._count("worker errors"))
        try:
            queue.add_bulk([{"name": name} for name in ("deaf", "listening", "deaf", "listening")])
            for _ in range(4):
                begun.acquire(timeout=COMMAND_TIMEOUT_S)
        finally:
            worker.close(COMMAND_TIMEOUT_S, force=True)
        self._count("forced")

    def _listen(self) -> None:
        """Hear of a job by an event, then listen no more."""
        with Queue("soak-heard", **self._address) as queue:
            with QueueEvents("soak-heard", host=self._host, port=self._port) as events:
                events.on("waiting", lambda *_: self._count("events"))
                events.wait_until_ready(COMMAND_TIMEOUT_S)
                job = queue.add("x")
                with contextlib.suppress(BunqueueError):
                    queue.wait_for_job(job.id, 50, queue_events=events)
            queue.obliterate()

    def _flow(self) -> None:
        with FlowProducer(**self._address) as flows:
            flows.add({"name": "parent", "queueName": QUEUE, "children": [
                {"name": "good", "queueName": QUEUE, "data": {"n": n}} for n in range(3)
            ]})  # fmt: skip
        self._count("flows")

    def _simple(self) -> None:
        app = Bunqueue("soak-app", processor=lambda job: job.data, **self._address)
        try:
            assert app.queue.wait_for_job(app.add("x", {"n": 7}).id, COMMAND_TIMEOUT_S * 1000) == {
                "n": 7
            }
            self._count("apps")
            app.queue.obliterate()
        finally:
            app.close(force=True)

    def _forward(self) -> None:
        """Hand jobs of an embedded queue over to the broker."""
        done = threading.Semaphore(0)
        with Queue("soak-edge", embedded=True) as edge:
            # The engine is part of this process: what it keeps on purpose would look like a leak.
            job = {"name": "x", "remove_on_complete": True}
            edge.add_bulk([{**job, "data": {"n": number}} for number in range(3)])
            forwarder = edge.forward({"host": self._host, "port": self._port}, queue=QUEUE)
            forwarder.on("forwarded", lambda _info: done.release())
            try:
                for _ in range(3):
                    self._count("forwarded", done.acquire(timeout=COMMAND_TIMEOUT_S))
            finally:
                forwarder.close(COMMAND_TIMEOUT_S)
            edge.obliterate()

    def _sandbox(self) -> None:
        """Kill a child in the middle of its job."""
        if self.counts["rounds"] % SANDBOX_EVERY:
            return
        begun = threading.Semaphore(0)
        with Queue("soak-sandbox", **self._address) as queue:
            worker = SandboxedWorker(
                "soak-sandbox", processor="loadtests.soak_child:work", **self._address
            )
            worker.on("active", lambda job: begun.release() if job.name == "hang" else None)
            worker.on("error", lambda _error: self._count("worker errors"))
            worker.start()
            try:
                queue.add("x")
                queue.add("hang")
                self._count("children killed", begun.acquire(timeout=REST_S_MAX))
            finally:
                worker.close(COMMAND_TIMEOUT_S, force=True)
            queue.obliterate()

    def _cut_links(self) -> None:
        """End the links in use as a network does, under a long poll and an ordinary call."""
        for connection in (self._queue.connection, self._worker.connection):
            sock = connection._sock
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                self._count("cuts")

    # -- small things -------------------------------------------------------------------------

    def _forced(self) -> Queue:
        return Queue(FORCED_QUEUE, connection=self._queue.connection)

    def _count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    @contextlib.contextmanager
    def _forgiven(self) -> Iterator[None]:
        """Count errors of the client; fail-fast ones wait a little, as any caller should."""
        try:
            yield
        except BunqueueError:
            self._count("errors")
            worlds.current().sleep(SHORT_S)
