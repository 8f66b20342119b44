import json

from bunqueue.cli.show import as_json, block, dlq_table, job_block, moment, printable, table


def test_integral_floats_are_shown_as_integers():
    assert {"at": 1_700_000_000_000, "rate": 0.5} == json.loads(
        as_json({"at": 1.7e12, "rate": 0.5})
    )
    assert "1700000000000\n" in as_json({"at": 1.7e12})


def test_bytes_are_shown_as_text():
    assert '"a\\\\xff"' in as_json({"x": b"a\xff"})


def test_a_moment_is_shown_in_utc():
    assert "2023-11-14T22:13:20.000Z" == moment(1_700_000_000_000)


def test_a_moment_that_has_not_come_is_a_dash():
    assert "-" == moment(None)


def test_table_columns_are_aligned():
    assert ["ID   N", "a    1", "bcd  22"] == list(table(("ID", "N"), [("a", 1), ("bcd", 22.0)]))


def test_block_values_are_aligned():
    assert ["A:   1", "BC:  2"] == list(block((("A", 1), ("BC", 2))))


def test_a_job_block_starts_with_its_id_and_shows_runs_of_runs_allowed():
    lines = list(
        job_block(
            {
                "id": "7",
                "queue": "emails",
                "name": "welcome",
                "data": {"to": "ann"},
                "attempts": 1,
                "maxAttempts": 3,
                "createdAt": 1_700_000_000_000.0,
            }
        )
    )

    assert "Job:       7" == lines[0]
    assert "Attempts:  1/3" in lines
    assert 'Data:      {"to": "ann"}' in lines


def test_an_empty_dlq_says_so():
    assert ["DLQ is empty"] == list(dlq_table({"jobs": [], "entries": []}))


def test_a_moment_beyond_all_years_is_shown_as_it_is():
    assert "8640000000000000 ms" == moment(8.64e15)


def test_what_could_move_a_cursor_is_escaped():
    assert r"a\x1b[2Jb\nc" == printable("a\x1b[2Jb\nc")
    assert "Grüße 你好" == printable("Grüße 你好")
