"""Exact integers between Python peers, which the original's JavaScript client never sees."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bunqueue import Queue, Worker
from loadtests.servers import bun_of
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.slow

READER = Path(__file__).parent / "integers" / "read.js"
WIDE = [2**53 + 1, 2**63 - 1, -(2**63)]
READ_S_MAX = 60


def test_the_javascript_client_reads_wide_integers_as_numbers(
    reference_home: Path, tmp_path: Path, memory_broker: BrokerProcess
) -> None:
    (tmp_path / "node_modules").symlink_to(reference_home / "node_modules")
    script = tmp_path / READER.name
    script.write_bytes(READER.read_bytes())
    with Queue("wide", port=memory_broker.port) as queue:
        done, waiting = queue.add("done", WIDE), queue.add("waiting", {"deep": {"list": WIDE}})
        worker = Worker(
            queue.name, print, connection=queue.connection, autorun=False, poll_timeout_ms=0
        )
        job = worker.get_next_job()
        assert job is not None
        job.move_to_completed({"result": WIDE})
        worker.close()

        told = subprocess.run(
            [str(bun_of(reference_home)), "--no-install", str(script)]
            + [str(memory_broker.port), "wide", done.id, waiting.id],
            capture_output=True,
            text=True,
            timeout=READ_S_MAX,
            cwd=tmp_path,
        )
        assert 0 == told.returncode, told.stderr
        seen = json.loads(told.stdout)

        assert {"number"} == set(seen["kinds"]) - {"object", "undefined"}
        assert list(map(float, WIDE)) == list(map(float, seen["pulled"]["deep"]["list"]))
        # And what it did not touch is as exact as before, for who can take it.
        assert {"result": WIDE} == queue.get_result(done.id)
        assert {"deep": {"list": WIDE}} == queue.get_job(waiting.id).data
