import pytest

from bunqueue.cli.start import FLAGS, banner, place
from bunqueue.cli.table import SUBCOMMANDS
from bunqueue.server.main import Started


def started(**changes):
    values = {
        "tcp": ("127.0.0.1", 6789),
        "http": ("127.0.0.1", 6790),
        "data_path": None,
        "has_tls": False,
        "has_auth": False,
        "version": "1.2.3",
        "pid": 7,
    }
    return Started(**values | changes)


def test_the_banner_tells_what_listens_where():
    assert [
        "bunqueue 1.2.3, process 7",
        "Jobs:            bunqueue://127.0.0.1:6789",
        "HTTP:            http://127.0.0.1:6790",
        "Storage:         memory only, jobs end with this process",
        "TLS:             off",
        "Authentication:  none, open to all",
    ] == list(banner(started()))


def test_the_banner_tells_of_file_tls_and_authentication():
    text = "\n".join(banner(started(data_path="/var/q.db", has_tls=True, has_auth=True)))

    assert "bunqueues://127.0.0.1:6789" in text
    assert "https://127.0.0.1:6790" in text
    assert "Storage:         /var/q.db" in text
    assert "Authentication:  token required" in text


def test_http_on_a_unix_socket_is_shown_by_its_path():
    assert "HTTP:            /run/http.sock" in list(banner(started(http="/run/http.sock")))


def test_an_ipv6_address_is_shown_in_brackets():
    assert "[::1]:6789" == place(("::1", 6789))


@pytest.mark.parametrize("flag", [row.flag for row in FLAGS])
def test_every_setting_with_a_flag_is_in_the_help(flag):
    assert f"  {flag} " in SUBCOMMANDS["start"].usage
