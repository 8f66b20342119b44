"""The eight commands that are the product: jobs in, jobs out, outcomes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from bunqueue.commands.job_wire import job_pieces, list_header, pack_job
from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command, in_slices, refusal_reply
from bunqueue.engine.entries import Entry
from bunqueue.engine.face import EngineFace
from bunqueue.engine.groups import GroupTerms, Rate
from bunqueue.engine.job import Job
from bunqueue.engine.later import Later
from bunqueue.engine.slices import Work, consumed, weighed
from bunqueue.errors import InvalidField
from bunqueue.protocol.codec import UNDEFINED, pack, pack_foreign, pack_plain
from bunqueue.protocol.fields import (
    JOB_NAME_CHARS_MAX,
    JOB_NAME_REFUSAL,
    Anything,
    Flag,
    JobName,
    List,
    Number,
    QueueName,
    Text,
    compile_check,
    length_problem,
)
from bunqueue.protocol.group_fields import PullerGroup
from bunqueue.protocol.large import Packed, json_chars
from bunqueue.protocol.options import (
    DATA_CHARS_MAX,
    DEFAULT_OPTIONS,
    OPTION_FIELDS,
    YEAR_MS,
    JobOptions,
    check_options,
    is_truthy,
    sets_no_option,
    shared_options,
)
from bunqueue.protocol.replies import ALREADY_FINALIZED, OK, Reply

PULL_WAIT_MS_MAX = 60_000  # wire.md 2.1
PULL_COUNT_MAX = 1000
LOCK_TTL_MS_MAX = YEAR_MS  # the reference has no limit; ours is that of every other span
NAME_DEFAULT = "default"
OPTIONED_AT_ONCE_MAX: Final = 250  # jobs of a PUSHB that are added in one go: some ms
PLAIN_AT_ONCE_MAX: Final = 1_000  # the same for jobs without options
# How much of a larger one is checked between two looks at what was spent, and what it costs:
# loadtests/hub.py push-batch, push-large.
ENTRIES_PER_STEP: Final = 20
ENTRY_US: Final = 8
ITEMS_PER_ENTRY: Final = 32  # of the lists of its options, that take as long as it
ENTRY_BYTES_PER_US: Final = 60
ACKED_AT_ONCE_MAX: Final = 1_000  # jobs of an ACKB that are completed in one go: some ms
IDS_PER_STEP: Final = 500  # of a larger one, as above: loadtests/hub.py ack-batch
ID_US: Final = 1
RESULT_US: Final = 2
# JSON grows a packed value by this much at the very most (a control character, an escaped key);
# anything smaller than the limit over it needs no counting.
JSON_GROWTH_MAX = 7
PACKED_BYTES_SAFE = DATA_CHARS_MAX // JSON_GROWTH_MAX

_NULL: Final = pack(None)
_PUSHED: Final = b"\x82\xa2ok\xc3\xa2id"
_PUSHED_MANY: Final = b"\x82\xa2ok\xc3\xa3ids"
_NO_JOB: Final = b"\x82\xa2ok\xc3\xa3job\xc0"
_NO_JOB_LEASED: Final = b"\x83\xa2ok\xc3\xa3job\xc0\xa5token\xc0"
_JOB: Final = b"\x82\xa2ok\xc3\xa3job"
_JOB_LEASED: Final = b"\x83\xa2ok\xc3\xa3job"
_TOKEN: Final = b"\xa5token"
_JOBS: Final = b"\x82\xa2ok\xc3\xa4jobs"
_JOBS_LEASED: Final = b"\x83\xa2ok\xc3\xa4jobs"
_TOKENS: Final = b"\xa6tokens"

_PULL_FIELDS: Final = {
    "queue": QueueName(),
    "timeout": Number(
        max=PULL_WAIT_MS_MAX, doc="How long to wait for a job, ms; not at all if absent."
    ),
    "owner": Anything(doc="Name of the worker, a string; makes a lease with a token."),
    "lockTtl": Number(max=LOCK_TTL_MS_MAX, doc="Span of the lease, ms; 30,000 if absent."),
    "detach": Flag(truthy=True, doc="Without owner: the job stays active when the link closes."),
    "group": PullerGroup(doc="Defaults for each group's limits, and which jobs are wanted."),
}


def payload(
    request: Mapping[str, Any], options: JobOptions, engine: EngineFace
) -> tuple[str, bytes]:
    """Return name and packed data of a push; a name inside ``data`` is lifted out (wire.md 4.1).

    Older clients send the name there, and look for it there too: a setting leaves it (wire.md 9).
    """
    data = request.get("data")
    name = request.get("name")
    if name is None:
        name = NAME_DEFAULT
        if data.__class__ is dict and isinstance(data.get("name"), str):
            name = data["name"]
            if not engine.settings.keeps_names_in_data:
                data = dict(data)
                del data["name"]
        elif data.__class__ is Packed and data.name is not None:
            name = data.name
            if not engine.settings.keeps_names_in_data:
                data = data.nameless
        if not 0 < len(name) <= JOB_NAME_CHARS_MAX:
            raise InvalidField(JOB_NAME_REFUSAL)
    packed = _NULL if data is None else pack_data(data)
    if len(packed) > PACKED_BYTES_SAFE:
        check_data_size(data, packed)
    limit = options.size_limit
    if limit is not None and len(packed) * JSON_GROWTH_MAX > limit:
        _check_size(data, limit, f"Job data too large (sizeLimit {limit})")
    return name, packed


def pack_data(data: Any) -> bytes:
    """Pack a payload or a result as it is kept."""
    try:
        return pack_plain(data)
    except TypeError:
        return _pack_unusual(data)
    except (ValueError, OverflowError):
        raise InvalidField("Job data must be JSON serializable") from None


def _pack_unusual(data: Any) -> bytes:
    """Do the same with what is packed already, or holds an UNDEFINED."""
    if isinstance(data, Packed):
        return data.packed
    try:
        return pack_foreign(data)
    except (TypeError, ValueError, OverflowError):
        raise InvalidField("Job data must be JSON serializable") from None


def check_data_size(data: Any, packed: bytes) -> None:
    """Refuse a payload beyond the broker's limit."""
    if len(packed) > PACKED_BYTES_SAFE:
        _check_size(data, DATA_CHARS_MAX, "Job data too large (max 10MB)")


