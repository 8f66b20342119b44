"""Who may come in."""

import hmac
from collections.abc import Iterable
from hashlib import sha256


class Tokens:
    """The tokens that let a peer in; false when there are none, and then everyone is in."""

    __slots__ = ("_digests",)

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self._digests = tuple(_digest(token) for token in tokens)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def match(self, token: object) -> bool:
        """Compare with every token, all of them and in constant time."""
        if not isinstance(token, str):
            return False
        digest = _digest(token)
        is_ours = False
        for each in self._digests:
            is_ours |= hmac.compare_digest(each, digest)
        return is_ours


def _digest(token: str) -> bytes:
    """Hash a token; the environment may have brought one that is no UTF-8."""
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
