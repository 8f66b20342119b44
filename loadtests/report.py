"""What figures belong to: machine, versions, date; and where they are written down."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from loadtests.servers import ROOT, bun_of

README = ROOT / "loadtests" / "README.md"
PICTURE = ROOT / "loadtests" / "bench.svg"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
PACKAGES = ("gevent", "msgpack", "apsw")
CPU_INFO = Path("/proc/cpuinfo")


def circumstances(repeats: int, reference: Path | None = None) -> dict[str, Any]:
    """Tell what figures taken now belong to."""
    told: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "repeats": repeats,
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "commit": _commit(),
        "versions": {name: _version(name) for name in PACKAGES},
    }
    if reference is not None:
        package = reference / "node_modules" / "bunqueue" / "package.json"
        told["versions"]["reference"] = json.loads(package.read_text())["version"]
        bun = subprocess.run([bun_of(reference), "--version"], capture_output=True, text=True)
        told["versions"]["bun"] = bun.stdout.strip()
    return told


def heading(told: dict[str, Any]) -> str:
    """Write it as a sentence."""
    versions = ", ".join(f"{name} {text}" for name, text in told["versions"].items())
    return (
        f"{told['date']}, commit {told['commit']}: {told['cores']} cores ({told['cpu']}), "
        f"{told['system']}, Python {told['python']}, {versions}; {told['repeats']} repeats, "
        f"medians (least-most); load average at the end {told['load']}."
    )


def update(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Write a text between two marks of a page.

    Raises:
        ValueError: The page lacks one of them.
    """
    before, found_begin, rest = page.read_text("utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{page.name} lacks {begin} or {end}")
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", "utf-8")


def _cpu() -> str:
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.strip() or "-"
