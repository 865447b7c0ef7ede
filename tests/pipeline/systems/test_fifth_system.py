"""A fifth system, local SGD, in this file alone: an installed package may bring one like it."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from pydantic import Field
from torch import nn

from millrace.pipeline.config.job import Job
from millrace.pipeline.config.schema import Section
from millrace.pipeline.config.systems import Inputs, Registered, System
from millrace.stages.comm.base import Group, Overlap, nothing
from millrace.stages.feed.queue_feed import Sampled
from millrace.stages.fetch.fetch import Fetch
from millrace.stages.messages import Fetched, StepRules, WorkDone
from millrace.stages.placement.replicated import Replicated
from millrace.stages.reduce.seed_weighted import SeedWeightedMean
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.stages.schedule.policies import Epochs
from millrace.tests.contracts.forked_command import ForkedCommand, run_forked

# --- the system


class LocalSgdOptions(Section):
    """Options of local SGD."""

    local_steps: int = Field(default=2, ge=1)
    """Minibatches on which each rank steps by itself before parameters are averaged."""


class AveragedParameters(SeedWeightedMean):
    """Each minibatch is a local step. What a rank has moved is then averaged, weighted by its seeds."""

    allows_recording: ClassVar[bool] = False
    shares_batch_norm: ClassVar[bool] = False
    has_local_optimizers: ClassVar[bool] = True

    def optimizer(self, parameters: list[nn.Parameter], rules: StepRules) -> torch.optim.Optimizer:
        object.__setattr__(self, "start", None)
        return torch.optim.SGD(parameters, lr=1.0)

    def contribute(self, module: nn.Module, fetched: Fetched, rules: StepRules) -> WorkDone:
        parameters = [p for p in module.parameters() if p.requires_grad]
        if self.start is None:
            object.__setattr__(self, "start", [p.detach().clone() for p in parameters])
        done = super().contribute(module, fetched, rules)
        for p in parameters:
            p.grad = p.grad / max(1, done.seeds)
        local = rules.optimizer(parameters)
        local.step()
        local.zero_grad(set_to_none=True)
        return done

    def reduce(
        self, parameters: list[nn.Parameter], count: float, group: Group, flag: bool = False, overlap: Overlap = nothing
    ) -> tuple[float, bool]:
        for p, start in zip(parameters, self.start or [p.detach().clone() for p in parameters]):
            p.grad = (start - p.detach()) * count
            p.data.copy_(start)
        object.__setattr__(self, "start", None)
        return super().reduce(parameters, count, group, flag, overlap)


class LocalSgd(Registered):
    name = "local_sgd"
    about = "local steps on minibatches, then an average of parameters"
    options = LocalSgdOptions
    options_decide = True

    def complete(self, job: Job) -> Job:
        train = {"minibatches_per_step": job.options.local_steps * job.ranks}
        return job.model_copy(update={"train": job.train.model_copy(update=train)})

    def build(self, options: LocalSgdOptions, inputs: Inputs) -> System:
        sample = Sampled(inputs.sampler or NeighborSampler())
        return System(self.name, Replicated(), sample, Fetch(), AveragedParameters(), Epochs(), options.model_dump())


SYSTEM = LocalSgd()

# --- its proof

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "millrace.tests.contracts.fresh_command"
DATASET = "sbm:nodes=600,classes=4,train=0.5"


def install(site: Path, package: str, entry_points: str) -> None:
    """Write the files that an installer leaves of a package with entry points."""
    info = site / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def seen(site: Path) -> dict[str, str]:
    """Variables with which a process finds the packages in `site`, and this package."""
    paths = [str(site), str(ROOT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def command(site: Path, *words: str | Path) -> tuple[int, str]:
    """Exit status and standard error of the command."""
    code, _, err = run_forked(*words, program=PROGRAM, forks_workers=False, variables=seen(site))
    return code, err


def run(site: Path, *words: str | Path) -> None:
    code, err = command(site, *words)
    assert code == 0, err


@pytest.fixture
def site(tmp_path: Path) -> Path:
    found = tmp_path / "site"
    install(found, "local-sgd", "[millrace.systems]\nlocal_sgd = test_fifth_system:SYSTEM\n")
    (found / "test_fifth_system.py").write_text(Path(__file__).read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_system_of_another_package_trains_and_resumes_from_the_command_line(site, tmp_path, ranks):
    words = [
        *("run", "--system", "local_sgd", "--dataset", DATASET, "--ranks", str(ranks), "--fanout", "4,3"),
        *("--epochs", "12", "--batch-size", "16", "--lr", "0.05", "--hidden", "16", "--set", "train.optimizer=sgd"),
        *("--set", "local_sgd.local_steps=3", "--set", "checkpoint.every_steps=2"),
        *(("--set", "cluster.dashboard_port=0") if ranks == 2 else ()),
        "--out",
    ]
    run(site, *words, tmp_path / "whole")
    whole = json.loads((tmp_path / "whole" / "result.json").read_text())
    assert (whole["system"], whole["minibatches_per_step"]) == ("local_sgd", 3 * ranks)
    assert whole["test_accuracy"] > 0.6

    if ranks == 1:
        killed = ForkedCommand(*words, tmp_path / "killed", program=PROGRAM, forks_workers=False, variables=seen(site))
        end = time.monotonic() + 240
        while not list((tmp_path / "killed" / "checkpoints").glob("[!.]*")) and time.monotonic() < end:
            time.sleep(0.01)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait(60)
        assert not (tmp_path / "killed" / "result.json").exists()
    else:
        # As a kill before the last checkpoint would leave it.
        shutil.copytree(tmp_path / "whole", tmp_path / "killed")
        *_, last = sorted((tmp_path / "killed" / "checkpoints").glob("step-*"), key=lambda p: p.stat().st_mtime_ns)
        shutil.rmtree(last)
        for name in ("result.json", "model.pt"):
            (tmp_path / "killed" / name).unlink()
    run(site, *words, tmp_path / "killed", "--resume")
    again = json.loads((tmp_path / "killed" / "result.json").read_text())
    assert again["parameters_sha256"] == whole["parameters_sha256"]
    assert "resumed at" in (tmp_path / "killed" / "metrics.jsonl").read_text()

    if ranks == 1:
        code, err = command(site, *words, tmp_path / "killed", "--resume", "--set", "local_sgd.local_steps=2")
        assert code == 2 and "local_sgd.local_steps (was 3, now 2)" in err


def test_options_of_the_system_are_checked(site):
    code, err = command(site, "run", "--system", "local_sgd", "--set", "local_sgd.local_steps=0")
    assert code == 2 and "'local_sgd.local_steps' is 0" in err
    assert SYSTEM.build(LocalSgdOptions(), Inputs()).options == {"local_steps": 2}


PACKAGE = """
from dataclasses import dataclass
from typing import ClassVar
import numpy as np, scipy.sparse as sp
from millrace import NeighborSampler, from_scipy
from millrace.pipeline.datasets import Reader

