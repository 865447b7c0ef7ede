"""Training layer after layer on a device: ranks learn, hand on and send what dense matrices say."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from millrace.pipeline.datasets.open import open_dataset
from millrace.pipeline.setup import device_policies
from millrace.pipeline.systems.retexo import retexo
from millrace.stages.fetch.phase_fetch import PhaseRows
from millrace.stages.messages import Fetched, RankJob
from millrace.stages.models.gat import GAT
from millrace.stages.neighbourhood.full_batch import FullBatch
from millrace.tests.contracts import phase_ranks, pretended_device
from millrace.tests.contracts.full_batch import F
from millrace.tests.contracts.phase_ranks import train_phases
from millrace.tests.contracts.phases import Trained, initial, train_ranks
from millrace.tests.contracts.pretended_device import DEVICE, OnDevice
from millrace.tests.contracts.thread_ranks import ThreadGroup
from millrace.tests.stages.models.test_phased import EPOCHS, LEARNING, Trial, check, close, larger, seen

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.usefixtures("one_thread", "on_device", "all_there"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log:RuntimeWarning"),
]


@pytest.fixture
def all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps upload nothing: what they read is there when they begin. Rows travel from device to device."""
    fetch, all_to_all = PhaseRows.fetch, ThreadGroup.all_to_all

    def fetched(self: PhaseRows, work: FullBatch) -> Fetched:
        got = fetch(self, work)
        still: Any = got.neighbourhoods[0]
        read = got.y, got.weight, still.h, still.aggregated, still.names
        assert self._job.device is None or {x.device for x in read if x is not None} == {DEVICE}
        return got

    def exchanged(self: ThreadGroup, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        of_rows = kind in ("features", "activations") and isinstance(parts[0], OnDevice)
        assert {isinstance(x, OnDevice) for x in (*parts, *(into or ()))} == {of_rows}
        return all_to_all(self, parts, kind, into)

    monkeypatch.setattr(PhaseRows, "fetch", fetched)
    monkeypatch.setattr(ThreadGroup, "all_to_all", exchanged)


def there(job: RankJob) -> RankJob:
    return replace(job, device=DEVICE)


def seen_there(t: Trained) -> dict[str, Any]:
    """See `seen`, of a model on the device."""
    assert {p.device for p in t.model.parameters()} == {DEVICE}
    return seen(replace(t, model=copy.deepcopy(t.model).cpu()))


@pytest.mark.parametrize(
    ("trial", "parts"),
    [
        (Trial("gcn", 2, "v3", optimizer="gradient"), 1),
        (Trial("gat", 2, "v3", optimizer="gradient"), 2),
        (Trial("sage", 2, "v1, distilled", "int8", "gradient"), 2),
        (Trial("sage-max", 2, "v3 after an MLP", "fp16", "gradient", inductive=True), 4),
    ],
    ids=str,
)
def test_ranks_learn_what_dense_matrices_learn(trial: Trial, parts: int) -> None:
    """Losses, best epochs, gradients, rows handed on, logits, and bytes, by the formula."""
    case, model = larger(parts, "random"), trial.model()
    dense = trial.dense(model.state_dict())
    train = LEARNING[trial.optimizer]
    ranks = train_ranks(case, trial.system, model.to(DEVICE), EPOCHS, train, seen_there, change=there)
    check(case, trial, dense, ranks)
    for kind, phases in ("features", [0]), ("activations", range(1, len(ranks[0]["phases"]))):
        told = [ranks[0]["phases"][k] for k in phases]
        rows = sum(p["remote_rows"] * p["row_bytes"] * (p["graphs"] if p["phase"] else 1) for p in told)
        assert sum(r["bytes"][kind] for r in ranks) == rows
        assert (rows > 0) == (parts > 1 and (kind == "activations" or not dense.cut.base))


def test_dropout_drops_the_same_on_a_device() -> None:
    """Dropout of rows and of attention, whatever the number of ranks."""
    system, config = retexo("v3"), GAT(hidden=4, layers=2, heads=1, dropout=0.3, attention_dropout=0.4)
    model = initial(config, system, F)
    want = train_ranks(larger(1, "random"), system, model, 1, LEARNING["sgd"], seen)[0]
    for rank in train_ranks(
        larger(2, "random"), system, model.to(DEVICE), 1, LEARNING["sgd"], seen_there, change=there
    ):
        close(rank["losses"], want["losses"], "losses")
        for name, value in rank["model"].state_dict().items():
            close(value, want["model"].state_dict()[name], name)


def rank_there(group: Any, *args: Any) -> Any:
    """`phase_ranks._rank` in a process that has the pretended device."""
    pretended_device.install_for_good()
    return phase_ranks._rank(group, *args)


def test_processes_go_on_from_a_run_of_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of both ranks that lie on disk, a checkpoint, and what gloo carries; a rank was killed in the second
    layer."""
    monkeypatch.setattr(device_policies, "check_gpus", lambda job: None)  # it asks for dask-cuda
    monkeypatch.setattr(phase_ranks, "_rank", rank_there)
    data = open_dataset("sbm:nodes=48,classes=3,degree=6,features=5,train=0.3", seed=1)
    model = {"name": "sage", "layers": 2, "hidden": 6, "dropout": 0.3}
    table = {"ranks": 2, "epochs": 2, "dtype": "float64", "model": model, "checkpoint": {"every_epochs": 1}}
    want = train_phases(data, tmp_path / "whole", table)
    train_phases(data, tmp_path / "parts", table, kill=("epoch", 3))
    for got, whole in zip(train_phases(data, tmp_path / "parts", {**table, "device": "cuda"}) or (), want or ()):
        close([h["train_loss"] for h in got["history"]], [h["train_loss"] for h in whole["history"]], "losses")
        assert got["test_accuracy"] == whole["test_accuracy"]
        assert got["bytes"]["network"]["activations"] == whole["bytes"]["network"]["activations"] > 0
