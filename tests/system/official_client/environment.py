"""Set up an environment of the official Python client, apart from ours.

Its distribution installs a package named ``bunqueue`` too, so it can never share ours. The
environment is made once and kept in the test runner's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REQUIREMENT = "bunqueue-client==0.1.5"
SETUP_S_MAX = 150

# What pip prints when it could not talk to an index, in contrast to not finding something there.
UNREACHABLE = "after connection broken by"
RETRIES = "2"  # with none, pip does not print it


class IndexUnreachable(RuntimeError):
    """The package index cannot be reached, so the client cannot be had."""


def official_python(cache: Path) -> Path:
    """Return the interpreter of the client's environment, making it if need be.

    It is built under another name and then moved, so that two runs at once, or one that was
    interrupted, never leave half an environment behind.

    Raises:
        IndexUnreachable: There is no environment yet, and no way to the package index.
    """
    home = cache / REQUIREMENT.replace("==", "-")
    python = home / "bin" / "python"
    if not python.exists():
        cache.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=cache, prefix="building-"))
        try:
            _build(building / "venv")
            os.replace(building / "venv", home)
        except OSError:
            if not python.exists():  # otherwise another run was faster
                raise
        finally:
            shutil.rmtree(building)
    return python


def _build(home: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=SETUP_S_MAX)
    python = str(home / "bin" / "python")
    install = [python, "-m", "pip", "install", "--retries", RETRIES, REQUIREMENT]
    try:
        done = subprocess.run(install, capture_output=True, text=True, timeout=SETUP_S_MAX)
    except subprocess.TimeoutExpired:
        raise IndexUnreachable(
            f"the package index did not deliver {REQUIREMENT} in {SETUP_S_MAX} s"
        ) from None
    output = done.stdout + done.stderr
    if done.returncode and UNREACHABLE in output:
        raise IndexUnreachable(f"the package index cannot be reached for {REQUIREMENT}")
    if done.returncode:
        raise RuntimeError(f"could not install {REQUIREMENT}:\n{output}")
