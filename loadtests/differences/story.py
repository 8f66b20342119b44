"""What a rule is told: the sequence so far, and one spot at which two replies differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.differences.likeness import Difference
from loadtests.differences.playing import Request, Step, Told


class Story:
    """What happened in a sequence so far, the reply at hand included.

    Attributes:
        steps: The steps of the sequence.
        told: Every reply so far, in order.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.told: list[Told] = []

    def add(self, told: Told) -> None:
        """Take the next reply into the story."""
        self.told.append(told)

    def asked(self, *commands: str) -> Iterator[Told]:
        """Yield the replies to the sequence's own requests of these commands."""
        return (told for told in self.told if told.is_asked and told.request["cmd"] in commands)


@dataclass(frozen=True, slots=True)
class Spot:
    """One difference and where it stands."""

    told: Told
    difference: Difference
    story: Story

    @property
    def cmd(self) -> str:
        """The command whose replies differ."""
        return str(self.told.request["cmd"])

    @property
    def request(self) -> Request:
        """The request as we got it."""
        return self.told.sent

    @property
    def key(self) -> str:
        """The last key of the path, "" for the reply as a whole."""
        keys = [part for part in self.difference.path if isinstance(part, str)]
        return keys[-1] if keys else ""

    @property
    def theirs(self) -> Any:
        """What the reference says at the spot."""
        return self.difference.theirs

    @property
    def ours(self) -> Any:
        """What we say at the spot."""
        return self.difference.ours

    @property
    def their_error(self) -> str:
        """The refusal of the reference, "" if it did not refuse."""
        return error_of(self.told.theirs)

    @property
    def our_error(self) -> str:
        """Our refusal, "" if we did not refuse."""
        return error_of(self.told.ours)

    @property
    def spoiled(self) -> str | None:
        """The field of this request that was given a wrong value, if one was."""
        return self.story.steps[self.told.step].get("spoiled") if self.told.is_asked else None


def error_of(reply: Any) -> str:
    return str(reply.get("error") or "") if isinstance(reply, dict) else ""


@dataclass(frozen=True, slots=True)
class Rule:
    """Why something may differ.

    Attributes:
        number: The paragraph, with its mark.
        says: What we do, and what the reference does.
        explains: Whether it explains a difference.
        parts: Both servers go on from different states.
    """

    number: str
    says: str
    explains: Callable[[Spot], bool]
    parts: bool = False


# What the reference says where its own code met a value that it did not expect.
stumbled = re.compile(
    r"(?:is not|not) an? (?:object|function)|Internal server error|evaluating '|BigInt"
    r"|is not iterable|\[object Object\]|not found|^Queue name "
).search


def job_at(spot: Spot) -> Any:
    """Return our job in which the spot lies, or an empty one."""
    ours = spot.told.ours
    for part in ("", *spot.difference.path):
        if part != "":
            try:
                ours = ours[part]
            except (KeyError, IndexError, TypeError):
                break
        if isinstance(ours, dict) and "lastHeartbeat" in ours:
            return ours
    return {}


def event_at(spot: Spot) -> Any:
    """Return our event in which the spot lies."""
    job_id, number = spot.difference.path[:2]
    return spot.told.ours[job_id][number]


def flow_ids_of(told: Told) -> set[str]:
    if told.request["cmd"] != "PUSHF" or not told.ours.get("ok"):
        return set()
    return {job["id"] for job in told.sent["jobs"] if isinstance(job["id"], str)}


def pushed(request: Request) -> list[Request]:
    """Return the entries of a push of any kind."""
    jobs = request.get("jobs")
    if request["cmd"] not in ("PUSH", "PUSHB", "PUSHF") or not isinstance(jobs, (list, type(None))):
        return []
    entries = [request] if jobs is None else [entry for entry in jobs if isinstance(entry, dict)]
    inputs = (entry.get("input", entry) for entry in entries)
    return [each for each in inputs if isinstance(each, dict)]


def entries(story: Story) -> Iterator[tuple[str, Any, Request]]:
    """Yield every entry that was pushed, with the id and the queue of its job, if it got an id."""
    for told in story.asked("PUSH", "PUSHB", "PUSHF"):
        if not told.ours.get("ok"):
            continue
        if told.request["cmd"] == "PUSHF":
            for job in told.sent["jobs"]:
                yield job["id"], job["queue"], job["input"]
        else:
            ids = told.ours.get("ids") or [told.ours.get("id")]
            for job_id, entry in zip(ids, pushed(told.sent), strict=False):
                yield job_id, told.sent["queue"], entry


def own_ids(request: Request) -> set[Any]:
    ids = (entry.get(key) for entry in pushed(request) for key in ("jobId", "customId"))
    return {each for each in ids if isinstance(each, str)}


def state_of(reply: Any) -> Any:
    job = reply.get("job") if isinstance(reply, dict) else None
    return job.get("state") if isinstance(job, dict) else None


def same_batch(story: Story, *job_ids: str) -> bool:
    return any(
        set(job_ids) <= {*told.ours.get("ids", ()), *own_ids(told.sent), *flow_ids_of(told)}
        for told in story.asked("PUSHB", "PUSHF")
    )


def kinds(events: Any) -> list[str]:
    if not isinstance(events, list):
        return []
    return [each["eventType"] for each in events if isinstance(each, dict) and "eventType" in each]
