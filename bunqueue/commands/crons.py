"""Schedulers over the wire."""

from typing import Any, Final

from bunqueue.commands import core
from bunqueue.commands.job_wire import list_header, pack_listing
from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.engine.cron import EVERY_REFUSED, JOB_OPTIONS, Cron, Definition, known
from bunqueue.engine.slices import Work
from bunqueue.errors import InvalidField
from bunqueue.protocol.codec import pack_for
from bunqueue.protocol.fields import Anything, Flag, JobName, Map, Number, QueueName, Text
from bunqueue.protocol.options import DEFAULT_OPTIONS, OPTION_FIELDS
from bunqueue.protocol.replies import OK, Reply

_CRONS: Final = b"\x82\xa2ok\xc3\xa5crons"
_NAME: Final = {"name": Text(required=True, empty=False, doc="The scheduler's name.")}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _every(value: object) -> int | None:
    """Return an interval; what is no whole number is refused."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidField(EVERY_REFUSED)
    return value


def _flag(request: Request, name: str, default: bool) -> bool:
    value = request.get(name)
    return default if value is None else bool(value)


@command(
    "Cron",
    {
        "queue": QueueName(),
        **_NAME,
        "jobName": JobName(doc="Name of the jobs it makes; `default` if absent."),
        "data": Anything(is_long=True, doc="Their data; null if absent."),
        "schedule": Text(doc="A cron expression of 5 fields, or 6 with the seconds first."),
        "repeatEvery": Anything(doc="Ms between runs, a whole number; a schedule wins."),
        "timezone": Text(doc="IANA name of the zone of the schedule; UTC if absent."),
        "priority": OPTION_FIELDS["priority"],
        "maxLimit": Number(min=None, integer=True, doc="Runs in all; 0 and below are no limit."),
        "uniqueKey": OPTION_FIELDS["uniqueKey"],
        "dedup": OPTION_FIELDS["dedup"],
        "immediately": Flag(doc="One run at once, when the scheduler is new."),
        "skipMissedOnRestart": Flag(doc="Leave out what was missed; true if absent."),
        "skipIfNoWorker": Flag(doc="Leave a run out while no worker serves the queue."),
        "preventOverlap": Flag(doc="Leave a run out while the last job lives; true if absent."),
        "jobOptions": Map(
            fields={name: OPTION_FIELDS[name] for name in JOB_OPTIONS},
            doc="Options of the jobs it makes: " + ", ".join(JOB_OPTIONS) + ".",
        ),
    },
    mutates=True,
)
def set_cron(peer: Peer, request: Request) -> Reply:
    """Define a scheduler, or redefine the one of that name.

    That one keeps its count of runs, and its next run unless its moments change.
    """
    push = {"name": request.get("jobName"), "data": request.get("data")}
    job_name, data = core.payload(push, DEFAULT_OPTIONS, peer.engine)
    given = request.get("jobOptions") or {}
    options = {
        name: known(name, given[name]) for name in JOB_OPTIONS if given.get(name) is not None
    }
    prevents = request.get("preventOverlap")
    cron = peer.engine.set_cron(
        Definition(
            name=request["name"],
            queue=request["queue"],
            job_name=job_name,
            data=data,
            schedule=request.get("schedule") or None,
            repeat_every=_every(request.get("repeatEvery")),
            timezone=request.get("timezone") or None,
            priority=int(request.get("priority") or 0),
            max_limit=_whole(request.get("maxLimit")),
            unique_key=request.get("uniqueKey") or None,
            dedup=known("dedup", request.get("dedup")),
            skip_missed=_flag(request, "skipMissedOnRestart", True),
            skip_if_no_worker=_flag(request, "skipIfNoWorker", False),
            prevent_overlap=_flag(request, "preventOverlap", True),
            job_options=options or None,
        ),
        bool(request.get("immediately")),
        prevents is True,
        peer.now(),
    )
    return {"ok": True, "cron": described(cron)}


def described(cron: Cron) -> dict[str, Any]:
    """Return a scheduler as readers are told of it (wire.md 3.5)."""
    definition = cron.definition
    return {
        "name": definition.name,
        "jobName": definition.job_name,
        "queue": definition.queue,
        "schedule": definition.schedule,
        "repeatEvery": definition.repeat_every,
        "nextRun": float(cron.next_run),
        "executions": cron.executions,
        "maxLimit": definition.max_limit,
        "timezone": definition.timezone,
        "priority": definition.priority,
    }


@command("CronGet", _NAME)
def get_cron(peer: Peer, request: Request) -> Reply:
    """Return one scheduler."""
    return {"ok": True, "cron": described(peer.engine.find_cron(request["name"]))}


@command("CronDelete", _NAME, mutates=True)
def delete_cron(peer: Peer, request: Request) -> Reply:
    """Remove a scheduler; the jobs that it has made stay."""
    peer.engine.delete_cron(request["name"], peer.now())
    return OK


@command("CronList")
def list_crons(peer: Peer, _request: Request) -> Work[Reply]:
    """List all schedulers, in order of definition."""
    return _CRONS + (yield from crons_listed(peer))


def crons_listed(peer: Peer) -> Work[bytes]:
    """Return the packed list of all schedulers."""
    crons = peer.engine.list_crons()
    count, (listed,) = yield from pack_listing(
        (pack_for(described(cron), peer.int64),) for cron in crons
    )
    return b"".join((list_header(count), *listed))
