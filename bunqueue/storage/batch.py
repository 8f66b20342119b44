"""The statements of one batch: which rows go where."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from bunqueue.engine.job import Job
from bunqueue.storage import rows, schema, writer

# (small table, key) -> values, or None for a row that goes.
Puts = dict[tuple[str, str], tuple[Any, ...] | None]

# What a job raises that cannot be turned into rows.
NO_IMAGE: Final = (ValueError, TypeError, OverflowError, AttributeError)

_UPSERT_SMALL: Final = {table.name: schema.upsert(table) for table in schema.SMALL_TABLES}
_DELETE_SMALL: Final = {
    table.name: f"DELETE FROM {table.name} WHERE {table.names[0]} = ?"
    for table in schema.SMALL_TABLES
}


# Every statement of a batch: (SQL, columns, whether VALUES is to follow).
STATEMENTS: Final = (
    *((statement, 2, False) for statement in schema.REMOVE_RANGE),
    (rows.UPSERT_PLAIN, len(rows.PLAIN_COLUMNS), True),
    (rows.UPSERT_FULL, len(schema.JOBS.columns), True),
    (rows.UPSERT_PLAIN_STATE, len(rows.PLAIN_STATE_COLUMNS), True),
    (rows.UPSERT_FULL_STATE, len(schema.STATE.columns), True),
    *((head, schema.WIDTHS[table], True) for table, head in _UPSERT_SMALL.items()),
    *((statement, 1, False) for statement in _DELETE_SMALL.values()),
)


def small_statements(puts: Puts) -> tuple[writer.Rows, writer.Rows]:
    """Return the upserts and the deletes that write the rows of small tables."""
    upserted: dict[str, list[Any]] = {}
    gone: dict[str, list[Any]] = {}
    for (table, key), values in puts.items():
        if values is None:
            gone.setdefault(table, []).append(key)
        else:
            upserted.setdefault(table, []).extend((key, *values))
    upserts = [upsert_small(table, flat) for table, flat in upserted.items()]
    return upserts, [(_DELETE_SMALL[table], 1, gone[table]) for table in gone]


def upsert_small(table: str, values: list[Any]) -> tuple[str, int, list[Any]]:
    """Return the statement that writes rows of a small table, given flat."""
    return _UPSERT_SMALL[table], schema.WIDTHS[table], values


def without_image(images: Callable[[Iterable[Job]], Any], jobs: list[Job]) -> list[tuple[Job, str]]:
    """Return the jobs that ``images`` cannot turn into rows, and why."""
    found = []
    for job in jobs:
        try:
            images((job,))
        except NO_IMAGE as error:
            found.append((job, f"{type(error).__name__}: {error}"))
    return found
