"""Send the same random commands to this checkout's server and to the reference, and compare.

Usage:
  differential [options]

Called as python -m loadtests.differential. Both servers run at the same time, each on a fresh
file. Every reply is compared, after every change what it changed, and at the end of a sequence
everything that can be read. A difference is explained by a rule of loadtests/differences/rules.py,
or it is printed and the exit status is 1. How often each rule was used is printed at the end.

Options:
  --reference=DIR    Where npm install bun bunqueue@2.9.5 was run; if absent what
                     BUNQUEUE_TEST_REFERENCE names.
  --seed=SEED        Which sequences; any text. [default: 1]
  --sequences=N      How many sequences. [default: 300]
  --only=N           Only the sequence with this number.
  --shrink           Make a sequence that shows a difference as short as it gets before printing it.
  --memory           Servers without a file.
  --quiet            No progress.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from docopt import docopt

from loadtests.differences.judging import Verdict, judge
from loadtests.differences.playing import Step
from loadtests.differences.rules import RULES
from loadtests.differences.sequences import sequence
from loadtests.differences.story import Rule
from loadtests.servers import (
    Server,
    free_port,
    our_command,
    reference_command,
    stop_servers_on_sigterm,
)
from tests.support.reference import DIRECTORY_VARIABLE

NEEDED = frozenset({"cmd", "queue", "jobs", "id", "ids", "count", "grace", "name"})
PROGRESS_EVERY = 25
REPLAYS = 2  # a difference that is not there each time is one of timing
TEXT_CHARS_MAX = 700
ERROR_CHARS = 24  # of a refusal that tell what kind it is


_run = re.compile(r"\bd\d+[-.]")  # what the names of one run begin with


@dataclass(slots=True)
class Tally:
    """What all sequences of a run showed.

    Attributes:
        used: Rule -> how many differences it explained.
        parted: Rule -> how many sequences it ended.
        sequences, asked, compared: How many sequences were played, steps and replies compared.
        faulty: Numbers of the sequences with a difference that no rule explains.
        fleeting: Numbers of those whose difference was gone when they were played again.
    """

    used: Counter[Rule] = field(default_factory=Counter)
    parted: Counter[Rule] = field(default_factory=Counter)
    sequences: int = 0
    asked: int = 0
    compared: int = 0
    faulty: list[int] = field(default_factory=list)
    fleeting: list[int] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        """Count one sequence."""
        self.sequences += 1
        self.asked += verdict.asked
        self.compared += verdict.compared
        self.used += verdict.used
        if verdict.parted:
            self.parted[verdict.parted] += 1


@contextmanager
def both_servers(reference: Path, *, memory: bool = False) -> Iterator[tuple[int, int]]:
    """Run the reference and ours on fresh files; yields their TCP ports."""
    with tempfile.TemporaryDirectory(prefix="bunqueue-differential-") as name:
        directory = Path(name)
        ports = free_port(), free_port()
        files = [None if memory else directory / f"{side}.db" for side in ("reference", "ours")]
        theirs = reference_command(reference, ports[0], free_port(), files[0])
        ours = our_command(ports[1], free_port(), files[1])
        with (
            Server(theirs, ports[0], directory / "reference.log"),
            Server(ours, ports[1], directory / "ours.log"),
        ):
            yield ports


def run(
    seed: str,
    numbers: Sequence[int],
    ports: tuple[int, int],
    *,
    shrink: bool = False,
    say: Callable[[str], None] = print,
    progress: Callable[[str], None] = lambda _text: None,
) -> Tally:
    """Play the sequences with these numbers. Waits.

    Args:
        seed: Which sequences.
        numbers: Their numbers.
        ports: Of the reference, and ours.
        shrink: Print a sequence in its shortest form.
        say: Gets what was found.
        progress: Gets how far it is.
    """
    tally = Tally()
    for number in numbers:
        steps = sequence(f"{seed}:{number}")
        verdict = judge(steps, ports)
        tally.add(verdict)
        if verdict.faults and not all(judge(steps, ports).faults for _ in range(REPLAYS)):
            tally.fleeting.append(number)
            say(f"sequence {number}: gone when played again\n{told(verdict)}")
        elif verdict.faults:
            tally.faulty.append(number)
            seen = told(verdict)
            if shrink:
                steps = shortest(steps, verdict, ports)
                verdict = judge(steps, ports)
            say(f"sequence {number}:\n{seen}\n  by\n{text_of(steps, verdict)}")
        if tally.sequences % PROGRESS_EVERY == 0:
            progress(f"{tally.sequences} of {len(numbers)}, {len(tally.faulty)} with a difference")
    return tally


def shortest(steps: list[Step], verdict: Verdict, ports: tuple[int, int]) -> list[Step]:
    """Return a shorter sequence with the same kind of difference. Waits, for many runs."""
    wanted = kind_of(verdict)

    def still_differs(candidate: list[Step]) -> bool:
        return kind_of(judge(candidate, ports)) == wanted

    size = max(1, len(steps) // 2)
    while size:
        start = 0
        while start < len(steps):
            candidate = steps[:start] + steps[start + size :]
            if still_differs(candidate):
                steps = candidate
            else:
                start += size
        size //= 2
    return _with_fewer_fields(steps, still_differs)


def _with_fewer_fields(
    steps: list[Step], still_differs: Callable[[list[Step]], bool]
) -> list[Step]:
    for number, step in enumerate(steps):
        for name in [name for name in step.get("send", {}) if name not in NEEDED]:
            fewer = {key: value for key, value in steps[number]["send"].items() if key != name}
            candidate = [*steps[:number], {**steps[number], "send": fewer}, *steps[number + 1 :]]
            if still_differs(candidate):
                steps = candidate
    return steps


def kind_of(verdict: Verdict) -> tuple[str, ...]:
    """Return what makes two faults the same fault; () for no fault."""
    if verdict.told is None or not verdict.faults:
        return ()
    path = (_run.sub("", part) for part in verdict.faults[0].path if isinstance(part, str))
    errors = (
        _run.sub("", str(reply.get("error") or ""))[:ERROR_CHARS]
        for reply in (verdict.told.theirs, verdict.told.ours)
        if isinstance(reply, dict)
    )
    return (str(verdict.told.request["cmd"]), *path, *errors)


def text_of(steps: Sequence[Step], verdict: Verdict) -> str:
    """Return a sequence up to its difference, and the difference, to be read."""
    last = verdict.told.step if verdict.told else len(steps)
    lines = [f"  {number:3} {json.dumps(step)}" for number, step in enumerate(steps[: last + 1])]
    return "\n".join([*lines, told(verdict)])


def told(verdict: Verdict) -> str:
    """Return the differences of a verdict, to be read."""
    if verdict.told is None:
        return "  no difference"
    where = "asked" if verdict.told.is_asked else "read"
    lines = [f"  {where} {json.dumps(verdict.told.request)[:TEXT_CHARS_MAX]}"]
    return "\n".join(lines + [f"    {str(each)[:TEXT_CHARS_MAX]}" for each in verdict.faults])


def report(tally: Tally) -> str:
    """Return the table of rules and the figures of a run, to be read."""
    lines = ["used  ended  rule"]
    for rule in RULES:
        used, parted = tally.used[rule], tally.parted[rule]
        note = "" if used else "   (never used)"
        lines.append(f"{used:5} {parted:6}  {rule.number}: {rule.says}{note}")
    lines.append(
        f"{tally.sequences} sequences, {tally.asked} commands, {tally.compared} replies compared; "
        f"{sum(tally.parted.values())} ended early by a rule; "
        f"{len(tally.faulty)} with a difference {tally.faulty}, "
        f"{len(tally.fleeting)} whose difference did not come back {tally.fleeting}"
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = docopt(__doc__ or "", argv)
    stop_servers_on_sigterm()
    directory = arguments["--reference"] or os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        print(f"Give --reference or set {DIRECTORY_VARIABLE}.", file=sys.stderr)
        return 2
    only = arguments["--only"]
    numbers = [int(only)] if only else range(int(arguments["--sequences"]))

    def progress(text: str) -> None:
        if not arguments["--quiet"]:
            print(text, file=sys.stderr)

    with both_servers(Path(directory).resolve(), memory=arguments["--memory"]) as ports:
        tally = run(
            arguments["--seed"], numbers, ports, shrink=arguments["--shrink"], progress=progress
        )
    print(report(tally))
    return 1 if tally.faulty else 0


if __name__ == "__main__":
    sys.exit(main())
