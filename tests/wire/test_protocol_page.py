"""docs/protocol.md: every command is on it, and what it says of replies and errors is so."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from bunqueue.broker import EngineSettings
from bunqueue.commands.core import PULL_COUNT_MAX
from bunqueue.commands.flow_plan import FLOW_JOBS_MAX
from bunqueue.commands.registry import COMMANDS
from bunqueue.engine.events import OF_JOBS
from bunqueue.engine.states import ACTIVE, ADMITTED, COMPLETED, FAILED, GONE, MOVES, PARKED, QUEUED
from bunqueue.engine.states import STATES as JOB_STATES
from bunqueue.protocol.codec import DEPTH_MAX, decode
from bunqueue.protocol.frames import FRAME_BYTES_MAX
from bunqueue.protocol.options import DATA_CHARS_MAX, KEEP_LOGS_MAX
from bunqueue.protocol.replies import ALREADY_FINALIZED
from bunqueue.server.connection import COMMANDS_WAITING_MAX
from tests.support import protocol_page
from tests.support.protocol_page import Example, Section
from tests.support.refusals import all_texts, refusals
from tests.support.wire import frame
from tests.wire.conversation import Replay
from tests.wire.test_conversations import Direct

TEXT = protocol_page.page()
SECTIONS = {each.title: each for each in protocol_page.sections(TEXT)}
EXAMPLES = protocol_page.examples(TEXT)
COMMAND_SECTIONS = protocol_page.commands(TEXT)
ERRORS = set(protocol_page.errors(TEXT))


class OnServer(Direct):
    """A connection to the broker of a server, without a socket."""

    def __init__(self, tokens: tuple[str, ...] = ()) -> None:
        super().__init__(tokens)

    def call(self, cmd: str, **fields: Any) -> Any:
        """Send a request and return its answer."""
        self.send(frame({"cmd": cmd, **fields}))
        return self.value()


def first_cells(section: str, table: int = 0) -> list[str]:
    """Return the names in the first column of a section's table."""
    tables = re.split(r"\n\n", SECTIONS[section].text)
    rows = [each for each in tables if each.startswith("| ")][table].splitlines()[2:]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


# -- completeness ---------------------------------------------------------------------------------


def test_every_command_has_a_section_and_there_is_no_other() -> None:
    assert sorted(COMMANDS) == sorted(section.title for section in COMMAND_SECTIONS)


@pytest.mark.parametrize("section", COMMAND_SECTIONS, ids=lambda each: each.title)
def test_a_section_has_its_fields_and_shows_a_success(section: Section) -> None:
    shown = [line for each in EXAMPLES if each.section == section.title for line in each.lines]

    assert f"<!-- made: command {section.title} -->" in section.text
    assert section.title in {value["cmd"] for mark, value in shown if mark == ">"}
    assert any(mark == "<" and value.get("ok") is True for mark, value in shown)


def test_every_field_that_may_be_absent_says_what_that_means() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|  \|  \|$", TEXT, re.MULTILINE)

    assert [] == rows


def test_every_link_leads_to_a_heading_of_the_page() -> None:
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in SECTIONS}

    assert set() == set(re.findall(r"\]\(#([^)]+)\)", TEXT)) - anchors


# -- replies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: f"{each.section} {each.number}")
def test_an_example_is_what_the_broker_answers(example: Example) -> None:
    link = OnServer(example.tokens)

    Replay(link).run(protocol_page.says(example))

    with pytest.raises(IndexError):  # no answer is left
        link.value()


def test_the_reply_without_effect_is_shown_as_it_is() -> None:
    (shown,) = set(re.findall(r'`(\{"ok": true, "data": \{"applied".*?\})`', TEXT))

    assert decode(ALREADY_FINALIZED) == json.loads(shown)


def test_the_members_of_a_job_are_all_told() -> None:
    link = OnServer()
    link.call("PUSH", queue="q", jobId="a")
    job = link.call("PULL", queue="q")["job"]

    assert sorted(job) == sorted(first_cells("Job"))


