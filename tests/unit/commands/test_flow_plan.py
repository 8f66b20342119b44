"""What PUSHF refuses, word for word as the reference does (wire.md 2.1.2)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.commands.flow_plan import FLOW_JOBS_MAX, ORDERED_PER_STEP, planned
from tests.support.engine import World
from tests.support.flows import flow_child, flow_parent

LONG = "x" * 1025


@pytest.fixture
def world() -> World:
    return World()


def one(job_id: Any = "x", queue: Any = "q", **options: Any) -> dict[str, Any]:
    return {"id": job_id, "queue": queue, "input": {"name": "n", "data": {}, **options}}


def parent(**options: Any) -> dict[str, Any]:
    return flow_parent(**options)


WHOLE = {
    "flow jobs must be an array": [5, None, {"id": "x"}],
    f"flow exceeds the {FLOW_JOBS_MAX} job limit": [[{}] * (FLOW_JOBS_MAX + 1)],
}
IDS = {
    "flow job id must be a string": [[one(5)], [one(None)], [5], [{}]],
    "flow job id is invalid or is not well-formed Unicode": [[one("")], [one(LONG)]],
    "flow job id cannot contain a colon": [[one("a:b")]],
    "duplicate flow job id: x": [[one(), one()]],
    "custom id does not match planned id: x": [[one(customId="y")], [one(customId=5)]],
}
JOBS = {
    "invalid flow queue: 5": [[one(queue=5)]],
    "invalid flow queue: null": [[one(queue=None)]],
    "invalid flow queue: ": [[one(queue="")]],
    "invalid flow queue: a b": [[one(queue="a b")]],
    "Job name must be a non-empty string of at most 256 characters": [
        [one(name=name)] for name in (5, None, "", "x" * 257)
    ],
    "flow job data must be an object": [
        *([one(data=data)] for data in (5, None, [1], "a")),
        [{"id": "x", "queue": "q"}],
        [{"id": "x", "queue": "q", "input": 5}],
    ],
}
NUMBERS = {
    "priority": ("priority", -1_000_000, 1_000_000),
    "delay": ("delay", 0, 31_536_000_000),
    "ttl": ("ttl", 0, 31_536_000_000),
    "timeout": ("timeout", 0, 86_400_000),
    "maxAttempts": ("attempts", 1, 1000),
    "backoff": ("backoff", 0, 86_400_000),
    "stallTimeout": ("stallTimeout", 0, 86_400_000),
    "stackTraceLimit": ("stackTraceLimit", 0, 10_000),
    "keepLogs": ("keepLogs", 0, 1_000_000),
    "sizeLimit": ("sizeLimit", 0, 10_485_760),
    "timestamp": ("timestamp", 0, 9_007_199_254_740_991),
}
INTEGERS = ("priority", "maxAttempts", "stackTraceLimit", "keepLogs", "sizeLimit")
FLAGS = (
    "lifo", "removeOnComplete", "removeOnFail", "durable", "failParentOnFailure",
    "removeDependencyOnFailure", "continueParentOnFailure", "ignoreDependencyOnFailure",
)  # fmt: skip
OPTIONS = {
    "backoff.type must be 'fixed' or 'exponential'": [
        [one(backoff=backoff)] for backoff in ({}, {"type": "x"}, [1])
    ],
    "backoff.delay must be a finite number": [[one(backoff={"type": "fixed", "delay": "a"})]],
    "backoff.delay must be between 0 and 86400000": [
        [one(backoff={"type": "fixed", "delay": 10**9})]
    ],
    "tags must be an array of strings of at most 256 characters": [
        [one(tags=tags)] for tags in ("a", None, [1], ["x" * 257])
    ],
    "repeat is not supported inside an atomic flow": [[one(repeat=None)], [one(repeat={})]],
    "deduplication is not supported inside an atomic flow": [
        [one(uniqueKey="")], [one(uniqueKey="k")], [one(dedup={})], [one(dedup=None)],
    ],
    "debounce is not supported inside an atomic flow": [
        [one(debounceId="d")], [one(debounceTtl=5)],
    ],
    "groupId must be a string": [[one(groupId=None)], [one(groupId=5)]],
    "groupId must be a non-empty string": [[one(groupId="")]],
    "group.priority must be between 0 and 2097151": [[one(groupId="g", priority=-1)]],
    "group.maxSize must be between 1 and 9007199254740991": [[one(groupId="g", groupMaxSize=0)]],
    "flow failure policies are mutually exclusive": [
        [flow_child(failParentOnFailure=True, ignoreDependencyOnFailure=True), parent()]
    ],
    "a flow failure policy requires a parent": [
        [one(failParentOnFailure=True)], [one(removeDependencyOnFailure=True)],
    ],
}  # fmt: skip
EDGES = {
    **{
        f"{option} must be an array of valid string job ids": [
            [one(**{option: ids})] for ids in ("a", None, [1], [""], [LONG])
        ]
        for option in ("dependsOn", "childrenIds")
    },
    "flow dependency not found: nope": [
        [one(dependsOn=["nope"])], [one(dependsOn=["nope"], childrenIds=["nope"])],
    ],
    "flow job cannot depend on itself: x": [[one(dependsOn=["x"])]],
    "duplicate dependency in flow job: y": [[one(), one("y", dependsOn=["x", "x"])]],
    "flow contains a dependency cycle": [
        [one(dependsOn=["y"]), one("y", dependsOn=["x"])],
        [one("a"), one("b", dependsOn=["a", "d"]), one("c", dependsOn=["b"]),
         one("d", dependsOn=["c"])],
    ],
    "duplicate child in flow job: p": [[flow_child(), parent(childrenIds=["c", "c"])]],
    "flow child is missing from dependencies: c": [[flow_child(), parent(dependsOn=[])]],
    "flow child is missing from dependencies: nope": [[one(childrenIds=["nope"])]],
    "flow child c does not point back to parent p": [[one("c"), parent()]],
    "flow parent id is invalid: x": [[one(parentId=bad)] for bad in (5, "", None)],
    "flow parent not found: nope": [[one(parentId="nope")]],
    "flow parent not found: pending": [[one(parentId="pending")]],
    "flow parent p does not own child c": [[flow_child(), one("p")]],
    "flow child c metadata does not match parent p": [
        [flow_child(data=data), parent()]
        for data in ({"__parentId": "x"}, {"__parentQueue": "x"}, {"__parentId": None})
    ],
    "flow parent p children does not match the canonical flow topology": [
        [flow_child(), parent(data={"__childrenIds": listed})] for listed in (["z"], 5, None, [])
    ],
}  # fmt: skip
CASES = [
    pytest.param(jobs, text, id=f"{text} {number}")
    for table in (WHOLE, IDS, JOBS, OPTIONS, EDGES)
    for text, each in table.items()
    for number, jobs in enumerate(each)
]


@pytest.mark.parametrize(("jobs", "text"), CASES)
def test_a_plan_that_breaks_a_rule_is_refused(world: World, jobs: Any, text: str) -> None:
    assert text == world.error("PUSHF", jobs=jobs)
    assert {} == world.counts()
    assert 0 == len(world.engine.index)


@pytest.mark.parametrize("option", NUMBERS)
def test_a_number_must_be_one_and_within_its_bounds(world: World, option: str) -> None:
    label, least, most = NUMBERS[option]
    for value in ("a", True, float("nan"), float("inf")):
        text = world.error("PUSHF", jobs=[one(**{option: value})])
        assert f"{label} must be a finite number" == text
    for outside in (least - 1, most + 1 if most < 2**53 - 1 else float(2**54)):
        text = world.error("PUSHF", jobs=[one(**{option: outside})])
        assert f"{label} must be between {least} and {most}" == text
    if option in INTEGERS:
        text = world.error("PUSHF", jobs=[one(**{option: 1.5})])
        assert f"{label} must be an integer" == text
    world.ok("PUSHF", jobs=[one("a", **{option: None}), one("b", **{option: max(least, 100)})])


@pytest.mark.parametrize("option", FLAGS)
def test_a_flag_must_be_a_boolean(world: World, option: str) -> None:
    for value in ("a", None, 1):
        text = world.error("PUSHF", jobs=[one(**{option: value})])
        assert f"{option} must be a boolean" == text
    world.ok("PUSHF", jobs=[one(**{option: False})])


def test_what_is_fine_passes(world: World) -> None:
    jobs = [
        one(customId="x", tags=[""], backoff={"type": "fixed"}, jobId="ignored"),
        one("free", data={"__childrenIds": ["z"], "__parentId": None, "__flowParentId": "z"}),
        {"id": "lifted", "queue": "q", "input": {"data": {"name": "inner", "b": 1}}},
        {"id": "nameless", "queue": "q", "input": {"data": {"name": 5}}},
        flow_child(failParentOnFailure=True, groupId="g", priority=2),
        parent(dependsOn=["c", "x"]),
    ]

    made = world.ok("PUSHF", jobs=jobs)["data"]["jobs"]

    assert [job["id"] for job in jobs] == [job["id"] for job in made]
    assert ["x", None] == [job["customId"] for job in made[:2]]
    assert ["inner", "default"] == [job["name"] for job in made[2:4]]
    assert [{"b": 1}, {"name": 5}] == [job["data"] for job in made[2:4]]


def test_the_data_of_a_job_and_of_a_flow_have_a_size(world: World) -> None:
    big = one(data={"text": "x" * 10_485_760})
    assert "Job data too large (max 10MB)" == world.error("PUSHF", jobs=[big])


def test_the_data_of_all_jobs_together_has_a_size(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bunqueue.commands.flow_plan.FLOW_DATA_CHARS_MAX", 20_000)
    jobs = [one(f"j{number}", data={"text": "x" * 6_000}) for number in range(4)]

    assert "flow data is too large (max 64MB per atomic batch)" == world.error("PUSHF", jobs=jobs)
    world.ok("PUSHF", jobs=jobs[:3])


def test_how_many_jobs_hang_together_is_checked_in_steps(world: World) -> None:
    """The engine may let others in wherever the plan yields."""
    jobs = [one(f"j{number}") for number in range(80)]

    steps = list(planned(jobs, world.engine, is_large=True))

    assert [job["id"] for job in jobs] == [step.id for step in steps if step is not None]
    assert 80 + 2 * 80 // ORDERED_PER_STEP == steps.count(None)
