"""Parents, children and dependencies."""

from __future__ import annotations

from loadtests.differences.likeness import ABSENT
from loadtests.differences.story import Spot, Story, entries, event_at, job_at, pushed, state_of
from loadtests.differences.values import PAST_MS


def linked_though_failed(spot: Spot) -> bool:
    """A child that had failed was linked, and only our view of it shows the link."""
    job_id = job_at(spot).get("id")
    shows = {"data", "parentId", "__parentId", "__parentQueue"} & set(spot.difference.path)
    return bool(shows) and any(
        told.ours.get("ok") and told.sent["childId"] == job_id
        for told in spot.story.asked("UpdateParent")
    )


def too_old(spot: Spot) -> bool:
    """A parked job was made long ago; the cleanup of the reference has come by.

    It is missed there, or its place in the line once nothing is left to wait for.
    """
    if spot.key in ("waiting-children", "waiting", "prioritized", "delayed"):
        counts = spot.theirs, spot.ours
        are_counts = all(type(each) is int for each in counts)
        return are_counts and counts[0] < counts[1] and _parked_of_old(spot)
    if spot.cmd == "GetJobs" and spot.key == "jobs" and isinstance(spot.theirs, list):
        listed = {job["id"] for job in spot.theirs}
        missing = [job for job in spot.ours if job["id"] not in listed]
        return bool(missing) and all(
            (job["state"], job["createdAt"]) == ("waiting-children", PAST_MS) for job in missing
        )
    if spot.their_error == "Job not found" or spot.theirs == "unknown":
        return _parked_of_old(spot, spot.request.get("id"))
    return False


def _parked_of_old(spot: Spot, job_id: str | None = None) -> bool:
    return any(
        entry.get("timestamp") == PAST_MS and (entry.get("dependsOn") or entry.get("childrenIds"))
        for its_id, _, entry in entries(spot.story)
        if job_id in (None, its_id)
    )


def nothing_to_wait_for(spot: Spot) -> bool:
    """A running job was told to wait for children that it does not have, or no more."""
    return any(
        told.step == spot.told.step and told.ours.get("ok")
        for told in spot.story.asked("MoveToWaitingChildren")
    ) and "waiting-children" in (spot.theirs, state_of(spot.told.theirs))


def children_gone(spot: Spot) -> bool:
    """A parent's children were cancelled, and the reference lets it wait for them."""
    asked = spot.story.asked("RemoveUnprocessedChildren")
    return any(told.step == spot.told.step for told in asked) and "waiting-children" in (
        spot.theirs,
        state_of(spot.told.theirs),
    )


def met_stays_met(spot: Spot) -> bool:
    """A dependency that completed and came back is no longer one of ours."""
    return (
        spot.key == "dependsOn"
        and isinstance(spot.ours, list)
        and set(spot.ours) < set(spot.theirs)
    )


_IN_LINE = ("waiting", "prioritized", "paused", "failed")


def parent_counts(spot: Spot) -> bool:
    """More jobs have failed here: parents whose children failed them."""
    pair = spot.theirs, spot.ours
    return (
        spot.cmd in ("(totals)", "DashboardQueue", "Metrics")
        and (spot.key in ("totalFailed", "failed") or "failed" in spot.request.values())
        and all(type(each) is int for each in pair)
        and pair[0] < pair[1]
        and any(entry.get("failParentOnFailure") for _, _, entry in entries(spot.story))
    )


def failed_by_child(spot: Spot) -> bool:
    """The event of a parent that its child failed says that this is the end."""
    return (
        spot.cmd == "(events)"
        and (spot.key, spot.theirs, spot.ours) == ("terminal", ABSENT, True)
        and event_at(spot)["error"].startswith("Child job ")
    )


def discard_is_a_failure(spot: Spot) -> bool:
    """A child was discarded, and its policy is applied."""
    children = {job_id for job_id, _, entry in entries(spot.story) if entry.get("parentId")}
    children |= {told.sent["childId"] for told in spot.story.asked("UpdateParent")}
    discarded = [
        told
        for told in spot.story.asked("Discard")
        if told.ours.get("ok") and told.sent["id"] in children
    ]
    if not spot.told.is_asked and any(told.step == spot.told.step for told in discarded):
        return True
    shows = (
        "waiting-children" in (spot.theirs, spot.key, state_of(spot.told.theirs))
        or spot.cmd in ("PULL", "PULLB", "GetFailedChildrenValues", "GetIgnoredChildrenFailures")
        or (spot.cmd == "GetJobCounts" and spot.key in _IN_LINE)
    )
    return shows and bool(discarded)


def runs_again(spot: Spot) -> bool:
    """The result of a job that was sent back to run again."""
    again = any(told.ours.get("count") for told in spot.story.asked("RetryCompleted"))
    is_result = spot.cmd == "GetChildrenValues" or spot.key == "returnvalue"
    return is_result and spot.ours is ABSENT and again


def kept_for_consumers(spot: Spot) -> bool:
    """The result of a child that was removed, while somebody needs it."""
    reads = spot.cmd == "GetResult" or (spot.cmd == "GetChildrenValues" and spot.ours is None)
    return reads and spot.theirs is ABSENT and links(spot.story)


def links(story: Story) -> bool:
    return any(
        entry.get("parentId") or entry.get("dependsOn")
        for told in story.asked("PUSH", "PUSHB", "PUSHF")
        for entry in pushed(told.sent)
    )
