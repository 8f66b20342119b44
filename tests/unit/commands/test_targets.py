"""Where webhooks may go; what a URL spells is covered by the golden conversations too."""

from __future__ import annotations

import pytest

from bunqueue.commands.targets import (
    AllowedTargets,
    as_address,
    check_spelled,
    read_url,
    refusal_of,
)
from bunqueue.errors import InvalidField

PRIVATE = [
    "127.0.0.1", "127.255.255.254", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.0.1",
    "169.254.169.254", "0.0.0.0", "0.1.2.3", "100.64.0.1", "100.127.255.255", "192.0.0.1",
    "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1",
    "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "fc00::1", "fdff::1", "ff02::1",
    "2001:db8::1", "3fff::1", "2001::1", "2001:20::1", "100::1", "64:ff9b:1::1", "4000::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:100.64.0.1", "::127.0.0.1", "::a00:1",
    "2002:7f00:1::", "2002:a00:1::1", "2002:c0a8:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
]  # fmt: skip
PUBLIC = [
    "8.8.8.8", "1.1.1.1", "172.32.0.1", "172.15.0.1", "100.128.0.1", "223.255.255.255",
    "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "2002:808:808::1", "64:ff9b::808:808",
]  # fmt: skip


@pytest.mark.parametrize("text", PRIVATE)
def test_an_address_that_is_not_global_is_refused(text: str) -> None:
    assert refusal_of(as_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_a_global_address_passes(text: str) -> None:
    assert refusal_of(as_address(text)) is None


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "authority"),
    [
        ("http://example.com", "example.com", 80, "/", "example.com"),
        ("https://Example.COM:443/A?b=c#d", "example.com", 443, "/A?b=c", "example.com"),
        ("http://example.com:8080", "example.com", 8080, "/", "example.com:8080"),
        ("http://example.com?q", "example.com", 80, "/?q", "example.com"),
        ("http:/\\example.com\\a b", "example.com", 80, "/a%20b", "example.com"),
        ("http://[2606:4700::0:1111]:81/", "2606:4700::1111", 81, "/", "[2606:4700::1111]:81"),
        ("http://134744072/", "8.8.8.8", 80, "/", "8.8.8.8"),
        ("http://0x8.010.2056/", "8.8.8.8", 80, "/", "8.8.8.8"),
        ("http://ＢÜCHER.example/ü", "xn--bcher-kva.example", 80, "/%C3%BC", None),
        ("h\nttp://example.com/\r\nX: y", "example.com", 80, "/X:%20y", "example.com"),
        ("http://a@b@example.com", "example.com", 80, "/", "example.com"),
    ],
)
def test_a_url_is_read_as_browsers_read_it(
    url: str, host: str, port: int, path: str, authority: str | None
) -> None:
    target = read_url(url)

    assert (host, port, path) == (target.host, target.port, target.path)
    assert authority in (None, target.authority)


@pytest.mark.parametrize(
    "url",
    ["http://", "http://:80/", "http://a:b/", "http://a:65536/", "http://[::1", "http://[::1]x/",
     "http://[fe80::1%25eth0]/", "http://1.2.3.4.5/", "http://1.2.3.256/", "http://08/", "x", "",
     "http://a%00b/", "http://a%2Fb/", "http://" + "ü" * 100 + "/", "http:// example.com",
     "http://4294967296/", "http://a..%20/"],
)  # fmt: skip
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidField):
        read_url(url)


def spelled(url: str, *allowed: str) -> str | None:
    try:
        check_spelled(read_url(url), AllowedTargets(allowed))
    except InvalidField as refusal:
        return str(refusal)
    return None


def test_a24_an_operator_can_allow_addresses_networks_and_names() -> None:
    assert spelled("http://10.1.2.3/") == "Webhook URL cannot point to private IP"
    assert spelled("http://10.1.2.3/", "10.1.0.0/16") is None
    assert spelled("http://10.2.2.3/", "10.1.0.0/16") is not None
    assert spelled("http://[fd00::7]/", "fd00::/8") is None
    assert spelled("http://db.internal./", "DB.internal") is None
    assert spelled("http://localhost/", "localhost") is None
    assert spelled("http://localhost/", "127.0.0.1") is not None


def test_an_allowed_name_may_lead_anywhere_and_others_may_not() -> None:
    allowed = AllowedTargets(["hooks.lan"])
    inside = as_address("10.0.0.1")

    assert allowed.admits(read_url("http://hooks.lan/"), inside)
    assert not allowed.admits(read_url("http://other.lan/"), inside)
    assert allowed.admits(read_url("http://other.lan/"), as_address("8.8.8.8"))


def test_a_mapped_address_is_not_let_in_by_the_network_of_another_form() -> None:
    allowed = AllowedTargets(["::/0"])

    assert not allowed.admits(read_url("http://x.lan/"), as_address("10.0.0.1"))


@pytest.mark.parametrize("url", [None, "", False, 0, []])
def test_a_url_that_says_nothing_is_missing(url: object) -> None:
    with pytest.raises(InvalidField, match="Webhook URL is required"):
        read_url(url)


@pytest.mark.parametrize("url", [5, True, {}, ["http://example.org"], b"http://example.org"])
def test_a_url_that_is_no_text_is_malformed(url: object) -> None:
    with pytest.raises(InvalidField, match="Invalid URL format"):
        read_url(url)
