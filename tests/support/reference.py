"""The reference server and its JavaScript client: where they are, and how to run the server.

``BUNQUEUE_TEST_REFERENCE`` names a directory in which ``npm install --ignore-scripts`` put
``PACKAGES``. Suites that can tell right from wrong on any server then drive the reference instead
of ours, which shows whether a test asks what clients really get. Without it, what needs the client
has npm install both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from loadtests.servers import bun_of, reference_command
from tests.support.broker_process import BrokerProcess

DIRECTORY_VARIABLE = "BUNQUEUE_TEST_REFERENCE"

PACKAGES = ("bun@1.4.5", "bunqueue@2.9.5")
INSTALL_S_MAX = 120

# What npm calls it when it could not talk to an index, in contrast to not finding something there.
UNREACHABLE = (
    "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH",
    "EHOSTUNREACH", "ERR_SOCKET_TIMEOUT", "FETCH_ERROR",
)  # fmt: skip


class Unavailable(RuntimeError):
    """The reference cannot be had here: no npm, no way to the package index."""


class ReferenceProcess(BrokerProcess):
    """Runs the reference server; takes settings as environment only."""

    def __init__(
        self,
        directory: Path,
        *,
        data_path: Path | None = None,
        env: Mapping[str, str] | None = None,
        home: Path | None = None,
    ) -> None:
        super().__init__(directory, data_path=data_path)
        install = home or Path(os.environ[DIRECTORY_VARIABLE])
        arguments, settings = reference_command(install, self.port, self.http_port, data_path, env)
        self._arguments = arguments
        self._env |= settings

    def command(self) -> list[str]:
        return self._arguments


def broker_under_test(
    directory: Path, *, data_path: Path | None = None, env: Mapping[str, str] | None = None
) -> BrokerProcess:
    """Make the process that a suite is to drive: ours, or the reference if one is named."""
    if os.environ.get(DIRECTORY_VARIABLE):
        return ReferenceProcess(directory, data_path=data_path, env=env)
    return BrokerProcess(directory, data_path=data_path, env=env)


def reference_install(cache: Path) -> Path:
    """Return the directory that holds the packages, installing them if need be.

    They are installed under another name and then moved, so that two runs at once, or one that was
    interrupted, never leave half an installation behind.

    Args:
        cache: Directory to keep them in.

    Raises:
        Unavailable: There are none yet, and npm is missing or finds no way to the package index.
    """
    if named := os.environ.get(DIRECTORY_VARIABLE):
        return Path(named)
    home = cache / "-".join(PACKAGES).replace("@", "-")
    if not home.exists():
        cache.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=cache, prefix="building-"))
        try:
            _install(building / "install")
            os.replace(building / "install", home)
        except OSError:
            if not home.exists():  # otherwise another run was faster
                raise
        finally:
            shutil.rmtree(building)
    return home


def _install(home: Path) -> None:
    npm = shutil.which("npm")
    wanted = " and ".join(PACKAGES)
    if npm is None:
        raise Unavailable(f"{wanted} need npm, which is not installed")
    home.mkdir()
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries", "1"]
    try:
        done = subprocess.run(
            [npm, "install", *quiet, "--prefix", str(home), *PACKAGES],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=home,
            text=True,
            timeout=INSTALL_S_MAX,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm did not install {wanted} in {INSTALL_S_MAX} s") from None
    if done.returncode and any(sign in done.stdout for sign in UNREACHABLE):
        raise Unavailable(f"the package index cannot be reached for {wanted}")
    if done.returncode:
        raise RuntimeError(f"could not install {wanted}:\n{done.stdout}")
    bun_of(home)
