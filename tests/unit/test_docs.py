import importlib.util
import shutil

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


@pytest.fixture
def elsewhere(build, tmp_path, monkeypatch):
    """A folder that holds nothing but what is written by hand."""
    shutil.copy(build.DOCS / build.PROTOCOL, tmp_path)
    monkeypatch.setattr(build, "DOCS", tmp_path)
    return tmp_path


def test_a_stale_page_is_an_error_that_names_it(build, elsewhere, capsys):
    (elsewhere / "reference").mkdir()
    (elsewhere / "reference/settings.md").write_text("old")

    assert 1 == build.main(["--check"])
    assert "docs/reference/settings.md is stale" in capsys.readouterr().err


def test_a_stale_table_in_a_page_written_by_hand_is_an_error(build, elsewhere, capsys):
    build.main([])
    page = elsewhere / build.PROTOCOL
    page.write_text(page.read_text("utf-8").replace("| `queue` | queue name", "| `queue` | text"))

    assert 1 == build.main(["--check"])
    assert "docs/protocol.md is stale" in capsys.readouterr().err
    assert 0 == build.main([])
    assert 0 == build.main(["--check"])


def test_pages_are_written_where_they_are_checked(build, elsewhere):
    assert 0 == build.main([])
    assert 0 == build.main(["--check"])
    assert (elsewhere / "reference/cli.md").exists()
