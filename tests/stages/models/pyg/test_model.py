"""PyG's convolutions and whole models as they are: on blocks, what PyG computes on the whole graph; and what they
learn."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import millrace as mr
from millrace.stages.evaluate.layerwise import infer
from millrace.stages.models.pyg import model as models
from millrace.stages.models.pyg.model import PyGModel
from millrace.storage.errors import InputError
from millrace.tests.contracts.whole_graph import whole_graph

pyg = pytest.importorskip("torch_geometric.nn")
PNA = {
    "aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification", "attenuation"],
    "deg": torch.tensor([1, 2, 3, 4, 5]),
}  # fmt: skip

CONVS = {
    "gcn": lambda: pyg.GCNConv(5, 3),
    "gcn without loops": lambda: pyg.GCNConv(5, 3, add_self_loops=False),
    "gat": lambda: pyg.GATConv(5, 3, heads=2),
    "gatv2": lambda: pyg.GATv2Conv(5, 3, heads=2, concat=False),
    "transformer": lambda: pyg.TransformerConv(5, 3, heads=2, beta=True),
    "pna": lambda: pyg.PNAConv(5, 3, **PNA),
    "sage": lambda: pyg.SAGEConv(5, 3, project=True),
    "gin": lambda: pyg.GINConv(nn.Linear(5, 3)),
    "graph": lambda: pyg.GraphConv(5, 3),
    "feast": lambda: pyg.FeaStConv(5, 3),
    "supergat": lambda: pyg.SuperGATConv(5, 3),
    "agnn": lambda: pyg.AGNNConv(),
}
NETWORKS = {
    "GCN": lambda: pyg.GCN(5, 8, 3, 3, act="elu"),
    "GAT": lambda: pyg.GAT(5, 8, 2, 3, heads=2, dropout=0.5),
    "GAT, v2, batch norm, cat": lambda: pyg.GAT(5, 8, 3, 3, v2=True, norm="batch_norm", jk="cat"),
    "GraphSAGE, act first, layer norm": lambda: pyg.GraphSAGE(
        5, 8, 2, 3, act_first=True, norm="layer_norm", norm_kwargs={"mode": "node"}
    ),
    "GraphSAGE, lstm": lambda: pyg.GraphSAGE(5, 8, 3, 3, jk="lstm"),
    "PNA, max": lambda: pyg.PNA(5, 8, 2, 3, jk="max", **PNA),
    "GIN, last": lambda: pyg.GIN(5, 8, 2, 3, jk="last"),
    "EdgeCNN": lambda: pyg.EdgeCNN(5, 8, 2, 3),
    "one layer, no width": lambda: pyg.GAT(5, 3, 1),
}


@pytest.fixture(scope="module")
def data():
    return mr.open_dataset("sbm:nodes=90,classes=3,degree=4,features=5,train=0.4")


def edges_of(graph):
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return torch.from_numpy(np.stack([graph.indices.astype(np.int64), dst]))


def whole(module, data):
    """Result of PyG on the whole graph."""
    x = torch.from_numpy(data.features.gather(np.arange(data.num_nodes)))
    with torch.no_grad():
        return module.eval()(x, edges_of(data.graph))


@pytest.fixture(params=[False, True], ids=["whole", "in pieces"])
def cut(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(models, "EDGE_BYTES", 1 << 10)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", [*CONVS, *NETWORKS])
def test_layer_by_layer_is_pygs_own_result(data, name):
    torch.manual_seed(1)
    module = {**CONVS, **NETWORKS}[name]()
    model = PyGModel(module)
    nodes = [7, 3, 60, 89]
    found = infer(model, data, nodes=nodes)
    torch.testing.assert_close(found, whole(module, data)[nodes], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in NETWORKS if "batch norm" not in name])
def test_whole_models_learn_what_plain_pyg_learns(data, tmp_path, name):
    """All seeds in a step, all neighbours: then blocks are the graph. Without dropout, whose masks differ, and batch
    norm, which sees other rows in blocks."""
    torch.manual_seed(2)
    module = NETWORKS[name]().double()
    module.dropout.p = 0.0
    for m in module.modules():
        if hasattr(m, "dropout") and isinstance(m.dropout, float):
            m.dropout = 0.0
    theirs = copy.deepcopy(module)
    fanout = [-1] * module.num_layers
    options = {"fanout": fanout, "batch_size": 90, "epochs": 3, "lr": 0.01, "dtype": "float64", "threads": 1}
    mr.run(data, model=module, out=tmp_path / "run", **options)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01)
    x = torch.from_numpy(data.features.gather(np.arange(90))).double()
    y, train = torch.from_numpy(data.labels), torch.from_numpy(data.split.train)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs(x, edges_of(data.graph))[train], y[train]).backward()
        optimizer.step()
    state = torch.load(sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1] / "state.pt", weights_only=True)[
        "model"
    ]
    again = NETWORKS[name]().double()
    again.load_state_dict(state)  # by PyG's own names
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=1e-8, atol=1e-10)


def test_a_model_keeps_pygs_names_and_travels(data):
    module = pyg.GAT(5, 8, 2, 3, jk="cat", norm="batch_norm")
    model = PyGModel(module)
    assert set(model.state_dict()) == set(module.state_dict())
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(infer(copied, data), infer(model, data))
        assert copied.convs[0] is not model.convs[0] and copied.network.convs[0] is copied.convs[0]


def test_dropout_follows_the_mode(data):
    model = PyGModel(pyg.GraphSAGE(5, 8, 2, 3, dropout=0.5))
    blocks, x = [whole_graph(data.graph)] * 2, torch.from_numpy(data.features.gather(np.arange(90)))
    torch.manual_seed(0)
    dropped = model.train()(blocks, x)
    torch.manual_seed(0)
    assert torch.equal(dropped, model.network.train()(x, edges_of(data.graph))), "the masks are PyG's"
    assert not torch.allclose(dropped, model.eval()(blocks, x))


def test_normalisation_is_left_as_the_user_set_it(data):
    conv = pyg.GCNConv(5, 3)
    infer(PyGModel([conv]), data)
    assert conv.normalize is True


def test_lazy_models_get_their_shapes(data):
    model = PyGModel(pyg.GAT(-1, 8, 2, 3))
    assert model.fit(5, 0) == 3 and model.convs[0].in_channels == -1
    torch.testing.assert_close(infer(model, data), whole(model.network, data), rtol=1e-4, atol=1e-5)


def test_options_beside_a_whole_model_are_refused():
    for options in ({"dropout": 0.5}, {"activation": "elu"}):
        with pytest.raises(InputError, match=r"beside a GCN, which has its own; set them there: GCN\(\.\.\., dropout"):
            PyGModel(pyg.GCN(5, 8, 2, 3), **options)


def test_a_whole_model_without_enough_columns_is_refused(data, tmp_path):
    with pytest.raises(InputError, match=r"make it GCN\(\.\.\., out_channels=3\)"):
        mr.run(data, model=pyg.GCN(5, 2, 2), fanout=[2, 2], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
