"""A progress display: a bar on a terminal where rich is installed, plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable

STEP_S = 0.1
LINE_STEPS = 10  # plain lines: one per tenth of the way


def progress(
    done: Callable[[], int], total: int, is_over: threading.Event, deadline_s: float
) -> bool:
    """Waits until ``is_over`` is set, showing how far things are; False when time runs out."""
    tell, close = _bar(total) or _lines(total)
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


Display = tuple[Callable[[int], None], Callable[[], None]]


def _bar(total: int) -> Display | None:
    if not sys.stdout.isatty():
        return None
    try:
        from rich.progress import Progress
    except ImportError:
        return None
    bar = Progress()
    task = bar.add_task("Working", total=total)
    bar.start()
    return lambda count: bar.update(task, completed=count), bar.stop


def _lines(total: int) -> Display:
    told = 0

    def tell(count: int) -> None:
        nonlocal told
        step = count * LINE_STEPS // total
        if step > told:
            told = step
            print(f"{count:>7,} of {total:,} jobs settled", flush=True)

    return tell, lambda: None
