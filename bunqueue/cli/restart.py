"""The broker's process replaces itself once, before anything has been loaded.

Two things are settled when a process starts, and not later.

*The allocator.* Python's own hands memory back by the megabyte, and one small object that lives on
keeps a whole one: after a million jobs have gone, a broker of 40 MiB stayed at 70 to 220. The C
library's gives back every free page, and costs a tenth more CPU per job (loadtests/memory.py,
loadtests/bench.py). It keeps the last few freed pieces of every size at hand; with more of them
``cycle-64`` in memory takes 3 % less in pure Python. Each may keep a page, 8 MiB in all at the very
most, and after 300,000 jobs have gone 44 MiB stay where 40 did. A ``PYTHONMALLOC`` or
``GLIBC_TUNABLES`` that is set already is respected: ``PYTHONMALLOC=default`` trades the memory for
the speed.

*The command line.* Every user of the machine can read it. Tokens that stand there are moved to the
environment, which only the process's own user can read. That goes for workers too, which live as
long: ``HIDDEN_TOKEN`` stands for the token on their command line then, so that they, what they
start and what replaces them take it as if it had been given there.
"""

import os
import sys

CACHED_PIECES = "glibc.malloc.tcache_count=32"  # of each size up to a KiB; 7 are usual

TOKENS_FLAG, TOKENS_NAME = "--auth-tokens", "AUTH_TOKENS"

WARNING = (
    f"Warning: {TOKENS_FLAG} shows tokens to every user of this machine until the broker has "
    f"hidden them; set {TOKENS_NAME}, or {TOKENS_NAME}_FILE to the path of a file with them."
)

TOKEN_FLAG, URL_FLAG = "--token", "--url"
HIDDEN_NAME = "BUNQUEUE_HIDDEN_TOKEN"
HIDDEN_TOKEN = f"@{HIDDEN_NAME}"  # on a command line: the token is in this variable

WARNING_OF_WORKER = (
    f"Warning: {TOKEN_FLAG} and {URL_FLAG} show the token to every user of this machine until the "
    "worker has hidden it; set BQ_TOKEN."
)


def start_again(words: list[str]) -> None:
    """Start this command again if its allocator or its command line asks for that.

    Args:
        words: The command line behind the program's name.
    """
    tokens, rest = without_tokens(words)
    changes: dict[str, str] = {}
    if tokens:
        print(WARNING, file=sys.stderr, flush=True)
        changes[TOKENS_NAME] = tokens
    if "PYTHONMALLOC" not in os.environ and _is_glibc():
        changes["PYTHONMALLOC"] = "malloc"
        changes["GLIBC_TUNABLES"] = os.environ.get("GLIBC_TUNABLES", CACHED_PIECES)
    if changes:
        _replace(words, rest, changes)


def hide_token(words: list[str]) -> None:
    """Start this command again if its command line shows a token.

    Args:
        words: The command line behind the program's name, of a worker.
    """
    token, rest = without_token(words)
    if token is not None:
        print(WARNING_OF_WORKER, file=sys.stderr, flush=True)
        _replace(words, rest, {HIDDEN_NAME: token})


def shown_token(given: str | None) -> str | None:
    """Return the token that an option means."""
    return os.environ.get(HIDDEN_NAME, given) if given == HIDDEN_TOKEN else given


def _replace(words: list[str], others: list[str], changes: dict[str, str]) -> None:
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(words)]
    try:
        os.execve(sys.executable, [sys.executable, *before, *others], {**os.environ, **changes})
    except OSError:  # it may not be run any more: replaced, or out of reach since a change of user
        return


def without_tokens(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the tokens on the command line, None where there are none, and the other words."""
    tokens, rest, place = None, [], 0
    while place < len(words):
        name, equals, value = words[place].partition("=")
        # docopt takes any beginning of an option's name that means only one.
        if len(name) > len("--") and TOKENS_FLAG.startswith(name):
            if not equals:
                place += 1
                value = words[place] if place < len(words) else ""
            tokens = value
        else:
            rest.append(words[place])
        place += 1
    return (tokens, rest) if tokens else (None, words)


def without_token(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the token on a worker's command line, None where there is none, and other words."""
    token = of_url = None
    rest: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            rest += [word, *left]
            break
        name, equals, value = word.partition("=")
        if _means(name, TOKEN_FLAG, "--to") or word == "-t":
            token = value if equals else next(left, "")
        elif word.startswith("-t"):
            token = word.removeprefix("-t")
        elif _means(name, URL_FLAG, "--u"):
            url, of_url = _without_user(value if equals else next(left, ""))
            rest += [URL_FLAG, url]
        else:
            rest.append(word)
    token = token or of_url
    if not token or token == HIDDEN_TOKEN:
        return None, words
    return token, [TOKEN_FLAG, HIDDEN_TOKEN, *rest]


def _means(name: str, flag: str, shortest: str) -> bool:
    """Say whether an option's name is this one's, or a beginning of it that is no other's."""
    return flag.startswith(name) and name.startswith(shortest)


def _without_user(url: str) -> tuple[str, str | None]:
    """Return a URL without the token in it, and that, as ``client.endpoint.parse_url`` reads it."""
    from urllib.parse import unquote, urlsplit

    try:
        parts = urlsplit(url)
        token = parts.password or parts.username
    except ValueError:
        return url, None  # it is refused soon
    if not token:
        return url, None
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=place).geturl(), unquote(token)


def _is_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):
        return False
