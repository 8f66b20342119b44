"""Entry point of the command line: patch if the words ask for it, then find the row and run it.

``bunqueue worker module:attr`` runs handlers in greenlets unless told otherwise, and patching the
standard library is sound only before anything else is imported. So ``main`` looks at the words
with nothing but ``os`` and ``sys`` loaded, patches, and only then imports the table.
"""

import os
import sys

from bunqueue.cli import restart
from bunqueue.cli.leading import split_leading

# Options that put a supervisor in front of the workers; it needs no greenlets, its children do.
SUPERVISED = ("--processes", "--watch", "--max-jobs-per-child", "--max-memory")
CHILD_MARK = "BUNQUEUE_WORKER_CHILD"  # set by a supervisor, see ready.py


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit status.

    0: done. 1: the broker refused, is unreachable, or the command is unknown. 2: bad usage.
    """
    words = sys.argv[1:] if argv is None else argv
    if argv is None and _starts_broker(words):
        restart.start_again(words)
    if argv is None and split_leading(words)[1][:1] == ["worker"]:
        restart.hide_token(words)
    if _runs_greenlets(words):
        from gevent import monkey

        monkey.patch_all()
    from bunqueue.cli.dispatch import dispatch

    return dispatch(words)


def _starts_broker(words: list[str]) -> bool:
    """Tell whether the words start the broker: they name it, or name nothing."""
    _, rest = split_leading(words)
    if {"-h", "--help", "-v", "--version"}.intersection(rest):
        return False
    return not rest or rest[0] == "start" or rest[0].startswith("-")


def _runs_greenlets(words: list[str]) -> bool:
    """Tell whether the words start a worker whose handlers are greenlets."""
    if "worker" not in words or "-h" in words or "--help" in words:
        return False
    rest = words[words.index("worker") + 1 :]
    if not ("run" in rest or any(":" in word and "//" not in word for word in rest)):
        return False
    if CHILD_MARK not in os.environ and any(word.startswith(SUPERVISED) for word in rest):
        return False
    for place, word in enumerate(rest):
        if word in ("-x", "--executor"):
            return rest[place + 1 : place + 2] in (["greenlet"], ["auto"])
        if word.startswith("--executor="):
            return word.partition("=")[2] in ("greenlet", "auto")
        if word.startswith("-x"):
            return word[2:] in ("greenlet", "auto")
    return True
