"""The original server's small tables as rows of ours: ``(table, key, values)``.

Each reader yields what comes over and tells the report of the rest.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from bunqueue.engine import cron, group_control, metrics, proofs, schedules
from bunqueue.engine.dependencies import FAILURES, record_key
from bunqueue.engine.failures import CONTINUE, FAIL, IGNORE, REMOVE
from bunqueue.engine.limits import RATE_DURATION_MS_DEFAULT
from bunqueue.engine.settings import DlqConfig, StallConfig, config_to_wire, merged
from bunqueue.errors import Refused
from bunqueue.protocol.codec import pack
from bunqueue.protocol.fields import SAFE_INTEGER_MAX, JobName, QueueName
from bunqueue.protocol.group_fields import GroupId
from bunqueue.protocol.options import OPTION_FIELDS
from bunqueue.storage.reference.report import Note, Report, Unfit
from bunqueue.storage.reference.source import Source
from bunqueue.storage.reference.values import map_of, moment, text, value_of, whole

Put = tuple[str, str, tuple[Any, ...]]
Columns = dict[str, Any]

_QUEUE, _JOB, _GROUP = QueueName(), JobName(), GroupId()


def puts(source: Source, report: Report) -> Iterator[Put]:
    """Yield the rows of all small tables."""
    for table, key, read, name in (
        ("queue_state", "name", _queue, "queue settings"),
        ("group_state", "group_id", _group, "group settings"),
        ("cron_jobs", "name", _cron, "schedulers"),
        ("flow_failures", "child_id", _flow_failure, "failures of children"),
    ):
        yield from _read(source, report, table, key, read, name)
    yield from _proofs(source, report)
    yield from _metrics(source, report)


def _read(
    source: Source,
    report: Report,
    table: str,
    key: str,
    read: Callable[[Columns, Note], Put],
    name: str,
) -> Iterator[Put]:
    names = source.columns(table)
    for row in source.rows(f"SELECT {', '.join(names)} FROM {table} ORDER BY rowid"):
        columns = dict(zip(names, row, strict=True))
        try:
            put = read(columns, report.noting(table, columns[key]))
        except Unfit as error:
            report.refuse(table, columns[key], str(error), columns)
            continue
        report.rows[name] += 1
        yield put


# -- settings -------------------------------------------------------------------------------------


def _queue(columns: Columns, note: Note) -> Put:
    name = _queue_name(columns["name"])
    stall = merged(
        StallConfig(),
        {
            "enabled": None if columns["stall_enabled"] is None else bool(columns["stall_enabled"]),
            "stallInterval": columns["stall_interval"],
            "maxStalls": columns["max_stalls"],
            "gracePeriod": columns["stall_grace_period"],
        },
    )
    try:
        given = map_of(value_of(columns["dlq_config"], "dlq_config"), "dlq_config")
    except Unfit as error:
        note(f"{error}: the default holds")
        given = {}
    dlq = merged(DlqConfig(), given)
    limit, duration, expires_at = None, None, None
    if columns["rate_limit"] is not None:
        limit = whole(columns["rate_limit"], "rate_limit", -SAFE_INTEGER_MAX, SAFE_INTEGER_MAX)
        duration = columns["rate_limit_duration"]
        if not isinstance(duration, (int, float)) or not duration > 0:
            duration = RATE_DURATION_MS_DEFAULT
        expires_at = moment(columns["rate_limit_expires_at"], "rate_limit_expires_at") or None
    concurrency = columns["concurrency_limit"]
    if concurrency is not None:
        concurrency = whole(concurrency, "concurrency_limit", -SAFE_INTEGER_MAX, SAFE_INTEGER_MAX)
    values = (
        int(bool(columns["paused"])),
        limit,
        duration,
        expires_at,
        concurrency,
        None if stall == StallConfig() else json.dumps(config_to_wire(stall)),
        None if dlq == DlqConfig() else json.dumps(config_to_wire(dlq)),
        0,
        0,
    )
    return "queues", name, values


def _group(columns: Columns, _note: Note) -> Put:
    queue, group_id = _queue_name(columns["queue"]), columns["group_id"]
    problem = _GROUP.problem("groupId", group_id)
    if problem:
        raise Unfit(problem)
    limit, duration, concurrency = (
        None if columns[name] is None else whole(columns[name], name, 1, SAFE_INTEGER_MAX)
        for name in ("rate_limit", "rate_duration", "concurrency_limit")
    )
    if limit is None or duration is None:
        limit = duration = None
    values = (queue, group_id, limit, duration, concurrency, int(bool(columns["paused"])))
    return group_control.TABLE, group_control.row_key(queue, group_id), values


def _queue_name(value: object) -> str:
    problem = _QUEUE.problem("queue", value)
    if problem:
        raise Unfit(problem)
    return str(value)


# -- schedulers -----------------------------------------------------------------------------------


def _cron(columns: Columns, note: Note) -> Put:
    name = text(columns["name"], "name")
    if name is None:
        raise Unfit("it has no name")
    job_name = columns["job_name"] or "default"
    problem = _JOB.problem("name", job_name)
    if problem:
        raise Unfit(problem)
    most = columns["max_limit"]
    row = (
        _queue_name(columns["queue"]),
        job_name,
        text(columns["schedule"], "schedule"),
        None
        if columns["repeat_every"] is None
        else whole(columns["repeat_every"], "repeat_every", 1, SAFE_INTEGER_MAX),
        text(columns["timezone"], "timezone"),
        moment(columns["next_run"], "next_run"),
        whole(columns["executions"], "executions", 0, SAFE_INTEGER_MAX),
        None if most is None else whole(most, "max_limit", -SAFE_INTEGER_MAX, SAFE_INTEGER_MAX),
        whole(columns["priority"], "priority", -SAFE_INTEGER_MAX, SAFE_INTEGER_MAX),
        text(columns["unique_key"], "unique_key"),
        _json(_dedup(columns["dedup"], note)),
        int(bool(columns["skip_missed_on_restart"])),
        int(bool(columns["skip_if_no_worker"])),
        int(bool(columns["prevent_overlap"])),
        _json(_cron_options(columns["job_options"], note)),
        pack(value_of(columns["data"], "data")),
    )
    try:
        cron.from_row(name, row)
    except (Refused, TypeError, ValueError) as error:
        raise Unfit(str(error)) from None
    return schedules.TABLE, name, row


def _cron_options(blob: object, note: Note) -> dict[str, Any] | None:
    given = map_of(value_of(blob, "job_options"), "job_options")
    kept = {}
    for option, value in given.items():
        if value is None:
            continue
        problem = (
            OPTION_FIELDS[option].problem(option, value)
            if option in cron.JOB_OPTIONS
            else f"{option} is no option of a scheduler's jobs"
        )
        if problem:
            note(f"{problem}: left out")
        else:
            kept[option] = cron.known(option, value)
    return kept or None


def _dedup(blob: object, note: Note) -> dict[str, Any]:
    given = map_of(value_of(blob, "dedup"), "dedup")
    problem = OPTION_FIELDS["dedup"].problem("dedup", given)
    if problem:
        note(f"{problem}: left out")
        return {}
    kept: dict[str, Any] = cron.known("dedup", given)
    return kept


def _json(value: object) -> str | None:
    return json.dumps(value) if value else None


# -- flows ----------------------------------------------------------------------------------------


def _flow_failure(columns: Columns, _note: Note) -> Put:
    parent_id, child_id, mode = columns["parent_id"], columns["child_id"], columns["mode"]
    if mode not in (CONTINUE, FAIL, IGNORE, REMOVE):
        raise Unfit(f"unknown mode {mode!r}")
    record = (
        parent_id,
        child_id,
        _queue_name(columns["child_queue"]),
        mode,
        str(columns["error"]),
        moment(columns["created_at"], "created_at"),
    )
    return FAILURES, record_key(parent_id, child_id), record


# A completed job that is kept proves itself.
_SELECT_PROOFS: Final = (
    "SELECT job_id, queue, completed_at, sequence FROM dependency_completions AS proofs"
    " WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = proofs.job_id) ORDER BY sequence"
)


def _proofs(source: Source, report: Report) -> Iterator[Put]:
    for job_id, queue, completed_at, sequence in source.rows(_SELECT_PROOFS):
        try:
            values = (_queue_name(queue), moment(completed_at, "completed_at"), None)
        except Unfit as error:
            columns = {"job_id": job_id, "queue": queue, "completed_at": completed_at}
            report.refuse("dependency_completions", sequence, str(error), columns)
            continue
        report.rows["proofs of completion"] += 1
        yield proofs.TABLE, job_id, values


# -- figures --------------------------------------------------------------------------------------

_SELECT_TOTALS: Final = """
SELECT queue,
    sum(CASE type WHEN 'completed' THEN total_count ELSE 0 END),
    sum(CASE type WHEN 'failed' THEN total_count ELSE 0 END),
    max(CASE type WHEN 'completed' THEN prev_ts ELSE 0 END),
    max(CASE type WHEN 'failed' THEN prev_ts ELSE 0 END),
    (SELECT max(minute) FROM queue_metric_buckets AS b WHERE b.queue = m.queue)
