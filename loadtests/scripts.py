"""What connections do in workloads: requests over and over, and the chains of consumers.

Answers are not decoded. The first job of a run is decoded with msgpack to learn how long ids and
tokens are; from then on they are found by their keys, wherever the server puts them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice

import msgpack

from loadtests.driver import LENGTH, RunFailed, body_frame, frame, run

ID_KEY = b"\xa2id"
TOKEN_KEY = b"\xa5token"
TOKENS_KEY = b"\xa6tokens"
JOB_KEY = b"\xa3job"
JOBS_KEY = b"\xa4jobs"


def call(host: str, port: int, request: dict[str, object]) -> None:
    """Send one request and wait for its answer."""
    run(host, port, [Repeat([frame({**request, "reqId": "00000000"})], total=1, window=1)])


class Repeat:
    """Send prepared frames, over and over, ``window`` of them in flight on each connection."""

    def __init__(self, frames: Sequence[bytes], total: int, window: int) -> None:
        """Prepare.

        Args:
            frames: Requests of one answer each.
            total: How many to send in all, over all connections.
            window: How many may be unanswered on one connection.
        """
        self.blob = memoryview(b"".join(frames))
        self.offsets = [0]
        for one in frames:
            self.offsets.append(self.offsets[-1] + len(one))
        self.unsent = self.unanswered = total
        self.window = window
        self.next = 0
        self.round_trips_ns: list[int] = []
        self._sent_at: dict[int, int] = {}

    def begin(self, send: Callable[[bytes | memoryview], None]) -> None:
        """Fill the window of a connection."""
        self._sent_at[id(send)] = time.perf_counter_ns()
        self._send(send, self.window)

    def answered(
        self, send: Callable[[bytes | memoryview], None], _data: bytes, ends: list[int]
    ) -> None:
        """Replace what was answered."""
        if self.window == 1:
            now = time.perf_counter_ns()
            self.round_trips_ns.append(now - self._sent_at[id(send)])
            self._sent_at[id(send)] = now
        self.unanswered -= len(ends)
        self._send(send, len(ends))

    def is_done(self) -> bool:
        """Tell whether everything was answered."""
        return self.unanswered <= 0

    def _send(self, send: Callable[[bytes | memoryview], None], count: int) -> None:
        count = min(count, self.unsent)
        self.unsent -= count
        frames = len(self.offsets) - 1
        while count > 0:
            step = min(count, frames - self.next)
            send(self.blob[self.offsets[self.next] : self.offsets[self.next + step]])
            self.next = (self.next + step) % frames
            count -= step


class _Finder:
    """Cuts ids and tokens, still encoded, out of answers that were never decoded."""

    def __init__(self) -> None:
        self.id_size = 0
        self.token_size = 0
        self.ids: re.Pattern[bytes] = re.compile(b"")

    def learn(self, body: bytes) -> None:
        """Take the lengths of ids and tokens from one decoded answer to PULL or PULLB."""
        answer = msgpack.unpackb(body)
        job, token = answer.get("job"), answer.get("token")
        if job is None:
            job, token = answer["jobs"][0], answer["tokens"][0]
        packed_id: bytes = msgpack.packb(job["id"])
        self.id_size = len(packed_id)
        self.token_size = len(msgpack.packb(token))
        head = packed_id[:2] if packed_id[0] == 0xD9 else packed_id[:1]
        body_size = len(packed_id) - len(head)
        self.ids = re.compile(
            re.escape(ID_KEY) + b"(" + re.escape(head) + b"(?s:.{%d}))" % body_size
        )


class WorkOne:
    """PULL one job, ACK it, PULL the next; ``window`` of these chains on each connection."""

    def __init__(self, queues: Sequence[str], total: int, window: int, poll_ms: int = 0) -> None:
        """Prepare.

        Args:
            queues: Where to pull from, in turn; all jobs must be there if they are several.
            total: How many jobs to finish in all, over all connections.
            window: How many chains on one connection.
            poll_ms: How long a PULL waits for a job; 0 asks again at once.
        """
        request: dict[str, object] = {"cmd": "PULL", "reqId": "00000001", "owner": "load"}
        request |= {"timeout": poll_ms} if poll_ms else {}
        self.pulls = cycle([frame({**request, "queue": queue}) for queue in queues])
        self.window = window
        self.unpulled = self.unacknowledged = total
        self.find = _Finder()
        self.ack_head = b""

    def begin(self, send: Callable[[bytes | memoryview], None]) -> None:
        """Start the chains of a connection."""
        count = min(self.window, self.unpulled)
        self.unpulled -= count
        if count:
            send(b"".join(islice(self.pulls, count)))

    def answered(
        self, send: Callable[[bytes | memoryview], None], data: bytes, ends: list[int]
    ) -> None:
        """Acknowledge what came, and pull again for what was acknowledged."""
        out: list[bytes] = []
        begin = 4
        for end in ends:
            token = data.find(TOKEN_KEY, begin, end)
            if token >= 0 and end - begin > 100:  # a job
                out += self._ack(data, begin, end, token)
            elif data.find(JOB_KEY, begin, end) >= 0:  # no job
                out.append(next(self.pulls))
            else:  # the answer to an ACK
                self.unacknowledged -= 1
                if self.unpulled > 0:
                    self.unpulled -= 1
                    out.append(next(self.pulls))
            begin = end + 4
        if out:
            send(b"".join(out))

    def is_done(self) -> bool:
        """Tell whether all jobs are acknowledged."""
        return self.unacknowledged <= 0

    def _ack(self, data: bytes, begin: int, end: int, token: int) -> tuple[bytes, ...]:
        find = self.find
        if not find.id_size:
            find.learn(data[begin:end])
            head = b"\x84\xa3cmd\xa3ACK\xa5reqId\xa800000002" + ID_KEY
            size = len(head) + find.id_size + len(TOKEN_KEY) + find.token_size
            self.ack_head = LENGTH.pack(size) + head
        found = find.ids.search(data, begin, end)
        if found is None:
            raise RunFailed(f"no id in {data[begin:end]!r}")
        token_end = token + len(TOKEN_KEY) + find.token_size
        return self.ack_head, found[1], data[token:token_end]


class WorkMany:
    """PULLB ``batch`` jobs, ACKB what came, then the next PULLB; one chain on each connection."""

    def __init__(self, queue: str, total: int, batch: int, poll_ms: int = 0) -> None:
        """Prepare.

        Args:
            queue: Where to pull from.
            total: How many jobs to finish in all, over all connections.
            batch: Most jobs of one PULLB.
            poll_ms: How long a PULLB waits for a job; 0 asks again at once.
        """
        request: dict[str, object] = {"cmd": "PULLB", "reqId": "00000001", "queue": queue}
        request |= {"owner": "load", "count": batch, **({"timeout": poll_ms} if poll_ms else {})}
        self.pull = frame(request)
        self.unpulled = self.unacknowledged = total
        self.find = _Finder()
        self._acknowledging: dict[int, list[int]] = {}

    def begin(self, send: Callable[[bytes | memoryview], None]) -> None:
        """Start the chain of a connection."""
        self._acknowledging[id(send)] = []
        send(self.pull)

    def answered(
        self, send: Callable[[bytes | memoryview], None], data: bytes, ends: list[int]
    ) -> None:
        """Acknowledge what came, and pull again for what was acknowledged."""
        begin = 4
        for end in ends:
            body = data[begin:end]
            begin = end + 4
            if JOBS_KEY not in body:  # the answer to an ACKB
                self.unacknowledged -= self._acknowledging[id(send)].pop(0)
                count = 0
            else:
                count = self._acknowledge(send, body)
            if not count and self.unpulled > 0:
                send(self.pull)

    def is_done(self) -> bool:
        """Tell whether all jobs are acknowledged."""
        return self.unacknowledged <= 0

    def _acknowledge(self, send: Callable[[bytes | memoryview], None], body: bytes) -> int:
        """Send the ACKB for one answer to PULLB; return how many jobs it brought."""
        find = self.find
        at = body.rindex(TOKENS_KEY) + len(TOKENS_KEY)
        if body[at] == 0x90:
            return 0
        if not find.id_size:
            find.learn(body)
        ids = find.ids.findall(body)
        count = len(ids)
        at += 1 if body[at] >> 4 == 9 else 3
        tokens = body[at : at + count * find.token_size]
        array = bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
        head = b"\x84\xa3cmd\xa4ACKB\xa5reqId\xa800000002\xa3ids"
        self.unpulled -= count
        self._acknowledging[id(send)].append(count)
        send(body_frame(head, array, *ids, TOKENS_KEY, array, tokens))
        return count
