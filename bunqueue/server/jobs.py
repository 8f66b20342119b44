"""Routes about one job."""

from typing import Any

from gevent.event import AsyncResult

from bunqueue.broker import Later, LocalPeer
from bunqueue.commands import dispatch
from bunqueue.server.routes import Request, Response, Site, answer, route

STATUS_UNKNOWN = 404


@route("/jobs/<path:job_id>/explain", "GET")
def explain(site: Site, _request: Request, job_id: str) -> Response:
    """Tell why a job is not running. Waits while a long queue is counted."""
    reply: Any = dispatch(LocalPeer(site.broker), {"cmd": "ExplainJob", "id": job_id})
    if isinstance(reply, Later):
        counted = AsyncResult()
        reply.then(lambda told, _commits: counted.set(told))
        reply = counted.get()
    is_known = reply["ok"] and reply["explanation"]["state"] != "unknown"
    return answer(reply, 200 if is_known else STATUS_UNKNOWN)
