"""The simulation would notice: each invariant is broken on purpose, and a rule says so.

A row is a way to break the engine, the invariant that no longer holds, and what the rule says that
finds it. Histories are tried from a seed on that has found it; however they are drawn by then, one
of the next ones finds it too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from bunqueue.engine import (
    admission,
    claiming,
    control,
    dependencies,
    failures,
    flow_admission,
    group_control,
    groups,
    keys,
    large_batches,
    limits,
    moves,
    outcomes,
    places,
    schedules,
    sweeps,
)
from bunqueue.engine.cron import Cron, Timetable
from bunqueue.engine.engine import Engine
from bunqueue.storage.log import MutationLog
from tests.simulation.history import Failed, run, steps_of
from tests.simulation.sliced import SlicedRun, in_slices, sliced_history
from tests.simulation.world import silence

HISTORIES_MAX = 400
LATE_MS = 2
Patch = pytest.MonkeyPatch


class Mutation(NamedTuple):
    """``seed`` is that of a history that finds it, ``is_sliced``: of one in slices."""

    invariant: str
    breaks: Callable[[Patch], None]
    says: str
    seed: int
    is_sliced: bool


MUTATIONS: list[Mutation] = []


def mutation(
    invariant: str, says: str, seed: int = 1, is_sliced: bool = False
) -> Callable[..., Any]:
    """Have a way to break the engine tried."""

    def keep(breaks: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTATIONS.append(Mutation(invariant, breaks, says, seed, is_sliced))
        return breaks

    return keep


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("bunqueue")
    before = log.level
    silence()
    yield
    log.setLevel(before)


# -- at most one live delivery ---------------------------------------------------------------------


@mutation("I5", "was handed out twice")
def a_pull_that_finds_nothing_gets_what_runs(patch: Patch) -> None:
    def pull(engine: Any, peer: Any, name: str, *rest: Any) -> Any:
        found = claiming.pull(engine, peer, name, *rest)
        queue = engine.queues.get(name)
        return found if found or queue is None else list(queue.active.values())[:1]

    patch.setattr(Engine, "pull", pull)


@mutation("I5", "was handed out twice")
def a_long_poll_takes_what_runs(patch: Patch) -> None:
    serve = claiming.serve

    def twice(engine: Any, queue: Any, now: int) -> None:
        serve(engine, queue, now)
        for waiter in list(queue.waiters)[:1]:
            if queue.active:
                claiming._unpark(engine, waiter)
                waiter.later.resolve(list(queue.active.values())[:1])

    patch.setattr(claiming, "serve", twice)
    patch.setattr(Engine, "serve", twice)


# -- only the moves of the table -------------------------------------------------------------------


@mutation("I10", "tick moved")
def a_lease_that_ends_completes_the_job(patch: Patch) -> None:
    def complete(engine: Any, _queue: Any, job: Any, now: int) -> None:
        outcomes._complete(engine, job, None, False, now)

    patch.setattr(sweeps, "_lease_over", complete)


@mutation("I10", "Promote moved")
def a_promotion_removes_the_job(patch: Patch) -> None:
    patch.setattr(Engine, "promote", moves.cancel)


@mutation("I10", "PurgeDlq moved", seed=32)
def a_purge_drains_too(patch: Patch) -> None:
    patch.setattr(Engine, "purge_dlq", control.drain)


@mutation("I10", "close moved")
def a_closed_connection_forgets_its_jobs(patch: Patch) -> None:
    def forget(engine: Any, peer: Any, _now: int) -> None:
        for job in list(peer.held):
            places.forget(engine, job)

    patch.setattr(Engine, "peer_closed", forget)


# -- rates, of queues and of groups ----------------------------------------------------------------


@mutation("I21", "the rate is", seed=41)
def a_batch_costs_one_token(patch: Patch) -> None:
    patch.setattr(limits.TokenBucket, "take", lambda self, count=1: _spend(self, min(count, 1)))


def _spend(bucket: Any, count: int) -> None:
    bucket._tokens -= count


@mutation("I21", "the rate is", seed=32)
def a_bucket_fills_twice_as_fast(patch: Patch) -> None:
    tokens = limits.TokenBucket.tokens

    def faster(self: Any, now: int) -> float:
        gained = (now - self._at) * max(self.limit, 0) / self.duration_ms if now > self._at else 0
        return min(max(self.limit, 0), tokens(self, now) + gained)

    patch.setattr(limits.TokenBucket, "tokens", faster)


@mutation("I21", "the rate is", seed=13)
def a_bucket_holds_one_more(patch: Patch) -> None:
    patch.setattr(limits.TokenBucket, "tokens", lambda self, _now: max(self.limit, 0) + 1)


@mutation("I22", "the limit is", seed=98)
def a_group_does_not_look_at_who_runs(patch: Patch) -> None:
    blocked = groups.Group.blocked_until
    patch.setattr(
        groups.Group,
        "blocked_until",
        lambda self, terms, now: blocked(self, replace(terms, concurrency=None), now),
    )


@mutation("I22", "the limit is", seed=98)
def a_stored_concurrency_of_a_group_is_not_looked_at(patch: Patch) -> None:
    blocked = groups.Group.blocked_until

    def until(self: Any, terms: Any, now: int) -> Any:
        stored, self.concurrency = self.concurrency, None
        try:
            return blocked(self, terms, now)
        finally:
            self.concurrency = stored

    patch.setattr(groups.Group, "blocked_until", until)


@mutation("I22", "within a window of", seed=114)
def a_window_of_a_group_never_closes(patch: Patch) -> None:
    patch.setattr(groups.Group, "took", lambda *_: None)


@mutation("I22", "within a window of", seed=221)
def a_window_of_a_group_ends_halfway(patch: Patch) -> None:
    took = groups.Group.took

    def half(self: Any, terms: Any, now: int) -> None:
        took(self, terms, now)
        if self.window_rate is not None and self.window_count == 1:
            self.window_until -= self.window_rate.duration_ms // 2

    patch.setattr(groups.Group, "took", half)


# -- one commit ------------------------------------------------------------------------------------


def _added_late(patch: Patch, is_late: Callable[[Any], bool]) -> None:
    """Let some jobs be noted a little after their admission."""
    added = MutationLog.added

    def note(log: Any, job: Any) -> None:
        if is_late(job):
            log._loop.call_later(LATE_MS, lambda: added(log, job))
        else:
            added(log, job)

    patch.setattr(MutationLog, "added", note)


@mutation("I28", "the file has neither", seed=50)
def who_replaces_another_is_written_later(patch: Patch) -> None:
    def retire(engine: Any, job: Any) -> None:
        replaced.append((job.queue, job.extra.unique_key, job.id))
        leave(engine, job)

    def is_late(job: Any) -> bool:
        place = replaced[-1:] or [(None, None, None)]
        queue, key, job_id = place[0]
        return key is not None and (queue, key) == (job.queue, job.extra.unique_key)

    replaced: list[Any] = []
    leave = admission._retire
    patch.setattr(admission, "_retire", retire)
    _added_late(patch, is_late)


@mutation("I28", "nobody came in its place", seed=50)
def who_replaces_another_is_admitted_later(patch: Patch) -> None:
    def push(engine: Any, queue_name: str, *rest: Any) -> Any:
        own, now = rest[3], rest[4]
        queue, key = engine.queues.get(queue_name), (own or {}).get("uniqueKey")
        owner = None if queue is None or key is None else keys.owner_of(queue, key, now)
        if owner is None or owner.place != "queued" or keys.strategy(rest[2]) != "replace":
            return admit(engine, queue_name, *rest)
        moves.cancel(engine, owner.id, now)
        engine.timers.add(now + LATE_MS, lambda *_: admit(engine, queue_name, *rest))
        return "later"

    admit = Engine.push
    patch.setattr(Engine, "push", push)


@mutation("I28", "the file has both", seed=17)
def who_is_replaced_stays_in_the_file(patch: Patch) -> None:
    def retire(engine: Any, job: Any) -> None:
        replaced.add(job)
        leave(engine, job)

    def note(log: Any, job: Any) -> None:
        if job not in replaced:
            removed(log, job)

    replaced: set[Any] = set()
    leave, removed = admission._retire, MutationLog.removed
    patch.setattr(admission, "_retire", retire)
    patch.setattr(MutationLog, "removed", note)


@mutation("I32", "the file lacks")
def the_children_of_a_flow_are_written_later(patch: Patch) -> None:
    _added_late(patch, lambda job: job.extra.is_custom_id is False and bool(job.extra.parent_id))


@mutation("I32", "jobs of a flow have come")
def a_flow_comes_without_its_last_job(patch: Patch) -> None:
    tie = flow_admission._tie

    def some(engine: Any, jobs: Any, now: int) -> None:
        for job in jobs[-1:]:
            engine.index.drop(job)
            job.place = "gone"
        tie(engine, jobs[:-1], now)

    patch.setattr(flow_admission, "_tie", some)


@mutation("I32", "left something behind", seed=17)
def a_flow_that_is_not_written_leaves_its_first_job(patch: Patch) -> None:
    withdraw = flow_admission._withdraw
    patch.setattr(
        flow_admission, "_withdraw", lambda engine, jobs, now: withdraw(engine, jobs[1:], now)
    )


# -- a batch under way -----------------------------------------------------------------------------

NOT_WHAT_WAS_CUT = "the file is not what was cut"


@mutation("I28", "has taken the place of", is_sliced=True)
def a_batch_takes_from_others_before_it_is_written(patch: Patch) -> None:
    patch.setattr(large_batches, "_takes", lambda *_: False)


@mutation("I28", "has taken the place of", seed=20, is_sliced=True)
def whom_a_batch_takes_from_is_removed_before_it_is_written(patch: Patch) -> None:
    def retire(engine: Any, job: Any) -> None:
        leave(engine, job)
        engine.storage.removed(job)

    leave = admission._retire
    patch.setattr(admission, "_retire", retire)
    patch.setattr(large_batches, "_takes", lambda *_: False)


@mutation("I4", NOT_WHAT_WAS_CUT, seed=20, is_sliced=True)
def whom_a_batch_ends_stays_in_the_file(patch: Patch) -> None:
    def note(engine: Any, hidden: Any) -> None:
        write(engine, [(job, (), *rest) for job, _, *rest in hidden])

    write = large_batches._write
    patch.setattr(large_batches, "_write", note)


@mutation("I28", NOT_WHAT_WAS_CUT, seed=2, is_sliced=True)
def a_batch_is_written_job_by_job(patch: Patch) -> None:
    def hide(engine: Any, queue: Any, *rest: Any) -> str:
        job_id = admit(engine, queue, *rest)
        job = engine.index.get(job_id)
        if job.place == "admitted":
            engine.storage.added(job)
        return job_id

    admit = large_batches.admit
    patch.setattr(large_batches, "admit", hide)


# -- who waits for whom ----------------------------------------------------------------------------


@mutation("I30", "waits for nobody", seed=11)
def a_parent_is_released_and_never_shown(patch: Patch) -> None:
    patch.setattr(dependencies, "show_released", lambda *_, **__: None)


@mutation("I30", "has completed", seed=11)
def a_completion_is_not_told_to_who_waits(patch: Patch) -> None:
    patch.setattr(outcomes, "dependencies_completed", lambda *_: None)


@mutation("I30", "AssertionError", seed=11)
def a_start_shows_nobody_who_misses_nothing(patch: Patch) -> None:
    patch.setattr(dependencies, "restored", lambda *_: None)
    patch.setattr(dependencies, "release", lambda *_, **__: None)


@mutation("I33", "which has failed", seed=45)
def a_failed_child_is_not_told_to_its_parent(patch: Patch) -> None:
    patch.setattr(Engine, "child_failed", lambda *_: None)


@mutation("I33", "a restart made", seed=17)
def what_a_child_left_is_forgotten_at_a_start(patch: Patch) -> None:
    patch.setattr(failures, "replay", lambda *_: None)


@mutation("I33", "no child of it has", seed=161)
def a_child_without_a_policy_fails_its_parent(patch: Patch) -> None:
    policy_of = failures.policy_of
    patch.setattr(failures, "policy_of", lambda options: policy_of(options) or failures.FAIL)


@mutation("I33", "restart moved", seed=230)
def a_start_applies_what_was_applied(patch: Patch) -> None:
    def again(engine: Any, rows: Any, now: int) -> None:
        replay(engine, rows, now)
        for queue in engine.queues.values():
            for job in list(queue.run_set.jobs()):
                if job.extra.flow is not None and job.extra.flow.ignored:
                    moves.discard(engine, job.id, None, now)

    replay = failures.replay
    patch.setattr(failures, "replay", again)


# -- what was set ----------------------------------------------------------------------------------


@mutation("I40", "a restart changed settings")
def a_pause_is_not_stored(patch: Patch) -> None:
    restore = control.restore
    patch.setattr(
        control, "restore", lambda queue, values, now: restore(queue, (0, *values[1:]), now)
    )


@mutation("I40", "a restart changed settings", seed=62)
def a_temporary_limit_ends_with_the_broker(patch: Patch) -> None:
    def forget(queue: Any, values: Any, now: int) -> None:
        is_temporary = values[3] is not None
        restore(queue, (values[0], None, *values[2:]) if is_temporary else values, now)

    restore = control.restore
    patch.setattr(control, "restore", forget)


@mutation("I40", "a restart changed settings")
def what_is_set_on_a_group_is_not_stored(patch: Patch) -> None:
    patch.setattr(group_control, "_store", lambda *_: None)


@mutation("I40", "a restart changed settings")
def the_policies_of_a_queue_are_not_stored(patch: Patch) -> None:
    restore = control.restore
    patch.setattr(
        control,
        "restore",
        lambda queue, values, now: restore(queue, (*values[:5], None, None, *values[7:]), now),
    )


@mutation("I40", "answered before its commit")
def a_setting_is_answered_before_its_commit(patch: Patch) -> None:
    def changed(engine: Any, queue: Any, _before: Any, now: int) -> None:
        queue.used_at = now
        queue.gate.changed()
        control.store(engine, queue)

    patch.setattr(control, "_changed", changed)


@mutation("I40", "a restart changed settings")
def a_scheduler_that_was_deleted_comes_back(patch: Patch) -> None:
    delete = MutationLog.delete

    def keep(log: Any, table: str, key: str) -> None:
        if table != schedules.TABLE:
            delete(log, table, key)

    patch.setattr(MutationLog, "delete", keep)


# -- schedulers ------------------------------------------------------------------------------------


@mutation("I45", "the limit is", seed=12)
def a_scheduler_makes_one_too_many(patch: Patch) -> None:
    def is_at_limit(self: Any) -> bool:
        limit = self.definition.max_limit
        return limit is not None and 0 < limit < self.executions

    patch.setattr(Cron, "is_at_limit", is_at_limit)


@mutation("I45", "left its grid", seed=12)
def a_scheduler_drifts(patch: Patch) -> None:
    patch.setattr(Timetable, "following", lambda self, _planned_at, now: now + self.every)


@mutation("I45", "which has run", seed=11)
def a_run_makes_two_jobs(patch: Patch) -> None:
    def push(engine: Any, cron: Any, before: Any, now: int) -> None:
        make(engine, cron, before, now)
        make(engine, cron, before, now)

    make = schedules._push
    patch.setattr(schedules, "_push", push)


@mutation("I45", "live jobs of cron:", seed=11)
def the_key_of_a_scheduler_keeps_nobody_out(patch: Patch) -> None:
    def owner_of(queue: Any, key: str, now: int) -> Any:
        return None if key.startswith("cron:") else own(queue, key, now)

    own = keys.owner_of
    patch.setattr(keys, "owner_of", owner_of)


# -- the test --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", MUTATIONS, ids=lambda row: row.breaks.__name__)
def test_a_broken_invariant_is_found(row: Mutation, monkeypatch: Patch) -> None:
    row.breaks(monkeypatch)

    assert row.says in str(found(row))


def found(row: Mutation) -> Failed:
    """Return the first failure that says what the mutation breaks."""
    for seed in range(row.seed, row.seed + HISTORIES_MAX):
        try:
            if row.is_sliced:
                with in_slices():
                    run(sliced_history(seed), seed, of=SlicedRun)
            else:
                run(steps_of(seed), seed)
        except Failed as failure:
            if row.says in str(failure):
                return failure
    raise AssertionError(f"no history in {HISTORIES_MAX} finds it")
