"""Which core runs, and that it can be chosen."""

import gc
import os
import subprocess
import sys
from collections import deque

import pytest
from hypothesis import given, settings, strategies

from bunqueue import compiled
from bunqueue.engine import lanes
from bunqueue.engine.job import Job
from bunqueue.protocol.options import DEFAULT_OPTIONS

WHICH = "from bunqueue import compiled; print(compiled.CORE, compiled.part('records') is None)"


def test_pure_python_can_be_forced() -> None:
    env = {**os.environ, compiled.PURE_VARIABLE: "1"}
    told = subprocess.run([sys.executable, "-c", WHICH], env=env, capture_output=True, text=True)

    assert "pure Python True\n" == told.stdout


def test_the_core_that_runs_is_the_one_that_is_told() -> None:
    module = "bunqueue.compiled.records" if compiled.IS_COMPILED else "bunqueue.engine.job"

    assert module == Job.__module__


RING_STEPS = strategies.lists(
    strategies.one_of(
        strategies.tuples(strategies.just("append"), strategies.integers(1, 3_000)),
        strategies.tuples(strategies.just("popleft"), strategies.integers(1, 3_000)),
        strategies.tuples(strategies.just("extend"), strategies.integers(1, 3)),
    ),
    max_size=12,
)


@pytest.mark.skipif(not compiled.IS_COMPILED, reason="pure Python has a deque")
@settings(deadline=None, max_examples=50)
@given(steps=RING_STEPS)
def test_the_ring_holds_what_a_deque_would(steps: list[tuple[str, int]]) -> None:
    ring, expected = lanes.Ring(), deque()
    for number, (step, count) in enumerate(steps):
        for _ in range(count):
            if step == "append":
                job = Job("id", number, None, "n", b"", DEFAULT_OPTIONS, 0, 0, 0, "queued")
                ring.append(job)
                expected.append(job)
            elif step == "extend":
                jobs = [Job("id", number, None, "n", b"", DEFAULT_OPTIONS, 0, 0, 0, "queued")] * 900
                ring.extend(jobs)
                expected.extend(jobs)
            elif expected:
                assert expected.popleft() is ring.popleft()
        assert len(expected) == len(ring)
        assert bool(expected) == bool(ring)
        assert not expected or expected[0] is ring[0]

    assert list(expected) == list(ring)
    assert list(expected) == list(lanes.Ring(expected))


@pytest.mark.skipif(not compiled.IS_COMPILED, reason="pure Python has a deque")
def test_an_empty_ring_has_nothing_to_give() -> None:
    ring = lanes.Ring()

    with pytest.raises(IndexError):
        ring.popleft()
    with pytest.raises(IndexError):
        ring[0]


@pytest.mark.skipif(not compiled.IS_COMPILED, reason="pure Python has a deque")
def test_a_ring_that_goes_lets_go_of_its_jobs() -> None:
    data = b"payload that nobody else has"
    job = Job("id", 1, None, "n", data, DEFAULT_OPTIONS, 0, 0, 0, "queued")
    before = sys.getrefcount(job)
    ring = lanes.Ring([job] * 2_000)
    assert before + 2_000 == sys.getrefcount(job)

    del ring

    assert before == sys.getrefcount(job)


@pytest.mark.skipif(not compiled.IS_COMPILED, reason="pure Python's jobs are objects as any")
def test_the_collector_does_not_look_at_jobs() -> None:
    job = Job("id", 1, None, "n", b"", DEFAULT_OPTIONS, 0, 0, 0, "queued")

    assert not gc.is_tracked(job)
    assert not gc.is_tracked(lanes.Ring([job]))
    if sys.version_info < (3, 14):  # which looks at every dict
        assert not gc.is_tracked({"id": job})
