"""Who may come in."""

import hmac

import pytest

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
