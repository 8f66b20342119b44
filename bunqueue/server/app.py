"""The WSGI application: finds the route, asks for the token, turns what goes wrong into JSON."""

import logging
from collections.abc import Iterable
from typing import Any, Final

from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import Map, Rule

from bunqueue.server import health, jobs
from bunqueue.server.routes import ROUTES, Request, Response, Route, Site, refusal

log = logging.getLogger(__name__)

# Importing them has filled the table.
MODULES = (health, jobs)

PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization",
    "Access-Control-Max-Age": "86400",
}


class App:
    """Answers HTTP requests by the table of routes (wire.md 6.1)."""

    def __init__(self, site: Site, origins: Iterable[str] = ()) -> None:
        """Prepare.

        Args:
            site: What routes may use.
            origins: Origins that browsers may call from; ``*`` allows all.
        """
        self._site = site
        self._origins = frozenset(origins)
        self._map = Map(
            [Rule(row.path, methods=row.methods, endpoint=row) for row in ROUTES],
            strict_slashes=False,
            merge_slashes=False,
        )

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request, as WSGI asks for."""
        request = Request(environ)
        response = self._answer(request)
        self._allow_origin(request, response)
        return response(environ, start_response)

    def _answer(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status=204, headers=PREFLIGHT)
        row: Route | None
        try:
            row, variables = self._map.bind_to_environ(request.environ).match()
        except (NotFound, MethodNotAllowed):
            row, variables = None, {}
        except HTTPException as error:
            return refusal(error.name, error.code or 400)
        if not (row is not None and row.is_open) and not self._is_let_in(request):
            return refusal("Unauthorized", 401)
        if row is None:
            return refusal("Not found", 404)
        try:
            return row.run(self._site, request, **variables)
        except HTTPException as error:
            return refusal(error.description or error.name, error.code or 500)
        except Exception:
            log.exception("request failed path=%s", row.path)
            return refusal("Internal server error", 500)

    def _is_let_in(self, request: Request) -> bool:
        tokens = self._site.broker.tokens
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return not tokens or (scheme == "Bearer" and tokens.match(token.strip()))

    def _allow_origin(self, request: Request, response: Response) -> None:
        if not self._origins:
            return
        if "*" in self._origins:
            response.headers["Access-Control-Allow-Origin"] = "*"
            return
        response.headers.add("Vary", "Origin")
        origin = request.headers.get("Origin")
        if origin in self._origins:
            response.headers["Access-Control-Allow-Origin"] = origin
