"""PyG's convolutions that take features of edges: on sampled minibatches and in exact evaluation, what PyG computes of
the same edges; and refusals."""

import re
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import millrace as mr
from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.models.pyg import model as models
from millrace.stages.models.pyg.edges import reads_edge_attr
from millrace.stages.models.pyg.model import PyGModel
from millrace.storage.errors import InputError
from millrace.storage.graph import Graph, from_edges
from millrace.tests.contracts.fetched import fetched

pyg = pytest.importorskip("torch_geometric.nn")
V, F, D, C = 40, 5, 3, 4
PNA: dict[str, Any] = {
    "aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"],
    "deg": torch.tensor([1, 2, 3, 4, 5]),
}  # fmt: skip
CONVS: dict[str, Callable[[int, int], nn.Module]] = {
    "gat": lambda a, b: pyg.GATConv(a, b, heads=2, concat=False, edge_dim=D),
    "gatv2": lambda a, b: pyg.GATv2Conv(a, b, heads=2, concat=False, edge_dim=D),
    "gatv2, largest": lambda a, b: pyg.GATv2Conv(a, b, edge_dim=D, fill_value="max"),
    "gatv2, no loops": lambda a, b: pyg.GATv2Conv(a, b, edge_dim=D, add_self_loops=False),
    "transformer": lambda a, b: pyg.TransformerConv(a, b, heads=2, concat=False, edge_dim=D),
    "gine": lambda a, b: pyg.GINEConv(nn.Linear(a, b), train_eps=True, edge_dim=D),
    "nn": lambda a, b: pyg.NNConv(a, b, nn.Sequential(nn.Linear(D, 4), nn.ReLU(), nn.Linear(4, a * b))),
    "cg": lambda a, b: pyg.CGConv((a, a), dim=D),
    "pna": lambda a, b: pyg.PNAConv(a, b, edge_dim=D, **PNA),
    "gen": lambda a, b: pyg.GENConv(a, b, edge_dim=D, norm="layer"),
    "general": lambda a, b: pyg.GeneralConv(a, b, in_edge_channels=D, heads=2, attention=True),
    "gated": lambda a, b: pyg.ResGatedGraphConv(a, b, edge_dim=D),
    "gmm": lambda a, b: pyg.GMMConv(a, b, dim=D, kernel_size=2),
}
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "GAT": lambda: pyg.GAT(F, 6, 2, C, v2=True, jk="cat", edge_dim=D),
    "PNA": lambda: pyg.PNA(F, 6, 2, C, edge_dim=D, **PNA),
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Hubs, loops, parallel edges with features of their own, and nodes without edges."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, V, 300), rng.integers(0, V - 4, 300)
    dst[:60], src[60:80], dst[60:80] = 7, 3, 4
    return from_edges(src, dst, V, edge_features=rng.random((300, D)))


X = np.random.default_rng(1).normal(size=(V, F))


def edges_of(graph: Graph, ids: np.ndarray) -> tuple[Tensor, Tensor]:
    """Edges and their features, by their positions in the graph."""
    dst = np.repeat(np.arange(V), np.diff(graph.indptr))[ids]
    assert graph.edge_features is not None
    return torch.from_numpy(np.stack([graph.indices[ids], dst])).long(), torch.from_numpy(
        graph.edge_features.gather(ids)
    )


def build(name: str) -> PyGModel:
    torch.manual_seed(2)
    if name in NETWORKS:
        return PyGModel(NETWORKS[name]()).double()
    return PyGModel([CONVS[name](F, F), CONVS[name](F, F if name == "cg" else C)]).double()


@pytest.mark.parametrize("name", [*CONVS, *NETWORKS])
def test_minibatches_are_pygs_on_the_sampled_edges(graph: Graph, name: str) -> None:
    """PyG gets the whole graph's nodes and the edges that each layer drew, in another order."""
    model = build(name).eval()
    sampler = mr.NeighborSampler((3, 2), edge_ids=True)
    work = sampler.sample(graph, BulkRequest(3, 0, 0, 0, (np.arange(0, V, 3),)), cpu).check().minibatches[0]
    got = fetched(graph, X, work)
    h = torch.from_numpy(X[work.nodes]).requires_grad_()
    found = model(got.neighbourhoods, h)
    x = torch.from_numpy(X).requires_grad_()
    want = x
    for i, block in enumerate(work.blocks):
        assert block.edge_id is not None
        edges, attr = edges_of(graph, np.random.default_rng(i).permutation(block.edge_id))
        want = model.plain_layer(i, want, edges, {"edge_attr": attr})
        assert want is not None
    want = want[torch.from_numpy(work.seeds)]
    assert (found - want).abs().max() <= 1e-10
    grad = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parameters = list(model.parameters())
    dh, *mine = torch.autograd.grad((found * grad).sum(), [h, *parameters])
    dx, *theirs = torch.autograd.grad((want * grad).sum(), [x, *parameters])
    assert (torch.zeros_like(dx).index_add_(0, torch.from_numpy(work.nodes), dh) - dx).abs().max() <= 1e-10
    for a, b in zip(mine, theirs):
        assert (a - b).abs().max() <= 1e-10


