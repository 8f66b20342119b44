"""Flows keep their promises however often the broker is killed.

Producers push whole trees with PUSHF, each node with a fate and a policy drawn from a seed; workers
do what the fate says; meanwhile the broker is killed with SIGKILL at random moments. What must
become of every job follows from the fates alone, and is compared with what the broker says after
one more kill:

- A flow is there as a whole, or was never confirmed and is pushed again; nothing of it is lost.
- A parent whose children have done their part is completed; one that they have failed is a dead
  letter, once; one that waits for a failed child without a policy still waits. Nothing is stuck.
- No parent is handed out before its children let it go, nor parked again after it was let go, and
  none is completed or confirmed twice.

``BUNQUEUE_TEST_SEED`` repeats a run, ``BUNQUEUE_TEST_FLOW_KILLS`` makes it longer (50: minutes).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.system.kill.wire import Link, Lost, Message

pytestmark = pytest.mark.slow

SEED = os.environ.get("BUNQUEUE_TEST_SEED", "3")
KILLS = int(os.environ.get("BUNQUEUE_TEST_FLOW_KILLS", "4"))
FLOWS = 12 * KILLS
WIDE = 40  # children of the parent of every tenth flow
WORKERS = 3
PAUSE_S = (0.2, 0.8)  # between the return of the broker and its next kill
SETTLED_S_MAX = 60.0
POLL_MS = 100
BATCH = 200
QUEUES = ("roots", "parents", "leaves")

FAIL, CONTINUE = "failParentOnFailure", "continueParentOnFailure"
IGNORE, REMOVE = "ignoreDependencyOnFailure", "removeDependencyOnFailure"
POLICIES = (FAIL, CONTINUE, IGNORE, REMOVE, None)

# A death of the broker charges an attempt; no job is to give up for that.
PATIENT = {"maxAttempts": 1_000, "backoff": {"type": "fixed", "delay": 10}}


@dataclass
class Node:
    """One job of a flow, and what must become of it.

    Attributes:
        policy: What its failure does to its parent.
        fails: Its worker fails it for good.
    """

    id: str
    queue: str
    policy: str | None
    fails: bool
    children: list[Node] = field(default_factory=list)

    def ends(self) -> str:
        """Return the state in which it must be at last."""
        ends = [(child.ends(), child.policy) for child in self.children]
        if ("failed", FAIL) in ends:
            return "failed"
        is_waiting = ("failed", None) in ends or "waiting-children" in dict(ends)
        if is_waiting and ("failed", CONTINUE) not in ends:
            return "waiting-children"
        return "failed" if self.fails else "completed"

    def nodes(self) -> Iterator[Node]:
        """Yield it and all below it."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def planned(self, parent: Node | None = None) -> Iterator[Message]:
        """Yield the entries of a PUSHF, children first."""
        for child in self.children:
            yield from child.planned(self)
        data: dict[str, Any] = {"fails": self.fails}
        own: dict[str, Any] = {"name": "n", "data": data, **PATIENT}
        if self.policy is not None:
            own[self.policy] = True
        if parent is not None:
            data |= {"__parentId": parent.id, "__parentQueue": parent.queue}
            own["parentId"] = parent.id
        if self.children:
            ids = [child.id for child in self.children]
            data["__childrenIds"] = ids
            own |= {"childrenIds": ids, "dependsOn": ids}
        yield {"id": self.id, "queue": self.queue, "input": own}


def drawn(number: int, rng: random.Random) -> Node:
    """Draw a flow: a root, its parents, their leaves; children of one parent share a policy.

    Of several policies at one parent, the first failure that is applied would decide.
    """
    name = f"f{number}"
    if number % 10 == 0:
        return _parent(name, "roots", None, WIDE, rng)
    policy = rng.choice(POLICIES)
    root = Node(name, "roots", None, False)
    for place in range(rng.randint(1, 3)):
        parent = _parent(f"{name}-{place}", "parents", policy, rng.randint(1, 4), rng)
        root.children.append(parent)
    return root


def _parent(name: str, queue: str, policy: str | None, count: int, rng: random.Random) -> Node:
    of_leaves = rng.choice(POLICIES)
    # Without a policy a failure holds the whole flow up: rarely, or nothing is seen but that.
    share = 0.05 if of_leaves is None else 0.3
    leaves = [
        Node(f"{name}-{leaf}", "leaves", of_leaves, rng.random() < share) for leaf in range(count)
    ]
    return Node(name, queue, policy, policy is not None and rng.random() < 0.1, leaves)


