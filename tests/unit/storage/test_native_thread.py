"""The thread of C: what it shares with the other writers, and what only a thread can get wrong."""

import logging
import os

import apsw
import pytest

from bunqueue import compiled
from bunqueue.engine.job import DeadLetter
from bunqueue.engine.states import ACTIVE, ADMITTED, COMPLETED, FAILED, GONE, PARKED
from bunqueue.errors import StorageFailed
from bunqueue.protocol.options import shared_options
from bunqueue.storage import native_thread, rows, sqlite, writer
from bunqueue.storage.loop import PollLoop
from bunqueue.storage.sqlite import SqliteStorage
from tests.support.stores import NamedQueue, make_job

PATIENCE_MS = 20_000

needs_core = pytest.mark.skipif(
    native_thread.twin() is None, reason="the compiled core is not built"
)


class House:
    """An open file with a thread of C."""

    def __init__(self, path, kind="native"):
        self.path = str(path)
        self.loop = PollLoop()
        self.storage = SqliteStorage.open(path, self.loop, kind)

    def committed(self, durable=False):
        answers = []
        self.storage.sync(durable=durable)
        self.storage.hold(answers.append)
        assert self.loop.run_until(lambda: answers, PATIENCE_MS)
        return answers[0]

    def table(self, name):
        connection = apsw.Connection(self.path)
        found = list(connection.execute(f"SELECT * FROM {name}"))
        connection.close()
        return found


@pytest.fixture
def house(tmp_path):
    house = House(tmp_path / "data.db")
    yield house
    house.storage.close()


@pytest.fixture
def quiet(caplog):
    caplog.set_level(logging.CRITICAL + 1, logger="bunqueue.storage.log")


def jobs_of_every_kind():
    """Return jobs that between them fill every column, and are noted in every way."""
    queue = NamedQueue("näme\0x")
    plain, claimed, done, delayed, rich, dead, parked, admitted, huge, gone = (
        make_job(seq, b"\xc4\x01\x00", queue=queue) for seq in range(1, 11)
    )
    claimed.place, claimed.started_at, claimed.token = ACTIVE, 5, "token"
    done.place, done.finished_at, done.result, done.attempts = COMPLETED, 7, b"", 3
    delayed.run_at, delayed.priority = 1 << 60, -5
    rich.options = shared_options({"priority": 3, "lifo": True})
    extra = rich.own_extra()
    extra.unique_key, extra.unique_until, extra.parent_id, extra.group_id = "k", 9, "p", "g"
    extra.depends_on, extra.children_ids = {"a": None}, {"b": None}
    extra.progress, extra.progress_message, extra.last_error = 12.5, "half", "é"
    dead.place = FAILED
    dead.own_extra().dead = DeadLetter(1, "failed", "why")
    parked.place, parked.name = PARKED, "日本"
    admitted.place = ADMITTED
    huge.data = os.urandom(70_000)
    gone.place = GONE
    return [plain, claimed, done, delayed, rich, dead, parked, admitted, huge, gone]


@needs_core
def test_it_writes_the_very_rows_that_the_process_writes(tmp_path):
    found = []
    for kind in ("thread", "native"):
        house = House(tmp_path / f"{kind}.db", kind)
        storage = house.storage
        jobs = jobs_of_every_kind()
        for job in jobs:
            storage.added(job)
        storage.put("queues", "q", (1, 1.5, None, None, None, None, None, 0, 1 << 62))
        assert house.committed()
        for job in jobs[1:4]:
            storage.changed(job)
        storage.rewritten(jobs[0])
        jobs[8].place = GONE
        storage.removed(jobs[8])
        assert house.committed()
        found.append([house.table(name) for name in ("jobs", "state", "queues")])
        storage.close()

    assert found[0] == found[1]
    assert [1, 2, 3, 4, 5, 6, 7, 8] == [row[0] for row in found[0][0]]


@needs_core
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_rows_of_any_number_are_written(house, count):
    for seq in range(1, count + 1):
        house.storage.added(make_job(seq))
    assert house.committed()

    assert list(range(1, count + 1)) == [row[0] for row in house.table("jobs")]


@needs_core
@pytest.mark.usefixtures("quiet")
def test_trap_22_a_job_that_can_never_be_stored_is_left_out_and_its_siblings_stay(house):
    dropped = []
    house.storage.on_dropped = lambda job, _: dropped.append(job.id) or ()
    for seq in range(1, 200):
        job = make_job(seq)
        job.name = "\ud800" if seq == 70 else "fine"
        house.storage.added(job)
    assert house.committed()

    assert ["job-70"] == dropped
    assert 198 == len(house.table("jobs"))


