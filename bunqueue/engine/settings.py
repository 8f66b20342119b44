"""The engine's own settings, and the two configurations that each queue carries."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from bunqueue.protocol.fields import SAFE_INTEGER_MAX

COMPLETED_JOBS_MAX_DEFAULT = 50_000  # engine.md 12
WORKER_TIMEOUT_MS_DEFAULT = 30_000  # wire.md 7.1
LEASE_MS_DEFAULT = 30_000  # engine.md 4.3
ORPHANS_WAIT = "wait"
ORPHANS_FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Attributes: shards: power of two; the rest as the settings of the same name."""

    shards: int = 4
    max_completed_jobs: int = COMPLETED_JOBS_MAX_DEFAULT
    completed_retention_ms: int | None = None
    worker_timeout_ms: int = WORKER_TIMEOUT_MS_DEFAULT
    orphaned_dependency: str = ORPHANS_WAIT
    keeps_names_in_data: bool = False

    @property
    def fails_orphans(self) -> bool:
        """A job whose dependency can never complete is given up instead of waiting on."""
        return self.orphaned_dependency == ORPHANS_FAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class StallConfig:
    """When a silent job counts as stalled, and how often it may (0 = without bound)."""

    enabled: bool = True
    stall_interval: int = 30_000
    max_stalls: int = 3
    grace_period: int = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DlqConfig:
    """What happens to dead letters; ``max_age`` None means that they never expire."""

    auto_retry: bool = False
    auto_retry_interval: int = 3_600_000
    max_auto_retries: int = 3
    max_age: int | None = 604_800_000
    max_entries: int = 10_000


WIRE_NAMES = {
    "enabled": "enabled",
    "stall_interval": "stallInterval",
    "max_stalls": "maxStalls",
    "grace_period": "gracePeriod",
    "auto_retry": "autoRetry",
    "auto_retry_interval": "autoRetryInterval",
    "max_auto_retries": "maxAutoRetries",
    "max_age": "maxAge",
    "max_entries": "maxEntries",
}


Config = TypeVar("Config", StallConfig, DlqConfig)


def merged(config: Config, given: Mapping[str, Any]) -> Config:
    """Return the configuration with the usable values of ``given`` (wire names) put in.

    Values of the wrong type are ignored, so that no garbage disables a sweep; unknown keys too.
    """
    changes: dict[str, Any] = {}
    for field in fields(config):
        wire = WIRE_NAMES[field.name]
        if wire not in given:
            continue
        value = given[wire]
        if isinstance(getattr(type(config)(), field.name), bool):
            if isinstance(value, bool):
                changes[field.name] = value
        elif value is None and field.name == "max_age":
            changes[field.name] = None
        else:
            number = _number(value, 1 if field.name == "max_entries" else 0)
            if number is not None:
                changes[field.name] = number
    return replace(config, **changes)


def config_to_wire(config: StallConfig | DlqConfig) -> dict[str, Any]:
    """Return the configuration under its wire names."""
    return {WIRE_NAMES[field.name]: getattr(config, field.name) for field in fields(config)}


def _number(value: Any, least: int) -> int | None:
    """Return a usable whole number: strings are read, fractions cut, others brought in bounds."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return max(least, math.floor(min(value, SAFE_INTEGER_MAX)))
