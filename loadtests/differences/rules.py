"""The rules by which we may differ from the reference, each as narrow as it can be said.

A rule names the paragraph that wants the difference. ``parts`` means that from there on both
servers hold different jobs, so that comparing them further would say nothing. The order counts:
the first rule that explains a difference is the one that is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bunqueue.commands import COMMANDS
from bunqueue.protocol.options import BACKOFF_MS_CAP
from loadtests.differences.likeness import ABSENT, CLOCK_MS_MAX, Difference
from loadtests.differences.playing import Request, Step, Told
from loadtests.differences.values import PAST_MS

# Between the moment at which a server looks at its clock, and that at which both have answered.
CHANCE_MS = 200


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
        return _error(self.told.theirs)

    @property
    def our_error(self) -> str:
        """Our refusal, "" if we did not refuse."""
        return _error(self.told.ours)

    @property
    def spoiled(self) -> str | None:
        """The field of this request that was given a wrong value, if one was."""
        return self.story.steps[self.told.step].get("spoiled") if self.told.is_asked else None


def _error(reply: Any) -> str:
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
_stumbled = re.compile(
    r"(?:is not|not) an? (?:object|function)|Internal server error|evaluating '|BigInt"
    r"|is not iterable|\[object Object\]|not found|^Queue name "
).search
_asks_for = re.compile(r"(?:jobs\[\d+\]: )?(\S+?)(?:\.\S+)? (?:is required|must be )").match


def _mistyped(spot: Spot) -> bool:
    """We refuse what was spoiled on purpose; they stumble over it, or take it."""
    if not spot.spoiled or not spot.our_error:
        return False
    same = spot.their_error.rpartition(": ")[0] == spot.our_error.rpartition(": ")[0] != ""
    return not spot.their_error or same or bool(_stumbled(spot.their_error))


def _is_taken(spot: Spot) -> bool:
    return _mistyped(spot) and not spot.their_error and COMMANDS[spot.cmd].mutates


def _other_problem(spot: Spot) -> bool:
    """Both refuse, we because of what was spoiled and they because of something else."""
    asked = _asks_for(spot.our_error)
    return bool(spot.spoiled and spot.their_error and asked and asked[1] == spot.spoiled)


def _other_entry(spot: Spot) -> bool:
    """Two entries of a batch are wrong, and each side names another."""
    numbers = [re.match(r"jobs\[\d+\]: ", text) for text in (spot.their_error, spot.our_error)]
    return spot.cmd == "PUSHB" and all(numbers) and numbers[0][0] != numbers[1][0]  # type: ignore[index]


# What the reference finds out about an entry of a batch only while it admits it.
_LATE = ("Group ", "Duplicate unique_key", "Cannot replace", "Custom ID ")


def _prefix_kept(spot: Spot) -> bool:
    """Both refuse a batch, and the reference has kept the entries before the bad one."""
    return not spot.told.is_asked and any(
        told.step == spot.told.step
        and _error(told.theirs) == _error(told.ours)
        and _error(told.ours).startswith(_LATE)
        for told in spot.story.asked("PUSHB")
    )


def _in_backoff(spot: Spot) -> bool:
    """The reference completes, or fails once more, a job that waits for its next attempt."""
    refused = "Job not found or not in processing state"
    if not spot.told.is_asked:
        return _batch_took_it(spot)
    if spot.cmd not in ("ACK", "ACKB", "FAIL") or not spot.our_error.startswith(refused):
        return False
    if spot.their_error and spot.cmd != "ACKB":  # a batch names the first that is refused
        return False
    ids = spot.request["ids"] if spot.cmd == "ACKB" else [spot.request["id"]]
    return any(told.sent.get("id") in ids for told in spot.story.asked("FAIL"))


def _batch_took_it(spot: Spot) -> bool:
    """A batch was refused by both for one job, and the reference has completed the other."""
    failed = [told.sent.get("id") for told in spot.story.asked("FAIL")]
    batch = (told for told in spot.story.asked("ACKB") if told.step == spot.told.step)
    took = spot.their_error == "Job not found" or _state_of(spot.told.theirs) == "completed"
    return took and any(each in failed for told in batch for each in told.sent["ids"])


def _job_at(spot: Spot) -> Any:
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


def _list_is_stale(spot: Spot) -> bool:
    """The list of the reference shows what its own GetJob does not."""
    if spot.cmd != "GetJobs" or spot.key not in ("startedAt", "uniqueKey", "runAt"):
        return False
    ours = _job_at(spot)
    for told in reversed(spot.story.told):
        if told.request["cmd"] == "GetJob" and isinstance(told.theirs.get("job"), dict):
            theirs = told.theirs["job"]
            if theirs["id"] == ours.get("id"):
                return bool(theirs[spot.key] != spot.theirs)
    return False


def _heartbeat_of_nobody(spot: Spot) -> bool:
    if spot.key != "lastHeartbeat":
        return False
    job = _job_at(spot)
    return (
        spot.cmd == "GetJobs"
        or job.get("state", "active") != "active"
        or (spot.cmd in ("Dlq", "PUSHF") or job.get("startedAt") is None)
    )


def _flow_ids(story: Story) -> set[str]:
    return {job_id for told in story.asked("PUSHF") for job_id in _flow_ids_of(told)}


def _flow_ids_of(told: Told) -> set[str]:
    if told.request["cmd"] != "PUSHF" or not told.ours.get("ok"):
        return set()
    return {job["id"] for job in told.sent["jobs"] if isinstance(job["id"], str)}


def _pushed(request: Request) -> list[Request]:
    """Return the entries of a push of any kind."""
    jobs = request.get("jobs")
    if request["cmd"] not in ("PUSH", "PUSHB", "PUSHF") or not isinstance(jobs, (list, type(None))):
        return []
    entries = [request] if jobs is None else [entry for entry in jobs if isinstance(entry, dict)]
    inputs = (entry.get("input", entry) for entry in entries)
    return [each for each in inputs if isinstance(each, dict)]


def _entries(story: Story) -> Iterator[tuple[Any, Any, Request]]:
    """Yield every entry that was pushed, with the id and the queue of its job."""
    for told in story.asked("PUSH", "PUSHB", "PUSHF"):
        ids = told.ours.get("ids") or [told.ours.get("id")]
        jobs = told.sent.get("jobs")
        for number, entry in enumerate(_pushed(told.sent)):
            if told.request["cmd"] == "PUSHF" and isinstance(jobs, list):
                yield jobs[number]["id"], jobs[number].get("queue"), entry
            else:
                yield (*ids[number : number + 1], None)[0], told.sent.get("queue"), entry


def _own_ids(request: Request) -> set[Any]:
    ids = (entry.get(key) for entry in _pushed(request) for key in ("jobId", "customId"))
    return {each for each in ids if isinstance(each, str)}


def _takes_a_taken_id(spot: Spot) -> bool:
    """A push names the id of a job that was not pushed with it; the reference takes it for new."""
    made = _flow_ids(spot.story)
    for told in spot.story.asked("PUSH", "PUSHB"):
        if told.step == spot.told.step:
            return bool(_own_ids(told.sent) & made)
        made |= {told.ours.get("id"), *told.ours.get("ids", ())} - _own_ids(told.sent)
    return False


def _has_expired(spot: Spot) -> bool:
    """A job was pushed whose life is over by now; the reference finds out when it is pulled."""
    short = [(job_id, queue) for job_id, queue, entry in _entries(spot.story) if _is_short(entry)]
    if spot.our_error.startswith(_ABOUT_NOBODY) or spot.ours == "unknown":
        names = {spot.request.get(key) for key in _ID_KEYS}
        return any(job_id in names for job_id, _ in short)
    sizes = [len(each) if isinstance(each, list) else each for each in (spot.ours, spot.theirs)]
    fewer = all(type(each) is int for each in sizes) and sizes[0] < sizes[1]
    queue = spot.request.get("queue")
    return fewer and any(queue in (None, its_queue) for _, its_queue in short)


_ID_KEYS = ("id", "customId", "jobId", "childId", "parentId")
_ABOUT_NOBODY = ("Job not found", "Child job not found", "Parent job not found")


def _is_short(entry: Request) -> bool:
    """The life of the job is over before the sequence is."""
    ttl = entry.get("ttl")
    return isinstance(ttl, int) and (
        ttl < CLOCK_MS_MAX or (entry.get("timestamp") or PAST_MS * 2) == PAST_MS
    )


def _too_old(spot: Spot) -> bool:
    """A parked job was made long ago; the cleanup of the reference may have come by."""
    if spot.key == "waiting-children":
        return isinstance(spot.ours, int) and spot.theirs < spot.ours and _parked_of_old(spot)
    if spot.their_error == "Job not found" or spot.theirs == "unknown":
        return _parked_of_old(spot, spot.request.get("id"))
    return False


def _parked_of_old(spot: Spot, job_id: str | None = None) -> bool:
    return any(
        entry.get("timestamp") == PAST_MS and (entry.get("dependsOn") or entry.get("childrenIds"))
        for its_id, _, entry in _entries(spot.story)
        if job_id in (None, its_id)
    )


def _affine(spot: Spot) -> bool:
    """The puller wants one group only, and gets a job without group from the reference."""
    group = spot.request.get("group")
    if spot.cmd not in ("PULL", "PULLB") or not isinstance(group, dict):
        return False
    jobs = spot.told.theirs.get("jobs") or [spot.told.theirs.get("job")]
    return isinstance(group.get("affinity"), str) and any(
        job is not None and job["groupId"] is None for job in jobs
    )


def _nothing_to_wait_for(spot: Spot) -> bool:
    """A running job was told to wait for children that it does not have, or no more."""
    return any(
        told.step == spot.told.step and told.ours.get("ok")
        for told in spot.story.asked("MoveToWaitingChildren")
    ) and "waiting-children" in (spot.theirs, _state_of(spot.told.theirs))


def _children_gone(spot: Spot) -> bool:
    """A parent's children were cancelled, and the reference lets it wait for them."""
    asked = spot.story.asked("RemoveUnprocessedChildren")
    return any(told.step == spot.told.step for told in asked) and "waiting-children" in (
        spot.theirs,
        _state_of(spot.told.theirs),
    )


