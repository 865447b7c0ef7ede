"""``kernel = "cuda"``: the same run, and a sentence where it cannot be."""

import sys

import pytest
import torch

import millrace as mr
from millrace.stages import kernels
from millrace.stages.kernels.runtime import triton_rng
from millrace.stages.sample import SAMPLERS
from millrace.stages.sample.layerwise import LayerwiseSampler
from millrace.stages.sample.matrix import MatrixSampler
from millrace.stages.sample.temporal import TemporalSampler
from millrace.storage.errors import InputError, MissingExtraError
from millrace.tests.contracts.command import command

pytestmark = pytest.mark.usefixtures("on_device")
DATASET = "sbm:nodes=60,classes=2,features=4,seed=1"
SMALL = {
    "epochs": 1,
    "model": {"name": "sage", "hidden": 4, "layers": 2},
    "sampler": {"name": "neighbor", "fanout": [3, 2]},
    "train": {"batch_size": 32},
}


@pytest.mark.parametrize(
    "sampler",
    [
        SMALL["sampler"],
        {"name": "labor", "fanout": [3, 2]},
        {"name": "ladies", "sizes": [12, 8]},
        {"name": "fastgcn", "sizes": [12, 8], "debias": "bottom_k"},
        {"name": "saint", "layers": 2, "length": 2},
    ],
    ids=lambda s: s["name"],
)
def test_the_kernel_does_not_show(tmp_path, sampler):
    given = SMALL | {"sampler": sampler}
    seen = [mr.run(DATASET, out=tmp_path / k, kernel=k, **given).parameters_sha256 for k in ("cpu", "cuda")]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_every_kernel_has_every_sampler(name):
    """Samplers that are no single kernel are left out: those written as matrices, and those that draw by time. Those
    of a number of nodes for each layer have one in common."""
    without = (MatrixSampler, TemporalSampler)
    own = [sampler for sampler in SAMPLERS if not issubclass(SAMPLERS.find(sampler), without)]
    assert len(own) >= 4
    functions = {"layers" if issubclass(SAMPLERS.find(s), LayerwiseSampler) else s for s in own}
    assert all(callable(getattr(kernels.sampling_backend(name), function)) for function in functions)


def test_the_kernel_does_not_show_by_time(tmp_path):
    given, data = (
        SMALL | {"sampler": {"name": "temporal", "fanout": [3, 2]}},
        "tsbm:nodes=60,classes=2,features=4,seed=1",
    )
    seen = [mr.run(data, out=tmp_path / k, kernel=k, **given).parameters_sha256 for k in ("cpu", "cuda")]
    assert len(set(seen)) == 1


def test_without_a_gpu_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(triton_rng, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, err = command("run", "--dataset", DATASET, "--set", "kernel=cuda", "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert 'kernel is "cuda", but torch sees no GPU here' in err
    assert len(err.splitlines()) <= 3
    assert not (tmp_path / "run").exists()


def test_triton_may_be_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingExtraError, match="Triton is not installed"):
        kernels.sampling_backend("cuda")


def test_unknown_kernels_are_refused():
    with pytest.raises(InputError, match="did you mean 'cuda'"):
        kernels.sampling_backend("cudas")
