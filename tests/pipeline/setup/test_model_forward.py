"""A module whose own `forward` does more than its layers would be evaluated and predicted as another: it is refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import millrace as mr
from millrace.storage.errors import InputError

WRONG = r"\.forward gives other rows than its layers in turn, .* its end in the last layer, and leave forward out"


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset("sbm:nodes=60,classes=2,degree=4,features=4")


class Own(nn.Module):
    num_layers = 1

    def __init__(self, after):
        super().__init__()
        self.linear, self.after = nn.Linear(4, 2), after

    def layer(self, i, neighbourhood, h):
        return self.linear(neighbourhood.mean(h))

    def forward(self, neighbourhoods, h):
        for i, neighbourhood in enumerate(neighbourhoods):
            h = self.layer(i, neighbourhood, h)
        return self.after(h)


def each_seed(out, y):
    return F.cross_entropy(out, y, reduction="none")


@pytest.mark.parametrize("options", [{}, {"loss": each_seed}, {"system": "sar"}, {"task": "link"}])
def test_other_rows_are_refused(sbm, tmp_path, options):
    sampled = {} if "system" in options else {"fanout": [2]}
    if options.get("task") == "link":
        sampled["read"] = {"task": "link"}
    given = {k: v for k, v in options.items() if k != "task"}
    for after in (torch.neg, nn.Linear(2, 2), lambda h: torch.cat([h, h], 1)):
        with pytest.raises(InputError, match=r"Own" + WRONG):
            mr.run("sbm:nodes=60,classes=2,degree=4,features=4", model=Own(after), out=tmp_path, **sampled, **given)
    assert not list(tmp_path.iterdir())


def test_the_same_rows_are_trained(sbm, tmp_path):
    options = {"fanout": [2], "epochs": 1, "verbose": False}
    for k, after in enumerate((nn.Identity(), nn.Dropout(0.5))):
        assert mr.run(sbm, model=Own(after), out=tmp_path / str(k), **options).status == "done"


def test_modules_of_pyg_with_a_forward_of_their_own(sbm, tmp_path):
    pyg = pytest.importorskip("torch_geometric.nn")

    class Negated(mr.PyGModel):
        def forward(self, neighbourhoods, h):
            return -super().forward(neighbourhoods, h)

    with pytest.raises(InputError, match=r"Negated" + WRONG):
        mr.run(sbm, model=Negated([pyg.SAGEConv(4, 2)]), fanout=[2], out=tmp_path)
    assert not list(tmp_path.iterdir())
