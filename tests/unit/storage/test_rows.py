"""Every field of a job survives the file."""

import logging

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue.engine.job import NO_EXTRA, DeadLetter, Extra, Job
from bunqueue.engine.ports import BODY, NEW, REMOVED, STATE
from bunqueue.engine.states import (
    ACTIVE,
    ADMITTED,
    COMPLETED,
    FAILED,
    GONE,
    PARKED,
    QUEUED,
)
from bunqueue.protocol.options import DEFAULT_OPTIONS, shared_options
from bunqueue.storage import rows as rows_module
from bunqueue.storage import schema
from bunqueue.storage.rows import PLAIN_COLUMNS, PLAIN_STATE_COLUMNS, SELECT_JOBS, images, jobs_of
from tests.support.stores import NOW, NamedQueue, make_job

# Made in memory or at admission, never stored.
UNSTORED = {"queue", "options", "extra", "delivery", "stamp", "dirty"}
UNSTORED_EXTRA = {"logs", "flow", "dead", "retry"}


class File:
    """Tables in memory, written from images."""

    def __init__(self):
        self.connection = apsw.Connection(":memory:")
        for table in schema.TABLES:
            self.connection.execute(table.create())

    def write(self, *jobs):
        made = images(jobs)
        for table, columns, values in (
            (schema.JOBS, PLAIN_COLUMNS, made.plain),
            (schema.JOBS, schema.JOBS.names, made.full),
            (schema.STATE, PLAIN_STATE_COLUMNS, made.plain_states),
            (schema.STATE, schema.STATE.names, made.full_states),
        ):
            width = len(columns)
            statement = schema.upsert(table, columns) + f"({','.join('?' * width)})"
            for at in range(0, len(values), width):
                self.connection.execute(statement, values[at : at + width])
        return made

    def read(self, on_repair=lambda _: None):
        rows = self.connection.execute(SELECT_JOBS)
        return list(jobs_of(rows, NamedQueue, NOW, on_repair))


@pytest.fixture
def file():
    return File()


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
moments = st.integers(0, 2**53)
optional_text = st.none() | texts
optional_moment = st.none() | moments
entries = st.lists(st.tuples(texts, moments, optional_text).map(list), max_size=3)


@st.composite
def dead_letters(draw):
    dead = DeadLetter(draw(moments), draw(texts), draw(optional_text))
    dead.retry_count = draw(st.integers(0, 9))
    dead.last_retry_at = draw(optional_moment)
    dead.next_retry_at = draw(optional_moment)
    dead.expires_at = draw(optional_moment)
    return dead


@st.composite
def extras(draw):
    extra = Extra()
    extra.is_custom_id = draw(st.booleans())
    extra.unique_key = draw(optional_text)
    extra.unique_until = draw(optional_moment)
    extra.parent_id = draw(optional_text)
    extra.depends_on = dict.fromkeys(draw(st.lists(texts, max_size=3)))
    extra.children_ids = dict.fromkeys(draw(st.lists(texts, max_size=3)))
    extra.group_id = draw(optional_text)
    extra.timeline = draw(st.none() | entries)
    extra.last_error = draw(optional_text)
    extra.stacktrace = draw(st.none() | st.lists(texts, max_size=3))
    extra.history = draw(entries)
    extra.progress = draw(st.integers(0, 100) | st.floats(0, 100))
    extra.progress_message = draw(optional_text)
    extra.lives_from = draw(moments)
    extra.dead = draw(st.none() | dead_letters())
    extra.retry = draw(st.none() | dead_letters())
    return extra


@st.composite
def jobs(draw):
    options = draw(
        st.just({})
        | st.fixed_dictionaries(
            {},
            optional={
                "ttl": st.integers(0, 1000) | st.floats(0, 1000),
                "maxAttempts": st.integers(1, 9),
                "backoff": st.just({"type": "fixed", "delay": 5}),
                "tags": st.lists(texts, max_size=2),
                "durable": st.booleans(),
            },
        )
    )
    job = Job(
        draw(texts),
        draw(st.integers(1, 2**62)),
        NamedQueue(draw(texts)),
        draw(texts),
        draw(st.binary(min_size=1, max_size=30)),
        shared_options(options),
        draw(st.integers(-1_000_000, 1_000_000)),
        draw(moments),
        draw(moments),
        draw(st.sampled_from((QUEUED, PARKED, ACTIVE, COMPLETED, FAILED))),
    )
    job.started_at, job.finished_at = draw(moments), draw(moments)
    job.attempts, job.stall_count = draw(st.integers(0, 1000)), draw(st.integers(0, 9))
    job.token = draw(optional_text)
    job.result = draw(st.none() | st.binary(min_size=1, max_size=30))
    job.extra = draw(st.just(NO_EXTRA) | extras())
    job.dirty = NEW | STATE
    return job


