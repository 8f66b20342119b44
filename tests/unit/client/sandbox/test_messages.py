"""Messages between a parent and its children."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from bunqueue.client.sandbox.messages import Inbox, encode

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
MESSAGES = st.lists(st.dictionaries(st.text(), SCALARS | st.lists(SCALARS)), max_size=4)


@given(MESSAGES, st.integers(1, 20))
def test_messages_survive_being_cut_anywhere(messages, step):
    stream = b"".join(encode(message) for message in messages)
    inbox = Inbox()
    found = []
    for start in range(0, len(stream), step):
        inbox.feed(stream[start : start + step])
        while (message := inbox.next()) is not None:
            found.append(message)

    assert messages == found


def test_moments_stay_moments():
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    inbox = Inbox()
    inbox.feed(encode({"data": moment}))

    assert {"data": moment} == inbox.next()
