"""The best columns of rows, seen in blocks of any width: those of a sort of each row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.stages.kernels.best_of_rows import AT_ONCE, keep_best


def best_by_sort(scores, k):
    """Columns and scores of each row's best, -1 and -inf where there are none left."""
    ids, best = np.full((len(scores), k), -1), np.full((len(scores), k), -np.inf)
    for row, i, b in zip(scores.tolist(), ids, best):
        allowed = sorted((-s, c) for c, s in enumerate(row) if s > -np.inf)[:k]
        for place, (s, c) in enumerate(allowed):
            i[place], b[place] = c, -s
    return ids, best


def kept(scores, k, width, skip):
    """The same by the kernel, in blocks whose first `skip` columns were in the one before."""
    best, ids = np.full((len(scores), k), -np.inf, scores.dtype), np.full((len(scores), k), -1)
    for first in range(0, scores.shape[1], width):
        back = min(skip, first)
        keep_best(np.ascontiguousarray(scores[:, first - back : first + width]), back, first, best, ids)
    order = np.lexsort((ids, -best))
    return np.take_along_axis(ids, order, 1), np.take_along_axis(best, order, 1)


NUMBERS = st.sampled_from([-np.inf, np.nan, -1.0, 0.0, 0.5, 0.5, 1.0, np.inf])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(st.data())
def test_few_numbers(dtype, data):
    """Nearly all scores are shared."""
    rows, columns, k = (data.draw(st.integers(1, n)) for n in (3, 12, 15))
    row = st.lists(NUMBERS, min_size=columns, max_size=columns)
    scores = np.array(data.draw(st.lists(row, min_size=rows, max_size=rows)), dtype)
    wanted = best_by_sort(scores, k)
    for width, skip in ((columns, 0), (1, 0), (3, 2)):
        for found, want in zip(kept(scores, k, width, skip), wanted):
            assert np.array_equal(found, want)


@pytest.mark.parametrize("order", ["any", "rising", "falling", "equal"])
@pytest.mark.parametrize("k", [1, 7, 200])
def test_many_columns(order, k):
    scores = np.random.default_rng(k).integers(0, 300, (4, 5 * AT_ONCE + 3)).astype(np.float32)
    scores = {"any": scores, "rising": np.sort(scores), "falling": -np.sort(scores), "equal": 0 * scores}[order]
    wanted = best_by_sort(scores, k)
    for width in (AT_ONCE - 1, 100, scores.shape[1]):
        for found, want in zip(kept(scores, k, width, 5), wanted):
            assert np.array_equal(found, want)
