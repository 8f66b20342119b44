"""Running one history: steps from a seed, the rules after each, and a shorter one if it fails."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from bunqueue.storage import log as log_module
from tests.simulation.rough import rough_history
from tests.simulation.rules import CLOSE, TICK, TURN, Rules
from tests.simulation.steps import GENERATED, OLD_TOKEN, TOKEN, Step, history
from tests.simulation.world import Asked, Broken, World

LENGTHS = (12, 40, 120)  # steps of a history; short ones are quick, long ones get far
ROUGH = 10  # one of so many is of ``rough``
SOON_MS = 50  # after which nobody waits for what has happened
SETTLE_MS = 40_000  # in which every commit that failed has been tried again


class SimulatedTime:
    """As much of the module ``time`` as the log reads."""

    def __init__(self) -> None:
        self.world: World | None = None

    def monotonic(self) -> float:
        """Return the time of the world's loop."""
        return 0.0 if self.world is None else self.world.loop.monotonic()

    def time_ns(self) -> int:
        """Return the world's wall clock."""
        return 0 if self.world is None else self.world.now * 1_000_000


@dataclass
class Figures:
    """What was done, over many histories."""

    histories: int = 0
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    commits: int = 0


class Run:
    """One history in the making."""

    def __init__(self, seed: int, figures: Figures) -> None:
        self.world = World(seed)
        self.rules = Rules(self.world)
        self.figures = figures
        self.told: list[str] = []
        self._tokens: dict[str, list[str]] = {}
        self._generated: str | None = None

    def step(self, step: Step) -> None:
        """Do one step, and check everything."""
        self.told.append(f"{step[0]}, at {self.world.now}")
        getattr(self, f"_{step[0]}")(*step[1:])
        self.world.is_sound()
        self._whole()
        self.figures.steps += 1

    def _whole(self) -> None:
        self.rules.whole()

    def _settled(self) -> None:
        self.rules.settled()

    def _is_noted(self) -> None:
        self.world.is_noted()

    # -- commands ----------------------------------------------------------------------------------

    def _command(self, peer: int, request: dict[str, Any], with_turn: bool) -> None:
        self._ask(peer, request)
        if with_turn:
            self._turn()

    def _ask(self, peer: int, request: dict[str, Any]) -> Asked:
        request = self._filled(request)
        has_waiters = any(queue.waiters for queue in self.world.engine.queues.values())
        self.rules.asking(request)
        asked = self.world.ask(peer, request)
        self.told.append(f"peer {peer}: {request} -> {asked.reply}")
        self.rules.commanded(asked, has_waiters)
        self._remember()
        return asked

    def _filled(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put what only the run knows in place of its placeholders."""
        request = dict(request)
        for name in ("id", "childId", "parentId"):
            if request.get(name) == GENERATED:
                request[name] = self._generated or "none"
        if "ids" in request:
            request["ids"] = [self._generated or "none" if i == GENERATED else i
                              for i in request["ids"]]  # fmt: skip
            request["tokens"] = [
                self._token(job_id, token)
                for job_id, token in zip(request["ids"], request["tokens"], strict=True)
            ]
        elif "token" in request:
            token = self._token(request["id"], request["token"])
            if token is None:
                del request["token"]
            else:
                request["token"] = token
        return request

    def _token(self, job_id: str, wanted: str) -> str | None:
        if wanted not in (TOKEN, OLD_TOKEN):
            return wanted
        known = self._tokens.get(job_id, [])
        at = -1 if wanted == TOKEN else -2
        return known[at] if len(known) >= -at else None

    def _remember(self) -> None:
        """Note the tokens that have been given, and the newest id that was made."""
        for job in self.rules.pictures.values():
            if job.token is not None:
                known = self._tokens.setdefault(job.id, [])
                if job.token not in known:
                    known.append(job.token)
            if not job.key[0] and len(job.id) > 1:
                self._generated = job.id

    def _try(self, request: dict[str, Any]) -> None:
        """Have one command alone fail its commit, and expect it to leave nothing behind."""
        world, writer = self.world, self.world.writer
        if any(queue.waiters for queue in world.engine.queues.values()) or world.engine.waits:
            self._ask(0, request)
            return
        writer.mode = "quick"
        self._pass(SETTLE_MS if world.storage.status()["error"] else 20)
        if writer.in_flight is not None or world.engine.works.unfinished:
            return
        if any(cron.next_run <= world.now for cron in world.engine.list_crons()):
            return  # it waits for another try of its own
        self.rules.look()
        before, control = self.rules.pictures, self.rules.control
        heard, was_told_late = dict(self.rules.heard), bool(world.engine.untold)
        writer.mode, writer.delay_ms = "failing", 0
        asked = self._ask(0, request)
        self._turn()
        if asked.reply is not None and asked.reply.get("error") is not None:
            self.rules.undone(asked, before, control)
            if heard != self.rules.heard and not was_told_late:
                raise Broken(f"{asked.request} failed, and events of it were told")
        writer.mode = "quick"

    # -- everything else ---------------------------------------------------------------------------

    def _turn(self) -> None:
        failures = self.world.writer.failures
        self.world.turn()
        if self.world.writer.failures != failures:
            self.world.tick_again()
        self._after("turn", TURN, failures)

    def _after(self, kind: str, edges: Any, failures: int) -> None:
        has_failed = self.world.writer.failures != failures
        self.rules.moved(kind, None if has_failed else edges, others=edges)
        self.rules.look_at_control(is_undone=has_failed)
        self._remember()

    def _pass(self, ms: int) -> None:
        world, writer = self.world, self.world.writer
        seen = [writer.failures]

        def after() -> None:
            if world.pictures() is not self.rules.pictures or writer.failures != seen[0]:
                self._after("tick", TICK | TURN, seen[0])
                seen[0] = writer.failures

        self.world.forward(ms, after)
        self.rules.look_at_control(is_undone=writer.failures != seen[0])
        is_well = world.storage.status()["error"] is None and writer.in_flight is None
        if ms >= SOON_MS and writer.mode == "quick" and is_well:
            self._settled()
        self.told.append(f"{ms} ms pass")

    def _disk(self, mode: str, delay_ms: int) -> None:
        self.world.writer.mode, self.world.writer.delay_ms = mode, delay_ms
        self.told.append(f"the disk is {mode}, {delay_ms} ms")
        self.figures.faults[mode] += mode != "quick"

    def _close(self, number: int) -> None:
        self.rules.deliveries.closes(number)
        self.world.close(number)
        self.told.append(f"peer {number} closes")
        self.figures.faults["closed link"] += 1
        self._after("close", CLOSE, self.world.writer.failures)

    def _crash(self, commits_last: bool, down_ms: int) -> None:
        writer = self.world.writer
        self._count()
        self._is_noted()
        self.figures.faults["crash"] += 1
        self.world.crash(commits_last)
        self.rules.file_is_right()
        self.told.append(f"the broker crashes, the last batch is kept: {commits_last}")
        self.world.again(down_ms, writer.mode, writer.delay_ms)
        self.rules.restarted()

    def _stop(self, down_ms: int) -> None:
        self._count()
        self.figures.faults["stop"] += 1
        is_written = self.world.stop()
        self._is_noted()
        self.told.append(f"the broker stops, everything is written: {is_written}")
        self.rules.file_is_right()
        if is_written and self.world.stored() != self.world.last_cut[0]:
            raise Broken("a stop in good order lost something")
        self.world.again(down_ms, "quick", 0)
        self.rules.restarted()

    def _jump(self, delta_ms: int) -> None:
        self.told.append(f"the clock is set by {delta_ms} ms")
        self.figures.faults["clock set"] += 1
        self.rules.deliveries.forget_times()
        self.rules.has_jumped = True
        self.rules.set_back_ms += max(0, -delta_ms)
        self.rules.jump_cut = self.world.storage.cuts
        self.world.jump(delta_ms)
        self._after("tick", TICK, self.world.writer.failures)

    def _count(self) -> None:
        writer = self.world.writer
        self.figures.commits += writer.commits
        self.figures.faults["failed commit"] += writer.failures
        self.figures.faults["late commit"] += writer.late
        self.figures.faults["dead writer"] += writer.deaths

    def end(self) -> None:
        """Let the disk recover, write all, and start once more."""
        self._disk("quick", 0)
        self._pass(SETTLE_MS)
        if self.world.storage.status()["error"] is not None:
            raise Broken("the disk works again, and the log does not")
        self._stop(0)
        self.rules.whole()
        self._pass(20)
        self._crash(True, 0)
        self.world.let_go()
        self.figures.checks += self.rules.checks


def run(
    steps: Sequence[Step], seed: int, figures: Figures | None = None, of: type[Run] = Run
) -> Run:
    """Run the steps.

    Args:
        of: Whose rules they are held to.

    Raises:
        Failed: A rule does not hold, or something was raised that should not be.
    """
    figures = figures or Figures()
    figures.histories += 1
    fake = SimulatedTime()
    with mock.patch.object(log_module, "time", fake):
        made = of(seed, figures)
        fake.world = made.world
        answered = made.world.answered

        def hear(asked: Asked) -> None:
            made.told.append(f"  answer to {asked.request['cmd']}: {asked.reply}")
            answered(asked)

        made.world.answered = hear
        done = 0
        try:
            for step in steps:
                done += 1
                made.step(step)
            made.end()
        except Exception as error:
            raise Failed(seed, list(steps[:done]), made, error) from error
    return made


class Failed(AssertionError):
    """A history that broke a rule; ``steps`` end with the one that did."""

    def __init__(self, seed: int, steps: list[Step], made: Run, error: Exception) -> None:
        super().__init__(f"seed {seed}: {type(error).__name__}: {error}")
        self.seed = seed
        self.steps = steps
        self.made = made
        self.error = error

    @property
    def kind(self) -> str:
        """Name of the failure, the same for shorter histories of it."""
        said = str(self.error).partition("\n")[0]  # what follows is of this history alone
        words = re.sub(r"'(id|queue|data|jobs|childId|jobId)': .*", "", said)
        words = re.sub(r" [a-e] | [0-9a-f]+-[-0-9a-f]+ ", " ", words)
        return f"{type(self.error).__name__} {words[:60]}"


def steps_of(seed: int) -> list[Step]:
    """Return the history that belongs to a seed."""
    if seed % ROUGH == ROUGH - 1:
        return rough_history(seed)
    return history(seed, LENGTHS[seed % len(LENGTHS)])


def shrunk(failure: Failed, seconds: float = 60.0) -> Failed:
    """Return the same failure by the fewest steps that were found: halves first, then singles."""
    end = time.monotonic() + seconds
    size = max(1, len(failure.steps) // 2)
    while size:
        at = 0
        while at < len(failure.steps):
            if time.monotonic() > end:
                return failure
            steps = failure.steps[:at] + failure.steps[at + size :]
            try:
                run(steps, failure.seed, of=type(failure.made))
            except Failed as shorter:
                if shorter.kind == failure.kind:
                    failure = shorter
                    continue
            at += size
        size = size // 2 if size > 1 else 0
    return failure