@pytest.mark.parametrize("name", ["gatv2", "nn", "PNA"])
def test_exact_evaluation_in_chunks_and_pieces(graph: Graph, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name)
    module = model.network
    edges, attr = edges_of(graph, np.arange(graph.num_edges))
    x = torch.from_numpy(X)
    with torch.no_grad():
        if module is None:
            want = x
            for conv in model.convs:
                want = conv.eval()(want, edges, attr) if conv is model.convs[-1] else conv(want, edges, attr).relu()
        else:
            want = module.eval()(x, edges, edge_attr=attr)
    assert (mr.infer(model, graph, X) - want).abs().max() <= 1e-10
    assert (mr.infer(model, graph, X, max_bytes=1) - want).abs().max() <= 1e-10
    monkeypatch.setattr(models, "EDGE_BYTES", 1)
    assert (mr.infer(model, graph, X, nodes=[7, 3]) - want[[7, 3]]).abs().max() <= 1e-10


def test_lazy_edge_dim_gets_its_shape() -> None:
    model = PyGModel([pyg.GATv2Conv(-1, 4, edge_dim=-1)])
    assert model.fit(F, 0, D) == 4 and model.convs[0].lin_edge.in_channels == D


class Own(pyg.MessagePassing):
    """A user's convolution, whose edge_attr may be left out."""

    def __init__(self) -> None:
        super().__init__(aggr="mean")
        self.linear = nn.Linear(D, C)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_j: Tensor, edge_attr: Optional[Tensor]) -> Tensor:  # noqa: UP045 (PyG cannot read it)
        return x_j if edge_attr is None else self.linear(edge_attr)


def test_who_reads_them() -> None:
    """By an option, by need, or by a word of its own."""
    for conv in (pyg.GATConv(5, 3), pyg.GENConv(5, 4), pyg.CGConv(5), pyg.SAGEConv(5, 3), pyg.GeneralConv(5, 3), Own()):
        assert not PyGModel([conv]).reads_edges
    assert not PyGModel(pyg.GAT(5, 8, 2)).reads_edges
    own = Own()
    own.reads_edges = True
    assert reads_edge_attr(own) and PyGModel([pyg.GATConv(5, 3), own]).reads_edges
    assert PyGModel([pyg.SAGEConv(5, 3), pyg.GATConv(3, 3, edge_dim=2)]).reader == "GATConv"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: pyg.GATConv(F, 3, edge_dim=8),
            "layer 0, GATConv(5, 3, heads=1), reads 8 features of an edge, but edges of the dataset have 3; make it "
            "GATConv(..., edge_dim=3)",
        ),
        (lambda: pyg.GeneralConv(F, 3, in_edge_channels=1), "reads 1 feature of an edge, but edges of the"),
        (lambda: pyg.CGConv(F, dim=2), "make it CGConv(..., dim=3)"),
        (lambda: pyg.GINEConv(nn.Linear(F, 3), edge_dim=2), "make it GINEConv(..., edge_dim=3)"),
        (lambda: pyg.GINEConv(nn.Linear(F, 3)), "cannot take 5 columns from the dataset and 3 features of edges (N"),
        (lambda: pyg.NNConv(F, 3, nn.Linear(8, 15)), "give it an nn that takes 3 columns"),
        (lambda: pyg.GENConv(F, D, edge_dim=D), "set reads_edges = True or False on it"),
        (lambda: pyg.PDNConv(F, 3, edge_dim=D, hidden_channels=4), "computes other rows on a block than on the whole"),
        (lambda: pyg.RGCNConv(F, 3, num_relations=2), "RGCNConv needs a type for each edge"),
        (lambda: pyg.RGATConv(F, 3, num_relations=2), "RGATConv needs a type for each edge"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(make: Callable[[], nn.Module], told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        PyGModel([make()]).fit(F, 0, D)


def test_edges_without_features_are_refused() -> None:
    with pytest.raises(InputError, match="reads features of edges, but there are none here"):
        mr.infer(PyGModel([pyg.GATConv(F, 3, edge_dim=D)]), from_edges([0], [1], V), X)
