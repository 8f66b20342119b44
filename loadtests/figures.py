"""What a run cost, and many runs laid out as Markdown tables and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from loadtests.targets import COMPILED, ENGINES, FILE, MEMORY, PLACES, PURE, REFERENCE, Target

OURS = (COMPILED, PURE)
ABSENT = "absent"
DELIVER = "deliver-"  # begins the names of workloads that measure deliveries


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run cost.

    Attributes:
        workload: Name of its row.
        jobs: How many it measured, or how many times it asked.
        jobs_per_s: Of wall time; with a fast server the driver is the limit. Of deliveries: what
            others had the server do meanwhile.
        server_us: CPU time of all processes and threads of the server, per job.
        driver_us: CPU time of the driver, per job.
        p50_us: Of the time from a request to its answer, where one is in flight on a connection,
            or from a push to its delivery.
        memory_bytes: Resident memory per queued job.
        file_bytes: Size of the file per queued job.
        stall_ms: Longest step of the hub, in CPU time.
    """

    workload: str
    jobs: int
    jobs_per_s: float | None = None
    server_us: float | None = None
    driver_us: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    memory_bytes: float | None = None
    file_bytes: float | None = None
    stall_ms: float | None = None


Repeats = dict[str, list[Figures]]
"""Name of a target -> one entry per repeat, in step with the other targets."""

Results = dict[str, Repeats]
"""Name of a workload -> its repeats."""


def percentiles_us(nanoseconds: Sequence[int]) -> dict[str, float]:
    """Return the percentiles of measured times, as fields of `Figures`."""
    if not nanoseconds:
        return {}
    rising = sorted(nanoseconds)
    return {
        name: round(rising[min(len(rising) - 1, int(len(rising) * share))] / 1_000, 1)
        for name, share in (("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999))
    }


def values(repeats: Repeats, target: str, field: str) -> list[float]:
    """Return one figure of all repeats; empty where there is none."""
    found = [getattr(figures, field) for figures in repeats.get(target, ())]
    return [value for value in found if value is not None]


def ratios(repeats: Repeats, ours: str, theirs: str, field: str) -> list[float]:
    """Return per repeat how often our figure goes into the other's."""
    pairs = zip(repeats.get(ours, ()), repeats.get(theirs, ()), strict=False)
    both = [(getattr(own, field), getattr(other, field)) for own, other in pairs]
    return [other / own for own, other in both if own and other]


def spread(found: Sequence[float], digits: int | None = None) -> str:
    """Write a median with its range."""
    if not found:
        return "-"
    middle = median(found)
    if digits is None:
        digits = 2 if middle < 10 else 1 if middle < 1_000 else 0
    low, mid, high = (f"{value:,.{digits}f}" for value in (min(found), middle, max(found)))
    return mid if len(found) == 1 else f"{mid} ({low}-{high})"


def times(found: Sequence[float]) -> str:
    """Write a ratio with its range."""
    return f"**x{median(found):.1f}** ({min(found):.1f}-{max(found):.1f})" if found else "-"


def tables(results: Results, docs: dict[str, str]) -> str:
    """Lay all results out as Markdown, a table for each kind of figure."""
    parts = []
    for place, title in ((FILE, "on a SQLite file"), (MEMORY, "in memory")):
        rows = {name: row for name, row in results.items() if _has(row, place, "server_us")}
        if rows:
            parts += [f"### Server CPU per job, {title}, in microseconds", "", _costs(rows, place)]
            parts += ["", f"### Throughput, {title}, in jobs per second", "", _speeds(rows, place)]
            parts.append("")
    for field, title in (
        ("p99_us", "Latency, in microseconds"),
        ("memory_bytes", "Resident memory per queued job, in bytes"),
        ("file_bytes", "Size of the file per queued job, in bytes"),
        ("stall_ms", "Longest step of the hub, in CPU milliseconds"),
    ):
        table = _latencies(results) if field == "p99_us" else _plain(results, field)
        if table:
            parts += [f"### {title}", "", table, ""]
    parts += [f"- `{name}`: {docs[name]}" for name in results if name in docs]
    return "\n".join(parts)


def as_json(results: Results) -> dict[str, object]:
    """Shape the results for a file."""
    return {
        workload: {
            target: [
                {name: value for name, value in asdict(one).items() if value is not None}
                for one in repeats
            ]
            for target, repeats in row.items()
        }
        for workload, row in results.items()
    }


def from_json(told: dict[str, dict[str, list[dict[str, object]]]]) -> Results:
    """Read what `as_json` wrote."""
    return {
        workload: {
            target: [Figures(**one) for one in repeats]  # type: ignore[arg-type]
            for target, repeats in row.items()
        }
        for workload, row in told.items()
    }


def _has(repeats: Repeats, place: str, field: str) -> bool:
    return any(values(repeats, Target(engine, place).name, field) for engine in ENGINES)


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    ruler = "| --- |" + " --: |" * (len(heads) - 1)
    return "\n".join([f"| {' | '.join(heads)} |", ruler, *(f"| {' | '.join(x)} |" for x in lines)])


def _costs(rows: Results, place: str) -> str:
    """Each engine's CPU time, and how often ours goes into the reference's."""
    heads, lines = ["workload", *ENGINES], []
    heads += [f"reference / {engine}" for engine in OURS]
    theirs = Target(REFERENCE, place).name
    for workload, row in rows.items():
        names = [Target(engine, place).name for engine in ENGINES]
        cells = [
            spread(values(row, name, "server_us")) if name in row else ABSENT for name in names
        ]
        cells += [times(ratios(row, Target(e, place).name, theirs, "server_us")) for e in OURS]
        lines.append([workload, *cells])
    return _table(heads, lines)


def _speeds(rows: Results, place: str) -> str:
    names = [Target(engine, place).name for engine in ENGINES]
    lines = [
        [
            workload,
            *(spread(values(row, n, "jobs_per_s"), 0) if n in row else ABSENT for n in names),
        ]
        for workload, row in rows.items()
    ]
    return _table(["workload", *ENGINES], lines)


def _latencies(results: Results) -> str:
    lines = []
    for workload, row in results.items():
        is_beside = workload.startswith(DELIVER)
        for place in PLACES:
            for engine in ENGINES:
                name = Target(engine, place).name
                if values(row, name, "p50_us"):
                    cells = [spread(values(row, name, f"{p}_us")) for p in ("p50", "p99", "p999")]
                    beside = spread(values(row, name, "jobs_per_s"), 0) if is_beside else "-"
                    lines.append([workload, name, *cells, beside])
    heads = ["workload", "server", "p50", "p99", "p99.9", "jobs/s beside"]
    return _table(heads, lines) if lines else ""


def _plain(results: Results, field: str) -> str:
    """One figure per target and workload, where there is any."""
    lines = []
    for workload, row in results.items():
        for place in PLACES:
            if not _has(row, place, field):
                continue
            names = [Target(engine, place).name for engine in ENGINES]
            cells = [spread(values(row, name, field)) for name in names]
            theirs = names[-1]
            cells += [times(ratios(row, name, theirs, field)) for name in names[:-1]]
            lines.append([f"{workload}, {place}", *cells])
    heads = ["what", *ENGINES, *(f"reference / {engine}" for engine in OURS)]
    return _table(heads, lines) if lines else ""
