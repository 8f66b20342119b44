"""Where the compiled parts cannot be built, one line says so, and pure Python is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE = "bunqueue: the compiled core was not built, pure Python will run: "
BUILD_S_MAX = 300

pytest.importorskip("setuptools")
pytest.importorskip("Cython")


@pytest.mark.parametrize("missing", ["compiler", "Cython"])
def test_an_installation_without(missing: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "bunqueue", source / "bunqueue", ignore=_what_is_built)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "hidden")}
    if missing == "compiler":
        env["CC"] = "/bin/false"
    else:
        hidden = tmp_path / "hidden/Cython/__init__.py"
        hidden.parent.mkdir(parents=True)
        hidden.write_text('raise ImportError("hidden")\n', "utf-8")

    installed = tmp_path / "installed"
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build", "--build-lib", str(installed)],
        env=env,
        cwd=source,
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
    )
    assert 0 == done.returncode, done.stderr
    assert 1 == sum(line.startswith(LINE) for line in done.stdout.splitlines()), done.stdout
    assert [] == list(installed.rglob("*.so"))

    told = subprocess.run(
        [sys.executable, "-c", "from bunqueue import compiled; print(compiled.CORE)"],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "pure Python\n" == told.stdout, told.stderr


def _what_is_built(_folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name.endswith((".so", ".c", ".pyc")) or name == "__pycache__"}
