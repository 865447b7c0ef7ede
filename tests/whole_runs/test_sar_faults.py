"""Full-batch runs of which a rank dies in a pass, or stops: it is told where, and the run ends as if it had not."""

import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

import millrace as mr
from millrace.pipeline.telemetry.events import EpochDone, Note
from millrace.tests.contracts.process_ends import command_of

pytestmark = pytest.mark.usefixtures("by_value")

DATASET = "sbm:nodes=300,classes=3,degree=6,features=5,train=0.3"
EPOCHS, TOLD_S, NOTE_S = 20, 120.0, 0.5
JOB = {
    "epochs": EPOCHS, "lr": 0.02, "seed": 3, "threads": 1, "dtype": "float64", "checkpoint": {"every_steps": 2},
    "sar": {"mode": "rematerialize"},
}  # fmt: skip
STEP_OF_LIFE = 5
"""A generation that is to suffer something suffers it in this step of its own: there is a checkpoint between two of
them."""


class Mortal(torch.nn.Module):
    """A user's model, in which one process suffers what the plan says, each thing once."""

    num_layers = 2

    def __init__(self, folder: Path, *plan: str, pause_s: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(5, 8), torch.nn.Linear(8, 3)
        self.bias = torch.nn.Parameter(torch.zeros(8))
        self.folder, self.plan, self.pause_s, self.steps = folder, plan, pause_s, 0

    def layer(self, i, neighbourhood, h):
        if i == 0:
            if self.training:
                self.steps += 1
                time.sleep(self.pause_s)
            z = self.a(h)
            gated = neighbourhood.apply(lambda src, dst, w: src * torch.sigmoid(dst), z, reduce="mean")
            # Reads nothing of other ranks, which must visit each other all the same.
            alike = neighbourhood.apply(
                lambda src, dst, w, bias: bias.expand(len(src), -1), z, (self.bias,), reduce="mean"
            )
            return torch.tanh(gated + alike + z[: neighbourhood.num_dst])
        self._suffer("forward", signal.SIGKILL)
        self._suffer("stop", signal.SIGSTOP)
        if h.requires_grad:
            h.register_hook(lambda grad: self._suffer("backward", signal.SIGKILL))
        return self.b(h[: neighbourhood.num_dst] + neighbourhood.mean(h))

    def _suffer(self, what, number):
        if not self.training or self.steps != STEP_OF_LIFE or not os.readlink("/proc/self/fd/2").endswith("rank-1.log"):
            return
        due = next((w for w in self.plan if not (self.folder / w).exists()), None)
        if due == what:
            (self.folder / what).write_text(f"{os.getpid()} {time.time()}")
            os.kill(os.getpid(), number)

    def forward(self, neighbourhoods, h):
        for i, neighbourhood in enumerate(neighbourhoods):
            h = self.layer(i, neighbourhood, h)
        return h


class Listener:
    """Notes what is told and when, wakes what was stopped once that was told, and asks to stop where it should."""

    def __init__(self, folder, stop_after=None):
        self.folder, self.stop_after = folder, stop_after
        self.notes, self.again, self.epoch = [], [], -1

    def __call__(self, event):
        if isinstance(event, EpochDone):
            self.epoch = event.epoch
        if not isinstance(event, Note):
            return
        self.notes.append(event.text)
        if "start again" in event.text:
            self.again.append((event.text, time.time(), ranks_alive()))
        if (self.folder / "stop").exists() and "rows of rank 1" in event.text:
            # It is there before it is written.
            while not (said := (self.folder / "stop").read_text().split()):
                time.sleep(0.01)
            os.kill(int(said[0]), signal.SIGCONT)

    def stop(self):
        return self.stop_after is not None and self.epoch >= self.stop_after


def ranks_alive():
    """Processes of ranks below this one."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "millrace.pipeline.cluster.rank_main" in command_of(child):
                found.append(child.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def undisturbed(scheduler, tmp_path):
    """Two ranks to which nothing happens."""
    return mr.run(
        DATASET, model=Mortal(tmp_path), system="sar", ranks=2, scheduler=scheduler, out=tmp_path / "undisturbed", **JOB
    )


def test_what_happens_to_a_rank_does_not_show_in_the_end(undisturbed, scheduler, tmp_path):
    """Killed in a forward pass, killed in a backward pass, interrupted, gone on with, stopped for a while."""
    alone = mr.run(DATASET, model=Mortal(tmp_path), system="sar", out=tmp_path / "alone", **JOB)
    assert undisturbed.train_loss == pytest.approx(alone.train_loss, rel=1e-10)
    assert undisturbed.val_accuracy == pytest.approx(alone.val_accuracy)

    model = Mortal(tmp_path, "forward", "backward", "stop", pause_s=0.05)
    run = {
        **JOB, "model": model, "system": "sar", "ranks": 2, "scheduler": scheduler, "out": tmp_path / "run",
        "cluster": {"restarts": 2, "slow_peer_warning_s": NOTE_S},
    }  # fmt: skip
    (tmp_path / "stop").touch()  # not in this run
    seen = Listener(tmp_path, stop_after=9)
    assert mr.run(DATASET, emit=seen, stop=seen.stop, **run).status == "stopped"
    (tmp_path / "stop").unlink()
    assert len(seen.again) == 2, seen.notes
    for what, (text, told_at, alive) in zip(("forward", "backward"), seen.again):
        pid, at = (tmp_path / what).read_text().split()
        assert re.fullmatch(
            rf"rank 1 \(process {pid}\) was killed by signal 9; all ranks start again from the last checkpoint .*", text
        )
        assert told_at - float(at) < TOLD_S
        assert not alive, "the other rank has ended"
    at = [int(m[1]) for text in seen.notes if (m := re.match(r"resumed at epoch (\d+), step 1", text))]
    assert at == [5, 9]

    seen = Listener(tmp_path)
    resumed = mr.run(DATASET, resume=True, emit=seen, **run)
    assert (tmp_path / "stop").exists()
    assert any(
        re.fullmatch(r"waiting for \d+ s already: rank 0, layer 1, forward, round 1 of 1: rows of rank 1", text)
        for text in seen.notes
    ), seen.notes
    assert not seen.again
    assert resumed.parameters_sha256 == undisturbed.parameters_sha256
    assert resumed.train_loss == undisturbed.train_loss
    assert not ranks_alive()
