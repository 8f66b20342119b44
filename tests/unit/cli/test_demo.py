import pytest

from bunqueue.cli.demo import HEAD, JOBS, KINDS, Tally, faults, summary


@pytest.fixture
def tally():
    """Everything went as promised."""
    tally = Tally()
    for kind in KINDS:
        tally.pushed[kind.name] = kind.count
        tally.runs[kind.name] = kind.count * kind.runs
        outcomes = tally.completed if kind.completes else tally.dead
        outcomes[kind.name] = kind.count
    return tally


COUNTS = {"waiting": 0, "delayed": 0, "active": 0, "completed": 950, "failed": 50}


def test_the_demo_is_about_a_thousand_jobs():
    assert 1_000 == JOBS


def test_a_run_as_promised_adds_up(tally):
    assert [] == faults(tally, COUNTS)


def test_a_lost_job_does_not_add_up(tally):
    tally.completed["plain"] -= 1

    assert [
        "plain: completed 499, expected 500",
        "the queue counts 950 jobs completed, expected 949",
    ] == faults(tally, COUNTS)


def test_a_job_run_twice_does_not_add_up(tally):
    tally.runs["prioritised"] += 1

    assert ["prioritised: runs 201, expected 200"] == faults(tally, COUNTS)


def test_a_job_run_early_does_not_add_up(tally):
    tally.early = 1

    assert ["1 jobs ran before they were due"] == faults(tally, COUNTS)


def test_a_job_left_behind_does_not_add_up(tally):
    assert ["the queue counts 1 jobs active, expected 0"] == faults(tally, COUNTS | {"active": 1})


def test_the_summary_ends_with_the_sum(tally):
    rows = list(summary(tally))

    assert len(KINDS) + 1 == len(rows)
    assert ("all", 1_000, 950, 50, 1_130, 1_130) == rows[-1]
    assert len(HEAD) == len(rows[-1])
