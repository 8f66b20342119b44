"""How jobs and deliveries end, and what is left of them."""

from __future__ import annotations

from loadtests.differences.likeness import CLOCK_MS_MAX
from loadtests.differences.playing import Request
from loadtests.differences.story import Spot, entries, state_of
from loadtests.differences.values import PAST_MS


def in_backoff(spot: Spot) -> bool:
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
    took = spot.their_error == "Job not found" or state_of(spot.told.theirs) == "completed"
    return took and any(each in failed for told in batch for each in told.sent["ids"])


def has_expired(spot: Spot) -> bool:
    """A job was pushed whose life is over by now; the reference finds out when it is pulled."""
    short = [(job_id, queue) for job_id, queue, entry in entries(spot.story) if _is_short(entry)]
    if spot.our_error.startswith(_ABOUT_NOBODY) or spot.ours == "unknown":
        names = [spot.request.get(key) for key in _ID_KEYS]
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


def no_grace(spot: Spot) -> bool:
    """Clean was not told how old jobs must be, and the reference finds none old enough."""
    return spot.cmd == "Clean" and "grace" not in spot.request


def half_a_millisecond(spot: Spot) -> bool:
    """A job was pushed whose time to run is no whole number."""
    return any(isinstance(entry.get("timeout"), float) for _, _, entry in entries(spot.story))


def named_state(spot: Spot) -> bool:
    """Clean was asked for one state of the queued ones, and the reference takes all."""
    states = ("delayed", "prioritized", "paused", "waiting", "wait")
    return spot.cmd == "Clean" and spot.told.is_asked and spot.request.get("state") in states


def removal_without_result(spot: Spot) -> bool:
    """ACKB was told to forget jobs and given no results."""
    return any(
        told.step == spot.told.step
        and "results" not in told.sent
        and any(told.sent.get("removeOnCompletes") or ())
        for told in spot.story.asked("ACKB")
    )


def limited_clean(spot: Spot) -> bool:
    """Of what is there the reference takes less than the limit allows."""
    theirs, ours = (len(reply.get("ids", ())) for reply in (spot.told.theirs, spot.told.ours))
    return spot.cmd == "Clean" and spot.request.get("limit") is not None and theirs < ours


def whole_history(spot: Spot) -> bool:
    """The charged attempts before a move to waiting."""
    both = isinstance(spot.ours, list) and isinstance(spot.theirs, list)
    return (
        spot.cmd == "Dlq" and spot.key == "attempts" and both and len(spot.ours) > len(spot.theirs)
    )


def lock_stayed(spot: Spot) -> bool:
    """A job is done; in the reference its lease stayed after a batch that was refused in part."""
    if spot.cmd in ("JobHeartbeat", "ExtendLock", "JobHeartbeatB", "ExtendLocks"):
        ids = spot.request.get("ids", [spot.request.get("id")])
        batches = (told for told in spot.story.asked("ACKB") if not told.ours.get("ok"))
        return any(job_id in batch.sent["ids"] for batch in batches for job_id in ids)
    return spot.their_error.startswith(
        ("Lock token required", "Invalid or expired lock token")
    ) and spot.our_error.startswith("Job not found or not in processing")
