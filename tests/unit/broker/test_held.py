import msgpack
import pytest

from bunqueue.broker.held import NOT_STORED, settled, settled_frames
from bunqueue.engine.ports import MUST_COMMIT, SHOULD_COMMIT
from bunqueue.protocol.replies import INTERNAL_ERROR
from tests.support.wire import frame, values

REFUSED = {"ok": False, "error": NOT_STORED}


@pytest.mark.parametrize("reply", [{"ok": True, "id": "a"}, msgpack.packb({"ok": True, "id": "a"})])
def test_an_answer_leaves_as_it_is_once_its_commit_has_succeeded(reply):
    assert reply is settled(reply, MUST_COMMIT, True)
    assert reply is settled(reply, MUST_COMMIT, frozenset({"b"}))


def test_after_a_failed_commit_only_a_claim_leaves():
    reply = {"ok": True}

    assert reply is settled(reply, SHOULD_COMMIT, False)
    assert {"ok": False, "error": INTERNAL_ERROR} == settled(reply, MUST_COMMIT, False)


@pytest.mark.parametrize(
    "reply",
    [
        {"ok": True, "id": "b"},
        msgpack.packb({"ok": True, "id": "b"}),
        {"ok": True, "ids": ["a", "b"]},
        {"ok": True, "data": {"children": [{"id": "b"}]}},
    ],
)
def test_an_answer_that_names_a_job_without_a_row_becomes_an_error(reply):
    assert settled(reply, MUST_COMMIT, frozenset({"b"})) == REFUSED


def test_each_of_several_frames_has_its_own_end_and_keeps_its_req_id():
    frames = b"".join(
        frame(reply)
        for reply in (
            {"ok": True, "id": "a", "reqId": "b"},
            {"ok": True, "id": "b", "reqId": 300},
            {"ok": True, "id": "b"},
        )
    )
    waits = bytes((MUST_COMMIT, MUST_COMMIT, SHOULD_COMMIT))

    assert [{"ok": True, "id": "a", "reqId": "b"}, REFUSED | {"reqId": 300}, REFUSED] == values(
        settled_frames(frames, waits, frozenset({"b"}))
    )
    failed = {"ok": False, "error": INTERNAL_ERROR}
    assert [failed | {"reqId": "b"}, failed | {"reqId": 300}, {"ok": True, "id": "b"}] == values(
        settled_frames(frames, waits, False)
    )
