"""What ``module:attr`` on the command line means: find it, and make workers of it."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bunqueue.cli.usage import UsageError
from bunqueue.client.simple.app import Bunqueue
from bunqueue.client.worker import Worker
from bunqueue.client.worker_group import WorkerGroup
from bunqueue.errors import BunqueueError

OURS = (__file__, importlib.__file__, "<frozen importlib")  # files of frames nobody asked for


def workers_of(
    target: str,
    queues: list[str],
    options: Mapping[str, Any],
    made_with: Mapping[str, Any],
    moved_to: Mapping[str, Any],
) -> list[Worker]:
    """Return the workers that a target names.

    Args:
        target: ``module:attr``; the attribute may be dotted.
        queues: Names of ``-q``; a handler needs at least one.
        options: Worker parameters that the command line gives.
        made_with: Further parameters of workers that are made here, for handlers.
        moved_to: What the command line says of the broker's address, for workers that have one.

    Raises:
        UsageError: The target has another form, is of no use, or contradicts the options.
        BunqueueError: It cannot be imported.
    """
    found = resolve(target)
    try:
        return list(_workers(target, found, queues, options, made_with, moved_to))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{target}: {error}") from error


def _workers(
    target: str,
    found: Any,
    queues: list[str],
    options: Mapping[str, Any],
    made_with: Mapping[str, Any],
    moved_to: Mapping[str, Any],
) -> Iterator[Worker]:
    if is_handler(found):
        if not queues:
            raise UsageError(f"{target} is a handler: name its queues with -q")
        for queue in queues:
            yield Worker(queue, found, **{**made_with, **options})
        return
    if callable(found) and not isinstance(found, Worker | WorkerGroup | Bunqueue):
        found = found()
    for each in flat(target, found):
        override(target, each, {**moved_to, **options})
        yield each.prepared() if isinstance(each, Bunqueue) else each


def resolve(target: str) -> Any:
    """Import the module and return the attribute."""
    name, colon, path = target.partition(":")
    if not (name and colon and path):
        raise UsageError(f"{target!r} is neither an action nor of the form module:attr")
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        text = f"cannot import {name}: {error}"
        if error.name == name.partition(".")[0]:
            text += "; run it in the directory of that module, or name that with --path"
        raise BunqueueError(text) from error
    except Exception as error:
        print("".join(lines_of(error)), end="", file=sys.stderr)
        raise BunqueueError(f"cannot import {name}: {type(error).__name__}: {error}") from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise BunqueueError(f"{name} has no {path}: {error}") from error
    return found


def lines_of(error: Exception) -> Iterator[str]:
    """Yield the traceback of a module that fails, without our frames and those of the import."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(OURS):
        frames = frames.tb_next
    yield from traceback.format_exception(error.with_traceback(frames))


def is_handler(found: Any) -> bool:
    """Tell a handler, which takes the job, from a factory, which takes nothing."""
    if not callable(found) or isinstance(found, Worker | WorkerGroup):
        return False
    required = [
        parameter
        for parameter in inspect.signature(found).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return bool(required)


def flat(target: str, found: Any) -> Iterator[Worker | Bunqueue]:
    """Yield what works inside groups and lists."""
    if isinstance(found, Worker | Bunqueue):
        yield found
    elif isinstance(found, WorkerGroup):
        yield from found.workers
    elif isinstance(found, Iterable):
        for each in found:
            yield from flat(target, each)
    else:
        raise UsageError(f"{target} is a {type(found).__name__}, not a worker or a handler")


def override(target: str, found: Worker | Bunqueue, options: Mapping[str, Any]) -> None:
    """Let the options of the command line win over those that the module gave."""
    if not options:
        return
    worker = found.worker if isinstance(found, Bunqueue) else found
    if worker.is_started or worker.is_closed():
        raise UsageError(f"{target} has started already, so its options stay: use autorun=False")
    found.change(**options)


def import_from(directories: Iterable[str]) -> None:
    """Put directories on the path of imports, the first one first."""
    sys.path[:0] = list(directories)
