"""The writing connection, and the process around it run in this one."""

import os
import socket
import threading

import apsw
import pytest
from gevent.monkey import is_module_patched

from bunqueue.storage import writer
from bunqueue.storage.sqlite import _SETUP, open_checked
from bunqueue.storage.writer import Database, Frames, frame

META = "INSERT OR REPLACE INTO meta VALUES "

# The writer is a process of its own, which nothing has patched: here it has to be a thread.
with_threads = pytest.mark.skipif(
    is_module_patched("threading"), reason="patched, a thread of Python's is a greenlet"
)


def rows_of(path, sql):
    with apsw.Connection(path) as connection:
        found = list(connection.execute(sql))
    connection.close()
    return found


def meta(path):
    return dict(rows_of(path, "SELECT * FROM meta"))


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "data.db")
    open_checked(path).close()
    return path


@pytest.fixture
def database(path):
    database = Database(path, _SETUP)
    yield database
    database.close()


def batch(values, number=1, deletes=(), removed=(), is_durable=False):
    upserts = [(META, 2, values)] if values else []
    return number, is_durable, upserts, list(deletes), list(removed)


@pytest.mark.parametrize("count", [1, 3, 8, 9, 64, 600, 1200])
def test_rows_of_any_number_are_written(path, database, count):
    values = [value for key in range(count) for value in (f"k{key}", key)]

    assert (1, None, "", []) == database.write(batch(values))
    assert {f"k{key}": key for key in range(count)} == meta(path)


def test_a_batch_written_twice_changes_nothing_more(path, database):
    twice = batch(["a", 1])
    database.write(twice)
    database.write(twice)

    assert {"a": 1} == meta(path)


def test_deletes_and_removed_ranges_leave(path, database):
    job = "INSERT OR REPLACE INTO jobs(seq,id,queue,name,priority,created_at,run_at,data) VALUES "
    values = [v for seq in range(1, 8) for v in (seq, f"j{seq}", "q", "n", 0, 0, 0, b"\xc0")]
    database.write((1, False, [(job, 8, values), (META, 2, ["a", 1, "b", 2])], [], []))
    database.write(
        batch([], deletes=[("DELETE FROM meta WHERE key = ?", 1, ["a"])], removed=[4, 2, 3, 6])
    )

    assert [(1,), (5,), (7,)] == rows_of(path, "SELECT seq FROM jobs")
    assert {"b": 2} == meta(path)


def test_a_durable_batch_is_synced_and_the_next_is_not(database):
    database.write(batch(["a", 1], is_durable=True))
    assert 2 == database._connection.pragma("synchronous")
    database.write(batch(["a", 2]))
    assert 1 == database._connection.pragma("synchronous")


@pytest.mark.parametrize("bad", [2**80, "\ud800", (1, 2)])
def test_trap_22_a_row_that_can_never_be_stored_is_left_out_and_its_siblings_stay(
    path, database, bad
):
    number, kind, _, dropped = database.write(batch(["a", 1, "bad", bad, "c", 3]))

    assert (1, None, ["bad"]) == (number, kind, [key for key, _ in dropped])
    assert {"a": 1, "c": 3} == meta(path)


def test_a_row_against_a_constraint_is_left_out(path, database):
    _, kind, _, dropped = database.write(batch(["a", 1, None, 2]))

    assert kind is None
    assert [None] == [key for key, _ in dropped]
    assert {"a": 1} == meta(path)


def test_a_delete_that_can_never_be_run_is_left_out(path, database):
    delete = ("DELETE FROM meta WHERE key = ?", 1, ["\ud800"])
    _, kind, _, dropped = database.write(batch(["a", 1], deletes=[delete]))

    assert kind is None
    assert ["\ud800"] == [key for key, _ in dropped]
    assert {"a": 1} == meta(path)


def test_a_full_disk_fails_the_whole_batch_and_is_named(path):
    setup = _SETUP | {"pragmas": _SETUP["pragmas"] | {"max_page_count": 10}}
    database = Database(path, setup)
    number, kind, text, _ = database.write(batch(["a", 1, "b", b"x" * 200_000]))

    assert (1, writer.FULL) == (number, kind)
    assert "full" in text
    assert {} == meta(path)
    assert None is database.write(batch(["a", 1]))[1]
    database.close()


