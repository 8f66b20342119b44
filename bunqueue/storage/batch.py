"""The statements of one batch: which rows go where."""

from typing import Any, Final

from bunqueue.engine.job import Job
from bunqueue.storage import schema, writer
from bunqueue.storage.rows import PLAIN_COLUMNS, PLAIN_STATE_COLUMNS, Images, images

# (small table, key) -> values, or None for a row that goes.
Puts = dict[tuple[str, str], tuple[Any, ...] | None]

# What a job raises that cannot be turned into rows.
NO_IMAGE: Final = (ValueError, TypeError, OverflowError, AttributeError)

_UPSERT_PLAIN: Final = schema.upsert(schema.JOBS, PLAIN_COLUMNS)
_UPSERT_FULL: Final = schema.upsert(schema.JOBS)
_UPSERT_PLAIN_STATE: Final = schema.upsert(schema.STATE, PLAIN_STATE_COLUMNS)
_UPSERT_FULL_STATE: Final = schema.upsert(schema.STATE)
_WIDTH_PLAIN: Final = len(PLAIN_COLUMNS)
_WIDTH_FULL: Final = len(schema.JOBS.columns)
_WIDTH_PLAIN_STATE: Final = len(PLAIN_STATE_COLUMNS)
_WIDTH_FULL_STATE: Final = len(schema.STATE.columns)
_UPSERT_SMALL: Final = {table.name: schema.upsert(table) for table in schema.SMALL_TABLES}
_DELETE_SMALL: Final = {
    table.name: f"DELETE FROM {table.name} WHERE {table.names[0]} = ?"
    for table in schema.SMALL_TABLES
}


def statements(made: Images, puts: Puts) -> tuple[writer.Rows, writer.Rows]:
    """Return the upserts and the deletes that write the images and the rows of small tables."""
    upserts: writer.Rows = [
        (head, width, values)
        for head, width, values in (
            (_UPSERT_PLAIN, _WIDTH_PLAIN, made.plain),
            (_UPSERT_FULL, _WIDTH_FULL, made.full),
            (_UPSERT_PLAIN_STATE, _WIDTH_PLAIN_STATE, made.plain_states),
            (_UPSERT_FULL_STATE, _WIDTH_FULL_STATE, made.full_states),
        )
        if values
    ]
    if not puts:
        return upserts, []
    rows: dict[str, list[Any]] = {}
    gone: dict[str, list[Any]] = {}
    for (table, key), values in puts.items():
        if values is None:
            gone.setdefault(table, []).append(key)
        else:
            rows.setdefault(table, []).extend((key, *values))
    upserts += (upsert_small(table, rows[table]) for table in rows)
    return upserts, [(_DELETE_SMALL[table], 1, gone[table]) for table in gone]


def upsert_small(table: str, values: list[Any]) -> tuple[str, int, list[Any]]:
    """Return the statement that writes rows of a small table, given flat."""
    return _UPSERT_SMALL[table], schema.WIDTHS[table], values


def highest_seq(made: Images) -> int:
    """Return the newest admission number among the job rows of a batch, or 0."""
    return max(
        max(made.plain[::_WIDTH_PLAIN], default=0),
        max(made.full[::_WIDTH_FULL], default=0),
    )


def without_image(jobs: list[Job]) -> list[tuple[Job, str]]:
    """Return the jobs that cannot be turned into rows, and why."""
    found = []
    for job in jobs:
        try:
            images((job,))
        except NO_IMAGE as error:
            found.append((job, f"{type(error).__name__}: {error}"))
    return found
