"""Sums are exact, so that neither the order of rows nor how they are cut shows in a bit."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from millrace.pipeline.datasets.cleaning.moments import Moments

SHAPES = st.tuples(st.integers(0, 12), st.integers(1, 3))
ROWS = arrays(np.float32, SHAPES, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(0, 12), st.randoms(use_true_random=False))
def test_sums_are_those_of_fractions_in_any_order_and_pieces(x, cut, random):
    found = Moments.from_rows(x)
    for column, total, squares in zip(x.T.tolist(), found.sums, found.squares):
        assert Fraction(total, 1 << 149) == sum(map(Fraction, column))
        assert Fraction(squares, 1 << 298) == sum(Fraction(value) ** 2 for value in column)
    order = list(range(len(x)))
    random.shuffle(order)
    first, rest = np.split(x[order], [cut])
    again = Moments.from_rows(first) + Moments.of_record(Moments.from_rows(rest).record())
    assert again.record() == found.record()


@pytest.mark.parametrize("at_once", [1, 40, 1 << 18])
def test_columns_are_scaled_as_numpy_would(monkeypatch, at_once):
    monkeypatch.setattr("millrace.pipeline.datasets.cleaning.moments.AT_ONCE", at_once)
    x = np.random.default_rng(0).lognormal(3, 4, (200, 5)).astype(np.float32)
    x[:, 3], x[:, 4] = 0.1, 0
    scaling = Moments.from_rows(x).scaling()
    np.testing.assert_allclose(scaling.mean, x.mean(0, np.float64), rtol=1e-14)
    np.testing.assert_allclose(scaling.deviation[:3], x[:, :3].std(0, np.float64), rtol=1e-14)
    scaled = scaling.apply(x)
    assert scaled.dtype == np.float32 and not scaled[:, 3:].any(), "constant columns are shifted only"
    np.testing.assert_allclose(scaled[:, :3].std(0, np.float64), 1, rtol=1e-6)
