"""Test accuracy of RETEXO against training end to end: the same backbone, splits, epochs and search, a mean over seeds.

    python benchmarks/retexo_accuracy.py [--data DIR] [--only cora] [--variants e2e,v3] [--json retexo_accuracy.json]

A *cell* is a dataset, a model and a variant. End to end is ``sar`` on one rank, which is plain full-batch training;
``e2e-norm`` is the same with a layer norm between layers, which RETEXO v3 has and the backbone alone has not. Every
cell gets the same search: each pair of the dataset's `lrs` and of `DROPOUTS` is run once with the seed `TUNING_SEED`,
and the pair with the best validation accuracy goes on to the seeds 0, 1, ... Variants that only change how rows travel
(``v3-fp16``, ``v3-int8``, ``v3-nodes``) take the pair that v3 found.

Epochs are those of the whole model end to end, and of each layer for RETEXO. Two layers, Adam, the parameters of the
best validation epoch, one validation every `EVERY` epochs. cora, citeseer and minesweeper use their published split (of
minesweeper the first of ten); the others 20 train and 30 validation nodes of each class, drawn by the seed, the same
ones for all variants.

``--processes`` runs at a time, one thread each. Every finished run is in ``--json`` at once, and is not run again.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import millrace as mr

MODELS = {"gcn": mr.GCN, "sage": mr.GraphSAGE, "gat": mr.GAT}
DROPOUTS = (0.5, 0.3)
TUNING_SEED = 100
EVERY = 5
SHCHUR = "random:20,30"
BAR = 1.5
"""Points below plain training end to end that RETEXO may lie on a homophilous graph."""


@dataclass(frozen=True)
class Setting:
    """Settings of a dataset, the same for all variants."""

    split: str
    epochs: int = 200
    hidden: int = 128
    weight_decay: float = 5e-4
    lrs: tuple[float, ...] = (0.01, 0.003)
    homophilous: bool = True
    read: dict[str, str] = field(default_factory=lambda: {"normalize_features": "row"})


DATASETS = {
    "cora": Setting("public"),
    "citeseer": Setting("public"),
    "minesweeper": Setting("public", lrs=(0.01,), homophilous=False, read={}),
    "amazon_computers": Setting(SHCHUR, read={}),
    "coauthor_cs": Setting(SHCHUR, epochs=60, hidden=64, lrs=(0.01,)),
}


@dataclass(frozen=True)
class Variant:
    """A way to train a model."""

    system: dict[str, Any] | None = None
    """Arguments of `retexo`; None: end to end."""
    norm: str = "none"
    optimizer: str = "adam"
    lrs: tuple[float, ...] = ()
    """In place of the dataset's."""
    tuned_as: str = ""
    """The variant whose pair it takes."""
    only: tuple[str, ...] = ()
    """Datasets it is run on, where they are not all."""

    def build(self) -> mr.System:
        """The training system."""
        return mr.sar() if self.system is None else mr.retexo(**self.system)


VARIANTS = {
    "e2e": Variant(),
    "v3": Variant({}),
    "v3-linear": Variant({"head": "linear"}),
    "distilled": Variant({"head": "linear", "distill": 0.5}),
    "e2e-norm": Variant(norm="layer"),
    "v1": Variant({"mode": "v1"}),
    "fp16": Variant({"head": "linear", "rounding": "fp16"}, tuned_as="v3-linear", only=("cora",)),
    "int8": Variant({"head": "linear", "rounding": "int8"}, tuned_as="v3-linear", only=("cora",)),
    "fedavg": Variant(
        {"head": "linear", "local_steps": 5, "clients": 4}, optimizer="sgd", lrs=(0.5, 0.1), only=("cora",)
    ),
    "sgd": Variant({"head": "linear"}, optimizer="sgd", lrs=(0.5, 0.1), only=("cora",)),
    "nodes": Variant({"head": "linear", "clients": "nodes"}, tuned_as="v3-linear", only=("cora",)),
    "v1-nodes": Variant({"mode": "v1", "clients": "nodes"}, tuned_as="v1", only=("cora",)),
}
END_TO_END = ("e2e", "e2e-norm")
CHOICE = ("v3", "v3-linear", "distilled")
"""Candidates of which the one with the best mean validation accuracy stands for RETEXO, for a dataset and a model."""