def _check_size(data: Any, limit: int, refusal: str) -> None:
    """Refuse data whose JSON form has more characters than ``limit``."""
    if json_chars(data) > limit:
        raise InvalidField(refusal)


@command(
    "PUSH",
    {
        "queue": QueueName(),
        "name": JobName(doc="`default` if absent."),
        "data": Anything(is_long=True, doc="The payload; null if absent."),
    },
    options=True,
    mutates=True,
)
def push(peer: Peer, request: Request) -> Reply | Later:
    """Add one job; the reply carries its id, or that of the live job with the same id or key."""
    options, own = DEFAULT_OPTIONS, None
    if not sets_no_option(request):
        problem = check_options(request)
        if problem is not None:
            raise InvalidField(problem)
        options, own = shared_options(request), request
    engine = peer.engine
    name, data = payload(request, options, engine)
    job_id = engine.push(request["queue"], name, data, options, own, peer.now())
    if job_id.__class__ is str:
        return _PUSHED + pack_plain(job_id)
    return _put_off(job_id, _PUSHED)


def _put_off(later: object, head: bytes) -> Later:
    """Return the answer of a push that is put off, in the shape of its reply."""
    assert isinstance(later, Later)

    def shape(answer: Any) -> Reply:
        if isinstance(answer, Exception):
            return refusal_reply(answer)
        return head + pack(answer)

    later.shape = shape
    return later


_check_entry = compile_check({"name": JobName()})


