"""Use the client for a long time in every unfriendly way, and look whether anything grows.

Usage:
  soak_client [options]

Called as python -m loadtests.soak_client; with python -m gevent.monkey --module in front of the
module's name everything runs on greenlets. Starts a broker of its own and goes round after round:
adds from short-lived threads and from native ones, deadlines that pass, callers that are
interrupted, jobs that are cancelled or outlive their time, workers closed by force, listeners,
flows, forwarders, child processes and Simple Mode apps opened and closed, links cut, and the broker
killed and started again. Between rounds, when nothing is under way, it counts what the process
holds.

Prints a table over time and a verdict; the exit status is 1 if anything has grown.

Options:
  --minutes=M        How long. [default: 30]
  --restart-s=S      Kill and restart the broker so often. [default: 30]
  --lines=N          About so many lines of the table. [default: 20]
"""

from __future__ import annotations

import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from docopt import docopt

from loadtests.servers import HOST, Server, free_port, our_command, stop_servers_on_sigterm
from loadtests.soak_gauges import GAUGES, growth, read
from loadtests.soak_load import Load

WARM_UP_SHARE = 0.2  # as growth() leaves out
CLASSES_SHOWN = 8


class Watch:
    """What was read between the rounds.

    Attributes:
        series: For each gauge, what was read. Arrays, of which there are never more: nothing that
            grows by itself.
        warm, last: Objects by class after the warm-up and in the end.
    """

    def __init__(self, for_s: float, line_s: float) -> None:
        self.begin = time.monotonic()
        self.series = [array("d") for _ in GAUGES]
        self.warm: Counter[str] = Counter()
        self.last: Counter[str] = Counter()
        self._warm_at_s = for_s * WARM_UP_SHARE
        self._line_s = line_s
        self._next_line_s = 0.0

    def note(self, counts: Counter[str]) -> None:
        """Read the gauges, and print a line when it is time for one."""
        figures, self.last = read()
        for one, figure in zip(self.series, figures, strict=True):
            one.append(figure)
        now_s = time.monotonic() - self.begin
        if not self.warm and now_s >= self._warm_at_s:
            self.warm = self.last
        if now_s >= self._next_line_s:
            self._next_line_s += self._line_s
            print(line(now_s, figures, counts), flush=True)

    def grown_classes(self) -> list[tuple[str, int]]:
        """Return the classes of which there are most more in the end than after the warm-up."""
        more = self.last.copy()
        more.subtract(self.warm)
        return [(name, extra) for name, extra in more.most_common(CLASSES_SHOWN) if extra > 0]


def soak(load: Load, server: Server, watch: Watch, for_s: float, restart_s: float) -> None:
    """Go round until the time is over."""
    next_restart = watch.begin + restart_s
    while (now := time.monotonic()) < watch.begin + for_s:
        if now >= next_restart:
            load.outage(server)
            next_restart = now + restart_s
        load.round()
        load.rest()
        watch.note(load.counts)


def header() -> str:
    names = [f"{gauge.name:>10}" for gauge in GAUGES]
    return "".join([f"{'s':>6}", *names, f"{'rounds':>8}", f"{'added':>9}", f"{'errors':>8}"])


def line(at_s: float, figures: Sequence[float], counts: Counter[str]) -> str:
    shown = [
        f"{figure:>10,.{1 if gauge.unit else 0}f}"
        for gauge, figure in zip(GAUGES, figures, strict=True)
    ]
    said = [f"{counts['rounds']:>8}", f"{counts['added']:>9,}", f"{counts['errors']:>8,}"]
    return "".join([f"{at_s:>6.0f}", *shown, *said])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    given = docopt(__doc__ or "", argv=None if argv is None else list(argv))
    for_s = float(given["--minutes"]) * 60
    stop_servers_on_sigterm()
    port, http_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        command = our_command(port, http_port, None)
        with Server(command, port, Path(directory) / "server.log") as server:
            load, watch = Load(HOST, port), Watch(for_s, for_s / float(given["--lines"]))
            print(header(), flush=True)
            try:
                soak(load, server, watch, for_s, float(given["--restart-s"]))
            finally:
                load.close()
    print(line(for_s, [one[-1] for one in watch.series], load.counts))
    print("done:", ", ".join(f"{count:,} {what}" for what, count in sorted(load.counts.items())))
    grown = [*growth(watch.series), *load.missed()]
    for what in grown:
        print(what)
    if grown:
        for name, extra in watch.grown_classes():
            print(f"  {extra:+8,} {name}")
    print("verdict:", "it grows" if grown else "nothing grows")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
