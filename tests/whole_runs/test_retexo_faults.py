"""Layer-by-layer runs of which a rank dies, in whatever phase and also while rows are written: they end as if it had
not."""

import re
import threading
import time

import psutil
import pytest

import millrace as mr
from millrace.pipeline.telemetry.events import EpochDone, Note
from millrace.storage.store.store import open_store
from millrace.tests.contracts.phase_ranks import train_phases
from millrace.tests.contracts.process_ends import command_of

DATASET = "sbm:nodes=300,classes=3,degree=6,features=5,train=0.3"
TOLD_S = 120.0
"""Far less than a silent rank is waited for, far more than a busy machine takes."""


@pytest.mark.parametrize("retexo", [{}, {"mode": "v1", "local_steps": 2}])
def test_a_rank_may_be_killed_at_any_instant(tmp_path, retexo):
    """One run that is killed before its first checkpoint, between two, while rows are written and once they are, and in
    the next phase."""
    table = {
        "ranks": 2, "epochs": 5, "seed": 3, "dtype": "float64",
        "model": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.3},
        "retexo": retexo, "partition": {"method": "hash"}, "checkpoint": {"every_steps": 2},
    }  # fmt: skip
    dataset = mr.open_dataset(DATASET)
    undisturbed = train_phases(dataset, tmp_path / "undisturbed", table)
    run = tmp_path / "run"
    for kill in (("epoch", 1), ("epoch", 3), ("rows", 0), ("after rows", 0), ("epoch", 1)):
        assert train_phases(dataset, run, table, kill) is None
        assert not (run / "model.pt").exists()
    reports = train_phases(dataset, run, table)
    for seen, expected in zip(reports, undisturbed, strict=True):
        assert seen["parameters_sha256"] == expected["parameters_sha256"]
        assert (seen["phases"], seen["test_accuracy"]) == (expected["phases"], expected["test_accuracy"])
        assert [h["train_loss"] for h in seen["history"]] == [h["train_loss"] for h in expected["history"]]
        for kind in ("features", "activations", "gradients"):
            assert seen["bytes"]["network"][kind] == expected["bytes"]["network"][kind], kind
    assert (sum(r["bytes"]["network"]["features"] for r in reports) == 0) == (retexo.get("mode") == "v1")


EPOCHS = 90
"""So many that a phase still runs when the kill in its eighth epoch arrives."""
JOB = {
    "epochs": EPOCHS, "model": {"name": "sage", "hidden": 8, "layers": 2, "dropout": 0.3}, "train": {"lr": 0.02},
    "seed": 3, "threads": 1,
    "dtype": "float64", "ranks": 2, "checkpoint": {"every_steps": 6},
}  # fmt: skip


def ranks_alive():
    """Processes of ranks below this one."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "millrace.pipeline.cluster.rank_main" in command_of(child):
                found.append(child)
        except psutil.Error:
            continue
    return found


class Reaper:
    """Listens to a run and kills a rank of it twice: when rows begin to be written, and in the phase that reads
    them."""

    def __init__(self, folder):
        self.rows = folder / "phases" / "phase-1"
        self.again, self.resumed, self.killed = [], [], []
        self.over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def __call__(self, event):
        if isinstance(event, EpochDone) and len(self.again) == 1 and event.epoch >= EPOCHS + 8:
            self._kill(1)
        elif isinstance(event, Note):
            if "start again" in event.text:
                self.again.append((event.text, time.monotonic()))
            elif found := re.match(r"resumed at phase (\d) of \d, (the end of )?epoch (\d+)", event.text):
                # A step is an epoch here.
                phase, epoch = int(found[1]) - 1, int(found[3])
                self.resumed.append((phase, epoch - phase * EPOCHS - (found[2] is None)))

    def _watch(self):
        while not self.rows.exists() and not self.over.is_set():
            time.sleep(0.0005)
        self._kill(0)

    def _kill(self, number):
        if len(self.killed) == number and (ranks := ranks_alive()):
            ranks[-1].kill()
            self.killed.append((ranks[-1].pid, time.monotonic()))


def test_ranks_start_again_in_every_phase(scheduler, tmp_path):
    undisturbed = train_phases(mr.open_dataset(DATASET, seed=JOB["seed"]), tmp_path / "undisturbed", JOB)
    out = tmp_path / "run"
    reaper = Reaper(out)
    try:
        result = mr.run(
            DATASET,
            scheduler=scheduler,
            out=out,
            emit=reaper,
            config={**JOB, "system": "retexo", "cluster": {"restarts": 2}},
        )
    finally:
        reaper.over.set()
    assert len(reaper.again) == len(reaper.killed) == 2
    for (pid, at), (text, told_at) in zip(reaper.killed, reaper.again):
        assert re.match(
            rf"rank \d \(process {pid}\) was killed by signal 9; all ranks start again from the last checkpoint", text
        )
        assert told_at - at < TOLD_S
    rows, second = reaper.resumed
    assert rows == (0, EPOCHS) or rows[0] == 1
    assert (second[0], second[1] >= 6) == (1, True)
    assert result.parameters_sha256 == undisturbed[0]["parameters_sha256"]
    assert (result.phases, result.test_accuracy) == (undisturbed[0]["phases"], undisturbed[0]["test_accuracy"])
    for kind in ("features", "activations", "gradients"):
        assert result.bytes["network"][kind] == sum(r["bytes"]["network"][kind] for r in undisturbed), kind
    generations = [
        open_store(out / "phases" / f"phase-{k}" / "rank-0001", "phase-rows").meta["generation"] for k in (0, 1)
    ]
    assert generations[0] == 0, "raw features came once"
    assert generations[1] <= 1, "rows came again at most in the life after the one that was to leave them"
    assert not ranks_alive()