def stored(thing, without):
    return {
        name: (type(getattr(thing, name)), getattr(thing, name))
        for name in type(thing).__slots__
        if name not in without
    }


@settings(max_examples=150, deadline=None)
@given(jobs())
def test_every_stored_field_comes_back_as_it_was(job):
    file = File()
    file.write(job)
    (found,) = file.read()

    assert stored(job, UNSTORED) == stored(found, UNSTORED)
    assert job.queue.name == found.queue.name
    assert job.options.given == found.options.given
    before, after = stored(job.extra, UNSTORED_EXTRA), stored(found.extra, UNSTORED_EXTRA)
    if job.extra.progress == 0:  # whole or not, nothing is nothing
        before["progress"] = after["progress"]
    assert before == after
    for name in ("dead", "retry"):
        letter, letter_found = getattr(job.extra, name), getattr(found.extra, name)
        assert (letter is None) == (letter_found is None)
        if letter is not None:
            assert stored(letter, ()) == stored(letter_found, ())


def test_a_job_that_waits_for_its_first_run_has_no_state_row(file):
    job = make_job(1)
    job.dirty = NEW
    assert [] == file.write(job).plain_states

    (found,) = file.read()
    assert QUEUED == found.place
    assert found.extra is NO_EXTRA
    assert found.options is DEFAULT_OPTIONS


@pytest.mark.parametrize("place", [PARKED, FAILED])
def test_a_new_job_elsewhere_has_a_state_row(file, place):
    job = make_job(1, place=place)
    job.dirty = NEW
    file.write(job)

    assert [place] == [found.place for found in file.read()]


def test_a_custom_id_alone_needs_no_state_row(file):
    job = make_job(1)
    job.own_extra().is_custom_id = True
    job.dirty = NEW

    assert [] == file.write(job).full_states
    assert file.read()[0].extra.is_custom_id


def test_a_rewritten_job_keeps_its_state_row(file):
    job = make_job(1, place=ACTIVE)
    job.dirty = NEW
    file.write(job)
    job.data, job.dirty = b"\x01", BODY
    made = file.write(job)

    assert [] == made.plain_states
    assert [(ACTIVE, b"\x01")] == [(found.place, found.data) for found in file.read()]


def test_only_a_job_that_was_written_has_rows_to_remove():
    written, new, gone = (make_job(seq) for seq in (1, 2, 3))
    written.dirty, new.dirty = REMOVED, NEW | REMOVED
    gone.place, gone.dirty = GONE, STATE

    assert [1, 3] == images((written, new, gone)).removed


def test_an_admitted_job_comes_back_queued(file):
    job = make_job(1, place=ADMITTED)
    job.dirty = NEW | STATE
    file.write(job)

    assert [QUEUED] == [found.place for found in file.read()]


def test_jobs_of_equal_options_share_them_and_their_names(file):
    options = shared_options({"maxAttempts": 7, "tags": ["a"]})
    for seq in (1, 2):
        job = make_job(seq, options=options)
        job.dirty = NEW
        file.write(job)
    first, second = file.read()

    assert first.options is second.options is options
    assert first.name is second.name
    assert first.queue is second.queue


def test_jobs_come_back_by_their_admission(file):
    for seq in (3, 1, 2):
        job = make_job(seq)
        job.dirty = NEW
        file.write(job)

    assert [1, 2, 3] == [job.seq for job in file.read()]


@pytest.mark.parametrize(
    ("statement", "damage"),
    [
        ("UPDATE jobs SET depends_on = x'c1'", "corrupt-dependency-metadata"),
        ("UPDATE jobs SET children_ids = x'01'", "corrupt-dependency-metadata"),
        ("UPDATE jobs SET opts = 'text'", "corrupt-options"),
        ("UPDATE jobs SET opts = x'93'", "corrupt-options"),
        ("UPDATE state SET detail = x'81a464656164c3'", "corrupt-detail"),
        ("UPDATE state SET state = 'elsewhere'", "corrupt-state"),
    ],
)
def test_trap_42_a_job_with_damaged_data_goes_to_the_dead_letters(file, statement, damage, caplog):
    caplog.set_level(logging.CRITICAL, logger=rows_module.__name__)
    job = make_job(1)
    job.own_extra().depends_on = {"job-0": None}
    job.extra.progress_message = "half"
    job.dirty = NEW | STATE
    file.write(job)
    file.connection.execute(statement)
    repaired = []
    (found,) = file.read(repaired.append)

    assert FAILED == found.place
    assert ("unknown", damage, NOW) == (
        found.extra.dead.reason,
        found.extra.dead.error,
        found.extra.dead.entered_at,
    )
    assert [found] == repaired
