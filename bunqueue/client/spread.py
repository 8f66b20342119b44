"""Waits before another attempt, drawn apart.

A broker that dies, or a network that does, drops every worker in the same moment. If all came back
after the same wait they would come at once, and again at once after the next. So each wait is
drawn, between the planned one and half as long again.
"""

import random
from typing import Final

SPREAD: Final = 0.5

# Not the module's generator: children that were forked would all have the state of their parent.
_chance = random.SystemRandom()


def spread(wait_s: float) -> float:
    """Return a wait of ``wait_s`` or up to half as long again, in seconds."""
    return wait_s * (1 + SPREAD * _chance.random())
