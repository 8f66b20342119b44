"""The request limit of a connection."""

from bunqueue.server.rate import RequestRate


def test_requests_above_the_limit_are_refused() -> None:
    rate = RequestRate(2, 1_000)

    assert [True, True, False] == [rate.admits(10.0) for _ in range(3)]


def test_the_window_slides() -> None:
    rate = RequestRate(2, 1_000)
    rate.admits(10.0)
    rate.admits(10.6)

    assert not rate.admits(10.9)
    assert rate.admits(11.0)
    assert not rate.admits(11.5)
    assert rate.admits(11.6)


def test_refused_requests_do_not_count() -> None:
    rate = RequestRate(1, 1_000)
    rate.admits(10.0)
    for moment in range(100, 110):
        rate.admits(moment / 10)

    assert rate.admits(11.0)
