import socket
import ssl

import pytest

from bunqueue.cli.cures import cure, with_cure
from bunqueue.errors import AuthError, CommandError, CommandTimeoutError, ConnectionClosedError


def closed(text, cause):
    """Return an unreachable broker as the client raises it, and the command line after it."""
    inner, outer = ConnectionClosedError(text), ConnectionClosedError(f"host:1: {text}")
    inner.__cause__, outer.__cause__ = cause, inner
    return outer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (closed("connect failed", ConnectionRefusedError(111, "refused")), "bunqueue start"),
        (closed("connect failed", socket.gaierror(-2, "not known")), "-H"),
        (closed("connect failed: timed out", TimeoutError()), "-p"),
        (closed("TLS handshake failed", ssl.SSLCertVerificationError("self-signed")), "--tls-ca"),
        (
            closed("TLS handshake failed", ssl.SSLCertVerificationError("Hostname mismatch")),
            "name that the certificate carries",
        ),
        (closed("TLS handshake failed", ssl.SSLError("wrong version")), "leave out --tls"),
        (closed("handshake failed: no response", CommandTimeoutError("Hello")), "TCP port"),
        (AuthError("Invalid token"), "AUTH_TOKENS"),
        (CommandError("Not authenticated"), "AUTH_TOKENS"),
        (CommandError("Webhook URL cannot point to localhost"), "WEBHOOK_ALLOWED_TARGETS"),
        (CommandError("Cron job must have either schedule or repeatEvery"), "--every"),
        (CommandTimeoutError("no response for Stats"), "bunqueue health"),
    ],
)
def test_an_error_has_its_cure(error, words):
    assert words in (cure(error) or "")
    assert 1 == len(with_cure(error).splitlines())


def test_an_error_that_says_it_all_is_told_as_it_is():
    assert cure(CommandError("Job not found")) is None
    assert "Job not found" == with_cure(CommandError("Job not found"))
