"""Repeated seeds, disjoint trees, induced and bidirectional subgraphs, against enumerations, the bulk kernel and PyG's
own code."""

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.utils import trim_to_layer

from millrace import NeighborLoader
from millrace.pipeline.interop.export import sampled_graph, sampler_output
from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.random import Purpose, branches, stream
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.stages.sample.single.trees import sample_separately
from millrace.storage.graph import Graph, from_edges

NODES = 60


def random_data() -> Data:
    """Multi-edges and self loops among them; the nodes from 50 on have no in-edges."""
    rng = torch.Generator().manual_seed(0)
    src, dst = torch.randint(NODES, (400,), generator=rng), torch.randint(50, (400,), generator=rng)
    return Data(x=torch.arange(NODES), edge_index=torch.stack([src, dst]), w=torch.rand(400, generator=rng))


def graph_of(data: Data) -> Graph:
    return from_edges(*data.edge_index.numpy(), NODES, edge_weight=data.w.numpy(), keep_edge_id=True)


def lists(found: SamplerOutput) -> list[Any]:
    tensors = (found.node, found.row, found.col, found.edge, found.batch)
    return [None if t is None else t.tolist() for t in tensors] + [found.num_sampled_nodes, found.num_sampled_edges]


def check(batch: Data, data: Data) -> None:
    assert torch.equal(batch.x, batch.n_id) and torch.equal(
        batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id]
    )


OPTIONS = [{}, {"replace": True}, {"weighted": True}, {"weighted": True, "replace": True}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("fanout", [(3, 2), (-1, 2, 1), (2, -1)])
def test_distinct_seeds_draw_the_bits_of_the_bulk_kernel(options: dict[str, bool], fanout: tuple[int, ...]) -> None:
    graph, sampler = graph_of(random_data()), NeighborSampler(fanout, edge_ids=True, **options)
    request = BulkRequest(5, 1, 0, 3, (np.array([40, 3, 55, 17]),))
    (whole,) = sampler.sample(graph, request, cpu).minibatches
    keys = request.keys(len(fanout))[0]
    apart = sampler_output(sample_separately(sampler, graph, request.seeds[0], keys, disjoint=False))
    assert lists(apart) == lists(sampled_graph(whole, graph.edge_id))


def test_seeds_that_repeat_draw_each_for_itself() -> None:
    data = random_data()
    nodes = torch.tensor([7, 3, 7, 52, 7])
    (batch,) = NeighborLoader(data, [2, 2], nodes, batch_size=5, seed=0)
    check(batch, data)
    assert (
        batch.n_id[:5].tolist() == nodes.tolist()
        and batch.input_id.tolist() == [0, 1, 2, 3, 4]
        and batch.num_sampled_nodes[0] == 5
    )
    found = batch.n_id[5:]
    assert len(found.unique()) == len(found) and not torch.isin(found, nodes).any()
    row, col = batch.edge_index
    assert torch.bincount(col[: batch.num_sampled_edges[0]], minlength=5).tolist() == [2, 2, 2, 0, 2]
    # Edges out of a node that repeats leave its first position.
    assert not torch.isin(row, torch.tensor([2, 4])).any()
    # First positions draw what they draw where nothing repeats.
    (alone,) = NeighborLoader(data, [2, 2], [7, 3, 52], batch_size=3, seed=0)
    for ours, theirs in ((0, 0), (1, 1)):
        assert batch.e_id[col == ours].tolist() == alone.e_id[alone.edge_index[1] == theirs].tolist()


def test_draws_of_a_seed_that_repeats_are_independent() -> None:
    data = Data(edge_index=torch.stack([torch.arange(1, 5), torch.zeros(4, dtype=torch.int64)]), num_nodes=5)
    (batch,) = NeighborLoader(data, [2], [0] * 600, batch_size=600, seed=0)
    pairs = torch.bincount((1 << batch.e_id.view(600, 2)).sum(1), minlength=13)[[3, 5, 6, 9, 10, 12]]
    # Each of the six pairs of in-edges is as likely: 100 of 600, standard deviation 9.2.
    assert pairs.sum() == 600 and ((pairs - 100).abs() < 4.5 * 9.2).all()


@pytest.mark.parametrize("subgraph_type", [SubgraphType.directional, SubgraphType.bidirectional])
def test_disjoint_trees_of_all_neighbours_are_those_of_each_seed_alone(subgraph_type: SubgraphType) -> None:
    data, seeds = random_data(), torch.tensor([40, 3, 55, 3])
    (batch,) = NeighborLoader(data, [-1, -1], seeds, batch_size=4, disjoint=True, subgraph_type=subgraph_type)
    assert (
        torch.equal(batch.x, batch.n_id)
        and batch.n_id[:4].tolist() == seeds.tolist()
        and batch.batch[:4].tolist() == [0, 1, 2, 3]
    )
    row, col = batch.edge_index
    assert torch.equal(batch.batch[row], batch.batch[col])
    for i, seed in enumerate(seeds.tolist()):
        (alone,) = NeighborLoader(data, [-1, -1], [seed], subgraph_type=subgraph_type)
        assert sorted(batch.n_id[batch.batch == i].tolist()) == sorted(alone.n_id.tolist())
        mine = batch.batch[col] == i
        assert sorted(batch.e_id[mine].tolist()) == sorted(alone.e_id.tolist())
        pairs = [
            sorted(map(tuple, t.t().tolist()))
            for t in (batch.n_id[batch.edge_index[:, mine]], alone.n_id[alone.edge_index])
        ]
        assert pairs[0] == pairs[1]


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"weight_attr": "w"}])
def test_disjoint_trees(options: dict[str, Any]) -> None:
    data = random_data()
    for batch in NeighborLoader(data, [3, 2], torch.arange(40, 60), batch_size=8, disjoint=True, seed=3, **options):
        check(batch, data)
        nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
        assert (
            nodes[0] == batch.batch_size
            and sum(nodes) == len(batch.n_id) == len(batch.batch)
            and sum(edges) == len(batch.e_id)
        )
        assert len(torch.unique(batch.batch * NODES + batch.n_id)) == len(batch.n_id)
        row, col = batch.edge_index
        assert torch.equal(batch.batch[row], batch.batch[col])
        # By hop, then by seed, then ascending; a hop's edges lead into what the hop before found.
        for part in torch.split(batch.batch * NODES + batch.n_id, nodes)[1:]:
            assert (part.diff() > 0).all()
        first, second = torch.split(col, edges)
        assert (first < nodes[0]).all() and ((nodes[0] <= second) & (second < nodes[0] + nodes[1])).all()
        degree = torch.bincount(data.edge_index[1], minlength=NODES)[batch.n_id[: nodes[0] + nodes[1]]]
        most = torch.tensor([3] * nodes[0] + [2] * nodes[1])
        expected = most * (degree > 0) if "replace" in options else torch.minimum(degree, most)
        assert torch.equal(torch.bincount(col, minlength=len(expected)), expected)
        assert trim_to_layer(1, nodes, edges, batch.x, batch.edge_index)[0].shape[0] == nodes[0] + nodes[1]


