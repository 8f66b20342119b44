"""Turn one subcommand's docopt text and its arguments into values, or into a short hint.

docopt reads the text; what it lacks is here: an unknown option is named and the nearest known one
suggested, a missing argument is named, and all of it is one ``UsageError`` instead of an exit with
the whole usage. Options are checked before docopt sees them, because it reports an unknown option
only as "unmatched".
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import docopt

Args = Mapping[str, Any]


class UsageError(Exception):
    """The command line cannot be understood; exit status 2."""


def parse(usage: str, argv: Sequence[str]) -> Args:
    """Read the arguments of one subcommand.

    Args:
        usage: Its docopt text.
        argv: Everything behind ``bunqueue``, the subcommand's own name first.

    Raises:
        UsageError: Unknown option, missing or surplus argument.
    """
    sections = docopt.parse_docstring_sections(usage)
    options, words = _sort(argv, docopt.parse_options(sections.after_usage))
    patterns = _patterns(sections.usage_body)
    pattern = max(patterns, key=lambda line: _agreement(line, words))
    literals = _agreement(pattern, words)
    # Every usage line takes a "--" behind its literals: what follows is never an option.
    dashes = ["--"] if "--" in argv else []
    ordered = [*words[:literals], *options, *dashes, *words[literals:]]
    try:
        parsed: Args = docopt.docopt(usage, ordered, default_help=False)
    except docopt.DocoptExit as error:
        text = str(error).split("\n", 1)[0]
        if not text.endswith("must not have an argument"):
            text = _misfit(patterns, pattern, words)
        raise UsageError(text) from None
    return parsed


def nearest(word: str, known: Sequence[str]) -> str:
    """Return `` (did you mean X?)``, or nothing when no known word is near."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def _sort(argv: Sequence[str], known: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Part the options with their values from the words, having checked each option's name."""
    takes_value = {name: o.argcount for o in known for name in (o.short, o.longer) if name}
    options: list[str] = []
    words: list[str] = []
    tokens = iter(argv)
    for token in tokens:
        if token == "--":
            words += tokens
        elif token.startswith("--"):
            options += _long(token, takes_value, tokens)
        elif token.startswith("-") and token != "-" and not _is_number(token):
            options += _shorts(token, takes_value, tokens)
        else:
            words.append(token)
    return options, words


def _long(token: str, takes_value: Mapping[str, int], tokens: Iterator[str]) -> Iterator[str]:
    name, equals, _ = token.partition("=")
    known = [n for n in takes_value if n.startswith(name) and n.startswith("--")]
    known = [name] if name in takes_value else known
    if len(known) != 1:
        raise UsageError(f"unknown option {name}{nearest(name, list(takes_value))}")
    yield token
    if takes_value[known[0]] and not equals:
        yield _value(name, tokens)


def _shorts(token: str, takes_value: Mapping[str, int], tokens: Iterator[str]) -> Iterator[str]:
    """Check ``-abc``, which may end in an option's value or be followed by it."""
    yield token
    for index, letter in enumerate(token[1:], start=1):
        name = f"-{letter}"
        if name not in takes_value:
            raise UsageError(f"unknown option {name}{nearest('-' + token, list(takes_value))}")
        if takes_value[name]:
            if index == len(token) - 1:
                yield _value(name, tokens)
            return


def _value(name: str, tokens: Iterator[str]) -> str:
    value = next(tokens, "--")
    if value == "--":
        raise UsageError(f"{name} needs a value")
    return value


def _is_number(token: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d*)?(e[+-]?\d+)?", token, re.IGNORECASE) is not None


def _patterns(usage_body: str) -> list[list[str]]:
    """Return per usage line what it requires: literals, ``<arguments>`` and ``--options``."""
    lines = [line.split()[1:] for line in usage_body.strip().splitlines()]
    required = re.compile(r"[a-z][a-z-]*|<[\w:-]+>(\.\.\.)?|--[a-z-]+")
    return [[word for word in line if required.fullmatch(word)] for line in lines]


def _misfit(patterns: list[list[str]], pattern: list[str], words: list[str]) -> str:
    """Say what is wrong with the words, given the usage line that they resemble most."""
    agreed = _agreement(pattern, words)
    rest = [word for word in pattern[agreed:] if not word.startswith("--")]
    if rest and not rest[0].startswith("<"):
        actions = sorted({line[agreed] for line in patterns if _agreement(line, words) == agreed})
        if len(words) > agreed:
            return f"unknown action {words[agreed]!r}{nearest(words[agreed], actions)}"
        return f"an action is missing, one of: {' '.join(actions)}"
    missing = rest[len(words) - agreed :]
    if missing:
        return f"missing argument {missing[0]}"
    if len(words) > agreed + len(rest):
        return f"unexpected argument {words[agreed + len(rest)]!r}"
    needed = [word for word in pattern if word.startswith("--")]
    return f"missing option {needed[0]}" if needed else "these options exclude each other"


def _agreement(pattern: list[str], words: list[str]) -> int:
    """Count the leading literals that the words match."""
    count = 0
    for expected, word in zip(pattern, words, strict=False):
        if expected != word:
            break
        count += 1
    return count