@dataclass(frozen=True)
class Work:
    """One run."""

    dataset: str
    model: str
    variant: str
    lr: float
    dropout: float
    seed: int

    @property
    def key(self) -> str:
        """Its key in ``--json``."""
        return f"{self.dataset}/{self.model}/{self.variant}/lr={self.lr}/dropout={self.dropout}/seed={self.seed}"


@lru_cache(maxsize=1)
def opened(folder: Path, name: str, seed: int) -> mr.Dataset:
    """A dataset with the split of this seed."""
    setting = DATASETS[name]
    options = mr.ReadOptions(**setting.read)
    return mr.open_dataset(folder / f"{name}.npz", options=options, split=setting.split, seed=seed)


def roc_auc(model: torch.nn.Module, dataset: mr.Dataset) -> float:
    """Area under the ROC curve of the test nodes of two classes, in percent: the share of pairs in order, ties by
    half."""
    nodes, degree = dataset.split.test, dataset.graph.in_degree.astype(np.float32)
    logits = mr.infer(model, dataset.graph, dataset.features, torch.from_numpy(degree), nodes).numpy()
    score, positive = logits[:, 1] - logits[:, 0], dataset.labels[nodes] == 1
    below = np.sort(score[~positive])
    ranks = np.searchsorted(below, score[positive], "left") + np.searchsorted(below, score[positive], "right")
    return 100 * float(ranks.mean() / 2 / len(below))


def train(work: Work, folder: Path) -> dict[str, Any]:
    """One run. Accuracies in percent; processor seconds, without reading the dataset."""
    setting, variant = DATASETS[work.dataset], VARIANTS[work.variant]
    # Published splits are the same for all seeds.
    dataset = opened(folder, work.dataset, work.seed if setting.split == SHCHUR else 0)
    config = MODELS[work.model](hidden=setting.hidden, layers=2, dropout=work.dropout, norm=variant.norm)
    system, start = variant.build(), time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        result = mr.run(
            dataset,
            system=system,
            model=config,
            out=out,
            seed=work.seed,
            epochs=setting.epochs,
            lr=work.lr,
            weight_decay=setting.weight_decay,
            config={"train": {"evaluate_every": EVERY, "optimizer": variant.optimizer}},
            threads=1,
        )
        cpu_s = time.process_time() - start
        auc = None
        if dataset.num_classes == 2:
            model = system.schedule.build(config, dataset.features.num_features, 2)
            model.load_state_dict(torch.load(out / "model.pt", weights_only=True))
            auc = roc_auc(model, dataset)
    assert result.val_accuracy is not None and result.test_accuracy is not None
    return {
        "val": 100 * result.val_accuracy,
        "test": 100 * result.test_accuracy,
        "auc": auc,
        "best_epoch": result.best_epoch,
        "phases": [{k: p[k] for k in ("name", "best_epoch", "val_accuracy")} for p in result.phases],
        "clients": result.clients,
        "cpu_s": cpu_s,
    }


Cell = tuple[str, str, str]
Runs = dict[str, dict[str, Any]]


def search(cell: Cell) -> list[Work]:
    """The runs that choose the pair of a cell."""
    dataset, model, variant = cell
    tuned = VARIANTS[variant].tuned_as or variant
    return [
        Work(dataset, model, tuned, lr, dropout, TUNING_SEED)
        for lr in VARIANTS[tuned].lrs or DATASETS[dataset].lrs
        for dropout in DROPOUTS
    ]


def wanted(cell: Cell, runs: Runs, seeds: int) -> list[Work]:
    """Runs of a cell that can be started now: its search, or after it the seeds."""
    tuning = search(cell)
    if any(work.key not in runs for work in tuning):
        return tuning
    best = max(tuning, key=lambda work: runs[work.key]["val"])
    return [Work(*cell, best.lr, best.dropout, seed) for seed in range(seeds)]