class Stage:
    """Who takes part, and what they know for certain.

    Attributes:
        by_id: Every node of every flow.
        pushed: Ids of flows that the broker has confirmed.
        confirmed: Outcomes that it has confirmed, by job.
        early: Parents that were handed out too early.
    """

    def __init__(self, broker: BrokerProcess, flows: list[Node]) -> None:
        self.broker = broker
        self.flows = flows
        self.by_id = {node.id: node for flow in flows for node in flow.nodes()}
        self.pushed: list[str] = []
        self.confirmed: Counter[str] = Counter()
        self.early: list[str] = []
        self.is_over = threading.Event()

    def produce(self) -> None:
        """Push every flow until it is confirmed, at a pace that lasts for all kills."""
        with Link(self.broker.port) as link:
            for flow in self.flows:
                jobs = list(flow.planned())
                while not self.is_over.is_set():
                    try:
                        answer = link.call({"cmd": "PUSHF", "jobs": jobs})
                    except Lost:
                        continue
                    # Where the answer to the first try was lost, the whole of it may be there.
                    taken = str(answer.get("error", "")).endswith("already exists")
                    assert answer["ok"] or taken, answer
                    break
                self.pushed.append(flow.id)
                self.is_over.wait(KILLS * sum(PAUSE_S) / 2 / len(self.flows))

    def work(self, number: int) -> None:
        """Do what the fates say, in all queues, until all is over."""
        turn = number
        with Link(self.broker.port) as link:
            while not self.is_over.is_set():
                turn += 1
                try:
                    self._one_turn(link, QUEUES[turn % len(QUEUES)], f"w{number}")
                except Lost:
                    continue

    def _one_turn(self, link: Link, queue: str, owner: str) -> None:
        pull = {"cmd": "PULLB", "queue": queue, "count": 10, "timeout": POLL_MS, "owner": owner}
        answer = link.call(pull)
        assert answer["ok"], answer
        for job, token in zip(answer["jobs"], answer["tokens"], strict=True):
            node = self.by_id[job["id"]]
            if not self._may_run(link, node):
                self.early.append(node.id)
            outcome = {"cmd": "ACK", "id": node.id, "token": token, "result": node.id}
            if node.fails:
                outcome |= {"cmd": "FAIL", "error": "fate", "unrecoverable": True}
            if link.call(outcome)["ok"]:
                self.confirmed[node.id] += 1

    def _may_run(self, link: Link, node: Node) -> bool:
        """Say whether the children of a job that was handed out have let it go."""
        requests = [{"cmd": "GetState", "id": child.id} for child in node.children]
        states = {index: answer["state"] for index, answer in link.exchange(requests)}
        if any(child.policy == CONTINUE for child in node.children) and "failed" in states.values():
            return True
        return all(state in ("completed", "failed") for state in states.values())

    def kill(self, rng: random.Random) -> None:
        """Kill the broker now and then, and start it again at once."""
        for _ in range(KILLS):
            time.sleep(rng.uniform(*PAUSE_S))
            self.broker.restart()

    def states(self) -> dict[str, str]:
        """Return the state of every job."""
        found: dict[str, str] = {}
        ids = list(self.by_id)
        with Link(self.broker.port) as link:
            for begin in range(0, len(ids), BATCH):
                part = ids[begin : begin + BATCH]
                requests = [{"cmd": "GetState", "id": job_id} for job_id in part]
                for index, answer in link.exchange(requests):
                    found[part[index]] = answer["state"]
        return found

    def timelines(self) -> dict[str, list[str]]:
        """Return the states through which every job has gone."""
        found: dict[str, list[str]] = {}
        with Link(self.broker.port) as link:
            for job_id in self.by_id:
                job = link.call({"cmd": "GetJob", "id": job_id})["job"]
                found[job_id] = [moment["state"] for moment in job["timeline"] or ()]
        return found


def in_background(action: Callable[..., None], *arguments: object) -> Future[None]:
    """Run an action in a thread of its own; the future has what it raised."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            action(*arguments)
        except BaseException as error:  # the test's own thread raises it again
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run).start()
    return future


def play(stage: Stage, rng: random.Random, expected: dict[str, str]) -> None:
    """Let everybody work through all kills, and on until every job is where it belongs."""
    with Link(stage.broker.port) as link:
        for queue in QUEUES:
            config = {"maxStalls": 1_000}
            assert link.call({"cmd": "SetStallConfig", "queue": queue, "config": config})["ok"]
    parts = [in_background(stage.produce)]
    parts += [in_background(stage.work, number) for number in range(WORKERS)]
    try:
        stage.kill(rng)
        deadline = time.monotonic() + SETTLED_S_MAX
        while (states := stage.states()) != expected and time.monotonic() < deadline:
            for part in parts:
                if part.done():
                    part.result()
            time.sleep(0.1)
        assert {} == {
            job_id: (state, states[job_id])
            for job_id, state in expected.items()
            if state != states[job_id]
        }
    finally:
        stage.is_over.set()
        for part in parts:
            part.exception(timeout=SETTLED_S_MAX)
    for part in parts:
        part.result()


def test_flows_under_kills_lose_nothing_and_let_each_parent_go_once(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    flows = [drawn(number, rng) for number in range(FLOWS)]
    expected = {node.id: node.ends() for flow in flows for node in flow.nodes()}
    with BrokerProcess(tmp_path, data_path=tmp_path / "flows.db") as broker:
        stage = Stage(broker, flows)
        play(stage, rng, expected)
        broker.restart()
        states, timelines = stage.states(), stage.timelines()

    print(f"seed {SEED}: {len(flows)} flows, {Counter(states.values())}")
    assert [flow.id for flow in flows] == stage.pushed
    assert expected == states
    assert [] == stage.early
    assert {} == {job_id: times for job_id, times in stage.confirmed.items() if times > 1}
    for job_id, moments in timelines.items():
        assert moments.count("completed") == (expected[job_id] == "completed"), (job_id, moments)
        is_parent = bool(stage.by_id[job_id].children)
        parked = [place for place, state in enumerate(moments) if state == "waiting-children"]
        assert parked == ([0] if is_parent else []), (job_id, moments)
