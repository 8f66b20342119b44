"""How long to wait before the next attempt."""

from typing import TYPE_CHECKING

from bunqueue.protocol.options import JobOptions

if TYPE_CHECKING:
    from random import Random

_DOUBLINGS_MAX = 32  # beyond it every cap has long been reached


def retry_delay_ms(attempts: int, options: JobOptions, rng: "Random") -> int:
    """Return how long to wait before the next attempt.

    Exponential backoff doubles per failed attempt, then is spread by 0.5 to 1.5 so that jobs which
    failed together do not return together; fixed backoff is spread by 0.8 to 1.2. The cap is
    applied after the spread.

    Args:
        attempts: Failed attempts so far, at least 1.
        options: Holds kind, base delay and cap in ms.
        rng: Source of the spread; seeded in tests.

    Returns:
        Whole ms, between 0 and the cap.

    Source: engine.md 4.1, measured on the 2.9.5 server.
    """
    base = options.backoff_ms
    if not base:
        return 0
    if options.backoff_type == "fixed":
        spread = base * rng.uniform(0.8, 1.2)
    else:
        spread = base * 2 ** min(attempts, _DOUBLINGS_MAX) * rng.uniform(0.5, 1.5)
    return round(min(spread, options.backoff_max_ms))
