"""PyG's explainers on a run: they find the columns that the labels are made of."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import millrace as mr

explain = pytest.importorskip("torch_geometric.explain")
TELLING = [2, 5]
"""Columns that say the class; all others are noise."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("explained"), np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    x = rng.standard_normal((300, 8))
    x[:, TELLING] = np.stack([3 * y - 1.5, 1.5 - 3 * y], axis=1)
    src = np.concatenate([np.flatnonzero(y == k)[rng.integers(0, (y == k).sum(), 600)] for k in (0, 1)])
    dst = np.concatenate([np.flatnonzero(y == k)[rng.integers(0, (y == k).sum(), 600)] for k in (0, 1)])
    np.savez(folder / "told.npz", edge_index=[src, dst], x=x.astype(np.float32), y=y)
    data = mr.open_dataset(folder / "told.npz", options=mr.ReadOptions(direction="directed"))
    job = {"model": "gcn", "layers": 2, "hidden": 16, "fanout": [5, 5], "epochs": 15, "lr": 0.02, "threads": 1}
    return data, mr.run(data, out=folder / "run", verbose=False, dropout=0.0, batch_size=20, **job)


def test_the_columns_that_say_the_class_explain_it(trained):
    data, result = trained
    assert result.test_accuracy > 0.95
    explainer, graph = mr.explainer(result, explain.GNNExplainer(epochs=60)), data.to_pyg()
    torch.manual_seed(0)
    given = {"edge_weight": graph.edge_weight}
    found = sum(explainer(graph.x, graph.edge_index, index=v, **given).node_mask.sum(0) for v in (7, 8, 9))
    assert sorted(found.argsort(descending=True)[:2].tolist()) == TELLING
    logits = explainer.get_prediction(graph.x, graph.edge_index)
    assert logits.argmax(1).tolist() == list(mr.predict(result).classes), "it explains what is predicted"


@pytest.mark.parametrize("whole", [True, False])
def test_models_of_pyg_are_explained_as_they_predict(trained, whole, tmp_path):
    pyg, data = pytest.importorskip("torch_geometric.nn"), trained[0]
    net = pyg.GCN(8, 6, 2, 2, norm="batch_norm", jk="cat") if whole else [pyg.GCNConv(8, 6), pyg.GATConv(6, 2)]
    net = mr.PyGModel(net)
    job = {"fanout": [5, 5], "epochs": 3, "lr": 0.02, "threads": 1, "batch_size": 20}
    run = mr.load(mr.run(data, model=net, out=tmp_path / "run", verbose=False, **job), model=net)
    graph = data.to_pyg()
    explainer = mr.explainer(run, explain.GNNExplainer(epochs=2), edge_mask_type="object")
    found = explainer(graph.x, graph.edge_index, index=7)
    assert found.edge_mask.shape == (graph.num_edges,) and found.node_mask.shape == graph.x.shape
    assert torch.allclose(found.prediction, mr.infer(run.model, data.graph, graph.x), atol=1e-4)


@pytest.mark.parametrize(("model", "reads"), [("gcn", True), ("gat", False)])
def test_weights_that_the_model_reads_must_be_given(trained, model, reads, tmp_path):
    graph = trained[0].to_pyg()
    weight = np.random.default_rng(1).random(graph.num_edges, np.float32) + 0.1
    arrays = {"edge_index": graph.edge_index.numpy(), "x": graph.x.numpy(), "y": graph.y.numpy(), "edge_weight": weight}
    np.savez(tmp_path / "weighted.npz", **arrays)
    data = mr.open_dataset(tmp_path / "weighted.npz", options=mr.ReadOptions(direction="directed"))
    job = {"fanout": [5, 5], "epochs": 2, "threads": 1, "batch_size": 20, "verbose": False}
    run = mr.run(data, model=model, layers=2, hidden=8, out=tmp_path / "run", **job)
    explainer, data = mr.explainer(run, explain.GNNExplainer(epochs=2)), data.to_pyg()
    found = explainer(data.x, data.edge_index, index=17, edge_weight=data.edge_weight)
    np.testing.assert_allclose(found.prediction.numpy(), mr.predict(run).logits, atol=1e-4)
    if reads:
        with pytest.raises(mr.InputError, match="edge_weight is missing, which the model reads"):
            explainer(data.x, data.edge_index, index=17)
    else:
        assert explainer(data.x, data.edge_index, index=17).node_mask.any()


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({"task": "link"}, {}, "do not know the task 'link'"),
        ({"labels_of": "edges"}, {}, "do not know labels of edges"),
        ({"types": {"node_types": []}}, {}, "reads types or features of edges"),
        ({}, {"edge_mask_type": "object"}, "edges have no masks here"),
    ],
)
def test_what_they_cannot_explain_is_refused(trained, changes, options, sentence, monkeypatch):
    run = mr.load(trained[1])
    object.__setattr__(run, "result", SimpleNamespace(**{**vars(run.result), **changes}))
    with pytest.raises(mr.InputError, match=sentence):
        mr.explainer(run, explain.GNNExplainer(epochs=1), **options)


def test_without_pyg_it_names_the_extra(trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.explain", None)
    with pytest.raises(
        mr.InputError, match=r"explainers are those of PyG, which is not installed; pip install '\.\[pyg"
    ):
        mr.explainer(trained[1], None)
