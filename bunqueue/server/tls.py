"""TLS of both ports: one context from a certificate chain and its key."""

import ssl

import gevent.ssl

from bunqueue.config import Settings
from bunqueue.errors import ConfigError


def context_from(settings: Settings) -> ssl.SSLContext | None:
    """Return the server's context, or None when TLS is off.

    Clients show no certificates. TLS 1.2 is the oldest version; renegotiation is off, so that
    reading never needs to write.

    Raises:
        ConfigError: A file cannot be read, or certificate and key do not belong together.
    """
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    context: ssl.SSLContext = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    load_certificate(context, settings.tls_cert_file, settings.tls_key_file)
    return context


def load_certificate(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    """Put the pair of files into the context; connections made from then on use it.

    Raises:
        ConfigError: As ``context_from``.
    """
    for name, path in (("TLS_CERT_FILE", cert_file), ("TLS_KEY_FILE", key_file)):
        try:
            with open(path, "rb"):
                continue
        except OSError as error:
            raise ConfigError(f"{name} cannot be read: {path!r} ({error.strerror})") from None
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        text = f"TLS_CERT_FILE {cert_file!r} and TLS_KEY_FILE {key_file!r} cannot be used: {error}"
        raise ConfigError(text) from None


def _no_password() -> str:
    """Refuse an encrypted key, instead of asking on a terminal that a server does not have."""
    raise ValueError("the key is encrypted")
