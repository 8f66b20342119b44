"""Who may come in."""

import ast
import hmac
from pathlib import Path

import pytest

import bunqueue
from bunqueue.broker.tokens import Tokens


def test_each_of_several_tokens_lets_in() -> None:
    tokens = Tokens(["first", "zweite ü"])

    assert tokens.match("first")
    assert tokens.match("zweite ü")


@pytest.mark.parametrize("token", ["", "firs", "first ", "FIRST", None, 5, b"first", ["first"]])
def test_anything_else_does_not(token: object) -> None:
    assert not Tokens(["first", "second"]).match(token)


def test_without_tokens_no_token_matches() -> None:
    assert not Tokens()
    assert not Tokens().match("")


def test_a_lone_surrogate_is_no_error() -> None:
    assert not Tokens(["first"]).match("\ud800")
    assert Tokens(["\udcff"]).match("\udcff")


def test_every_token_is_compared_whatever_the_first_says(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    real = hmac.compare_digest

    def count(ours: bytes, theirs: bytes) -> bool:
        compared.append(ours)
        return real(ours, theirs)

    monkeypatch.setattr("bunqueue.broker.tokens.hmac.compare_digest", count)

    assert Tokens(["first", "second", "third"]).match("first")
    assert 3 == len(set(compared))


@pytest.mark.parametrize("room", ["broker", "server"])
def test_nothing_else_compares_a_token(room: str) -> None:
    """Whoever is let in, over TCP or HTTP, is let in by ``match``; a bare ``==`` stops early."""
    compared = []
    for file in (Path(bunqueue.__file__).parent / room).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Compare) and isinstance(
                node.ops[0], ast.Eq | ast.NotEq | ast.In
            ):
                compared += [ast.unparse(node)] if "token" in ast.unparse(node).lower() else []

    assert [] == compared


def test_what_is_compared_are_hashes_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(
        "bunqueue.broker.tokens.hmac.compare_digest", lambda *pair: bool(seen.append(pair))
    )

    Tokens(["a", "a much longer one"]).match("x" * 10_000)

    assert {(bytes, 32)} == {(type(each), len(each)) for pair in seen for each in pair}
