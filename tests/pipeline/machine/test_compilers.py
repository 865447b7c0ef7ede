"""``train.compile``: the training that there is without, to rounding, through `torch.compile`."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import millrace as mr
from millrace.pipeline.commands import doctor
from millrace.pipeline.machine import compilers
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.prepare import prepare
from millrace.pipeline.telemetry.events import StepDone
from millrace.tests.contracts.forked_command import run_forked

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.slow,
    pytest.mark.skipif(
        not (compilers.cxx_compiler() and compilers.python_headers().exists()), reason="needs a C++ compiler"
    ),
]
JOB = {"epochs": 2, "seed": 3, "threads": 1, "fanout": [3, 2], "batch_size": 12, "lr": 0.02, "device": "cpu"}
"""Three minibatches an epoch, of sizes that differ."""


@pytest.fixture(autouse=True, scope="module")
def instructions():
    """Scalar instructions, instead of the widest that this processor proves to have: torch would compile and load a
    probe for each, and compile loops over vectors, which differ in nothing that is tested here."""
    from torch._inductor import config, cpu_vec_isa

    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    with config.patch({"cpp.vec_isa_ok": True, "cpp.simdlen": 1}), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_vec_isa.VecISA, "check_build", lambda self, code: False)
        yield
    cpu_vec_isa.valid_vec_isa_list.cache_clear()


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset("sbm:nodes=120,classes=3,degree=6,features=5,train=0.3", seed=1)


class Own(nn.Module):
    """A user's own layers, with a message, torch's dropout and batch normalisation."""

    num_layers = 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm, self.b = nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def layer(self, i, neighbourhood, h):
        if i == 0:
            h = torch.relu(self.norm(self.a(torch.cat([h[: neighbourhood.num_dst], neighbourhood.max(h)], 1))))
            return nn.functional.dropout(h, 0.3, self.training)
        return self.b(
            h[: neighbourhood.num_dst]
            + neighbourhood.apply(lambda src, dst, w: src * torch.sigmoid(dst), h, reduce="mean")
        )


def train(data, out, **options):
    """Losses of all steps, the result, and how many graphs were compiled for it."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    losses = []
    model = copy.deepcopy(options.pop("model", None))
    emit = lambda e: losses.append(e.loss) if isinstance(e, StepDone) else None  # noqa: E731
    result = mr.run(data, out=out, emit=emit, model=model, **{**JOB, **options})
    return np.array(losses), result, counters["stats"]["unique_graphs"]


def agree(data, out, rel, **options):
    plain, before, none = train(data, out / "plain", **options)
    losses, result, graphs = train(data, out / "compiled", train={"compile": True}, **options)
    assert none == 0 and graphs > 0, "the compiler had its part in the one, and in that alone"
    np.testing.assert_allclose(losses, plain, rtol=rel)
    assert (result.test_accuracy, result.sampled_edges) == (before.test_accuracy, before.sampled_edges)


def test_dropout_and_learnt_rows(sbm, tmp_path):
    """Dropout drops the same, of activations and of attention; learnt rows learn the same."""
    model = {"name": "gat", "hidden": 6, "heads": 2, "attention_dropout": 0.4, "norm": "layer"}
    agree(sbm, tmp_path, 1e-9, model=model, dtype="float64", learned=3)
    plain, compiled = (np.load(tmp_path / name / "learned.npy") for name in ("plain", "compiled"))
    np.testing.assert_allclose(compiled, plain, rtol=1e-9, atol=1e-10)


def test_a_module_of_ones_own(sbm, tmp_path):
    """torch's own dropout drops the same elements too."""
    agree(sbm, tmp_path, 1e-9, model=Own().double(), dtype="float64")


def test_on_a_device(sbm, tmp_path):
    pytest.importorskip("triton")
    agree(sbm, tmp_path, 1e-4, model={"name": "sage", "hidden": 6}, device="cuda", epochs=1)


def test_without_a_compiler_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    words = ["run", "--dataset", "digits", "--set", "train.compile=true", "--out", str(tmp_path / "run")]
    code, out, err = run_forked(*words)
    assert (code, out) == (2, "")
    assert "train.compile is true, but no C++ compiler was found ($CXX is '/nowhere/g++')" in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_names_compilers(monkeypatch):
    told = doctor.examine()
    assert told["machine"]["C++ compiler"] == compilers.cxx_compiler()
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setenv("CC", "/nowhere/gcc")
    told = doctor.examine()
    assert told["machine"]["C++ compiler"].startswith("not found: train.compile")
    assert told["gpu"]["C compiler"].startswith("not found: device")
    with pytest.raises(mr.MillraceError, match=r"no C compiler was found \(\$CC is '/nowhere/gcc'\)"):
        compilers.check_compiler(configure({"train": {"compile": True}}, device="cuda"))


@pytest.mark.parametrize("system", ["sar", "retexo"])
def test_full_batches_are_refused(sbm, system):
    with pytest.raises(mr.MillraceError, match=f"train.compile is true, but system '{system}'"):
        prepare(configure({"train": {"compile": True}}, system=system), sbm)


def test_convolutions_of_pyg_are_refused(sbm):
    convs = pytest.importorskip("torch_geometric.nn")
    model = mr.PyGModel([convs.SAGEConv(5, 3)])
    with pytest.raises(mr.MillraceError, match="the model is a PyGModel"):
        prepare(configure({"train": {"compile": True}}, model=model, fanout=[3]), sbm, model=model)


def test_it_decides_parameters_and_its_absence_is_what_it_always_was(sbm):
    without, given, asked = (
        prepare(configure(table), sbm).fingerprint
        for table in ({}, {"train": {"compile": False}}, {"train": {"compile": True}})
    )
    assert without == given
    assert {k for k in asked if asked[k] != without[k]} == {"train"}
