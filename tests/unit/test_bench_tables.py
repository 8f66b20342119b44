"""The bench's tables, its picture, and writing them down."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from loadtests import limits, plot, report, scale
from loadtests.figures import Figures, as_json, from_json, percentiles_us, ratios, tables
from loadtests.targets import ENGINES, PLACES, targets

ALL = [target.name for target in targets(list(ENGINES), list(PLACES))]


def repeats(server_us: dict[str, list[float]]):
    return {
        name: [Figures("push", jobs=10, jobs_per_s=1_000, server_us=cost) for cost in costs]
        for name, costs in server_us.items()
    }


def test_ratios_are_taken_within_a_repeat():
    row = repeats({"pure-file": [10.0, 20.0], "reference-file": [40.0, 60.0]})

    assert [4.0, 3.0] == ratios(row, "pure-file", "reference-file", "server_us")


def test_a_repeat_that_failed_has_no_ratio_and_the_others_stay_in_step():
    row = repeats({"pure-file": [10.0, 20.0], "reference-file": [40.0, 60.0]})
    row["pure-file"][0] = Figures("push", jobs=0)

    assert [3.0] == ratios(row, "pure-file", "reference-file", "server_us")


def test_the_table_shows_medians_with_their_range_and_what_is_absent():
    row = repeats({"pure-file": [10.0, 20.0, 12.0], "reference-file": [40.0, 60.0, 48.0]})

    lines = tables({"push": row}, {"push": "PUSH"}).splitlines()

    assert (
        "| push | absent | 12.0 (10.0-20.0) | 48.0 (40.0-60.0) | - | **x4.0** (3.0-4.0) |" in lines
    )
    assert "- `push`: PUSH" in lines


def test_every_kind_of_figure_has_its_table():
    full = {
        "p50_us": 1.0, "p99_us": 2.0, "p999_us": 3.0, "memory_bytes": 4.0, "file_bytes": 5.0,
        "stall_ms": 6.0, "server_us": 7.0, "jobs_per_s": 8.0,
    }  # fmt: skip
    text = tables({"push": {name: [Figures("push", 1, **full)] for name in ALL}}, {})

    titles = [line for line in text.splitlines() if line.startswith("###")]
    assert 8 == len(titles)
    assert "| push | pure-file | 1.00 | 2.00 | 3.00 |" in text


def test_figures_come_back_from_json():
    results = {"push": repeats({"pure-file": [10.0], "reference-file": [40.0]})}

    assert results == from_json(as_json(results))


def test_percentiles_are_in_microseconds():
    told = percentiles_us([1_000 * number for number in range(1, 1_001)])

    assert {"p50_us": 501.0, "p99_us": 991.0, "p999_us": 1_000.0} == told


def test_the_picture_has_a_bar_for_every_server_of_every_workload():
    row = repeats({name: [10.0, 30.0] for name in ALL})
    picture = ET.fromstring(plot.draw({"push <1>": row, "pull": row}, "some & more"))

    spaces = {"svg": "http://www.w3.org/2000/svg"}
    bars = picture.findall("svg:rect", spaces)
    words = [text.text for text in picture.findall("svg:text", spaces)]
    assert 2 * len(ALL) + len(ENGINES) + 1 == len(bars)  # with the legend and the ground
    assert "push <1>" in words
    assert "some & more" in words
    assert 0 < min(float(bar.get("width")) for bar in bars)


def test_a_text_is_written_between_the_marks_of_a_page(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", "utf-8")

    report.update(page, "new")

    assert f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n" == page.read_text("utf-8")


def test_a_page_without_marks_is_left_alone(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("nothing here", "utf-8")

    with pytest.raises(ValueError, match=r"README\.md lacks"):
        report.update(page, "new")
    assert "nothing here" == page.read_text("utf-8")


@pytest.mark.parametrize(
    ("page", "marks"),
    [
        (report.README, (report.BEGIN, report.END)),
        (report.README, (scale.BEGIN, scale.END)),
        (limits.PAGE, (limits.BEGIN, limits.END)),
    ],
    ids=["bench", "scale", "limits"],
)
def test_the_pages_have_the_marks(page, marks):
    text = page.read_text("utf-8")

    assert 0 < text.find(marks[0]) < text.find(marks[1])


def test_a_curve_is_flat_while_no_point_costs_half_as_much_again():
    assert "flat: at most x1.40" == scale.verdict({1: [10.0], 10: [14.0, 14.0], 100: [9.0]})


def test_the_knee_is_the_first_point_that_does():
    costs = {1: [20.0], 10: [10.0], 100: [16.0], 1_000: [40.0]}

    assert "knee at 100: x1.60" == scale.verdict(costs)


def test_what_a_broker_carries_follows_from_its_dearer_half():
    text = limits.table({"push": {"hub": [20.0], "writer": [4.0], "front": [2.0]}})

    assert "| push | 20.0 | 4.00 | 50,000 | 2.00 | 500,000 |" == text.splitlines()[-1]
