import os
import subprocess
import sys

import pytest

from bunqueue.cli.pid_file import pid_file
from bunqueue.errors import BunqueueError


def test_it_holds_the_process_id_while_it_lasts(tmp_path):
    path = tmp_path / "worker.pid"
    path.write_text("no number")

    with pid_file(str(path)):
        assert f"{os.getpid()}\n" == path.read_text()

    assert not path.exists()


HOLDS = """
import sys
from bunqueue.cli.pid_file import pid_file
with pid_file(sys.argv[1]):
    print(flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the file."""
    path = str(tmp_path / "worker.pid")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline()
        yield process
        process.kill()


def test_one_of_a_running_process_is_respected(holder, tmp_path):
    path = str(tmp_path / "worker.pid")

    with (
        pytest.raises(BunqueueError, match=f"{path} belongs to process {holder.pid}, which is"),
        pid_file(path),
    ):
        pass


def test_one_that_a_killed_process_left_is_taken(holder, tmp_path):
    path = tmp_path / "worker.pid"
    holder.kill()
    holder.wait()

    with pid_file(str(path)):
        assert f"{os.getpid()}\n" == path.read_text()


def test_one_is_taken_though_another_process_has_the_number_in_it(tmp_path):
    """After a restart of its machine or container, a worker refused to start."""
    path = tmp_path / "worker.pid"
    path.write_text(f"{os.getppid()}\n")

    with pid_file(str(path)):
        assert f"{os.getpid()}\n" == path.read_text()


def test_one_that_somebody_else_has_put_in_its_place_stays(tmp_path):
    path = tmp_path / "worker.pid"

    with pid_file(str(path)):
        path.unlink()
        path.write_text("another\n")

    assert "another\n" == path.read_text()


@pytest.mark.parametrize("name", ["nowhere/worker.pid", ""])
def test_one_that_cannot_be_written_is_refused(name, tmp_path):
    path = str(tmp_path / name)

    with pytest.raises(BunqueueError, match=f"cannot write {path}"), pid_file(path):
        pass
