"""Faults that other queues had, tried on ours: which test answers which report.

The rows are those of the table of public reports, A1 to A25. A row that cannot be tried yet says
why instead.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

ANSWERS: dict[str, tuple[str, ...]] = {
    "A1": (  # a link that is dead without a word
        "test_a01_fifty_workers_behind_a_dead_link_come_back_spread_out",
        "test_a_worker_behind_a_half_open_link_comes_back",
        "test_a_job_handed_to_a_half_open_link_runs_once_its_lease_is_over",
        "test_waits_fill_their_span_evenly",
    ),
    "A2": (  # counts, lists and states that disagree
        "test_a02_counts_lists_and_states_agree_over_pauses_stops_and_kills",
        "test_a02_counts_lists_and_states_agree_after_a_kill_in_the_midst_of_work",
    ),
    "A3": (  # schedulers that are defined at every start
        "test_a03_starts_and_kills_make_no_run_twice_and_none_at_once",
        "test_a03_the_same_definition_again_keeps_the_next_moment",
        "test_a03_a_run_that_is_due_is_not_lost_to_a_definition",
        "test_a03_a_definition_after_a_downtime_changes_nothing_about_what_was_missed",
        "test_a03_another_pattern_has_moments_of_its_own",
    ),
    "A4": (  # stops that lose outcomes, and exit statuses
        "test_a04_what_ends_within_the_grace_is_acknowledged",
        "test_a04_what_does_not_end_in_time_is_handed_back_at_once_and_uncharged",
        "test_a04_a_child_killed_during_the_stop_is_no_success",
        "test_a04_a_pool_that_loses_its_last_child_during_the_stop_is_no_success",
        "test_a04_a_worker_that_is_killed_dies_of_the_signal",
    ),
    "A5": (  # nights on which the clocks change
        "test_a05_no_run_comes_twice_or_not_at_all_when_the_clocks_change",
        "test_a_restart_inside_a_repeated_hour_fires_no_slot_twice",
        "test_the_next_run_is_the_calendars",
    ),
    "A6": ("test_a06_a_step_of_the_clock_floods_nothing_and_stops_nothing",),
    "A8": ("test_a08_outcomes_that_race_the_sweeps_end_each_job_once",),
    "A9": (  # handlers that let nobody else run
        "test_a09_a_handler_that_holds_the_hub_keeps_its_lease_and_is_named",
        "test_a_handler_busy_for_three_leases_completes_once",
    ),
    "A10": (  # jobs that kill their worker
        "test_a10_a_job_that_kills_its_process_ends_among_the_dead_letters",
        "test_a10_a_job_that_takes_its_worker_along_gives_up_after_the_allowed_stalls",
        "test_a10_jobs_on_their_last_chance_go_to_a_connection_one_at_a_time",
    ),
    "A11": (  # growth without bound
        "test_a11_a_huge_error_text_is_cut",
        "test_a11_each_special_value_of_retention_means_what_is_written",
        "test_a11_a_retention_of_nothing_is_refused_at_the_start",
    ),
    "A12": (  # pauses over pulls that wait
        "test_a12_what_waits_when_the_pause_is_answered_gets_nothing",
        "test_a12_nothing_is_delivered_between_a_pause_and_a_resume",
    ),
    "A13": (  # waiting for what only time brings
        "test_a13_a_waiting_pull_gets_a_delayed_job_when_it_is_due",
        "test_a13_waits_end_on_time_and_are_served_in_order_of_arrival",
    ),
    "A14": (  # ids used before
        "test_a14_an_id_used_before_is_told_and_never_silent",
        "test_a14_one_id_from_fifty_clients_and_twice_in_a_batch_is_one_job",
    ),
    "A15": (  # parents that wait for ever
        "test_a15_no_parent_waits_for_ever_for_a_child_that_failed",
        "test_a15_a_parent_runs_when_its_children_have_ended_well",
        "test_a15_a_parent_whose_child_is_removed_by_hand_reaches_a_state",
    ),
    "A16": ("test_a16_a_limit_holds_in_every_window_and_loses_no_turn",),
    "A17": (  # a file that another process has locked
        "test_a17_a_file_locked_for_a_while_makes_answers_slow_and_none_an_error",
        "test_a17_a_reader_that_stays_makes_the_log_grow_no_longer_than_it_does",
    ),
    "A18": ("test_a18_a_full_disk_is_told_and_loses_nothing_that_was_acknowledged",),
    "A19": (  # odd and huge values
        "test_a19_a_value_comes_back_as_it_was_on_every_way",
        "test_a19_what_has_no_form_is_an_answer_and_harms_nobody",
        "test_a19_the_limits_of_data_and_frames_are_exact_and_named",
    ),
    "A20": (  # accepting, after descriptors ran out
        "test_a20_after_running_out_of_descriptors_it_accepts_within_a_second",
        "test_a20_half_closed_peers_leave_nothing_behind",
    ),
    "A21": ("test_a21_no_page_and_no_route_that_changes_anything",),
    "A22": (  # secrets in what is printed and logged
        "test_a22_no_secret_is_in_any_output",
        "test_a22_a_worker_shows_no_token",
        "test_a22_a_setting_that_cannot_work_is_refused_without_a_secret",
    ),
    "A23": (  # TLS that is silently weak
        "test_a23_every_weakness_of_a_certificate_fails_and_says_why",
        "test_a23_a_tls_client_does_not_fall_back_to_plain_text",
        "test_a23_an_option_that_means_nothing_is_refused",
        "test_a23_stalled_handshakes_and_plaintext_hold_nobody_up",
        "test_a_certificate_without_its_key_is_one_line",
    ),
    "A24": (  # webhooks into the own network
        "test_a24_an_address_of_the_own_network_is_refused_when_it_is_added",
        "test_a24_a_name_that_resolves_into_the_own_network_is_not_connected_to",
        "test_a24_what_was_judged_is_what_is_connected_to",
        "test_a24_a_redirect_is_not_followed",
        "test_a24_a_receiver_that_is_silent_is_given_up",
        "test_a24_what_a_receiver_says_instead_of_http_does_not_fill_the_log",
        "test_a24_an_operator_can_allow_addresses_networks_and_names",
    ),
    "A25": (  # gevent's patching, early, late, partly, never
        "test_a25_a_client_works_however_gevent_has_patched",
        "test_a25_a_queue_of_a_module_works_under_gunicorn",
        "test_importing_and_making_producers_opens_and_starts_nothing",
    ),
}

OPEN = {
    "A7": "needs several brokers on PostgreSQL; a broker here has a file of its own",
    "A21": "its screens: there is no dashboard, so that only the routes can be tried",
}


def test_every_report_has_an_answer_or_a_reason() -> None:
    assert {f"A{number}" for number in range(1, 26)} == ANSWERS.keys() | OPEN.keys()


@pytest.mark.parametrize("row", ANSWERS)
def test_the_named_tests_are_there(row: str) -> None:
    assert [] == [name for name in ANSWERS[row] if name not in _names()]


_found: set[str] = set()


def _names() -> set[str]:
    """Return the names of all tests, read off the files."""
    if not _found:
        for path in TESTS.rglob("test_*.py"):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    _found.add(node.name)
    return _found
