import msgpack
import pytest

from bunqueue.broker.held import NOT_STORED, about, settled, settled_frames
from bunqueue.engine.ports import MUST_COMMIT, SHOULD_COMMIT
from bunqueue.protocol.replies import INTERNAL_ERROR, OK
from tests.support.wire import frame, values

REFUSED = {"ok": False, "error": NOT_STORED}
NO_IDS = b"\xc0" * 3


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


@pytest.mark.parametrize(
    "request_",
    [{"id": "b"}, {"ids": ["a", "b"]}, {"childId": "b", "parentId": "a"}, {"parentId": "b"}],
)
def test_an_answer_to_a_request_about_a_job_without_a_row_becomes_an_error(request_):
    dropped = frozenset({"b"})

    assert settled(OK, MUST_COMMIT, dropped, about(request_)) == REFUSED
    assert OK is settled(OK, MUST_COMMIT, dropped, about({"id": "a", "data": "b"}))


def test_of_several_frames_each_has_the_ids_that_it_is_about():
    frames = frame({"ok": True, "reqId": 1}) * 3
    waits = bytes((MUST_COMMIT,)) * 3
    ids = b"".join(map(msgpack.packb, ("a", ["a", "b"], None)))

    answer = {"ok": True, "reqId": 1}
    assert [answer, REFUSED | {"reqId": 1}, answer] == values(
        settled_frames(frames, waits, ids, frozenset({"b"}))
    )


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
        settled_frames(frames, waits, NO_IDS, frozenset({"b"}))
    )
    failed = {"ok": False, "error": INTERNAL_ERROR}
    assert [failed | {"reqId": "b"}, failed | {"reqId": 300}, {"ok": True, "id": "b"}] == values(
        settled_frames(frames, waits, NO_IDS, False)
    )
