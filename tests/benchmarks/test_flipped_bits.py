"""A seeded sample of the campaign of flipped bits."""

import pytest

from millrace.benchmarks.flipped_bits import NAMES, campaign


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_gives_the_same_result_or_a_refusal(name):
    found = campaign(4, seed=6, wanted=[name])[name]
    assert found.total() == 4
    assert set(found) <= ({"found"} if name == "mapped" else {"same", "refused"})