def _state_of(reply: Any) -> Any:
    job = reply.get("job") if isinstance(reply, dict) else None
    return job.get("state") if isinstance(job, dict) else None


# What a keyed job goes through without an end, while the reference lets go of its key.
_RETURNS = ("FAIL", "MoveToWait", "MoveToDelayed", "ChangeDelay", "MoveToWaitingChildren")


def _keyed_came_back(story: Story) -> bool:
    keyed = any(
        entry.get("uniqueKey") or (entry.get("jobOptions") or {}).get("uniqueKey")
        for told in story.asked("PUSH", "PUSHB")
        for entry in _pushed(told.sent)
    )
    closed = any("close" in step for step in story.steps[: story.told[-1].step + 1])
    return keyed and (closed or any(told.ours.get("ok") for told in story.asked(*_RETURNS)))


def _key_kept(spot: Spot) -> bool:
    """We name the owner of a key, and the reference names none or a later one."""
    if spot.cmd != "GetDeduplicationJobId" or spot.key != "jobId" or spot.ours is None:
        return False
    return _keyed_came_back(spot.story)


def _key_kept_parts(spot: Spot) -> bool:
    """A push meets a key that the reference has let go of."""
    if spot.cmd not in ("PUSH", "PUSHB", "RemoveDeduplicationKey", "RemoveJobDeduplicationKey"):
        return False
    keyed = spot.cmd.startswith("Remove") or any(
        entry.get("uniqueKey") for entry in _pushed(spot.request)
    )
    return keyed and spot.told.is_asked and _keyed_came_back(spot.story)


