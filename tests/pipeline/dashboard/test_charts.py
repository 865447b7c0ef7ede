"""Lines of a chart, by their points."""

import math

import pytest

from millrace.pipeline.dashboard.charts import HEIGHT, WIDTH, chart
from millrace.pipeline.telemetry.palette import LINES, VARIABLES


def text(value):
    return f"{value:g}"


def drawn(values, **options):
    return chart("t", text, [("a", LINES[0], [0.0, 5.0, 10.0][: len(values)], values)], 10.0, **options)


def test_a_line_goes_from_the_least_value_to_the_largest():
    made = drawn([0.0, 2.0, 4.0])
    assert made["lines"] == [("a", VARIABLES[LINES[0]], f"M0.0 {HEIGHT}.0L{WIDTH / 2} {HEIGHT / 2}L{WIDTH}.0 0.0", "4")]
    assert (made["least"], made["most"], made["end"], made["bound"]) == ("0", "4", "10.0 s", "")
    assert drawn([2.0, 3.0, 4.0], from_zero=False)["least"] == "2" and drawn([2.0, 3.0, 4.0])["least"] == "0"


@pytest.mark.parametrize("values", [[0.0, 0.0], [3.0, 3.0], [-1.0, -1.0]])
def test_values_that_are_all_the_same_have_a_place(values):
    path = drawn(values, from_zero=False)["lines"][0][2]
    assert "nan" not in path and "inf" not in path and path.startswith("M0.0 ")


def test_a_gap_breaks_the_line_and_a_point_alone_is_a_dot():
    assert drawn([1.0, None, 1.0])["lines"][0][2].count("M") == 2
    assert drawn([1.0, math.nan, 1.0])["lines"][0][2].count("M") == 2
    assert drawn([1.0])["lines"][0][2].endswith("h0")
    assert drawn([None, None, None]) == {"title": "t", "empty": "nothing yet"}


def test_a_bound_is_marked_unless_it_flattens_the_line():
    assert drawn([0.0, 4.0, 2.0], bound=8.0)["bound"] == "0.0" and drawn([0.0, 4.0], bound=8.0)["most"] == "8"
    assert drawn([0.0, 4.0, 2.0], bound=2.0)["bound"] == f"{HEIGHT / 2}"
    assert drawn([0.0, 4.0], bound=800.0)["bound"] == "" and drawn([0.0, 4.0], bound=800.0)["most"] == "4"
