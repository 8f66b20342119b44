"""One process per file."""

import errno
import os
import stat
import subprocess
import sys

import pytest

from bunqueue.errors import StorageFailed
from bunqueue.storage.lock import FileLock
from bunqueue.storage.native import close_fd

HOLD = (
    "import sys; from bunqueue.storage.lock import FileLock;"
    " lock = FileLock.take(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def data_path(tmp_path):
    return str(tmp_path / "data.db")


@pytest.fixture
def holder(data_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, data_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert "held\n" == process.stdout.readline()
        yield process
        process.kill()


def test_a_lock_names_its_holder_for_people_only(data_path):
    lock = FileLock.take(data_path)

    with open(lock.path) as file:
        assert f"{os.getpid()}\n" == file.read()
    assert 0o600 == stat.S_IMODE(os.stat(lock.path).st_mode)
    lock.release()


@pytest.mark.slow
def test_a_second_process_is_refused_at_once_with_path_and_pid(data_path, holder):
    with pytest.raises(StorageFailed) as caught:
        FileLock.take(data_path, wait_ms=60_000)

    assert (
        f"{data_path} is in use by another process (pid {holder.pid}, lock file"
        f" {data_path}.lock); stop it or choose another file"
    ) == str(caught.value)


@pytest.mark.slow
def test_a_lock_ends_with_its_process(data_path, holder):
    holder.kill()
    holder.wait()

    FileLock.take(data_path, wait_ms=0).release()


def test_the_same_process_is_refused_at_once(data_path):
    lock = FileLock.take(data_path)
    with pytest.raises(StorageFailed, match="in use"):
        FileLock.take(data_path, wait_ms=60_000)

    lock.release()
    FileLock.take(data_path).release()


def test_a_lock_is_held_until_the_last_copy_of_its_descriptor_is_closed(data_path):
    lock = FileLock.take(data_path)
    with open(lock.path, "w") as file:
        file.write("999999999\n")  # as if the holder were dead
    copy = os.dup(lock.fd)  # as the writer process has one
    lock.release()
    with pytest.raises(StorageFailed, match="999999999"):
        FileLock.take(data_path, wait_ms=50)

    close_fd(copy)
    FileLock.take(data_path).release()


def test_a_forked_child_does_not_keep_the_lock(data_path):
    lock = FileLock.take(data_path)
    ready_in, ready_out = os.pipe()
    stay_in, stay_out = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready_out, b"\0")
        close_fd(stay_out)
        os.read(stay_in, 1)
        os._exit(0)
    os.read(ready_in, 1)
    lock.release()
    FileLock.take(data_path, wait_ms=0).release()

    for fd in (stay_out, stay_in, ready_in, ready_out):
        close_fd(fd)
    os.waitpid(child, 0)


def test_a_lock_file_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(StorageFailed, match="cannot write .*nowhere.*No such file"):
        FileLock.take(str(tmp_path / "nowhere" / "data.db"))


def test_a_full_disk_costs_the_lock_only_the_name_of_its_holder(data_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = FileLock.take(data_path, wait_ms=0)

    with pytest.raises(StorageFailed, match="pid unknown|in use"):
        FileLock.take(data_path, wait_ms=0)
    lock.release()