def _by_chance(spot: Spot) -> bool:
    """Both moments of a retry are within what the backoff allows, one failure ago."""
    job = _job_at(spot)
    if spot.key != "runAt" or not job.get("attempts"):
        return False
    failed = [line["timestamp"] for line in job["timeline"] if line["state"] == "failed"]
    config = job["backoffConfig"] or {"type": "exponential", "delay": job["backoff"]}
    base = config["delay"]
    low, high = (0.8, 1.2) if config["type"] == "fixed" else (0.5, 1.5)
    if config["type"] != "fixed":
        base *= 2 ** job["attempts"]
    least, most = (min(base * each, BACKOFF_MS_CAP) for each in (low, high))
    return bool(failed) and all(
        least - CLOCK_MS_MAX <= run_at - failed[-1] <= most + CLOCK_MS_MAX
        for run_at in (spot.theirs, spot.ours)
    )


def _due_by_chance(spot: Spot) -> bool:
    """A job waits for its next attempt, and by its backoff only one side has got there."""
    for told in spot.story.told:
        theirs, ours = _retrying(told.theirs), _retrying(told.ours)
        if theirs and ours:
            dues = theirs["runAt"], ours["runAt"]
            if min(dues) - CHANCE_MS <= spot.told.at <= max(dues) + CHANCE_MS:
                return True
    return False


def _retrying(reply: Any) -> Any:
    """Return the job of a reply that has failed last and is delayed, or None."""
    job = reply.get("job") if isinstance(reply, dict) else None
    if not isinstance(job, dict) or job.get("state") != "delayed" or not job.get("attempts"):
        return None
    return job if any(line["state"] == "failed" for line in job["timeline"]) else None


def _bad_schedule(spot: Spot) -> bool:
    says = "Invalid cron expression: ", "Invalid repeat pattern: "
    return spot.key == "error" and any(
        spot.our_error.removeprefix("jobs[0]: ").startswith(text)
        and spot.their_error.startswith(text)
        for text in says
    )


def _tied(spot: Spot) -> bool:
    """Jobs due in the same millisecond: ids decide there, admission here."""
    if spot.cmd not in ("PULL", "PULLB"):
        return False
    theirs, ours = spot.told.theirs, spot.told.ours
    their_jobs = theirs.get("jobs") or [theirs.get("job")]
    our_jobs = ours.get("jobs") or [ours.get("job")]
    for their_job, our_job in zip(their_jobs, our_jobs, strict=False):
        if their_job and our_job and their_job["id"] != our_job["id"]:
            same = ("priority", "lifo", "queue", "groupId")
            return all(their_job[key] == our_job[key] for key in same) and (
                our_job["lifo"]
                or their_job["runAt"] == our_job["runAt"]
                or _same_batch(spot.story, their_job["id"], our_job["id"])
                or _moved_together(spot.story, our_job["queue"])
            )
    return False


def _retried_in_order(spot: Spot) -> bool:
    """The first jobs that differ are of one rank, and one of them is a retry."""
    if spot.cmd not in ("PULL", "PULLB"):
        return False
    theirs, ours = (
        reply.get("jobs") or [reply.get("job")] for reply in (spot.told.theirs, spot.told.ours)
    )
    for pair in zip(theirs, ours, strict=False):
        if all(pair) and pair[0]["id"] != pair[1]["id"]:
            ranks = {(job["priority"], job["lifo"], job["groupId"]) for job in pair}
            return len(ranks) == 1 and any(job["attempts"] for job in pair)
    return False


