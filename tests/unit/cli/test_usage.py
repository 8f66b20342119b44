import pytest

from bunqueue.cli.usage import UsageError, parse

TEXT = """Do things.

Usage:
  bunqueue thing set [options] [--] <name> <value>
  bunqueue thing clear --grace MS [options] [--] <name>

Options:
  -p N, --priority N   How soon.
  -g MS, --grace MS    How old.
  --loud               Say so.
"""


def refusal(*argv):
    with pytest.raises(UsageError) as caught:
        parse(TEXT, ["thing", *argv])
    return str(caught.value)


def test_options_may_stand_anywhere():
    args = parse(TEXT, ["thing", "--loud", "set", "a", "-p", "5", "b"])

    assert ("a", "b", "5", True) == (
        args["<name>"],
        args["<value>"],
        args["--priority"],
        args["--loud"],
    )


def test_a_negative_number_is_an_option_value():
    assert "-5" == parse(TEXT, ["thing", "set", "a", "b", "--priority", "-5"])["--priority"]


def test_a_negative_number_is_an_argument():
    assert "-5" == parse(TEXT, ["thing", "set", "a", "-5"])["<value>"]


def test_behind_two_dashes_nothing_is_an_option():
    args = parse(TEXT, ["thing", "set", "--priority=1", "--", "a", "--loud"])

    assert ("--loud", False) == (args["<value>"], args["--loud"])


def test_a_lone_dash_is_an_argument():
    assert "-" == parse(TEXT, ["thing", "set", "a", "-"])["<value>"]


def test_an_unambiguous_beginning_of_an_option_is_enough():
    assert "5" == parse(TEXT, ["thing", "set", "a", "b", "--prio", "5"])["--priority"]


def test_a_misspelt_option_gets_a_suggestion():
    assert "unknown option --priorty (did you mean --priority?)" == refusal(
        "set", "a", "b", "--priorty", "5"
    )


def test_an_unknown_short_option_is_named():
    assert "unknown option -z" == refusal("set", "a", "b", "-z")


def test_an_option_without_its_value_is_named():
    assert "-p needs a value" == refusal("set", "a", "b", "-p")


def test_a_switch_takes_no_value():
    assert "--loud must not have an argument" == refusal("set", "a", "b", "--loud=1")


def test_a_missing_argument_is_named():
    assert "missing argument <value>" == refusal("set", "a")


def test_a_surplus_argument_is_named():
    assert "unexpected argument 'c'" == refusal("set", "a", "b", "c")


def test_a_missing_action_lists_all():
    assert "an action is missing, one of: clear set" == refusal()


def test_a_misspelt_action_gets_a_suggestion():
    assert "unknown action 'cler' (did you mean clear?)" == refusal("cler", "a")


def test_a_missing_required_option_is_named():
    assert "missing option --grace" == refusal("clear", "a")
