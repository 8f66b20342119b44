"""The broker's process replaces itself once, before anything has been loaded.

Two things are settled when a process starts, and not later.

*The allocator.* Python's own hands memory back by the megabyte, and one small object that lives on
keeps a whole one: after a million jobs have gone, a broker of 40 MiB stayed at 70 to 220. The C
library's gives back every free page, and costs a tenth more CPU per job (loadtests/memory.py,
loadtests/bench.py). A ``PYTHONMALLOC`` that is set already is respected:
``PYTHONMALLOC=default`` trades the memory for the speed.

*The command line.* Every user of the machine can read it. Tokens that stand there are moved to the
environment, which only the broker's own user can read.
"""

import os
import sys

TOKENS_FLAG, TOKENS_NAME = "--auth-tokens", "AUTH_TOKENS"

WARNING = (
    f"Warning: {TOKENS_FLAG} shows tokens to every user of this machine until the broker has "
    f"hidden them; set {TOKENS_NAME}, or {TOKENS_NAME}_FILE to the path of a file with them."
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
    if not changes:
        return
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(words)]
    try:
        os.execve(sys.executable, [sys.executable, *before, *rest], {**os.environ, **changes})
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


def _is_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):
        return False
