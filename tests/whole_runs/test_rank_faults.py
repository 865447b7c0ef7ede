"""Runs on a cluster of which something dies or fails: it is told what, nothing is left behind, and the run can go on to
the same end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

import millrace as mr
from millrace.pipeline.telemetry.events import EpochDone, Note, StepDone
from millrace.stages.neighbourhood.base import destinations
from millrace.tests.contracts.forked_command import ForkedCommand
from millrace.tests.contracts.process_ends import command_of, ended

DATASET = "sbm:nodes=1200,classes=3,degree=8,features=5,train=0.5"
EPOCHS, TOLD_S, GONE_S = 6, 120.0, 120.0
JOB = {
    "epochs": EPOCHS, "batch_size": 20, "fanout": [4, 3], "hidden": 8, "lr": 0.02, "dropout": 0.2, "seed": 3,
    "threads": 1, "ranks": 2,
    "model": {"name": "sage", "norm": "batch"}, "queue": {"kind": "zarr", "bulk_size": 4, "max_bytes": 60_000},
    "checkpoint": {"every_steps": 8},
}  # fmt: skip
FLAGS = [
    "--dataset", DATASET, "--epochs", str(EPOCHS), "--batch-size", "20", "--fanout", "4,3", "--hidden", "8", "--lr",
    "0.02",
    "--dropout", "0.2", "--seed", "3", "--ranks", "2",
    *(f"--set={x}" for x in (
        "threads=1", "model.norm=batch", "queue.kind=zarr", "queue.bulk_size=4", "queue.max_bytes=60000",
        "checkpoint.every_steps=8",
        "cluster.dashboard_port=0",
    )),
]  # fmt: skip


def family(pid=None):
    """(ranks, workers) below a process, this one by default."""
    ranks, workers = [], []
    for child in psutil.Process(pid).children(recursive=True):
        command = command_of(child)
        if "millrace.pipeline.cluster.rank_main" in command:
            ranks.append(child)
        elif "spawn_main" in command:
            workers.append(child)
    return ranks, workers


def holds(worker, rank):
    """True if the worker has the other end of the rank's standard input."""
    pipe = os.readlink(f"/proc/{rank.pid}/fd/0")
    for file in Path(f"/proc/{worker.pid}/fd").iterdir():
        # It may have closed a file since they were listed.
        with suppress(FileNotFoundError):
            if os.readlink(file) == pipe:
                return True
    return False


def victim(what):
    """A rank, a worker that holds one, or the worker without one that has worked most."""
    ranks, workers = family()
    holders = {w.pid for w in workers if any(holds(w, r) for r in ranks)}
    if what == "rank":
        return ranks[-1]
    if what == "holder":
        return next(w for w in workers if w.pid in holders)
    return max((w for w in workers if w.pid not in holders), key=lambda w: sum(w.cpu_times()[:2]))


class Reaper:
    """Listens to a run, kills what the plan says once an epoch is reached, and notes how soon that was told and in
    which words. Steps of ranks that are ended together with a lost one may still be told, and count for nothing."""

    def __init__(self, gate, *plan):
        self.gate, self.plan, self.told, self.notes = gate, list(plan), [], []
        self.killed, self.ending, self.epoch = None, False, -1

    def __call__(self, event):
        if isinstance(event, Note):
            self.notes.append(event.text)
            self.ending &= "resumed at epoch" not in event.text
            if self.killed and re.search(r"start again|which sampled", event.text):
                what, pid, at = self.killed
                self.told.append((what, pid, event.text, time.monotonic() - at))
                self.killed = None
        elif isinstance(event, StepDone | EpochDone) and not self.ending:  # not every step is told
            self.epoch = event.epoch
        # Also once a death is told: ranks that wait at the gate tell no more steps.
        if self.plan and not self.killed and self.epoch >= self.plan[0][1]:
            what, _ = self.plan.pop(0)
            process = victim(what)
            process.kill()
            self.killed = (what, process.pid, time.monotonic())
            if what != "sampler":
                self.ending, self.epoch = True, -1
            if not self.plan:
                self.gate.touch()


class Gate(mr.Callback):
    """Holds the ranks after the fourth epoch until a file is there: what is to die dies before the end, however late
    its steps are told."""

    def __init__(self, file):
        self.file = file

    def on_epoch(self, run):
        while run.epoch == 3 and not self.file.exists():
            time.sleep(0.01)


