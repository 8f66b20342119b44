"""The invariants of engine.md 14 that need no socket, held after every step of a history.

``RULES`` says which method checks which invariant; ``test_mutations.py`` that it would notice.
Everything is told from outside the engine's operations: from pictures before and after a step,
replies, events, and what the file gives back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bunqueue.engine.events import Event
from bunqueue.engine.ports import MUST_COMMIT
from bunqueue.protocol.replies import INTERNAL_ERROR
from tests.simulation.crons import Crons
from tests.simulation.deliveries import Deliveries
from tests.simulation.families import Families
from tests.simulation.picture import Picture, control_of, difference, ties_of
from tests.simulation.world import Asked, Broken, World
from tests.support.whole import check_whole

# Method of ``Rules`` -> what it checks.
RULES = {
    "whole": ("I1", "I2", "I26", "I27", "I43"),
    "moved": ("I4", "I6", "I7", "I9", "I10", "I42"),
    "told": ("I3", "I11", "I12", "I41", "I48"),
    "delivered": ("I14", "I15", "I16", "I17", "I19", "I20", "I24", "I36"),
    "hear": ("I6", "I49"),
    "file_is_right": ("I3", "I50"),
    "restarted": ("I4", "I38", "I39", "I40", "I41"),
    "undone": ("I48", "I49"),
    "deliveries.handed_out": ("I5", "I20", "I21", "I22", "I24"),
    "deliveries.looked": ("I5",),
    "deliveries.settled": ("I39",),
    "families.commanded": ("I28", "I32"),
    "families.file_changed": ("I28", "I32"),
    "families.settled": ("I29", "I30", "I33"),
    "families.gave_up": ("I33",),
    "crons.looked": ("I45",),
    "crons.counted": ("I45",),
    "crons.overlap": ("I45",),
}

Edges = set[tuple[str, str]]
GONE = "gone"
ENDED = ("completed", "failed", GONE)

# What the end of one job may do to those that wait for it (engine.md 5.3, 5.4).
CASCADE: Edges = {("parked", "queued"), ("parked", "failed"), ("parked", GONE)}
# What a claim that meets an expired job does (4.5).
EXPIRED: Edges = {("queued", GONE), ("queued", "failed")}
ADMITS: Edges = {
    ("completed", GONE), ("failed", GONE), ("queued", GONE), ("parked", GONE), ("queued", "parked"),
    ("admitted", "queued"), ("admitted", "parked"), ("admitted", GONE),
}  # fmt: skip
# Command -> edges of the job it names, or of any job if it names none; the table of 1.2.
EDGES: dict[str, Edges] = {
    "PUSH": ADMITS,
    "PUSHB": ADMITS,
    "PUSHF": set(),
    "PULL": {("queued", "active")} | EXPIRED,
    "PULLB": {("queued", "active")} | EXPIRED,
    "ACK": {("active", "completed"), ("queued", "completed"), ("active", GONE), ("queued", GONE)},
    "ACKB": {("active", "completed"), ("queued", "completed"), ("active", GONE), ("queued", GONE)},
    "FAIL": {("active", "queued"), ("active", "failed"), ("active", GONE)},
    "Cancel": {("queued", GONE), ("parked", GONE)},
    "Discard": {
        ("queued", "failed"), ("active", "failed"), ("queued", GONE), ("active", GONE),
    },
    "ChangeDelay": {("active", "queued")},
    "MoveToDelayed": {("active", "queued")},
    "MoveToWait": {("active", "queued"), ("failed", "queued")},
    "MoveToWaitingChildren": {("active", "parked"), ("active", "queued")},
    # Of the parent of a child that has failed already, whose policy applies at once.
    "UpdateParent": {("queued", "parked"), ("queued", "failed"), ("queued", GONE)},
    "RemoveUnprocessedChildren": {("queued", GONE), ("parked", GONE)},
    "Drain": {("queued", GONE)},
    "Clean": {("queued", GONE), ("completed", GONE), ("failed", GONE)},
    "PurgeDlq": {("failed", GONE)},
    "RemoveDlqJob": {("failed", GONE)},
    "SetDlqConfig": {("failed", GONE)},
    "RetryDlq": {("failed", "queued")},
    "RetryCompleted": {("completed", "queued")},
    "Cron": {("queued", GONE)},
    "Obliterate": {
        (place, GONE)
        for place in ("queued", "parked", "active", "completed", "failed", "admitted")
    },
}  # fmt: skip
TICK: Edges = {
    ("active", "queued"), ("active", "failed"), ("active", GONE), ("failed", "queued"),
    ("failed", GONE), ("completed", GONE), ("queued", "active"),
    ("admitted", "failed"),  # shown late, after an undo, and given up for a child in the same tick
} | EXPIRED | CASCADE | ADMITS  # fmt: skip
# What its peer leaves goes back, or is given up if it has lost as many workers as may stall.
CLOSE: Edges = {("active", "queued"), ("active", "failed"), ("active", GONE), ("failed", GONE)}
# At a commit: what was invisible appears, who waited for it goes on.
TURN: Edges = ADMITS | CASCADE | {
    ("admitted", "active"), ("admitted", GONE), ("queued", "active"), ("parked", "active"),
    ("completed", "queued"),
}  # fmt: skip
RESTART: Edges = {("active", "queued"), ("active", "failed"), ("active", GONE)} | CASCADE

_BACK = ("active", "queued")

BY_ITSELF = ("tick", "turn", "close")
GIVEN_UP: Edges = {("parked", "failed"), ("parked", GONE)}
CHARGES = ("FAIL", "tick", "restart", "turn", "ACKB", "close")
WRITES_DATA = (
    "Update",
    "UpdateParent",
    "RemoveChildDependency",
    "PUSH",
    "PUSHB",
    "PUSHF",
    "turn",
    "tick",
)
TOKENED = ("ACK", "FAIL", "ChangeDelay", "MoveToDelayed", "MoveToWait", "Discard",
           "MoveToWaitingChildren")  # fmt: skip
# Answer before the commit, as engine.md 11.2 allows.
UNSYNCED = ("PULL", "PULLB", "JobHeartbeat", "ExtendLock", "AddLog", "RateLimitGroup", "WaitJob",
            "RegisterWorker")  # fmt: skip
PUSHES = ("PUSH", "PUSHB")


class Rules:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pictures: dict[int, Picture] = {}
        self.control: dict[str, Any] = {}
        self.tokens: set[str] = set()
        self.heard: dict[tuple[str, str], int] = {}
        self.ends: dict[str, int] = {}
        self.end_events: dict[str, int] = {}
        self.has_jumped = False
        self.set_back_ms = 0  # by how much in all: what an undo brings back may be as old
        self.jump_cut = -1  # the newest batch when the clock was set last
        self.checks = 0
        self.deliveries = Deliveries(world)
        self.families = Families(world)
        self.crons = Crons()
        world.answered = self.told
        world.heard = self.hear
        self.look()

    def look(self) -> None:
        """Take the pictures against which the next step is held."""
        self.pictures = self.world.pictures()
        self.control = control_of(self.world.engine, self.world.now)

    # -- after every step --------------------------------------------------------------------------

    def whole(self) -> None:
        """Places, index, counters, keys and connections agree."""
        check_whole(self.world.engine, self.world.now, self.world.peers)
        self.crons.overlap(self.pictures)
        self.crons.counted(_crons(self.control))

    def look_at_control(self, is_undone: bool = False) -> None:
        """Look at what is set, and hold the schedulers to what they were before."""
        before, self.control = self.control, control_of(self.world.engine, self.world.now)
        self.crons.looked(_crons(before), _crons(self.control), is_undone, self.has_jumped)

    def settled(self) -> None:
        """Nobody waits for what has happened, or runs for a connection that has closed."""
        self.families.settled(self.world.pictures())
        self.deliveries.settled()

    def moved(
        self,
        kind: str,
        edges: Edges | None,
        named: Iterable[str] | None = None,
        others: Edges = frozenset(),  # type: ignore[assignment]
        has_waiters: bool = True,
    ) -> bool:
        """Every job that has changed was allowed to.

        Args:
            kind: The command, or the kind of step.
            edges: What the named jobs may do; None is anything, after a failed commit.
            named: Their ids; None is every job.
            others: What the other jobs may do.
            has_waiters: A job that becomes ready may be handed out at once.

        Returns:
            Whether anything has changed.
        """
        before, after = self.pictures, self.world.pictures()
        self.pictures = after
        if before == after:
            return False
        self.checks += 1
        names = None if named is None else set(named)
        own = _with_claims(edges or set(), has_waiters)
        rest = _with_claims(set(others) | CASCADE, has_waiters)
        for seq, old in before.items():
            new = after.get(seq)
            if new is old or new == old:
                continue
            place = GONE if new is None else new.place
            is_named = names is None or old.id in names
            self.deliveries.looked(kind, old, new, is_undone=edges is None)
            # A run that is taken from a closed connection goes back, and may meet its time to live.
            has_expired = self.deliveries.has_left(old) and self._is_expired(old, {_BACK})
            self.families.looked(kind, old, new, has_expired)
            if place in ENDED and old.place != place:
                self.ends[old.id] = self.ends.get(old.id, 0) + 1
            if edges is None:
                continue
            if place != old.place:
                edge = (old.place, place)
                allowed = own | rest if is_named else rest
                if edge not in allowed and not self._is_expired(old, allowed):
                    raise Broken(f"{kind} moved {old.id} {edge}\n  {old}\n  {new}")
                if edge == ("active", GONE) and kind in BY_ITSELF and not self._may_vanish(old):
                    raise Broken(f"{kind} moved {old.id} {edge}\n  {old}")
                if edge in GIVEN_UP and not (is_named and edge in own):
                    if new is None and not _is_bounded(self.control):
                        raise Broken(f"{kind} kept no dead letter of {old}")
                    self.families.gave_up(old, new, before, after)
            if new is not None:
                self._changed(kind, old, new)
        self.families.arrived([new for seq, new in after.items() if seq not in before])
        for seq, new in after.items():
            if seq in before:
                continue
            self.families.appeared(new, after)
            self.crons.appeared(new)
            if edges is not None and new.attempts:
                raise Broken(f"{kind} made a job that has failed before: {new}")
            if new.place in ENDED:
                self.ends[new.id] = self.ends.get(new.id, 0) + 1
        return True

    def _changed(self, kind: str, old: Picture, new: Picture) -> None:
        if new.id != old.id or new.queue != old.queue or new.created_at != old.created_at:
            raise Broken(f"{kind} made another job of {old}: {new}")
        if new.data != old.data and kind not in WRITES_DATA:
            raise Broken(f"{kind} changed the data of {old}")
        if new.priority != old.priority and kind != "ChangePriority":
            raise Broken(f"{kind} changed the priority of {old}")
        is_rerun = old.place in ("failed", "completed") and new.place in ("queued", "active")
        charge = new.attempts - old.attempts
        if charge < 0 and not is_rerun:
            raise Broken(f"{kind} took attempts back from {old}: {new}")
        if charge > 0 and (charge > 1 or kind not in CHARGES):
            raise Broken(f"{kind} charged {charge} to {old}")
        if new.place in ("queued", "active", "parked") and new.attempts >= _number(
            new, "maxAttempts", 3
        ):
            raise Broken(f"{kind} let a job go on that has used up its attempts: {new}")
        if new.place != "completed" and new.result is not None:
            raise Broken(f"{kind} left a result on {new}")

    def _may_vanish(self, job: Picture) -> bool:
        """Say whether nothing is kept of a run that ends by itself."""
        return (
            (job.key[1] or "").startswith("cron:")
            or _flag(job, "removeOnFail")
            or _number(job, "ttl", 0) > 0
            or _is_bounded(self.control)
        )

    def _is_expired(self, job: Picture, edges: Edges = frozenset()) -> bool:  # type: ignore[assignment]
        """Say whether a claim would find that the job's time is over.

        One that ``edges`` let into the queue may be met by a claim of the same step.
        """
        ttl = _number(job, "ttl", 0)
        born = job.letters[2] or job.created_at
        is_queued = job.place == "queued" or (job.place, "queued") in edges
        return is_queued and bool(ttl) and self.world.now > born + ttl

    # -- commands ----------------------------------------------------------------------------------

    def asking(self, request: dict[str, Any]) -> None:
        """A command is about to be done."""
        own = EDGES.get(request["cmd"], set())
        ends_runs = any(old == "active" for old, _ in own)
        self.deliveries.asking(request, _named(request) if ends_runs else ())

    def commanded(self, asked: Asked, has_waiters: bool) -> None:
        """A command did what its row of the table allows, and asks for its commit."""
        request = asked.request
        name = request["cmd"]
        before, control = self.pictures, self.control
        own = EDGES.get(name, set())
        named = _named(request)
        # A job that is buried pushes the oldest dead letter out of a full queue of them.
        others: Edges = {("failed", GONE)} if _is_bounded(control) else set()
        if name == "UpdateParent":
            named = [request["childId"], request["parentId"]]
        elif name == "RemoveUnprocessedChildren":
            named = None
        if name in ("PULL", "PULLB"):
            has_waiters = True
        is_refused = asked.reply is not None and asked.reply["ok"] is False
        has_moved = self.moved(name, own, named, others, has_waiters)
        self.deliveries.leaving = None
        self.look_at_control()
        if not is_refused:
            self.families.commanded(asked, before, self.pictures)
        if is_refused:
            self._refused(asked, before, has_moved, control)
        elif name not in UNSYNCED and asked.reply is not None and asked.waits != MUST_COMMIT:
            self._answered_early(asked, before, has_moved, control)
        if name in TOKENED and "id" in request:
            self._held_by_token(request, before)
        if name in ("PULL", "PULLB"):
            self.delivered(request, before, has_waiters)

    def _refused(
        self, asked: Asked, before: dict[int, Picture], has_moved: bool, control: dict[str, Any]
    ) -> None:
        """An error left no effect, or the documented one."""
        if asked.request["cmd"] == "ACKB" or not (has_moved or control != self.control):
            return  # a refused ACKB may have completed those before the unknown one
        if "extended TTL" in str(asked.reply):
            return
        raise Broken(
            f"{asked.request} was refused and did something: {asked.reply}"
            f"\n{difference(before, self.pictures)}{difference(control, self.control)}"
        )

    def _answered_early(
        self, asked: Asked, before: dict[int, Picture], has_moved: bool, control: dict[str, Any]
    ) -> None:
        """What was acknowledged without waiting may be lost: only a plain push may be."""
        request = asked.request
        if request["cmd"] in PUSHES:
            fresh = [seq for seq in self.pictures if seq not in before]
            rest = {seq: job for seq, job in self.pictures.items() if seq in before}
            if request.get("durable") and fresh:
                raise Broken(f"a durable push was answered before its commit: {request}")
            # Whom a poll was handed meanwhile, its own answer tells of. And one that has lost its
            # key to the newcomer is lost with it, or not at all.
            has_moved = {seq for seq in before if seq not in rest} or any(
                job._replace(key=None) != before[seq]._replace(key=None)
                for seq, job in rest.items()
                if (before[seq].place, job.place) != ("queued", "active")
            )
        now = self.world.now
        if has_moved or _settings(control, now) != _settings(self.control, now):
            raise Broken(
                f"{request} was answered before its commit"
                f"\n{difference(before, self.pictures)}{difference(control, self.control)}"
            )

    def _held_by_token(self, request: dict[str, Any], before: dict[int, Picture]) -> None:
        """A token that is not the lease's changes nothing of the job."""
        for seq, old in before.items():
            if old.id != request["id"] or old.place != "active" or old.token is None:
                continue
            if request.get("token") != old.token and self.pictures.get(seq) != old:
                raise Broken(f"{request} without the right token changed {old}")

    def told(self, asked: Asked) -> None:
        """A reply that had to wait for its commit comes after it."""
        reply = asked.reply
        assert reply is not None
        if reply["ok"] is not True or asked.waits != MUST_COMMIT:
            return
        if self.world.committed < asked.cut:
            raise Broken(f"{asked.request} was answered before batch {asked.cut} was written")

    # -- deliveries --------------------------------------------------------------------------------

    def delivered(
        self, request: dict[str, Any], before: dict[int, Picture], has_waiters: bool
    ) -> None:
        """What a pull has made active was next, ready, and within the limits."""
        world, name = self.world, request["queue"]
        now = world.now
        taken = [
            job
            for seq, job in self.pictures.items()
            if job.place == "active" and before[seq].place != "active" and job.queue == name
        ]
        for job in taken:
            old = next(other for other in before.values() if other.seq == job.seq)
            if old.run_at > now + self.set_back_ms or self._is_expired(old):
                raise Broken(f"delivered out of time, now {now}: {old}")
            if job.token is not None and job.token in self.tokens:
                raise Broken(f"a token was given twice: {job}")
            if job.token is not None:
                self.tokens.add(job.token)
        queue = world.engine.queues.get(name)
        if queue is None:
            return
        gate = queue.gate
        if taken and gate.is_paused:
            raise Broken(f"a paused queue delivered {taken}")
        was_active = sum(job.place == "active" and job.queue == name for job in before.values())
        is_over = gate.concurrency is not None and len(queue.active) > gate.concurrency
        if taken and is_over:
            raise Broken(f"{len(queue.active)} active, the limit is {gate.concurrency}")
        if has_waiters and queue.waiters:
            return
        if any(job.extra.losses for job in (*queue.run_set.jobs(), *queue.active.values())):
            return  # who may be what kills its workers goes alone, behind the others
        if any(before[job.seq].run_at > now for job in taken):
            return  # older than the clock: where it stood in line cannot be told from its moment
        affinity = (request.get("group") or {}).get("affinity", "any")
        ready = sorted(
            (
                job
                for job in before.values()
                if job.queue == name and job.place == "queued" and job.run_at <= now
                and not self._is_expired(job) and job.group_id is None
            ),
            key=_rank,
        )  # fmt: skip
        plain = [job for job in taken if job.group_id is None]
        if affinity in ("any", None):
            room = gate.room(was_active, now) if gate.rate is None else len(taken)
            wanted = min(int(request.get("count") or 1), room)
            due = [job.seq for job in ready][:wanted] if not gate.is_paused else []
            if gate.rate is not None:
                due = due[: len(plain)]
            if self.has_jumped:  # what was ready is as old as the clock: any of these is next
                ranks = sorted(_rank(job)[:-1] for job in plain)
                is_next = ranks == sorted(_rank(job)[:-1] for job in ready[: len(due)])
            else:
                is_next = set(due) == {job.seq for job in plain}
            if not is_next:
                raise Broken(
                    f"{request}: delivered {[job.seq for job in plain]}, next were {due}"
                    f" of {[job.seq for job in ready]}"
                )
        for group in {job.group_id for job in taken} - {None}:
            in_line = sorted(
                (job.priority, job.seq)
                for job in before.values()
                if job.queue == name and job.place == "queued" and job.run_at <= now
                and job.group_id == group and not self._is_expired(job)
            )  # fmt: skip
            got = sorted((job.priority, job.seq) for job in taken if job.group_id == group)
            if got != in_line[: len(got)]:
                raise Broken(f"{request}: group {group} gave {got}, next were {in_line}")

    # -- events ------------------------------------------------------------------------------------

    def hear(self, event: Event) -> None:
        """Events of one job come in the order of its transitions, and none is made up."""
        key = event.queue_name, event.job_id
        if event.is_retracted or event.number <= self.heard.get(key, 0):
            raise Broken(f"{event.kind} of {key} was told out of order")
        self.heard[key] = event.number
        is_end = event.kind == "completed" or (
            event.kind == "failed" and event.extra.get("terminal")
        )
        if is_end:
            count = self.end_events[event.job_id] = self.end_events.get(event.job_id, 0) + 1
            if count > self.ends.get(event.job_id, 0):
                # An end within this very turn has not been seen yet.
                self.moved("turn", None)
            if count > self.ends.get(event.job_id, 0):
                raise Broken(f"{event.kind} of {key} told {count} times")

    # -- the file ----------------------------------------------------------------------------------

    def file_is_right(self) -> None:
        """The file gives back what memory was when its newest batch was cut."""
        world = self.world
        if world.committed > self.jump_cut:
            self.jump_cut = -1
        expected, found = world.last_cut[0], world.file_pictures()
        if expected != found:
            raise Broken(f"the file is not what was cut\n{difference(expected, found)}")

    def restarted(self) -> None:
        """Recovery charged each interrupted run once, and changed nothing else."""
        world = self.world
        before, control, ties = world.last_cut
        self.ends = {}
        self.end_events = {}
        self.heard = {}
        self.deliveries.restarted()
        self.families.restarted(lambda job_id: f"proof {job_id}" in control)
        self.pictures = before
        after = world.pictures()
        for seq, old in before.items():
            new = after.get(seq)
            if old.place == "active":
                is_dropped = (old.key[1] or "").startswith("cron:") or _flag(old, "removeOnFail")
                if new is None and not is_dropped and not _is_full(old.queue, after, control):
                    raise Broken(f"a restart lost {old}")
                if new is not None and (new.attempts, new.stall_count) != (
                    old.attempts + 1,
                    old.stall_count + 1,
                ):
                    raise Broken(f"a restart charged {old} wrongly: {new}")
            elif new is not None and (
                new.attempts != old.attempts
                # A child that the restart has failed may have failed it too.
                or (new.token != old.token and (old.place, new.place) != ("parked", "failed"))
            ):
                raise Broken(f"a restart charged a job that was not running: {old} {new}")
        fresh = [job for seq, job in after.items() if seq not in before]
        if fresh:
            raise Broken(f"a restart made jobs: {fresh}")
        # What the restart itself has ended may be missed no longer; nothing else changes.
        ending = [
            job
            for seq, job in before.items()
            # Of one that has failed, the parent may not have been told yet.
            if job.place in ("active", "failed")
            or (job.place == "parked" and _has_ended(after.get(seq)))
        ]
        ended = {job.id for job in ending}
        freeing = {job.id for job in ending if _flag(job, "continueParentOnFailure")}
        for seq, missing in ties_of(world.engine).items():
            waited = ties.get(seq, frozenset())
            if missing - waited or (waited - missing - ended and not waited & freeing):
                raise Broken(f"a restart made {after[seq]} wait for {missing}, not for {waited}")
        self.moved("restart", RESTART | {("failed", GONE)} if _is_bounded(control) else RESTART)
        self.control = control
        self.look_at_control(is_undone=True)
        kept, found = _settings(control, world.now), _settings(self.control, world.now)
        if self.jump_cut >= 0:  # what has followed of it is not written: moments are the old ones
            kept, found = _lasting(kept), _lasting(found)
            self.jump_cut = 0  # the batches are numbered anew
        if kept != found:
            raise Broken(f"a restart changed settings\n{difference(kept, found)}")

    def undone(self, asked: Asked, before: dict[int, Picture], control: dict[str, Any]) -> None:
        """A command whose commit failed has left nothing behind."""
        if asked.reply is None or asked.reply.get("error") != INTERNAL_ERROR:
            return
        after = self.world.pictures()
        now = control_of(self.world.engine, self.world.now)
        if before != after or control != now:
            raise Broken(
                f"{asked.request} failed and left something behind"
                f"\n{difference(before, after)}{difference(control, now)}"
            )


