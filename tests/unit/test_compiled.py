"""Which core runs, and that it can be chosen."""

import os
import subprocess
import sys

from bunqueue import compiled

WHICH = "from bunqueue import compiled; print(compiled.CORE, compiled.part('records') is None)"


def test_pure_python_can_be_forced() -> None:
    env = {**os.environ, compiled.PURE_VARIABLE: "1"}
    told = subprocess.run([sys.executable, "-c", WHICH], env=env, capture_output=True, text=True)

    assert "pure Python True\n" == told.stdout


def test_the_core_that_runs_is_the_one_that_is_told() -> None:
    from bunqueue.engine.job import Job

    module = "bunqueue.compiled.records" if compiled.IS_COMPILED else "bunqueue.engine.job"

    assert module == Job.__module__