def test_a_tree_does_not_depend_on_the_others() -> None:
    # The middle tree is a hundred times as wide as the others: its rows are drawn in pieces.
    leaves = torch.arange(10, 310)
    src = torch.cat([torch.tensor([3, 4]), leaves, torch.arange(310, 910)])
    dst = torch.cat([torch.tensor([0, 2] + [1] * 300), leaves.repeat_interleave(2)])
    graph, sampler = (
        from_edges(src.numpy(), dst.numpy(), 910, keep_edge_id=True),
        NeighborSampler((-1, 1), edge_ids=True),
    )
    keys = BulkRequest(0, 0, 0, 0, (np.arange(3),)).keys(2)[0]
    trees = sampler_output(sample_separately(sampler, graph, np.arange(3), keys, disjoint=True))
    assert trees.num_sampled_nodes == [3, 302, 300]
    pair = sampler_output(sample_separately(sampler, graph, np.arange(2), keys, disjoint=True))
    mine = [t.batch == 1 for t in (trees, pair)]
    assert torch.equal(trees.node[mine[0]], pair.node[mine[1]])
    assert torch.equal(trees.edge[mine[0][trees.col]], pair.edge[mine[1][pair.col]])


def test_branches_are_streams_of_one_more_coordinate() -> None:
    key = stream(7, Purpose.SAMPLE, 1, 2, 3)
    assert branches(key, [0, 5]).tolist() == [stream(7, Purpose.SAMPLE, 1, 2, 3, i) for i in (0, 5)]


