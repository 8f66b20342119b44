"""The long form: ``python -m tests.fuzz --minutes 10 --target codec``.

With atheris in the environment its inputs follow what they cover in the package; without it, and
with --blind, they are made by chance. What is found is written into --found, and the run goes on;
a file of ``tests/fuzz/found/TARGET`` is tried first in every run, and by the suite.

Usage:
  tests.fuzz [--minutes N] [--target NAME] [--seed N] [--found DIR] [--blind]

Options:
  --minutes N    How long, in CPU time [default: 10].
  --target NAME  frames, codec, dispatch, runner or http; all in turn if absent.
  --seed N       Of chance [default: 1].
  --found DIR    Where findings go [default: found].
  --blind        Do not look at what is covered.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from docopt import docopt

NAMES = ("frames", "codec", "dispatch", "runner", "http")
KEPT = Path(__file__).parent / "found"
INPUT_S_MAX = 10.0  # an input that takes longer is a finding
HANG_S = 900  # of the wall clock: on a busy machine a minute may go by in any input
FINDINGS_MAX = 20  # of one run, each of a kind of its own


class Findings:
    """Writes what is found, one file for each place in the code."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory / name
        self.places: set[str] = set()
        self.inputs = 0

    def run(self, fuzz: Callable[[bytes], None], data: bytes) -> None:
        """Try one input."""
        self.inputs += 1
        began = time.process_time()
        try:
            fuzz(data)
        except Exception as error:
            self._keep(data, error)
        else:
            if time.process_time() - began > INPUT_S_MAX:
                self._keep(data, TimeoutError("it takes too long"))

    def _keep(self, data: bytes, error: Exception) -> None:
        cause = error.__cause__ or error
        frames = traceback.extract_tb(cause.__traceback__)[-3:]
        place = " ".join(f"{Path(each.filename).name}:{each.lineno}" for each in frames)
        if place in self.places:
            return
        self.places.add(place)
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / hashlib.sha1(data).hexdigest()[:12]
        path.write_bytes(data)
        print(f"found by {self.name}, kept in {path}:", flush=True)
        traceback.print_exception(error)

    def told(self) -> str:
        return f"{self.name}: {self.inputs} inputs, {len(self.places)} findings"


def kept_inputs(name: str) -> list[bytes]:
    """Return what was found once."""
    return [path.read_bytes() for path in sorted((KEPT / name).glob("*")) if path.is_file()]


def target(name: str) -> Callable[[bytes], None]:
    """Return what to call; HTTP goes to another process, the others are in this one."""
    if name == "http":
        from tests.fuzz.http import http

        return http
    from tests.fuzz.targets import TARGETS

    return TARGETS[name]


def blindly(name: str, seconds: float, seed: int, directory: Path) -> Findings:
    """Fuzz without a look at what is covered."""
    from tests.fuzz.blind import inputs

    fuzz = target(name)
    findings = Findings(name, directory)
    end = time.process_time() + seconds
    kept = kept_inputs(name)
    for data in kept:
        findings.run(fuzz, data)
    for data in inputs(seed, kept):
        findings.run(fuzz, data)
        if time.process_time() > end or len(findings.places) >= FINDINGS_MAX:
            break
    return findings


@contextmanager
def corpus(name: str) -> Iterator[Path]:
    """Make a directory with the seeds and what is kept."""
    import tempfile

    from tests.fuzz.blind import SEEDS

    with tempfile.TemporaryDirectory() as directory:
        for number, data in enumerate((*SEEDS, *kept_inputs(name))):
            (Path(directory) / f"seed{number}").write_bytes(data)
        yield Path(directory)


def guided(name: str, seconds: float, seed: int, directory: Path) -> int:
    """Fuzz with atheris, in a child: it ends the process that it runs in."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    import atheris

    with atheris.instrument_imports(include=["bunqueue"]):
        run = target(name)
    findings = Findings(name, directory)
    end = time.process_time() + seconds

    def fuzz(data: bytes) -> None:
        findings.run(run, data)
        if time.process_time() > end or len(findings.places) >= FINDINGS_MAX:
            print(findings.told(), flush=True)
            os._exit(bool(findings.places))

    with corpus(name) as seeds:
        argv = [sys.argv[0], f"-seed={seed}", "-max_len=4096", "-verbosity=0", "-rss_limit_mb=4096"]
        hang = [f"-timeout={HANG_S}", f"-report_slow_units={HANG_S}"]
        atheris.Setup([*argv, *hang, str(seeds)], fuzz)
        atheris.Fuzz()
    os._exit(1)  # it returns only if it could not begin


def main() -> int:
    args = docopt(__doc__ or "")
    seconds, seed = 60 * float(args["--minutes"]), int(args["--seed"])
    directory = Path(args["--found"])
    names = [args["--target"]] if args["--target"] else [*NAMES]
    try:
        import atheris  # noqa: F401
    except ImportError:
        is_blind = True
    else:
        is_blind = args["--blind"]
    status = 0
    for name in names:
        if is_blind or name == "http":  # whose code runs elsewhere
            findings = blindly(name, seconds / len(names), seed, directory)
            print(findings.told(), flush=True)
            status |= bool(findings.places)
        else:
            status |= guided(name, seconds / len(names), seed, directory)
    return status


if __name__ == "__main__":
    sys.exit(main())
