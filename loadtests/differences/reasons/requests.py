"""What a request says: mistyped fields, which of two problems is told, what null stands for."""

from __future__ import annotations

import re

from bunqueue.commands import COMMANDS
from loadtests.differences.likeness import ABSENT
from loadtests.differences.story import Spot, error_of, own_ids, stumbled

_asks_for = re.compile(r"(?:jobs\[\d+\]: )?(\S+?)(?:\.\S+)? (?:is required|must be )").match


def mistyped(spot: Spot) -> bool:
    """We refuse what was spoiled on purpose; they stumble over it, or take it."""
    if not spot.spoiled or not spot.our_error:
        return False
    same = spot.their_error.rpartition(": ")[0] == spot.our_error.rpartition(": ")[0] != ""
    return not spot.their_error or same or bool(stumbled(spot.their_error))


def is_taken(spot: Spot) -> bool:
    return mistyped(spot) and not spot.their_error and COMMANDS[spot.cmd].mutates


def other_problem(spot: Spot) -> bool:
    """Both refuse, we because of what is mistyped and they because of something else."""
    errors = spot.their_error, spot.our_error
    if all(errors) and any("Job name must be" in error for error in errors):
        return True  # one inside data
    if all(errors) and spot.cmd == "PUSHF" and spot.spoiled:
        return True
    asked = _asks_for(spot.our_error)
    return bool(spot.spoiled and spot.their_error and asked and asked[1] == spot.spoiled)


def prefixed(spot: Spot) -> bool:
    """The same refusal of a group, ours with the number of the entry."""
    rest = re.sub(r"^jobs\[\d+\]: ", "", spot.our_error)
    is_same = spot.their_error.startswith("group.") and rest == spot.their_error
    return spot.cmd == "PUSHB" and spot.key == "error" and is_same


def other_entry(spot: Spot) -> bool:
    """Two entries of a batch are wrong, and each side names another."""
    numbers = [re.match(r"jobs\[\d+\]: ", text) for text in (spot.their_error, spot.our_error)]
    return spot.cmd == "PUSHB" and all(numbers) and numbers[0][0] != numbers[1][0]  # type: ignore[index]


# What the reference finds out about an entry of a batch only while it admits it.
_LATE = ("Group ", "Duplicate unique_key", "Cannot replace", "Custom ID ")


def prefix_kept(spot: Spot) -> bool:
    """Both refuse a batch, and the reference has kept the entries before the bad one."""
    return not spot.told.is_asked and any(
        told.step == spot.told.step
        and error_of(told.theirs).startswith(_LATE)
        and (error_of(told.theirs) == error_of(told.ours) or "(sizeLimit" in error_of(told.ours))
        for told in spot.story.asked("PUSHB")
    )


def bad_schedule(spot: Spot) -> bool:
    says = "Invalid cron expression: ", "Invalid repeat pattern: "
    return spot.key == "error" and any(
        spot.our_error.removeprefix("jobs[0]: ").startswith(text)
        and spot.their_error.startswith(text)
        for text in says
    )


def flag_as_given(spot: Spot) -> bool:
    """What is no flag was given as one, and the reference shows it as it is."""
    given = [step.get("spoiled") for step in spot.story.steps]
    return spot.key in given and isinstance(spot.ours, bool) and not isinstance(spot.theirs, bool)


def no_count(spot: Spot) -> bool:
    return spot.cmd == "PULLB" and spot.spoiled == "count" and spot.request.get("count") is None


def cycle(spot: Spot) -> bool:
    return spot.our_error == "flow contains a dependency cycle" and not spot.their_error


def owner_that_is_none(spot: Spot) -> bool:
    return spot.spoiled == "owner" and not isinstance(spot.request.get("owner"), str)


def half_done(spot: Spot) -> bool:
    """The reference stumbled over what was spoiled, with a part of the request done."""
    if spot.told.is_asked or not spot.story.steps[spot.told.step].get("spoiled"):
        return False
    asked = [told for told in spot.story.told if told.is_asked and told.step == spot.told.step]
    return bool(asked and stumbled(error_of(asked[0].theirs)))


def truthy_removal(spot: Spot) -> bool:
    """An outcome says with something other than true that its job is to be forgotten."""
    spoiled = spot.story.steps[spot.told.step].get("spoiled")
    return spoiled in ("removeOnComplete", "removeOnFail", "removeOnCompletes")


def id_before_rest(spot: Spot) -> bool:
    """An id that lives is answered; the reference looks at the job's edges first."""
    edges = "Dependency job not found", "Parent job "
    lives = spot.their_error.removeprefix("jobs[0]: ").startswith(edges)
    ids = {spot.told.ours.get("id"), *spot.told.ours.get("ids", ())}
    return lives and not spot.our_error and bool(ids & own_ids(spot.request))


def null_error(spot: Spot) -> bool:
    """A failure came with null for its error."""
    return (spot.key, spot.theirs, spot.ours) == ("error", None, ABSENT) and any(
        "error" in told.sent and told.sent["error"] is None for told in spot.story.asked("FAIL")
    )
