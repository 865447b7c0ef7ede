"""Models that may be passed, and the datasets that they fit."""

import pytest
import torch
from torch import nn

import millrace as mr
from millrace.pipeline.custom.model_argument import as_record_or_module, check_widths
from millrace.pipeline.setup.model import Outline

pyg = pytest.importorskip("torch_geometric.nn")


def two():
    return [pyg.SAGEConv((-1, -1), 4), pyg.SAGEConv(-1, 3)]


@pytest.mark.parametrize("wrapped", [list, tuple, nn.ModuleList])
def test_convolutions_are_taken_as_a_pyg_model(wrapped):
    convs = two()
    model = as_record_or_module(wrapped(convs))
    assert isinstance(model, mr.PyGModel) and list(model.convs) == convs


def test_a_convolution_by_itself_is_a_model_of_one_layer():
    assert as_record_or_module(pyg.SAGEConv(5, 3)).num_layers == 1


def test_records_and_models_are_taken_as_they_are():
    for model in (None, mr.GCN(), mr.PyGModel(two())):
        assert as_record_or_module(model) is model


def test_whole_models_of_pyg_are_taken_as_they_are():
    net = pyg.GraphSAGE(5, 8, num_layers=2, out_channels=3)
    model = as_record_or_module(net)
    assert isinstance(model, mr.PyGModel) and model.network is net and model.num_layers == 2


def test_networks_of_ones_own_are_refused():
    class Own(torch.nn.Module):
        def forward(self, x, edge_index):
            return x

    with pytest.raises(mr.InputError, match=r"Own.forward takes a whole edge_index.*PyGModel\(\[conv1, conv2\]\)"):
        as_record_or_module(Own())


class Own(nn.Module):
    num_layers = 1

    def __init__(self, linear=None):
        super().__init__()
        self.linear = linear

    def layer(self, i, neighbourhood, h):
        return neighbourhood.mean(h)


@pytest.mark.parametrize("make", [Own, lambda: pyg.GraphSAGE(5, 8, num_layers=2, out_channels=3), two])
def test_what_torch_compile_has_made_is_refused(make):
    made = make()
    given = [torch.compile(conv) for conv in made] if isinstance(made, list) else torch.compile(made)
    with pytest.raises(mr.InputError, match="has made the model; give the module itself"):
        as_record_or_module(given)


@pytest.mark.parametrize(
    ("make", "classes", "task", "told"),
    [
        (
            lambda: mr.PyGModel(two()),
            4,
            "multiclass",
            r"has 3 columns, but the dataset has 4 classes; make it SAGEConv\(..., 4\)",
        ),
        (lambda: mr.PyGModel(two()), 2, "multilabel", "has 3 columns, but the dataset has 2 classes"),
        (lambda: Own(nn.LazyLinear(3)), 3, "multiclass", "'linear.weight' of Own is lazy"),
        (Own, 3, "multiclass", "Own has no parameters to train"),
        (lambda: mr.PyGModel([pyg.SimpleConv()]), 3, "multiclass", "PyGModel has no parameters to train"),
    ],
)
def test_what_does_not_fit_a_dataset_is_refused(make, classes, task, told):
    with pytest.raises(mr.InputError, match=told):
        check_widths(make(), Outline("g", 5, classes, task, {}), 0, None)


def test_rows_of_pairs_have_the_width_that_their_decoder_reads():
    with pytest.raises(mr.InputError, match=r"has 3 columns, but a row that pairs are scored by has link\.width = 2"):
        check_widths(mr.PyGModel(two()), Outline("g", 5, 2, "multiclass", {}, row_width=2), 0, None)


def test_a_list_of_lazy_convolutions_trains_and_resumes(tmp_path):
    data = mr.open_dataset("sbm:nodes=120,classes=3,degree=6,features=5,train=0.3")
    options = {"out": tmp_path / "run", "fanout": [3, 2], "threads": 1, "device": torch.device("cpu")}
    first = mr.run(data, model=two(), epochs=1, **options)
    # What the run was started with need not be said again.
    more = mr.run(data, model=two(), epochs=2, resume=True, out=tmp_path / "run")
    assert (first.model, first.epochs, more.epochs) == ("PyGModel", 1, 2)
    whole = mr.run(data, model=two(), epochs=2, **{**options, "out": tmp_path / "whole"})
    assert more.parameters_sha256 == whole.parameters_sha256 != first.parameters_sha256


def test_a_run_on_data_of_pyg_goes_on(tmp_path):
    from torch_geometric.data import Data
    from torch_geometric.utils import to_undirected

    torch.manual_seed(0)
    edges = to_undirected(torch.randint(60, (2, 200)))
    data = Data(x=torch.randn(60, 5), y=torch.arange(60) % 3, edge_index=edges)
    mr.run(data, model=two(), epochs=1, out=tmp_path / "run", fanout=[3, 2], threads=1)
    job = tmp_path / "run" / "job.toml"
    job.write_text(
        job.read_text().replace('features = "memory"', 'features = "mapped"')
    )  # as ranks, which map the rows, leave it
    assert 'features = "mapped"' in job.read_text()
    assert mr.run(data, model=two(), epochs=2, out=tmp_path / "run", resume=True).epochs == 2


def test_infer_refuses_what_does_not_fit():
    data = mr.open_dataset("sbm:nodes=60,classes=3,degree=6,features=5")
    degree = torch.from_numpy(data.graph.degree).float()
    with pytest.raises(mr.InputError, match="is lazy and has no shape yet"):
        mr.infer(mr.PyGModel(two()), data.graph, data.features, degree, data.split.test)
    with pytest.raises(mr.InputError, match="takes 4 columns, but the dataset gives 5"):
        mr.infer(mr.PyGModel([pyg.SAGEConv(4, 3)]), data.graph, data.features, degree, data.split.test)
