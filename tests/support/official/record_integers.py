"""Record how the official client puts integers on the wire: run it in that client's environment.

``python record_integers.py > integers.json`` writes ``[digits, frame]`` pairs, the frame in hex.
"""

from __future__ import annotations

import json
import sys

from bunqueue.transport import encode_command

NUMBERS = sorted(
    {sign * (2**power + offset) for power in (0, 7, 8, 15, 16, 31, 32, 40, 53, 62, 63, 64, 70)
     for offset in (-1, 0, 1) for sign in (1, -1)}
)  # fmt: skip


def main() -> None:
    """Write the frames."""
    pairs = []
    for number in NUMBERS:
        command = {"cmd": "PUSH", "queue": "q", "data": {"n": number, "list": [number, True]}}
        pairs.append([str(number), encode_command(command, "7").hex()])
    json.dump(pairs, sys.stdout, indent=0)
    print()


main()