def _joined_when_due(spot: Spot) -> bool:
    """The first jobs that differ are of two groups, and one of them had a delay."""
    if spot.cmd not in ("PULL", "PULLB"):
        return False
    theirs, ours = (
        reply.get("jobs") or [reply.get("job")] for reply in (spot.told.theirs, spot.told.ours)
    )
    for pair in zip(theirs, ours, strict=False):
        if all(pair) and pair[0]["id"] != pair[1]["id"]:
            groups = {job["groupId"] for job in pair}
            waited = any(job["timeline"][0]["state"] == "delayed" for job in pair)
            return len(groups) == 2 and None not in groups and waited
    return False


def _moved_together(story: Story, queue: str) -> bool:
    """Several jobs of the queue were made due by one command."""
    return any(
        told.sent["queue"] == queue and (told.ours.get("count") or 0) > 1
        for told in story.asked("PromoteJobs", "RetryDlq", "RetryCompleted")
    )


def _same_batch(story: Story, *job_ids: str) -> bool:
    return any(
        set(job_ids) <= {*told.ours.get("ids", ()), *_own_ids(told.sent), *_flow_ids_of(told)}
        for told in story.asked("PUSHB", "PUSHF")
    )


def _cleaned_in_order(spot: Spot) -> bool:
    """The same jobs were cleaned away, and some of them came in one batch."""
    theirs, ours = (reply.get("ids") or () for reply in (spot.told.theirs, spot.told.ours))
    pair = spot.theirs, spot.ours
    return (
        spot.cmd == "Clean"
        and sorted(theirs) == sorted(ours)
        and all(isinstance(each, str) for each in pair)
        and _same_batch(spot.story, *pair)
    )


def _met_by_key(spot: Spot) -> bool:
    """A push named the id of a job that was not pushed with it, and the job's key."""
    theirs, ours = _kinds(spot.theirs), _kinds(spot.ours)
    named = {
        job_id
        for told in spot.story.asked("PUSH", "PUSHB")
        if any(entry.get("uniqueKey") for entry in _pushed(told.sent))
        for job_id in _own_ids(told.sent)
    }
    return (
        spot.cmd == "(events)"
        and spot.key in named
        and "duplicated" in theirs
        and [each for each in theirs if each != "duplicated"] == ours
    )


def _flag_as_given(spot: Spot) -> bool:
    """What is no flag was given as one, and the reference shows it as it is."""
    given = [step.get("spoiled") for step in spot.story.steps]
    return spot.key in given and isinstance(spot.ours, bool) and not isinstance(spot.theirs, bool)


def _row_is_active(spot: Spot) -> bool:
    """After a close, lists by state of the reference still go by the row of the run."""
    by_state = spot.cmd == "GetJobs" and "state" in spot.request
    if not by_state and spot.difference.path[:2] != ("data", "jobs"):
        return False
    return any(
        "close" in step and _had_pulled(spot.story, step["peer"], number)
        for number, step in enumerate(spot.story.steps[: spot.told.step + 1])
    )


def _had_pulled(story: Story, peer: str, before: int) -> bool:
    return any(
        told.step < before
        and story.steps[told.step]["peer"] == peer
        and (told.theirs.get("job") or told.theirs.get("jobs"))
        for told in story.asked("PULL", "PULLB")
    )


def _all_active_count(spot: Spot) -> bool:
    return (
        spot.key == "maxed" and spot.ours is True and bool(list(spot.story.asked("SetConcurrency")))
    )


def _all_active_count_parts(spot: Spot) -> bool:
    """We hand out less than the reference under a concurrency limit."""
    if spot.cmd not in ("PULL", "PULLB") or not list(spot.story.asked("SetConcurrency")):
        return False
    ours, theirs = (
        len(reply.get("jobs") or [job for job in (reply.get("job"),) if job])
        for reply in (spot.told.ours, spot.told.theirs)
    )
    return ours < theirs


def _met_stays_met(spot: Spot) -> bool:
    """A dependency that completed and came back is no longer one of ours."""
    return (
        spot.key == "dependsOn"
        and isinstance(spot.ours, list)
        and set(spot.ours) < set(spot.theirs)
    )


def _named_state(spot: Spot) -> bool:
    """Clean was asked for one state of the queued ones, and the reference takes all."""
    states = ("delayed", "prioritized", "paused", "waiting", "wait")
    return spot.cmd == "Clean" and spot.told.is_asked and spot.request.get("state") in states


def _no_count(spot: Spot) -> bool:
    return spot.cmd == "PULLB" and spot.spoiled == "count" and spot.request.get("count") is None


def _more_is_told(spot: Spot) -> bool:
    """The journal counts our further events too."""
    return spot.cmd == "TrimEvents" and isinstance(spot.ours, int) and spot.ours > spot.theirs


def _key_let_go(spot: Spot) -> bool:
    """Its owner is gone by Drain or Clean; the entry of the reference stays."""
    return (
        spot.cmd == "GetDeduplicationJobId"
        and spot.ours is None
        and bool(list(spot.story.asked("Drain", "Clean")))
    )


def _key_stays_away(spot: Spot) -> bool:
    """A key was taken from a job; the reference gives it back when the job comes back."""
    taken = spot.story.asked("RemoveJobDeduplicationKey", "RemoveDeduplicationKey")
    return spot.cmd == "GetDeduplicationJobId" and spot.ours is None and bool(list(taken))


