"""`PyGSampler` in PyG's own loaders: exact neighbourhoods, laws of draws, worker processes, and refusals."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.loader
from scipy.stats import chisquare
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling, NodeSamplerInput

from millrace import LinkNeighborLoader, NeighborLoader, PyGSampler
from millrace.pipeline.interop import pyg_loader
from millrace.storage.errors import InputError

V = 60
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def graph() -> Data:
    rng = torch.Generator().manual_seed(0)
    edges = torch.randint(V, (2, 400), generator=rng)
    return Data(x=torch.rand(V, 4, generator=rng), at=torch.arange(V) % 7, edge_index=edges, w=torch.arange(400) % 5)


def hetero() -> HeteroData:
    rng, data = torch.Generator().manual_seed(0), HeteroData()
    data["paper"].x, data["author"].x = torch.arange(40), torch.arange(25)
    data[WRITES].edge_index = torch.stack([torch.randint(n, (150,), generator=rng) for n in (25, 40)])
    data[CITES].edge_index = torch.randint(40, (2, 120), generator=rng)
    return data


@pytest.mark.parametrize("workers", [0, 2])
def test_pygs_node_loader_yields_whole_neighbourhoods(workers: int) -> None:
    data = graph()
    sampler: Any = PyGSampler(data, [-1, -1])
    assert isinstance(sampler, BaseSampler) and sampler.edge_permutation is None
    theirs = NodeLoader(data, sampler, torch.arange(30), batch_size=8, num_workers=workers)
    ours = NeighborLoader(data, [-1, -1], torch.arange(30), batch_size=8)
    for a, b in zip(theirs, ours, strict=True):
        assert set(a.keys()) == set(b.keys())
        for name in ("x", "at", "edge_index", "w", "n_id", "e_id", "input_id"):
            assert torch.equal(a[name], b[name]), name
        assert a.num_sampled_edges == b.num_sampled_edges and a.batch_size == b.batch_size


def test_draws_in_workers_differ_and_have_their_law() -> None:
    leaves = torch.arange(4000)
    data = Data(edge_index=torch.stack([1000 + leaves, leaves // 4]), num_nodes=5000)
    torch.manual_seed(3)
    sampler: Any = PyGSampler(data, [1])
    loader = NodeLoader(data, sampler, torch.arange(1000), batch_size=50, num_workers=2)
    epochs = [torch.cat([batch.e_id for batch in loader]) for _ in range(2)]
    assert not torch.equal(*epochs)
    counts = np.bincount(torch.cat(epochs) % 4, minlength=4)
    assert counts.sum() == 2000 and chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("law", [None, NegativeSampling("binary", 0.5), NegativeSampling("triplet", 2)])
@pytest.mark.parametrize("disjoint", [False, True])
def test_pygs_link_loader(law: Any, disjoint: bool) -> None:
    data, pairs = hetero(), torch.stack([torch.arange(20), torch.arange(20) * 2])
    sampler: Any = PyGSampler(data, [-1], disjoint=disjoint)
    loader = LinkLoader(data, sampler, (WRITES, pairs), neg_sampling=law, batch_size=6)
    ours = LinkNeighborLoader(data, [-1], (WRITES, pairs), neg_sampling=law, batch_size=6, disjoint=disjoint)
    assert isinstance(ours, LinkLoader)
    for batch, mine in zip(loader, ours, strict=True):
        ids, author, paper = batch[WRITES].input_id, batch["author"], batch["paper"]
        assert torch.equal(ids, mine[WRITES].input_id)
        if law is None or law.is_binary():
            ends = [nodes.n_id[at] for nodes, at in zip((author, paper), batch[WRITES].edge_label_index)]
            assert torch.equal(torch.stack(ends)[:, : len(ids)], pairs[:, ids])
        else:
            assert torch.equal(author.n_id[author.src_index], pairs[0, ids])
            assert paper.dst_neg_index.shape == (len(ids), 2)
        assert all(set(a.keys()) == set(b.keys()) for a, b in zip(batch.stores, mine.stores, strict=True))


def test_pygs_inference_reads_the_sampler() -> None:
    data = graph()
    net = GraphSAGE(4, 8, num_layers=2, out_channels=3).eval()
    loader = NeighborLoader(data, [-1], batch_size=16)
    assert isinstance(loader, NodeLoader) and isinstance(loader, NeighborLoader)
    with torch.no_grad():
        torch.testing.assert_close(net.inference(loader), net(data.x, data.edge_index))


def test_scripts_may_put_ours_in_the_place_of_pygs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_geometric.loader, "NeighborLoader", NeighborLoader)
    pyg_loader._with_pyg.cache_clear()
    assert isinstance(NeighborLoader(graph(), [2]), NodeLoader)


def test_copies_take_other_numbers_and_processes_get_it() -> None:
    data = graph()
    sampler = PyGSampler(data, [2])
    other = copy.copy(sampler)
    other.num_neighbors = [-1]
    given = NodeSamplerInput(None, torch.arange(10))
    wide, narrow = (s.sample_from_nodes(given).num_sampled_edges[0] for s in (other, sampler))
    degree = torch.bincount(data.edge_index[1], minlength=V)[:10]
    assert (wide, narrow) == (int(degree.sum()), int(degree.clamp(max=2).sum()))
    again = pickle.loads(pickle.dumps(other))
    assert torch.equal(again.sample_from_nodes(given).edge, other.sample_from_nodes(given).edge)
    loader = NeighborLoader(data, [2], batch_size=10, seed=1)
    sent = pickle.loads(pickle.dumps(loader))
    assert type(sent) is type(loader)
    assert [b.e_id.tolist() for b in sent] == [b.e_id.tolist() for b in loader]


def test_loaders_take_a_sampler() -> None:
    data = graph()
    loader = NeighborLoader(data, [], neighbor_sampler=PyGSampler(data, [-1], disjoint=True), batch_size=9)
    assert next(iter(loader)).batch is not None
    with pytest.raises(InputError, match="disjoint, weight_attr would not reach neighbor_sampler"):
        NeighborLoader(data, [2], neighbor_sampler=PyGSampler(data, [2]), disjoint=True, weight_attr="w")


@pytest.mark.parametrize(
    ("options", "given", "sentence"),
    [
        ({}, NodeSamplerInput(None, torch.tensor([V])), r"input_nodes lie in \[60, 60\]; expected \[0, 60\)"),
        ({}, NodeSamplerInput(None, torch.tensor([0]), torch.tensor([1])), "input_time is given without time_attr"),
        ({}, EdgeSamplerInput(None, torch.tensor([0]), torch.tensor([-1])), "destinations of edge_label_index lie in"),
        ({"time_attr": "at"}, EdgeSamplerInput(None, *torch.zeros(2, 1).long()), "'edge_label_time' is not set"),
        ({}, EdgeSamplerInput(None, *torch.zeros(2, 1).long(), time=torch.ones(1)), "'time_attr' is not set"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(options: Any, given: Any, sentence: str) -> None:
    sampler = PyGSampler(graph(), [2], **options)
    with pytest.raises(InputError, match=sentence):
        (sampler.sample_from_edges if isinstance(given, EdgeSamplerInput) else sampler.sample_from_nodes)(given)
