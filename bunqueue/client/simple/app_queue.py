"""What a Bunqueue does beside running jobs: adding them, schedulers, triggers, dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, Unpack, overload

from bunqueue.client.cancel import CancellationManager, CancelSignal
from bunqueue.client.dlq import DlqEntry, DlqStats
from bunqueue.client.job import Job
from bunqueue.client.options import JobOptions
from bunqueue.client.queue import Queue
from bunqueue.client.simple.breaker import WorkerCircuitBreaker
from bunqueue.client.simple.keys import Keys
from bunqueue.client.simple.triggers import Triggers
from bunqueue.client.simple.ttl import TimeToLive
from bunqueue.client.types import DlqConfig, DlqFilter
from bunqueue.client.worker import Worker

Listener = Callable[..., Any]


class AppQueue:
    """The half of ``Bunqueue`` that faces the application."""

    queue: Queue
    worker: Worker
    _default_job_options: dict[str, Any]
    _keys: Keys
    _ttl: TimeToLive
    _cancellation: CancellationManager
    _breaker: WorkerCircuitBreaker | None
    _triggers: Triggers

    # -- jobs -----------------------------------------------------------------------------------

    def add(self, name: str, data: Any = None, **opts: Unpack[JobOptions]) -> Job[Any]:
        """Add a job and return it; see ``Queue.add``. Waits."""
        return self.queue.add(name, data, **self._options(name, data, opts))

    def add_bulk(self, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Add jobs in one command and return their ids in order; see ``Queue``. Waits."""
        return self.queue.add_bulk([self._entry(job) for job in jobs])

    def _entry(self, job: Mapping[str, Any]) -> dict[str, Any]:
        options = {key: value for key, value in job.items() if key not in ("name", "data", "opts")}
        options.update(job.get("opts") or {})
        name, data = job["name"], job.get("data")
        return {"name": name, "data": data, **self._options(name, data, options)}

    def _options(self, name: str, data: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        return self._keys.add(name, data, {**self._default_job_options, **given})

    def get_job(self, job_id: str) -> Job[Any] | None:
        """Return a job, or None. Waits."""
        return self.queue.get_job(job_id)

    def get_job_counts(self) -> dict[str, int]:
        """Return how many jobs there are in each state. Waits."""
        return self.queue.get_job_counts()

    def count(self) -> int:
        """Return how many jobs are waiting, prioritized or delayed. Waits."""
        return self.queue.count()

    # -- schedulers -----------------------------------------------------------------------------

    def cron(
        self,
        scheduler_id: str,
        pattern: str,
        data: Any = None,
        *,
        timezone: str | None = None,
        limit: int | None = None,
        job_opts: Mapping[str, Any] | None = None,
        **repeat: Any,
    ) -> dict[str, Any]:
        """Make a job by cron pattern; return the scheduler's map. Waits."""
        rule = {"pattern": pattern, "tz": timezone, "limit": limit, **repeat}
        return self._schedule(scheduler_id, rule, data, job_opts)

    def every(
        self,
        scheduler_id: str,
        interval_ms: Any,
        data: Any = None,
        *,
        limit: int | None = None,
        job_opts: Mapping[str, Any] | None = None,
        **repeat: Any,
    ) -> dict[str, Any]:
        """Make a job by interval; return the scheduler's map. Waits."""
        rule = {"every": interval_ms, "limit": limit, **repeat}
        return self._schedule(scheduler_id, rule, data, job_opts)

    def _schedule(
        self,
        scheduler_id: str,
        rule: Mapping[str, Any],
        data: Any,
        job_opts: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        template = {"name": scheduler_id, "data": data, "opts": job_opts}
        return self.queue.upsert_job_scheduler(scheduler_id, rule, template)

    def remove_cron(self, scheduler_id: str) -> bool:
        """Remove a scheduler. Waits."""
        return self.queue.remove_job_scheduler(scheduler_id)

    def list_crons(self) -> list[dict[str, Any]]:
        """Return the schedulers of this queue. Waits."""
        return self.queue.get_job_schedulers()

    # -- what surrounds the handlers ------------------------------------------------------------

    def cancel(self, job_id: str, grace_period_ms: float = 0) -> None:
        """Call off a job that runs here, now or after a while."""
        self._cancellation.cancel(job_id, grace_period_ms)

    def is_cancelled(self, job_id: str) -> bool:
        """Tell whether a job that runs here was called off."""
        return self._cancellation.is_cancelled(job_id)

    def get_signal(self, job_id: str) -> CancelSignal | None:
        """Return the signal of a job that runs here."""
        return self._cancellation.get_signal(job_id)

    def get_circuit_state(self) -> str:
        """Return ``"closed"``, ``"open"`` or ``"half-open"``; closed without a breaker."""
        return "closed" if self._breaker is None else self._breaker.current_state

    def reset_circuit(self) -> None:
        """Close the circuit and let the worker run."""
        if self._breaker is not None:
            self._breaker.reset()

    def set_default_ttl(self, ttl_ms: Any) -> None:
        """Change how old jobs without an entry of their own may be when they are picked up."""
        self._ttl.set_default(ttl_ms)

    def set_name_ttl(self, name: str, ttl_ms: Any) -> None:
        """Change how old jobs of one name may be when they are picked up."""
        self._ttl.set_for(name, ttl_ms)

    def trigger(self, rule: Mapping[str, Any]) -> Self:
        """Make a job whenever one of another name ends.

        Args:
            rule: ``{"on", "create", "data", "event", "condition", "opts"}``: after ``event``
                (``"completed"`` or ``"failed"``) of a job named ``on``, and if
                ``condition(result, job)``, a job named ``create`` with ``data(result, job)`` and
                the job options ``opts`` is added. After a failure the error stands for the result.
        """
        self._triggers.add(rule)
        return self

    # -- events ---------------------------------------------------------------------------------

    @overload
    def on(self, event: str, listener: Listener) -> Self: ...
    @overload
    def on(self, event: str) -> Callable[[Listener], Listener]: ...

    def on(self, event: str, listener: Listener | None = None) -> Any:
        """Call ``listener`` at every event of the worker; without one, act as a decorator."""
        if listener is None:
            return self.worker.on(event)
        self.worker.on(event, listener)
        return self

    def once(self, event: str, listener: Listener) -> Self:
        """Call ``listener`` at the worker's next such event only."""
        self.worker.once(event, listener)
        return self

    def off(self, event: str, listener: Listener) -> Self:
        """Stop calling ``listener``."""
        self.worker.off(event, listener)
        return self

    # -- dead letters and limits ----------------------------------------------------------------

    def set_dlq_config(
        self, config: DlqConfig | Mapping[str, Any] | None = None, **named: Unpack[DlqConfig]
    ) -> None:
        """Change how dead letters are kept. Waits."""
        self.queue.set_dlq_config(config, **named)

    def get_dlq_config(self) -> dict[str, Any]:
        """Return how dead letters are kept. Waits."""
        return self.queue.get_dlq_config()

    def get_dlq(self, count: int | None = None) -> list[dict[str, Any]]:
        """Return the maps of jobs that have failed for good. Waits."""
        return self.queue.get_dlq(count)

    def get_dlq_entries(
        self,
        filter: DlqFilter | Mapping[str, Any] | None = None,
        **named: Unpack[DlqFilter],
    ) -> list[DlqEntry]:
        """Return dead letters with their reasons and attempts. Waits."""
        return self.queue.get_dlq_entries(filter, **named)

    def get_dlq_stats(self) -> DlqStats:
        """Return figures about the dead letters. Waits."""
        return self.queue.get_dlq_stats()

    def retry_dlq(
        self,
        job_id: str | None = None,
        count: int | None = None,
        *,
        filter: DlqFilter | Mapping[str, Any] | None = None,
    ) -> int:
        """Make dead letters ready again; return how many. Waits."""
        return self.queue.retry_dlq(job_id, count, filter=filter)

    def purge_dlq(self) -> int:
        """Remove all dead letters; return how many. Waits."""
        return self.queue.purge_dlq()

    def set_global_rate_limit(self, max_jobs: int, duration_ms: Any = None) -> None:
        """Hand out at most ``max_jobs`` per ``duration_ms``, over all workers. Waits."""
        self.queue.set_global_rate_limit(max_jobs, duration_ms)

    def remove_global_rate_limit(self) -> None:
        """Drop that limit. Waits."""
        self.queue.remove_global_rate_limit()