@pytest.fixture(scope="module")
def undisturbed(scheduler, tmp_path_factory):
    """The parameters of a run that nothing happens to."""
    return mr.run(
        DATASET, out=tmp_path_factory.mktemp("undisturbed") / "run", scheduler=scheduler, **JOB
    ).parameters_sha256


@pytest.mark.usefixtures("by_value")
def test_ranks_and_workers_die_and_the_run_ends_as_if_they_had_not(undisturbed, scheduler, tmp_path):
    gate = tmp_path / "gate"
    reaper = Reaper(gate, ("rank", 1), ("sampler", 1), ("holder", 2), ("rank", 3))
    run = {**JOB, "out": tmp_path / "run", "scheduler": scheduler, "emit": reaper, "cluster": {"restarts": 2}}
    run["callbacks"] = Gate(gate)
    with pytest.raises(
        mr.RunError,
        match=r"^rank \d \(process \d+\) was killed by signal 9; resume from the last checkpoint with --resume",
    ):
        mr.run(DATASET, **run)
    assert not reaper.plan
    _, pid, at = reaper.killed
    assert time.monotonic() - at < TOLD_S
    assert ended([pid])
    assert not family()[0], "no rank outlives the run"
    assert [what for what, *_ in reaper.told] == ["rank", "sampler", "holder"]
    for _, _, text, seconds in reaper.told:
        assert seconds < TOLD_S, text
    rank, sampler, holder = (text for _, _, text, _ in reaper.told)
    assert re.fullmatch(
        rf"rank \d \(process {reaper.told[0][1]}\) was killed by signal 9; all ranks start again .* \(restart 1 of 2\)",
        rank,
    )
    assert re.match(r"the worker tcp://\S+, which sampled, is gone; others take over its tasks", sampler)
    assert re.match(
        r"the worker tcp://\S+ that held rank \d \(process \d+\) is gone; all ranks start again .* \(restart 2 of 2\)",
        holder,
    )
    assert sum("resumed at epoch" in text for text in reaper.notes) == 2, "each generation goes on from a checkpoint"
    assert mr.run(DATASET, resume=True, **run).parameters_sha256 == undisturbed


class Command:
    """``millrace run`` in a process group of its own, as a shell starts it."""

    def __init__(self, out, *flags):
        self.metrics, self.log = out / "metrics.jsonl", out.with_suffix(".log")
        self._seen = self.metrics.stat().st_size if self.metrics.exists() else 0
        self.out = out.with_suffix(".json")
        for file in (self.log, self.out):
            file.write_text("")
        self.process = ForkedCommand("run", *FLAGS, "--out", out, "--json", *flags, out=self.out, err=self.log)

    def reach(self, epoch):
        """Wait until a step of the epoch is done."""
        deadline = time.monotonic() + 240
        while True:
            text = self.metrics.read_bytes()[self._seen :].decode() if self.metrics.exists() else ""
            if any(int(found) >= epoch for found in re.findall(r'"StepDone".*?"epoch": (\d+),', text)):
                return
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def end(self):
        """(exit code, standard output, standard error)."""
        code = self.process.wait(240)
        return code, self.out.read_text(), self.log.read_text()


def test_every_end_of_the_driver_can_be_gone_on_from(undisturbed, scheduler, tmp_path):
    """Interrupted, out of patience with lost ranks, killed: one run that suffers all of it ends with the same
    parameters."""
    out = tmp_path / "run"
    command = Command(out)
    command.reach(1)
    ranks, workers = family(command.process.pid)
    assert len(ranks) == 2
    assert len(workers) == 3
    # A terminal sends it to everything that runs below the shell.
    os.killpg(command.process.pid, signal.SIGINT)
    code, _, said = command.end()
    assert code == 130, said
    assert "interrupted; a checkpoint was written" in said
    assert not psutil.wait_procs([*ranks, *workers], timeout=GONE_S)[1]

    command = Command(out, "--resume", "--scheduler", scheduler, "--set", "cluster.on_rank_loss=stop")
    command.reach(2)
    family()[0][0].kill()
    killed = time.monotonic()
    code, _, said = command.end()
    assert code == 3, said
    assert time.monotonic() - killed < TOLD_S
    assert re.search(
        r"rank \d \(process \d+\) was killed by signal 9; resume from the last checkpoint with --resume",
        said.replace("\n", " "),
    )
    assert not family()[0]

    command = Command(out, "--resume", "--scheduler", scheduler)
    command.reach(3)
    ranks, workers = family(command.process.pid)
    command.process.kill()
    assert not psutil.wait_procs([*ranks, *workers], timeout=GONE_S)[1], "children outlive their driver"
    command.end()

    command = Command(out, "--resume", "--scheduler", scheduler)
    code, result, said = command.end()
    assert code == 0, said
    assert "resumed at epoch" in said
    assert json.loads(result)["parameters_sha256"] == undisturbed


