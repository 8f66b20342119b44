import pytest
import trustme

from bunqueue.cli.call import address, named_address
from bunqueue.cli.usage import UsageError

NONE = {
    "--host": None,
    "--port": None,
    "--token": None,
    "--url": None,
    "--tls": False,
    "--tls-ca": None,
    "--tls-no-verify": False,
}


def test_without_options_the_broker_is_local():
    assert {"host": "localhost", "port": 6789} == address(NONE, {})


def test_the_environment_names_the_broker():
    environ = {"BUNQUEUE_HOST": "a", "BQ_TCP_PORT": "7000", "BUNQUEUE_TOKEN": "s"}

    assert {"host": "a", "port": 7000, "token": "s"} == address(NONE, environ)


def test_earlier_names_of_the_environment_win():
    environ = {"HOST": "a", "BQ_HOST": "b", "BQ_TOKEN": "c", "BUNQUEUE_TOKEN": "d"}

    assert {"host": "a", "port": 6789, "token": "c"} == address(NONE, environ)


def test_options_win_over_url_and_environment():
    args = NONE | {"--host": "a", "--url": "bunqueue://:t@b:1"}

    assert {"host": "a", "port": 1, "token": "t"} == address(args, {"HOST": "c", "TCP_PORT": "2"})


def test_a_bunqueues_url_means_tls():
    args = NONE | {"--url": "bunqueues://host"}

    assert {"host": "host", "port": 6789, "tls": True} == address(args, {})


def test_a_certificate_file_implies_tls(tmp_path):
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(path)
    args = NONE | {"--tls-ca": str(path), "--tls-no-verify": True}

    assert {"ca_file": str(path), "verify": False} == address(args, {})["tls"]


def test_a_certificate_file_that_cannot_be_used_is_refused():
    with pytest.raises(UsageError, match="--tls-ca nowhere.pem holds no certificates"):
        address(NONE | {"--tls-ca": "nowhere.pem"}, {})


@pytest.mark.parametrize("url", ["host:1", "http://host", "bunqueue://", "bunqueue://host:x"])
def test_a_url_of_another_form_is_refused(url):
    with pytest.raises(UsageError, match="--url"):
        address(NONE | {"--url": url}, {})


@pytest.mark.parametrize("port", ["x", "0", "65536"])
def test_a_port_out_of_range_is_refused(port):
    with pytest.raises(UsageError, match="the port must be"):
        address(NONE | {"--port": port}, {})


def test_only_the_options_name_an_address():
    environ = {"HOST": "c", "TCP_PORT": "2", "BQ_TOKEN": "t"}

    assert {} == named_address(NONE, environ)
    assert {"host": "a", "port": 1} == named_address(NONE | {"--host": "a", "--port": "1"}, environ)


def test_a_url_names_the_whole_address():
    args = NONE | {"--url": "bunqueue://b"}

    assert {"host": "b", "port": 6789, "token": None, "tls": None} == named_address(args, {})
    assert "t" == named_address(args, {"BQ_TOKEN": "t", "TCP_PORT": "2"})["token"]
