"""Expected costs of sampling over block rows, beside counts from minibatches. That bytes follow exactly from such
counts is tested with the algorithms themselves (`test_staged_rows`)."""

from typing import Any

import numpy as np
import pytest

from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.placement.grid_costs import Asked, Cost, Degrees, Sizes, expected, sampler_kind
from millrace.stages.placement.row_blocks import Grid
from millrace.stages.sample.fastgcn import FastGCNSampler
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.block_sampling import frontiers

V = 6000
BATCH, BULK = 100, 3


def even() -> Graph:
    rng = np.random.default_rng(0)
    return from_edges(rng.integers(V, size=15 * V), np.repeat(np.arange(V), 15), V)


def skewed() -> Graph:
    """Degrees that differ by three orders of magnitude, the same in and out."""
    rng = np.random.default_rng(1)
    a, b = ((rng.random((2, 6 * V)) ** 3) * V).astype(np.int64)
    return from_edges(np.concatenate([a, b]), np.concatenate([b, a]), V)


GRAPHS = {"even": even(), "skewed": skewed()}


def node_wise_words(graph: Graph, sampler: Any, grid: Grid) -> dict[str, float]:
    """Words of a rank, from sampled minibatches of all ranks: nodes are as often another rank's as there are others."""
    p, c = grid.ranks, grid.replication
    rng, words = np.random.default_rng(2), {"owners": 0.0, "1.5d": 0.0}
    seeds = tuple(rng.permutation(V)[:BATCH] for _ in range(BULK * p))
    minibatches = sampler.sample(graph, BulkRequest(3, 0, 0, 0, seeds), cpu).minibatches
    for hop in range(len(sampler.fanout)):
        at_hop = [list(frontiers(m))[hop] for m in minibatches]
        rows, edges = sum(len(ids) for ids, _ in at_hop), sum(int(kept.sum()) for _, kept in at_hop)
        fetched = entries = 0
        for i in range(grid.blocks):
            distinct = np.unique(np.concatenate([ids for ids, _ in at_hop[i * BULK * c : (i + 1) * BULK * c]]))
            fetched, entries = fetched + len(distinct), entries + int(graph.in_degree[distinct].sum())
        away = 1 - c / p
        for name, share, others in (("owners", away, grid.blocks - 1), ("1.5d", away * (c - 1) / c, c - 1)):
            heads = others * p * (1 + 2 * BULK)
            asked = Asked(heads=heads, rows=share * rows, edges=share * edges)
            words[name] += asked.bytes(Sizes(row=5)) / 4 / p
        words["1.5d"] += Asked(fetched=away * fetched, entries=away * entries).bytes(Sizes()) / 4 / p
    return words


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("sampler", [NeighborSampler((10, 5, 3)), NeighborSampler((4, 3), expand="all")], ids=str)
@pytest.mark.parametrize(("p", "c"), [(4, 1), (4, 2), (8, 2)], ids=str)
def test_node_wise_words_are_expected_to_a_few_percent(graph: Graph, sampler: Any, p: int, c: int) -> None:
    costs = expected(sampler, Degrees.histogram(graph.in_degree), Grid(p, c), batch=BATCH, bulk=BULK)
    for name, words in node_wise_words(graph, sampler, Grid(p, c)).items():
        assert costs[name].words == pytest.approx(words, rel=0.1), name


def test_messages_and_seconds() -> None:
    degrees = Degrees.histogram(even().in_degree)
    costs = expected(NeighborSampler((5, 5)), degrees, Grid(8, 2), batch=10, bulk=1)
    # Two exchanges of two messages; ids, lengths and the rows of ceil(4 / 2) stages besides.
    assert costs["owners"].messages == 2 * 4 and costs["1.5d"].messages == 2 * (4 + 3 + 2)
    assert Cost(1000.0, 3.0).seconds(0.5, 1000.0) == 4.0 + 3.0
    alone = expected(NeighborSampler((5, 5)), degrees, Grid(4, 4), batch=10, bulk=1)
    assert all(cost == Cost(0.0, 0.0) for cost in alone.values())


def test_which_one_is_cheaper_depends_on_degrees_and_on_how_many_minibatches_share_rows() -> None:
    def cheaper(degree: int, fanout: int, bulk: int) -> str:
        degrees = Degrees.histogram(np.full(V, degree))
        costs = expected(NeighborSampler((fanout,) * 2), degrees, Grid(4, 1), batch=500, bulk=bulk)
        return min(costs, key=lambda name: costs[name].words)

    assert cheaper(degree=100, fanout=5, bulk=1) == "owners"
    assert cheaper(degree=100, fanout=5, bulk=1000) == "1.5d"
    assert cheaper(degree=3, fanout=10, bulk=16) == "1.5d"


@pytest.mark.parametrize("sampler", [LadiesSampler((200, 200)), FastGCNSampler((200, 200))], ids=str)
def test_layer_wise_costs_count_rows_once_and_sets_of_nodes_for_each_owner(sampler: Any) -> None:
    degrees = Degrees.histogram(even().in_degree)
    one, two = (expected(sampler, degrees, Grid(8, c), batch=BATCH, bulk=BULK) for c in (1, 2))
    # Fewer owners to tell of all nodes.
    assert two["owners"].words < one["owners"].words
    rows = BULK * (BATCH + 200) * (1 - 1 / 8)
    least = rows * (2 + 15) if isinstance(sampler, LadiesSampler) else 0
    assert 0.8 * least < one["1.5d"].words
    assert one["1.5d"].messages < one["owners"].messages or isinstance(sampler, FastGCNSampler)


def test_samplers_without_a_model_have_no_kind() -> None:
    kinds = [sampler_kind(s) for s in (NeighborSampler((2,)), LaborSampler((2,)), LadiesSampler((2,)), object())]
    assert kinds == ["node", "node", "layer", None]