def test_the_states_and_the_events_are_all_told() -> None:
    assert {*JOB_STATES, "unknown"} == set(first_cells("The life of a job"))
    assert set(OF_JOBS) == set(first_cells("Event"))


# -- errors ---------------------------------------------------------------------------------------


def test_every_error_of_the_page_can_be_met() -> None:
    known = [re.compile(text) for text in all_texts()]

    assert set() == {
        error for error in ERRORS if not any(pattern.fullmatch(error) for pattern in known)
    }


def test_every_refusal_of_the_code_is_on_the_page() -> None:
    assert set() == {text for text in refusals() if not is_told(text)}


def is_told(text: str) -> bool:
    """Say whether a text of the code, a pattern, is an error of the page, or a part of one."""
    plain = text.replace("\\", "")
    return f"`{plain}`" in TEXT or any(
        re.fullmatch(text, error) or re.fullmatch(re.sub(r"<\w+>", ".+", re.escape(error)), plain)
        for error in ERRORS
    )


# -- the life of a job ----------------------------------------------------------------------------


def test_the_diagram_has_the_moves_of_the_engine() -> None:
    drawn = set(re.findall(r"^    (\S+) --> (\S+?):", TEXT, re.MULTILINE))
    name = {ADMITTED: "[*]", GONE: "[*]"}
    moves = {
        (name.get(place, place), name.get(after, after))
        for place, edges in MOVES.items()
        for event, after in edges.items()
        if event != "undo"
    }

    assert moves - {("[*]", "[*]")} == drawn


def job_in(place: str) -> tuple[OnServer, str | None]:
    """Return a link to a broker whose job "a" is in the place, and its last token."""
    link, token = OnServer(), None
    link.call("PUSH", queue="q", jobId="b", delay=60_000)
    waits = {"dependsOn": ["b"]} if place == PARKED else {}
    link.call("PUSH", queue="q", jobId="a", maxAttempts=1, **waits)
    if place in (ACTIVE, COMPLETED, FAILED):
        token = link.call("PULL", queue="q", owner="worker")["token"]
    if place == COMPLETED:
        link.call("ACK", id="a", token=token)
    if place == FAILED:
        link.call("FAIL", id="a", token=token)
    return link, token


LEGALITY = [
    (command, place, cells[number])
    for row in re.findall(r"^\| `(?:ACK|\w+)`.*\|$", SECTIONS["Legal moves"].text, re.M)
    if (cells := [cell.strip() for cell in row.strip("|").split("|")]) and len(cells) == 6
    for number, place in enumerate((QUEUED, PARKED, ACTIVE, COMPLETED, FAILED), 1)
    for command in re.findall(r"`(\w+)`", cells[0])
]


@pytest.mark.parametrize(("command", "place", "cell"), LEGALITY)
def test_a_command_is_legal_where_the_page_says(command: str, place: str, cell: str) -> None:
    fields: dict[str, Any] = {
        "queue": "q", "id": "a", "jobId": "a", "progress": 1, "delay": 1, "priority": 1, "data": {},
    }  # fmt: skip
    link, token = job_in(place)
    answer = link.call(command, **fields, token=token)

    is_done = answer["ok"] and answer.get("count", 1) != 0
    is_done = is_done and answer.get("data", {}).get("removed", True)
    assert (cell == "yes") == is_done, answer


def test_legality_is_told_of_every_move() -> None:
    assert 5 * 18 == len(LEGALITY)


# -- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bound",
    [
        FRAME_BYTES_MAX, DEPTH_MAX, DATA_CHARS_MAX, FLOW_JOBS_MAX, PULL_COUNT_MAX,
        COMMANDS_WAITING_MAX, KEEP_LOGS_MAX, EngineSettings().max_completed_jobs,
    ],
)  # fmt: skip
def test_the_bounds_are_those_of_the_code(bound: int) -> None:
    assert re.search(rf"(?<![\d,]){bound:,}\b", SECTIONS["Bounds"].text)