def _with_claims(edges: Edges, has_waiters: bool) -> Edges:
    if not has_waiters:
        return edges
    return (
        edges | {(old, "active") for old, new in edges if new == "queued"} | {("queued", "active")}
    )


def _named(request: dict[str, Any]) -> list[str] | None:
    if request["cmd"] in ("ACKB",):
        return list(request["ids"])
    if request["cmd"] in ("RetryDlq", "RemoveDlqJob") and "jobId" in request:
        return [request["jobId"]]
    return [request["id"]] if "id" in request else None


def _rank(job: Picture) -> tuple[Any, ...]:
    """Return the order of engine.md 2.1."""
    if _flag(job, "lifo"):
        return -job.priority, 0, -job.seq
    return -job.priority, 1, job.run_at, job.seq


def _has_ended(job: Picture | None) -> bool:
    return job is None or job.place in ENDED


def _flag(job: Picture, name: str) -> bool:
    return (name, "True") in job.options


def _number(job: Picture, name: str, default: int) -> int:
    return next((int(float(text)) for key, text in job.options if key == name), default)


def _is_bounded(control: dict[str, Any]) -> bool:
    return any(key.startswith("dlq ") and value.max_entries < 10 for key, value in control.items())


def _is_full(name: str, jobs: dict[int, Picture], control: dict[str, Any]) -> bool:
    """Say whether the queue keeps as many dead letters as it may, so that older ones have gone."""
    config = control.get(f"dlq {name}")
    dead = sum(job.place == "failed" and job.queue == name for job in jobs.values())
    return config is not None and dead >= config.max_entries


def _lasting(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out the limits that end by themselves."""
    return {
        key: value
        for key, value in settings.items()
        if not (key.startswith("rate ") and value[2] is not None)
    }


def _crons(control: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in control.items() if key.startswith("cron ")}


def _settings(control: dict[str, Any], now: int) -> dict[str, Any]:
    """Return what a restart, or a command about something else, leaves as it is."""
    found = {}
    for key, value in control.items():
        kind = key.split()[0]
        if kind == "cron":
            found[key] = value[:2]
        elif kind == "rate" and value[2] is not None and value[2] <= now:  # it has ended
            continue
        elif kind not in ("totals", "proof"):
            found[key] = value
    return found
