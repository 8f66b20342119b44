"""Whose an id or a dedup key is."""

from __future__ import annotations

from loadtests.differences.story import Spot, Story, flow_ids_of, job_at, kinds, own_ids, pushed


def _flow_ids(story: Story) -> set[str]:
    return {job_id for told in story.asked("PUSHF") for job_id in flow_ids_of(told)}


def takes_a_taken_id(spot: Spot) -> bool:
    """A push names the id of a job that was not pushed with it; the reference takes it for new."""
    made = _flow_ids(spot.story)
    for told in spot.story.asked("PUSH", "PUSHB"):
        if told.step == spot.told.step:
            return bool(own_ids(told.sent) & made)
        made |= {told.ours.get("id"), *told.ours.get("ids", ())} - own_ids(told.sent)
    return False


# What a keyed job goes through without an end, while the reference lets go of its key.
_RETURNS = ("FAIL", "MoveToWait", "MoveToDelayed", "ChangeDelay", "MoveToWaitingChildren")


def _keyed_came_back(story: Story) -> bool:
    keyed = any(
        entry.get("uniqueKey") or (entry.get("jobOptions") or {}).get("uniqueKey")
        for told in story.asked("PUSH", "PUSHB")
        for entry in pushed(told.sent)
    )
    closed = any("close" in step for step in story.steps[: story.told[-1].step + 1])
    keyed |= any(told.sent.get("uniqueKey") for told in story.asked("Cron"))
    return keyed and (closed or any(told.ours.get("ok") for told in story.asked(*_RETURNS)))


def key_kept(spot: Spot) -> bool:
    """We name the owner of a key, and the reference names none or a later one."""
    if spot.cmd != "GetDeduplicationJobId" or spot.key != "jobId" or spot.ours is None:
        return False
    return _keyed_came_back(spot.story)


def key_kept_parts(spot: Spot) -> bool:
    """A push, or a scheduler that is set anew, meets a key that the reference has let go of."""
    if not spot.told.is_asked:
        return _keyed_came_back(spot.story) and any(
            told.step == spot.told.step and told.sent.get("uniqueKey")
            for told in spot.story.asked("Cron")
        )
    if spot.cmd not in ("PUSH", "PUSHB", "RemoveDeduplicationKey", "RemoveJobDeduplicationKey"):
        return False
    keyed = spot.cmd.startswith("Remove") or any(
        entry.get("uniqueKey") for entry in pushed(spot.request)
    )
    return keyed and _keyed_came_back(spot.story)


def met_by_key(spot: Spot) -> bool:
    """A push named the id of a job that was not pushed with it, and the job's key."""
    theirs, ours = kinds(spot.theirs), kinds(spot.ours)
    named = {
        job_id
        for told in spot.story.asked("PUSH", "PUSHB")
        if any(entry.get("uniqueKey") for entry in pushed(told.sent))
        for job_id in own_ids(told.sent)
    }
    return (
        spot.cmd == "(events)"
        and spot.key in named
        and "duplicated" in theirs
        and [each for each in theirs if each != "duplicated"] == ours
    )


def key_let_go(spot: Spot) -> bool:
    """Its owner is gone by Drain or Clean; the entry of the reference stays."""
    return (
        spot.cmd == "GetDeduplicationJobId"
        and spot.ours is None
        and bool(list(spot.story.asked("Drain", "Clean")))
    )


def key_stays_away(spot: Spot) -> bool:
    """A key was taken from a job; the reference gives it back when the job comes back."""
    taken = spot.story.asked("RemoveJobDeduplicationKey", "RemoveDeduplicationKey")
    return spot.cmd == "GetDeduplicationJobId" and spot.ours is None and bool(list(taken))


def key_as_pushed(spot: Spot) -> bool:
    """Only in the row of the reference a key that was taken from its job is gone."""
    return spot.key == "uniqueKey" and spot.theirs is None and isinstance(spot.ours, str)


def successor_has_all(spot: Spot) -> bool:
    """The successor of a repeated job keeps how it meets twins."""
    keys = ("deduplicationExtend", "deduplicationTtl", "deduplicationReplace")
    return spot.key in keys and not spot.theirs and (job_at(spot).get("repeat") is not None)


def twin_told_second(spot: Spot) -> bool:
    """A batch with twins: the reference tells of the second before the first is pushed."""
    if spot.cmd != "(events)" or spot.key != "eventType":
        return False
    return {spot.theirs, spot.ours} == {"pushed", "duplicated"}


def key_of_nobody(spot: Spot) -> bool:
    """The entry that Drain or Clean left is there to be removed."""
    return (
        spot.cmd == "RemoveDeduplicationKey"
        and (spot.theirs, spot.ours) == (1, 0)
        and bool(list(spot.story.asked("Drain", "Clean")))
    )


def twin_in_batch(spot: Spot) -> bool:
    """A job depends on an entry of its batch for which another job answers."""
    if "dependsOn" not in spot.difference.path:
        return False
    answers = {
        (entry["customId"], job_id)
        for told in spot.story.asked("PUSHB")
        for entry, job_id in zip(pushed(told.sent), told.ours.get("ids", ()), strict=False)
        if isinstance(entry.get("customId"), str)
    }
    if isinstance(spot.theirs, list) and isinstance(spot.ours, list):
        known = {pair for pair in answers if pair[0] in spot.theirs}
        left = [each for each in spot.theirs if each not in spot.ours]
        return all(any(pair[0] == each and pair[1] in spot.ours for pair in known) for each in left)
    return (spot.theirs, spot.ours) in answers
