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


def _prefixed(spot: Spot) -> bool:
    """The same refusal, ours with the number of the entry."""
    rest = re.sub(r"^jobs\[\d+\]: ", "", spot.our_error)
    return spot.cmd == "PUSHB" and spot.key == "error" and rest == spot.their_error


def _other_entry(spot: Spot) -> bool:
    """Two entries of a batch are wrong, and each side names another."""
    numbers = [re.match(r"jobs\[\d+\]: ", text) for text in (spot.their_error, spot.our_error)]
    return spot.cmd == "PUSHB" and all(numbers) and numbers[0][0] != numbers[1][0]  # type: ignore[index]


def _prefix_kept(spot: Spot) -> bool:
    """What the reference finds out only while it admits: it has kept the entries before."""
    late = ("Group ", "Duplicate unique_key", "Cannot replace", "Custom ID ")
    return _prefixed(spot) and spot.their_error.startswith(late)


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
    fewer = isinstance(spot.ours, int) and isinstance(spot.theirs, int) and spot.ours < spot.theirs
    gone = spot.our_error == "Job not found" or spot.ours == "unknown"
    lists = isinstance(spot.ours, list) and isinstance(spot.theirs, list)
    if not (fewer or gone or (lists and len(spot.ours) < len(spot.theirs))):
        return False
    return any(
        entry.get("ttl") is not None
        and isinstance(entry["ttl"], int)
        and (entry["ttl"] < CLOCK_MS_MAX or (entry.get("timestamp") or PAST_MS * 2) == PAST_MS)
        for told in spot.story.asked("PUSH", "PUSHB", "PUSHF")
        for entry in _pushed(told.sent)
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


def _bad_schedule(spot: Spot) -> bool:
    says = "Invalid cron expression: ", "Invalid repeat pattern: "
    return spot.key == "error" and any(
        spot.our_error.removeprefix("jobs[0]: ").startswith(text)
        and spot.their_error.startswith(text)
        for text in says
    )


def _tied(spot: Spot) -> bool:
    """Jobs of one batch, due in the same millisecond: ids decide there, admission here."""
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
            )
    return False


def _same_batch(story: Story, *job_ids: str) -> bool:
    return any(
        set(job_ids) <= {*told.ours.get("ids", ()), *_own_ids(told.sent), *_flow_ids_of(told)}
        for told in story.asked("PUSHB", "PUSHF")
    )


def _flag_as_given(spot: Spot) -> bool:
    """What is no flag was given as one, and the reference shows it as it is."""
    given = [step.get("spoiled") for step in spot.story.steps]
    return spot.key in given and isinstance(spot.ours, bool) and not isinstance(spot.theirs, bool)


def _row_is_active(spot: Spot) -> bool:
    """After a close the list of the reference by state still goes by the row of the run."""
    closed = any("close" in step for step in spot.story.steps[: spot.told.step + 1])
    return closed and spot.cmd == "GetJobs" and "state" in spot.request


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
    linked = any(
        entry.get("parentId")
        for told in spot.story.asked("PUSH", "PUSHB", "PUSHF")
        for entry in _pushed(told.sent)
    )
    shows = (
        "waiting-children" in (spot.theirs, spot.key, _state_of(spot.told.theirs))
        or spot.cmd in ("PULL", "PULLB", "GetFailedChildrenValues", "GetIgnoredChildrenFailures")
        or (spot.cmd == "GetJobCounts" and spot.key in ("waiting", "prioritized"))
    )
    return linked and shows and any(told.ours.get("ok") for told in spot.story.asked("Discard"))


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
    """An id that lives is answered; the reference looks at the dependencies first."""
    lives = spot.their_error.removeprefix("jobs[0]: ").startswith("Dependency job not found")
    ids = {spot.told.ours.get("id"), *spot.told.ours.get("ids", ())}
    return lives and not spot.our_error and bool(ids & _own_ids(spot.request))


def _logs_of_nobody(spot: Spot) -> bool:
    """The log of a job that is gone."""
    if spot.cmd != "GetLogs" or spot.told.ours["data"]["count"]:
        return False
    job_id = spot.request["id"]
    return not any(
        told.sent.get("id") == job_id and told.ours.get("state", "unknown") != "unknown"
        for told in spot.story.told
        if told.request["cmd"] == "GetState" and told.step == spot.told.step and not told.is_asked
    )


def _keep_logs(spot: Spot) -> bool:
    """A job was pushed with a number of lines to keep."""
    return spot.cmd == "GetLogs" and any(
        entry.get("keepLogs") is not None
        for told in spot.story.asked("PUSH", "PUSHB", "PUSHF")
        for entry in _pushed(told.sent)
    )


def _limited_clean(spot: Spot) -> bool:
    return spot.cmd == "Clean" and spot.request.get("limit") is not None


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


def _kinds(events: Any) -> list[str]:
    return [event["eventType"] for event in events] if isinstance(events, list) else []


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
    Rule("wire.md 2.1", "the refusal of a batch names the entry, whatever is wrong", _prefixed),
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
    Rule("wire.md 2.11 [F]", "what is wrong with a schedule is told in our words", _bad_schedule),
    Rule(
        "engine.md 2.1 B",
        "jobs due in the same millisecond go by admission; in 2.9.5 by the text of their ids",
        _tied,
        parts=True,
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
    Rule("engine.md 9 B", "Drain is told as drained", _only_we_tell("drained")),
    Rule("engine.md 9 B", "a replaced or expired job is told as removed", _only_we_tell("removed")),
)
