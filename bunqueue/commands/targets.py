"""Where a webhook may go: reading its URL, and judging an address.

A URL is read once, by the rules that browsers and the reference follow (white space around it goes,
slashes may be missing, hosts may be decimal, octal or hexadecimal numbers, full-width digits are
digits), and what was read is what is connected to: two readers of one text could be played off
against each other. What the URL spells is judged when the webhook is added; what its name resolves
to is judged at each delivery, by the address that is then connected to.

Only global unicast addresses pass, and those that an operator has allowed. An IPv6 address that
carries an IPv4 address (mapped, compatible, 6to4, NAT64) is judged by that.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import unquote

from bunqueue.errors import InvalidField

URL_CHARS_MAX: Final = 2048
PORTS: Final = {"http": 80, "https": 443}

Address = IPv4Address | IPv6Address

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_NUMBER: Final = re.compile(r"0[xX][0-9A-Fa-f]*|[0-9]+")
_FORBIDDEN_IN_HOST: Final = frozenset("\0\t\n\r #/:<>?@[\\]^|%\x7f") | {chr(n) for n in range(32)}

# Global by Python's tables, or not in them, and yet no place for a request.
_NEVER: Final[tuple[IPv4Network | IPv6Network, ...]] = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("100.64.0.0/10"),  # shared by carriers
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv4Network("198.18.0.0/15"),  # benchmarks
    IPv4Network("224.0.0.0/3"),  # multicast, reserved, broadcast
    IPv6Network("2001::/23"),  # Teredo and other protocols
    IPv6Network("2001:db8::/32"),
    IPv6Network("3fff::/20"),  # documentation
)
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_6TO4: Final = IPv6Network("2002::/16")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = IPv6Network("::/96")


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL means.

    Attributes:
        scheme: "http" or "https".
        host: Name, or address without brackets; lower case, ASCII.
        port: As given, or the scheme's.
        path: Path and query, for the request line.
        address: The address that the host spells, None if it is a name.
        user: ``name:password`` of the URL, or "".
    """

    scheme: str
    host: str
    port: int
    path: str
    address: Address | None
    user: str = field(default="", repr=False)

    @property
    def authority(self) -> str:
        """Return the value of the Host header."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


class AllowedTargets:
    """What an operator has allowed beside global addresses: addresses, networks, host names."""

    __slots__ = ("_names", "_networks")

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Read the entries.

        Raises:
            ValueError: One looks like an address or a network, and is none.
        """
        self._names: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in entries:
            if "/" in entry or ":" in entry or _NUMBER.fullmatch(entry.rpartition(".")[2]):
                self._networks.append(ip_network(entry.strip("[]"), strict=False))
            else:
                self._names.add(entry.lower().rstrip("."))

    def has_name(self, host: str) -> bool:
        """Say whether a host name is allowed, wherever it leads."""
        return host.rstrip(".") in self._names

    def has(self, address: Address) -> bool:
        """Say whether an address is allowed."""
        return any(address in network for network in self._networks)

    def admits(self, target: Target, address: Address) -> bool:
        """Say whether a delivery to ``target`` may connect to ``address``."""
        return refusal_of(address) is None or self.has_name(target.host) or self.has(address)


def read_url(url: object) -> Target:
    """Read a webhook's URL.

    Raises:
        InvalidField: It is missing, too long, no URL, or of another scheme.
    """
    if url in (None, "", 0, []):  # what JavaScript takes for empty
        raise InvalidField("Webhook URL is required")
    if not isinstance(url, str):
        raise InvalidField("Invalid URL format")
    if len(url) > URL_CHARS_MAX:
        raise InvalidField(f"Webhook URL too long (max {URL_CHARS_MAX} characters)")
    text = url.strip("".join(map(chr, range(33))))
    text = text.replace("\t", "").replace("\n", "").replace("\r", "")
    scheme = _SCHEME.match(text)
    if scheme is None:
        raise InvalidField("Invalid URL format")
    name = scheme[1].lower()
    if name not in PORTS:
        raise InvalidField("Webhook URL must use http or https protocol")
    rest = text[scheme.end() :].lstrip("/\\")
    end = next((at for at, letter in enumerate(rest) if letter in "/\\?#"), len(rest))
    user, _, place = rest[:end].rpartition("@")
    host, port = _split_port(place)
    try:
        address, host = _read_host(host)
        return Target(name, host, _port(port, PORTS[name]), _path(rest[end:]), address, user)
    except (ValueError, UnicodeError):
        raise InvalidField("Invalid URL format") from None


def _split_port(place: str) -> tuple[str, str]:
    if place.startswith("["):
        host, bracket, port = place.partition("]")
        return host + bracket, port.removeprefix(":") if port.startswith(":") else port and "!"
    host, _, port = place.partition(":")
    return host, port


