"""Retries inside the handler: the job stays active and its lease is renewed meanwhile.

The queue's own ``attempts`` and ``backoff`` are another thing: they give the job back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bunqueue.client.cancel import CancelSignal
from bunqueue.client.simple.settings import Settings
from bunqueue.errors import (
    DelayedError,
    JobCancelledError,
    RateLimitError,
    UnrecoverableError,
    WaitingChildrenError,
)

Result = TypeVar("Result")

KEYS = ("max_attempts", "delay", "strategy", "custom_backoff", "retry_if")
MAX_ATTEMPTS_DEFAULT = 3
DELAY_MS_DEFAULT = 1000
DOUBLINGS_MAX = 60  # beyond it a delay is longer than any process lives
# What a handler raises to say what is to become of the job: no failure to be tried again here.
FINAL = (
    DelayedError,
    JobCancelledError,
    RateLimitError,
    UnrecoverableError,
    WaitingChildrenError,
)


def calculate_backoff(
    strategy: str,
    attempt: int,
    base_delay: float,
    error: BaseException,
    config: Mapping[str, Any],
) -> float:
    """Return the wait in ms after a failed attempt.

    Args:
        strategy: ``fixed``, ``exponential``, ``jitter``, ``fibonacci`` or ``custom``; another
            name, and ``custom`` without its function, count as ``fixed``.
        attempt: The one that failed; the first is 1.
        base_delay: In ms.
        error: What it failed with.
        config: For ``custom_backoff(attempt, error)``.
    """
    doubled: float = base_delay * 2 ** min(attempt - 1, DOUBLINGS_MAX)
    if strategy == "exponential":
        return doubled
    if strategy == "jitter":
        return float(int(doubled * (0.5 + random.random())))
    if strategy == "fibonacci":
        before, factor = 1, 1
        for _ in range(min(attempt - 1, DOUBLINGS_MAX)):
            before, factor = factor, before + factor
        return base_delay * factor
    custom = config.get("custom_backoff") or config.get("customBackoff")
    if strategy == "custom" and custom is not None:
        return float(custom(attempt, error))
    return base_delay


class Retry:
    """The ``retry`` option, read once.

    Raises:
        TypeError, ValueError: A value that cannot work.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = Settings("retry", config, KEYS)
        self._config = config
        self._attempts_max = settings.whole("max_attempts", MAX_ATTEMPTS_DEFAULT)
        self._delay_ms = settings.number("delay", DELAY_MS_DEFAULT)
        self._strategy = str(settings.value("strategy", "exponential"))
        self._retry_if = settings.function("retry_if")
        settings.function("custom_backoff")

    def run(self, call: Callable[[], Result], signal: CancelSignal) -> Result:
        """Return what ``call`` returns, trying again after failures. Waits between attempts.

        Args:
            call: What may fail.
            signal: Ends the wait, and the attempts, once aborted.
        """
        attempt = 1
        while True:
            try:
                return call()
            except FINAL:
                raise
            except Exception as error:
                if attempt >= self._attempts_max or signal.aborted:
                    raise
                if self._retry_if is not None and not self._retry_if(error, attempt):
                    raise
                delay_ms = calculate_backoff(
                    self._strategy, attempt, self._delay_ms, error, self._config
                )
            if signal.wait(max(0.0, delay_ms) / 1000):
                signal.raise_if_aborted()
            attempt += 1


def execute_with_retry(fn: Callable[[], Result], config: Mapping[str, Any]) -> Result:
    """Return what ``fn`` returns, trying again after failures. Waits between attempts."""
    return Retry(config).run(fn, CancelSignal())
