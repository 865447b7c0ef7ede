"""A single row under batch normalisation: as in evaluation, for any model, and by whole runs of each system."""

import pytest
import torch
from torch import nn

import millrace as mr
from millrace.stages.nn.lone_rows import by_running_statistics, lone_rows
from millrace.storage.errors import InputError


def trained(norm: nn.BatchNorm1d) -> nn.BatchNorm1d:
    torch.manual_seed(0)
    norm(torch.randn(9, 3) * 2 + 1)
    return norm


def test_a_single_row_is_normalised_as_in_evaluation() -> None:
    model = nn.Sequential(nn.Linear(3, 3), trained(nn.BatchNorm1d(3)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(1, 3)
    with lone_rows(model, [5, 1]):
        out = model(x)
        many = model(torch.randn(4, 3))
    out.sum().backward()
    assert model[0].weight.grad is not None and many.shape == (4, 3)
    assert torch.equal(before["1.running_mean"], trained(nn.BatchNorm1d(3)).running_mean)
    fresh = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    fresh.load_state_dict(before)
    assert torch.equal(out, fresh.eval()(x))
    with pytest.raises(ValueError, match="Expected more than 1 value"):
        model(x)
    with lone_rows(model, [5, 2]), pytest.raises(ValueError, match="Expected more than 1 value"):
        model(x)


def test_without_running_statistics_it_is_refused() -> None:
    norm = nn.BatchNorm1d(3, track_running_stats=False)
    with lone_rows(norm, [1]), pytest.raises(InputError, match=r"single row.*set another batch_size"):
        norm(torch.ones(1, 3))
    with pytest.raises(InputError, match="keeps no running statistics"):
        by_running_statistics(norm, torch.ones(1, 3))


@pytest.mark.parametrize("kind", ["own", "pyg"])
@pytest.mark.parametrize("batch_size", [1, 4, 8])
def test_runs_end_whatever_the_last_minibatch(tmp_path, kind, batch_size) -> None:
    """Nine train nodes without edges."""
    data = mr.open_dataset("sbm:nodes=12,classes=2,degree=0,features=4,train=0.75")
    if kind == "own":
        model = mr.GraphSAGE(hidden=4, layers=2, norm="batch")
    else:
        pyg = pytest.importorskip("torch_geometric.nn")
        mlp = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
        model = mr.PyGModel([pyg.GINConv(mlp)])
    options = {"fanout": [2] * getattr(model, "num_layers", 2), "epochs": 2, "batch_size": batch_size}
    result = mr.run(data, model=model, out=tmp_path / "run", verbose=False, **options)
    assert len(data.split.train) == 9 and result.epochs == 2