def train_all(cells: Sequence[Cell], runs: Runs, args: argparse.Namespace) -> None:
    """Run what is lacking in `runs`, the first cells first."""
    under_way: dict[Future[dict[str, Any]], Work] = {}
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        while True:
            busy = {work.key for work in under_way.values()}
            lacking = (
                w for cell in cells for w in wanted(cell, runs, args.seeds) if w.key not in runs and w.key not in busy
            )
            while len(under_way) < args.processes and (work := next(lacking, None)) is not None:
                if work.key not in busy:
                    busy.add(work.key)
                    under_way[pool.submit(train, work, args.data)] = work
            if not under_way:
                return
            for done in wait(under_way, return_when=FIRST_COMPLETED).done:
                work = under_way.pop(done)
                runs[work.key] = done.result()
                print(
                    f"{work.key} val {runs[work.key]['val']:.1f} test "
                    f"{runs[work.key]['test']:.1f} {runs[work.key]['cpu_s']:.1f} s",
                    flush=True,
                )
                save(args, runs)


def summary(cell: Cell, runs: Runs, seeds: int) -> dict[str, Any] | None:
    """Means and standard deviations over the seeds, in points; None while one is lacking."""
    works = wanted(cell, runs, seeds)
    if any(work.key not in runs or work.seed == TUNING_SEED for work in works):
        return None
    mine = [runs[work.key] for work in works]
    columns = {key: np.array([r[key] for r in mine]) for key in ("test", "val", "cpu_s") if mine[0][key] is not None}
    aucs = [r["auc"] for r in mine if r["auc"] is not None]
    phases = [[p["val_accuracy"] for p in r["phases"]] for r in mine]
    return {
        **dict(zip(("dataset", "model", "variant"), cell)),
        "lr": works[0].lr,
        "dropout": works[0].dropout,
        **{key: float(column.mean()) for key, column in columns.items()},
        "std": float(columns["test"].std(ddof=1)) if seeds > 1 else 0.0,
        "auc": float(np.mean(aucs)) if aucs else None,
        "best_epoch": float(np.mean([r["best_epoch"] for r in mine])),
        "val_by_phase": [100 * float(v) for v in np.mean(phases, axis=0)] if phases[0] else [],
        "clients": mine[0]["clients"],
        "runs": [work.key for work in works],
    }


