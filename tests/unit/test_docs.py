import importlib.util

import pytest

from tests.support.readme import ROOT


@pytest.fixture(scope="module")
def build():
    """The program that writes the reference pages."""
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs/build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_pages_are_what_the_tables_say(build, capsys):
    assert 0 == build.main(["--check"]), capsys.readouterr().err


def test_a_stale_page_is_an_error_that_names_it(build, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "PAGES", tmp_path)
    (tmp_path / "settings.md").write_text("old")

    assert 1 == build.main(["--check"])
    assert "settings.md is stale" in capsys.readouterr().err


def test_pages_are_written_where_they_are_checked(build, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "PAGES", tmp_path)

    assert 0 == build.main([])
    assert 0 == build.main(["--check"])
