"""Running the machine with a seed, the same histories each time."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run(
    machine: type[RuleBasedStateMachine],
    number: int,
    histories: int,
    steps: int,
    *,
    shrinks: bool = True,
) -> None:
    """Run so many histories of at most so many steps; the first failure is raised.

    Args:
        shrinks: Look for the smallest history that fails; takes up to five minutes.
    """
    phases = (Phase.generate, Phase.shrink) if shrinks else (Phase.generate,)
    how = settings(
        max_examples=histories,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    seeded = seed(number)(type(machine.__name__, (machine,), {}))
    run_state_machine_as_test(seeded, settings=how)
