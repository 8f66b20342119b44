"""What large frames took goes back to the system, round after round."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from loadtests.abuse import resident_mb, tcp, until
from tests.support.broker_process import BrokerProcess
from tests.support.wire import Reader, frame_of

pytestmark = pytest.mark.slow

SIZE = 33_554_432
LISTS = 1_000_000
ROUNDS = 3
KEPT_MB_MAX = 40
PING = b"\x82\xa3cmd\xa4Ping\xa1x"
JOB = b"\x81\xa4data\xc5\xff\x00" + bytes(0xFF00)
PUSHB = b"\x83\xa3cmd\xa5PUSHB\xa5queue\xa1q\xa4jobs\xdc"
JOBS = SIZE // len(JOB)
BODIES = {
    "one long value": PING + b"\xc6" + struct.pack(">I", SIZE) + bytes(SIZE),
    "many lists": PING + b"\x81\xa1y\xdd" + struct.pack(">I", LISTS) + b"\x90" * LISTS,
    "no message": b"\xc1" * SIZE,
    "a batch": PUSHB + struct.pack(">H", JOBS) + JOB * JOBS,
}  # fmt: skip


def test_rounds_of_large_frames_leave_memory_level(tmp_path: Path) -> None:
    """Each round left its frames in cycles, and what was free stayed with the C library."""
    with BrokerProcess(tmp_path) as broker:
        before_mb = resident_mb(broker)
        for _ in range(ROUNDS):
            with tcp(broker) as sock:
                sock.settimeout(60)
                peer = Reader(sock)
                for what, body in BODIES.items():
                    sock.sendall(frame_of(body))
                    assert (what != "no message") == peer.value()["ok"], what
                peer.call({"cmd": "Obliterate", "queue": "q"})
            until(
                lambda: resident_mb(broker) < before_mb + KEPT_MB_MAX,
                "memory of large frames is kept",
                seconds=40,
            )
