"""A random history: commands, kills, stops, lost links, hours that go by, held to the oracle.

Queues ``a`` and ``b`` of a history share a shard, ``c`` has another. Delays, leases and backoffs
are an hour or none, and the clock moves by two: what is due is never a matter of milliseconds.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from bunqueue.engine.engine import _fnv1a
from tests.model import kills
from tests.model.checks import checks
from tests.model.episodes import EPISODES, Episode
from tests.model.oracle import HOUR_MS, LOSS_WINDOW_S, Job, Oracle
from tests.model.world import KILL, World

assert kills  # its stories are among the others

SHARDS: Final = 64
STEP_MS: Final = 2 * HOUR_MS
LONG_MS: Final = 2_000 * HOUR_MS  # no lease of this span ends in a history
PLACES: Final = ("queued", "active", "completed", "failed")
STATES: Final = ("waiting", "prioritized", "delayed", "active", "completed", "failed")

WORLD: list[World] = []  # the broker that histories share until one of them finds something

queues = st.integers(0, 2)
choices = st.integers(0, 30)
links = st.integers(0, 1)
options = st.fixed_dictionaries(
    {
        "priority": st.sampled_from((0, 0, 0, 1, 5, -3)),
        "lifo": st.sampled_from((False, False, True)),
        "delay": st.sampled_from((0, 0, 0, HOUR_MS)),
        "maxAttempts": st.sampled_from((3, 2, 1)),
        "backoff": st.sampled_from((0, HOUR_MS)),
        "removeOnComplete": st.booleans(),
        "removeOnFail": st.sampled_from((False, False, True)),
    }
)


def the_world(patience: float = 1.0) -> World:
    """Return the shared broker, started when there is none."""
    if not WORLD:
        WORLD.append(World(patience))
    return WORLD[0]


def forget_world() -> None:
    """End the shared broker: the next history has one of its own."""
    while WORLD:
        WORLD.pop().close()


class Histories(RuleBasedStateMachine):
    """One history.

    Attributes:
        patience: Multiplies all bounds on time, for a machine that is busy with other things.
    """

    patience = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.world = the_world(self.patience)
        self.oracle = Oracle(loss_window_s=LOSS_WINDOW_S * self.patience)
        self.is_sound = False
        self.world.counts["histories"] += 1

    @initialize(jobs=st.lists(options, min_size=2, max_size=8))
    def start(self, jobs: list[dict[str, Any]]) -> None:
        """Name the queues, switch off what needs silence to be measured, push the first jobs."""
        first = self.world.name("a")
        names = (self.world.name("q") for _ in itertools.count())
        beside = next(n for n in names if _fnv1a(n) % SHARDS == _fnv1a(first) % SHARDS)
        apart = next(n for n in names if _fnv1a(n) % SHARDS != _fnv1a(first) % SHARDS)
        self.queues = (first, beside, apart)
        for queue in self.queues:
            self.world.ok("SetStallConfig", queue=queue, config={"enabled": False})
        self.is_sound = True
        for number, given in enumerate(jobs):
            self._push(number % 3, self.world.name("j"), given, durable=number % 2 == 0)

    # --- getting in ---

    @rule(at=queues, given=options, durable=st.booleans())
    def push(self, at: int, given: dict[str, Any], durable: bool) -> None:
        self._push(at, self.world.name("j"), given, durable)

    @rule(at=queues, which=choices, given=options)
    @checks("I25", "I26")
    def push_again(self, at: int, which: int, given: dict[str, Any]) -> None:
        """The id of a job that lives is answered; that of one that ended begins anew."""
        job = self._any(which, *PLACES)
        if job is None:
            return
        if job.place in ("queued", "active"):
            answer = self.world.ok("PUSH", queue=self.queues[at], jobId=job.id, data="other")
            assert job.id == answer["id"]
        else:
            self._push(at, job.id, given, durable=True)
            assert self.world.call("GetResult", id=job.id).get("result") is None
        self._verify(self.oracle.jobs[job.id])

    @rule(at=queues, many=st.lists(options, min_size=1, max_size=4))
    @checks("I46")
    def push_many(self, at: int, many: list[dict[str, Any]]) -> None:
        ids = [self.world.name("m") for _ in many]
        low = self.world.now()
        jobs = [
            self._request(given) | {"customId": job_id}
            for job_id, given in zip(ids, many, strict=True)
        ]
        answer = self.world.ok("PUSHB", queue=self.queues[at], jobs=jobs)
        assert ids == answer["ids"]
        for job_id, given in zip(ids, many, strict=True):
            self._admit(at, job_id, given, durable=False, low=low)

    # --- being worked ---

    @rule(at=queues, link=links, has_long_lease=st.booleans())
    @checks("I4", "I5", "I8", "I14", "I15", "I16", "I17", "I24")
    def pull(self, at: int, link: int, has_long_lease: bool) -> None:
        """A puller gets the first in order, and only what is ready."""
        queue, now = self.queues[at], self.world.now()
        expected = self.oracle.next(queue, now)
        span = LONG_MS if has_long_lease else HOUR_MS
        answer = self.world.ok("PULL", link, queue=queue, owner="w", lockTtl=span)
        found = answer["job"]
        assert (expected and expected.id) == (found and found["id"])
        if expected is None:
            return
        self.oracle.pulled(expected, answer["token"], link, span, now)
        assert expected.deliveries <= expected.max_attempts + expected.uncharged
        self._verify(expected)

    @rule(at=queues, count=st.integers(1, 4))
    @checks("I5", "I14", "I46")
    def pull_many(self, at: int, count: int) -> None:
        queue, now = self.queues[at], self.world.now()
        answer = self.world.ok("PULLB", queue=queue, owner="w", lockTtl=LONG_MS, count=count)
        assert len(answer["jobs"]) == len(answer["tokens"])
        for found, token in zip(answer["jobs"], answer["tokens"], strict=True):
            expected = self.oracle.next(queue, now)
            assert expected is not None
            assert expected.id == found["id"]
            self.oracle.pulled(expected, token, 0, LONG_MS, now)
        assert len(answer["jobs"]) == count or self.oracle.next(queue, now) is None

    @rule(which=choices, result=st.integers(0, 9))
    @checks("I6")
    def ack(self, which: int, result: int) -> None:
        job = self._any(which, "active")
        if job is not None:
            self.world.ok("ACK", id=job.id, token=job.token, result=result)
            self.oracle.completed(job, result)
            self._verify_id(job.id)

    @rule(which=choices)
    @checks("I46")
    def ack_many(self, which: int) -> None:
        jobs = self._all("active")[: which % 3 + 1]
        if jobs:
            ids, tokens = [job.id for job in jobs], [job.token for job in jobs]
            self.world.ok("ACKB", ids=ids, tokens=tokens, results=ids)
            for job in jobs:
                self.oracle.completed(job, job.id)
                self._verify_id(job.id)

    @rule(which=choices, is_final=st.sampled_from((False, False, True)))
    @checks("I7", "I9")
    def fail(self, which: int, is_final: bool) -> None:
        job = self._any(which, "active")
        if job is not None:
            low = self.world.now()
            answer = self.world.ok("FAIL", id=job.id, token=job.token, unrecoverable=is_final)
            assert answer["ok"]
            self.oracle.charged(job, (low, self.world.now()), is_final=is_final)
            self._verify_id(job.id)

    @rule(which=choices, cmd=st.sampled_from(("ACK", "FAIL")))
    @checks("I12", "I48")
    def end_with_a_wrong_token(self, which: int, cmd: str) -> None:
        job = self._any(which, "active")
        if job is not None:
            answer = self.world.call(cmd, id=job.id, token="made up")
            assert f"Invalid or expired lock token for job {job.id}" == answer["error"]
            answer = self.world.call(cmd, id=job.id)
            assert f"Lock token required for job {job.id}" == answer["error"]
            self._verify(job)

    @rule(which=choices)
    @checks("I38")
    def ack_late(self, which: int) -> None:
        """Work that was done when the broker died is not done again."""
        lost = [job for job in self._all("queued") if job.lost_token]
        if lost:
            job = lost[which % len(lost)]
            self.world.ok("ACK", id=job.id, token=job.lost_token, result="late")
            self.oracle.completed(job, "late")
            self._verify_id(job.id)

    @rule(which=choices, cmd=st.sampled_from(("JobHeartbeat", "ExtendLock")))
    def renew(self, which: int, cmd: str) -> None:
        job = self._any(which, "active")
        if job is not None:
            self.world.ok(cmd, id=job.id, token=job.token, duration=LONG_MS)
            job.is_renewed, job.lease_ms = True, LONG_MS
            self._verify(job)

    @rule(which=choices, progress=st.integers(0, 100))
    @checks("I41")
    def progress(self, which: int, progress: int) -> None:
        job = self._any(which, "active")
        if job is not None:
            self.world.ok("Progress", id=job.id, progress=progress)
            job.progress = progress
            self._verify(job)

    # --- being changed ---

    @rule(which=choices, data=st.integers())
    @checks("I41")
    def update(self, which: int, data: int) -> None:
        job = self._any(which, "queued", "active")
        if job is not None:
            data %= 2**31
            self.world.ok("Update", id=job.id, data={"v": data})
            job.data, job.plain_at = {"v": data}, None
            self._verify(job)

    @rule(which=choices, priority=st.integers(-3, 6), lifo=st.sampled_from((None, True, False)))
    @checks("I41")
    def change_priority(self, which: int, priority: int, lifo: bool | None) -> None:
        job = self._any(which, "queued")
        if job is not None:
            more = {} if lifo is None else {"lifo": lifo}
            self.world.ok("ChangePriority", id=job.id, priority=priority, **more)
            job.priority, job.plain_at = priority, None
            job.lifo = job.lifo if lifo is None else lifo
            self._verify(job)

    @rule(which=choices, delay=st.sampled_from((0, HOUR_MS)))
    @checks("I41")
    def move_to_delayed(self, which: int, delay: int) -> None:
        job = self._any(which, "active")
        if job is not None:
            low = self.world.now()
            self.world.ok("MoveToDelayed", id=job.id, token=job.token, delay=delay)
            self.oracle.released(job)
            self._moved(job, low, delay)

    @rule(which=choices)
    def move_to_wait(self, which: int) -> None:
        job = self._any(which, "active")
        if job is not None:
            low = self.world.now()
            self.world.ok("MoveToWait", id=job.id, token=job.token)
            self.oracle.released(job)
            self._moved(job, low, 0)

    @rule(which=choices, cmd=st.sampled_from(("Promote", "ChangeDelay")))
    def promote(self, which: int, cmd: str) -> None:
        now = self.world.now()
        delayed = [job for job in self._all("queued") if job.state(now) == "delayed"]
        if delayed:
            job = delayed[which % len(delayed)]
            more = {"delay": 0} if cmd == "ChangeDelay" else {}
            self.world.ok(cmd, id=job.id, **more)
            self._moved(job, now, 0)

    @rule(which=choices, cmd=st.sampled_from(("Cancel", "Discard")))
    @checks("I4")
    def end_unworked(self, which: int, cmd: str) -> None:
        """A discarded job is kept as a dead letter, whatever removeOnFail says of failures."""
        job = self._any(which, "queued")
        if job is not None:
            self.world.ok(cmd, id=job.id)
            if cmd == "Cancel":
                self.oracle.remove(job)
            else:
                job.place, job.lost_token, job.plain_at = "failed", None, None
            self._verify_id(job.id)

    @rule(which=choices)
    @checks("I11")
    def what_is_not_legal_changes_nothing(self, which: int) -> None:
        job = self._any(which, *PLACES)
        if job is None:
            return
        if job.place != "active":
            wrong = [("Progress", {"progress": 7}), ("MoveToWaitingChildren", {})]
            if not job.lost_token:
                wrong += [("ACK", {}), ("FAIL", {})]
        else:
            wrong = [("Cancel", {}), ("ChangePriority", {"priority": 9}), ("Promote", {})]
        for cmd, fields in wrong:
            assert self.world.call(cmd, id=job.id, **fields)["ok"] is False, (cmd, job)
        self._verify(job)

    # --- dead letters and what completed ---

    @rule(which=choices)
    @checks("I35", "I9", "I43")
    def retry_dead(self, which: int) -> None:
        job = self._any(which, "failed")
        if job is not None:
            low = self.world.now()
            assert 1 == self.world.ok("RetryDlq", queue=job.queue, jobId=job.id)["count"]
            job.place, job.attempts, job.stalls = "queued", 0, 0
            job.deliveries = job.uncharged = 0
            self._moved(job, low, 0)

    @rule(which=choices)
    def retry_completed(self, which: int) -> None:
        job = self._any(which, "completed")
        if job is not None:
            low = self.world.now()
            assert 1 == self.world.ok("RetryCompleted", queue=job.queue, id=job.id)["count"]
            job.place, job.attempts, job.progress, job.result = "queued", 0, 0, None
            job.deliveries = job.uncharged = 0
            self._moved(job, low, 0)

    @rule(which=choices)
    @checks("I4")
    def remove_dead(self, which: int) -> None:
        job = self._any(which, "failed")
        if job is not None:
            self.world.ok("RemoveDlqJob", queue=job.queue, jobId=job.id)
            self.oracle.remove(job)
            self._verify_id(job.id)

    # --- queues ---

    @rule(at=queues, is_paused=st.booleans())
    @checks("I24", "I40", "I42")
    def pause(self, at: int, is_paused: bool) -> None:
        queue = self.queues[at]
        self.world.ok("Pause" if is_paused else "Resume", queue=queue)
        (self.oracle.paused.add if is_paused else self.oracle.paused.discard)(queue)
        self.audit()

    @rule(at=queues, cmd=st.sampled_from(("Drain", "PurgeDlq", "Obliterate", "Clean")))
    @checks("I42", "I44")
    def empty(self, at: int, cmd: str) -> None:
        """What goes is what the model says, and nothing in other queues."""
        queue = self.queues[at]
        places = {
            "Drain": ("queued",), "PurgeDlq": ("failed",), "Clean": ("completed",),
            "Obliterate": PLACES,
        }[cmd]  # fmt: skip
        going = self.oracle.of(queue, *places)
        more = {"state": "completed", "grace": -60_000} if cmd == "Clean" else {}
        if cmd == "Clean" and going:
            return  # a completion of this very millisecond is a matter of luck
        answer = self.world.ok(cmd, queue=queue, **more)
        if cmd in ("Drain", "PurgeDlq"):
            assert len(going) == answer["count"]
        for job in going:
            self.oracle.remove(job)
        if cmd == "Obliterate":
            self.oracle.paused.discard(queue)
            self.world.ok("SetStallConfig", queue=queue, config={"enabled": False})
        self.audit()

    # --- what happens to a broker ---

    @rule()
    @checks("I3", "I38", "I39", "I40")
    def kill(self) -> None:
        """SIGKILL: what was at work is charged once; only plain pushes of a moment ago may go.

        What came back in line a moment ago may be at work still, as far as the file knows: what a
        link gave back is charged then, and what was charged is charged again, for the first time.
        """
        just_pushed, just_back = self.oracle.just_pushed(), self.oracle.just_back()
        low = self.world.now()
        self.world.kill()
        high = self.world.now()
        back_at = time.monotonic()
        for job in just_pushed:
            job.plain_at = None
            if self.world.state(job.id) == "unknown":
                self.oracle.remove(job)
        for job in just_back:
            found = self.world.ok("GetJob", id=job.id)["job"]
            if found["attempts"] > job.attempts:
                job.uncharged -= 1
                self.oracle.charged(job, (low, high), is_stall=True)
            elif found["attempts"] and found["runAt"] != job.run_at:
                self.oracle.backed_off(job, (low, high))
        for job in self._all("active"):
            self.oracle.charged(job, (low, high), is_stall=True)
            job.unasked_at = back_at
        self.audit()

    @rule()
    @checks("I3", "I39", "I50")
    def stop(self) -> None:
        """SIGTERM: nothing is lost, and nothing is charged."""
        self.world.stop()
        for job in self._all("active"):
            self.oracle.released(job)
        self.audit()

    @rule(link=links)
    @checks("I39")
    def drop(self, link: int) -> None:
        """A link ends: its deliveries come back uncharged, unless their lease was renewed."""
        self.world.drop(link)
        for job in self._all("active"):
            if job.link == link and not job.is_renewed:
                self.oracle.released(job)
                now = self.world.now()
                self.world.eventually(job.state(now), lambda job=job: self.world.state(job.id))
                job.unasked_at = time.monotonic()

    @rule()
    @checks("I7", "I17")
    def sleep(self) -> None:
        """Two hours go by: delays are over, short leases too."""
        low = self.world.now()
        self.world.sleep(STEP_MS)
        now = self.world.now()
        for job in self._all("active"):
            if job.lease_ms < STEP_MS:
                self.oracle.charged(job, (low, now), is_stall=True, has_backoff=False)
                expected = self._expected(job.id)
                self.world.eventually(expected, lambda job=job: self.world.state(job.id))
                job.unasked_at = time.monotonic()
        for job in self._all("active"):
            job.lease_ms -= STEP_MS
        self.audit()

    @rule(which=st.sampled_from(EPISODES))
    def episode(self, which: Episode) -> None:
        """A short story in a queue of its own; the others do not notice."""
        self.world.counts["episodes"] += 1
        for end in which(self.world) or ():
            (self.kill if end == KILL else self.stop)()

    # --- looking ---

    @rule()
    @checks("I1", "I2", "I10", "I42", "I43", "I47")
    def audit(self) -> None:
        """All that readers are told is what the model says."""
        for reader in ("Stats", "CompactMemory", "Metrics"):
            self.world.ok(reader)
        for job_id in [*self.oracle.jobs, *self.oracle.gone]:
            self._verify_id(job_id)
        assert self.world.get("/health")["ok"] is True
        now = self.world.now()
        for queue in self.queues:
            jobs = self.oracle.of(queue, *PLACES)
            is_paused = queue in self.oracle.paused
            assert is_paused == self.world.ok("IsPaused", queue=queue)["paused"]
            counts = self.world.ok("GetJobCounts", queue=queue)["counts"]
            expected = dict.fromkeys((*STATES, "paused", "waiting-children"), 0)
            for job in jobs:
                state = job.state(now)
                is_held = is_paused and state in ("waiting", "prioritized")
                expected["paused" if is_held else state] += 1
            assert expected == counts
            pending = self.oracle.of(queue, "queued")
            assert len(pending) == self.world.ok("Count", queue=queue)["count"]
            by_priority = self.world.ok("GetCountsPerPriority", queue=queue)["counts"]
            assert len(pending) == sum(by_priority.values())
            listed = self.world.ok("GetJobs", queue=queue, limit=1000)["jobs"]
            assert sorted(job.id for job in jobs) == sorted(job["id"] for job in listed)

    def teardown(self) -> None:
        """Look once more; a broker that showed something wrong is not used again."""
        if not self.is_sound:
            forget_world()
            return
        try:
            self.audit()
            for queue in self.queues:
                self.world.ok("Obliterate", queue=queue)
        except BaseException:
            forget_world()
            raise

    # --- helpers ---

    def _request(self, given: dict[str, Any]) -> dict[str, Any]:
        return given | {"backoff": {"type": "fixed", "delay": given["backoff"]}, "data": {"v": 0}}

    def _push(self, at: int, job_id: str, given: dict[str, Any], durable: bool) -> None:
        low = self.world.now()
        request = self._request(given) | {"jobId": job_id, "durable": durable}
        assert job_id == self.world.ok("PUSH", queue=self.queues[at], **request)["id"]
        self._admit(at, job_id, given, durable, low)

    def _admit(self, at: int, job_id: str, given: dict[str, Any], durable: bool, low: int) -> None:
        delay = given["delay"]
        job = Job(
            job_id, self.queues[at], self.oracle.next_seq(), given["priority"], given["lifo"],
            given["maxAttempts"], given["backoff"], {"v": 0}, given["removeOnComplete"],
            given["removeOnFail"], (low + delay, self.world.now() + delay),
            None if durable else time.monotonic(),
        )  # fmt: skip
        self.oracle.add(job)
        self._verify(job)

    def _moved(self, job: Job, low: int, delay: int) -> None:
        job.lost_token = job.plain_at = None
        self.oracle.moved(job, (low + delay, self.world.now() + delay))
        self._verify(job)

    def _all(self, *places: str) -> list[Job]:
        return [job for job in self.oracle.jobs.values() if job.place in places]

    def _any(self, which: int, *places: str) -> Job | None:
        jobs = self._all(*places)
        return jobs[which % len(jobs)] if jobs else None

    def _expected(self, job_id: str) -> str:
        job = self.oracle.jobs.get(job_id)
        return "unknown" if job is None else job.state(self.world.now())

    def _verify_id(self, job_id: str) -> None:
        job = self.oracle.jobs.get(job_id)
        if job is not None:
            self._verify(job)
            return
        state = self.world.state(job_id)
        assert state in ("unknown", "completed"), state
        assert self.world.call("GetJob", id=job_id)["ok"] is False

    def _verify(self, job: Job) -> None:
        found = self.world.ok("GetJob", id=job.id)["job"]
        if job.run_at is None:
            low, high = job.run_at_bounds
            assert low - 2 <= found["runAt"] <= high + 2, (job, found)
            job.run_at = found["runAt"]
        expected = (
            job.queue, job.state(self.world.now()), job.attempts, job.stalls, job.priority,
            job.lifo, job.data, job.progress,
        )  # fmt: skip
        assert expected == (
            found["queue"], found["state"], found["attempts"], found["stallCount"],
            found["priority"], found["lifo"], found["data"], found["progress"],
        ), (job, found)  # fmt: skip
        if job.place == "queued":
            assert job.run_at == found["runAt"], (job, found)
        assert found["attempts"] <= found["maxAttempts"]
        assert found["state"] == self.world.state(job.id)
