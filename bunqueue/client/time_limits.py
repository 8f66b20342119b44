"""Jobs that outlive their timeout: one look at the running ones, when the first of them is due.

A timer for each job would be there long after the job, and keep it in memory: a timeout may be a
day, and jobs end in milliseconds. So there is one look ahead of all, in the lease keeper's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bunqueue.client import lease, worlds
from bunqueue.client.delivery import Delivery
from bunqueue.client.worlds import now

if TYPE_CHECKING:
    from bunqueue.client.worker import Worker

# A handler is told that its time is over only after the broker has noticed: a handler that gives
# up at once would else complete the job in the last millisecond.
GRACE_S = 0.1
LOOK_S_MAX = 60.0  # looks that are ahead are not taken back, so none is far ahead


class TimeLimits:
    """Watches the running jobs of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        # The looks ahead, each earlier than the one before; another is made only if it comes first.
        self._looks: list[float] = []
        self._lock = worlds.native_lock()  # nothing waits inside

    def note(self, delivery: Delivery, timeout_s: float) -> None:
        """Watch a delivery that has its slot."""
        delivery.overdue_at = now() + timeout_s + GRACE_S
        self._look_by(delivery.overdue_at)

    def _look_by(self, moment: float) -> None:
        delay_s = min(max(0.0, moment - now()), LOOK_S_MAX)
        look_at = now() + delay_s
        with self._lock:
            if self._looks and self._looks[-1] <= look_at:
                return
            self._looks.append(look_at)
        lease.keeper().later(delay_s, self._look)

    def _look(self) -> None:
        """Tell the worker what is overdue. In the keeper; must not wait."""
        with self._lock:
            self._looks.pop()  # first: what is noted from now on sees to itself
        moment = now()
        following: float | None = None
        for delivery in list(self._worker.active.values()):
            overdue_at = delivery.overdue_at
            if overdue_at is None:
                continue
            if overdue_at <= moment:
                delivery.overdue_at = None
                self._worker.outlived(delivery)
            else:
                following = overdue_at if following is None else min(following, overdue_at)
        if following is not None:
            self._look_by(following)
