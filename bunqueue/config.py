"""The settings: one field is one row, with its names everywhere, its reader and its default.

A value comes from the first of: command line flag, environment, file, default. The file is TOML:
``bunqueue.toml``, or the table ``tool.bunqueue`` of ``pyproject.toml``, in the working directory,
or the one that was named. A secret may also be given as ``NAME_FILE``, the path of a file that
holds it. A value that cannot work stops the start; the error names where it came from. Nothing is
read at import.
"""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

from bunqueue.errors import ConfigError

Read = Callable[[object], object]

CONFIG_FILE: Final = "bunqueue.toml"
PROJECT_FILE: Final = "pyproject.toml"
DRIVERS: Final = ("memory", "sqlite")

# Families of later versions: their presence is told once, and changes nothing.
IGNORED_FAMILIES: Final = {"cloud": "BUNQUEUE_CLOUD_", "backup": "S3_BACKUP_"}

RESERVED: Final = "Reserved; has no effect."  # of settings that other versions know


# -- readers: text or a TOML value in, the setting's value out -------------------------------------


def whole(least: int, most: int | None = None, units: Mapping[str, int] | None = None) -> Read:
    """Read a whole number in a closed range, written with one of ``units`` or without."""

    def read(value: object) -> int:
        number = _number(value, units or {})
        if number < least or (most is not None and number > most):
            raise ValueError(f"must be {_range(least, most)}")
        return number

    return read


