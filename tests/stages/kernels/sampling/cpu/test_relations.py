"""Sampling relation by relation: the same bits in both kernels, its invariants and its law."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from millrace.pipeline.datasets.cleaning.relations import graph_of_relations
from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.cpu.draw import BLOCK_ROWS
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import InputError
from millrace.storage.graph import from_edges
from millrace.storage.typed.graph_types import GraphTypes
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.typed import typed_dataset, typed_graphs
from millrace.tests.oracles.sampling import backend as reference

ROWS = 5 * BLOCK_ROWS
numbers = st.sampled_from([-1, 1, 2, 3, 70])


@pytest.fixture(autouse=True)
def _restore_threads():
    yield
    threads.set_num_threads(None)


def drawn(sampler, graph, kernel, k, num_threads=1, seed=0):
    threads.set_num_threads(num_threads)
    plan = SeedPlan(np.arange(graph.num_nodes), 3, k, seed)
    bulks = (sampler.sample(graph, plan.request(0, b), kernel) for b in range(plan.num_bulks))
    return [m for bulk in bulks for m in bulk.minibatches]


@settings(max_examples=25, deadline=None)
@given(typed_graphs(), st.data())
def test_same_minibatches_for_any_kernel_threads_and_bulk_size_with_true_edges(graph, data):
    relations = {",".join(r): data.draw(st.tuples(numbers | st.just(0), numbers)) for r in graph.types.relations[:2]}
    sampler = NeighborSampler(
        (data.draw(numbers), data.draw(numbers)),
        replace=data.draw(st.booleans()),
        expand=data.draw(st.sampled_from(["new", "all"])),
        relations=relations,
    )
    first = drawn(sampler, graph, reference, 2)
    digests = [minibatch_digest(m) for m in first]
    for k, num_threads in ((1, 1), (3, 2)):
        assert [minibatch_digest(m) for m in drawn(sampler, graph, cpu, k, num_threads)] == digests
    fanout = sampler.by_relation(graph.types)
    for m in first:
        m.check()
        for hop, block in enumerate(reversed(m.blocks)):
            if m.nested and hop == 0:
                continue
            for i, v in enumerate(block.src[: block.num_dst]):
                edges = slice(block.indptr[i], block.indptr[i + 1])
                at = block.edge_id[edges]
                assert (graph.indices[at] == block.src[block.indices[edges]]).all()
                assert ((at >= graph.indptr[v]) & (at < graph.indptr[v + 1])).all()
                own = graph.edge_type[graph.indptr[v] : graph.indptr[v + 1]]
                hops = range(2) if m.nested else [hop]
                for r in np.unique(own):
                    kept, degree = int(np.sum(graph.edge_type[at] == r)), int(np.sum(own == r))
                    allowed = [
                        degree if (s := fanout[h, r]) < 0 else s if sampler.replace else min(s, degree) for h in hops
                    ]
                    assert kept in allowed
                    if kept:
                        assert block.weight[edges][graph.edge_type[at] == r] == pytest.approx(degree / kept)
                if not sampler.replace:
                    assert len(set(at.tolist())) == len(at)


@pytest.mark.parametrize("kernel", [pytest.param(cpu, id="cpu"), pytest.param(reference, id="reference")])
def test_sets_of_each_relation_follow_exact_enumeration_and_are_independent(kernel):
    """One row with 4 edges of one relation and 5 of another, of which 2 and 3 are drawn: 6 * 10 pairs of sets."""
    n = 40 if kernel is reference else 400
    src = np.concatenate([np.tile(np.arange(4), n), np.tile(np.arange(4, 9), n)])
    rows = np.concatenate([np.repeat(np.arange(9, 9 + n), 4), np.repeat(np.arange(9, 9 + n), 5)])
    edges = {("a", "r", "b"): (src[: 4 * n], rows[: 4 * n]), ("a", "s", "b"): (src[4 * n :], rows[4 * n :])}
    graph = graph_of_relations(edges, GraphTypes(("a", "b"), (0, 9, 9 + n), tuple(edges)))
    sampler = NeighborSampler((3,), relations={"r": 2})
    counts = dict.fromkeys(((a, b) for a in combinations(range(4), 2) for b in combinations(range(4, 9), 3)), 0)
    epochs = 30
    for epoch in range(epochs):
        plan = SeedPlan(np.arange(9, 9 + n), n, 1, 5)
        block = sampler.sample(graph, plan.request(epoch, 0), kernel).minibatches[0].blocks[0]
        sources = block.src[block.indices].reshape(n, 5)
        for row in sources.tolist():
            counts[tuple(sorted(row[:2])), tuple(sorted(row[2:]))] += 1
    cells = comb(4, 2) * comb(5, 3)
    expected = n * epochs / cells
    statistic = sum((c - expected) ** 2 / expected for c in counts.values())
    assert chi2.sf(statistic, cells - 1) > 1e-4


def test_a_hub_is_sampled_by_bisection():
    """Segments far longer than a doubling step, at the ends of a row."""
    edges = {("a", f"r{i}", "b"): (np.arange(m) % 50, np.full(m, 50)) for i, m in enumerate((1000, 1, 777, 3))}
    graph = graph_of_relations(edges, GraphTypes(("a", "b"), (0, 50, 51), tuple(edges)))
    sampler = NeighborSampler((5,), relations={"r3": -1})
    plan = SeedPlan(np.array([50]), 1, 1, 0)
    block = sampler.sample(graph, plan.request(0, 0), cpu).minibatches[0].blocks[0]
    assert np.bincount(graph.edge_type[block.edge_id]).tolist() == [5, 1, 5, 3]
    np.testing.assert_allclose(block.weight, np.repeat([200, 1, 777 / 5, 1], [5, 1, 5, 3]), rtol=1e-6)


@pytest.mark.parametrize(
    ("relations", "said"),
    [
        ({"wrote": 2}, "a fanout for relation 'wrote', but there is no relation 'wrote'; expected one of writes"),
        ({"writes": 2, "author,writes,paper": 3}, "which are one; leave one out"),
    ],
)
def test_an_unknown_relation_is_refused(relations, said):
    with pytest.raises(InputError, match=said):
        NeighborSampler((2,), relations=relations).check(typed_dataset().graph)


@pytest.mark.parametrize(
    ("relations", "said"),
    [
        ({"r": (1, 2)}, r"the fanout of relation 'r' is \[1, 2\]; expected 1 numbers"),
        ({"r": -2}, "the fanout of relation 'r' holds -2"),
        ({"r": True}, "the fanout of relation 'r' holds True"),
    ],
)
def test_a_bad_fanout_is_refused(relations, said):
    with pytest.raises(InputError, match=said):
        NeighborSampler((2,), relations=relations)


def test_a_graph_with_one_type_has_no_relations():
    with pytest.raises(InputError, match="the graph has one type of edges"):
        NeighborSampler((2,), relations={"r": 1}).check(from_edges([0], [1]))


@pytest.mark.parametrize("offsets", [(0, ROWS, ROWS + 200), (0, ROWS, ROWS + 200, ROWS + 201, ROWS + 202)])
def test_blocks_of_rows_and_a_shared_workspace_show_in_no_minibatch(offsets):
    """Rows of many blocks with more draws than are drawn together, and bulks that wait while others are made; types are
    one range of ids each, so that lengths of segments are known, or two."""
    rng = np.random.default_rng(0)
    a, b = np.arange(ROWS), np.arange(ROWS, ROWS + 200)
    edges = {("a", r, "b"): (rng.choice(a, 1200), rng.choice(b, 1200)) for r in ("r", "s")}
    edges |= {("b", r, "a"): (rng.choice(b, 6 * ROWS), rng.choice(a, 6 * ROWS)) for r in ("t", "u", "v")}
    graph = graph_of_relations(edges, GraphTypes(("a", "b"), offsets, tuple(edges)))
    sampler, seeds = NeighborSampler((3, 4, 2)), np.arange(0, ROWS, 200)

    def digests(kernel, k, workspace):
        plan = SeedPlan(seeds, 16, k, 0)
        bulks = [sampler.sample(graph, plan.request(0, i), kernel, workspace) for i in range(plan.num_bulks)]
        return [minibatch_digest(m) for bulk in bulks for m in bulk.minibatches]

    assert digests(cpu, 2, cpu.Workspace()) == digests(reference, 16, None)
