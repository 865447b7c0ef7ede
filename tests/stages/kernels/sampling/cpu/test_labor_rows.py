"""Rows of LABOR-0 by bounds and bisection: the same edges as by sorting, in rows of every length and of equal
numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.cpu import labor_rows
from millrace.stages.kernels.sampling.draws import LaborDraws
from millrace.stages.random import node_words
from millrace.storage.graph import Graph
from millrace.tests.oracles.sampling import backend as reference


def graph_of(rows: list[np.ndarray], num_nodes: int) -> Graph:
    """Node v has in-edges from rows[v]; the other nodes have none."""
    indptr = np.zeros(num_nodes + 1, np.int64)
    indptr[1 : len(rows) + 1] = np.cumsum([len(r) for r in rows])
    indptr[len(rows) + 1 :] = indptr[len(rows)]
    return Graph(indptr, np.concatenate(rows).astype(np.int32))


def assert_same(graph: Graph, rows: int, keys: np.ndarray, s: int, poisson: bool) -> None:
    seeds = [np.arange(rows)] * len(keys)
    for a, b in zip(
        *(k.labor(graph, LaborDraws(seeds, keys, (s,), poisson=poisson)) for k in (cpu, reference)), strict=True
    ):
        assert np.array_equal(a.indptr, b.indptr)
        assert np.array_equal(a.positions, b.positions)
        assert np.array_equal(a.nodes, b.nodes)
        assert np.array_equal(a.indices, b.indices)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 4, 5, 6, 63, 64, 65, 128, 255, 256, 257, 400, 1500]), min_size=1, max_size=8),
    st.sampled_from([1, 3, 5, 64, 200]),
    st.sampled_from([1, 7, 300, 4000]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_rows_of_every_length_and_number_of_sources(lengths, s, sources, poisson, seed):
    """With few sources most edges are parallel: rows end in equal numbers, and candidates overflow."""
    rng = np.random.default_rng(seed)
    rows = [np.sort(rng.integers(0, sources, n)) for n in lengths]
    graph = graph_of(rows, max(sources, len(rows)))
    assert_same(graph, len(rows), rng.integers(0, 2**64, 2, np.uint64), s, poisson)


def test_a_source_of_nearly_all_edges():
    rng = np.random.default_rng(1)
    rows = [np.sort(np.append(np.full(3000, 17), rng.integers(0, 500, n))) for n in (0, 3, 100)]
    graph = graph_of(rows, 500)
    for s in (2, 9):
        assert_same(graph, 3, np.arange(40, dtype=np.uint64), s, False)


def test_rows_without_enough_candidates():
    """One edge of 300: about one row in ten thousand has no number below its bound."""
    rng = np.random.default_rng(2)
    rows = [np.sort(rng.permutation(1000)[:300]) for _ in range(500)]
    graph, keys = graph_of(rows, 1000), rng.integers(0, 2**64, 64, np.uint64)
    assert 2 * labor_rows._wanted.py_func(1) + labor_rows.PIECE < 300
    bound, lacking = (labor_rows._wanted.py_func(1) << 32) // 300 << 32, 0
    found = cpu.labor(graph, LaborDraws([np.arange(500)] * 64, keys, (1,)))
    for key, sample in zip(keys, found, strict=True):
        words = node_words(int(key), np.arange(1000))[np.stack(rows)]
        assert np.array_equal(sample.positions, np.arange(500) * 300 + words.argmin(1))
        lacking += int((words.min(1) >= np.uint64(bound)).sum())
    assert lacking > 0


@pytest.mark.parametrize("poisson", [False, True])
def test_room_grows_where_a_poisson_draw_needs_more(poisson, monkeypatch):
    """A minibatch whose rows find more than is expected of them goes on after its buffers have grown."""
    from millrace.stages.kernels.sampling.cpu import labor as labor_module

    rng = np.random.default_rng(3)
    rows = [np.sort(rng.permutation(300)[:200]) for _ in range(40)]
    graph = graph_of(rows, 300)
    monkeypatch.setattr(labor_module, "most_edges", lambda bulk, begin, end, s: (end - begin) * (0 if poisson else s))
    assert_same(graph, 40, np.arange(5, dtype=np.uint64), 30, poisson)
