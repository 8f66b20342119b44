"""The table of HTTP routes: a route is one decorated function, the rest is read off its row."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from werkzeug.wrappers import Request, Response

from bunqueue.broker import Broker


class Site(Protocol):
    """What routes may use.

    Attributes:
        broker: What commands act on.
        is_draining: The server is about to stop.
    """

    broker: Broker
    is_draining: bool

    def connections(self) -> dict[str, int]:
        """Count the open connections by kind."""


Run = Callable[..., Response]


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table.

    Attributes:
        path: As Werkzeug's rules are written.
        methods: Which methods it answers; None means any.
        run: ``run(site, request, **variables of the path)``.
        is_open: It is answered without a token.
    """

    path: str
    methods: tuple[str, ...] | None
    run: Run
    is_open: bool


ROUTES: list[Route] = []


def route(path: str, *methods: str, is_open: bool = False) -> Callable[[Run], Run]:
    """Declare the decorated function as what answers ``path``; no methods means any."""

    def declare(run: Run) -> Run:
        assert run.__doc__, f"route {path} has no docstring"
        ROUTES.append(Route(path, methods or None, run, is_open))
        return run

    return declare


def answer(content: Any, status: int = 200) -> Response:
    """Make a JSON response."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Response(text, status, content_type="application/json")


def refusal(text: str, status: int) -> Response:
    """Make the response of everything that went wrong."""
    return answer({"ok": False, "error": text}, status)


__all__ = ["ROUTES", "Request", "Response", "Route", "Site", "answer", "refusal", "route"]