def _key_as_pushed(spot: Spot) -> bool:
    """Only in the row of the reference a key that was taken from its job is gone."""
    return spot.key == "uniqueKey" and spot.theirs is None and isinstance(spot.ours, str)


def _successor_has_all(spot: Spot) -> bool:
    """The successor of a repeated job keeps how it meets twins."""
    keys = ("deduplicationExtend", "deduplicationTtl", "deduplicationReplace")
    return spot.key in keys and not spot.theirs and (_job_at(spot).get("repeat") is not None)


def _discard_is_a_failure(spot: Spot) -> bool:
    """A child was discarded, and its policy is applied."""
    children = {job_id for job_id, _, entry in _entries(spot.story) if entry.get("parentId")}
    discarded = [
        told
        for told in spot.story.asked("Discard")
        if told.ours.get("ok") and told.sent["id"] in children
    ]
    if not spot.told.is_asked and any(told.step == spot.told.step for told in discarded):
        return True
    shows = (
        "waiting-children" in (spot.theirs, spot.key, _state_of(spot.told.theirs))
        or spot.cmd in ("PULL", "PULLB", "GetFailedChildrenValues", "GetIgnoredChildrenFailures")
        or (spot.cmd == "GetJobCounts" and spot.key in ("waiting", "prioritized", "failed"))
    )
    return shows and bool(discarded)


def _names_of_nothing(spot: Spot) -> bool:
    """Only queues without a job differ."""
    theirs, ours = spot.told.theirs, spot.told.ours
    if spot.cmd == "ListQueues":
        names = [{str(name) for name in reply["queues"]} for reply in (theirs, ours)]
        return names[0] >= names[1] or names[0] <= names[1]
    if spot.cmd == "DashboardQueues":
        rows = [
            sorted(
                (
                    row
                    for row in reply["data"]["queues"]
                    if any(row[key] for key in row if key != "name")
                ),
                key=lambda row: str(row["name"]),
            )
            for reply in (theirs, ours)
        ]
        return bool(rows[0] == rows[1])
    return False


def _cycle(spot: Spot) -> bool:
    return spot.our_error == "flow contains a dependency cycle" and not spot.their_error


def _owner_that_is_none(spot: Spot) -> bool:
    return spot.spoiled == "owner" and not isinstance(spot.request.get("owner"), str)


def _removal_without_result(spot: Spot) -> bool:
    """ACKB was told to forget jobs and given no results."""
    return any(
        told.step == spot.told.step
        and "results" not in told.sent
        and any(told.sent.get("removeOnCompletes") or ())
        for told in spot.story.asked("ACKB")
    )


def _twin_told_second(spot: Spot) -> bool:
    """A batch with twins: the reference tells of the second before the first is pushed."""
    if spot.cmd != "(events)" or spot.key != "eventType":
        return False
    return {spot.theirs, spot.ours} == {"pushed", "duplicated"}


def _half_done(spot: Spot) -> bool:
    """The reference stumbled over what was spoiled, with a part of the request done."""
    if spot.told.is_asked or not spot.story.steps[spot.told.step].get("spoiled"):
        return False
    asked = [told for told in spot.story.told if told.is_asked and told.step == spot.told.step]
    return bool(asked and _stumbled(_error(asked[0].theirs)))


def _truthy_removal(spot: Spot) -> bool:
    """An outcome says with something other than true that its job is to be forgotten."""
    spoiled = spot.story.steps[spot.told.step].get("spoiled")
    return spoiled in ("removeOnComplete", "removeOnFail", "removeOnCompletes")


def _id_before_rest(spot: Spot) -> bool:
    """An id that lives is answered; the reference looks at the job's edges first."""
    edges = "Dependency job not found", "Parent job "
    lives = spot.their_error.removeprefix("jobs[0]: ").startswith(edges)
    ids = {spot.told.ours.get("id"), *spot.told.ours.get("ids", ())}
    return lives and not spot.our_error and bool(ids & _own_ids(spot.request))


# Commands that make jobs go without naming them.
_SWEEPING = (
    "Obliterate",
    "Drain",
    "Clean",
    "PurgeDlq",
    "SetDlqConfig",
    "RemoveUnprocessedChildren",
)


def _logs_of_nobody(spot: Spot) -> bool:
    """The log of a job that was gone when it was last asked for, or has been swept away since."""
    if spot.cmd != "GetLogs" or spot.told.ours["data"]["count"]:
        return False
    for told in reversed(spot.story.told):
        if told.is_asked and told.ours.get("ok") and told.request["cmd"] in _SWEEPING:
            return True
        if told.request["cmd"] in ("GetJob", "GetState") and told.sent["id"] == spot.request["id"]:
            return _error(told.ours) == "Job not found" or told.ours.get("state") == "unknown"
    return True


def _keep_logs(spot: Spot) -> bool:
    """The job was pushed with a number of lines to keep."""
    return spot.cmd == "GetLogs" and any(
        entry.get("keepLogs") is not None and job_id == spot.request["id"]
        for job_id, _, entry in _entries(spot.story)
    )


