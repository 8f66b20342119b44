"""What lists, logs, journals and registers show."""

from __future__ import annotations

from collections.abc import Callable

from bunqueue.commands import COMMANDS
from loadtests.differences.story import Spot, Story, entries, error_of, job_at, kinds


def list_is_stale(spot: Spot) -> bool:
    """The list of the reference shows what its own GetJob does not."""
    if spot.cmd != "GetJobs" or spot.key not in ("startedAt", "uniqueKey", "runAt"):
        return False
    ours = job_at(spot)
    for told in reversed(spot.story.told):
        if told.request["cmd"] == "GetJob" and isinstance(told.theirs.get("job"), dict):
            theirs = told.theirs["job"]
            if theirs["id"] == ours.get("id"):
                return bool(theirs[spot.key] != spot.theirs)
    return False


def heartbeat_of_nobody(spot: Spot) -> bool:
    if spot.key != "lastHeartbeat":
        return False
    job = job_at(spot)
    return (
        spot.cmd == "GetJobs"
        or job.get("state", "active") != "active"
        or (spot.cmd in ("Dlq", "PUSHF") or job.get("startedAt") is None)
    )


def progress_at_the_end(spot: Spot) -> bool:
    """A completed job shows 100; without a file, the reference shows what was reported last."""
    return (spot.key, spot.ours) == ("progress", 100) and job_at(spot).get("state") == "completed"


def row_is_active(spot: Spot) -> bool:
    """After a close, lists by state of the reference still go by the row of the run."""
    by_row = spot.cmd == "GetJobs" and ("state" in spot.request or spot.key == "startedAt")
    if not by_row and spot.difference.path[:2] != ("data", "jobs"):
        return False
    return left_runs(spot) > 0


def lost_again(spot: Spot) -> bool:
    """A job has been left by a second connection in a row, and waits, or by the last one."""
    if str(job_at(spot).get("failedReason")).startswith("Worker lost "):
        return True
    is_later = (
        (spot.key == "delayed" and spot.ours > spot.theirs)
        or (spot.key in ("waiting", "prioritized") and spot.ours < spot.theirs)
        or (spot.key == "state" and spot.ours == "delayed")
        or (spot.cmd in ("PULL", "PULLB") and spot.key in ("job", "jobs"))
    )
    return is_later and left_runs(spot) > 1


def left_runs(spot: Spot) -> int:
    """Return how many connections have closed that had pulled."""
    return sum(
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


def handed_out_at_once(spot: Spot) -> bool:
    """A job of a flow went to a pull that waited for it."""
    return (
        spot.cmd == "PUSHF" and spot.key in ("startedAt", "timeline") and spot.ours != spot.theirs
    )


def more_is_told(spot: Spot) -> bool:
    """The journal counts our further events too."""
    return spot.cmd == "TrimEvents" and isinstance(spot.ours, int) and spot.ours > spot.theirs


def names_of_nothing(spot: Spot) -> bool:
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


# Commands that make jobs go without naming them.
_SWEEPING = (
    "Obliterate",
    "Drain",
    "Clean",
    "PurgeDlq",
    "SetDlqConfig",
    "RemoveUnprocessedChildren",
)


def logs_of_nobody(spot: Spot) -> bool:
    """The log of a job that was gone when it was last asked for, or has been swept away since."""
    if spot.cmd != "GetLogs" or spot.told.ours.get("data", {}).get("count", 1):
        return False
    for told in reversed(spot.story.told):
        if told.is_asked and told.ours.get("ok") and told.request["cmd"] in _SWEEPING:
            return True
        if (
            told.request["cmd"] in ("GetJob", "GetState")
            and told.sent.get("id") == spot.request["id"]
        ):
            return error_of(told.ours) == "Job not found" or told.ours.get("state") == "unknown"
    return True


def keep_logs(spot: Spot) -> bool:
    """The job was pushed with a number of lines to keep."""
    return spot.cmd == "GetLogs" and any(
        entry.get("keepLogs") is not None and job_id == spot.request["id"]
        for job_id, _, entry in entries(spot.story)
    )


def worker_moved(spot: Spot) -> bool:
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


_BRINGS_NOTHING = ("PULL", "PULLB", "PromoteJobs", "RetryDlq", "RetryCompleted", "Drain", "Clean")


def resumed_nobody(spot: Spot) -> bool:
    """Resume of a queue of which nothing is known is in the journal of the reference."""
    if spot.cmd != "TrimEvents" or not all(type(each) is int for each in (spot.theirs, spot.ours)):
        return False
    queue = spot.request["queue"]
    first = next(
        (
            told.request["cmd"]
            for told in spot.story.told
            if told.is_asked
            and told.sent.get("queue") == queue
            and COMMANDS[told.request["cmd"]].mutates
            and told.request["cmd"] not in _BRINGS_NOTHING
        ),
        None,
    )
    resumes = sum(told.sent.get("queue") == queue for told in spot.story.asked("Resume"))
    return first == "Resume" and 0 < spot.theirs - spot.ours <= resumes


def only_we_tell(kind: str) -> Callable[[Spot], bool]:
    """The events of a job are the same but for those of one kind."""

    def explains(spot: Spot) -> bool:
        if spot.cmd != "(events)" or len(spot.difference.path) != 1:
            return False
        ours = kinds(spot.ours)
        return kind in ours and [each for each in ours if each != kind] == kinds(spot.theirs)

    return explains
