"""Which job goes first, and when it may go."""

from __future__ import annotations

from typing import Any

from bunqueue.protocol.options import BACKOFF_MS_CAP
from loadtests.differences.likeness import CLOCK_MS_MAX
from loadtests.differences.playing import PARKED_MS
from loadtests.differences.story import Spot, Story, job_at, same_batch

# Between the moment at which a server looks at its clock, and that at which both have answered.
CHANCE_MS = 200


def affine(spot: Spot) -> bool:
    """The puller wants one group only, and gets a job without group from the reference."""
    group = spot.request.get("group")
    if spot.cmd not in ("PULL", "PULLB") or not isinstance(group, dict):
        return False
    jobs = spot.told.theirs.get("jobs") or [spot.told.theirs.get("job")]
    return isinstance(group.get("affinity"), str) and any(
        job is not None and job["groupId"] is None for job in jobs
    )


def by_chance(spot: Spot) -> bool:
    """Both moments of a retry are within what the backoff allows, one failure ago."""
    job = job_at(spot)
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


def due_by_chance(spot: Spot) -> bool:
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


def tied(spot: Spot) -> bool:
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
                or same_batch(spot.story, their_job["id"], our_job["id"])
                or _moved_together(spot.story, our_job["queue"])
            )
    return False


def joined_when_due(spot: Spot) -> bool:
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


def cleaned_in_order(spot: Spot) -> bool:
    """The same jobs were cleaned away, and some of them came in one batch."""
    theirs, ours = (reply.get("ids") or () for reply in (spot.told.theirs, spot.told.ours))
    pair = spot.theirs, spot.ours
    return (
        spot.cmd == "Clean"
        and sorted(theirs) == sorted(ours)
        and all(isinstance(each, str) for each in pair)
        and same_batch(spot.story, *pair)
    )


def all_active_count(spot: Spot) -> bool:
    return (
        spot.key == "maxed" and spot.ours is True and bool(list(spot.story.asked("SetConcurrency")))
    )


def all_active_count_parts(spot: Spot) -> bool:
    """We hand out less than the reference under a concurrency limit."""
    if not list(spot.story.asked("SetConcurrency")):
        return False
    if spot.cmd == "GetJobCounts":  # a pull that waits got one
        fewer = {"active": spot.ours, "waiting": spot.theirs, "prioritized": spot.theirs}
        return spot.key in fewer and fewer[spot.key] == min(spot.ours, spot.theirs)
    if spot.cmd not in ("PULL", "PULLB"):
        return False
    ours, theirs = (
        len(reply.get("jobs") or [job for job in (reply.get("job"),) if job])
        for reply in (spot.told.ours, spot.told.theirs)
    )
    return ours < theirs


def overtaken(spot: Spot) -> bool:
    """The command was pipelined: sent right behind another, or with another behind it."""
    steps, number = spot.story.steps, spot.told.step
    peer = steps[number].get("peer")
    return any(
        step.get("later")
        and step["peer"] == peer
        and step["send"].get("timeout") != PARKED_MS  # one that waits for a job
        for step in steps[max(0, number - 1) : number + 1]
    )


def used_up(spot: Spot) -> bool:
    """As many jobs as were asked about have gone, but for the fraction that has grown back."""
    asked = spot.request.get("maxJobs")
    return spot.key == "rateLimitTtl" and isinstance(asked, int) and asked > 0 and spot.theirs == 0
