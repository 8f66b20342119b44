"""Store and forward over TLS, while both ends are killed: nothing is lost and nothing doubled."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
import trustme

from bunqueue import Queue
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.program import Program

EDGE = Path(__file__).parent / "forward" / "edge.py"
COUNT = 300
WAIT_S = 60.0

pytestmark = pytest.mark.slow


def test_forwarding_survives_the_death_of_both_ends(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca, home = tmp_path / "ca.pem", tmp_path / "central"
    authority.cert_pem.write_to_path(str(ca))
    certificate = authority.issue_cert(HOST)
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    (tmp_path / "cert.pem").write_bytes(
        b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    )
    home.mkdir()
    args = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    broker = BrokerProcess(home, data_path=home / "central.db", args=args)
    edge_args = (tmp_path / "edge.db", broker.port, ca, COUNT)

    # Given: jobs are taken while the broker has never been there
    with broker:
        broker.kill()
        with Program(EDGE, edge_args, directory=tmp_path) as edge:
            edge.wait_for("added")
            edge.wait_for("error")
            # When: the broker comes, dies in the middle, and so does the edge
            broker.start()
            edge.wait_for("forwarded", count=20)
            broker.kill()
            edge.wait_for("error", count=len(edge.starting_with("error")) + 1)
            broker.start()
            edge.wait_for("forwarded", count=60)
            edge.process.kill()
            edge.process.wait()
        with Program(EDGE, edge_args, directory=tmp_path) as edge:
            assert "added 0" == edge.wait_for("added")
            edge.wait_for("forwarded", count=20)
            edge.process.kill()
            edge.process.wait()
        # Then: each job is there once, as nobody there has worked on any
        with (
            Program(EDGE, edge_args, directory=tmp_path),
            Queue("readings", host=HOST, port=broker.port, tls={"ca_file": str(ca)}) as central,
        ):
            deadline = time.monotonic() + WAIT_S
            while central.count() < COUNT and time.monotonic() < deadline:
                time.sleep(0.05)
            numbers = Counter(job.data["n"] for job in central.iter_jobs())

    assert set(range(COUNT)) == set(numbers)
    assert COUNT == numbers.total()