def with_gaps(summaries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`summaries`, those of RETEXO with how far they lie above plain training end to end, and above the better way of
    the two; and which of `CHOICE` validation chooses."""
    means = {(s["dataset"], s["model"], s["variant"]): s["test"] for s in summaries}
    best_of: dict[tuple[str, str], dict[str, Any]] = {}
    for s in summaries:
        cell = s["dataset"], s["model"]
        if s["variant"] in CHOICE and (cell not in best_of or s["val"] > best_of[cell]["val"]):
            best_of[cell] = s
    told = []
    for s in summaries:
        ends = [means.get((s["dataset"], s["model"], name)) for name in END_TO_END]
        if s["variant"] in END_TO_END or ends[0] is None:
            told.append(s)
            continue
        best = max(e for e in ends if e is not None)
        gap = s["test"] - ends[0]
        met = gap >= -BAR if DATASETS[s["dataset"]].homophilous else None
        chosen = best_of.get((s["dataset"], s["model"])) is s
        told.append({**s, "gap_plain": gap, "gap": s["test"] - best, "met": met, "chosen": chosen})
    return told


def save(args: argparse.Namespace, runs: Runs, summaries: Sequence[dict[str, Any]] = ()) -> None:
    """Write what there is so far, whole or not at all."""
    record = {
        "seeds": args.seeds,
        "lrs": {name: setting.lrs for name, setting in DATASETS.items()},
        "dropouts": DROPOUTS,
        "every": EVERY,
        "summaries": list(summaries),
        "runs": runs,
    }
    whole = args.json.with_suffix(".part")
    whole.write_text(json.dumps(record, indent=1) + "\n")
    whole.replace(args.json)


def table(summaries: list[dict[str, Any]]) -> str:
    """Everything but the runs."""
    lines = [
        f"{'dataset':<18}{'model':<6}{'variant':<11}{'lr':>6}{'drop':>5}{'test':>7}"
        f"{'std':>5}{'- e2e':>7}{'- best':>7}{'met':>5}"
        f"{'':>2}{'val':>6}{'auc':>6}{'epoch':>6}{'cpu s':>7}  validation by phase"
    ]
    for s in summaries:
        gaps = f"{s['gap_plain']:>+7.1f}{s['gap']:>+7.1f}" if "gap" in s else f"{'':>14}"
        met = {True: "yes", False: "no"}.get(s.get("met"), "")
        auc = "" if s["auc"] is None else f"{s['auc']:.1f}"
        lines.append(
            f"{s['dataset']:<18}{s['model']:<6}{s['variant']:<11}{s['lr']:>6}{s['dropout']:>5}{s['test']:>7.1f}"
            f"{s['std']:>5.1f}{gaps}{met:>5}"
            f"{'*' if s.get('chosen') else '':>2}{s['val']:>6.1f}{auc:>6}{s['best_epoch']:>6.0f}{s['cpu_s']:>7.1f}"
            f"  {' '.join(f'{v:.1f}' for v in s['val_by_phase'])}"
        )
    if any(s.get("chosen") for s in summaries):
        lines.append(f"* of {', '.join(CHOICE)}, the one with the best validation accuracy")
    for s in summaries:
        if s["clients"]:
            told = ", ".join(
                f"{k} {v['median']:.0f} / {v['max']}" for k, v in s["clients"].items() if isinstance(v, dict)
            )
            lines.append(
                f"{s['dataset']} {s['model']} {s['variant']}: {s['clients']['count']} clients, median / largest: {told}"
            )
    return "\n".join(lines)


def main() -> int:
    """Run the cells and print their table. Returns 1 where what validation chooses lies too far below end to end, else
    0."""
    parser = argparse.ArgumentParser(description="Test accuracy of RETEXO against training end to end.")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("MILLRACE_DATA", beside)), help="folder of the .npz files"
    )
    parser.add_argument("--seeds", type=int, default=5, help="runs per cell, from seed 0")
    parser.add_argument(
        "--only", default="", help="cells whose 'dataset model' holds this text, such as cora or 'cs gat'"
    )
    parser.add_argument(
        "--variants", type=lambda s: s.split(","), default=list(VARIANTS), help="these, separated by commas"
    )
    parser.add_argument("--processes", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument(
        "--json",
        type=Path,
        default=Path("retexo_accuracy.json"),
        help="runs and summaries; what is there is not run again",
    )
    args = parser.parse_args()
    cells = [
        (dataset, model, variant)
        for dataset in DATASETS
        for model in MODELS
        for variant in args.variants
        if variant in VARIANTS and args.only in f"{dataset} {model}" and dataset in (VARIANTS[variant].only or DATASETS)
    ]
    if not cells or args.seeds < 1 or not set(args.variants) <= set(VARIANTS):
        parser.error(
            f"nothing to do; datasets are {', '.join(DATASETS)}, models "
            f"{', '.join(MODELS)}, variants {', '.join(VARIANTS)}"
        )
    absent = sorted({f"{dataset}.npz" for dataset, _, _ in cells if not (args.data / f"{dataset}.npz").exists()})
    if absent:
        parser.error(f"{args.data} lacks {', '.join(absent)}; name the folder with --data or MILLRACE_DATA")
    runs: Runs = json.loads(args.json.read_text())["runs"] if args.json.exists() else {}
    train_all(cells, runs, args)
    summaries = with_gaps([s for cell in cells if (s := summary(cell, runs, args.seeds)) is not None])
    save(args, runs, summaries)
    print(table(summaries))
    return 1 if any(s.get("chosen") and s["met"] is False for s in summaries) else 0


if __name__ == "__main__":
    raise SystemExit(main())