FROM queue_metrics_meta AS m GROUP BY queue"""
_SELECT_MINUTES: Final = """
SELECT queue, minute,
    sum(CASE type WHEN 'completed' THEN count ELSE 0 END),
    sum(CASE type WHEN 'failed' THEN count ELSE 0 END)
FROM queue_metric_buckets GROUP BY queue, minute ORDER BY queue, minute"""


def _metrics(source: Source, report: Report) -> Iterator[Put]:
    """Yield totals, each with the counts of its newest minute, and the minutes before."""
    newest: dict[str, tuple[int, tuple[Any, ...]]] = {}
    for queue, completed, failed, completed_at, failed_at, minute in source.rows(_SELECT_TOTALS):
        numbers = (completed, failed, completed_at, failed_at, minute or 0)
        try:
            _queue_name(queue)
            totals = tuple(whole(each, "a figure", 0, SAFE_INTEGER_MAX) for each in numbers)
        except Unfit as error:
            report.refuse("queue_metrics_meta", queue, str(error), {"queue": queue})
            continue
        newest[queue] = totals[4], totals
    for queue, minute, completed, failed in source.rows(_SELECT_MINUTES):
        if queue not in newest:
            continue
        last, totals = newest[queue]
        try:
            minute, *counts = (
                whole(each, "a figure", 0, SAFE_INTEGER_MAX) for each in (minute, completed, failed)
            )
        except Unfit as error:
            columns = {"queue": queue, "minute": minute}
            report.refuse("queue_metric_buckets", f"{queue} {minute}", str(error), columns)
            continue
        if minute == last:
            newest[queue] = last, (*totals[:5], *counts)
        elif minute > last - metrics.WINDOW_MINUTES:
            report.rows["minutes of figures"] += 1
            yield metrics.MINUTES, metrics.minute_key(queue, minute), tuple(counts)
    for queue, (_, totals) in newest.items():
        report.rows["figures of queues"] += 1
        yield metrics.TOTALS, queue, totals if len(totals) > 5 else (*totals, 0, 0)