def _limited_clean(spot: Spot) -> bool:
    """Of what is there the reference takes less than the limit allows."""
    theirs, ours = (len(reply.get("ids", ())) for reply in (spot.told.theirs, spot.told.ours))
    return spot.cmd == "Clean" and spot.request.get("limit") is not None and theirs < ours


def _whole_history(spot: Spot) -> bool:
    """The charged attempts before a move to waiting."""
    both = isinstance(spot.ours, list) and isinstance(spot.theirs, list)
    return (
        spot.cmd == "Dlq" and spot.key == "attempts" and both and len(spot.ours) > len(spot.theirs)
    )


def _key_of_nobody(spot: Spot) -> bool:
    """The entry that Drain or Clean left is there to be removed."""
    return (
        spot.cmd == "RemoveDeduplicationKey"
        and (spot.theirs, spot.ours) == (1, 0)
        and bool(list(spot.story.asked("Drain", "Clean")))
    )


def _runs_again(spot: Spot) -> bool:
    """The result of a child that was sent back to run again."""
    again = any(told.ours.get("count") for told in spot.story.asked("RetryCompleted"))
    return spot.cmd == "GetChildrenValues" and spot.ours is ABSENT and again


def _kept_for_consumers(spot: Spot) -> bool:
    """The result of a child that was removed, while somebody needs it."""
    return spot.cmd == "GetResult" and spot.theirs is ABSENT and _links(spot.story)


def _links(story: Story) -> bool:
    return any(
        entry.get("parentId") or entry.get("dependsOn")
        for told in story.asked("PUSH", "PUSHB", "PUSHF")
        for entry in _pushed(told.sent)
    )


def _used_up(spot: Spot) -> bool:
    """As many jobs as were asked about have gone, but for the fraction that has grown back."""
    asked = spot.request.get("maxJobs")
    return spot.key == "rateLimitTtl" and isinstance(asked, int) and asked > 0 and spot.theirs == 0


def _lock_stayed(spot: Spot) -> bool:
    """Both refuse an outcome for a job that is done; the lease stayed after a batch in part."""
    return spot.their_error.startswith(
        ("Lock token required", "Invalid or expired lock token")
    ) and spot.our_error.startswith("Job not found or not in processing")


def _worker_moved(spot: Spot) -> bool:
    """A worker registered over both connections, and one of them has closed."""
    if spot.cmd not in ("ListWorkers", "Heartbeat", "UnregisterWorker"):
        return False
    theirs: dict[str, str] = {}
    ours: dict[str, str] = {}
    for step in spot.story.steps[: spot.told.step + (not spot.told.is_asked)]:
        request = step.get("send", {})
        name, peer = request.get("workerId"), step.get("peer", "")
        if "close" in step:
            theirs = {each: owner for each, owner in theirs.items() if owner != peer}
            ours = {each: owner for each, owner in ours.items() if owner != peer}
        elif request.get("cmd") == "RegisterWorker" and isinstance(name, str):
            theirs.setdefault(name, peer)
            ours[name] = peer
        elif request.get("cmd") == "UnregisterWorker":
            theirs.pop(name, None)
            ours.pop(name, None)
    return theirs != ours


def _null_error(spot: Spot) -> bool:
    """A failure came with null for its error."""
    return (spot.key, spot.theirs, spot.ours) == ("error", None, ABSENT) and any(
        "error" in told.sent and told.sent["error"] is None for told in spot.story.asked("FAIL")
    )


def _resumed_nobody(spot: Spot) -> bool:
    """Resume of a queue of which nothing is known is in the journal of the reference."""
    if spot.cmd != "TrimEvents" or spot.key != "removed":
        return False
    queue = spot.request["queue"]
    first = next(
        (
            told.request["cmd"]
            for told in spot.story.told
            if told.is_asked
            and told.sent.get("queue") == queue
            and COMMANDS[told.request["cmd"]].mutates
        ),
        None,
    )
    resumes = sum(told.sent.get("queue") == queue for told in spot.story.asked("Resume"))
    return first == "Resume" and 0 < spot.theirs - spot.ours <= resumes


def _twin_in_batch(spot: Spot) -> bool:
    """A job depends on an entry of its batch for which another job answers."""
    if "dependsOn" not in spot.difference.path:
        return False
    answers = {
        entry.get("customId"): job_id
        for told in spot.story.asked("PUSHB")
        for entry, job_id in zip(_pushed(told.sent), told.ours.get("ids", ()), strict=False)
    }
    if isinstance(spot.theirs, list):
        return list(dict.fromkeys(answers.get(each, each) for each in spot.theirs)) == spot.ours
    return answers.get(spot.theirs) == spot.ours


def _kinds(events: Any) -> list[str]:
    if not isinstance(events, list):
        return []
    return [each["eventType"] for each in events if isinstance(each, dict) and "eventType" in each]


def _only_we_tell(kind: str) -> Callable[[Spot], bool]:
    """The events of a job are the same but for those of one kind."""

    def explains(spot: Spot) -> bool:
        if spot.cmd != "(events)" or len(spot.difference.path) != 1:
            return False
        ours = _kinds(spot.ours)
        return kind in ours and [each for each in ours if each != kind] == _kinds(spot.theirs)

    return explains


