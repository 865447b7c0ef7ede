"""Weights of convolutions in PyG and DGL: the same outputs there, and the same weights when they come back."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import millrace as mr
from millrace.storage.errors import InputError
from millrace.storage.graph import from_edges

F_IN, HIDDEN, C, HEADS = 6, 8, 3, 2
MODELS = {
    "sage": mr.GraphSAGE(hidden=HIDDEN, layers=2),
    "pool": mr.GraphSAGE(hidden=F_IN, layers=2, aggregator="max"),
    "gcn": mr.GCN(hidden=HIDDEN, layers=2),
    "gat": mr.GAT(hidden=HIDDEN, layers=2, heads=HEADS),
    "gatv2": mr.GATv2(hidden=HIDDEN, layers=2, heads=HEADS),
    "gin": mr.GIN(hidden=HIDDEN, layers=2),
}


@pytest.fixture(scope="module")
def data():
    """Self loops, several of one node; parallel edges, nodes without any, and with a loop alone."""
    data = mr.open_dataset(f"sbm:nodes=60,classes={C},degree=5,features={F_IN}")
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 55, 300), rng.integers(0, 50, 300)
    src[:30], src[30:60], dst[30:60] = dst[:30], 3, 7
    src[60:62] = dst[60:62] = 52
    return replace(data, graph=from_edges(src, dst, 60))


def built(name):
    torch.manual_seed(0)
    model = MODELS[name].build(F_IN, C)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) / 5)
    return model


def activation(name):
    return F.elu if name in ("gat", "gatv2") else torch.relu


def pyg_convs(name):
    nn_ = pytest.importorskip("torch_geometric", reason="PyG is not installed: pip install torch-geometric").nn
    hidden = F_IN if name == "pool" else HIDDEN

    def mlp(a, b):
        return nn.Sequential(nn.Linear(a, hidden), nn.ReLU(), nn.Linear(hidden, b))

    widths = [(F_IN, hidden), (hidden, C)]
    if name in ("gat", "gatv2"):
        conv = nn_.GATConv if name == "gat" else nn_.GATv2Conv
        return [conv(F_IN, HIDDEN // HEADS, HEADS), conv(HIDDEN, C, HEADS, concat=False)]
    make = {
        "sage": lambda a, b: nn_.SAGEConv(a, b),
        "pool": lambda a, b: nn_.SAGEConv(a, b, aggr="max", project=True),
        "gcn": lambda a, b: nn_.GCNConv(a, b),
        "gin": lambda a, b: nn_.GINConv(mlp(a, b), train_eps=True),
    }[name]
    return [make(a, b) for a, b in widths]


@pytest.mark.parametrize("name", list(MODELS))
def test_pygs_convolutions_compute_the_same_and_give_the_weights_back(name, data):
    model, convs = built(name), pyg_convs(name)
    for conv, state in zip(convs, mr.conv_weights(model, "pyg")):
        conv.load_state_dict(state)
    h = torch.from_numpy(data.features.gather(np.arange(60)))
    src = torch.from_numpy(data.graph.indices.astype(np.int64))
    dst = torch.repeat_interleave(torch.arange(60), torch.from_numpy(data.graph.in_degree))
    with torch.no_grad():
        for i, conv in enumerate(convs):
            h = conv(h, torch.stack([src, dst]))
            h = activation(name)(h) if i == 0 else h
    torch.testing.assert_close(mr.infer(model, data), h, rtol=0, atol=1e-6)
    again = mr.set_conv_weights(MODELS[name].build(F_IN, C), convs, "pyg")
    for key, value in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[key], value, rtol=0, atol=0)


def dgl_layer(name, state, matrix, h, last):
    """DGL's formulas on a dense matrix, with weights by DGL's names and in its shapes."""
    if name in ("sage", "pool"):
        near = matrix / matrix.sum(1, keepdim=True).clamp(min=1) @ h
        if name == "pool":
            pooled = torch.relu(F.linear(h, state["fc_pool.weight"], state["fc_pool.bias"]))
            near = torch.where(matrix[..., None] > 0, pooled[None], -torch.inf).amax(1)
            near = torch.where(near == -torch.inf, 0, near)
        own = F.linear(h, state["fc_self.weight"], state["fc_self.bias"])
        return own + F.linear(near, state["fc_neigh.weight"])
    looped = matrix + torch.eye(len(matrix))
    if name == "gcn":
        scale = looped.sum(1).rsqrt()
        return scale[:, None] * (looped @ (scale[:, None] * (h @ state["weight"]))) + state["bias"]
    if name == "gin":
        inner = F.linear((1 + state["eps"]) * h + matrix @ h, state["apply_func.0.weight"], state["apply_func.0.bias"])
        return F.linear(torch.relu(inner), state["apply_func.2.weight"], state["apply_func.2.bias"])
    z = F.linear(h, state["fc.weight"]).view(len(h), HEADS, -1)
    logits = (z * state["attn_l"]).sum(-1)[None] + (z * state["attn_r"]).sum(-1)[:, None]
    logits = torch.where(looped[..., None] > 0, F.leaky_relu(logits, 0.2), -torch.inf)
    out = torch.einsum("vuh,uhd->vhd", logits.softmax(1), z) + state["bias"].view(1, HEADS, -1)
    return out.mean(1) if last else out.flatten(1)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "gatv2"])
def test_dgls_formulas_compute_the_same_and_give_the_weights_back(name, data):
    model = built(name)
    states = mr.conv_weights(model, "dgl")
    # DGL's formulas want the loops of GCN and GAT in the graph, and have each edge once.
    src, dst = np.nonzero(np.random.default_rng(0).random((60, 60)) < 0.1)
    data = replace(data, graph=from_edges(src[src != dst], dst[src != dst], 60))
    matrix = torch.zeros(60, 60)
    matrix[np.repeat(np.arange(60), data.graph.in_degree), data.graph.indices] = 1
    h = torch.from_numpy(data.features.gather(np.arange(60)))
    for i, state in enumerate(states):
        h = dgl_layer(name, state, matrix, h, last=i == 1)
        h = activation(name)(h) if i == 0 else h
    torch.testing.assert_close(mr.infer(model, data), h, rtol=0, atol=1e-5)
    again = mr.set_conv_weights(MODELS[name].build(F_IN, C), states, "dgl")
    for key, value in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[key], value, rtol=0, atol=1e-7)


def test_states_are_copies():
    model = built("gcn")
    mr.conv_weights(model, "pyg")[0]["bias"].fill_(7)
    assert not (model.state_dict()["convs.0.bias"] == 7).any()


def test_what_has_no_counterpart_is_refused_and_nothing_is_half_set():
    model = built("gcn")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    states = mr.conv_weights(model, "pyg")
    with pytest.raises(InputError, match="library is 'keras'; expected one of pyg, dgl"):
        mr.conv_weights(model, "keras")
    with pytest.raises(InputError, match="a Linear of other convolutions"):
        mr.conv_weights(nn.Linear(2, 2), "pyg")
    with pytest.raises(InputError, match="pools 6 columns to 8"):
        mr.conv_weights(mr.GraphSAGE(hidden=8, layers=2, aggregator="max").build(F_IN, C), "pyg")
    with pytest.raises(InputError, match="1 convolutions for a model of 2 layers"):
        mr.set_conv_weights(model, states[:1], "pyg")
    with pytest.raises(InputError, match=r"layer 1: .* lin\.weight differs"):
        mr.set_conv_weights(model, [{k: v + 1 for k, v in states[0].items()}, {"bias": states[1]["bias"]}], "pyg")
    with pytest.raises(InputError, match=r"layer 0: bias gives \[2\]; expected \[8\]"):
        mr.set_conv_weights(model, [{**states[0], "bias": torch.zeros(2)}, states[1]], "pyg")
    assert all(torch.equal(model.state_dict()[k], v) for k, v in before.items())


@pytest.mark.parametrize(
    ("name", "option", "make"),
    [
        ("gcn", "improved=True", lambda g: g.GCNConv(F_IN, HIDDEN, improved=True)),
        ("gcn", "add_self_loops=False", lambda g: g.GCNConv(F_IN, HIDDEN, normalize=False)),
        ("gat", "add_self_loops=False", lambda g: g.GATConv(F_IN, HIDDEN // HEADS, HEADS, add_self_loops=False)),
        ("gatv2", "negative_slope=0.1", lambda g: g.GATv2Conv(F_IN, HIDDEN // HEADS, HEADS, negative_slope=0.1)),
        ("sage", "normalize=True", lambda g: g.SAGEConv(F_IN, HIDDEN, normalize=True)),
        ("sage", "aggr='max'", lambda g: g.SAGEConv(F_IN, HIDDEN, aggr="max")),
    ],
)
def test_a_module_whose_options_compute_something_else_is_refused(name, option, make):
    geometric = pytest.importorskip("torch_geometric.nn")
    model, convs = MODELS[name].build(F_IN, C), pyg_convs(name)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(InputError, match=f"layer 0: .* has {option}, and .*Conv computes what .*; expected the same"):
        mr.set_conv_weights(model, [make(geometric), convs[1]], "pyg")
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_options_by_another_name_are_taken():
    geometric = pytest.importorskip("torch_geometric.nn")
    mlps = [m.nn for m in pyg_convs("gin")]
    mr.set_conv_weights(built("gin"), [geometric.GINConv(m, train_eps=True, aggr="sum") for m in mlps], "pyg")
