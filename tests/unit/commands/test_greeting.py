from types import SimpleNamespace

import pytest

from bunqueue.commands import dispatch


@pytest.fixture
def peer():
    return SimpleNamespace(is_authenticated=True, int64=False)


def hello(peer, **fields):
    return dispatch(peer, {"cmd": "Hello", **fields})


def test_hello_lists_what_the_reference_lists(peer):
    reply = hello(peer, protocolVersion=3, capabilities=["pipelining"])

    assert ["pipelining", "separate-job-name"] == reply["capabilities"]
    assert not peer.int64


def test_hello_agrees_on_int64_with_a_peer_that_announces_it(peer):
    reply = hello(peer, capabilities=["pipelining", "int64"])

    assert "int64" in reply["capabilities"]
    assert peer.int64


@pytest.mark.parametrize("capabilities", [None, 7, "int64", {"int64": True}])
def test_hello_ignores_capabilities_of_another_form(peer, capabilities):
    assert hello(peer, capabilities=capabilities)["ok"]
    assert not peer.int64
