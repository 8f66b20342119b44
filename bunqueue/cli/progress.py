"""A progress display: a bar on a terminal where rich is installed, plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

STEP_S = 0.1
LINE_STEPS = 10  # plain lines: one per tenth of the way

Display = tuple[Callable[[int], None], Callable[[], None]]


def progress(
    done: Callable[[], int], total: int, is_over: threading.Event, deadline_s: float
) -> bool:
    """Waits until ``is_over`` is set, showing how far things are; False when time runs out."""
    tell, close = meter(total, "jobs settled", sys.stdout)
    deadline = time.monotonic() + deadline_s
    try:
        while not is_over.wait(STEP_S):
            tell(done())
            if time.monotonic() > deadline:
                return False
        tell(done())
        return True
    finally:
        close()


def meter(total: int, what: str, stream: TextIO) -> Display:
    """Return how to show that so many are done, and how to end the display.

    Args:
        total: How many there are.
        what: Said behind the numbers, where there is no bar.
        stream: Where it is shown.
    """
    return _bar(total, stream) or _lines(total, what, stream)


def _bar(total: int, stream: TextIO) -> Display | None:
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        return None
    bar = Progress(console=Console(file=stream))
    task = bar.add_task("Working", total=total)
    bar.start()
    return lambda count: bar.update(task, completed=count), bar.stop


def _lines(total: int, what: str, stream: TextIO) -> Display:
    told = 0

    def tell(count: int) -> None:
        nonlocal told
        step = count * LINE_STEPS // total
        if step > told:
            told = step
            print(f"{count:>7,} of {total:,} {what}", file=stream, flush=True)

    return tell, lambda: None
