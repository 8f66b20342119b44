"""What is said of a file that cannot be used names the cure."""

import errno
import os

import pytest

from bunqueue.storage import cures


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("FullError: database or disk is full", cures.ROOM),
        ("IOError: disk I/O error", cures.DISK),
        ("BusyError: database is locked", cures.LOCKED),
        ("ReadOnlyError: attempt to write a readonly database", cures.WRITABLE),
        ("CantOpenError: unable to open database file", cures.WRITABLE),
        ("CorruptError: database disk image is malformed", cures.RESTORE),
    ],
)
def test_an_error_of_sqlite_keeps_its_words_and_gets_its_cure(tmp_path, text, cure):
    assert f"{text}; {cure}" == cures.of_sqlite(str(tmp_path / "data.db"), text)


@pytest.mark.parametrize("text", ["IOError: disk I/O error", "CantOpenError: unable to open"])
def test_an_error_on_a_full_disk_is_cured_by_room(tmp_path, text, monkeypatch):
    monkeypatch.setattr(cures, "is_full", lambda _path: True)

    assert f"{text}; {cures.ROOM}" == cures.of_sqlite(str(tmp_path / "data.db"), text)


def test_an_error_of_which_nothing_is_known_is_told_as_it_is(tmp_path):
    text = "SQLError: no such table: jobs"

    assert text == cures.of_sqlite(str(tmp_path / "data.db"), text)
    assert "No such file or directory" == cures.of_system(
        OSError(errno.ENOENT, "No such file or directory")
    )


@pytest.mark.parametrize(
    ("number", "cure"),
    [(errno.ENOSPC, cures.ROOM), (errno.EROFS, cures.WRITABLE), (errno.EIO, cures.DISK)],
)
def test_an_error_of_the_system_gets_its_cure(number, cure):
    error = OSError(number, os.strerror(number))

    assert f"{os.strerror(number)}; {cure}" == cures.of_system(error)


def test_a_directory_that_is_gone_is_not_full(tmp_path):
    assert not cures.is_full(str(tmp_path / "gone" / "data.db"))
    assert not cures.is_full(str(tmp_path / "data.db"))