def _push_many(peer: Peer, request: Request, is_large: bool = True) -> Work[Reply]:
    """Do PUSHB in slices; ``is_large``: what a small frame could not hold may be in it."""
    engine = peer.engine
    entries: list[Entry] = []
    jobs, weight = request["jobs"], None
    if is_large:
        jobs, weight = consumed(jobs), _entry_weight
    for some, weighs in weighed(jobs, ENTRIES_PER_STEP, weight):
        checked = _entries(some, len(entries), engine, is_large)
        entries += checked
        yield weighs * ENTRY_US + sum([len(e[1]) for e in checked]) // ENTRY_BYTES_PER_US
    ids = yield from engine.push_many(request["queue"], entries, peer.now())
    return _PUSHED_MANY + pack(ids)


@command(
    "PUSHB",
    {"queue": QueueName(), "jobs": List(required=True, is_long=True)},
    mutates=True,
    large=_push_many,
)
def push_batch(peer: Peer, request: Request) -> Reply | Later:
    """Add several jobs to one queue, all or none; the ids come back in order."""
    jobs = request["jobs"]
    count = len(jobs)
    if count > OPTIONED_AT_ONCE_MAX and (count > PLAIN_AT_ONCE_MAX or _has_options(jobs[0])):
        return in_slices(peer, _push_many(peer, request, is_large=False), True)
    engine = peer.engine
    ids = engine.push_batch(request["queue"], _entries(jobs, 0, engine), peer.now())
    if ids.__class__ is list:
        return _PUSHED_MANY + pack(ids)
    return _put_off(ids, _PUSHED_MANY)


def _entry_weight(entry: Any) -> int:
    """Return as how many entries one counts that has long lists in its options."""
    if entry.__class__ is not dict or sets_no_option(entry):
        return 1
    items = 0
    for name, value in entry.items():
        if name != "data" and (value.__class__ is list or value.__class__ is dict):
            items += len(value)
            if value.__class__ is dict:
                items += sum([len(each) for each in value.values() if each.__class__ is list])
    return 1 + items // ITEMS_PER_ENTRY


def _has_options(entry: Any) -> bool:
    """Say whether a batch that begins so is one of jobs with options; most are of one kind."""
    return entry.__class__ is dict and not sets_no_option(entry)


def _entries(
    jobs: list[Any], first: int, engine: EngineFace, is_large: bool = False
) -> list[Entry]:
    """Return jobs of a batch, checked and packed.

    Args:
        first: Number of the first of them.
        engine: Whose settings hold for the payloads.
        is_large: They may hold more than a small frame could.

    Raises:
        InvalidField: The first rule that one of them breaks.
    """
    entries: list[Entry] = []
    try:
        for entry in jobs:
            if (
                entry.__class__ is dict
                and "name" in entry
                and sets_no_option(entry)
                and _check_entry(entry) is None
            ):
                data = pack_data(entry.get("data"))
                if len(data) <= PACKED_BYTES_SAFE:
                    entries.append((entry["name"], data, DEFAULT_OPTIONS, None))
                    continue
            entries.append(_entry(entry, engine, is_large))
    except InvalidField as refusal:
        raise InvalidField(f"jobs[{first + len(entries)}]: {refusal}") from None
    return entries


def _entry(entry: Any, engine: EngineFace, is_large: bool) -> Entry:
    """Return a job of a batch that is not of the commonest kind, checked and packed."""
    if entry.__class__ is not dict:
        raise InvalidField("job must be an object")
    problem = _check_entry(entry)
    options, own = DEFAULT_OPTIONS, None
    if problem is None and not sets_no_option(entry):
        problem = length_problem(entry, OPTION_FIELDS) if is_large else None
        problem = problem or check_options(entry)
        if problem is None:
            options, own = shared_options(entry), entry
    if problem is not None:
        raise InvalidField(problem)
    name, data = payload(entry, options, engine)
    return name, data, options, own


