"""The reference server as a broker process, where one is at hand.

``BUNQUEUE_TEST_REFERENCE`` names a directory in which ``npm install bun bunqueue@2.9.5`` was
run. Suites that can tell right from wrong on any server then drive the reference instead of
ours, which shows whether a test asks what clients really get.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from loadtests.servers import reference_command
from tests.support.broker_process import BrokerProcess

DIRECTORY_VARIABLE = "BUNQUEUE_TEST_REFERENCE"


class ReferenceProcess(BrokerProcess):
    """Runs the reference server; takes settings as environment only."""

    def __init__(
        self,
        directory: Path,
        *,
        data_path: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, data_path=data_path)
        install = Path(os.environ[DIRECTORY_VARIABLE])
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
