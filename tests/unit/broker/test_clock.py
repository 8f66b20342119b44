"""One steady line of time."""

from bunqueue.broker.clock import Clock


class Hands:
    """Two clocks that the test moves."""

    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self.steady_ms = 5_000.0
        self.jumps: list[int] = []
        self.clock = Clock(lambda: self.wall_ms * 1_000_000, lambda: self.steady_ms / 1000)
        self.clock.on_jump = self.jumps.append

    def pass_ms(self, span_ms: int, wall_ms: int | None = None) -> int:
        self.steady_ms += span_ms
        self.wall_ms += span_ms if wall_ms is None else wall_ms
        return self.clock.now()


def test_time_passes_without_a_jump() -> None:
    hands = Hands()

    assert 1_700_000_000_400 == hands.pass_ms(400)
    assert 1_700_003_600_400 == hands.pass_ms(3_600_000)
    assert [] == hands.jumps


def test_a_clock_set_forward_is_told_before_its_time_is() -> None:
    hands = Hands()

    assert 1_700_003_600_400 == hands.pass_ms(400, wall_ms=3_600_400)
    assert [3_600_000] == hands.jumps


def test_a_clock_set_back_is_told() -> None:
    hands = Hands()

    assert 1_699_996_400_400 == hands.pass_ms(400, wall_ms=-3_599_600)
    assert [-3_600_000] == hands.jumps
    assert 1_699_996_400_500 == hands.pass_ms(100)


def test_a_small_step_back_is_waited_out() -> None:
    hands = Hands()

    assert 1_700_000_000_000 == hands.pass_ms(0, wall_ms=-500)
    assert 1_700_000_000_000 == hands.pass_ms(400)
    assert 1_700_000_000_100 == hands.pass_ms(200)
    assert [] == hands.jumps


def test_slow_drift_never_becomes_a_jump() -> None:
    hands = Hands()
    for _ in range(100):
        hands.pass_ms(900, wall_ms=890)
        hands.clock.look()
    hands.pass_ms(2_000)

    assert [] == hands.jumps


def test_jumps_are_counted_and_the_last_one_is_known() -> None:
    hands = Hands()
    hands.pass_ms(400)
    assert (0, None) == (hands.clock.jumps, hands.clock.last_jump)

    hands.pass_ms(400, wall_ms=3_600_400)
    now = hands.pass_ms(400, wall_ms=-60_000)

    assert (2, (now, -60_400)) == (hands.clock.jumps, hands.clock.last_jump)