def _port(text: str, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) > 65_535:
        raise ValueError("no port")
    return int(text)


def _path(text: str) -> str:
    """Return path and query as they stand in a request line: ASCII without spaces."""
    path, _, query = text.partition("#")[0].partition("?")
    path = "/" + path.replace("\\", "/").removeprefix("/")
    whole = f"{path}?{query}" if query else path
    return "".join(
        letter if "!" <= letter <= "~" and letter not in '"<>`' else _escaped(letter)
        for letter in whole
    )


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode("utf-8", "replace"))


def _read_host(host: str) -> tuple[Address | None, str]:
    """Return the address that a host spells, or None, and the host in its one form.

    Raises:
        ValueError: It is none.
    """
    if host.startswith("["):
        if not host.endswith("]") or "%" in host:
            raise ValueError("no address")
        six = IPv6Address(host[1:-1])
        return six, six.compressed
    name = unicodedata.normalize("NFKC", unquote(host, errors="strict")).lower()
    name = name.replace("\u3002", ".").replace("\u00ad", "")
    if not name.isascii():
        name = name.encode("idna").decode("ascii")
    if not name or not _FORBIDDEN_IN_HOST.isdisjoint(name):
        raise ValueError("no host")
    labels = name.removesuffix(".").split(".")
    if _NUMBER.fullmatch(labels[-1]):
        four = _ipv4(labels)
        return four, str(four)
    if len(name) > 253:
        raise ValueError("no host")
    return None, name


def _ipv4(labels: list[str]) -> IPv4Address:
    """Read one to four numbers, each decimal, octal or hexadecimal; the last fills what is left."""
    if len(labels) > 4:
        raise ValueError("too many numbers")
    numbers = []
    for label in labels:
        if not _NUMBER.fullmatch(label):
            raise ValueError("no number")
        if label[:2] in ("0x", "0X"):
            numbers.append(int(label[2:] or "0", 16))
        else:
            numbers.append(int(label, 8 if len(label) > 1 and label[0] == "0" else 10))
    last = numbers.pop()
    if any(number > 255 for number in numbers) or last >= 256 ** (4 - len(numbers)):
        raise ValueError("out of range")
    value = last
    for place, number in enumerate(numbers):
        value += number * 256 ** (3 - place)
    return IPv4Address(value)


def check_spelled(target: Target, allowed: AllowedTargets) -> None:
    """Refuse a URL that by its text alone leads where webhooks must not go.

    Raises:
        InvalidField: It does; the text says where.
    """
    address = target.address
    host = target.host.removesuffix(".")
    if allowed.has_name(host) or (address is not None and allowed.has(address)):
        return
    where: str | None = None
    if address is not None:
        is_localhost = str(address) in ("127.0.0.1", "::1")
        where = "localhost" if is_localhost else refusal_of(address)
    elif host == "localhost" or host.endswith(".localhost"):
        where = "localhost"
    elif host == "internal" or host.endswith(".internal"):
        where = "cloud metadata endpoints"
    if where is not None:
        raise InvalidField(f"Webhook URL cannot point to {where}")


def refusal_of(address: Address) -> str | None:
    """Return what an address is that no webhook may connect to, None if it is global."""
    if isinstance(address, IPv6Address):
        inner = _carried(address)
        return _refusal_of_v6(address) if inner is None else refusal_of(inner)
    if address.is_loopback:
        return "loopback IP"
    if address in _NEVER[0]:
        return "unspecified IP"
    if address.is_link_local:
        return "link-local IP"
    if address.is_private or _is_never(address):
        return "private IP"
    return None


def _refusal_of_v6(address: IPv6Address) -> str | None:
    if address.is_loopback:
        return "loopback IP"
    if address.is_unspecified:
        return "unspecified IP"
    if address.is_link_local:
        return "link-local IP"
    if address in IPv6Network("fc00::/7"):
        return "private (ULA) IP"
    if address not in _GLOBAL_UNICAST or _is_never(address):
        return "private IP"
    return None


def _is_never(address: Address) -> bool:
    return any(address in network for network in _NEVER)


def _carried(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address inside an IPv6 address, or None."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    value = int(address)
    if address in _6TO4:
        return IPv4Address(value >> 80 & 0xFFFFFFFF)
    if address in _NAT64 or (address in _COMPATIBLE and value > 1):
        return IPv4Address(value & 0xFFFFFFFF)
    return None


def as_address(text: str) -> Address:
    """Read an address as a resolver gives it; a zone behind ``%`` does not matter."""
    return ip_address(text.partition("%")[0])
