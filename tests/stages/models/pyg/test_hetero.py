"""PyG's modules over node types and relations: they train and predict what PyG does on the whole graph, and what blocks
cannot do is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import millrace as mr
from millrace.pipeline.setup.model import types_of
from millrace.stages.models.pyg.hetero import HeteroPyGModel
from millrace.stages.models.relational import TypedInput
from millrace.stages.random import Purpose, stream, torch_seed
from millrace.storage.dataset import Dataset
from millrace.storage.errors import InputError
from millrace.tests.contracts.bulk_ranks import last_parameters
from millrace.tests.contracts.typed import typed_dataset

pyg = pytest.importorskip("torch_geometric.nn")
JOB = {"epochs": 2, "dtype": "float64", "threads": 1, "optimizer": "sgd", "lr": 0.05, "verbose": False}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return typed_dataset(degree=100, edge_features=True)


class OneLayer(nn.Module):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


def hetero(data: Dataset) -> list[nn.Module]:
    """Relations with features of edges attend, others take means; venues have no rows in the second layer."""
    types, layers = data.graph.types, []
    assert not types.is_single
    for width in (8, 3):
        convs = {}
        for relation, edge_dim in zip(types.relations, types.edge_widths):
            attend = pyg.GATConv((-1, -1), width, edge_dim=edge_dim, add_self_loops=False)
            convs[relation] = attend if edge_dim else pyg.SAGEConv((-1, -1), width)
        # No edges lead to venues but these.
        del convs["author", "chairs", "venue"]
        if layers:
            del convs["venue", "prints", "paper"]
        layers.append(pyg.HeteroConv(convs, aggr="mean"))
    return layers


def traced(data: Dataset) -> list[nn.Module]:
    """Modules made by ``to_hetero``, and attention over all relations."""
    types = data.graph.types
    assert not types.is_single
    named = list(types.node_types), list(types.relations)
    return [pyg.to_hetero(OneLayer(pyg.SAGEConv((-1, -1), 8)), named), pyg.HGTConv(8, 4, named, 2)]


def whole(layers: nn.ModuleList, data: Dataset) -> Tensor:
    """Outputs of PyG for all papers."""
    graph = data.to_pyg()
    graph["venue"].x = torch.ones(4, 1)
    x = {name: rows.double() for name, rows in graph.x_dict.items()}
    for i, layer in enumerate(layers):
        of_edges = {}
        if type(layer).__name__ == "HeteroConv":
            rows = graph.edge_attr_dict.items()
            of_edges["edge_attr_dict"] = {r: attr.double() for r, attr in rows if r in layer.convs}
        x = layer(x, graph.edge_index_dict, **of_edges)
        x = x if i else {name: rows.relu() for name, rows in x.items()}
    return x["paper"]


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("make", [hetero, traced])
def test_training_is_that_of_pyg_on_the_whole_graph(
    make: Callable[[Dataset], list[nn.Module]], data: Dataset, tmp_path: Path
) -> None:
    def model() -> HeteroPyGModel:
        torch.manual_seed(0)
        return HeteroPyGModel(make(data))

    result = mr.run(data, model=model(), out=tmp_path / "run", fanout=[-1, -1], batch_size=12, **JOB)
    given = types_of(data)
    assert given is not None
    own = model()
    own.fit(TypedInput.of_record(given), torch_seed(stream(0, Purpose.INIT)))
    own = own.double()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        logits = whole(own.layers, data)[data.split.train]
        nn.functional.cross_entropy(logits, torch.from_numpy(data.labels[data.split.train])).backward()
        optimizer.step()
    trained = last_parameters(tmp_path / "run")
    for name, value in own.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=0, atol=1e-8)
    run = mr.load(result, model=model())
    with torch.no_grad():
        want = whole(run.model.layers, data)
    torch.testing.assert_close(torch.as_tensor(mr.infer(run.model, data))[:20], want, rtol=0, atol=1e-8)
    assert mr.predict(result, model=model()).classes.tolist() == want.argmax(1).tolist()


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("make", [hetero, traced])
def test_modules_on_a_gpu_are_tried_there(
    make: Callable[[Dataset], list[nn.Module]], data: Dataset, on_device: torch.device
) -> None:
    given, layers = types_of(data), make(data)
    assert given is not None
    HeteroPyGModel(layers).fit(TypedInput.of_record(given), 0)  # lazy parameters get their shapes
    model = HeteroPyGModel([layer.to(on_device) for layer in layers])
    model.fit(TypedInput.of_record(given), 0)
    assert all(p.device == on_device for p in model.parameters())


def test_weights_of_edges_count_as_in_pyg(tmp_path: Path) -> None:
    rng, likes = np.random.default_rng(0), ("user", "likes", "item")
    ends, weights = (rng.integers(0, 9, 60), rng.integers(0, 12, 60)), {likes: rng.random(60)}
    features = {"user": rng.normal(size=(9, 2)), "item": rng.normal(size=(12, 2))}
    data = mr.from_relations(
        {likes: ends},
        np.arange(12) % 3,
        target="item",
        features=features,
        edge_weights=weights,
        split="fraction:0.5,0.2",
    )
    model = [pyg.HeteroConv({likes: pyg.GraphConv((-1, -1), 3)})]
    result = mr.run(data, model=model, out=tmp_path / "run", fanout=[4], **JOB)
    graph, run = data.to_pyg(), mr.load(result, model=model)
    x = {name: rows.double() for name, rows in graph.x_dict.items()}
    edge_weights = {likes: graph[likes].edge_weight.double()}
    with torch.no_grad():
        want = run.model.layers[0](x, graph.edge_index_dict, edge_weight_dict=edge_weights)["item"]
    torch.testing.assert_close(torch.as_tensor(mr.infer(run.model, data))[:12], want, rtol=0, atol=1e-8)


def test_what_does_not_fit_is_refused(data: Dataset) -> None:
    types = data.graph.types
    assert not types.is_single
    named, cites = (list(types.node_types), list(types.relations)), ("paper", "cites", "paper")

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(traced(data))

        def forward(self, x_dict: dict, edge_index_dict: dict) -> dict:
            for layer in self.layers:
                x_dict = layer(x_dict, edge_index_dict)
            return x_dict

    def one(conv: nn.Module, relation: tuple[str, str, str] = cites) -> nn.Module:
        return pyg.HeteroConv({relation: conv})

    attend = pyg.GATConv((-1, -1), 3, edge_dim=2, add_self_loops=False)
    for model, told in (
        ([pyg.HANConv(-1, 3, named)], "layer 0, a HANConv, computes other rows on a block than on the whole graph"),
        (Whole(), "layer 0, a Whole, computes other rows on a block .* one layer for each hop"),
        ([one(pyg.SAGEConv(9, 3))], r"layer 0, a HeteroConv, fails on rows of paper \(5 columns\), author"),
        (
            [one(pyg.SAGEConv(-1, 3), ("a", "b", "paper"))],
            "a SAGEConv for the relation a,b,paper, which the graph",
        ),
        ([one(pyg.SAGEConv(-1, 2))], "the last layer has 2 columns for 'paper', but the dataset has 3 classes"),
        (
            [one(attend, types.relations[1])],
            "give edges of paper,written_by,author some",
        ),
        ([one(pyg.SAGEConv((-1, -1), 3), types.relations[1])], "returns no rows of the node type 'paper'"),
        ([pyg.SAGEConv(5, 3)], "the model is a PyGModel, .* use HeteroPyGModel"),
    ):
        with pytest.raises(InputError, match=told):
            mr.run(data, model=model, fanout=[2], **JOB)
    with pytest.raises(InputError, match=r"the model is a HeteroPyGModel, .* but the graph has one of each"):
        mr.run("sbm:nodes=60", model=[one(pyg.SAGEConv(-1, 3))], fanout=[2], **JOB)
    for layers, options, told in (
        ([], {}, "no layers"),
        ([nn.Linear(2, 2)], {}, "got a Linear among its layers"),
        (traced(data), {"dropout": 2}, "dropout is 2"),
        (traced(data), {"activation": "tanhh"}, "activation is 'tanhh'"),
    ):
        with pytest.raises(InputError, match=told):
            HeteroPyGModel(layers, **options)


class ByAll(pyg.MessagePassing):
    """A sum, divided by a sum over all edges that are there: of their weights, or of self loops."""

    def __init__(self, loops: bool) -> None:
        super().__init__()
        self.loops, self.linear = loops, nn.LazyLinear(3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        total = 1 + (edge_index[0] == edge_index[1]).sum() if self.loops else edge_weight
        return self.linear(self.propagate(edge_index, x=x) / (1 if total is None else total.sum()))


@pytest.mark.parametrize("loops", [False, True])
def test_what_differs_by_weights_or_loops_alone_is_refused(loops: bool) -> None:
    ends = torch.stack([torch.arange(8) % 6, torch.arange(8) % 5])
    types = TypedInput.of_record(types_of(mr.from_relations({("a", "to", "a"): ends}, torch.arange(6) % 3, target="a")))
    with pytest.raises(InputError, match="layer 0, a HeteroConv, computes other rows on a block"):
        HeteroPyGModel([pyg.HeteroConv({("a", "to", "a"): ByAll(loops)})]).fit(types, 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["HeteroConv", "HGTConv"])
def test_a_type_without_rows_after_a_layer_is_named(kind: str) -> None:
    """No relation leads to 'user': after layer 0 it has no rows."""
    edges = torch.stack([torch.arange(6) % 5, torch.arange(6)])
    data = mr.from_relations(
        {("user", "likes", "paper"): edges, ("paper", "cites", "paper"): edges},
        torch.arange(6) % 2,
        target="paper",
        features={"user": torch.randn(5, 4), "paper": torch.randn(6, 3)},
    )
    types = (["user", "paper"], [("user", "likes", "paper"), ("paper", "cites", "paper")])

    def layer(i: int) -> nn.Module:
        if kind == "HGTConv":
            return pyg.HGTConv({"user": 4, "paper": 3} if not i else 8, 8, types, 2)
        return pyg.HeteroConv({relation: pyg.SAGEConv((-1, -1), 8) for relation in types[1]})

    with pytest.raises(
        InputError, match=r"layer 1, a \w+, reads user, which has no rows after layer 0.*user,likes,paper"
    ):
        mr.run(data, model=[layer(0), layer(1)], fanout=[2, 2], epochs=1, split="fraction:0.5,0.2")
