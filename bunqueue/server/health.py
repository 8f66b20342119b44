"""Is it alive, is it ready, how does it do: the routes that probes ask."""

from typing import Any

from bunqueue import __version__
from bunqueue.broker import LocalPeer
from bunqueue.commands import dispatch
from bunqueue.compiled import CORE
from bunqueue.server.routes import Request, Response, Site, answer, route

BYTES_PER_MB = 1024 * 1024
QUEUE_FIGURES = ("waiting", "active", "delayed", "completed", "dlq")


@route("/healthz", is_open=True)
@route("/live", is_open=True)
def live(_site: Site, _request: Request) -> Response:
    """Tell that the loop turns; says nothing about the storage."""
    return Response("OK", content_type="text/plain")


@route("/ready", is_open=True)
def ready(site: Site, _request: Request) -> Response:
    """Tell whether work may be sent here: the storage writes, and no stop has begun."""
    storage = site.broker.storage.status()
    if _is_well(storage) and not site.is_draining:
        return answer({"ok": True, "ready": True})
    reply = {"ok": False, "ready": False, "storage": storage}
    return answer(reply | {"draining": True} if site.is_draining else reply, 503)


@route("/health", is_open=True)
def health(site: Site, _request: Request) -> Response:
    """Tell how the broker does, in figures."""
    broker = site.broker
    storage = broker.storage.status()
    is_well = _is_well(storage)
    stats: Any = dispatch(LocalPeer(broker), {"cmd": "Stats"})
    figures = stats.get("stats", stats)
    reply = {
        "ok": is_well,
        "status": "healthy" if is_well else "degraded",
        "uptime": int(broker.uptime_s),
        "version": __version__,
        "core": CORE,
        "writer": broker.storage.written_by,
        "queues": {name: figures.get(name, 0) for name in QUEUE_FIGURES},
        "connections": site.connections(),
        "memory": {
            name: round(size / BYTES_PER_MB) for name, size in broker.host.memory_bytes().items()
        },
    }
    return answer(reply if is_well else reply | {"storage": storage}, 200 if is_well else 503)


def _is_well(storage: dict[str, Any]) -> bool:
    return not (storage["diskFull"] or storage["error"])
