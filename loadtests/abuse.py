"""Attack a broker of ours over its two ports, and see what everyone else notices.

Usage:
  abuse [options] [SCENARIO ...]

Called as python -m loadtests.abuse. Without a SCENARIO all of them run, one after the other, on
one broker without a file (those about TLS and descriptors on one of their own). Beside each a
bystander in a process of its own pushes, pulls and acknowledges jobs, a round each 5 ms. Printed
are the bystander's times for a command, the broker's memory before and at the end, and what the
scenario counted. The exit status is 1 if a scenario found a fault.

Options:
  --scale=N     How much of everything; 1 takes seconds, 10 is the long form. [default: 10]
  --p99-ms=MS   The bystander's bound. [default: 50]
  --list        List the scenarios.
  --json        Print JSON lines.
"""

from __future__ import annotations

import json
import os
import random
import re
import selectors
import signal
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import trustme
from docopt import docopt

from tests.support.broker_process import BrokerProcess
from tests.support.wire import Reader, frame, frame_of, ping, push

ROUND_S = 0.005  # between two rounds of the bystander
ANSWER_S_MAX = 20.0
RELEASE_S_MAX = 1.0  # after descriptors are free again, until somebody is let in
FRAME_BYTES = 67_108_864
LARGE_FRAME_MB_MAX = 1_500  # what one may cost: the broker, the frame, and what is in it
DESCRIPTORS = 64  # of a broker that is to run out of them
Figures = dict[str, Any]


class Fault(AssertionError):
    """The broker did what it must not."""


def must(is_so: object, what: str) -> None:
    """Raise what is wrong unless it ``is_so``."""
    if not is_so:
        raise Fault(what)


def until(is_so: Callable[[], object], what: str, seconds: float = ANSWER_S_MAX) -> float:
    """Waits until something has become so; returns how long that took, in seconds."""
    began = time.monotonic()
    while not is_so():
        must(time.monotonic() - began < seconds, what)
        time.sleep(0.01)
    return time.monotonic() - began


# -- the bystander ---------------------------------------------------------------------------------


def stand_by(port: int) -> None:
    """Use the broker as a good client does until stdin ends; print the times of all commands."""
    peer = Reader(socket.create_connection(("127.0.0.1", port), ANSWER_S_MAX))
    spans_ms: list[float] = []

    def call(**request: Any) -> Any:
        began = time.perf_counter()
        reply = peer.call(request)
        spans_ms.append((time.perf_counter() - began) * 1000)
        assert reply["ok"], reply
        return reply

    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin, selectors.EVENT_READ)
    is_told = False
    while not spans_ms or not waiting.select(ROUND_S):
        pushed = call(cmd="PUSH", queue="bystander", name="n", data={"n": len(spans_ms)})
        pulled = call(cmd="PULL", queue="bystander", owner="bystander")
        assert pulled["job"]["id"] == pushed["id"], (pushed, pulled)
        call(cmd="ACK", id=pushed["id"], token=pulled["token"])
        if not is_told:
            is_told = True
            print(flush=True)
    spans_ms.sort()
    last = len(spans_ms) - 1
    figures = {
        "commands": len(spans_ms),
        "p50_ms": round(statistics.median(spans_ms), 2),
        "p99_ms": round(spans_ms[int(last * 0.99)], 2),
        "max_ms": round(spans_ms[last], 2),
    }
    print(json.dumps(figures))


@contextmanager
def bystander(broker: BrokerProcess) -> Iterator[Figures]:
    """Have one beside what is done inside; its figures are there afterwards."""
    code = f"from loadtests.abuse import stand_by; stand_by({broker.port})"
    figures: Figures = {}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield figures
        said, _ = process.communicate("", timeout=ANSWER_S_MAX)
        must(process.returncode == 0, "the bystander was refused or its connection ended")
        figures.update(json.loads(said))
    finally:
        process.kill()
        process.wait()


