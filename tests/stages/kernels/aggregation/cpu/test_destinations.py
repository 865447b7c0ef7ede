"""Aggregation from the rows of a whole layer, against sums over each row in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.kernels.aggregation.cpu import destinations as kernels
from millrace.storage.graph import Graph, from_edges

NONE = np.empty(0)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Graph, np.ndarray, np.ndarray]:
    """A graph, some of its nodes, and which nodes have rows: those and their in-neighbours, at least."""
    n = draw(st.integers(1, 8))
    node = st.integers(0, n - 1)
    edges = np.array(draw(st.lists(st.tuples(node, node), max_size=60)), np.int64).reshape(-1, 2)
    graph = from_edges(edges[:, 0], edges[:, 1], n)
    dst = np.array(sorted(draw(st.sets(node))), np.int64)
    needed = {*dst.tolist(), *(u for v in dst for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist())}
    return graph, dst, np.array(sorted(needed | draw(st.sets(node))), np.int64)


def lists(graph: Graph, dst: np.ndarray, held: np.ndarray, real=np.float64, loops=kernels.AS_THEY_ARE, **given):
    place = np.full(graph.num_nodes, -(1 << 20), np.int32)
    place[held] = np.arange(len(held))
    args = {
        "weight": np.empty(0, np.float32),
        "factor": NONE.astype(real or float),
        "scale": NONE.astype(real or float),
    }
    args |= given
    edges = kernels.Edges(graph.indptr, graph.indices, place, args["weight"], args["factor"])
    rest = {"at": graph.indptr[dst], "stop": graph.num_nodes, "real": real, "loops": loops}
    return kernels.flatten(edges, dst, args["scale"], **rest)


@settings(max_examples=30, deadline=None)
@given(case=blocks(), kind=st.integers(0, 3), half=st.booleans(), seed=st.integers(0, 5))
def test_sums(case, kind, half, seed):
    graph, dst, held = case
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((len(held), 10))
    real = np.float32 if half else np.float64
    rows = x
    if half:
        rows = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        x = torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16).double().numpy()
    weight, factor = rng.random(graph.num_edges).astype(np.float32), rng.random(graph.num_nodes).astype(real)
    scale, own = rng.random(len(dst)).astype(real), rng.random(len(dst)).astype(real)
    out = np.full((len(dst), 10 if kind == kernels.BESIDE else 5), np.nan, real)
    flat = lists(graph, dst, held, real, weight=weight, factor=factor, scale=scale)
    kernels.sums(flat, rows, 5, kind, own, False, out)
    at = {v: i for i, v in enumerate(held.tolist())}
    for i, v in enumerate(dst.tolist()):
        want = np.zeros(5)
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = int(graph.indices[e])
            want += scale[i] * weight[e].astype(float) * factor[u] * x[at[u], :5]
        if kind == kernels.ADDED:
            want += own[i] * x[at[v], :5]
        elif kind == kernels.FROM_BESIDE:
            want += x[at[v], 5:]
        elif kind == kernels.BESIDE:
            want = np.r_[want, x[at[v], :5]]
        np.testing.assert_allclose(out[i], want, rtol=1e-5 if half else 1e-12, atol=1e-5 if half else 1e-12)


@settings(max_examples=20, deadline=None)
@given(case=blocks(), nan=st.booleans())
def test_maxima(case, nan):
    graph, dst, held = case
    x = np.random.default_rng(0).standard_normal((len(held), 7))
    if nan:
        x[::3, 2] = np.nan
    out = np.empty((len(dst), 7))
    kernels.maxima(lists(graph, dst, held, None), x, 4, True, False, out)
    most, own = out[:, :4], out[:, 4:]
    at = {v: i for i, v in enumerate(held.tolist())}
    for i, v in enumerate(dst.tolist()):
        sources = [at[u] for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist()]
        np.testing.assert_array_equal(most[i], x[sources, :4].max(axis=0) if sources else np.zeros(4))
        np.testing.assert_array_equal(own[i], x[at[v], 4:])


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("real", [np.float64, np.float32])
@settings(max_examples=20, deadline=None)
@given(case=blocks(), shift=st.sampled_from([0.0, 300.0]))
def test_attention(apart, real, case, shift):
    """Large logits do not overflow."""
    graph, dst, held = case
    rng = np.random.default_rng(0)
    x = rng.standard_normal((len(held), 6 if apart else 3)).astype(real)
    logits = (rng.standard_normal((len(held), 4)) + shift).astype(real)
    out = np.empty((len(dst), 6), real)
    flat = lists(graph, dst, held, None, loops=kernels.AT_THE_END)
    top, total = np.empty((len(dst), 2), real), np.empty((len(dst), 2), real)
    p = kernels.weigh(flat, logits, 0.2, logits[flat.own, 2:], top, total, known=False)
    kernels.head_sums(flat, p, x, apart, total, False, out)
    out, at = out.reshape(-1, 2, 3), {v: i for i, v in enumerate(held.tolist())}
    for i, v in enumerate(dst.tolist()):
        sources = [at[u] for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist() if u != v] + [at[v]]
        for h in range(2):
            z = logits[sources, h].astype(float) + logits[at[v], 2 + h]
            z = np.where(z > 0, z, 0.2 * z)
            p = np.exp(z - z.max())
            rows = x[sources, 3 * h : 3 * h + 3] if apart else x[sources]
            tolerance = 1e-11 if real == np.float64 else 2e-4
            np.testing.assert_allclose(out[i, h], p @ rows / p.sum(), rtol=tolerance, atol=tolerance)


def test_lists_whose_sources_ascend():
    graph = from_edges(np.array([0, 1, 2]), np.array([1, 1, 0]), 3)
    assert kernels.lists_ascend(graph.indptr, graph.indices, np.arange(3))
    falling = Graph(np.array([0, 2, 2]), np.array([1, 0], np.int32))
    assert not kernels.lists_ascend(falling.indptr, falling.indices, np.array([0]))
    assert kernels.lists_ascend(falling.indptr, falling.indices, np.array([1]))


def test_row_sums():
    graph = from_edges(np.array([0, 1, 2]), np.array([1, 1, 0]), 3, edge_weight=np.array([1, 2, 4], np.float32))
    out = np.empty(3)
    assert graph.edge_weight is not None
    kernels.row_sums(graph.indptr, graph.edge_weight, np.arange(3), out)
    assert out.tolist() == [4, 3, 0]
