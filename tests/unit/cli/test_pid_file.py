import os

import pytest

from bunqueue.cli.pid_file import pid_file
from bunqueue.errors import BunqueueError


def test_it_holds_the_process_id_while_it_lasts(tmp_path):
    path = tmp_path / "worker.pid"
    path.write_text("no number")

    with pid_file(str(path)):
        assert f"{os.getpid()}\n" == path.read_text()

    assert not path.exists()


def test_one_of_a_running_process_is_respected(tmp_path):
    path = tmp_path / "worker.pid"
    path.write_text(f"{os.getppid()}\n")

    with (
        pytest.raises(BunqueueError, match=f"belongs to process {os.getppid()}"),
        pid_file(str(path)),
    ):
        pass


@pytest.mark.parametrize("name", ["nowhere/worker.pid", ""])
def test_one_that_cannot_be_written_is_refused(name, tmp_path):
    path = str(tmp_path / name)

    with pytest.raises(BunqueueError, match=f"cannot write {path}"), pid_file(path):
        pass
