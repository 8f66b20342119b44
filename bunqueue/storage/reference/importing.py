"""An import from beginning to end: read the source, write the target, say what came of it.

All of it is one transaction of the target, so that a process that is killed on the way leaves a
data file without a job, and the import can be run again. The target's lock is held meanwhile and
no broker can open it early. The source's rows are read once, in the order in which its server
wrote them, which gives each job its admission number here; whoever was active there is active
here, and is charged as interrupted by the broker's first start, as after any crash.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

import apsw

from bunqueue.engine.job import Job
from bunqueue.engine.states import state_of
from bunqueue.errors import StorageFailed
from bunqueue.storage import schema
from bunqueue.storage.batch import Puts, small_statements
from bunqueue.storage.reference.jobs import (
    COLUMNS,
    DEAD_COLUMNS,
    SELECT_DEAD,
    SELECT_JOBS,
    SELECT_WAITING,
    job_of_entry,
    job_of_row,
    keep_key_until,
)
from bunqueue.storage.reference.report import OnRefused, Report, Unfit
from bunqueue.storage.reference.source import Source
from bunqueue.storage.reference.tables import puts
from bunqueue.storage.reference.values import list_of, map_of, value_of
from bunqueue.storage.rows import Images, images
from bunqueue.storage.sqlite import open_checked, take_file

ROWS_PER_CHUNK: Final = 1_000  # some ten ms of work between two words of progress
CACHE_KIB: Final = 65_536  # dirty pages kept before SQLite spills them to the log

T = TypeVar("T")
Write = Callable[[Images, Puts], None]
Tell = Callable[[int, int], None]


class NamedQueue:
    """All that a job's rows need of its queue."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def import_file(
    source_path: str,
    target_path: str,
    *,
    is_dry: bool = False,
    tell: Tell | None = None,
    on_refused: OnRefused | None = None,
) -> Report:
    """Waits until a file of the original server has been taken over into an empty one of ours.

    Args:
        source_path: Its file; never changed.
        target_path: Ours; made if it does not exist.
        is_dry: Read and check everything, and leave the target alone.
        tell: Told now and then how many of all jobs have been read.
        on_refused: Told of every row that does not come over.

    Raises:
        StorageFailed: The source cannot be read or the target cannot be written; nothing came over.
    """
    if is_same_file(source_path, target_path):
        raise StorageFailed(f"{source_path} cannot be imported into itself: name another file")
    source = Source(source_path)
    try:
        if is_dry:
            _check_beforehand(target_path)
            report = Report(on_refused=on_refused)
            _take_over(source, report, tell, _write_nothing)
            source.check_unchanged()
            return report
        return _into(source, target_path, tell, on_refused)
    finally:
        source.close()


def is_same_file(path: str, other: str) -> bool:
    """Say whether two paths, by whatever links, lead to one file, which need not exist."""
    if os.path.realpath(path) == os.path.realpath(other):
        return True
    return os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other)


