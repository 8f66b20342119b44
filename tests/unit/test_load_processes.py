"""What the load tools ask of the kernel: which core a process runs on."""

from __future__ import annotations

import os

import pytest

from loadtests.processes import CORES, pinned


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_a_bound_driver_starts_its_server_on_the_other_core():
    driver_core, server_core, *_ = sorted(CORES)
    before = os.sched_getaffinity(0)

    with pinned(driver_core):
        with pinned(server_core):
            assert {server_core} == os.sched_getaffinity(0)
        assert {driver_core} == os.sched_getaffinity(0)
    assert before == os.sched_getaffinity(0)


def test_without_that_core_nothing_is_bound():
    before = os.sched_getaffinity(0)

    for core in (None, max(CORES) + 1):
        with pinned(core):
            assert before == os.sched_getaffinity(0)
