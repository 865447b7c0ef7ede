"""PyG's modules that compute something else on a block than on the whole graph are found by trying them."""

import pytest
import torch
from torch import nn

from millrace.stages.models.pyg.checks import is_network
from millrace.stages.models.pyg.model import PyGModel
from millrace.storage.errors import InputError

pyg = pytest.importorskip("torch_geometric.nn")

WRONG = {
    "two hops": lambda: pyg.TAGConv(5, 3),
    "degrees of the block": lambda: pyg.SGConv(5, 3),
    "both": lambda: pyg.ChebConv(5, 3, 2),
    "several rounds": lambda: pyg.GatedGraphConv(5, 2),
    "all rows": lambda: pyg.GPSConv(5, pyg.SAGEConv(5, 5), heads=1),
    "those of a layer inside": lambda: pyg.DirGNNConv(pyg.GCNConv(5, 3)),
}
NORMS = {
    "mode": (lambda: pyg.GraphSAGE(5, 8, 2, 3, norm="layer_norm"), r"LayerNorm with mode='graph'.*'mode': 'node'"),
    "graph": (lambda: pyg.GCN(5, 8, 2, 3, norm="graph_norm"), r"or the GraphNorm after it, computes other rows"),
}
OPTIONS = {
    "improved": (lambda: pyg.GCNConv(5, 3, improved=True), "GCNConv has improved=True"),
    "cached": (lambda: pyg.GCNConv(5, 3, cached=True), "GCNConv has cached=True"),
    "flow": (lambda: pyg.GCNConv(5, 3, flow="target_to_source"), "GCNConv has flow='target_to_source'"),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_over_all_rows_is_named(name):
    make, text = NORMS[name]
    with pytest.raises(InputError, match=text):
        PyGModel(make()).fit(5, 0)


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_are_not_honoured_are_refused_by_name(name):
    make, text = OPTIONS[name]
    with pytest.raises(InputError, match=text):
        PyGModel([make()])


@pytest.mark.parametrize("name", WRONG)
def test_other_rows_on_a_block_are_refused(name):
    torch.manual_seed(0)
    model = PyGModel(WRONG[name]())
    before = torch.random.get_rng_state()
    with pytest.raises(
        InputError, match=r"layer 0, \w+(\(.*\))?, computes other rows on a block than on the whole graph"
    ):
        model.fit(5, 0)
    assert torch.equal(before, torch.random.get_rng_state()) and model.training


@pytest.mark.parametrize("aggr", ["median", "quantile"])
def test_one_that_fails_where_nodes_have_no_edges_is_refused(aggr):
    # PyG's quantiles fail if nothing leads to the first node.
    conv = pyg.SAGEConv(5, 3, aggr=aggr, aggr_kwargs={"q": 0.3} if aggr == "quantile" else {})
    with pytest.raises(InputError, match=r"layer 0, SAGEConv.*, fails on a block, where.*\(IndexError: index"):
        PyGModel([conv]).fit(5, 0)


class OwnForward(pyg.GCN):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index) * 2


def test_whole_models_are_known_by_the_forward_that_they_have():
    assert is_network(pyg.GCN(5, 8, 2, 3))
    for other in (OwnForward(5, 8, 2, 3), nn.Linear(5, 3), pyg.GCNConv(5, 3), None):
        assert not is_network(other)


ON_DEVICE = {
    "a whole model": (lambda: pyg.GraphSAGE(5, 8, 2, 3), 0),
    "degrees of the whole graph": (lambda: pyg.GCNConv(5, 3), 0),
    "features of edges": (lambda: pyg.GATConv(5, 3, edge_dim=2), 2),
}


@pytest.mark.parametrize("name", ON_DEVICE)
def test_modules_on_a_gpu_are_tried_there(on_device, name):
    make, edge_width = ON_DEVICE[name]
    assert PyGModel(make().to(on_device)).fit(5, 0, edge_width) == 3


def test_on_a_gpu_too_other_rows_on_a_block_are_refused(on_device):
    with pytest.raises(InputError, match="computes other rows on a block"):
        PyGModel(pyg.SGConv(5, 3).to(on_device)).fit(5, 0)
