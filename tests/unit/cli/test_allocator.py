"""The broker's interpreter starts again with another allocator, if it can."""

import os

import pytest

from bunqueue.cli import allocator


def test_an_interpreter_that_cannot_start_again_goes_on_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.delenv("PYTHONMALLOC", raising=False)
    monkeypatch.setattr(os, "execv", refuse)
    monkeypatch.setattr(allocator, "_is_glibc", lambda: True)

    allocator.choose()

    assert "PYTHONMALLOC" not in os.environ