def span_ms(least: int = 0) -> Read:
    """Read a span: milliseconds, or with a unit as in ``30s``, ``5m``, ``2h``."""
    return whole(least, units={"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000})


def size_bytes(least: int = 0) -> Read:
    """Read a size: bytes, or with a unit as in ``10MiB``, ``500kB``."""
    units = {"B": 1, "kB": 1000, "KB": 1000, "MB": 1000**2, "GB": 1000**3}
    return whole(least, units=units | {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3})


def text(value: object) -> str:
    """Read text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be text")
    return value.strip()


def words(value: object) -> tuple[str, ...]:
    """Read a list, or text with commas between the words."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError("must be a list of words, or words with commas between them")
    found = tuple(part.strip() for part in parts if part.strip())
    if not found:
        raise ValueError("must name at least one")
    return found


def targets(value: object) -> tuple[str, ...]:
    """Read a list of addresses, networks and host names."""
    found = words(value)
    for word in found:
        if "/" in word or ":" in word or word.rpartition(".")[2].isdecimal():
            try:
                ip_network(word.strip("[]"), strict=False)
            except ValueError:
                raise ValueError(f"has {word!r}, which is no address and no network") from None
    return found


def yes_or_no(value: object) -> bool:
    """Read a truth value from a fixed list of words."""
    words_of = {True: ("1", "true", "yes", "on"), False: ("0", "false", "no", "off")}
    for truth, names in words_of.items():
        if value is truth or (isinstance(value, str) and value.strip().lower() in names):
            return truth
    raise ValueError("must be true or false")


def one_of(*names: str) -> Read:
    """Read one of a few words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value.strip().lower() not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return value.strip().lower()

    return read


def driver(value: object) -> str:
    """Read the name of a storage driver."""
    if not isinstance(value, str) or value.strip().lower() not in DRIVERS:
        raise ConfigError(f"Unsupported storage driver: {value}")
    return value.strip().lower()


def _number(value: object, units: Mapping[str, int]) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise ValueError("must be a whole number")
    digits = value.strip().replace("_", "")
    unit = digits.lstrip("+-0123456789.")
    digits = digits[: len(digits) - len(unit)]
    try:
        factor = units[unit.strip()] if unit.strip() else 1
        amount = float(digits) * factor if "." in digits else int(digits) * factor
    except (KeyError, ValueError):
        known = f" with one of the units {', '.join(units)}" if units else ""
        raise ValueError(f"must be a whole number{known}") from None
    if amount != int(amount):
        raise ValueError("must be a whole number")
    return int(amount)


def _range(least: int, most: int | None) -> str:
    return f"{least} or more" if most is None else f"between {least} and {most}"


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One setting.

    Attributes:
        name: Attribute of ``Settings``.
        env: Environment variables, the first that is set wins.
        toml: Section and key in the file, or None.
        flag: Flag of ``bunqueue start``, or None.
        read: Turns text or a TOML value into the setting; raises ValueError with what it must be.
        doc: One line.
        is_secret: Never shown; may be given as a file.
    """

    name: str
    env: tuple[str, ...]
    toml: tuple[str, str] | None
    flag: str | None
    read: Read
    doc: str
    is_secret: bool
    default: object


def _row(
    default: Any,
    env: str,
    toml: str | None,
    read: Read,
    doc: str,
    *,
    flag: str | None = None,
    secret: bool = False,
) -> Any:
    """Declare a field of ``Settings`` as a row of the table."""
    section, _, key = (toml or "").partition(".")
    where = (section, key) if toml else None
    names = tuple(env.split())
    row = (names, where, flag, read, doc, secret)
    return field(default=default, repr=not secret, metadata={"row": row})


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of the server, checked.

    Attributes:
        sources: setting's name -> where its value came from, for those that are not defaults.
        warnings: What was found and has no effect; for the log, once.
    """

    tcp_port: int = _row(
        6789, "TCP_PORT", "server.tcpPort", whole(0, 65535),
        "Port of the job protocol; 0 = any free.", flag="--tcp-port",
    )  # fmt: skip
    http_port: int = _row(
        6790, "HTTP_PORT", "server.httpPort", whole(0, 65535), "Port of HTTP; 0 = any free.",
        flag="--http-port",
    )  # fmt: skip
    host: str = _row(
        "0.0.0.0", "HOST", "server.host", text, "Address to listen on.", flag="--host"
    )  # fmt: skip
    tcp_socket_path: str | None = _row(
        None, "TCP_SOCKET_PATH", "server.tcpSocketPath", text, RESERVED
    )
    http_socket_path: str | None = _row(
        None, "HTTP_SOCKET_PATH", "server.httpSocketPath", text,
        "Unix socket for HTTP, instead of its port.",
    )  # fmt: skip
    tls_cert_file: str | None = _row(
        None, "TLS_CERT_FILE", "server.tlsCertFile", text,
        "Certificate chain (PEM); with the key it turns TLS on for both ports.", flag="--tls-cert",
    )  # fmt: skip
    tls_key_file: str | None = _row(
        None, "TLS_KEY_FILE", "server.tlsKeyFile", text, "Private key (PEM).", flag="--tls-key"
    )
    auth_tokens: tuple[str, ...] = _row(
        (), "AUTH_TOKENS", "auth.tokens", words,
        "Tokens that let a client in, with commas between them; none = open to all.",
        flag="--auth-tokens", secret=True,
    )  # fmt: skip
    metrics_auth: bool = _row(
        False, "METRICS_AUTH", "auth.requireAuthForMetrics", yes_or_no,
        "Ask for a token on /prometheus too.",
    )  # fmt: skip
    metrics_queues_max: int = _row(
        100, "METRICS_MAX_QUEUES", "telemetry.maxPrometheusQueues", whole(0),
        "Queues shown with series of their own.",
    )  # fmt: skip
    cors_origins: tuple[str, ...] = _row(
        (), "CORS_ALLOW_ORIGIN", "cors.origins", words, "Origins that browsers may call from."
    )
    data_path: str | None = _row(
        None, "BUNQUEUE_DATA_PATH BQ_DATA_PATH DATA_PATH SQLITE_PATH", "storage.dataPath", text,
        "File that keeps the jobs; none = memory only.", flag="--data-path",
    )  # fmt: skip
    storage_driver: str = _row(
        "", "BUNQUEUE_STORAGE_DRIVER", "storage.driver", driver,
        "sqlite or memory; by default sqlite if there is a data path.",
    )  # fmt: skip
    max_completed_jobs: int = _row(
        50_000, "BUNQUEUE_MAX_COMPLETED_JOBS MAX_COMPLETED_JOBS", "storage.maxCompletedJobs",
        whole(0), "Completed jobs that are kept.", flag="--max-completed-jobs",
    )  # fmt: skip
    completed_retention_ms: int | None = _row(
        None, "BUNQUEUE_COMPLETED_RETENTION_MS COMPLETED_RETENTION_MS",
        "storage.completedRetentionMs", span_ms(1), "Forget completed jobs after this long.",
        flag="--completed-retention-ms",
    )  # fmt: skip
    orphaned_dependency: str = _row(
        "wait", "BUNQUEUE_ORPHANED_DEPENDENCY", "engine.orphanedDependency", one_of("wait", "fail"),
        "What becomes of a job whose dependency was removed: it waits, or fails.",
    )  # fmt: skip
    keeps_names_in_data: bool = _row(
        False, "BUNQUEUE_KEEP_NAME_IN_DATA", "engine.keepNameInData", yes_or_no,
        "Leave the name in the data of jobs that came with it there; for clients of protocol 2,"
        " which look for it there.",
    )  # fmt: skip
    shutdown_timeout_ms: int = _row(
        30_000, "SHUTDOWN_TIMEOUT_MS", "timeouts.shutdown", span_ms(),
        "How long a stop waits for active jobs.",
    )  # fmt: skip
    stats_interval_ms: int = _row(
        300_000, "STATS_INTERVAL_MS", "timeouts.stats", span_ms(), RESERVED
    )
    worker_timeout_ms: int = _row(
        30_000, "WORKER_TIMEOUT_MS", "timeouts.worker", span_ms(1),
        "A worker that is silent for longer is stale.",
    )  # fmt: skip
    worker_cleanup_ms: int = _row(60_000, "WORKER_CLEANUP_INTERVAL_MS", None, span_ms(1), RESERVED)
    lock_timeout_ms: int = _row(5_000, "LOCK_TIMEOUT_MS", "timeouts.lock", span_ms(1), RESERVED)
    webhook_tries_max: int = _row(
        3, "WEBHOOK_MAX_RETRIES", "webhooks.maxRetries", whole(1),
        "Tries of a webhook's delivery, in all.",
    )  # fmt: skip
    webhook_retry_delay_ms: int = _row(
        1_000, "WEBHOOK_RETRY_DELAY_MS", "webhooks.retryDelay", span_ms(),
        "Wait after the first try, twice that after the second, and so on.",
    )  # fmt: skip
    webhook_targets: tuple[str, ...] = _row(
        (), "WEBHOOK_ALLOWED_TARGETS", "webhooks.allowedTargets", targets,
        "Addresses, networks and host names that webhooks may go to beside public ones;"
        " for receivers in the own network.",
    )  # fmt: skip
    rate_limit_window_ms: int = _row(
        60_000, "RATE_LIMIT_WINDOW_MS", None, span_ms(1), "Window of the request limit."
    )
    rate_limit_requests_max: int | None = _row(
        None, "RATE_LIMIT_MAX_REQUESTS", None, whole(0),
        "Requests a connection may send within the window; none or 0 = no limit.",
    )  # fmt: skip
    rate_limit_cleanup_ms: int = _row(60_000, "RATE_LIMIT_CLEANUP_MS", None, span_ms(1), RESERVED)
    tcp_idle_ms: int = _row(
        60_000, "TCP_IDLE_TIMEOUT_MS", None, span_ms(),
        "A connection that is silent inside a frame for longer is reset; 0 = never.",
    )  # fmt: skip
    tcp_unsent_bytes_max: int = _row(
        67_108_864, "TCP_MAX_WRITE_QUEUE_BYTES", None, size_bytes(1),
        "A connection that leaves more replies unread is closed.",
    )  # fmt: skip
    queue_idle_ms: int = _row(30_000, "QUEUE_IDLE_THRESHOLD_MS", None, span_ms(), RESERVED)
    queue_size_warning: int = _row(0, "QUEUE_SIZE_THRESHOLD", None, whole(0), RESERVED)
    memory_warning_mb: int = _row(0, "MEMORY_WARNING_MB", None, whole(0), RESERVED)
    storage_warning_mb: int = _row(0, "STORAGE_WARNING_MB", None, whole(0), RESERVED)
    worker_overload_ms: int = _row(
        30_000, "WORKER_OVERLOAD_THRESHOLD_MS", None, span_ms(), RESERVED
    )
    log_level: str = _row(
        "info", "LOG_LEVEL", "logging.level", one_of("debug", "info", "warn", "warning", "error"),
        "Least severe message that is logged.",
    )  # fmt: skip
    log_format: str = _row(
        "text", "LOG_FORMAT", "logging.format", one_of("text", "json"), "Form of the log."
    )
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Hold what several settings must satisfy together."""
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            given, missing = ("TLS_CERT_FILE", "TLS_KEY_FILE")[:: 1 if self.tls_cert_file else -1]
            raise ConfigError(f"{given} is set without {missing}: TLS needs both")
        if self.storage_driver == "sqlite" and self.data_path is None:
            raise ConfigError("storage driver sqlite needs a data path: set BUNQUEUE_DATA_PATH")
        if not self.storage_driver:
            name = "memory" if self.data_path is None else "sqlite"
            object.__setattr__(self, "storage_driver", name)

    @property
    def has_tls(self) -> bool:
        """Both ports speak TLS."""
        return self.tls_cert_file is not None

    @property
    def file_path(self) -> str | None:
        """The file that keeps the jobs, None when they live in memory only."""
        return None if self.storage_driver == "memory" else self.data_path


def _rows() -> Iterator[Row]:
    each: Field[Any]
    for each in fields(Settings):
        if "row" in each.metadata:
            assert each.default is not MISSING
            env, toml, flag, read, doc, is_secret = each.metadata["row"]
            yield Row(each.name, env, toml, flag, read, doc, is_secret, each.default)


ROWS: Final[tuple[Row, ...]] = tuple(_rows())


# -- finding the values ----------------------------------------------------------------------------


def load_settings(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    config_file: str | Path | None = None,
    directory: str | Path = ".",
) -> Settings:
    """Read every setting from where it is given first.

    Args:
        flags: Row name -> value of its flag; None means not given.
        environ: The environment; by default the process's own.
        config_file: The file to read; by default one of the usual names in ``directory``, if any.
        directory: Where to look for it.

    Raises:
        ConfigError: A value cannot work, a key is unknown, or the file cannot be read.
    """
    flags = flags or {}
    environ = os.environ if environ is None else environ
    from_file, file_name, ignored = _read_file(config_file, Path(directory))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for row in ROWS:
        for source, value in _candidates(row, flags, environ, from_file, file_name):
            values[row.name] = _checked(row, source, value)
            sources[row.name] = source
            break
    warnings = (*_ignored(environ, ignored), *_reserved(sources))
    return Settings(**values, sources=sources, warnings=warnings)


def _candidates(
    row: Row,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    from_file: Mapping[tuple[str, str], object],
    file_name: str,
) -> Iterator[tuple[str, object]]:
    """Yield (source, raw value), the strongest first."""
    if flags.get(row.name) is not None:
        yield row.flag or row.name, flags[row.name]
    for name in row.env:
        if environ.get(name):
            yield name, environ[name]
    if row.is_secret:
        for name in row.env:
            if path := environ.get(f"{name}_FILE"):
                yield f"{name}_FILE", _secret(f"{name}_FILE", path)
    if row.toml is not None and row.toml in from_file:
        yield f"{'.'.join(row.toml)} in {file_name}", from_file[row.toml]


def _checked(row: Row, source: str, value: object) -> object:
    try:
        return row.read(value)
    except ValueError as error:
        shown = "" if row.is_secret else f": {value!r}"
        raise ConfigError(f"{source} {error}{shown}") from None


def _secret(name: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} cannot be read: {path!r} ({_reason(error)})") from None


def _read_file(
    named: str | Path | None, directory: Path
) -> tuple[dict[tuple[str, str], object], str, set[str]]:
    """Return (section, key) -> value, the file's name, and the ignored sections it has."""
    if named is not None:
        if not Path(named).is_file():
            raise ConfigError(f"Config file not found: {named}")
        return _flattened(Path(named))
    for name in (CONFIG_FILE, PROJECT_FILE):
        if (directory / name).is_file():
            found = _flattened(directory / name)
            if found[0] or found[2] or name == CONFIG_FILE:
                return found
    return {}, "", set()


def _flattened(path: Path) -> tuple[dict[tuple[str, str], object], str, set[str]]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"Config file {path} cannot be read: {_reason(error)}") from None
    if path.name == PROJECT_FILE:
        document = document.get("tool", {}).get("bunqueue", {})
    known = {row.toml for row in ROWS if row.toml is not None}
    found: dict[tuple[str, str], object] = {}
    for section, keys in document.items():
        if section in IGNORED_FAMILIES:
            continue
        if not isinstance(keys, dict):
            raise ConfigError(f"Unknown setting {section} in {path}")
        for key, value in keys.items():
            if (section, key) not in known:
                raise ConfigError(f"Unknown setting {section}.{key} in {path}")
            found[section, key] = value
    return found, str(path), IGNORED_FAMILIES.keys() & document.keys()


def _ignored(environ: Mapping[str, str], sections: set[str]) -> Iterator[str]:
    for section, prefix in IGNORED_FAMILIES.items():
        if section in sections or any(name.startswith(prefix) for name in environ):
            yield f"settings without effect in this version are ignored: {section} ({prefix}*)"


def _reserved(sources: Mapping[str, str]) -> Iterator[str]:
    for row in ROWS:
        if row.doc == RESERVED and row.name in sources:
            yield f"{sources[row.name]} has no effect in this version"


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
