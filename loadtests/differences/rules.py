"""The rules by which we may differ from the reference, each as narrow as it can be said.

A rule names the paragraph that wants the difference. ``parts`` means that from there on both
servers hold different jobs, so that comparing them further would say nothing. The order counts:
the first rule that explains a difference is the one that is counted.
"""

from __future__ import annotations

from bunqueue.engine.settings import WIRE_NAMES
from loadtests.differences.likeness import ABSENT
from loadtests.differences.reasons.ends import (
    half_a_millisecond,
    has_expired,
    in_backoff,
    limited_clean,
    lock_stayed,
    named_state,
    no_grace,
    removal_without_result,
    whole_history,
)
from loadtests.differences.reasons.families import (
    children_gone,
    discard_is_a_failure,
    failed_by_child,
    kept_for_consumers,
    linked_though_failed,
    met_stays_met,
    nothing_to_wait_for,
    parent_counts,
    runs_again,
    too_old,
)
from loadtests.differences.reasons.ids_and_keys import (
    key_as_pushed,
    key_kept,
    key_kept_parts,
    key_let_go,
    key_of_nobody,
    key_stays_away,
    met_by_key,
    successor_has_all,
    takes_a_taken_id,
    twin_in_batch,
    twin_told_second,
)
from loadtests.differences.reasons.requests import (
    bad_schedule,
    cycle,
    flag_as_given,
    half_done,
    id_before_rest,
    is_taken,
    mistyped,
    no_count,
    null_error,
    other_entry,
    other_problem,
    owner_that_is_none,
    prefix_kept,
    prefixed,
    truthy_removal,
)
from loadtests.differences.reasons.turns import (
    affine,
    all_active_count,
    all_active_count_parts,
    by_chance,
    cleaned_in_order,
    due_by_chance,
    joined_when_due,
    overtaken,
    tied,
    used_up,
)
from loadtests.differences.reasons.views import (
    handed_out_at_once,
    heartbeat_of_nobody,
    keep_logs,
    list_is_stale,
    logs_of_nobody,
    lost_again,
    more_is_told,
    names_of_nothing,
    only_we_tell,
    progress_at_the_end,
    resumed_nobody,
    row_is_active,
    worker_moved,
)
from loadtests.differences.story import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        "wire.md 0 [F]",
        "a mistyped field that 2.9.5 takes as it comes is refused",
        is_taken,
        parts=True,
    ),
    Rule(
        "wire.md 0 [F]",
        "the text about a missing or mistyped field where 2.9.5 stumbles over it",
        mistyped,
    ),
    Rule("wire.md 0 [F]", "which of two problems is told", other_problem),
    Rule(
        "wire.md 2.1 [X]",
        "a batch is refused as a whole; 2.9.5 keeps the entries before the bad one",
        prefix_kept,
        parts=True,
    ),
    Rule("wire.md 2.1", "the refusal of a batch names the entry, whatever is wrong", prefixed),
    Rule(
        "wire.md 4.2",
        "data that was not given is null; 2.9.5 shows nothing until a restart",
        lambda spot: spot.key == "data" and spot.theirs is ABSENT and spot.ours is None,
    ),
    Rule(
        "wire.md 3.1 [F]",
        "no _state in a Job",
        lambda spot: spot.key == "_state" and spot.ours is ABSENT,
    ),
    Rule(
        "wire.md 3.1 [F]",
        "progress of a completed job is 100 without a file too; there 2.9.5 shows the last report",
        progress_at_the_end,
    ),
    Rule(
        "wire.md 5.2 [X]",
        "a job that waits for its next attempt is not processing; 2.9.5 takes any outcome",
        in_backoff,
        parts=True,
    ),
    Rule(
        "engine.md 14 I2",
        "a list shows a job as GetJob does; that of 2.9.5 shows its row, which lags behind",
        list_is_stale,
    ),
    Rule(
        "wire.md 3.1 [F]",
        "lastHeartbeat of a job that nobody runs is when it was made; 2.9.5 keeps that of its run",
        heartbeat_of_nobody,
    ),
    Rule(
        "engine.md 6.2 B",
        "sizeLimit counts; 2.9.5 stores it",
        lambda spot: "Job data too large (sizeLimit" in spot.our_error and not spot.their_error,
        parts=True,
    ),
    Rule(
        "engine.md 6.2 B",
        "so that a push is refused for it before anything else is looked at",
        lambda spot: "Job data too large (sizeLimit" in spot.our_error,
    ),
    Rule(
        "wire.md 4.3",
        "any id is taken while its job lives; 2.9.5 knows only those it was pushed with, and puts a"
        " second job in the place of a flow's or of one with a generated id",
        takes_a_taken_id,
        parts=True,
    ),
    Rule(
        "engine.md 4.5 B",
        "a job whose life is over is gone; in 2.9.5 it stays until it is pulled",
        has_expired,
        parts=True,
    ),
    Rule(
        "wire.md 2.1.1 [X]",
        "who wants one group gets no other job; 2.9.5 hands out one without group",
        affine,
        parts=True,
    ),
    Rule(
        "wire.md 2.3 [X]",
        "with nothing to wait for a job is back in line; 2.9.5 parks it for ever",
        nothing_to_wait_for,
        parts=True,
    ),
    Rule(
        "wire.md 2.5 [X]",
        "a parent whose children were cancelled goes; 2.9.5 leaves it waiting for ever",
        children_gone,
        parts=True,
    ),
    Rule(
        "engine.md 3.3 B",
        "a key stays with its job until that ends; 2.9.5 lets go of it with every run",
        key_kept,
    ),
    Rule(
        "engine.md 3.3 B",
        "so that a push meets a twin, or removing the key removes one",
        key_kept_parts,
        parts=True,
    ),
    Rule("engine.md 4.1", "a backoff is spread by chance, within its bounds", by_chance),
    Rule(
        "engine.md 4.1",
        "so that an attempt is due here and not yet there",
        due_by_chance,
        parts=True,
    ),
    Rule("wire.md 2.11 [F]", "what is wrong with a schedule is told in our words", bad_schedule),
    Rule(
        "engine.md 2.1 B",
        "jobs due in the same millisecond go by admission; in 2.9.5 by the text of their ids",
        tied,
        parts=True,
    ),
    Rule(
        "engine.md 2.2",
        "a group takes turns from when its delayed job is due; in 2.9.5 from the next pull on",
        joined_when_due,
        parts=True,
    ),
    Rule(
        "engine.md 2.1 B",
        "jobs of one batch are cleaned by admission; in 2.9.5 by the text of their ids",
        cleaned_in_order,
    ),
    Rule(
        "wire.md 4.3",
        "who names the id of a live job meets that; in 2.9.5, if it was generated, its key",
        met_by_key,
    ),
    Rule("wire.md 0 [F]", "which of two wrong entries of a batch is told", other_entry),
    Rule("wire.md 0 [F]", "a flag is shown as true or false, whatever was given", flag_as_given),
    Rule(
        "engine.md 4.2 B",
        "a job that one connection after the other leaves waits, or fails; 2.9.5 has it ready",
        lost_again,
        parts=True,
    ),
    Rule(
        "engine.md 8 B",
        "a job that its connection left is waiting; in 2.9.5 its row stays active",
        row_is_active,
    ),
    Rule(
        "wire.md 2.8 [X]",
        "all active jobs count against a concurrency limit",
        all_active_count,
    ),
    Rule(
        "wire.md 2.8 [X]",
        "so that nothing is handed out where 2.9.5 counts only what was pulled since",
        all_active_count_parts,
        parts=True,
    ),
    Rule(
        "engine.md 3.2 B",
        "a dependency, once satisfied, stays satisfied when its job comes back",
        met_stays_met,
    ),
    Rule(
        "wire.md 2.7 [X]", "Clean takes the named state; 2.9.5 all queued", named_state, parts=True
    ),
    Rule(
        "wire.md 2.7",
        "Clean without a grace takes jobs of any age; 2.9.5 takes none",
        no_grace,
        parts=True,
    ),
    Rule("wire.md 2.1 [F]", "PULLB without a count takes one", no_count, parts=True),
    Rule(
        "wire.md 4.2",
        "any timeout ends a run; in 2.9.5 one that is no whole number never does",
        half_a_millisecond,
        parts=True,
    ),
    Rule(
        "wire.md 2.1 [F]",
        "ACKB forgets jobs with results or without",
        removal_without_result,
        parts=True,
    ),
    Rule(
        "engine.md 1.2 B",
        "failedReason is the last error, that of a child too; 2.9.5 reads it out of the timeline",
        lambda spot: (
            spot.key == "failedReason"
            and spot.theirs is ABSENT
            and str(spot.ours).startswith("Child job ")
        ),
    ),
    Rule("engine.md 14 I49", "a twin in a batch is told behind its owner", twin_told_second),
    Rule(
        "engine.md 3.3",
        "an owner of the same batch answers for its twin; 2.9.5 refuses if that is parked",
        lambda spot: (
            spot.cmd == "PUSHB"
            and spot.their_error.endswith("Duplicate unique_key (extended TTL)")
            and not spot.our_error
        ),
        parts=True,
    ),
    Rule(
        "wire.md 0 [F]",
        "a refused request has done nothing; 2.9.5 stumbled in the middle of it",
        half_done,
        parts=True,
    ),
    Rule(
        "engine.md 6.2",
        "any truthy value makes an outcome forget its job",
        truthy_removal,
        parts=True,
    ),
    Rule(
        "engine.md 3.2",
        "an id that lives is answered, whatever else the push says",
        id_before_rest,
    ),
    Rule("engine.md 6.2 B", "keepLogs counts; 2.9.5 stores it", keep_logs),
    Rule("wire.md 2.2 [F]", "the log of a job that is gone is gone", logs_of_nobody),
    Rule(
        "engine.md 14 I43",
        "every failure for good is counted, that by a child too",
        parent_counts,
    ),
    Rule(
        "wire.md 4.6",
        "who replaces its own parent is told that there is none; 2.9.5 names a fault of its file",
        lambda spot: (
            spot.their_error.startswith("Flow parent is no longer persisted")
            and spot.our_error.startswith("Parent job not found")
        ),
    ),
    Rule(
        "wire.md 2.1.2",
        "a job of a flow has no custom id; 2.9.5 finds it by one whose job was drained",
        lambda spot: (
            spot.cmd == "GetJobByCustomId"
            and spot.our_error == "Job not found"
            and spot.told.theirs.get("job", {"customId": ""})["customId"] is None
        ),
    ),
    Rule(
        "engine.md 9 B",
        "who waits is told the result of a job that is forgotten",
        lambda spot: (spot.cmd, spot.key, spot.theirs) == ("WaitJob", "result", ABSENT),
    ),
    Rule(
        "wire.md 2.1.2",
        "the reply shows the jobs as admitted; in 2.9.5 also that a waiting pull took one",
        handed_out_at_once,
    ),
    Rule(
        "wire.md 3.7",
        "the event of a failure tells whether it is the last, by a child too",
        failed_by_child,
    ),
    Rule(
        "wire.md 5.6 [X]",
        "Clean with a limit takes as many; 2.9.5 may work on a stale index",
        limited_clean,
        parts=True,
    ),
    Rule(
        "engine.md 4.6",
        "a dead letter has all charged attempts; 2.9.5 loses those before a move to waiting",
        whole_history,
    ),
    Rule("engine.md 3.3 B", "so that there is no entry of nobody to remove", key_of_nobody),
    Rule(
        "wire.md 3.5",
        "a scheduler without a schedule has none",
        lambda spot: spot.key == "schedule" and (spot.theirs, spot.ours) == ("", None),
    ),
    Rule(
        "engine.md 1.2 T22",
        "who runs again has no result; 2.9.5 shows it to the parent, and without a file to all",
        runs_again,
    ),
    Rule(
        "engine.md 5.2",
        "the result of a removed child can be read while somebody needs it",
        kept_for_consumers,
    ),
    Rule(
        "wire.md 2.8",
        "maxJobs used up is used up; 2.9.5 counts in fractions of a token",
        used_up,
    ),
    Rule(
        "engine.md 1.3 E1",
        "a job that is done is not processing; 2.9.5 keeps its lease where a batch was refused",
        lock_stayed,
    ),
    Rule("engine.md 9 B", "the journal counts drained and removed too", more_is_told),
    Rule(
        "engine.md 3.3 B",
        "a key goes with its owner; after Drain and Clean 2.9.5 leaves an entry of nobody",
        key_let_go,
    ),
    Rule("engine.md 3.3", "a key that was taken from a job stays away", key_stays_away),
    Rule(
        "engine.md 14 I2",
        "a job shows the key it was pushed with; 2.9.5 by memory or row",
        key_as_pushed,
    ),
    Rule("engine.md 3.4", "a successor has the options of its job, all of them", successor_has_all),
    Rule(
        "engine.md 5.4 B",
        "a child that is discarded has failed, and its policy is applied",
        discard_is_a_failure,
        parts=True,
    ),
    Rule(
        "wire.md 2.7 [F]",
        "when the name of a queue without jobs disappears",
        names_of_nothing,
    ),
    Rule(
        "README 9",
        "two jobs cannot wait for each other; 2.9.5 parks both for ever",
        cycle,
        parts=True,
    ),
    Rule("wire.md 1.3", "an owner that is no string is none", owner_that_is_none, parts=True),
    Rule(
        "wire.md 5.4 [X]",
        "a worker belongs to the connection that registered it last; in 2.9.5 to the first",
        worker_moved,
    ),
    Rule("wire.md 0", "an error that is null was not given", null_error),
    Rule(
        "engine.md 3.1",
        "an empty custom id or key is none; 2.9.5 keeps it",
        lambda spot: (
            spot.key in ("customId", "uniqueKey") and (spot.theirs, spot.ours) == ("", None)
        ),
    ),
    Rule(
        "engine.md 8",
        "an empty id of a worker is none",
        lambda spot: (spot.cmd, spot.key, spot.theirs) == ("RegisterWorker", "workerId", ""),
        parts=True,
    ),
    Rule(
        "wire.md 0 [F]",
        "a configuration has the members that there are; 2.9.5 keeps any",
        lambda spot: (
            spot.cmd in ("GetStallConfig", "GetDlqConfig")
            and spot.ours is ABSENT
            and spot.key not in WIRE_NAMES.values()
        ),
    ),
    Rule(
        "engine.md 9 (F)",
        "a queue of which nothing is known has no journal",
        resumed_nobody,
    ),
    Rule(
        "engine.md 5.1",
        "who depends on a twin depends on the job that answers for it; in 2.9.5 it waits for ever",
        twin_in_batch,
        parts=True,
    ),
    Rule(
        "engine.md 5.6",
        "a link is shown by the child too; 2.9.5 does not show it on one that had failed",
        linked_though_failed,
    ),
    Rule(
        "engine.md 5.3 B",
        "a parked job has no maximum age; in 2.9.5 it goes an hour after it was made",
        too_old,
        parts=True,
    ),
    Rule("engine.md 9 B", "Drain is told as drained", only_we_tell("drained")),
    Rule("engine.md 9 B", "a replaced or expired job is told as removed", only_we_tell("removed")),
    Rule(
        "wire.md 1.5",
        "pipelined commands take effect in their order; in 2.9.5 one overtakes the other",
        overtaken,
        parts=True,
    ),
)
