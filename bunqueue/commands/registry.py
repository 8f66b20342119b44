"""The command table. A command is one decorated function; everything else is read off its row.

The check of a command's fields is compiled once, at import. ``dispatch`` never raises: a refusal is
an answer too, and what nobody foresaw is logged in full and answered as an internal error.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, cast

from bunqueue.commands.peer import Peer
from bunqueue.engine.later import Later
from bunqueue.engine.slices import Work
from bunqueue.errors import Refused, StorageFailed
from bunqueue.protocol.fields import Check, Field, compile_check, length_problem
from bunqueue.protocol.options import OPTION_FIELDS
from bunqueue.protocol.replies import (
    INTERNAL_ERROR,
    INVALID_COMMAND,
    INVALID_FORMAT,
    NOT_AUTHENTICATED,
    Reply,
    error_reply,
)

log = logging.getLogger(__name__)

Request = dict[str, Any]
Run = Callable[[Peer, Request], Reply | Later]
LongRun = Callable[[Peer, Request], Work[Reply]]


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table.

    Attributes:
        name: As clients send it.
        run: The function; its docstring is the reference text.
        fields: wire name -> field, in the order in which problems are reported.
        check: The compiled check of ``fields``, but for the job options.
        takes_options: The request may carry job options; the function checks them, if it has any.
        mutates: It changes something.
        waits: It may answer with a ``Later`` that takes a while; counts against the
            connection's 50.
        is_open: It is answered before authentication.
        is_long: It may be a work (``engine/slices.py``): on many jobs it is done in slices.
        run_large: The function for a large request; mostly the same.
    """

    name: str
    run: Run
    fields: Mapping[str, Field]
    check: Check
    takes_options: bool
    mutates: bool
    waits: bool
    is_open: bool
    is_long: bool
    run_large: Run


COMMANDS: dict[str, Command] = {}


def command(
    name: str,
    fields: Mapping[str, Field] | None = None,
    *,
    options: bool = False,
    mutates: bool = False,
    waits: bool = False,
    is_open: bool = False,
    large: LongRun | None = None,
) -> Callable[[Run | LongRun], Run]:
    """Declare the decorated function as the command ``name``; it may be a work.

    Args:
        large: The work to do instead where the request came in a large frame.
    """
    own = dict(fields or {})

    def declare(function: Run | LongRun) -> Run:
        assert name not in COMMANDS, f"command {name} declared twice"
        assert function.__doc__, f"command {name} has no docstring"
        check = compile_check(own)
        every = {**own, **OPTION_FIELDS} if options else own
        is_long = isgeneratorfunction(function)
        run = _sliced(cast(LongRun, function), mutates) if is_long else cast(Run, function)
        run_large = run if large is None else _sliced(large, mutates)
        COMMANDS[name] = Command(
            name, run, every, check, options, mutates, waits,
            is_open, is_long or large is not None, run_large,
        )  # fmt: skip
        return run

    return declare


def _sliced(work: LongRun, mutates: bool) -> Run:
    """Return the command that does a work; what only reads ends with the peer that asked."""

    @wraps(work)
    def run(peer: Peer, request: Request) -> Reply | Later:
        return in_slices(peer, work(peer, request), mutates)

    return run


def in_slices(peer: Peer, work: Work[Reply], is_kept_on: bool) -> Reply | Later:
    """Return the reply that a work comes to, or a ``Later`` of it."""
    reply = peer.engine.run(work, peer.now(), is_kept_on)
    if isinstance(reply, Later):
        reply.shape = _ended
    return reply


def _ended(answer: Any) -> Reply:
    """Return the reply of a work that has taken its time, or has failed meanwhile."""
    if isinstance(answer, Exception):
        return refusal_reply(answer)
    reply: Reply = answer
    return reply


def dispatch(peer: Peer, request: Any, is_large: bool = False) -> Reply | Later:
    """Answer one decoded request, without its ``reqId``. Never raises."""
    try:
        row = COMMANDS[request["cmd"]]
    except (KeyError, TypeError, IndexError):
        return _no_command(peer, request)
    if not (peer.is_authenticated or row.is_open):
        return error_reply(NOT_AUTHENTICATED)
    problem = (length_problem(request, row.fields) if is_large else None) or row.check(request)
    if problem is not None:
        return error_reply(problem)
    try:
        return row.run_large(peer, request) if is_large else row.run(peer, request)
    except Refused as refusal:
        return error_reply(str(refusal))
    except Exception as error:
        return error_reply(failure_text(error, row.name))


def failure_text(error: Exception, name: str) -> str:
    """Return what a peer is told of a failure; what nobody foresaw is logged here."""
    if not isinstance(error, StorageFailed):  # of that one the storage has logged why
        log.error("command failed cmd=%s", name, exc_info=error)
    return INTERNAL_ERROR


def refusal_reply(error: Exception) -> Reply:
    """Answer with what ended an operation that took its time."""
    return error_reply(str(error) if isinstance(error, Refused) else INTERNAL_ERROR)


def _no_command(peer: Peer, request: Any) -> Reply:
    """Answer what is no request, or one for an unknown command."""
    if request is None or request is False:
        return error_reply(INVALID_FORMAT)
    name = request.get("cmd") if isinstance(request, dict) else None
    if not name or not isinstance(name, str):
        return error_reply(INVALID_COMMAND)
    if not peer.is_authenticated:
        return error_reply(NOT_AUTHENTICATED)
    return error_reply(f"Unknown command: {name}")
