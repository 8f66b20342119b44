"""Triggers: when a job of one name ends, another job is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EVENTS = ("completed", "failed")
KEYS = frozenset({"on", "create", "data", "event", "condition", "opts"})


class Triggers:
    """Makes jobs after events of a worker; what goes wrong becomes its ``error`` event."""

    def __init__(self, queue: Any, worker: Any) -> None:
        self._queue = queue
        self._worker = worker
        self._rules: tuple[Mapping[str, Any], ...] = ()

    def add(self, rule: Mapping[str, Any]) -> None:
        """Add a rule; see ``Bunqueue.trigger``.

        Raises:
            TypeError, ValueError: A rule that cannot work.
        """
        _check(rule)
        if not self._rules:
            for event in EVENTS:
                self._worker.on(event, lambda job, what, event=event: self._fire(event, job, what))
        self._rules = (*self._rules, dict(rule))

    def _fire(self, event: str, job: Any, what: Any) -> None:
        for rule in self._rules:
            if rule["on"] == job.name and (rule.get("event") or "completed") == event:
                try:
                    self._apply(rule, job, what)
                except Exception as error:
                    self._worker.emit("error", error)

    def _apply(self, rule: Mapping[str, Any], job: Any, what: Any) -> None:
        condition, data = rule.get("condition"), rule.get("data")
        if condition is None or condition(what, job):
            payload = None if data is None else data(what, job)
            self._queue.add(rule["create"], payload, **(rule.get("opts") or {}))


def _check(rule: Mapping[str, Any]) -> None:
    unknown = sorted(rule.keys() - KEYS)
    if unknown:
        raise TypeError(f"unknown key of a trigger: {', '.join(unknown)}")
    for key in ("on", "create"):
        if not rule.get(key):
            raise ValueError(f"a trigger needs {key!r}")
    if rule.get("event") not in (None, *EVENTS):
        raise ValueError("event of a trigger must be 'completed' or 'failed'")
    for key in ("data", "condition"):
        if rule.get(key) is not None and not callable(rule[key]):
            raise TypeError(f"{key} of a trigger must be callable")
