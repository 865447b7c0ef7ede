"""Rows in fewer bytes: rounded as torch rounds them, widened again, and narrowed to the same bytes a second time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from millrace.stages.memory.quantize import rounded
from millrace.storage.store.narrow import (
    FEATURE_DTYPES,
    SCALE_BYTES,
    narrow,
    row_width,
    stored_dtype,
    stored_width,
    widen,
)

ROWS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(0, 4), st.integers(0, 5)),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@pytest.mark.parametrize("kind", FEATURE_DTYPES)
@given(rows=ROWS)
def test_rows_come_back_rounded_once(kind, rows):
    kept = narrow(rows, kind)
    assert (kept.shape, kept.dtype) == ((len(rows), stored_width(kind, rows.shape[1])), stored_dtype(kind))
    assert row_width(kind, kept.shape[1]) == rows.shape[1]
    back = widen(kept, kind)
    assert back.dtype == np.float32 and np.isfinite(back).all()
    np.testing.assert_array_equal(narrow(back, kind), kept)
    np.testing.assert_array_equal(narrow(rows.astype(np.float64), kind), kept)
    beside = np.empty((len(rows) + 2, rows.shape[1]), np.float32)
    np.testing.assert_array_equal(widen(kept, kind, beside[1:-1]), back)
    x = torch.from_numpy(rows).double()
    if kind == "int8":
        largest = np.abs(rows).max(axis=1, initial=0).astype(np.float64)
        small = largest < 2.0**-90
        step = np.where(small, largest, largest / 127)[:, None]
        sized = largest < np.finfo(np.float32).max / 2
        assert (np.abs(back.astype(np.float64) - rows)[sized] <= 0.501 * step[sized] + 2.0**-90).all()
        return
    kept_range = {"float16": 65504.0, "bfloat16": float(torch.finfo(torch.bfloat16).max), "float32": np.inf}[kind]
    want = x.clamp(-kept_range, kept_range).float().to(getattr(torch, kind)).float()
    np.testing.assert_array_equal(back, want.numpy())


def test_eight_bits_are_those_that_travel_between_ranks_to_a_hundredth_of_a_step():
    rows = np.random.default_rng(0).normal(size=(200, 17)).astype(np.float32)
    travelled = rounded(torch.from_numpy(rows), "int8").numpy()
    step = np.abs(rows).max(axis=1, keepdims=True) / 127
    got = widen(narrow(rows, "int8"), "int8")
    assert (np.abs(got - rows) <= 0.505 * step).all()
    # Where a number lies between two steps, the wider scale may choose the other.
    assert (np.abs(got - travelled) / step < 0.02).mean() > 0.99
    assert narrow(rows, "int8").shape[1] == 17 + SCALE_BYTES
