"""Where settings come from, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from bunqueue.client import embedded
from bunqueue.config import RESERVED, ROWS, Row, Settings, load_settings
from bunqueue.errors import ConfigError


def load(
    directory: Path, environ: dict[str, str] | None = None, toml: str = "", **flags: Any
) -> Settings:
    if toml:
        (directory / "bunqueue.toml").write_text(toml)
    return load_settings(flags, environ or {}, directory=directory)


# A text that each setting accepts, and what it becomes.
SAMPLES: dict[str, tuple[str, Any]] = {
    "host": ("127.0.0.1", "127.0.0.1"),
    "auth_tokens": ("a, b", ("a", "b")),
    "cors_origins": ("https://a.example", ("https://a.example",)),
    "metrics_auth": ("yes", True),
    "keeps_names_in_data": ("yes", True),
    "storage_driver": ("memory", "memory"),
    "log_level": ("debug", "debug"),
    "log_format": ("json", "json"),
    "orphaned_dependency": ("fail", "fail"),
    "tcp_socket_path": ("/run/t.sock", "/run/t.sock"),
    "http_socket_path": ("/run/h.sock", "/run/h.sock"),
    "data_path": ("/data/q.db", "/data/q.db"),
    "webhook_targets": ("10.0.0.0/8, hooks.lan", ("10.0.0.0/8", "hooks.lan")),
    "tls_cert_file": ("c.pem", "c.pem"),
    "tls_key_file": ("k.pem", "k.pem"),
}
PAIR = {"tls_cert_file": {"TLS_KEY_FILE": "k"}, "tls_key_file": {"TLS_CERT_FILE": "c"}}


def names(row: Row) -> str:
    return row.name


@pytest.mark.parametrize("row", ROWS, ids=names)
def test_every_row_is_read_from_each_of_its_variables(row: Row, tmp_path: Path) -> None:
    given, expected = SAMPLES.get(row.name, ("77", 77))
    for name in row.env:
        settings = load(tmp_path, {name: given} | PAIR.get(row.name, {}))
        assert expected == getattr(settings, row.name)
        assert name == settings.sources[row.name]


@pytest.mark.parametrize("row", [row for row in ROWS if row.toml], ids=names)
def test_every_row_is_read_from_its_key_of_the_file(row: Row, tmp_path: Path) -> None:
    given, expected = SAMPLES.get(row.name, ("77", 77))
    assert row.toml is not None
    section, key = row.toml
    settings = load(tmp_path, PAIR.get(row.name), toml=f'[{section}]\n{key} = "{given}"')

    assert expected == getattr(settings, row.name)


@pytest.mark.parametrize("row", ROWS, ids=names)
def test_every_row_has_a_default_and_a_text(row: Row, tmp_path: Path) -> None:
    expected = "memory" if row.name == "storage_driver" else row.default

    assert expected == getattr(load(tmp_path), row.name)
    assert row.doc.endswith(".")


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    toml = "[server]\ntcpPort = 1\nhttpPort = 2\nhost = 'file'"
    settings = load(tmp_path, {"TCP_PORT": "3", "HTTP_PORT": "4"}, toml, tcp_port="5")

    assert (5, 4, "file") == (settings.tcp_port, settings.http_port, settings.host)
    assert "--tcp-port" == settings.sources["tcp_port"]
    assert settings.sources["host"].startswith("server.host in ")


def test_the_data_path_has_four_names_in_order(tmp_path: Path) -> None:
    environ = {"SQLITE_PATH": "4", "DATA_PATH": "3", "BQ_DATA_PATH": "2"}
    assert "2" == load(tmp_path, environ).data_path
    environ["BUNQUEUE_DATA_PATH"] = "1"
    assert "1" == load(tmp_path, environ).data_path
    row = next(row for row in ROWS if row.name == "data_path")
    assert embedded.PATH_VARIABLES == row.env  # an engine inside a program looks at the same


def test_an_empty_variable_is_as_good_as_none(tmp_path: Path) -> None:
    assert () == load(tmp_path, {"AUTH_TOKENS": ""}).auth_tokens


@pytest.mark.parametrize(
    ("given", "expected_ms"),
    [("1500", 1500), ("1_500", 1500), ("30s", 30_000), ("1.5 s", 1500), ("5m", 300_000),
     ("2h", 7_200_000), ("1d", 86_400_000), ("250ms", 250)],
)  # fmt: skip
def test_spans_have_units(given: str, expected_ms: int, tmp_path: Path) -> None:
    assert expected_ms == load(tmp_path, {"SHUTDOWN_TIMEOUT_MS": given}).shutdown_timeout_ms


@pytest.mark.parametrize(
    ("given", "expected"), [("10MiB", 10_485_760), ("500kB", 500_000), ("64", 64), ("1 GiB", 2**30)]
)
def test_sizes_have_units(given: str, expected: int, tmp_path: Path) -> None:
    settings = load(tmp_path, {"TCP_MAX_WRITE_QUEUE_BYTES": given})

    assert expected == settings.tcp_unsent_bytes_max


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("TCP_PORT", "many", "TCP_PORT must be a whole number: 'many'"),
        ("TCP_PORT", "70000", "TCP_PORT must be between 0 and 65535: '70000'"),
        ("HTTP_PORT", "-1", "HTTP_PORT must be between 0 and 65535: '-1'"),
        ("HTTP_PORT", "1.5", "HTTP_PORT must be a whole number: '1.5'"),
        ("RATE_LIMIT_WINDOW_MS", "0", "RATE_LIMIT_WINDOW_MS must be 1 or more: '0'"),
        (
            "RATE_LIMIT_WINDOW_MS",
            "5 weeks",
            "RATE_LIMIT_WINDOW_MS must be a whole number with one of the units ms, s, m, h, d:"
            " '5 weeks'",
        ),
        ("METRICS_AUTH", "maybe", "METRICS_AUTH must be true or false: 'maybe'"),
        ("LOG_FORMAT", "xml", "LOG_FORMAT must be one of text, json: 'xml'"),
        ("AUTH_TOKENS", " , ", "AUTH_TOKENS must name at least one"),
        ("BUNQUEUE_STORAGE_DRIVER", "postgres", "Unsupported storage driver: postgres"),
        ("BUNQUEUE_STORAGE_DRIVER", "floppy", "Unsupported storage driver: floppy"),
        (
            "BUNQUEUE_STORAGE_DRIVER",
            "sqlite",
            "storage driver sqlite needs a data path: set BUNQUEUE_DATA_PATH",
        ),
        ("TLS_CERT_FILE", "c", "TLS_CERT_FILE is set without TLS_KEY_FILE: TLS needs both"),
        ("TLS_KEY_FILE", "k", "TLS_KEY_FILE is set without TLS_CERT_FILE: TLS needs both"),
    ],
)
def test_a_value_that_cannot_work_is_named(
    name: str, value: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, {name: value})

    assert complaint == str(caught.value)


def test_a_flag_that_cannot_work_is_named_as_a_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^--tcp-port must be"):
        load(tmp_path, tcp_port="x")


def test_a_secret_may_be_a_file_and_is_never_shown(tmp_path: Path) -> None:
    secret = tmp_path / "tokens"
    secret.write_text("one,two\n")
    settings = load(tmp_path, {"AUTH_TOKENS_FILE": str(secret)})
    assert ("one", "two") == settings.auth_tokens
    assert "two" not in repr(settings)
    assert ("env",) == load(
        tmp_path, {"AUTH_TOKENS_FILE": str(secret), "AUTH_TOKENS": "env"}
    ).auth_tokens

    with pytest.raises(ConfigError, match="AUTH_TOKENS_FILE cannot be read"):
        load(tmp_path, {"AUTH_TOKENS_FILE": str(tmp_path / "none")})
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml="[auth]\ntokens = 12345")
    assert "12345" not in str(caught.value)


def test_no_other_setting_has_a_file_variant(tmp_path: Path) -> None:
    assert 6789 == load(tmp_path, {"TCP_PORT_FILE": "/nonexistent"}).tcp_port


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ("[server]\nport = 1", "Unknown setting server.port in "),
        ("[servers]\nport = 1", "Unknown setting servers.port in "),
        ("tcpPort = 1", "Unknown setting tcpPort in "),
        ("[server", "cannot be read: "),
        ("[server]\ntcpPort = true", "server.tcpPort in "),
    ],
)
def test_a_file_that_cannot_work_is_named(toml: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml=toml)

    assert complaint in str(caught.value)
    assert "bunqueue.toml" in str(caught.value)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^Config file not found: nowhere.toml$"):
        load_settings({}, {}, config_file="nowhere.toml", directory=tmp_path)


def test_the_project_file_has_a_table_for_it(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.bunqueue.server]\ntcpPort = 8")
    assert 8 == load(tmp_path).tcp_port

    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'")
    assert 6789 == load(tmp_path).tcp_port


def test_lists_of_the_file_are_lists(tmp_path: Path) -> None:
    assert ("a", "b") == load(tmp_path, toml="[auth]\ntokens = ['a', 'b']").auth_tokens


@pytest.mark.parametrize("family", ["cloud", "backup"])
def test_families_of_later_versions_are_told_once(family: str, tmp_path: Path) -> None:
    names = {"cloud": "BUNQUEUE_CLOUD_URL", "backup": "S3_BACKUP_ENABLED"}
    toml = f"[{family}]\nanything = 1"

    settings = load(tmp_path, {names[family]: "1"}, toml)

    assert 1 == len(settings.warnings)
    assert family in settings.warnings[0]


def test_memory_wins_over_a_data_path(tmp_path: Path) -> None:
    settings = load(tmp_path, {"BUNQUEUE_STORAGE_DRIVER": "memory", "DATA_PATH": "x.db"})

    assert settings.file_path is None
    assert "x.db" == load(tmp_path, {"DATA_PATH": "x.db"}).file_path
    assert "sqlite" == load(tmp_path, {"DATA_PATH": "x.db"}).storage_driver


@pytest.mark.parametrize("row", ROWS, ids=names)
def test_a_reserved_setting_is_told_of_and_the_others_are_not(row: Row, tmp_path: Path) -> None:
    name = row.env[0]
    given, _ = SAMPLES.get(row.name, ("77", 77))
    settings = load(tmp_path, {name: given} | PAIR.get(row.name, {}))
    expected = (f"{name} has no effect in this version",) if row.doc == RESERVED else ()

    assert expected == settings.warnings