def test_induced_has_all_edges_among_the_sampled_nodes() -> None:
    data = random_data()
    options = {"batch_size": 10, "seed": 2}
    directional = NeighborLoader(data, [2, 2], **options)
    for name in ("induced", SubgraphType.induced):
        for batch, plain in zip(NeighborLoader(data, [2, 2], subgraph_type=name, **options), directional):
            check(batch, data)
            assert (
                torch.equal(batch.n_id, plain.n_id)
                and "num_sampled_nodes" not in batch
                and "num_sampled_edges" not in batch
            )
            inside = torch.isin(data.edge_index, batch.n_id).all(0).nonzero().flatten()
            assert batch.e_id.sort().values.tolist() == inside.tolist() and len(inside) >= plain.num_edges
            assert (batch.edge_index[1].diff() >= 0).all()
        directional.epoch = 0
    (batch,) = NeighborLoader(data, [-1], [7, 7], batch_size=2, subgraph_type="induced")
    check(batch, data)
    into = int((data.edge_index[1] == 7).sum())
    assert torch.bincount(batch.edge_index[1])[:2].tolist() == [into, into] and not (batch.edge_index[0] == 1).any()


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"subgraph_type": "induced"}])
def test_without_hops_a_minibatch_has_its_seeds(options: dict[str, Any]) -> None:
    data = random_data()
    for batch in NeighborLoader(data, [], [5, 3, 40], batch_size=2, **options):
        check(batch, data)
        inside = torch.isin(data.edge_index, batch.n_id).all(0).sum() if "subgraph_type" in options else 0
        assert batch.n_id.tolist() == [[5, 3], [40]][batch.batch_size == 1] and batch.num_edges == inside
        assert "subgraph_type" in options or (batch.num_sampled_nodes, batch.num_sampled_edges) == (
            [len(batch.n_id)],
            [],
        )


def test_directed_is_deprecated() -> None:
    with pytest.warns(UserWarning, match="directed=False is deprecated: use subgraph_type='induced'") as caught:
        old = NeighborLoader(random_data(), [2], batch_size=30, seed=0, directed=False)
    new = NeighborLoader(random_data(), [2], batch_size=30, seed=0, subgraph_type="induced")
    assert caught[0].filename == __file__ and [b.e_id.tolist() for b in old] == [b.e_id.tolist() for b in new]


def test_bidirectional_is_what_pyg_makes_of_the_sampled_edges() -> None:
    data = random_data()
    both = [
        NeighborLoader(data, [2, 2], batch_size=10, seed=2, subgraph_type=name)
        for name in ("bidirectional", "directional")
    ]
    for batch, plain in zip(*both):
        expected = SamplerOutput(plain.n_id, *plain.edge_index, plain.e_id).to_bidirectional()
        assert torch.equal(batch.n_id, plain.n_id) and torch.equal(
            batch.edge_index, torch.stack([expected.row, expected.col])
        )
        assert batch.is_undirected() and "num_sampled_nodes" not in batch and "num_sampled_edges" not in batch
        # An edge that was sampled keeps its id; a reverse has that of what it reverses.
        first: dict[tuple[int, int], int] = {}
        for (u, v), e in zip(plain.edge_index.t().tolist(), plain.e_id.tolist()):
            first.setdefault((u, v), e)
        ids = [first[u, v] if (u, v) in first else first[v, u] for u, v in batch.edge_index.t().tolist()]
        assert batch.e_id.tolist() == ids and torch.equal(batch.w, data.w[ids])


@pytest.mark.parametrize(
    "options", [{"subgraph_type": "induced"}, {"subgraph_type": "bidirectional"}, {"disjoint": True}, {}]
)
def test_bulks_do_not_show(options: dict[str, Any]) -> None:
    nodes = torch.tensor([1, 2, 3, 4, 5, 5, 6, 7, 8, 1])  # of five minibatches of two, the third has a seed twice

    def epochs(bulk_size: int) -> list[list[Any]]:
        loader = NeighborLoader(random_data(), [3, 2], nodes, batch_size=2, seed=1, bulk_size=bulk_size, **options)
        return [[b.n_id.tolist(), b.e_id.tolist(), b.edge_index.tolist()] for _ in range(2) for b in loader]

    assert epochs(1) == epochs(4)