# -- looking at the broker -------------------------------------------------------------------------


def resident_mb(broker: BrokerProcess, field: str = "VmRSS") -> float:
    """Return the broker's resident memory; ``VmHWM`` is the most it ever was."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{broker.pid}/status").read_text())
    assert found is not None
    return round(int(found[1]) / 1024, 1)


def cpu_s(broker: BrokerProcess) -> float:
    """Return the CPU time that the broker has used."""
    words = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def sockets_in(broker: BrokerProcess, *states: str) -> int:
    """Count the TCP sockets of the broker's two ports in states of /proc/net/tcp."""
    ports = {f"{port:04X}" for port in (broker.port, broker.http_port)}
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        count += words[1].rpartition(":")[2] in ports and words[3] in states
    return count


CLOSE_WAIT, ESTABLISHED = "08", "01"


def descriptors(broker: BrokerProcess) -> int:
    """Count the descriptors that the broker has open."""
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def tcp(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection((broker.host, broker.port), ANSWER_S_MAX)


def http(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection((broker.host, broker.http_port), ANSWER_S_MAX)


def is_live(broker: BrokerProcess) -> bool:
    """Ask over HTTP. Waits."""
    with http(broker) as sock:
        sock.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return sock.recv(100).startswith(b"HTTP/1.1 200")


def is_serving(broker: BrokerProcess) -> bool:
    """Ask over TCP. Waits."""
    with tcp(broker) as sock:
        return bool(Reader(sock).call({"cmd": "Ping"})["ok"])


@contextmanager
def crowd(count: int, connect: Callable[[], socket.socket]) -> Iterator[list[socket.socket]]:
    """Open many connections; close them at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(connect()) for _ in range(count)]


# -- the scenarios ---------------------------------------------------------------------------------

Scenario = Callable[[BrokerProcess, int], Figures]
SCENARIOS: dict[str, Scenario] = {}
UNBOUND = {"garbage"}  # where the bystander's p99 is told but not judged


def scenario(run: Scenario) -> Scenario:
    """Declare a scenario: ``run(broker, scale)`` raises what is wrong and returns figures."""
    SCENARIOS[run.__name__] = run
    return run


@scenario
def idle(broker: BrokerProcess, scale: int) -> Figures:
    """Connections that say nothing: up to 10,000, held, then all gone."""
    count = 1_000 * scale
    before_mb, before = resident_mb(broker), descriptors(broker)
    with crowd(count, lambda: tcp(broker)) as socks:
        until(lambda: descriptors(broker) >= before + count, "not all were accepted")
        used_s = cpu_s(broker)
        time.sleep(1)
        used_s = cpu_s(broker) - used_s
        must(Reader(socks[-1]).call({"cmd": "Ping"})["ok"], "the last one is not served")
        held_mb = resident_mb(broker)
    until(lambda: descriptors(broker) <= before + 2, "descriptors of closed connections stay")
    must(sockets_in(broker, CLOSE_WAIT) == 0, "connections are left in CLOSE_WAIT")
    each_kb = round((held_mb - before_mb) * 1024 / count, 1)
    return {"held": count, "kb_each": each_kb, "cpu_s_while_idle": round(used_s, 2)}


@scenario
def slow_frames(broker: BrokerProcess, scale: int) -> Figures:
    """Frames that come a byte at a time, from many at once."""
    count, rounds = 100 * scale, 20
    sent = push("slow", data={"text": "x" * 1000})
    with crowd(count, lambda: tcp(broker)) as socks:
        for place in range(rounds):
            for sock in socks:
                sock.sendall(sent[place : place + 1])
            time.sleep(0.02)
        for sock in socks:
            sock.sendall(sent[rounds:])
        for sock in socks:
            must(Reader(sock).value()["ok"], "a slow frame was not answered")
        drained = Reader(socks[0]).call({"cmd": "Drain", "queue": "slow"})["count"]
    must(drained == count, f"{drained} of {count} jobs came in")
    return {"slow": count}


@scenario
def slow_requests(broker: BrokerProcess, scale: int) -> Figures:
    """Halves of HTTP requests, on more connections than there is room for."""
    count = 1_010 + 99 * scale
    halves = (
        b"",
        b"GET /li",
        b"GET /live HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        b"POST /live HTTP/1.1\r\n",
    )
    longest_s = 0.0
    with crowd(count, lambda: http(broker)) as socks:
        for number, sock in enumerate(socks):
            with suppress(OSError):  # it made room already
                sock.sendall(halves[number % len(halves)])
        for _ in range(3):
            began = time.monotonic()
            must(is_live(broker), "nobody is answered over HTTP")
            longest_s = max(longest_s, time.monotonic() - began)
    return {"halves": count, "live_longest_s": round(longest_s, 2)}


@scenario
def slow_readers(broker: BrokerProcess, scale: int) -> Figures:
    """Peers that ask for much and never read: cut off at the bound, and memory comes back."""
    count = 2 * scale
    before_mb = resident_mb(broker)
    text = "x" * 1_000_000
    with tcp(broker) as sock, crowd(count, lambda: tcp(broker)) as socks:
        control = Reader(sock)
        job = control.call({"cmd": "PUSH", "queue": "readers", "name": "n", "data": text})["id"]
        asked = frame({"cmd": "GetJob", "id": job}) * 100  # 100 MB of answers, where 64 may wait
        for greedy in socks:
            with suppress(OSError):
                greedy.sendall(asked)
        seconds = until(
            lambda: broker.log.count("replies are not read") >= count, "a slow reader stays"
        )
        peak_mb = resident_mb(broker)
        control.call({"cmd": "Cancel", "id": job})
        until(lambda: resident_mb(broker) < before_mb + 100, "memory of slow readers is kept")
    return {"cut_off": count, "after_s": round(seconds, 2), "peak_mb": peak_mb}


@scenario
def garbage(broker: BrokerProcess, scale: int) -> Figures:
    """Floods of random bytes and random frames on both ports; every answer is a refusal."""
    chance = random.Random(scale)
    floods, sent = 100 * scale, 0
    for number in range(floods):
        data = chance.randbytes(chance.randrange(1, 20_000))
        if number % 2:
            data = b"".join(frame_of(data[at : at + 50]) for at in range(0, len(data), 50))
        connect = http if number % 4 == 0 else tcp
        with connect(broker) as sock, suppress(ConnectionError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65_536):
                pass
        sent += len(data)
    must(is_live(broker) and is_serving(broker), "nobody is answered any more")
    must("Traceback" not in broker.log, "garbage is a traceback in the log")
    return {"floods": floods, "bytes": sent}


@scenario
def large_frames(broker: BrokerProcess, scale: int) -> Figures:
    """One connection that sends frames of 64 MiB, one after the other."""
    length = FRAME_BYTES - 217  # of the padding, so that the rest fits too
    padding = b"\xa1x\xc6" + struct.pack(">I", length) + bytes(length)
    text = b"\xd9\xc8" + b"x" * 200
    count = FRAME_BYTES // len(text) - 1
    texts = b"\xa1x\xdd" + struct.pack(">I", count) + text * count
    job = b"\x81\xa4data\xc5\xff\x00" + bytes(0xFF00)
    jobs = b"\xa5queue\xa5large\xa4jobs\xdc" + struct.pack(">H", 1_000) + job * 1_000
    letters = length // 2
    long_text = b"\xa4data\xdb" + struct.pack(">I", 2 * letters) + "\u0400".encode() * letters
    lists = b"\xa1x\xdd" + struct.pack(">I", length) + b"\x90" * length
    bodies = {
        "padded ping": b"\x82\xa3cmd\xa4Ping" + padding,
        "list of texts": b"\x82\xa3cmd\xa4Ping" + texts,
        "long text": b"\x83\xa3cmd\xa4PUSH\xa5queue\xa5large" + long_text,
        "empty lists": b"\x82\xa3cmd\xa4Ping" + lists,
        "no message": b"\xc1" * FRAME_BYTES,
        "batch of jobs": b"\x83\xa3cmd\xa5PUSHB" + jobs,
    }
    refused = {"long text", "empty lists", "no message"}
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # the peak is told anew
    sent = 0
    with tcp(broker) as sock:
        sock.settimeout(120)
        peer = Reader(sock)
        for _ in range(scale):
            for what, body in bodies.items():
                sock.sendall(frame_of(body))
                reply = peer.value()
                must(reply["ok"] == (what not in refused), f"{what}: {reply.get('error')}")
                sent += 1
            peer.call({"cmd": "Obliterate", "queue": "large"})
    peak_mb = resident_mb(broker, "VmHWM")
    must(peak_mb < LARGE_FRAME_MB_MAX, f"a frame took up to {peak_mb} MB")
    return {"frames": sent, "peak_mb": peak_mb}


@scenario
def half_closed(broker: BrokerProcess, scale: int) -> Figures:
    """Peers that end their direction, or reset, in the middle of a frame or of a long poll."""
    count = 200 * scale
    before = descriptors(broker)
    polling = frame({"cmd": "PULL", "queue": "nothing", "timeout": 30_000})
    linger = struct.pack("ii", 1, 0)
    with crowd(count, lambda: tcp(broker)) as socks:
        for number, sock in enumerate(socks):
            sock.sendall(ping(1)[:6] if number % 2 else polling)
            if number % 3:
                sock.shutdown(socket.SHUT_WR)
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                sock.close()
        until(lambda: descriptors(broker) <= before + 2, "half-closed connections stay")
        must(sockets_in(broker, CLOSE_WAIT) == 0, "connections are left in CLOSE_WAIT")
    return {"half_closed": count}


@scenario
def descriptors_out(broker: BrokerProcess, scale: int) -> Figures:
    """More connections than descriptors, on both ports; released, and again."""
    slowest_s = used_s = 0.0
    for _ in range(min(scale, 5)):
        sock = tcp(broker)
        first = Reader(sock)
        told = broker.log.count("cannot accept")
        with crowd(DESCRIPTORS + 20, lambda: tcp(broker)), crowd(20, lambda: http(broker)):
            until(lambda: "cannot accept" in broker.log, "running out is not told")
            began_s = cpu_s(broker)
            time.sleep(1)
            used_s = max(used_s, cpu_s(broker) - began_s)
            must(first.call({"cmd": "Ping"})["ok"], "those that are in are not served")
        must(broker.log.count("cannot accept") <= told + 2, "running out floods the log")
        began = time.monotonic()
        must(is_serving(broker) and is_live(broker), "nobody is let in any more")
        slowest_s = max(slowest_s, time.monotonic() - began)
        sock.close()
        until(lambda: sockets_in(broker, CLOSE_WAIT) == 0, "connections stay in CLOSE_WAIT")
    must(used_s < 0.5, f"the broker is busy with not accepting: {used_s} s of CPU in a second")
    must(slowest_s < RELEASE_S_MAX + ROUND_S, f"let in only after {slowest_s} s")
    return {"let_in_after_s": round(slowest_s, 2), "cpu_s_while_out": round(used_s, 2)}


@scenario
def tls(broker: BrokerProcess, scale: int) -> Figures:
    """Handshakes that stall, plaintext and garbage on TLS ports; TLS that breaks off."""
    context = ssl.create_default_context(cafile=str(broker.directory / "ca.pem"))
    count = 100 * scale
    before = descriptors(broker)
    longest_s = 0.0
    with crowd(count, lambda: tcp(broker)) as socks, crowd(count, lambda: http(broker)) as others:
        for number, sock in enumerate(socks + others):
            with suppress(OSError):
                if number % 4 == 1:
                    sock.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a hello
                elif number % 4 == 2:
                    sock.sendall(ping(1))
                elif number % 4 == 3:
                    sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        for _ in range(3):
            began = time.monotonic()
            with context.wrap_socket(tcp(broker), server_hostname="127.0.0.1") as sock:
                must(Reader(sock).call({"cmd": "Ping"})["ok"], "TLS peers are not served")
            with context.wrap_socket(http(broker), server_hostname="127.0.0.1") as sock:
                sock.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                must(sock.recv(100).startswith(b"HTTP/1.1 200"), "HTTPS is not answered")
            longest_s = max(longest_s, time.monotonic() - began)
    until(lambda: descriptors(broker) <= before + 2, "stalled handshakes stay")
    must("Traceback" not in broker.log, "a broken handshake is a traceback in the log")
    return {"stalled": 2 * count, "both_served_longest_s": round(longest_s, 2)}


# -- running ---------------------------------------------------------------------------------------

KINDS = {"descriptors_out": "files", "tls": "tls"}  # the others share one broker


def make_broker(directory: Path, kind: str) -> BrokerProcess:
    """Return a broker that is not started yet: a ``plain`` one, or for ``files`` or ``tls``."""
    env: dict[str, str] = {}
    if kind == "files":
        limits = f"({DESCRIPTORS}, {DESCRIPTORS})"
        text = f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, {limits})"
        (directory / "sitecustomize.py").write_text(text)
        path = os.environ.get("PYTHONPATH")
        env["PYTHONPATH"] = f"{directory}:{path}" if path else str(directory)
    if kind == "tls":
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        chain, key = directory / "chain.pem", directory / "key.pem"
        chain.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
        key.write_bytes(certificate.private_key_pem.bytes())
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        env |= {"TLS_CERT_FILE": str(chain), "TLS_KEY_FILE": str(key)}
    return BrokerProcess(directory, env=env)


def attack(name: str, broker: BrokerProcess, scale: int) -> Figures:
    """Run one scenario beside a bystander, if one can be there; return all figures."""
    before_mb = resident_mb(broker)
    figures: Figures = {"scenario": name}
    if name in KINDS:
        figures |= SCENARIOS[name](broker, scale)
    else:
        with bystander(broker) as others:
            figures |= SCENARIOS[name](broker, scale)
        figures |= others
    return figures | {"before_mb": before_mb, "after_mb": resident_mb(broker)}


def main(argv: list[str]) -> int:
    """Run what was asked for; return the exit status."""
    args = docopt(__doc__, argv)
    if args["--list"]:
        for name, run in SCENARIOS.items():
            print(f"{name:16} {run.__doc__}")
        return 0
    names = args["SCENARIO"] or list(SCENARIOS)
    scale, bound_ms = int(args["--scale"]), float(args["--p99-ms"])
    faults = 0
    with tempfile.TemporaryDirectory() as above, ExitStack() as stack:
        brokers: dict[str, BrokerProcess] = {}
        for name in names:
            kind = KINDS.get(name, "plain")
            if kind not in brokers:
                directory = Path(above) / kind
                directory.mkdir()
                brokers[kind] = stack.enter_context(make_broker(directory, kind))
            try:
                figures = attack(name, brokers[kind], scale)
                is_late = name not in UNBOUND and figures.get("p99_ms", 0) > bound_ms
                fault = f"p99 above {bound_ms} ms" if is_late else ""
            except (Fault, OSError, EOFError) as error:
                figures, fault = {"scenario": name}, f"{type(error).__name__}: {error}"
            faults += bool(fault)
            figures |= {"fault": fault} if fault else {}
            if args["--json"]:
                print(json.dumps(figures), flush=True)
            else:
                print(" ".join(f"{key}={value}" for key, value in figures.items()), flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main(sys.argv[1:]))
