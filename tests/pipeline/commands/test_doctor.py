"""Report of `millrace doctor` on GPUs, on machines with and without them."""

import importlib.metadata
import resource
import subprocess
import sys
import tomllib
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from millrace.pipeline.commands import doctor
from millrace.tests.contracts.command import command

TWO = """580.65.06, NVIDIA H100 80GB HBM3, 81559, 512
580.65.06, NVIDIA GB10, [N/A], [N/A]
"""


@pytest.fixture
def smi(monkeypatch):
    """Lets `nvidia-smi` say something, or raise it."""

    def says(out, code=0):
        def run(words, **_):
            if isinstance(out, Exception):
                raise out
            return subprocess.CompletedProcess(words, code, out, "")

        monkeypatch.setattr(doctor.subprocess, "run", run)

    return says


def test_all_extras_are_told():
    project = tomllib.loads((Path(doctor.__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert doctor.EXTRAS.keys() == project["optional-dependencies"].keys()


@pytest.mark.parametrize(
    ("limit", "said"),
    [(-1, "unlimited"), (3 << 29, '1.5 GiB (ulimit -v): graph = "mapped" and features = "mapped" need room')],
)
def test_a_limit_of_address_space_is_told(monkeypatch, limit, said):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert doctor.examine()["machine"]["address space"].startswith(said)


def test_the_driver_and_each_gpu_have_a_line(smi):
    smi(TWO)
    gpu = doctor.examine()["gpu"]
    assert gpu["driver"] == "580.65.06"
    assert gpu["gpu 0"] == "NVIDIA H100 80GB HBM3, 79.6 GiB, 0.5 GiB in use"
    assert gpu["gpu 1"] == "NVIDIA GB10"


@pytest.mark.parametrize(
    ("out", "code", "driver"),
    [
        (FileNotFoundError(2, "no such file"), 0, "not found (nvidia-smi is not here)"),
        (subprocess.TimeoutExpired("nvidia-smi", 20), 0, "not found (nvidia-smi does not answer)"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate\nwith the driver",
            9,
            "not usable (nvidia-smi says: NVIDIA-SMI has failed",
        ),
        ("", 0, "not usable (nvidia-smi says: no GPU)"),
    ],
)
def test_a_machine_without_a_driver_says_what_needs_one(smi, out, code, driver):
    smi(out, code)
    gpu = doctor.examine()["gpu"]
    assert gpu["driver"].startswith(driver) and gpu["driver"].endswith(
        'device = "cuda" needs an NVIDIA GPU and its driver'
    )
    assert "gpu 0" not in gpu


def test_what_is_missing_is_missing_for_something(smi, monkeypatch):
    smi(TWO)
    for module, *_ in doctor.FOR_GPUS.values():
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    gpu = doctor.examine()["gpu"]
    for name, wanted in {
        "triton": 'kernel = "cuda"', "dask-cuda": ('executor = '
            '"dask"'), "rmm": "cluster.cuda.rmm_*", "ucx": 'protocol = "ucx"',
        "nccl": 'cluster.backend = "gloo"',
    }.items():  # fmt: skip
        assert gpu[name].startswith("missing: ") and wanted in gpu[name], name
    assert gpu["torch"].startswith("built without CUDA")


def test_what_is_there_has_its_version(smi, monkeypatch):
    smi(TWO)
    for module, *_ in doctor.FOR_GPUS.values():
        found = ModuleType(module)
        found.__spec__ = ModuleSpec(module, None)
        monkeypatch.setitem(sys.modules, module, found)
    monkeypatch.setattr(
        importlib.metadata, "version", {"triton": "3.7.1", "dask-cuda": "26.10.0", "rmm-cu13": "26.10.0"}.get
    )
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    gpu = doctor.examine()["gpu"]
    assert (gpu["triton"], gpu["dask-cuda"], gpu["rmm"], gpu["nccl"]) == ("3.7.1", "26.10.0", "26.10.0", "2.29.7")
    assert gpu["torch"] == "CUDA 13.0, sees 2 GPUs"


def test_what_does_not_run_is_listed_with_its_reason():
    found = doctor.supported()
    assert found["retexo"]["features of edges"] == "no: system 'retexo' gives its layers rows of nodes only"
    assert found["sar"]["a queue on disk"].startswith("-: ")
    assert any(reason.startswith("no: ") for reason in found["convert, in pieces"].values())
    code, out, _ = command("doctor", "--support")
    assert code == 0
    assert all(f"\n{part}\n" in f"\n{out}" for part in found)
