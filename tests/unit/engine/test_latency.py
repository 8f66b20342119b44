import pytest

from bunqueue.engine.latency import Histogram, Latencies


def test_nothing_observed_is_all_zero() -> None:
    histogram = Histogram()

    assert (0, 0.0, 0.0) == (histogram.count, histogram.mean_ms(), histogram.percentile_ms(0.99))


@pytest.mark.parametrize(("seconds", "bound_ms"), [(0.0001, 0.1), (0.00011, 0.5), (9.0, 10_000)])
def test_a_span_lies_below_the_next_bound(seconds: float, bound_ms: float) -> None:
    histogram = Histogram()
    histogram.observe(seconds)

    assert bound_ms == histogram.percentile_ms(0.5)


def test_what_is_longer_than_every_bound_is_counted() -> None:
    histogram = Histogram()
    histogram.observe(60, 2)

    assert 10_000 == histogram.percentile_ms(0.5)
    assert 0 == list(histogram.cumulative())[-1][1]
    assert (2, 120) == (histogram.count, histogram.sum_s)


def test_percentiles_look_at_all() -> None:
    histogram = Histogram()
    histogram.observe(0.0002, 90)
    histogram.observe(0.02, 10)

    assert (0.5, 25) == (histogram.percentile_ms(0.9), histogram.percentile_ms(0.95))


def test_the_mean_is_over_all_three() -> None:
    latencies = Latencies()
    latencies.note((0.001, 1, 2, 0))
    latencies.note((0.004, 0, 0, 1))

    assert 1.75 == latencies.mean_ms()
    assert (1, 2, 1) == (latencies.push.count, latencies.pull.count, latencies.ack.count)
