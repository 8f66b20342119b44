"""The limits of a queue: rate, concurrency, pause.

Rate is a token bucket: capacity ``limit``, refilled continuously at ``limit / duration``, full at
the start (engine.md 10). Concurrency counts the active jobs themselves, so a slot cannot leak.
"""

import math
from typing import TYPE_CHECKING

from bunqueue import compiled

RATE_DURATION_MS_DEFAULT = 1000


class TokenBucket:
    """A queue's rate limit; ``limit <= 0`` lets nothing through.

    Attributes:
        limit, duration_ms: As set.
        expires_at: Epoch ms after which the limit is gone, or None.
    """

    __slots__ = ("limit", "duration_ms", "expires_at", "_tokens", "_at")

    def __init__(self, limit: float, duration_ms: float, expires_at: int | None, now: int) -> None:
        self.limit = limit
        self.duration_ms = duration_ms
        self.expires_at = expires_at
        self._tokens = max(limit, 0.0)
        self._at = now

    def tokens(self, now: int) -> float:
        """Refill up to ``now`` and return the tokens there are."""
        if now > self._at:
            if self.limit > 0:
                gained = (now - self._at) * self.limit / self.duration_ms
                self._tokens = min(self.limit, self._tokens + gained)
            self._at = now
        return self._tokens

    def take(self, count: int = 1) -> None:
        """Spend tokens that ``tokens`` said are there."""
        self._tokens -= count

    def wait_ms(self, now: int, count: float = 1) -> float:
        """Return how long until ``count`` tokens are there; infinite when they never are."""
        missing = count - self.tokens(now)
        if missing <= 0:
            return 0
        if self.limit <= 0 or count > self.limit:
            return math.inf
        return math.ceil(missing * self.duration_ms / self.limit)

    def shift(self, delta_ms: int) -> None:
        """Follow a jump of the wall clock."""
        self._at += delta_ms
        if self.expires_at is not None:
            self.expires_at += delta_ms


class GateFields:
    """What ``Gate`` is made of; the compiled core's own where it runs."""

    __slots__ = ("is_open", "is_paused", "rate", "concurrency")


if not TYPE_CHECKING and compiled.IS_COMPILED:
    GateFields = compiled.part("records").GateFields


class Gate(GateFields):
    """What may hold a queue's jobs back. ``is_open`` is the one question the hot path asks.

    Attributes:
        is_open: Nothing is limited or paused.
        is_paused: Nothing is handed out.
        rate: The rate limit, or None.
        concurrency: Most active jobs at a time, or None.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self.is_open = True
        self.is_paused = False
        self.rate: TokenBucket | None = None
        self.concurrency: int | None = None

    def changed(self) -> None:
        """Work out ``is_open`` again after a setting changed."""
        self.is_open = not self.is_paused and self.rate is None and self.concurrency is None

    def room(self, active: int, now: int) -> int:
        """Return how many jobs may be handed out now, at most a large number."""
        if self.is_paused:
            return 0
        room = 1 << 30
        if self.concurrency is not None:
            room = max(0, self.concurrency - active)
        rate = self.live_rate(now)
        if rate is not None:
            room = min(room, int(max(0.0, rate.tokens(now))))
        return room

    def took(self, count: int) -> None:
        """Spend rate tokens for so many deliveries."""
        if self.rate is not None:
            self.rate.take(count)

    def live_rate(self, now: int) -> TokenBucket | None:
        """Return the rate limit unless its time is over."""
        rate = self.rate
        if rate is not None and rate.expires_at is not None and rate.expires_at <= now:
            self.rate = None
            self.changed()
            return None
        return rate

    def next_token_at(self, now: int) -> int | None:
        """Return when a rate limit that is used up lets the next job through, or None."""
        return None if self.is_paused else self.rate_opens_at(now)

    def rate_opens_at(self, now: int) -> int | None:
        """Return that of a paused queue too, as if it went on."""
        rate = self.live_rate(now)
        if rate is None:
            return None
        wait_ms = rate.wait_ms(now)
        if not wait_ms:
            return None
        at = math.inf if wait_ms == math.inf else now + max(1, int(wait_ms))
        if rate.expires_at is not None:
            at = min(at, rate.expires_at)
        return None if at == math.inf else int(at)