def test_a_stopped_rank_on_a_cluster_of_others_does_not_outlive_its_driver(scheduler, tmp_path, monkeypatch):
    """It cannot end itself, and the driver may not reach the worker that holds it."""
    monkeypatch.setenv("MILLRACE_STOP_S", "0.5")
    command = Command(tmp_path / "run", "--scheduler", scheduler, "--epochs", "1000000")
    command.reach(1)
    ranks, _ = family()
    ranks[0].suspend()
    command.process.send_signal(signal.SIGTERM)
    code, _, said = command.end()
    assert code == 130, said
    assert not psutil.wait_procs(ranks, timeout=GONE_S)[1]


class Raises(torch.nn.Module):
    """Raises in the fifth minibatch of rank 1, and says when in its log."""

    num_layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(10, 8), torch.nn.Linear(8, 3)
        self.calls = 0

    def layer(self, i, neighbourhood, h):
        if i == 0:
            self.calls += self.training
            if self.calls == 5 and os.readlink("/proc/self/fd/2").endswith("rank-1.log"):
                print(f"raised at {time.time()}", file=sys.stderr, flush=True)
                raise ValueError("the fifth is one too many")
            return torch.relu(self.a(torch.cat([destinations(neighbourhood, h), neighbourhood.mean(h)], 1)))
        return self.b(destinations(neighbourhood, h) + neighbourhood.mean(h))

    def forward(self, neighbourhoods, h):
        for i, neighbourhood in enumerate(neighbourhoods):
            h = self.layer(i, neighbourhood, h)
        return h


def test_a_rank_that_raises_ends_the_others_at_once(by_value, scheduler, tmp_path):
    seen = []
    ranks = []

    def listen(event):
        seen.append(event)
        if isinstance(event, StepDone) and not ranks:
            ranks.extend(family()[0])

    own = {key: value for key, value in JOB.items() if key not in ("hidden", "dropout")}
    job = {**own, "model": Raises(), "cluster": {"restarts": 3}}
    with pytest.raises(
        mr.RunError, match=r"^rank 1 failed: ValueError: the fifth is one too many \(.*test_rank_faults.*in layer"
    ) as raised:
        mr.run(DATASET, out=tmp_path / "run", scheduler=scheduler, emit=listen, **job)
    ended = time.time()
    assert raised.value.exit_code == 3
    log = (tmp_path / "run" / "logs" / "rank-1.log").read_text()
    assert "Traceback" in log
    # The promise is a second for the other rank, which would wait for half an hour; the machine may be busy.
    assert ended - float(re.search(r"raised at (\S+)", log)[1]) < 60.0
    assert not family()[0]
    assert not any("again" in e.text for e in seen if isinstance(e, Note)), "it would only raise again"


def test_sampling_that_cannot_be_stored_ends_the_run(scheduler, tmp_path):
    out, obstacle = tmp_path / "run", tmp_path / "run" / "queue" / "epoch-3"

    def listen(event):
        if isinstance(event, StepDone) and not obstacle.exists():
            obstacle.write_text("in the way")

    with pytest.raises(mr.RunError, match=r"^sampling failed: .*cannot write bulk 0 of epoch 3 .*--resume") as raised:
        mr.run(DATASET, out=out, scheduler=scheduler, emit=listen, **JOB)
    assert raised.value.exit_code == 3
    assert not family()[0]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of half a megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_ends_the_run_and_what_is_stored_can_be_read(small_disk, scheduler, tmp_path):
    job = {**JOB, "queue": {**JOB["queue"], "keep": "all", "location": str(small_disk / "queue")}}
    with pytest.raises(
        mr.RunError, match=r"^sampling failed: .*cannot write bulk \d+ of epoch \d.*No space left.*free space"
    ):
        mr.run(DATASET, out=tmp_path / "run", scheduler=scheduler, **job)
    assert not family()[0]
    stored = [m.check() for m in mr.open_queue(small_disk / "queue")]
    assert len(stored) > 20
    assert [(m.epoch, m.index) for m in stored[:5]] == [(0, i) for i in range(5)]
