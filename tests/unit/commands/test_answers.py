"""Requests made from the field tables: every answer is as wire.md 1.2 says, its ``reqId`` too.

What is tried here with a few bytes is tried with many by ``python -m tests.fuzz``.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue.commands import COMMANDS
from tests.fuzz.answers import judge
from tests.fuzz.choices import Choices, packed
from tests.fuzz.requests import request
from tests.fuzz.targets import Talk, bodies, dispatch, quiet, read
from tests.support.wire import frame, frame_of, push


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=600))
def test_a_life_of_random_commands_has_answers_and_leaves_the_engine_whole(data: bytes) -> None:
    dispatch(data)


@pytest.mark.parametrize("name", sorted(COMMANDS))
@settings(max_examples=12, deadline=None)
@given(st.binary(min_size=20, max_size=80))
def test_whatever_is_asked_is_answered(name: str, data: bytes) -> None:
    choices = Choices(data)
    with quiet():
        talk = Talk()
        for _ in range(3):
            talk.say(push("q"))
        talk.say(frame({"cmd": "PULLB", "queue": "q", "count": 2, "owner": "w"}))
        asked = request(choices, talk.engine, name)
        body = packed(asked, choices, odd=False)
        answers = [raw for raw in bodies(talk.say(frame_of(body))) if "ok" in read(raw)]

        assert len(answers) + len(talk.connection.parked) == 1
        for raw in answers:
            judge(body, read(raw), raw, talk.connection.int64)
