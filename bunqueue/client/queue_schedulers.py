"""Schedulers of a queue: jobs by cron pattern or by interval (client.md 1.4)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from bunqueue.client.options import (
    CRON_OPTIONS,
    build_cron_job_options,
    camel,
    compact,
    milliseconds,
    to_wire,
)
from bunqueue.client.types import RepeatOptions
from bunqueue.errors import CommandError

# Python name of a member of ``repeat`` -> wire name of the field of Cron.
_REPEAT = {
    "pattern": "schedule",
    "every": "repeatEvery",
    "tz": "timezone",
    "immediately": "immediately",
    "limit": "maxLimit",
    "skip_if_no_worker": "skipIfNoWorker",
    "skip_missed_on_restart": "skipMissedOnRestart",
    "prevent_overlap": "preventOverlap",
}
_BY_CAMEL = {camel(name): wire for name, wire in _REPEAT.items()}
_TOP_LEVEL = ("priority", "unique_key", "deduplication")
# What a scheduler's map has beside the wire's names: our name -> the wire's.
_READABLE = {
    "id": "name",
    "pattern": "schedule",
    "every": "repeatEvery",
    "limit": "maxLimit",
    "next": "nextRun",
    "tz": "timezone",
}
_WHOLE = ("nextRun", "repeatEvery", "executions", "maxLimit", "priority")


class QueueSchedulers:
    """The part of ``Queue`` that defines and reads schedulers.

    The map of a scheduler has the wire's keys ``name jobName queue schedule repeatEvery nextRun
    executions maxLimit timezone priority`` and beside them ``id pattern every limit next tz``.
    """

    connection: Any
    queue_key: str
    prefix_key: str
    logger: Any
    default_job_options: dict[str, Any]

    def upsert_job_scheduler(
        self,
        scheduler_id: str,
        repeat: RepeatOptions | Mapping[str, Any],
        template: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Define a scheduler, or redefine the one of that id; return its map. Waits.

        Args:
            scheduler_id: Its name, within this queue's prefix.
            repeat: ``{"pattern" or "every", "tz", "immediately", "limit", "skip_if_no_worker",
                "skip_missed_on_restart", "prevent_overlap"}``.
            template: ``{"name", "data", "opts"}`` of the jobs it makes.

        Raises:
            TypeError: An unknown member, or an unknown job option.
            CommandError: The broker refuses the definition.
        """
        given = template or {}
        reply = self.connection.call(
            compact(
                {
                    "cmd": "Cron",
                    "name": self.prefix_key + scheduler_id,
                    "queue": self.queue_key,
                    "jobName": given.get("name") or scheduler_id,
                    "data": given.get("data"),
                    **_repeat_fields(repeat),
                    **self._job_fields(given.get("opts") or {}),
                }
            )
        )
        return self._readable(reply.get("cron") or {"name": self.prefix_key + scheduler_id})

    def _job_fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of Cron that say how its jobs are pushed."""
        options = {**self.default_job_options, **given}
        wire = to_wire({name: options[name] for name in _TOP_LEVEL if name in options})
        timed = {name: _plain(value) for name, value in options.items() if name in CRON_OPTIONS}
        ignored = sorted(set(given) - {*_TOP_LEVEL, *CRON_OPTIONS})
        if ignored:
            to_wire({name: given[name] for name in ignored})
            log = self.logger or logging.getLogger("bunqueue")
            log.warning("a scheduler's jobs cannot have these options: %s", " ".join(ignored))
        return {**wire, "jobOptions": build_cron_job_options(timed)}

    def _readable(self, cron: Mapping[str, Any]) -> dict[str, Any]:
        told = dict(cron)
        told["name"] = str(told.get("name") or "").removeprefix(self.prefix_key)
        for name in _WHOLE:
            value = told.get(name)
            if isinstance(value, float) and value.is_integer():
                told[name] = int(value)
        return told | {name: told.get(wire) for name, wire in _READABLE.items()}

    def remove_job_scheduler(self, scheduler_id: str) -> bool:
        """Remove a scheduler; the jobs it has made stay. Waits.

        Raises:
            CommandError: There is none.
        """
        self.connection.call({"cmd": "CronDelete", "name": self.prefix_key + scheduler_id})
        return True

    def get_job_scheduler(self, scheduler_id: str) -> dict[str, Any] | None:
        """Return the map of a scheduler, or None. Waits."""
        try:
            reply = self.connection.call({"cmd": "CronGet", "name": self.prefix_key + scheduler_id})
        except CommandError as error:
            if "not found" in str(error).lower():
                return None
            raise
        cron = reply.get("cron")
        return None if cron is None else self._readable(cron)

    def get_job_schedulers(
        self, start: int = 0, end: int = -1, asc: bool = True
    ) -> list[dict[str, Any]]:
        """Return the schedulers of this queue by their next run. Waits.

        Args:
            start: How many to leave out.
            end: The last one's place, included; -1 for all.
            asc: The soonest first.
        """
        crons = self.connection.call({"cmd": "CronList"}).get("crons") or []
        own = [
            self._readable(cron)
            for cron in crons
            if cron.get("queue") == self.queue_key
            and str(cron.get("name") or "").startswith(self.prefix_key)
        ]
        own.sort(key=lambda cron: cron["nextRun"] or 0, reverse=not asc)
        return own[start:] if end < 0 else own[start : end + 1]

    def get_job_schedulers_count(self) -> int:
        """Return how many schedulers this queue has. Waits."""
        return len(self.get_job_schedulers())

    def add_cron(self, name: str, schedule: str, data: Any = None, **repeat: Any) -> dict[str, Any]:
        """Define a scheduler by cron pattern; return its map. Waits."""
        return self.upsert_job_scheduler(name, {"pattern": schedule, **repeat}, {"data": data})

    def every(self, name: str, interval_ms: Any, data: Any = None, **repeat: Any) -> dict[str, Any]:
        """Define a scheduler by interval; return its map. Waits."""
        return self.upsert_job_scheduler(name, {"every": interval_ms, **repeat}, {"data": data})


def _repeat_fields(repeat: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in repeat.items():
        wire = _REPEAT.get(name) or _BY_CAMEL.get(name)
        if wire is None:
            raise TypeError(f"unknown member of repeat: {name!r}")
        value = milliseconds(value)
        whole = isinstance(value, float) and value.is_integer()
        fields[wire] = int(value) if whole else value
    return fields


def _plain(value: Any) -> Any:
    """Return an option's value with spans in ms, also inside a backoff."""
    if isinstance(value, Mapping):
        return {camel(key): milliseconds(item) for key, item in value.items()}
    return milliseconds(value)
