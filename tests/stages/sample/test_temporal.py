"""Draws before a moment: their law, and that nothing later is among them."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from millrace.stages.random import Purpose, branches, stream
from millrace.stages.sample.temporal import TimedGraph
from millrace.storage.errors import InputError
from millrace.storage.graph import from_edges
from millrace.tests.contracts.graphs import graphs

KEY = stream(0, Purpose.SAMPLE, 0)


@given(graphs(), st.data())
def test_draws_are_from_what_is_not_later(graph, data):
    """Over ties, multi-edges, self loops, infinite times, empty rows."""
    whole = data.draw(st.booleans())
    moment = st.integers(-2, 6) if whole else st.sampled_from([-np.inf, -1.5, 0.0, 2.0, 2.5, np.inf])
    draw = lambda n: np.array(  # noqa: E731
        data.draw(st.lists(moment, min_size=n, max_size=n)), np.int64 if whole else np.float64
    )
    time = draw(graph.num_edges)
    timed = TimedGraph.of(graph, time)
    assert np.array_equal(timed.graph.indptr, graph.indptr)
    fanout, last, replace = (
        data.draw(st.sampled_from([-1, 1, 2, 5])),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
    )
    rows = np.arange(graph.num_nodes)
    moments = draw(len(rows))
    kept, positions = timed.draw(rows, moments, branches(KEY, rows), fanout, last=last, replace=replace)
    assert len(positions) == kept.sum()
    for v, mine in zip(rows, np.split(positions, np.cumsum(kept)[:-1])):
        row = slice(graph.indptr[v], graph.indptr[v + 1])
        valid = np.sort(time[row][time[row] <= moments[v]])
        assert np.array_equal(np.sort(timed.time[row]), timed.time[row])
        assert ((row.start <= mine) & (mine < row.stop)).all() and (timed.time[mine] <= moments[v]).all()
        if replace and fanout > 0:
            assert len(mine) == (fanout if len(valid) else 0)
        else:
            assert len(np.unique(mine)) == len(mine) == (len(valid) if fanout < 0 else min(fanout, len(valid)))
        if last and fanout > 0:
            latest = valid[-fanout:]
            assert (np.isin(timed.time[mine], latest)).all() if replace else sorted(timed.time[mine]) == list(latest)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_the_law(last, replace):
    """Of five edges that are not too late, two: every outcome as often as it should be."""
    graph = from_edges(np.arange(1, 9), np.zeros(8, np.int64), 9)
    timed = TimedGraph.of(graph, np.array([7, 1, 9, 3, 3, 0, 8, 4]))
    trials, pool = 6000, range(3, 5) if last else range(5)
    rows = np.zeros(trials, np.int64)
    kept, positions = timed.draw(
        rows, np.full(trials, 6), branches(KEY, np.arange(trials)), 2, last=last, replace=replace
    )
    assert (kept == 2).all()
    pairs = Counter(map(tuple, np.sort(positions.reshape(-1, 2)).tolist()))
    law = dict.fromkeys(combinations(pool, 2), 2.0 if replace else 1.0)
    law |= {(i, i): 1.0 for i in pool} if replace else {}
    assert pairs.keys() <= law.keys()
    expected = np.array(list(law.values())) / sum(law.values()) * trials
    found = np.array([pairs[pair] for pair in law])
    assert len(law) == 1 or chisquare(found, expected).pvalue > 1e-4


def test_times_of_another_dtype_compare_as_numbers():
    graph = from_edges(np.arange(1, 5), np.zeros(4, np.int64), 5)
    timed = TimedGraph.of(graph, np.array([0, 1, 2, 3], np.int8))
    for moment, count in ((-0.5, 0), (0.0, 1), (1.9, 2), (np.inf, 4), (-np.inf, 0), (1e300, 4)):
        kept, _ = timed.draw(np.array([0]), np.array([moment]), np.array([1], np.uint64), -1)
        assert kept[0] == count, moment
    late = TimedGraph.of(graph, np.array([0.0, 0.5, 1.0, np.inf], np.float32))
    assert late.draw(np.array([0]), np.array([1]), np.array([1], np.uint64), -1)[0][0] == 3


def test_nan_is_no_time():
    with pytest.raises(InputError, match="times hold NaN"):
        TimedGraph.of(from_edges(np.array([1]), np.array([0]), 2), np.array([np.nan]))