RULES: tuple[Rule, ...] = (
    Rule(
        "wire.md 0 [F]",
        "a mistyped field that 2.9.5 takes as it comes is refused",
        _is_taken,
        parts=True,
    ),
    Rule(
        "wire.md 0 [F]",
        "the text about a missing or mistyped field where 2.9.5 stumbles over it",
        _mistyped,
    ),
    Rule("wire.md 0 [F]", "which of two problems is told", _other_problem),
    Rule(
        "wire.md 2.1 [X]",
        "a batch is refused as a whole; 2.9.5 keeps the entries before the bad one",
        _prefix_kept,
        parts=True,
    ),
    Rule(
        "wire.md 4.2",
        "data that was not given is null; 2.9.5 shows nothing until a restart",
        lambda spot: spot.key == "data" and spot.theirs is ABSENT and spot.ours is None,
    ),
    Rule(
        "wire.md 3.1 [F]",
        "no _state in a Job",
        lambda spot: spot.key == "_state" and spot.ours is ABSENT,
    ),
    Rule(
        "wire.md 5.2 [X]",
        "a job that waits for its next attempt is not processing; 2.9.5 takes any outcome",
        _in_backoff,
        parts=True,
    ),
    Rule(
        "engine.md 14 I2",
        "a list shows a job as GetJob does; that of 2.9.5 shows its row, which lags behind",
        _list_is_stale,
    ),
    Rule(
        "wire.md 3.1 [F]",
        "lastHeartbeat of a job that nobody runs is when it was made; 2.9.5 keeps that of its run",
        _heartbeat_of_nobody,
    ),
    Rule(
        "engine.md 6.2 B",
        "sizeLimit counts; 2.9.5 stores it",
        lambda spot: "Job data too large (sizeLimit" in spot.our_error and not spot.their_error,
        parts=True,
    ),
    Rule(
        "engine.md 6.2 B",
        "so that a push is refused for it before anything else is looked at",
        lambda spot: "Job data too large (sizeLimit" in spot.our_error,
    ),
    Rule(
        "wire.md 4.3",
        "any id is taken while its job lives; 2.9.5 knows only those it was pushed with, and puts a"
        " second job in the place of a flow's or of one with a generated id",
        _takes_a_taken_id,
        parts=True,
    ),
    Rule(
        "engine.md 4.5 B",
        "a job whose life is over is gone; in 2.9.5 it stays until it is pulled",
        _has_expired,
        parts=True,
    ),
    Rule(
        "wire.md 2.1.1 [X]",
        "who wants one group gets no other job; 2.9.5 hands out one without group",
        _affine,
        parts=True,
    ),
    Rule(
        "wire.md 2.3 [X]",
        "with nothing to wait for a job is back in line; 2.9.5 parks it for ever",
        _nothing_to_wait_for,
        parts=True,
    ),
    Rule(
        "wire.md 2.5 [X]",
        "a parent whose children were cancelled goes; 2.9.5 leaves it waiting for ever",
        _children_gone,
        parts=True,
    ),
    Rule(
        "engine.md 3.3 B",
        "a key stays with its job until that ends; 2.9.5 lets go of it with every run",
        _key_kept,
    ),
    Rule(
        "engine.md 3.3 B",
        "so that a push meets a twin, or removing the key removes one",
        _key_kept_parts,
        parts=True,
    ),
    Rule("engine.md 4.1", "a backoff is spread by chance, within its bounds", _by_chance),
    Rule(
        "engine.md 4.1",
        "so that an attempt is due here and not yet there",
        _due_by_chance,
        parts=True,
    ),
    Rule(
        "engine.md 4.1",
        "and retries come out in another order",
        _retried_in_order,
        parts=True,
    ),
    Rule("wire.md 2.11 [F]", "what is wrong with a schedule is told in our words", _bad_schedule),
    Rule(
        "engine.md 2.1 B",
        "jobs due in the same millisecond go by admission; in 2.9.5 by the text of their ids",
        _tied,
        parts=True,
    ),
    Rule(
        "engine.md 2.2",
        "a group takes turns from when its delayed job is due; in 2.9.5 from the next pull on",
        _joined_when_due,
        parts=True,
    ),
    Rule(
        "engine.md 2.1 B",
        "jobs of one batch are cleaned by admission; in 2.9.5 by the text of their ids",
        _cleaned_in_order,
    ),
    Rule(
        "wire.md 4.3",
        "who names the id of a live job meets that; in 2.9.5, if it was generated, its key",
        _met_by_key,
    ),
    Rule("wire.md 0 [F]", "which of two wrong entries of a batch is told", _other_entry),
    Rule("wire.md 0 [F]", "a flag is shown as true or false, whatever was given", _flag_as_given),
    Rule(
        "engine.md 8 B",
        "a job that its connection left is waiting; in 2.9.5 its row stays active",
        _row_is_active,
    ),
    Rule(
        "wire.md 2.8 [X]",
        "all active jobs count against a concurrency limit",
        _all_active_count,
    ),
    Rule(
        "wire.md 2.8 [X]",
        "so that nothing is handed out where 2.9.5 counts only what was pulled since",
        _all_active_count_parts,
        parts=True,
    ),
    Rule(
        "engine.md 3.2 B",
        "a dependency, once satisfied, stays satisfied when its job comes back",
        _met_stays_met,
    ),
    Rule(
        "wire.md 2.7 [X]", "Clean takes the named state; 2.9.5 all queued", _named_state, parts=True
    ),
    Rule("wire.md 2.1 [F]", "PULLB without a count takes one", _no_count, parts=True),
    Rule(
        "wire.md 2.1 [F]",
        "ACKB forgets jobs with results or without",
        _removal_without_result,
        parts=True,
    ),
    Rule(
        "engine.md 1.2 B",
        "failedReason is the last error, that of a child too; 2.9.5 reads it out of the timeline",
        lambda spot: (
            spot.key == "failedReason"
            and spot.theirs is ABSENT
            and str(spot.ours).startswith("Child job ")
        ),
    ),
    Rule("engine.md 14 I49", "a twin in a batch is told behind its owner", _twin_told_second),
    Rule(
        "wire.md 0 [F]",
        "a refused request has done nothing; 2.9.5 stumbled in the middle of it",
        _half_done,
        parts=True,
    ),
    Rule(
        "engine.md 6.2",
        "any truthy value makes an outcome forget its job",
        _truthy_removal,
        parts=True,
    ),
    Rule(
        "engine.md 3.2",
        "an id that lives is answered, whatever else the push says",
        _id_before_rest,
    ),
    Rule("engine.md 6.2 B", "keepLogs counts; 2.9.5 stores it", _keep_logs),
    Rule("wire.md 2.2 [F]", "the log of a job that is gone is gone", _logs_of_nobody),
    Rule(
        "wire.md 5.6 [X]",
        "Clean with a limit takes as many; 2.9.5 may work on a stale index",
        _limited_clean,
        parts=True,
    ),
    Rule(
        "engine.md 4.6",
        "a dead letter has all charged attempts; 2.9.5 loses those before a move to waiting",
        _whole_history,
    ),
    Rule("engine.md 3.3 B", "so that there is no entry of nobody to remove", _key_of_nobody),
    Rule(
        "wire.md 3.5",
        "a scheduler without a schedule has none",
        lambda spot: spot.key == "schedule" and (spot.theirs, spot.ours) == ("", None),
    ),
    Rule(
        "engine.md 1.2 T22",
        "who runs again has no result; 2.9.5 goes on showing it to the parent",
        _runs_again,
    ),
    Rule(
        "engine.md 5.2",
        "the result of a removed child can be read while somebody needs it",
        _kept_for_consumers,
    ),
    Rule(
        "wire.md 2.8",
        "maxJobs used up is used up; 2.9.5 counts in fractions of a token",
        _used_up,
    ),
    Rule(
        "engine.md 1.3 E1",
        "a job that is done is not processing; 2.9.5 keeps its lease where a batch was refused",
        _lock_stayed,
    ),
    Rule("engine.md 9 B", "the journal counts drained and removed too", _more_is_told),
    Rule(
        "engine.md 3.3 B",
        "a key goes with its owner; after Drain and Clean 2.9.5 leaves an entry of nobody",
        _key_let_go,
    ),
    Rule("engine.md 3.3", "a key that was taken from a job stays away", _key_stays_away),
    Rule(
        "engine.md 14 I2",
        "a job shows the key it was pushed with; 2.9.5 by memory or row",
        _key_as_pushed,
    ),
    Rule(
        "engine.md 3.4", "a successor has the options of its job, all of them", _successor_has_all
    ),
    Rule(
        "engine.md 5.4 B",
        "a child that is discarded has failed, and its policy is applied",
        _discard_is_a_failure,
        parts=True,
    ),
    Rule(
        "wire.md 2.7 [F]",
        "when the name of a queue without jobs disappears",
        _names_of_nothing,
    ),
    Rule(
        "README 9",
        "two jobs cannot wait for each other; 2.9.5 parks both for ever",
        _cycle,
        parts=True,
    ),
    Rule("wire.md 1.3", "an owner that is no string is none", _owner_that_is_none, parts=True),
    Rule(
        "wire.md 5.4 [X]",
        "a worker belongs to the connection that registered it last; in 2.9.5 to the first",
        _worker_moved,
    ),
    Rule("wire.md 0", "an error that is null was not given", _null_error),
    Rule(
        "engine.md 3.1",
        "an empty custom id is none; the row of 2.9.5 keeps it",
        lambda spot: (spot.key, spot.theirs, spot.ours) == ("customId", "", None),
    ),
    Rule(
        "engine.md 9 (F)",
        "a queue of which nothing is known has no journal",
        _resumed_nobody,
    ),
    Rule(
        "engine.md 5.1",
        "who depends on a twin depends on the job that answers for it; in 2.9.5 it waits for ever",
        _twin_in_batch,
        parts=True,
    ),
    Rule(
        "engine.md 5.3 B",
        "a parked job has no maximum age; in 2.9.5 it goes an hour after it was made",
        _too_old,
        parts=True,
    ),
    Rule("engine.md 9 B", "Drain is told as drained", _only_we_tell("drained")),
    Rule("engine.md 9 B", "a replaced or expired job is told as removed", _only_we_tell("removed")),
)
