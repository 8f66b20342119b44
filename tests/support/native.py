"""Running something in a native thread beside the greenlets of a patched process."""

from __future__ import annotations

from collections.abc import Callable

from gevent._hub_local import get_hub_if_exists

from bunqueue.client import worlds

RUN_S_MAX = 60.0


def run_natively(run: Callable[[], object]) -> None:
    """Run something in a native thread; what it raises is raised here."""
    raised: list[BaseException] = []

    def main() -> None:
        try:
            run()
        except BaseException as error:
            raised.append(error)

    worlds.native().spawn(main, "native").join(RUN_S_MAX)
    if raised:
        raise raised[0]


def hub_after(run: Callable[[], object]) -> object:
    """Run something in a native thread and return the hub that the thread has then."""
    found: list[object] = []

    def look() -> None:
        run()
        found.append(get_hub_if_exists())

    run_natively(look)
    return found[0]
