"""A model that is held against a real broker: random histories, kills, restarts, clock steps.

``oracle.py`` says what jobs are and what becomes of them; ``machine.py`` has the commands of a
random history, ``episodes.py`` the short fixed stories put in between, ``checks.py`` which
invariant of the engine is looked at where. ``python -m tests.model`` is the long form.
"""