def _into(
    source: Source,
    target_path: str,
    tell: Tell | None,
    on_refused: OnRefused | None,
) -> Report:
    path, lock = take_file(target_path)
    is_new = not os.path.exists(path)
    try:
        connection = open_checked(path)
        try:
            _refuse_if_filled(path, connection)
            connection.pragma("cache_size", -CACHE_KIB)
            connection.pragma("synchronous", "FULL")
            report = Report(on_refused=on_refused)
            with _told_errors(path), connection:
                _transfer(source, connection, report, tell)
        finally:
            connection.close()
    except BaseException:
        if is_new:
            for name in (path, f"{path}-wal", f"{path}-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
        raise
    finally:
        lock.release()
    return report


def _transfer(
    source: Source,
    connection: apsw.Connection,
    report: Report,
    tell: Tell | None,
) -> None:
    def write(made: Images, rows: Puts) -> None:
        for head, width, values in made.batch(1, False, *small_statements(rows))[2]:
            marks = ",".join("?" * width)
            connection.executemany(f"{head}({marks})", _split(values, width))

    seq = _take_over(source, report, tell, write)
    meta = schema.META.name
    write(Images(), {(meta, schema.META_SEQ): (seq,), (meta, schema.META_CLEAN): (1,)})
    source.check_unchanged()


def _take_over(source: Source, report: Report, tell: Tell | None, write: Write) -> int:
    """Read everything, hand it over in pieces; return the last admission number given."""
    now = time.time_ns() // 1_000_000
    total = source.count("jobs") + source.count("dlq")
    seq = done = 0
    refused: set[str] = set()
    for chunk in _chunks(_jobs(source, report, refused, now)):
        jobs = [job for job in chunk if job is not None]
        for job in jobs:
            seq += 1
            job.seq = seq
        write(images(jobs), {})
        done += len(chunk)
        if tell is not None:
            tell(done, total)
    if refused:
        _tell_who_waits(source, report, refused)
    for rows in _chunks(puts(source, report)):
        write(Images(), {(table, key): values for table, key, values in rows})
    report.left_out["lines of the event journal"] = source.count("queue_events")
    return seq


def _jobs(source: Source, report: Report, refused: set[str], now: int) -> Iterator[Job | None]:
    """Yield every job, and None for each row of which there comes none.

    Args:
        refused: Gets the ids of jobs that do not come over.
    """
    queues: dict[str, NamedQueue] = {}

    def queue_of(name: str) -> NamedQueue:
        return queues.setdefault(name, NamedQueue(name))

    for row in source.rows(SELECT_JOBS):
        try:
            job = job_of_row(row, 0, queue_of, now, report.noting("jobs", row[0]))
        except Unfit as error:
            report.refuse("jobs", row[0], str(error), dict(zip(COLUMNS, row, strict=False)))
            refused.add(row[0])
            yield None
            continue
        yield _counted(job, report, now)
    for row in source.rows(SELECT_DEAD):
        *columns, has_live, is_old = row
        job_id, entry = row[1], row[3]
        if is_old and not has_live:
            report.left_out["older dead letters of a job"] += 1
            yield None
            continue
        try:
            if has_live:
                raise Unfit("a live or completed job has its id")
            job = job_of_entry(
                map_of(value_of(entry, "entry"), "entry"),
                0,
                queue_of,
                now,
                report.noting("dlq", job_id),
            )
        except Unfit as error:
            named = dict(zip(DEAD_COLUMNS, columns, strict=True))
            report.refuse("dlq", job_id, str(error), named)
            if not has_live:
                refused.add(job_id)
            yield None
            continue
        yield _counted(job, report, now)


def _tell_who_waits(source: Source, report: Report, refused: set[str]) -> None:
    """Tell of the jobs that will wait for one that has not come over."""
    for job_id, packed in source.rows(SELECT_WAITING):
        if job_id in refused:
            continue
        try:
            missing = refused.intersection(list_of(value_of(packed, "depends_on"), str, "ids"))
        except Unfit:
            continue  # told with the job itself
        note = report.noting("jobs", job_id)
        for dependency in sorted(missing):
            note(f"waits for {dependency}, which was refused")


def _counted(job: Job, report: Report, now: int) -> Job:
    keep_key_until(job, now)
    report.jobs[state_of(job, now)] += 1
    extra, rows = job.extra, report.rows
    rows["results"] += job.result is not None
    rows["dedup keys"] += extra.unique_key is not None
    rows["custom ids"] += extra.is_custom_id
    rows["jobs of groups"] += extra.group_id is not None
    rows["jobs with dependencies"] += bool(extra.depends_on)
    rows["parents"] += bool(extra.children_ids)
    rows["jobs that repeat"] += job.options.repeat is not None
    return job


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, ROWS_PER_CHUNK)):
        yield chunk


def _split(values: list[Any], width: int) -> Iterator[list[Any]]:
    return (values[start : start + width] for start in range(0, len(values), width))


def _write_nothing(_made: Images, _rows: Puts) -> None:
    """Stand in for the target of a dry run."""


# -- the target -----------------------------------------------------------------------------------


def _refuse_if_filled(path: str, connection: apsw.Connection) -> None:
    for table in schema.TABLES:
        if table is schema.META:
            continue
        if connection.execute(f"SELECT EXISTS (SELECT 1 FROM {table.name})").get:
            jobs = connection.execute(f"SELECT count(*) FROM {schema.JOBS.name}").get
            raise StorageFailed(
                f"{path} is not empty (jobs: {jobs}); an import needs a file of its own:"
                " name one that does not exist yet"
            )


def _check_beforehand(path: str) -> None:
    """Say of a target what can be said without touching it."""
    if not os.path.exists(path) or not os.path.getsize(path):
        return
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        try:
            if connection.pragma("application_id") != schema.APPLICATION_ID:
                raise StorageFailed(f"{path} is a database of another program; choose another file")
            _refuse_if_filled(path, connection)
        finally:
            connection.close()
    except apsw.Error as error:
        raise StorageFailed(f"cannot open {path}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _told_errors(path: str) -> Iterator[None]:
    try:
        yield
    except apsw.FullError as error:
        raise StorageFailed(f"no room for {path}: nothing was imported") from error
    except apsw.Error as error:
        raise StorageFailed(f"cannot write {path}: {type(error).__name__}: {error}") from error