@needs_core
@pytest.mark.usefixtures("quiet")
def test_rows_against_a_constraint_are_left_out_and_told(house):
    dropped = []
    house.storage.on_dropped = lambda job, _: dropped.append(job.id) or ()
    jobs = [make_job(seq) for seq in range(1, 200)]
    for job in jobs:
        house.storage.added(job)
    for job in (jobs[10], jobs[150]):
        job.data = None  # the column is NOT NULL
    assert house.committed()

    assert ["job-11", "job-151"] == dropped
    assert 197 == len(house.table("jobs"))


@needs_core
def test_rows_of_small_tables_that_can_never_be_stored_are_left_out(house, caplog):
    for key, total in (("a", 1), ("b", 1 << 80), ("\ud800", 1), ("c", None), ("d", 2)):
        house.storage.put("queues", key, (0, None, None, None, None, None, None, total, 0))
    assert house.committed()

    assert {"a", "d"} == {row[0] for row in house.table("queues")}
    assert 3 == sum("left out" in record.message for record in caplog.records)


@needs_core
def test_what_another_writes_between_two_batches_fails_neither(house):
    """The view that is kept from batch to batch is an old one then."""
    another = apsw.Connection(house.path)
    for seq in range(1, 6):
        house.storage.added(make_job(seq))
        assert house.committed(durable=True) is True
        another.execute("UPDATE jobs SET priority = 7 WHERE seq = ?", (seq,))
    another.close()

    assert [7] * 5 == [row[4] for row in house.table("jobs")]
    assert house.storage.status()["error"] is None


@needs_core
def test_another_that_writes_for_a_while_is_waited_for(house):
    house.storage.added(make_job(1))
    assert house.committed() is True  # a view is kept from here on
    another = apsw.Connection(house.path)
    another.execute("BEGIN IMMEDIATE")
    house.storage.added(make_job(2))
    answers = []
    house.storage.sync()
    house.storage.hold(answers.append)
    assert not house.loop.run_until(lambda: answers, 300)
    another.execute("COMMIT")
    another.close()

    assert house.loop.run_until(lambda: answers, PATIENCE_MS)
    assert [True] == answers
    assert 2 == len(house.table("jobs"))


@needs_core
def test_a_quiet_file_is_kept_from_nobody(house):
    house.storage.added(make_job(1))
    assert house.committed() is True
    another = apsw.Connection(house.path)
    another.set_busy_timeout(PATIENCE_MS)
    assert 1 == another.execute("SELECT count(*) FROM jobs").get

    assert (0, 0) == another.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    assert not os.path.getsize(f"{house.path}-wal")
    another.close()
    house.storage.added(make_job(2))
    assert house.committed() is True


