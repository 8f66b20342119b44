"""Settings that are risky or contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bunqueue.config import Settings, load_settings
from bunqueue.server.risks import findings, risks

SAFE: dict[str, Any] = {"host": "127.0.0.1"}
TOKEN = "a-token-of-some-length"


def test_nothing_is_wrong_with_a_broker_for_this_machine() -> None:
    assert [("settings", "ok")] == [
        (one["check"], one["level"]) for one in findings(Settings(**SAFE))
    ]


@pytest.mark.parametrize(
    ("settings", "level", "text"),
    [
        ({"host": "0.0.0.0"}, "problem", "OPEN TO EVERYONE"),
        ({"host": "::"}, "problem", "OPEN TO EVERYONE"),
        ({"cors_origins": ("*",)}, "problem", "CORS allows all origins"),
        ({"auth_tokens": ("short",)}, "warning", "fewer than 16 characters"),
        ({"auth_tokens": (TOKEN,), "host": "0.0.0.0"}, "warning", "plain text"),
        ({"metrics_auth": True}, "warning", "metrics are closed to all"),
        ({"storage_driver": "memory", "data_path": "x.db"}, "warning", "neither read nor written"),
        ({"completed_retention_ms": 1, "max_completed_jobs": 0}, "warning", "none of them"),
        ({"worker_timeout_ms": 10_000}, "warning", "count as stale after 10000 ms"),
        ({"rate_limit_requests_max": 59}, "warning", "too few for one worker"),
        ({"tcp_unsent_bytes_max": 1024}, "warning", "cut off"),
        ({"warnings": ("X has no effect",)}, "warning", "X has no effect"),
    ],
)
def test_what_is_risky(settings: dict[str, Any], level: str, text: str) -> None:
    ((found_level, found_text, cure),) = risks(Settings(**{**SAFE, **settings}))

    assert (level, True) == (found_level, text in found_text)
    assert cure


@pytest.mark.parametrize(
    "settings",
    [
        {"auth_tokens": (TOKEN,)},
        {"auth_tokens": (TOKEN,), "host": "localhost", "cors_origins": ("*",)},
        {"auth_tokens": (TOKEN,), "metrics_auth": True},
        {"rate_limit_requests_max": 0},
        {"rate_limit_requests_max": 60},
    ],
)
def test_what_is_not(settings: dict[str, Any]) -> None:
    assert [] == list(risks(Settings(**{**SAFE, **settings})))


def test_files_of_secrets_that_others_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, key = tmp_path / "tokens", tmp_path / "key.pem"
    for file in (tokens, key):
        file.write_text(TOKEN)
        file.chmod(0o644)
    environ = {
        "HOST": "127.0.0.1",
        "AUTH_TOKENS_FILE": str(tokens),
        "TLS_KEY_FILE": str(key),
        "TLS_CERT_FILE": "cert.pem",
    }
    monkeypatch.setenv("AUTH_TOKENS_FILE", str(tokens))
    settings = load_settings(environ=environ, directory=tmp_path)

    assert [
        f"TLS_KEY_FILE {key} is open to every user",
        f"AUTH_TOKENS_FILE {tokens} is open to every user",
    ] == [text for _, text, _ in risks(settings)]
    for file in (tokens, key):
        file.chmod(0o600)
    assert [] == list(risks(settings))


def test_no_secret_is_told() -> None:
    told = findings(Settings(host="0.0.0.0", auth_tokens=("hush",), cors_origins=("*",)))

    assert "hush" not in repr(told)
