"""Settings that work and are dangerous, useless beside each other, or contradict each other.

What cannot work at all stops the start (``config.py``); these are told at the start and by
``bunqueue doctor``. Never with a secret in them.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from bunqueue.config import ROWS, Settings
from bunqueue.protocol.findings import OK, PROBLEM, WARNING, Finding, finding

CHECK: Final = "settings"

OPEN_TO_ALL: Final = ("0.0.0.0", "::", "")
LOOPBACK: Final = ("localhost", "::1")
TOKEN_CHARS_FEW: Final = 16  # there is no limit to guesses
HEARTBEAT_MS: Final = 10_000  # of a worker that sets none
REQUESTS_PER_MINUTE_MIN: Final = 60  # a worker with its pulls, heartbeats and acknowledgements
REPLY_BYTES_MAX: Final = 67_108_864  # as a frame

Risk = tuple[str, str, str]  # level, what it is, what to do


def findings(settings: Settings) -> list[Finding]:
    """Return one finding for each risk, or one that says that there is none."""
    found = [finding(CHECK, *risk) for risk in risks(settings)]
    return found or [finding(CHECK, OK, "no setting is risky or contradicts another")]


def risks(settings: Settings) -> Iterator[Risk]:
    """Yield what is risky, what it is about first."""
    yield from _access(settings)
    yield from _contradictions(settings)
    for text in settings.warnings:
        yield WARNING, text, "leave it out"


def _access(settings: Settings) -> Iterator[Risk]:
    tokens, host = settings.auth_tokens, settings.host
    if not tokens and host in OPEN_TO_ALL:
        yield (
            PROBLEM,
            "OPEN TO EVERYONE: listening on every address of this machine without tokens",
            "set AUTH_TOKENS, or HOST=127.0.0.1",
        )
    if not tokens and "*" in settings.cors_origins:
        what = "any web page that a browser near the broker shows may use it: CORS allows all"
        yield PROBLEM, f"{what} origins, and there are no tokens", "name the origins, or set tokens"
    if any(len(token) < TOKEN_CHARS_FEW for token in tokens):
        what = f"a token has fewer than {TOKEN_CHARS_FEW} characters, and may be guessed"
        yield WARNING, what, "make tokens with 'openssl rand -hex 32'"
    if tokens and not settings.has_tls and not _is_loopback(host):
        what = f"tokens and jobs travel in plain text: HOST is {host} and TLS is off"
        yield WARNING, what, "set TLS_CERT_FILE and TLS_KEY_FILE, unless the network does it"
    for name, path in _secret_files(settings):
        with suppress(OSError):
            mode = stat.S_IMODE(os.stat(path).st_mode)
            if mode & 0o007:
                yield PROBLEM, f"{name} {path} is open to every user", f"chmod 600 {path}"


def _secret_files(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.tls_key_file is not None:
        yield "TLS_KEY_FILE", settings.tls_key_file
    for row in ROWS:
        source = settings.sources.get(row.name, "")
        if row.is_secret and source.endswith("_FILE") and os.environ.get(source):
            yield source, os.environ[source]


def _contradictions(settings: Settings) -> Iterator[Risk]:
    if settings.metrics_auth and not settings.auth_tokens:
        what = "METRICS_AUTH asks for a token, and there is none: metrics are closed to all"
        yield WARNING, what, "set AUTH_TOKENS, or leave METRICS_AUTH out"
    if settings.storage_driver == "memory" and settings.data_path is not None:
        what = f"the storage driver is memory: {settings.data_path} is neither read nor written"
        yield WARNING, what, "leave one of them out"
    if settings.completed_retention_ms is not None and not settings.max_completed_jobs:
        what = "completed jobs are kept for a time, but none of them"
        yield WARNING, what, "set BUNQUEUE_MAX_COMPLETED_JOBS above 0, or no retention"
    if settings.worker_timeout_ms <= HEARTBEAT_MS:
        what = f"workers count as stale after {settings.worker_timeout_ms} ms, and their heartbeats"
        yield (
            WARNING,
            f"{what} come every {HEARTBEAT_MS} ms by default",
            "set WORKER_TIMEOUT_MS to three times the heartbeat",
        )
    most = settings.rate_limit_requests_max
    if most and most * 60_000 < REQUESTS_PER_MINUTE_MIN * settings.rate_limit_window_ms:
        what = f"{most} requests in {settings.rate_limit_window_ms} ms are too few for one worker"
        yield WARNING, what, "raise RATE_LIMIT_MAX_REQUESTS"
    if settings.tcp_unsent_bytes_max < REPLY_BYTES_MAX:
        what = f"a connection may leave {settings.tcp_unsent_bytes_max} bytes unread, one reply may"
        yield (
            WARNING,
            f"{what} have {REPLY_BYTES_MAX}: who asks for a long one is cut off",
            "leave TCP_MAX_WRITE_QUEUE_BYTES at its default",
        )


def _is_loopback(host: str) -> bool:
    return host in LOOPBACK or host.startswith("127.")