@needs_core
def test_the_log_is_begun_anew_under_a_stream_of_batches(house):
    """A view that is kept must not keep a checkpoint from emptying the log."""
    data = b"\xc5\x60\x00" + b"x" * 24_576  # four pages each
    for seq in range(1, 3 * writer.WAL_PAGES_MAX // 4):
        house.storage.added(make_job(seq, data))
        assert house.committed() is True

    page_bytes = sqlite.PAGE_BYTES
    assert os.path.getsize(f"{house.path}-wal") < 1.5 * writer.WAL_PAGES_MAX * page_bytes


@needs_core
@pytest.mark.usefixtures("quiet")
def test_rows_that_can_never_be_stored_give_their_memory_back(house):
    def bytes_used():
        with open("/proc/self/statm") as pages:
            return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = bytes_used()
    for _ in range(100):
        house.storage.put("proofs", "x" * 1_000_000, ("q", 1 << 80, None))
        assert house.committed()

    assert bytes_used() - before < 50_000_000


@needs_core
@pytest.mark.usefixtures("quiet")
def test_a_file_that_another_has_locked_fails_the_batch_for_now(tmp_path, monkeypatch):
    monkeypatch.setitem(sqlite._SETUP, "busy_ms", 0)
    house = House(tmp_path / "data.db")
    blocker = apsw.Connection(house.path)
    blocker.execute("BEGIN IMMEDIATE")
    house.storage.added(make_job(1))
    assert house.committed() is False
    assert "BusyError: database is locked; another" in house.storage.status()["error"]
    blocker.execute("ROLLBACK")

    assert house.committed() is True
    assert 1 == len(house.table("jobs"))
    blocker.close()
    house.storage.close()


@needs_core
@pytest.mark.usefixtures("quiet")
def test_a_file_that_cannot_be_opened_ends_the_broker(tmp_path):
    class Told:
        lost = None

        def on_writer_lost(self, why):
            self.lost = why

    told, loop = Told(), PollLoop()
    missing = str(tmp_path / "nowhere" / "data.db")
    writer = native_thread.NativeWriter(missing, loop, sqlite._SETUP, 0)
    writer.start(told)

    assert loop.run_until(lambda: told.lost, PATIENCE_MS)
    assert "the writer thread ended: CantOpenError: unable to open database file" == told.lost
    writer.close(PATIENCE_MS)


@needs_core
def test_a_backup_by_another_connection_of_the_process_disturbs_nobody(house, tmp_path):
    for seq in range(1, 2000):
        house.storage.added(make_job(seq))
        if seq % 500 == 0:
            assert house.committed()
            reader = apsw.Connection(house.path)
            assert "ok" == reader.pragma("integrity_check")
            reader.execute("VACUUM INTO ?", (str(tmp_path / f"copy-{seq}"),))
            reader.close()
    assert house.committed(durable=True)

    assert 1999 == len(house.table("jobs"))


@needs_core
@pytest.mark.usefixtures("quiet")
def test_a_thread_that_hangs_is_not_waited_for_for_ever_and_the_file_stays_locked(tmp_path):
    house = House(tmp_path / "data.db")
    blocker = apsw.Connection(house.path)
    blocker.execute("BEGIN IMMEDIATE")
    house.storage.added(make_job(1))
    with pytest.raises(StorageFailed, match="did not (answer|end) within 50 ms"):
        house.storage.close(timeout_ms=50)
    blocker.close()

    with pytest.raises(StorageFailed, match="is in use"):
        SqliteStorage.open(house.path, PollLoop(), "native", lock_wait_ms=0)


@needs_core
def test_a_forked_child_does_not_touch_its_parent_s_thread(house):
    house.storage.added(make_job(1))
    assert house.committed()
    thread = house.storage._writer._thread
    pid = os.fork()
    if not pid:
        status = 1
        try:
            thread.close()
        except RuntimeError:
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    house.storage.added(make_job(2))

    assert 0 == status
    assert house.committed()


@needs_core
def test_a_batch_is_submitted_once(house):
    house.storage.put("meta", "a", (1,))
    sent = []
    submit = house.storage._writer.submit
    house.storage._writer.submit = lambda batch: (sent.append(batch), submit(batch))
    assert house.committed()

    with pytest.raises(RuntimeError, match="submitted already"):
        house.storage._writer._thread.submit(sent[0])


@needs_core
def test_an_apsw_that_loads_no_extensions_leaves_the_writing_to_a_process(monkeypatch, caplog):
    class Sealed(apsw.Connection):
        def load_extension(self, *_):
            raise apsw.ExtensionLoadingError("extensions are off")

    monkeypatch.setattr(apsw, "Connection", Sealed)
    native_thread.twin.cache_clear()
    try:
        assert ["process", "thread"] == [SqliteStorage.best_writer(e) for e in (False, True)]
        assert ["process", "thread"] == [SqliteStorage.best_writer(e) for e in (False, True)]
    finally:
        native_thread.twin.cache_clear()

    (record,) = caplog.records
    assert "a thread of C cannot be: extensions are off" in record.message


def test_pure_python_leaves_the_writing_to_a_process_and_says_nothing(monkeypatch, caplog):
    monkeypatch.setattr(compiled, "IS_COMPILED", False)
    native_thread.twin.cache_clear()
    try:
        assert "process" == SqliteStorage.best_writer()
    finally:
        native_thread.twin.cache_clear()

    assert not caplog.records


@needs_core
def test_the_twin_knows_every_bit_and_statement():
    disk = native_thread.twin()
    job = make_job(1)

    assert disk.images([job]).is_empty  # no bit, no row
    assert disk.images([]).is_empty
    for bit in (1, 2, 4, 8):
        job.dirty = bit
        packed, made = disk.images([job]), rows.images([job])
        assert (made.is_empty, made.removed) == (packed.is_empty, packed.removed)
        assert made.highest_seq == packed.highest_seq
