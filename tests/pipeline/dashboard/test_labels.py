"""Text of the page."""

import pytest

from millrace.pipeline.dashboard import labels
from millrace.pipeline.dashboard.snapshot import SPENT


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1.5 * 2**20, "1.5 MiB"), (1023 * 2**20, "1023 MiB")]
)
def test_sizes_have_no_exponents(value, text):
    assert labels.size(value) == text


def test_every_stage_is_in_the_legend_which_can_break_into_lines():
    text = labels.legend()
    assert all(name.replace("_", " ") in text for name in SPENT)
    assert text.count("margin-right") == len(SPENT)
