"""The tables of the file, as data, and the steps from older files.

``jobs`` is wide and written once, ``state`` is narrow and written at every move: rewriting a row
costs SQLite the whole row (a state row is 1.2 us whatever the payload, a wide row of 10 KiB is 32),
and a job that still waits for its first run has no state row at all. Both are keyed by the
admission number, given in rising order, so that inserts append and removals are ranges. They have
no second index: memory is the index. ``SELECT * FROM jobs LEFT JOIN state USING (seq)`` shows
everything.

A small table is a row in ``TABLES``; its first column is its key. Files of an older schema get
tables that they lack by themselves; anything else is a step in ``MIGRATIONS``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

APPLICATION_ID: Final = 0x62756E71  # "bunq" in the file's header: tells our files from others'
SCHEMA_VERSION: Final = 1

# Statements that turn a file of version N into one of version N + 1, in a transaction of their own.
MIGRATIONS: Final[Mapping[int, tuple[str, ...]]] = {}


@dataclass(frozen=True, slots=True)
class Table:
    """One table; ``columns`` are SQL, the key first.

    Attributes:
        is_small: Its rows are written with ``Storage.put`` and kept in memory as they are.
    """

    name: str
    columns: tuple[str, ...]
    is_small: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.split()[0] for column in self.columns)

    def create(self) -> str:
        """Return the statement that makes it."""
        rowid = " WITHOUT ROWID" if self.is_small else ""
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(self.columns)}){rowid}"


# Columns that only few jobs fill come before the payload; ``rows.py`` leaves them out otherwise.
JOBS: Final = Table(
    "jobs",
    (
        "seq INTEGER PRIMARY KEY",
        "id TEXT NOT NULL",
        "queue TEXT NOT NULL",
        "name TEXT NOT NULL",
        "priority INTEGER NOT NULL",
        "created_at INTEGER NOT NULL",
        "run_at INTEGER NOT NULL",  # as admitted; the state row has the present one
        "is_custom_id INTEGER",
        "unique_key TEXT",
        "unique_until INTEGER",
        "parent_id TEXT",
        "group_id TEXT",
        "depends_on BLOB",  # msgpack list
        "children_ids BLOB",  # msgpack list
        "opts BLOB",  # msgpack map of the options that were set
        "data BLOB NOT NULL",  # msgpack
    ),
    is_small=False,
)
STATE: Final = Table(
    "state",
    (
        "seq INTEGER PRIMARY KEY",
        "state TEXT NOT NULL",
        "run_at INTEGER NOT NULL",
        "started_at INTEGER",
        "finished_at INTEGER",
        "attempts INTEGER NOT NULL",
        "stall_count INTEGER NOT NULL",
        "token TEXT",
        "progress",  # as reported, whole or not
        "error TEXT",
        "result BLOB",  # msgpack
        "detail BLOB",  # msgpack map: timeline, stacktrace, history, dead letter
    ),
    is_small=False,
)
META: Final = Table("meta", ("key TEXT PRIMARY KEY", "value"))
QUEUES: Final = Table(
    "queues",
    (
        "name TEXT PRIMARY KEY",
        "paused INTEGER NOT NULL",
        "rate_limit",
        "rate_duration_ms",
        "rate_expires_at INTEGER",
        "concurrency INTEGER",
        "stall TEXT",  # JSON
        "dlq TEXT",  # JSON
        "completed_total INTEGER NOT NULL",
        "failed_total INTEGER NOT NULL",
    ),
)
GROUPS: Final = Table(
    "groups",
    (
        "key TEXT PRIMARY KEY",  # queue, NUL, group
        "queue TEXT NOT NULL",
        "group_id TEXT NOT NULL",
        "rate_limit INTEGER",
        "rate_duration_ms INTEGER",
        "concurrency INTEGER",
        "paused INTEGER NOT NULL",
    ),
)
PROOFS: Final = Table(
    "proofs",
    (
        "id TEXT PRIMARY KEY",
        "queue TEXT NOT NULL",
        "completed_at INTEGER NOT NULL",
        "result BLOB",  # msgpack; while somebody may ask for it
    ),
)
FLOW_FAILURES: Final = Table(
    "flow_failures",
    (
        "key TEXT PRIMARY KEY",  # parent, NUL, child
        "parent_id TEXT NOT NULL",
        "child_id TEXT NOT NULL",
        "child_queue TEXT NOT NULL",
        "mode TEXT NOT NULL",  # fail, continue, ignore, remove
        "error TEXT NOT NULL",
        "created_at INTEGER NOT NULL",
    ),
)
CRONS: Final = Table(
    "crons",
    (
        "name TEXT PRIMARY KEY",
        "queue TEXT NOT NULL",
        "job_name TEXT NOT NULL",
        "schedule TEXT",
        "repeat_every_ms INTEGER",
        "timezone TEXT",
        "next_run INTEGER NOT NULL",
        "executions INTEGER NOT NULL",
        "max_limit INTEGER",
        "priority INTEGER NOT NULL",
        "unique_key TEXT",
        "dedup TEXT",  # JSON
        "skip_missed INTEGER NOT NULL",
        "skip_if_no_worker INTEGER NOT NULL",
        "prevent_overlap INTEGER NOT NULL",
        "job_options TEXT",  # JSON
        "data BLOB NOT NULL",  # msgpack
    ),
)
WEBHOOKS: Final = Table(
    "webhooks",
    (
        "id TEXT PRIMARY KEY",
        "url TEXT NOT NULL",
        "events TEXT NOT NULL",  # JSON list
        "queue TEXT",
        "secret TEXT",
        "created_at INTEGER NOT NULL",
        "enabled INTEGER NOT NULL",
        "last_triggered_at INTEGER",
        "success_count INTEGER NOT NULL",
        "failure_count INTEGER NOT NULL",
    ),
)
METRICS_TOTAL: Final = Table(
    "metrics_total",
    (
        "queue TEXT PRIMARY KEY",
        "completed INTEGER NOT NULL",
        "failed INTEGER NOT NULL",
        "completed_at INTEGER NOT NULL",  # of the newest
        "failed_at INTEGER NOT NULL",
        "minute INTEGER NOT NULL",  # the one that is being counted, of the epoch
        "minute_completed INTEGER NOT NULL",
        "minute_failed INTEGER NOT NULL",
    ),
)
METRICS_MINUTE: Final = Table(
    "metrics_minute",
    (
        "queue_minute TEXT PRIMARY KEY",  # queue|minute
        "completed INTEGER NOT NULL",
        "failed INTEGER NOT NULL",
    ),
)
METRICS_LOG: Final = Table(
    "metrics_log",
    (
        "slot TEXT PRIMARY KEY",
        "number INTEGER NOT NULL",  # the highest is the newest
        "entries BLOB NOT NULL",  # msgpack list: queue, columns of metrics_total
    ),
)
TABLES: Final = (
    JOBS,
    STATE,
    META,
    QUEUES,
    GROUPS,
    CRONS,
    WEBHOOKS,
    METRICS_TOTAL,
    METRICS_MINUTE,
    METRICS_LOG,
    PROOFS,
    FLOW_FAILURES,
)
SMALL_TABLES: Final = tuple(table for table in TABLES if table.is_small)
WIDTHS: Final = {table.name: len(table.columns) for table in SMALL_TABLES}

# Keys of ``meta``.
META_CLEAN: Final = "clean"  # 1 once everything was written and the process ended in good order
META_SEQ: Final = "seq"  # no admission number above it has been given


# Take the first and the last number of a range of jobs that go.
REMOVE_RANGE: Final = tuple(
    f"DELETE FROM {table.name} WHERE seq BETWEEN ? AND ?" for table in (JOBS, STATE)
)


def upsert(table: Table, columns: tuple[str, ...] = ()) -> str:
    """Return the beginning of the statement that writes rows, up to ``VALUES``."""
    named = f"({', '.join(columns)})" if columns else ""
    return f"INSERT OR REPLACE INTO {table.name}{named} VALUES "
