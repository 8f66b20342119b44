"""Every exception of the package, broker and client, in one tree.

A refusal's text goes on the wire as it is, and existing clients match on it: write it once, beside
the check that raises it.
"""


class BunqueueError(Exception):
    """Root of all errors raised by this package."""


# -- the broker's side ----------------------------------------------------------------------------


class Refused(BunqueueError):
    """The broker will not do it; the text is the reply's ``error``."""


class InvalidField(Refused):
    """A field of the request is missing, of the wrong type or out of bounds."""


class NotFound(Refused):
    """A write names a job, worker or queue that does not exist."""


class WrongPlace(Refused):
    """The job exists, but this command is not legal where it is."""


class LeaseLost(Refused):
    """The lock token is missing, wrong or of an earlier delivery."""


class StorageFailed(BunqueueError):
    """A commit or a read failed; logged in full, the peer reads ``Internal server error``."""


class ConfigError(BunqueueError):
    """A setting cannot work; the text names the setting, its value and the cure."""


# -- the client's side ----------------------------------------------------------------------------


class ConnectionClosedError(BunqueueError):
    """The broker is unreachable, the link was lost, or the connection was closed."""


class CommandTimeoutError(BunqueueError):
    """No reply in time; whether the command took effect is unknown.

    Attributes:
        req_id: What the command was sent as, or None if it was not sent.
    """

    req_id: str | None = None


class CommandError(BunqueueError):
    """The broker answered ``ok: false``; ``str(error)`` is its text.

    Attributes:
        command: Name of the wire command that was refused, or None.
    """

    def __init__(self, message: str = "", command: str | None = None) -> None:
        super().__init__(message)
        self.command = command


class JobFailedError(CommandError):
    """The job that was waited for has failed for good.

    Attributes:
        job_id: Id of the job.
        failed_reason: Its last error text, or None.
    """

    def __init__(
        self, message: str = "", job_id: str | None = None, failed_reason: str | None = None
    ) -> None:
        super().__init__(message, "WaitJob")
        self.job_id = job_id
        self.failed_reason = failed_reason


class LockLostError(CommandError):
    """The lease of the job is no longer ours."""


class RateLimitedError(CommandError):
    """The broker refused the command for this connection's request rate."""


class SerializationError(BunqueueError):
    """The command cannot be encoded; nothing was written."""


class AuthError(BunqueueError):
    """The token was refused."""


class UnrecoverableError(BunqueueError):
    """Raised by a handler: the job fails for good, no further attempts."""


class DelayedError(BunqueueError):
    """Raised by a handler: run this job again later, without counting a failure.

    Attributes:
        delay_ms: How long to wait; None means the job's own backoff.
    """

    def __init__(self, delay_ms: float | None = None) -> None:
        super().__init__("job delayed" if delay_ms is None else f"job delayed by {delay_ms} ms")
        self.delay_ms = delay_ms


class RateLimitError(BunqueueError):
    """Raised by a handler after the job has been handed back by a rate limit."""


class WaitingChildrenError(BunqueueError):
    """Raised by a handler: park this job until its children are done."""


class JobCancelledError(BunqueueError):
    """Raised in a handler whose job was cancelled; an ordinary, retryable failure."""


class JobTimeoutError(BunqueueError):
    """Raised in a handler whose job outlived its ``timeout``."""


class EmbeddedError(BunqueueError):
    """The embedded engine cannot serve: stopped, opened elsewhere, or lost in a fork."""


class DataPathConflictError(EmbeddedError, ValueError):
    """This process already has an embedded engine on another file."""
