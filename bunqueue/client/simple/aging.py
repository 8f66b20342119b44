"""Priority aging: jobs that have waited long rise, so that none waits for ever."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from bunqueue.client import worlds
from bunqueue.client.simple.settings import Settings
from bunqueue.errors import BunqueueError, CommandError

KEYS = ("interval", "min_age", "boost", "max_priority", "max_scan")
INTERVAL_MS_DEFAULT = 60_000
MIN_AGE_MS_DEFAULT = 60_000
BOOST_DEFAULT = 1
MAX_PRIORITY_DEFAULT = 100
MAX_SCAN_DEFAULT = 100
INTERVAL_MS_LEAST = 1  # a loop without a rest would keep a core busy
STOP_TIMEOUT_S = 5.0

log = logging.getLogger("bunqueue")


class PriorityAging:
    """Raises the priority of old jobs, again and again, in a task of its own.

    Raises:
        TypeError, ValueError: A value that cannot work.
    """

    def __init__(self, config: Mapping[str, Any], queue: Any = None) -> None:
        settings = Settings("priority_aging", config, KEYS)
        interval_ms = settings.number("interval", INTERVAL_MS_DEFAULT, least=INTERVAL_MS_LEAST)
        self._interval_s = interval_ms / 1000
        self._min_age_ms = settings.number("min_age", MIN_AGE_MS_DEFAULT)
        self._boost = settings.whole("boost", BOOST_DEFAULT)
        self._max_priority = settings.whole("max_priority", MAX_PRIORITY_DEFAULT)
        self._max_scan = settings.whole("max_scan", MAX_SCAN_DEFAULT)
        self.queue = queue
        self._is_over = False
        self._world: worlds.World | None = None
        self._gate: worlds.Gate | None = None
        self._task: worlds.Task | None = None

    def start(self) -> None:
        """Begin; a second call does nothing."""
        if self._task is None and not self._is_over:
            self._world = worlds.current()
            self._gate = self._world.gate()
            self._task = self._world.spawn(self._run, "bunqueue-aging")

    def _run(self) -> None:
        assert self._gate is not None
        while not self._is_over:
            self._gate.wait(self._interval_s)
            if self._is_over:
                return
            try:
                self.tick()
            except BunqueueError as error:
                log.warning("priority aging failed error=%s", error)

    def tick(self) -> None:
        """Raise every job that is old enough, once. Waits."""
        now_ms = time.time() * 1000
        jobs = self.queue.get_waiting(0, self._max_scan)
        jobs += self.queue.get_prioritized(0, self._max_scan)
        for job in jobs:
            age_ms = now_ms - (job.created_at or now_ms)
            if age_ms >= self._min_age_ms and job.priority < self._max_priority:
                self._raise(job)

    def _raise(self, job: Any) -> None:
        priority = min(job.priority + self._boost, self._max_priority)
        try:
            self.queue.change_job_priority(job.id, priority)
        except CommandError as error:
            log.debug("job was not raised, it has probably begun job=%s error=%s", job.id, error)

    def stop(self) -> None:
        """End; a second call does nothing. Waits for a tick under way, but not for long."""
        self._is_over = True
        if self._gate is not None and self._task is not None:
            self._gate.open()
            if worlds.current() is self._world:
                self._task.join(STOP_TIMEOUT_S)