def _pull(
    peer: Peer, request: Request, count: int, shape: Callable[[bool, bool, list[Job]], Reply]
) -> Reply | Later:
    """Take up to ``count`` jobs; ``shape(int64, is_leased, jobs)`` makes the reply."""
    owner = request.get("owner")
    is_leased = owner.__class__ is str and owner != ""
    ttl_ms, group = request.get("lockTtl"), request.get("group")
    jobs = peer.engine.pull(
        peer,
        request["queue"],
        count,
        int(request["timeout"] or 0) if "timeout" in request else 0,
        owner if is_leased else None,
        None if ttl_ms is None else int(ttl_ms),
        "detach" in request and is_truthy(request["detach"]),
        _terms(group) if group else None,
        peer.now(),
    )
    if isinstance(jobs, list):
        return shape(peer.int64, is_leased, jobs)
    jobs.shape = partial(shape, peer.int64, is_leased)
    return jobs


def _terms(group: Mapping[str, Any]) -> GroupTerms:
    """Return what the puller says about groups."""
    limit = group.get("limit")
    concurrency = group.get("concurrency")
    return GroupTerms(
        concurrency=None if concurrency is None else int(concurrency),
        rate=None if limit is None else Rate(int(limit["max"]), int(limit["duration"])),
        is_affine="affinity" in group,
        affinity=group.get("affinity") or None,
    )


@command("PULL", _PULL_FIELDS, mutates=True, waits=True)
def pull(peer: Peer, request: Request) -> Reply | Later:
    """Take the next ready job, waiting for one if asked; with an owner it comes under a lease."""
    return _pull(peer, request, 1, _pulled)


def _pulled(int64: bool, is_leased: bool, jobs: list[Job]) -> Reply:
    if not jobs:
        return _NO_JOB_LEASED if is_leased else _NO_JOB
    job = jobs[0]
    if is_leased:
        pieces = job_pieces(_JOB_LEASED, job, int64)
        pieces += (_TOKEN, pack_plain(job.token))
        return b"".join(pieces)
    return b"".join(job_pieces(_JOB, job, int64))


@command(
    "PULLB",
    {
        "queue": QueueName(),
        "count": Number(
            min=1, max=PULL_COUNT_MAX, integer=True, doc="At most so many; 1 if absent."
        ),
        **_PULL_FIELDS,
    },
    mutates=True,
    waits=True,
)
def pull_batch(peer: Peer, request: Request) -> Reply | Later:
    """Take up to ``count`` ready jobs; with a timeout, wait for the first, never for all."""
    return _pull(peer, request, int(request.get("count") or 1), _pulled_many)


def _pulled_many(int64: bool, is_leased: bool, jobs: list[Job]) -> Reply:
    packed = [pack_job(job, int64) for job in jobs]
    header = list_header(len(jobs))
    if is_leased:
        tokens = pack([job.token for job in jobs])
        return b"".join((_JOBS_LEASED, header, *packed, _TOKENS, tokens))
    return b"".join((_JOBS, header, *packed))


def _result(value: Any) -> bytes | None:
    """Return a stored result: an undefined one is none, null is one."""
    return None if value is UNDEFINED else pack_data(value)


@command(
    "ACK",
    {
        "id": Text(required=True),
        "token": Text(doc="The delivery's lock token."),
        "result": Anything(is_long=True, doc="What came of it; absent is none."),
        "removeOnComplete": Flag(truthy=True, doc="Forget the job."),
    },
    mutates=True,
)
def ack(peer: Peer, request: Request) -> Reply:
    """Complete an active job; committed before the reply."""
    result = _result(request["result"]) if "result" in request else None
    remove = "removeOnComplete" in request and is_truthy(request["removeOnComplete"])
    applied = peer.engine.ack(request["id"], request.get("token"), result, remove, peer.now())
    return OK if applied else ALREADY_FINALIZED


