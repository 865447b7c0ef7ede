"""Draws from segments of rows give the bits of draws from whole rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.stages.kernels.row_block.draw import HopRows, draw_rows
from millrace.stages.kernels.row_block.segments import draw_segments, ends_until
from millrace.stages.random import Purpose, node_words, stream
from millrace.tests.contracts.graphs import graphs

KEY = stream(3, Purpose.SAMPLE, 1)


@given(graphs(), st.integers(1, 6), st.booleans())
def test_whole_rows_are_drawn_as_by_the_kernel_of_rows(graph, fanout, replace):
    rows = np.arange(graph.num_nodes)
    hop = HopRows(rows, np.array([0, len(rows)]), np.array([KEY], np.uint64), fanout, ascending=True)
    drawn = draw_rows(graph, 0, hop, replace, None, True)
    kept, positions = draw_segments(graph.indptr[:-1], graph.indptr[1:], node_words(KEY, rows), fanout, replace)
    assert np.array_equal(kept, drawn.kept) and np.array_equal(positions, drawn.positions)


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_ends(dtype):
    indptr, time = np.array([0, 3, 3, 7]), np.array([1, 2, 2, 0, 5, 5, 9], dtype)
    rows = np.array([0, 0, 0, 1, 2, 2, 2])
    moments = np.array([0, 1, 2, 4, 4, 5, 100], dtype)
    assert ends_until(indptr, time, rows, moments).tolist() == [0, 1, 3, 3, 4, 6, 7]