def test_a_busy_file_fails_the_batch_for_now(path):
    database = Database(path, _SETUP | {"busy_ms": 0})
    blocker = apsw.Connection(path)
    blocker.execute("BEGIN IMMEDIATE")
    assert writer.OTHER == database.write(batch(["a", 1]))[1]
    blocker.execute("ROLLBACK")

    assert None is database.write(batch(["a", 1]))[1]
    blocker.close()
    database.close()


def test_what_another_writes_between_two_batches_fails_neither(path, database):
    """The view that is kept from batch to batch is an old one then."""
    another = apsw.Connection(path)
    for number in range(1, 6):
        assert None is database.write(batch(["a", number], number, is_durable=True))[1]
        another.execute("INSERT INTO meta VALUES (?, 0)", (f"b{number}",))
    another.close()

    assert {"a": 5} | {f"b{number}": 0 for number in range(1, 6)} == meta(path)


@with_threads
def test_another_that_writes_for_a_while_is_waited_for(path, database):
    database.write(batch(["a", 1]))  # a view is kept from here on
    another = apsw.Connection(path)
    another.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.2, lambda: another.execute("COMMIT"))
    timer.start()
    assert None is database.write(batch(["a", 2]))[1]
    timer.join()
    another.close()

    assert {"a": 2} == meta(path)


def test_a_long_log_is_brought_into_the_file(path, database, monkeypatch):
    monkeypatch.setattr(writer, "WAL_PAGES_MAX", 10)
    database._checkpoint_at = 10
    for number in range(20):
        database.write(batch(["a", b"x" * 20_000], number))
        database.checkpoint_if_due(is_idle=False)

    assert os.path.getsize(path + "-wal") < 40 * 8192


def test_frames_come_out_as_they_went_in_however_they_are_cut():
    values = [(1, False, [("a", 1, ["x" * 300])], [], [7]), (2, True, [], [], [])]
    packed = b"".join(frame(value) for value in values)
    for step in (1, 7, len(packed)):
        frames = Frames()
        found = []
        for at in range(0, len(packed), step):
            found += frames.feed(packed[at : at + step])
        assert values == found
    assert values == [found for value in values for found in Frames().feed(frame(value))]


@with_threads
def test_a_quiet_file_is_kept_from_nobody(path):
    ours, theirs = socket.socketpair()
    served = threading.Thread(target=writer.main, args=(theirs.fileno(), path))
    served.start()
    ours.sendall(frame(_SETUP) + frame(batch(["a", 1])))
    another = apsw.Connection(path)
    another.set_busy_timeout(20_000)
    while {"a": 1} != dict(another.execute("SELECT * FROM meta")):
        pass

    assert (0, 0) == another.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    another.close()
    ours.sendall(frame(batch(["b", 2], 2)))
    ours.shutdown(socket.SHUT_WR)
    served.join()
    ours.close()
    theirs.close()
    assert {"a": 1, "b": 2} == meta(path)


def test_what_a_dead_broker_has_sent_is_committed_though_it_read_no_answer(path):
    ours, theirs = socket.socketpair()
    ours.sendall(frame(_SETUP) + frame(batch(["a", 1])))
    served = threading.Thread(target=writer.main, args=(theirs.fileno(), path))
    served.start()
    while len(ours.recv(4096, socket.MSG_PEEK)) < 40:
        pass
    ours.sendall(b"".join(frame(batch([f"k{n}", n], n)) for n in range(2, 50)))
    ours.close()
    served.join()
    theirs.close()

    assert 49 == len(meta(path))


def test_a_batch_that_was_cut_short_by_the_broker_s_death_is_not_written(path):
    ours, theirs = socket.socketpair()
    ours.sendall(frame(_SETUP) + frame(batch(["a", 1])) + frame(batch(["b", 2], 2))[:-1])
    ours.close()
    writer.main(theirs.fileno(), path)
    theirs.close()

    assert {"a": 1} == meta(path)