def _lists_of(request: Request) -> list[list[Any] | None]:
    """Return ids, tokens, results and ``removeOnCompletes``, as long as the ids or None.

    Raises:
        InvalidField: One of them has another length.
    """
    ids = request["ids"]
    lists: list[list[Any] | None] = [ids]
    for name in ("tokens", "results", "removeOnCompletes"):
        values = request.get(name)
        if values is not None and len(values) != len(ids):
            raise InvalidField(f"ACKB {name} length must match ids length")
        lists.append(values)
    return lists


def _ack_many(peer: Peer, request: Request) -> Work[Reply]:
    """Do ACKB in slices."""
    ids, tokens, results, removes = _lists_of(request)
    assert ids is not None
    for begin in range(0, len(ids), IDS_PER_STEP):
        some = slice(begin, begin + IDS_PER_STEP)
        check_ids(ids[some])
        if tokens is not None:
            tokens[some] = texts_or_none(tokens[some]) or ()
        yield IDS_PER_STEP * ID_US
        if results is not None:
            results[some] = [_result(value) for value in results[some]]
            yield IDS_PER_STEP * RESULT_US
    ignored = yield from peer.engine.ack_many(ids, tokens, results, removes, peer.now())
    return _acked(ids, ignored)


def _acked(ids: list[str], ignored: list[int]) -> Reply:
    if not ignored:
        return OK
    data = {"ignoredIndices": ignored, "ignoredIds": [ids[number] for number in ignored]}
    return {"ok": True, "data": data}


@command(
    "ACKB",
    {
        "ids": List(required=True, is_long=True),
        "tokens": List(is_long=True, doc="Parallel to ids; null for a job without a lease."),
        "results": List(is_long=True, doc="Parallel to ids."),
        "removeOnCompletes": List(is_long=True, doc="Parallel to ids: forget the job."),
    },
    mutates=True,
    large=_ack_many,
)
def ack_batch(peer: Peer, request: Request) -> Reply | Later:
    """Complete several jobs; every token is checked before anything is applied."""
    ids, tokens, results, removes = _lists_of(request)
    assert ids is not None
    if len(ids) > ACKED_AT_ONCE_MAX:
        return in_slices(peer, _ack_many(peer, request), True)
    check_ids(ids)
    ignored = peer.engine.ack_batch(
        ids,
        texts_or_none(tokens),
        None if results is None else [_result(value) for value in results],
        removes,
        peer.now(),
    )
    return _acked(ids, ignored)


def check_ids(ids: list[Any]) -> None:
    """Refuse a list that holds anything but ids."""
    for job_id in ids:
        if job_id.__class__ is not str:
            raise InvalidField("ids must be an array of valid string job ids")


def texts_or_none(values: list[Any] | None) -> list[str | None] | None:
    """Return the list with everything that is no string read as "not given"."""
    if values is None:
        return None
    return [value if value.__class__ is str else None for value in values]


@command(
    "FAIL",
    {
        "id": Text(required=True),
        "token": Text(doc="The delivery's lock token."),
        "error": Text(is_long=True, doc="What went wrong; null if absent."),
        "unrecoverable": Flag(truthy=True, doc="No further attempts."),
        "stack": List(is_long=True, doc="Lines of the failure's stack; absent leaves the old one."),
        "removeOnFail": Flag(truthy=True, doc="If it was the last attempt: forget the job."),
    },
    mutates=True,
)
def fail(peer: Peer, request: Request) -> Reply:
    """Report that a run ended badly: another attempt after its backoff, or the dead letters."""
    applied = peer.engine.fail(
        request["id"],
        request.get("token"),
        request.get("error"),
        "unrecoverable" in request and is_truthy(request["unrecoverable"]),
        request.get("stack"),
        "removeOnFail" in request and is_truthy(request["removeOnFail"]),
        peer.now(),
    )
    return OK if applied else ALREADY_FINALIZED
