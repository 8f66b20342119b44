"""Playing one sequence to both servers and comparing what they say.

A step is data, so that a sequence can be printed, kept and made shorter:

    {"peer": "a", "send": {...}, "keep": ["1"]}   a request; the ids it gets are kept by name
    {"peer": "a", "send": {...}, "later": true}   a request whose answer is not awaited
    {"peer": "a", "close": true}                  the peer's connection closes, a new one opens
    {"wait": 60}                                  milliseconds pass

Answers that are not awaited are heard with that to the next request of their peer, before a wait
and at the end, so that requests in a row are pipelined, and a pull waits while another peer acts.
In a request ``$q:a``, ``$c:01`` and ``$n:x`` are a queue, a custom id and any other name of this
run alone; ``$j:1`` is the id or the webhook that was kept as "1"; ``$held:2`` is one of the jobs
that were pulled and not yet acknowledged or failed; ``$sent:id`` is that field of the request
before. As a token ``$token`` is the one the job was last pulled with, ``$stale`` the one before it.
What cannot be resolved becomes a text that nothing is called.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from bunqueue.commands import COMMANDS
from loadtests.differences.likeness import Difference, Normaliser, differences
from loadtests.differences.values import TINY_WAIT_MS, has_tiny_span
from tests.support.wire import frame
from tests.wire.conversation import UNDEFINED
from tests.wire.record import Link

Step = dict[str, Any]
Request = dict[str, Any]

PACE_S = 0.0015  # between two steps, so that no two of them share a millisecond
SETTLE_S = 0.03  # for what a server does after it has answered: events, a closed connection
PARKED_MS = 500  # longer than what other peers do while one waits
DRAIN_COUNT = 200  # more than a sequence can leave in a queue
NOBODY = "nobody"
READER = "reader"
NO_TOKEN = "no-such-token"
STATES = ("waiting", "prioritized", "delayed", "active", "completed", "failed", "waiting-children")

TOTALS = ("totalPushed", "totalPulled", "totalCompleted", "totalFailed")
# Of all queues together; /health shows them too.
FIGURES = ("waiting", "active", "delayed", "completed", "dlq")

_runs = count(1)


@dataclass(frozen=True, slots=True)
class Told:
    """What both servers answered to one request.

    Attributes:
        step: The number of the step, counted from 0; that of the last one for the reads after it.
        request: The request as the sequence has it.
        sent: The request as it was sent to us, normalised.
        theirs, ours: The replies, normalised.
        is_asked: The request comes from the sequence, not from the observer.
        differences: Where they differ.
        at: When both were there, epoch ms.
    """

    step: int
    request: Request
    sent: Request
    theirs: Any
    ours: Any
    is_asked: bool
    differences: tuple[Difference, ...]
    at: float


class Side:
    """One server as one run sees it."""

    def __init__(self, port: int, run: int) -> None:
        self._port = port
        self._run = run
        self._links: dict[str, Link] = {}
        self._early: dict[str, dict[Any, Any]] = {}
        self.kept: dict[str, str] = {}
        self.held: list[str] = []
        self.sent: Request = {}
        self._tokens: dict[str, list[str]] = {}
        self.normalise = Normaliser()
        self.start = time.time() * 1000

    def ask(self, peer: str, step: Step) -> Request:
        """Send a step's request; the answer is read by ``hear``."""
        request: Request = self._filled(step["send"])
        self._fill_tokens(request)
        if "reqId" in step:
            request["reqId"] = step["reqId"]
        if peer != READER:
            self.sent = request
        self._link(peer).send(frame(_plain(request)))
        return request

    def hear(self, peer: str, step: Step, request: Request) -> Any:
        """Waits for the answer to a request, and learns from it. Returns it normalised."""
        reply = self._answer(peer, request.get("reqId"))
        self._learn(step, request, reply)
        return self.normalise(reply)

    def _answer(self, peer: str, req_id: Any) -> Any:
        early = self._early.setdefault(peer, {})
        while req_id not in early:
            value = self._link(peer).value()
            told_id = value.get("reqId")
            early[None if told_id == UNDEFINED else told_id] = value
        return early.pop(req_id)

    def say(self, request: Request) -> Any:
        """Waits for the answer to a request of the reader; returns it as it is."""
        return self._link(READER).call(request)

    def close(self, peer: str) -> None:
        """Close the peer's connection; the next request opens another."""
        link = self._links.pop(peer, None)
        self._early.pop(peer, None)
        if link is not None:
            link.sock.close()

    def end(self) -> None:
        """Close all connections."""
        for peer in list(self._links):
            self.close(peer)

    def heard_events(self, peer: str) -> list[Any]:
        """Waits for what a subscribed connection was told and returns the events, normalised."""
        link = self._link(peer)
        told = []
        value = link.call({"cmd": "Ping", "reqId": "end"})
        while value.get("reqId") != "end":
            told.append(self.normalise(value["event"]))
            value = link.value()
        return told

    def _link(self, peer: str) -> Link:
        if peer not in self._links:
            self._links[peer] = Link(self._port)
        return self._links[peer]

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._filled(key): self._filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._filled(item) for item in value]
        if not isinstance(value, str) or not value.startswith("$"):
            return value
        kind, _, name = value[1:].partition(":")
        if kind == "q":
            return f"d{self._run}.{name}"
        if kind in ("c", "n"):
            return f"d{self._run}-{name}"
        if kind == "j":
            return self.kept.get(name, f"d{self._run}-{NOBODY}-{name}")
        if kind == "sent":
            return self._sent_value(name)
        if kind == "held":
            return self.held[int(name) % len(self.held)] if self.held else NOBODY
        return value

    def _sent_value(self, name: str) -> Any:
        value: Any = self.sent
        for key in name.split(":"):
            value = value[int(key)] if isinstance(value, list) else value.get(key)
        return value

    def _fill_tokens(self, request: Request) -> None:
        if isinstance(request.get("token"), str):
            request["token"] = self._token(request["token"], request.get("id"))
        tokens, ids = request.get("tokens"), request.get("ids")
        if isinstance(tokens, list) and isinstance(ids, list):
            request["tokens"] = [
                self._token(token, ids[number] if number < len(ids) else None)
                for number, token in enumerate(tokens)
            ]

    def _token(self, token: Any, job_id: Any) -> Any:
        if token not in ("$token", "$stale"):
            return token
        known = self._tokens.get(job_id, []) if isinstance(job_id, str) else []
        back = 1 if token == "$token" else 2
        return known[-back] if len(known) >= back else NO_TOKEN

    def _learn(self, step: Step, request: Request, reply: Any) -> None:
        if not reply.get("ok"):
            return
        got = [reply[key] for key in ("id",) if key in reply] + reply.get("ids", [])
        got += [(reply.get("data") or {}).get("webhookId")]
        self.kept.update(zip(step.get("keep", ()), got, strict=False))
        cmd = request["cmd"]
        if cmd in ("PULL", "PULLB"):
            jobs = [reply["job"]] if reply.get("job") else reply.get("jobs", [])
            tokens = [reply.get("token")] if "job" in reply else reply.get("tokens", [])
            for number, job in enumerate(jobs):
                self.held.append(job["id"])
                if number < len(tokens):
                    self._tokens.setdefault(job["id"], []).append(tokens[number])
        elif cmd in ("ACK", "FAIL", "ACKB"):
            done = request.get("ids") if cmd == "ACKB" else [request.get("id")]
            self.held = [job_id for job_id in self.held if job_id not in (done or ())]