@dataclass(frozen=True)
class Narrow(NeighborSampler):
    name: ClassVar[str] = "narrow"

def ring(source, request):
    n = int(source.partition(":")[2])
    i = np.arange(n)
    ring = sp.coo_array((np.ones(2 * n), (np.r_[i, i], np.r_[(i + 1) % n, (i - 1) % n])), (n, n))
    return from_scipy(ring, np.eye(n, 8, dtype=np.float32), i * 4 // n, name=f"ring of {n}")

RING = Reader("ring", lambda source: str(source).startswith("ring:"), ring, "ring:NODES", is_name=True)
"""


def test_a_sampler_and_a_reader_of_an_installed_package(tmp_path):
    site = tmp_path / "site"
    install(
        site,
        "narrow-ring",
        "[millrace.samplers]\nnarrow = narrow_ring:Narrow\n[millrace.readers]\nring = narrow_ring:RING\n",
    )
    (site / "narrow_ring.py").write_text(PACKAGE)
    run(
        site,
        *("run", "--dataset", "ring:200", "--set", "sampler.name=narrow", "--fanout", "2,2", "--epochs", "2"),
        *("--set", "split=fraction:0.5,0.2", "--hidden", "8", "--out", tmp_path / "run"),
    )
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["dataset"], result["num_nodes"]) == ("ring of 200", 200)
    assert '"narrow"' in result["fingerprint"]["sampler"]


def test_a_broken_package_is_one_sentence_and_breaks_nothing_else(tmp_path):
    site = tmp_path / "site"
    install(site, "gone", "[millrace.systems]\nlost = no_such_module:SYSTEM\n")
    code, err = command(site, "run", "--system", "lost", "--dataset", DATASET)
    assert code == 2 and "the system 'lost' of package 'gone' 1.0 cannot be imported" in err
    assert "Traceback" not in err
    run(site, "run", "--dataset", DATASET, "--epochs", "1", "--out", tmp_path / "run")
