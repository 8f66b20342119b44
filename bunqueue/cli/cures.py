"""What to do about an error; told behind its cause, on the same line."""

import socket
import ssl
from collections.abc import Callable, Iterator

from bunqueue.errors import AuthError, CommandTimeoutError, ConnectionClosedError

# The first row that holds for the error, or for what caused it, has the cure.
CURES: tuple[tuple[Callable[[BaseException], bool], str], ...] = (
    (
        lambda error: isinstance(error, ConnectionRefusedError),
        "no broker listens there: start it with 'bunqueue start', or name another with -H and -p",
    ),
    (lambda error: isinstance(error, socket.gaierror), "check the name behind -H or in the URL"),
    (
        lambda error: _is_of_certificate(error) and "mismatch" in str(error),
        "connect by a name that the certificate carries",
    ),
    (
        lambda error: _is_of_certificate(error),
        "name the authority that signed it with --tls-ca FILE",
    ),
    (
        lambda error: isinstance(error, ssl.SSLError),
        "if this port speaks no TLS, leave out --tls and write bunqueue:// in the URL",
    ),
    (
        lambda error: str(error).startswith("handshake failed"),
        "if this port speaks TLS, give --tls or --tls-ca FILE; if it is the one of HTTP, name the"
        " TCP port with -p",
    ),
    (
        lambda error: isinstance(error, AuthError),
        "give one of the broker's AUTH_TOKENS with -t or in BQ_TOKEN",
    ),
    (
        lambda error: str(error) == "Not authenticated",
        "give one of the broker's AUTH_TOKENS with -t or in BQ_TOKEN",
    ),
    (
        lambda error: str(error).startswith("Webhook URL cannot point to"),
        "name the target in WEBHOOK_ALLOWED_TARGETS of the broker if it is meant",
    ),
    (
        lambda error: str(error) == "Cron job must have either schedule or repeatEvery",
        "give --schedule or --every",
    ),
    (
        lambda error: isinstance(error, CommandTimeoutError),
        "ask with 'bunqueue health' how the broker is, and look before sending it again",
    ),
    (
        lambda error: isinstance(error, ConnectionClosedError) and "timed out" in str(error),
        "check -H and -p, and what filters packets in between",
    ),
)


def cure(error: BaseException) -> str | None:
    """Return what to do about an error, None where its text says it all."""
    chain = list(causes(error))
    return next((text for holds, text in CURES if any(map(holds, chain))), None)


def with_cure(error: BaseException) -> str:
    """Return an error's text and its cure."""
    text = cure(error)
    return str(error) if text is None else f"{error}; {text}"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, what caused it, what caused that."""
    while error is not None:
        yield error
        error = error.__cause__


def _is_of_certificate(error: BaseException) -> bool:
    return isinstance(error, ssl.SSLCertVerificationError)
