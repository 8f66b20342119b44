"""The pages of the guide, and running one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.broker_process import BrokerProcess, clean_environment, free_port
from tests.support.markdown import ROOT, Block, blocks_of

GUIDE = ROOT / "docs/guide"
PAGES = sorted(GUIDE.glob("*.md"))
RUN_S_MAX = 120
PORTS_SHOWN = ("7789", "7790", "8000")  # of servers that the pages start themselves
RUNNER = Path(__file__).parent / "run_page.py"


def run_page(page: Path, broker: BrokerProcess, directory: Path) -> list[tuple[Block, str]]:
    """Run a page's blocks in one fresh interpreter; return them with what they printed."""
    blocks = blocks_of(_at(page.read_text("utf-8"), broker))
    rows = [(block.language, block.text, block.line, block.file) for block in blocks]
    given = directory / "blocks.json"
    given.write_text(json.dumps(rows), "utf-8")
    work = directory / "work"
    work.mkdir()
    told, errors = directory / "told", directory / "errors"
    with told.open("w") as stdout, errors.open("w") as stderr:
        program = subprocess.Popen(
            [sys.executable, "-W", "error", str(RUNNER), str(page), str(given)],
            cwd=work,
            env=environment(broker) | {"HOME": str(work)},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            status = program.wait(RUN_S_MAX)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # servers that the page has left running
            program.wait()
    assert 0 == status, errors.read_text()
    return list(zip(blocks, json.loads(told.read_text().splitlines()[-1]), strict=True))


def _at(text: str, broker: BrokerProcess) -> str:
    """Return a page's text with ports that are free here, and this broker for the usual one."""
    for port in PORTS_SHOWN:
        if port in text:
            text = text.replace(port, str(free_port()))
    return text.replace("localhost:6789", f"{broker.host}:{broker.port}")


def environment(broker: BrokerProcess) -> dict[str, str]:
    """Return one whose ``bunqueue`` and ``python`` run the tests, and find this broker."""
    programs = Path(sys.executable).parent
    return clean_environment() | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "BUNQUEUE_TCP_PORT": str(broker.port),
        "BUNQUEUE_HTTP_PORT": str(broker.http_port),
        "BUNQUEUE_HOST": broker.host,
    }
