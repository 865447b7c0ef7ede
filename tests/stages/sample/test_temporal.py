"""Draws and minibatches before a moment: their law, and that nothing later is among them."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from millrace.pipeline.datasets.cleaning.relations import graph_of_relations
from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.random import Purpose, branches, stream
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.stages.sample.temporal import TemporalSampler, TimedGraph, degrees_until, moments_of_nodes
from millrace.storage.errors import InputError
from millrace.storage.graph import ALWAYS, Graph, from_edges
from millrace.storage.typed.graph_types import GraphTypes
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.graphs import graphs
from millrace.tests.contracts.typed import typed_graphs

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
    timed = TimedGraph.from_graph(graph, time)
    assert np.array_equal(timed.graph.indptr, graph.indptr)
    fanout, last, again = (
        data.draw(st.sampled_from([-1, 1, 2, 5])),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
    )
    rows = np.arange(graph.num_nodes)
    moments = draw(len(rows))
    kept, positions = timed.draw(rows, moments, branches(KEY, rows), fanout, last=last, replace=again)
    assert len(positions) == kept.sum()
    for v, mine in zip(rows, np.split(positions, np.cumsum(kept)[:-1])):
        row = slice(graph.indptr[v], graph.indptr[v + 1])
        valid = np.sort(time[row][time[row] <= moments[v]])
        assert np.array_equal(np.sort(timed.time[row]), timed.time[row])
        assert ((row.start <= mine) & (mine < row.stop)).all() and (timed.time[mine] <= moments[v]).all()
        if again and fanout > 0:
            assert len(mine) == (fanout if len(valid) else 0)
        else:
            assert len(np.unique(mine)) == len(mine) == (len(valid) if fanout < 0 else min(fanout, len(valid)))
        if last and fanout > 0:
            latest = valid[-fanout:]
            assert (np.isin(timed.time[mine], latest)).all() if again else sorted(timed.time[mine]) == list(latest)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_the_law(last, replace):
    """Two of five edges that are not too late: every outcome as often as it should be."""
    graph = from_edges(np.arange(1, 9), np.zeros(8, np.int64), 9)
    timed = TimedGraph.from_graph(graph, np.array([7, 1, 9, 3, 3, 0, 8, 4]))
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
    timed = TimedGraph.from_graph(graph, np.array([0, 1, 2, 3], np.int8))
    for moment, count in ((-0.5, 0), (0.0, 1), (1.9, 2), (np.inf, 4), (-np.inf, 0), (1e300, 4)):
        kept, _ = timed.draw(np.array([0]), np.array([moment]), np.array([1], np.uint64), -1)
        assert kept[0] == count, moment
    late = TimedGraph.from_graph(graph, np.array([0.0, 0.5, 1.0, np.inf], np.float32))
    assert late.draw(np.array([0]), np.array([1]), np.array([1], np.uint64), -1)[0][0] == 3


def test_nan_is_no_time():
    with pytest.raises(InputError, match="times hold NaN"):
        TimedGraph.from_graph(from_edges(np.array([1]), np.array([0]), 2), np.array([np.nan]))


@st.composite
def requests(draw: st.DrawFn) -> tuple[Graph, BulkRequest, TemporalSampler]:
    """A graph with ties, multi-edges and equal times, perhaps weights and types, one of them without times, and seeds
    that repeat at other moments."""
    graph = draw(st.one_of(graphs(), typed_graphs()))
    moment = st.integers(0, 4)
    times = np.array(draw(st.lists(moment, min_size=graph.num_edges, max_size=graph.num_edges)), np.int64)
    if not graph.types.is_single and draw(st.booleans()):
        times[graph.edge_type == 0] = ALWAYS[times.dtype]
    weight = np.arange(1, graph.num_edges + 1, dtype=np.float32) if draw(st.booleans()) else None
    graph = replace(graph, edge_time=times, edge_weight=weight)
    pair = st.tuples(st.integers(0, max(0, graph.num_nodes - 1)), moment)
    seeds = [draw(st.lists(pair, unique=True, max_size=5)) if graph.num_nodes else [] for _ in range(2)]
    nodes, moments = zip(*(np.array(s, np.int64).reshape(-1, 2).T for s in seeds))
    fanout = tuple(draw(st.lists(st.sampled_from([-1, 1, 2]), min_size=1, max_size=3)))
    strategy, again = draw(st.sampled_from(["uniform", "last"])), draw(st.booleans())
    return graph, BulkRequest(1, 0, 0, 0, nodes, moments=moments), TemporalSampler(fanout, strategy, again, True)


@given(requests())
def test_no_minibatch_holds_an_edge_later_than_its_seed(given):
    graph, request, sampler = given
    destination = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    relation = np.zeros(graph.num_edges, int) if graph.types.is_single else graph.edge_type
    for m, moments in zip(sampler.sample(graph, request, None).minibatches, request.moments):
        block, when = m.blocks[0], moments_of_nodes(m, moments)
        assert np.array_equal(m.seeds, request.seeds[m.index]) and np.array_equal(when[: len(moments)], moments)
        # A node is there once at each moment, and an edge joins nodes at one moment.
        assert len(set(zip(m.nodes.tolist(), when.tolist()))) == len(m.nodes)
        row = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
        assert np.array_equal(when[block.indices], when[row])
        ids = block.edge_id
        assert (graph.edge_time[ids] <= when[row]).all()
        assert np.array_equal(graph.indices[ids], m.nodes[block.indices])
        assert np.array_equal(destination[ids], m.nodes[row])
        degrees = degrees_until(graph, m, moments)
        hop_of = np.searchsorted([b.num_dst for b in reversed(m.blocks)], np.arange(block.num_dst), side="right")
        for r in range(block.num_dst):
            row = ids[block.indptr[r] : block.indptr[r + 1]]
            until = np.flatnonzero((destination == m.nodes[r]) & (graph.edge_time <= when[r]))
            weight = np.ones(len(until)) if graph.edge_weight is None else graph.edge_weight[until]
            loops = weight[graph.indices[until] == m.nodes[r]]
            assert np.ravel(degrees[r])[0] == pytest.approx(weight.sum())
            if degrees.ndim > 1:
                assert degrees[r, 1] == pytest.approx(weight.sum() - loops.sum(), abs=1e-5)
                assert len(loops) or degrees[r, 2] == 1
            assert (np.diff(relation[row]) >= 0).all()
            fanout = sampler.fanout[hop_of[r]]
            if block.weight is not None:
                own = np.ones(len(row)) if graph.edge_weight is None else graph.edge_weight[row].astype(np.float64)
                there, kept = (np.bincount(relation[e], minlength=9)[relation[row]] for e in (until, row))
                given_weight = block.weight[block.indptr[r] : block.indptr[r + 1]]
                np.testing.assert_allclose(given_weight, own * there / np.maximum(kept, 1), rtol=1e-6)
            assert (block.weight is None) == (graph.types.is_single and graph.edge_weight is None)
            for mine, seen in ((row[relation[row] == k], until[relation[until] == k]) for k in range(4)):
                if sampler.replace and fanout > 0:
                    assert len(mine) == (fanout if len(seen) else 0)
                else:
                    assert len(set(mine)) == len(mine) == (len(seen) if fanout < 0 else min(fanout, len(seen)))
                if sampler.strategy == "last" and fanout > 0:
                    latest = np.sort(graph.edge_time[seen])[-fanout:]
                    assert np.isin(graph.edge_time[mine], latest).all()
        for outer, inner in zip(m.blocks, m.blocks[1:]):
            assert np.array_equal(outer.src[: outer.num_dst], inner.src)


@given(graphs(), st.integers(0, 3))
def test_without_anything_later_all_neighbours_are_those_of_the_plain_sampler(graph, seed):
    graph = replace(graph, edge_time=np.zeros(graph.num_edges, np.int64), node_time=np.zeros(graph.num_nodes, np.int64))
    seeds = np.random.default_rng(seed).permutation(graph.num_nodes)[:4]
    request = BulkRequest(seed, 0, 0, 0, (seeds,))
    ours = TemporalSampler((-1, -1)).sample(graph, request, None)
    plain = NeighborSampler((-1, -1)).sample(graph, request, cpu)
    assert minibatch_digest(ours.minibatches[0]) == minibatch_digest(plain.minibatches[0])


def test_draws_do_not_depend_on_the_other_seeds():
    rng = np.random.default_rng(0)
    graph = from_edges(rng.integers(0, 50, 600), rng.integers(0, 50, 600), 50, edge_time=rng.integers(0, 9, 600))
    sampler, nodes, moments = TemporalSampler((3,), edge_ids=True), np.arange(20), np.arange(20) % 7 + 2
    whole = sampler.sample(graph, BulkRequest(1, 0, 0, 0, (nodes,), moments=(moments,)), None).minibatches[0]
    half = sampler.sample(graph, BulkRequest(1, 0, 0, 0, (nodes[5:9],), moments=(moments[5:9],)), None).minibatches[0]
    rows = whole.blocks[0]
    assert np.array_equal(rows.edge_id[rows.indptr[5] : rows.indptr[9]], half.blocks[0].edge_id)


def test_two_hops_are_uniform():
    """A seed at 600 moments: of its four edges and of those of what it found, every pair as often as any other."""
    graph = from_edges(
        np.r_[np.arange(1, 5), np.arange(5, 21)], np.r_[np.zeros(4, int), np.repeat(np.arange(1, 5), 4)], 21,
        edge_time=np.zeros(20),
    )  # fmt: skip
    moments = np.arange(6000) / 7
    request = BulkRequest(3, 0, 0, 0, (np.zeros(6000, np.int64),), moments=(moments,))
    m = TemporalSampler((1, 1)).sample(graph, request, None).minibatches[0]
    leaves = m.nodes[m.blocks[0].indices[m.blocks[0].indptr[6000] :]]
    assert chisquare(np.bincount(leaves, minlength=21)[5:]).pvalue > 1e-4


def test_each_relation_draws_by_itself_and_one_without_times_uniformly():
    """Two of four edges of a relation without times, in 6000 trees; the two latest of another one."""
    node = np.zeros(4, np.int64)
    edges = {("t", "ever", "t"): (np.arange(1, 5), node), ("t", "at", "t"): (np.arange(1, 5), node)}
    graph = graph_of_relations(edges, GraphTypes(("t",), (0, 5), tuple(edges)))
    time = np.where(graph.edge_type == 0, ALWAYS[np.dtype(np.float64)], graph.indices.astype(np.float64))
    graph, moments = replace(graph, edge_time=time), 3 + np.arange(6000) / 6001
    request = BulkRequest(3, 0, 0, 0, (np.zeros(6000, np.int64),), moments=(moments,))
    m = TemporalSampler((2,), "last", edge_ids=True).sample(graph, request, None).minibatches[0]
    drawn = m.blocks[0].edge_id.reshape(6000, 4)
    assert (graph.edge_type[drawn] == [0, 0, 1, 1]).all() and (np.sort(time[drawn[:, 2:]]) == [2, 3]).all()
    pairs = Counter(map(tuple, np.sort(graph.indices[drawn[:, :2]]).tolist()))
    assert len(pairs) == 6 and chisquare(list(pairs.values())).pvalue > 1e-4


def test_what_the_sampler_refuses():
    plain = from_edges([0], [1], 2)
    with pytest.raises(InputError, match="but the edges have none"):
        TemporalSampler((2,)).check(plain)
    timed = from_edges([0], [1], 2, edge_time=[3])
    with pytest.raises(InputError, match="needs the times of seeds"):
        TemporalSampler((2,)).sample(timed, BulkRequest(0, 0, 0, 0, (np.array([1]),)), None)
    with pytest.raises(InputError, match="strategy is 'first'"):
        TemporalSampler((2,), "first")  # type: ignore[arg-type]
    for bad in ((), (0,), (True,)):
        with pytest.raises(InputError, match="fanout"):
            TemporalSampler(bad)
    with pytest.raises(InputError, match="whole graph"):
        TemporalSampler((2,)).sample_by_owners(None, None)  # type: ignore[arg-type]
