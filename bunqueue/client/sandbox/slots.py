"""The slots of a sandbox: each holds a child, or a place for one.

A slot is *starting* until its child has imported the processor, then *idle* or *busy*. A child that
has had nothing to do for long is ended and its slot is *recycled*: still a slot, whose next job
brings a new child up. A slot whose children keep dying, or cannot import the processor, is
*retired* for good. The worker pulls for slots that are idle, busy or recycled only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from bunqueue.client.sandbox.options import SandboxOptions
from bunqueue.client.sandbox.process import (
    ChildDied,
    ChildProcess,
    ChildRefused,
    ChildTooSlow,
)
from bunqueue.client.worlds import Gate, World, now
from bunqueue.errors import BunqueueError

STARTING, IDLE, BUSY, RECYCLED, RETIRED = "starting", "idle", "busy", "recycled", "retired"
USABLE = (IDLE, BUSY, RECYCLED)
RESTART_S = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)  # before the n-th restart in a row
LOOK_S_MIN = 0.02  # how often idle children are looked at, at most

log = logging.getLogger("bunqueue.worker")


class Slot:
    """A place for one child.

    Attributes:
        place: One of the words above.
        child: The process, None where there is none.
        crashes: Deaths in a row, without a job that ended well.
        idle_since: When it last had something to do.
    """

    def __init__(self) -> None:
        self.place = STARTING
        self.child: ChildProcess | None = None
        self.crashes = 0
        self.idle_since = now()


class Slots:
    """All slots of one worker.

    Args:
        processor: What names it in a child.
        options: The sandbox's.
        world: The worker's.
        on_change: Called when there may be more or fewer usable slots.
        on_error: Called with what went wrong with a child.
        on_idle: Called when no child has had a job for ``idle_timeout_ms``.

    Attributes:
        restarts: Children started in the place of dead ones.
        deaths: Children that ended without being told to.
        last_error: Why the last child died, or None.
    """

    def __init__(
        self,
        processor: str,
        options: SandboxOptions,
        world: World,
        on_change: Callable[[], object],
        on_error: Callable[[BunqueueError], object],
        on_idle: Callable[[], object],
    ) -> None:
        self._processor = processor
        self._options = options
        self._world = world
        self._on_change = on_change
        self._on_error = on_error
        self._on_idle = on_idle
        self._lock = world.lock()
        self._slots: list[Slot] = []
        self._waiting: deque[Gate] = deque()
        self._is_closed = False
        self._janitor_gate = world.gate()
        self._has_janitor = False
        self.restarts = 0
        self.deaths = 0
        self.last_error: BunqueueError | None = None

    # -- how many -----------------------------------------------------------------------------

    def usable(self) -> int:
        """Return how many slots a job may be pulled for, busy ones included."""
        return sum(slot.place in USABLE for slot in self._slots)

    def are_retired(self) -> bool:
        """Tell whether no slot will ever be usable again."""
        return bool(self._slots) and all(slot.place == RETIRED for slot in self._slots)

    def stats(self) -> dict[str, int]:
        """Return the counts of client.md 3.2."""
        places = [slot.place for slot in self._slots]
        return {
            "total": len(places) - places.count(RETIRED),
            "busy": places.count(BUSY),
            "idle": places.count(IDLE),
            "recycled": places.count(RECYCLED),
            "restarts": self.restarts,
        }

    def resize(self, count: int) -> None:
        """Have ``count`` slots: start new ones, or end idle ones."""
        with self._lock:
            missing = 0 if self._is_closed else count - len(self._slots)
            new = [Slot() for _ in range(missing)]
            self._slots += new
            idle = [slot for slot in self._slots if slot.place in (IDLE, RECYCLED)]
            gone = idle[: max(0, -missing)]
            self._slots = [slot for slot in self._slots if slot not in gone]
            needs_janitor = bool(new) and not self._has_janitor
            self._has_janitor = self._has_janitor or needs_janitor
        for slot in new:
            self._start_soon(slot)
        for slot in gone:
            self._end(slot, RETIRED)
        if needs_janitor:
            self._world.spawn(self._keep_house, "bunqueue-sandbox-idle")

    # -- taking one ---------------------------------------------------------------------------

    def take(self) -> Slot | None:
        """Return a slot with a child that is ready; None when all are retired. Waits."""
        while True:
            slot = self._take_free()
            if slot is None:
                return None
            if slot.child is not None and slot.child.is_alive():
                return slot
            is_dead = slot.child is not None
            if is_dead:
                self._note_death(slot, ChildDied("it ended while it was idle"))
            if slot.place != RETIRED and self._bring_up(slot, is_restart=is_dead):
                slot.place = BUSY
                return slot

    def _take_free(self) -> Slot | None:
        while True:
            with self._lock:
                for place in (IDLE, RECYCLED):
                    for slot in self._slots:
                        if slot.place == place:
                            slot.place = BUSY
                            return slot
                if self._is_closed or self.are_retired():
                    return None
                gate = self._world.local_gate()
                self._waiting.append(gate)
            gate.wait()

    def give_back(self, slot: Slot, error: BunqueueError | None) -> None:
        """Take a slot back from a job.

        Args:
            slot: What ``take`` returned.
            error: What its child died of, None if it lives.
        """
        child = slot.child
        assert child is not None
        slot.idle_since = now()
        if error is not None:
            is_our_doing = child.is_killed
            self._note_death(slot, error, is_crash=not is_our_doing)
            if slot.place != RETIRED:
                slot.place = STARTING
                self._start_soon(slot, is_restart=True)
        elif 0 < self._options.max_jobs_per_child <= child.jobs:
            slot.crashes = 0
            slot.place = STARTING
            slot.child = None
            child.close()
            self._start_soon(slot)
        else:
            slot.crashes = 0
            self._place(slot, IDLE)

    # -- children -----------------------------------------------------------------------------

    def _start_soon(self, slot: Slot, is_restart: bool = False) -> None:
        def start() -> None:
            if is_restart:
                self._world.sleep(RESTART_S[min(slot.crashes, len(RESTART_S) - 1)])
            if self._bring_up(slot, is_restart):
                self._place(slot, IDLE)

        self._world.spawn(start, "bunqueue-sandbox-start")

    def _bring_up(self, slot: Slot, is_restart: bool) -> bool:
        """Start a child and wait for it, again until it is there or the slot is retired. Waits."""
        while not self._is_closed and slot.place != RETIRED:
            if is_restart:
                self.restarts += 1
            try:
                slot.child = child = ChildProcess(self._processor, self._options)
                child.wait_until_ready(self._options.start_timeout_s)
            except ChildRefused as error:
                # The next one would not import it either.
                self._note_death(slot, error, is_final=True)
            except (ChildDied, ChildTooSlow) as error:
                self._note_death(slot, error)
                self._world.sleep(RESTART_S[min(slot.crashes, len(RESTART_S) - 1)])
            except OSError as error:
                self._note_death(slot, ChildDied(f"cannot be started: {error}"), is_final=True)
            else:
                slot.idle_since = now()
                if self._is_closed:
                    self._end(slot, RETIRED)
                    return False
                return True
            is_restart = True
        return False

    def _note_death(
        self, slot: Slot, error: BunqueueError, *, is_crash: bool = True, is_final: bool = False
    ) -> None:
        """Clear a slot after its child, and retire it if it has had too many."""
        slot.crashes += is_crash
        self.deaths += is_crash
        options = self._options
        is_spent = not options.auto_restart or slot.crashes > options.max_restarts
        if slot.child is not None:
            slot.child.kill()
            slot.child.close()
            slot.child = None
        if self._is_closed:
            slot.place = RETIRED
            return
        self.last_error = error
        log.warning("sandbox child ended: %s", error)
        if is_final or is_spent:
            self._place(slot, RETIRED)
        self._on_error(error)

    def _place(self, slot: Slot, place: str) -> None:
        """Put a slot into a place and wake whoever waits for one."""
        with self._lock:
            is_late = self._is_closed and place == IDLE
            slot.place = RETIRED if is_late else place
            while self._waiting:
                self._waiting.popleft().open()
        if is_late:
            self._end(slot, RETIRED)
        self._on_change()

    def _end(self, slot: Slot, place: str) -> None:
        child, slot.child = slot.child, None
        slot.place = place
        if child is not None:
            child.close()

    # -- idle children ------------------------------------------------------------------------

    def _keep_house(self) -> None:
        """End children that have had nothing to do for long; one task, until the close. Waits."""
        recycle_ms, timeout_ms = self._options.idle_recycle_ms, self._options.idle_timeout_ms
        spans_s = [span / 1000 for span in (recycle_ms, timeout_ms) if span]
        if not spans_s:
            return
        while not self._is_closed:
            self._janitor_gate.wait(max(LOOK_S_MIN, min(spans_s) / 2))
            for slot in self._slots.copy():
                with self._lock:
                    is_idle = slot.place == IDLE and now() - slot.idle_since >= min(spans_s)
                    if is_idle:
                        slot.place = RECYCLED
                if is_idle:
                    self._end(slot, RECYCLED)
            if timeout_ms and self._are_idle_for(timeout_ms / 1000):
                self._on_idle()

    def _are_idle_for(self, seconds: float) -> bool:
        return all(
            slot.place == RETIRED
            or (slot.place in (IDLE, RECYCLED) and now() - slot.idle_since >= seconds)
            for slot in self._slots
        )

    # -- the end ------------------------------------------------------------------------------

    def kill(self, slot: Slot) -> None:
        """Kill the child of a busy slot. From any native thread; does not wait."""
        child = slot.child
        if child is not None and slot.place == BUSY:
            child.kill()

    def close(self) -> None:
        """End all children: idle ones gently, those at work by force. Waits."""
        with self._lock:
            self._is_closed = True
            slots = self._slots.copy()
            while self._waiting:
                self._waiting.popleft().open()
        self._janitor_gate.open()
        for slot in slots:
            if slot.place == IDLE and slot.child is not None:
                slot.child.hang_up()  # all of them first, so that they end side by side
        for slot in slots:
            if slot.place == IDLE:
                self._end(slot, RETIRED)
            elif slot.child is not None:
                slot.child.kill()

    def forget(self) -> None:
        """Let go of all children in a fork of this process."""
        self._is_closed = True
        for slot in self._slots:
            if slot.child is not None:
                slot.child.forget()
                slot.child = None
