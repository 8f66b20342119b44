import io

import pytest

from bunqueue.cli import readers
from bunqueue.cli.readers import ABSENT
from bunqueue.cli.usage import UsageError


@pytest.mark.parametrize(
    "read",
    [
        readers.text("--x"),
        readers.words("--x"),
        readers.whole("--x"),
        readers.number("--x"),
        readers.span_ms("--x"),
        readers.json_value("--x"),
        readers.flag("--x"),
    ],
)
def test_an_option_not_given_is_not_sent(read):
    assert read({"--x": None}) is ABSENT


@pytest.mark.parametrize(
    ("given", "expected_ms"),
    [("500", 500), ("1.5s", 1_500), ("5m", 300_000), ("2h", 7_200_000), ("1d", 86_400_000)],
)
def test_a_span_may_have_a_unit(given, expected_ms):
    assert expected_ms == readers.span_ms("--x")({"--x": given})


@pytest.mark.parametrize(
    ("read", "given", "text"),
    [
        (readers.span_ms("--x"), "soon", "--x must be a span such as 500, 30s or 5m, not 'soon'"),
        (readers.whole("--x"), "1.5", "--x must be a whole number, not '1.5'"),
        (readers.number("--x"), "nan", "--x must be a number, not 'nan'"),
        (readers.json_value("--x"), "NaN", "--x is not valid JSON: NaN is no JSON number"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(read, given, text):
    with pytest.raises(UsageError) as caught:
        read({"--x": given})

    assert text == str(caught.value)


def test_json_null_is_sent_as_null():
    assert readers.json_value("--x")({"--x": "null"}) is None


def test_a_dash_reads_json_from_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO('{"a": 1}'))

    assert {"a": 1} == readers.json_value("--x")({"--x": "-"})


def test_words_are_separated_by_commas():
    assert ["a", "b"] == readers.words("--x")({"--x": "a, b,"})


def test_standard_input_that_is_no_text_is_refused(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))

    with pytest.raises(UsageError, match="--x is not valid JSON: 'utf-8' codec"):
        readers.json_value("--x")({"--x": "-"})


def test_json_that_is_nested_too_deeply_is_refused():
    with pytest.raises(UsageError, match="--x is not valid JSON: (maximum recursion|Stack over)"):
        readers.json_value("--x")({"--x": "[" * 100_000})
