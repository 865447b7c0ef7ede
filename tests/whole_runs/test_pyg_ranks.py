"""Models of PyG's convolutions on two ranks: what works, under each system, and what is refused before the first
step."""

import pytest
import torch

import millrace as mr
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.prepare import prepare

pyg = pytest.importorskip("torch_geometric.nn")
LR = 0.05

CELLS = {
    "bulk": {"system": "bulk"},
    "bulk, partitioned": {"system": "bulk", "bulk": {"topology": "partitioned"}},
    "sar": {"system": "sar"},
    "grappa": {"system": "grappa", "grappa": {"chunks": 2}},
}


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset("sbm:nodes=200,classes=3,degree=6,features=5,train=0.3")


def convs():
    torch.manual_seed(1)
    return [pyg.SAGEConv(5, 8), pyg.GCNConv(8, 3)]


def options(cell):
    """Every neighbour and all seeds in a step, so that ranks see what one process does."""
    sampled = {} if cell == "sar" else {"fanout": [-1, -1], "batch_size": 200}
    return {**CELLS[cell], **sampled, "lr": LR, "threads": 1}


def told(result):
    return result.train_loss, result.val_accuracy, result.test_accuracy


@pytest.mark.parametrize("cell", CELLS)
def test_two_ranks_train_and_evaluate_as_one_does(sbm, scheduler, tmp_path, cell):
    one = mr.run(sbm, model=convs(), epochs=2, out=tmp_path / "one", **options(cell))
    job = {"ranks": 2, "scheduler": scheduler, "out": tmp_path / "two", **options(cell)}
    if cell == "bulk":
        mr.run(sbm, model=convs(), epochs=1, **job)
        two = mr.run(sbm, model=convs(), epochs=2, resume=True, **job)
    else:
        two = mr.run(sbm, model=convs(), epochs=2, **job)
    assert told(two) == pytest.approx(told(one), rel=1e-4)
    if cell in ("bulk, partitioned", "sar"):
        assert two.bytes["evaluation"]["activations"] > 0, "ranks evaluated together"


def batch_normed():
    return [pyg.GINConv(torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3)))]


@pytest.mark.parametrize("cell", ["bulk", "sar"])
def test_a_whole_model_trains_on_two_ranks_and_predicts_anew(sbm, scheduler, tmp_path, cell):
    """And stays what it is in PyG: its state goes back into the user's own module."""

    def net():
        torch.manual_seed(1)
        return pyg.GAT(5, 8, 2, 3, heads=2, jk="cat")

    one = mr.run(sbm, model=net(), epochs=2, out=tmp_path / "one", **options(cell))
    two = mr.run(sbm, model=net(), epochs=2, out=tmp_path / "two", ranks=2, scheduler=scheduler, **options(cell))
    assert told(two) == pytest.approx(told(one), rel=1e-4)
    predicted = mr.predict(tmp_path / "two", nodes="test", model=net())
    assert (predicted.classes == sbm.labels[predicted.nodes]).mean() == pytest.approx(two.test_accuracy)
    again = net()
    again.load_state_dict(torch.load(tmp_path / "two" / "model.pt", weights_only=True))
    data = sbm.to_pyg()
    with torch.no_grad():
        plain = again.eval()(data.x, data.edge_index)[torch.from_numpy(predicted.nodes)]
    torch.testing.assert_close(torch.from_numpy(predicted.logits), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "made", "sentence"),
    [
        ({"system": "retexo"}, convs, "system 'retexo' must give each layer a head"),
        (
            {"system": "sar", "ranks": 2, "sar": {"mode": "rematerialize"}},
            convs,
            'reads the rows of all ranks in one block; use "halo"',
        ),
        ({"system": "sar", "ranks": 2, "sar": {"mode": ["halo", "keep"]}}, convs, 'sar.mode is "keep"'),
        ({"system": "grappa", "ranks": 2, "fanout": [2]}, batch_normed, "the model normalises batches"),
        ({"train": {"compile": True}, "fanout": [2, 2]}, convs, "the model is a PyGModel"),
    ],
)
def test_cells_that_do_not_work_are_refused_before_the_first_step(sbm, given, made, sentence):
    model = mr.PyGModel(made())
    with pytest.raises(mr.InputError, match=sentence):
        prepare(configure(given, model=model), sbm, model=model)


def test_what_a_mode_or_correction_changes_nothing_for_is_taken(sbm):
    summing = mr.PyGModel([pyg.GCNConv(5, 3, normalize=False)])
    for given in (
        {"system": "sar", "sar": {"mode": "keep"}},
        {"system": "sar", "ranks": 2, "sar": {"mode": "halo"}},
        {"system": "grappa", "grappa": {"correction": "node"}, "fanout": [2]},
    ):
        prepare(configure(given, model=summing), sbm, model=summing)