class Play:
    """Plays a sequence to both sides; iterate to get what was told, step by step.

    Leave it by ``end`` whatever happens.
    """

    def __init__(self, steps: Sequence[Step], ports: tuple[int, int]) -> None:
        """Args: ports: of the reference, and ours."""
        run = next(_runs)
        self._steps = steps
        self.theirs, self.ours = Side(ports[0], run), Side(ports[1], run)
        self._sides = (self.theirs, self.ours)
        self._step = 0
        self._awaited: list[tuple[int, Step, list[Request]]] = []

    def end(self) -> None:
        """Remove everything the sequence made, on both sides."""
        try:
            for request in self._leftovers():
                self._tell("cleaner", {"send": request}, is_asked=False)
        finally:
            for side in self._sides:
                side.end()

    def __iter__(self) -> Iterator[Told]:
        """Waits for every answer of the sequence and of the reads after it."""
        before = self._totals()
        listeners = {queue: f"listener {queue}" for queue in names_in(self._steps, "$q:")}
        for queue, peer in listeners.items():
            yield self._tell(
                peer, {"send": {"cmd": "SubscribeEvents", "queue": queue}}, is_asked=False
            )
        for number, step in enumerate(self._steps):
            self._step = number
            time.sleep(PACE_S)
            if "wait" in step:
                yield from self._hear_awaited()
                time.sleep(step["wait"] / 1000)
            elif "close" in step:
                self._awaited = [each for each in self._awaited if each[1]["peer"] != step["peer"]]
                for side in self._sides:
                    side.close(step["peer"])
                time.sleep(SETTLE_S)
            elif step.get("later") or any(
                step["peer"] == each["peer"] for _, each, _ in self._awaited
            ):
                step = {**step, "reqId": number}
                self._awaited.append(
                    (number, step, [side.ask(step["peer"], step) for side in self._sides])
                )
                if not step.get("later"):
                    yield from self._hear_awaited(step["peer"])
            else:
                yield self._tell(step["peer"], step, is_asked=True)
                time.sleep(_rest_s(step["send"]))
                for request in reads_after(step["send"]):
                    yield self._tell(READER, {"send": request}, is_asked=False)
        yield from self._hear_awaited()
        for request in self._reads_at_the_end():
            yield self._tell(READER, {"send": request}, is_asked=False)
        yield from self._order_at_the_end(list(listeners))
        pairs = zip(before, self._totals(), strict=True)
        theirs, ours = ({key: new[key] - old[key] for key in new} for old, new in pairs)
        yield self._told({"cmd": "(totals)"}, {}, theirs, ours, is_asked=False)
        time.sleep(SETTLE_S)
        for queue, peer in listeners.items():
            theirs, ours = (_by_job(side.heard_events(peer)) for side in self._sides)
            yield self._told({"cmd": "(events)", "queue": queue}, {}, theirs, ours, is_asked=False)

    def _hear_awaited(self, peer: str | None = None) -> Iterator[Told]:
        """Waits for the answers that were not awaited yet, of one peer or of all."""
        last, awaited = self._step, self._awaited
        self._awaited = [each for each in awaited if peer not in (None, each[1]["peer"])]
        heard = [each for each in awaited if peer in (None, each[1]["peer"])]
        for self._step, step, sent in heard:
            yield self._heard(step["peer"], step, sent, is_asked=True)
        for self._step, step, sent in heard:
            for side, request in zip(self._sides, sent, strict=True):
                side.sent = request
            for request in reads_after(step["send"]):
                yield self._tell(READER, {"send": request}, is_asked=False)
        self._step = last

    def _tell(self, peer: str, step: Step, *, is_asked: bool) -> Told:
        """Waits for both answers to one request; both servers work on it at once."""
        sent = [side.ask(peer, step) for side in self._sides]
        return self._heard(peer, step, sent, is_asked=is_asked)

    def _heard(self, peer: str, step: Step, sent: list[Request], *, is_asked: bool) -> Told:
        theirs, ours = (
            side.hear(peer, step, request) for side, request in zip(self._sides, sent, strict=True)
        )
        told = self.ours.normalise(sent[1])
        return self._told(step["send"], told, theirs, ours, is_asked=is_asked)

    def _told(
        self, request: Request, sent: Request, theirs: Any, ours: Any, *, is_asked: bool
    ) -> Told:
        starts = self.theirs.start, self.ours.start
        found = tuple(differences(theirs, ours, starts))
        return Told(self._step, request, sent, theirs, ours, is_asked, found, time.time() * 1000)

    def _totals(self) -> list[dict[str, int]]:
        """Waits for the figures of both servers, of now and since their start."""
        totals = []
        for side in self._sides:
            metrics = side.say({"cmd": "Metrics"})["metrics"]
            stats = side.say({"cmd": "Stats"})["stats"]
            totals.append(
                {key: metrics[key] for key in TOTALS} | {key: stats[key] for key in FIGURES}
            )
        return totals

    def _reads_at_the_end(self) -> Iterator[Request]:
        for name in [f"$j:{name}" for name in self.ours.kept] + names_in(self._steps, "$c:"):
            for cmd in JOB_READS:
                yield {"cmd": cmd, "id": name}
            yield {"cmd": "GetJobByCustomId", "customId": name}
        for queue in names_in(self._steps, "$q:"):
            for cmd in QUEUE_READS:
                yield {"cmd": cmd, "queue": queue}
            for state in STATES:
                yield {"cmd": "GetJobs", "queue": queue, "state": state, "limit": DRAIN_COUNT}
            for kind in ("completed", "failed"):
                yield {"cmd": "Metrics", "queue": queue, "type": kind}
            for key in found_in(self._steps, "uniqueKey"):
                yield {"cmd": "GetDeduplicationJobId", "queue": queue, "deduplicationId": key}
            for group in found_in(self._steps, "groupId"):
                for cmd in GROUP_READS:
                    yield {"cmd": cmd, "queue": queue, "groupId": group}
        for cmd in ("CronList", "ListWebhooks", "ListWorkers"):
            if any(step.get("send", {}).get("cmd") in MAKERS[cmd] for step in self._steps):
                yield {"cmd": cmd}

    def _order_at_the_end(self, queues: list[str]) -> Iterator[Told]:
        """Pull everything there is."""
        for queue in queues:
            for cmd in ("Resume", "RateLimitClear", "ClearConcurrency"):
                yield self._tell(READER, {"send": {"cmd": cmd, "queue": queue}}, is_asked=False)
            pull = {"cmd": "PULLB", "queue": queue, "count": DRAIN_COUNT}
            yield self._tell(READER, {"send": pull}, is_asked=False)

    def _leftovers(self) -> Iterator[Request]:
        for cmd, key, undo in (
            ("Cron", "name", "CronDelete"),
            ("RegisterWorker", "workerId", "UnregisterWorker"),
        ):
            made = [step["send"] for step in self._steps if step.get("send", {}).get("cmd") == cmd]
            for name in found_in(made, key):
                yield {"cmd": undo, key: name}
        for queue in found_in(self._steps, "queue"):
            yield {"cmd": "Obliterate", "queue": queue}
        for name in self.theirs.kept | self.ours.kept:  # what one refused, the other may have
            yield {"cmd": "RemoveWebhook", "webhookId": f"$j:{name}"}


def _rest_s(request: Request) -> float:
    """Return how long a request goes on working after its answer, before it can be compared."""
    if has_tiny_span(request):
        return TINY_WAIT_MS / 1000
    return SETTLE_S if request["cmd"] == "Cron" and request.get("immediately") else 0


QUEUE_READS = (
    "GetJobs",
    "GetJobCounts",
    "GetCountsPerPriority",
    "Count",
    "IsPaused",
    "Dlq",
    "GetDlqStats",
    "GetDlqConfig",
    "GetStallConfig",
    "GetQueueLimits",
    "GetGroupsJobsCount",
    "DashboardQueue",
)
GROUP_READS = (
    "GetGroupJobsCount",
    "GetGroupActiveCount",
    "GetGroupRateLimit",
    "GetGroupConcurrency",
    "GetGroupRateLimitTtl",
    "IsGroupPaused",
)
JOB_READS = (
    "GetJob",
    "GetState",
    "GetResult",
    "GetLogs",
    "GetChildrenValues",
    "GetFailedChildrenValues",
    "GetIgnoredChildrenFailures",
)
MAKERS = {
    "CronList": ("Cron",),
    "ListWebhooks": ("AddWebhook",),
    "ListWorkers": ("RegisterWorker",),
}


def _plain(value: Any) -> Any:
    """Return the value as JavaScript sends it: integers beyond 32 bits are floats."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    is_wide = type(value) is int and not -(2**31) <= value < 2**32
    return float(value) if is_wide else value


def reads_after(request: Request) -> Iterator[Request]:
    """Yield the reads that show at once what a request did."""
    row = COMMANDS.get(request["cmd"]) if isinstance(request["cmd"], str) else None
    if row is None or not row.mutates:
        return
    for key in ("id", "childId", "parentId", "jobId", "customId"):
        if isinstance(request.get(key), str):
            yield {"cmd": "GetJob", "id": f"$sent:{key}"}
    jobs = request.get("jobs")
    for number, entry in enumerate(jobs if isinstance(jobs, list) else ()):
        for key in ("id", "customId"):
            if isinstance(entry.get(key), str):
                yield {"cmd": "GetJob", "id": f"$sent:jobs:{number}:{key}"}
    ids = request.get("ids")
    for number, job_id in enumerate(ids if isinstance(ids, list) else ()):
        if isinstance(job_id, str):
            yield {"cmd": "GetJob", "id": f"$sent:ids:{number}"}
    queue = request.get("queue")
    if isinstance(queue, str) and queue.startswith("$q:"):
        yield {"cmd": "GetJobCounts", "queue": queue}


def names_in(steps: Sequence[Step], prefix: str) -> list[str]:
    """Return every name with this prefix that the steps mention, sorted."""
    return sorted({text for text in _texts(list(steps)) if text.startswith(prefix)})


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def found_in(value: Any, name: str) -> list[str]:
    """Return the texts that stand under this key anywhere in the value, sorted."""
    return sorted(set(_under(value, name)))


def _under(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == name and isinstance(item, str) and item:
                yield item
            yield from _under(item, name)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _under(item, name)


def _by_job(events: list[Any]) -> dict[str, list[Any]]:
    """Return the events of each job in order; between jobs no order is promised."""
    each: dict[str, list[Any]] = {}
    for event in events:
        each.setdefault(event["jobId"], []).append(event)
    return each
