"""Effects of Grappa's correction and shrinkage on the accuracy of isolated training, with intervals.

    python benchmarks/grappa_weights.py [--data DIR] [--only cora] [--seeds 6] [--json grappa_weights.json] [--table]

Xu, Siebenbrunner, Bindschaedler, arXiv 2602.01872. Their conditions: no halo, the sweep, few epochs a super-epoch (here
two, of 30: 16 ranks meet each other once), 4 and 16 parts, by hash and by METIS, 2 and 5 layers; a homophilous graph
(cora, its words projected onto 128 random directions; accuracy) and a heterophilous one (minesweeper, whose four fifths
of one class ask for ROC AUC). Without a correction, with ``batch``, and with ``batch`` shrunk. Half of the nodes train,
a quarter tests, drawn by the seed. GraphSAGE of width 32, dropout 0.2, fanout 10, Adam, learning rate 0.01, five or six
steps an epoch; the last parameters are tested. All of this, but not the number of seeds, was fixed before any
accuracy was looked at.

Ranks have the same parameters at all times, so one process trains for all of them: the nodes and edges that each rank
sees are copied, the copies are one graph of separate pieces, and the weights of seeds come from the product's
`CoverageCorrected`. `tests/benchmarks/test_grappa_weights.py` holds it against runs of as many ranks. A minibatch is
drawn among the seeds of all ranks, so a rank's share varies.

Printed for each cell: mean and standard deviation over seeds without a correction, then for each correction the
standard deviation, and points beside no correction, seed by seed, as the mean and half of Student's interval of 95 %;
then those of the means over a graph's cells. Every run is in ``--json`` at once, and is not run again.
"""

import argparse
import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata
from torch.nn import functional as F

import millrace as mr
from millrace.benchmarks.grappa_accuracy import gap
from millrace.stages.partition.registry import partitioner
from millrace.stages.placement.chunk_schedule import ChunkSchedule
from millrace.stages.reduce.corrected import CoverageCorrected
from millrace.storage.dataset import Dataset
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph

IdArray = npt.NDArray[np.int64]
GRAPHS = {"cora": 256, "minesweeper": 1024}
"""Seeds of a step, over all ranks."""
AUC = ("minesweeper",)
SPLIT, COLUMNS = "fraction:0.5,0.25", 128
EPOCHS, EVERY, FANOUT, HIDDEN, DROPOUT, LR, DECAY = 30, 2, 10, 32, 0.2, 0.01, 5e-4
WAYS: dict[str, CoverageCorrected | None] = {
    "none": None,
    "batch": CoverageCorrected(),
    "shrunk": CoverageCorrected(shrink="empirical"),
}


@dataclass(frozen=True)
class Cell:
    """Parts, how they are cut, and layers."""

    ranks: int
    method: str
    layers: int

    def __str__(self) -> str:
        return f"{self.ranks} {self.method}/{self.layers} layers"


CELLS = [Cell(*found) for found in product((4, 16), ("hash", "metis-work"), (2, 5))]


@dataclass(frozen=True)
class Amount:
    """Sizes of a training: seeds a step, fanout, epochs."""

    batch: int
    fanout: int = FANOUT
    epochs: int = EPOCHS


@dataclass(frozen=True)
class Seen:
    """Graph that all ranks see in a super-epoch, of copies of nodes; those of rank p begin at ``first[p]``."""

    graph: Graph
    nodes: IdArray
    """[n], the node that each is a copy of."""
    first: IdArray
    """[P + 1]."""
    base: npt.NDArray[np.bool_]
    """[n], of a rank's own chunk, where its seeds are."""
    coverage: npt.NDArray[np.float64]
    """[n], share of in-edges that the rank sees; 1 for a node without any."""

    @classmethod
    def during(cls, graph: Graph, part: npt.NDArray[np.int32], schedule: ChunkSchedule, super_epoch: int) -> "Seen":
        """Build it for a super-epoch; `part` is the chunk of each node. Self loops do not count for coverage."""
        src, dst = graph.indices.astype(np.int64), np.repeat(np.arange(graph.num_nodes), graph.in_degree)
        edges, nodes, base, first = [], [], [], [0]
        for rank in range(schedule.ranks):
            chunks = (*schedule.base(rank, super_epoch), *schedule.variable(rank, super_epoch))
            there = np.isin(part, chunks)
            ids = np.flatnonzero(there)
            copy = np.full(graph.num_nodes, -1)
            copy[ids] = first[-1] + np.arange(len(ids))
            kept = there[src] & there[dst]
            edges.append((copy[src[kept]], copy[dst[kept]]))
            nodes.append(ids)
            base.append(part[ids] == rank)
            first.append(first[-1] + len(ids))
        of, (u, v) = np.concatenate(nodes), (np.concatenate(ends) for ends in zip(*edges))
        seen = np.bincount(v[u != v], minlength=len(of))
        whole = np.bincount(dst[src != dst], minlength=graph.num_nodes)[of]
        coverage = np.divide(seen, whole, out=np.ones(len(of)), where=whole > 0)
        return cls(mr.from_edges(u, v, len(of)), of, np.array(first), np.concatenate(base), coverage)

    def dataset(self, whole: Dataset, rows: npt.NDArray[Any]) -> Dataset:
        """The copies as data, whose train nodes are the seeds of all ranks."""
        train = np.zeros(whole.num_nodes, bool)
        train[whole.split.train] = True
        seeds, none = np.flatnonzero(self.base & train[self.nodes]), np.empty(0, np.int64)
        split = mr.Split(seeds, none, none)
        features, labels = ArrayFeatures(rows[self.nodes]), whole.labels[self.nodes]
        return Dataset(whole.name, self.graph, features, labels, split, whole.num_classes, whole.task)


class Together:
    """The group of all ranks, in turns: sums are known once each has said its share."""

    def __init__(self) -> None:
        self.shares: list[torch.Tensor] = []
        self.done = False

    def all_reduce(self, x: torch.Tensor, kind: str) -> None:
        """The sum over ranks, once it is known."""
        if self.done:
            x.copy_(torch.stack(self.shares).sum(0))
        else:
            self.shares.append(x.clone())


def weights(way: str, coverage: list[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    """The weight of each seed of each rank, and what their sum is divided by, from float64 coverages."""
    rule = WAYS[way]
    if rule is None:
        return [torch.ones_like(c) for c in coverage], float(sum(len(c) for c in coverage))
    group: Any = Together()
    for _ in range(2):
        found = [rule.weigh(c, group) for c in coverage]
        group.done = True
    return [w for w, _ in found], sum(count for _, count in found)


def train(whole: Dataset, model: torch.nn.Module, cell: Cell, way: str, seed: int, amount: Amount) -> None:
    """Train a model as isolated ranks do."""
    part = partitioner(cell.method).assign(whole.graph, cell.ranks, seed).part(np.arange(whole.num_nodes))
    rows, schedule = whole.features.gather(np.arange(whole.num_nodes)), ChunkSchedule(seed, cell.ranks)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, weight_decay=DECAY)
    sampled = {"fanout": [amount.fanout] * cell.layers, "batch_size": amount.batch, "epochs": 1}
    for epoch in range(amount.epochs):
        seen = Seen.during(whole.graph, part, schedule, epoch // EVERY)
        for minibatch in mr.minibatches(seen.dataset(whole, rows), seed=1000 * seed + epoch, **sampled):
            rank = np.searchsorted(seen.first, minibatch.seeds, "right") - 1
            at = [np.flatnonzero(rank == p) for p in range(cell.ranks)]
            of_rank, count = weights(way, [torch.from_numpy(seen.coverage[minibatch.seeds[i]]) for i in at])
            optimizer.zero_grad()
            losses = F.cross_entropy(model(minibatch.neighbourhoods, minibatch.h), minibatch.y, reduction="none")
            weight = torch.cat(of_rank).to(losses.dtype)
            ((weight * losses[torch.from_numpy(np.concatenate(at))]).sum() / count).backward()
            optimizer.step()


def projected(whole: Dataset) -> Dataset:
    """The data with at most `COLUMNS` columns, each a random direction of all."""
    rows = whole.features.gather(np.arange(whole.num_nodes))
    if rows.shape[1] <= COLUMNS:
        return whole
    directions = np.random.default_rng(0).standard_normal((rows.shape[1], COLUMNS))
    return replace(whole, features=ArrayFeatures((rows @ directions / COLUMNS**0.5).astype(np.float32)))


def figure(graph: str, model: torch.nn.Module, whole: Dataset) -> float:
    """Test accuracy in percent, or the area under the ROC curve."""
    logits, y = mr.infer(model.eval(), whole, nodes="test").numpy(), whole.labels[whole.split.test]
    if graph not in AUC:
        return 100 * float((logits.argmax(1) == y).mean())
    order, positive = rankdata(logits[:, 1] - logits[:, 0]), y == 1
    above = order[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return 100 * float(above / (positive.sum() * (~positive).sum()))


def effects(runs: Mapping[str, float], graph: str, seeds: range) -> list[dict[str, Any]]:
    """Print and return how the figures of a graph differ from those without a correction."""
    lines: list[dict[str, Any]] = []
    for way in list(WAYS)[1:]:
        apart: dict[int, list[float]] = {}
        for cell in CELLS:
            key = f"{graph}/{cell}"
            held = [s for s in seeds if f"{key}/{way}/{s}" in runs and f"{key}/none/{s}" in runs]
            tests, plain = ({s: runs[f"{key}/{w}/{s}"] for s in held} for w in (way, "none"))
            if (effect := gap(tests, plain)) is not None:
                none, stds = statistics.mean(plain.values()), [statistics.stdev(w.values()) for w in (plain, tests)]
                lines.append({"cell": key, "way": way, "seeds": len(held), "none": none, "stds": stds, **effect})
                for s in held:
                    apart.setdefault(s, []).append(tests[s] - plain[s])
        means = {s: statistics.mean(found) for s, found in apart.items() if len(found) == len(CELLS)}
        if (over := gap(means, dict.fromkeys(means, 0.0))) is not None:
            mine = [line for line in lines if line["way"] == way]
            none, stds = statistics.mean(line["none"] for line in mine), zip(*(line["stds"] for line in mine))
            all_stds = [statistics.mean(found) for found in stds]
            lines.append(
                {"cell": f"{graph}/all", "way": way, "seeds": len(means), "none": none, "stds": all_stds, **over}
            )
    for line in lines:
        print(
            f"{line['cell']:34}{line['seeds']:3}{line['none']:7.1f}{line['stds'][0]:5.1f}  {line['way']:7}"
            f"{line['stds'][1]:5.1f}{line['mean']:+7.2f} +- {line['half']:.2f}"
        )
    return lines


def main() -> int:
    """Train what is lacking, and print the effects."""
    parser = argparse.ArgumentParser(description="Effects of Grappa's correction and shrinkage on accuracy.")
    folder = Path(os.environ.get("MILLRACE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=folder, help="folder of the .npz files")
    parser.add_argument("--only", choices=GRAPHS)
    parser.add_argument("--seeds", type=lambda n: range(int(n)), default=range(6), help="runs of each cell")
    parser.add_argument("--json", type=Path, default=Path("grappa_weights.json"), help="what is there is not run again")
    parser.add_argument("--table", action="store_true", help="run nothing, and print what is there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs: dict[str, float] = json.loads(args.json.read_text())["runs"] if args.json.exists() else {}
    names = [args.only] if args.only else list(GRAPHS)
    for seed, graph in product(() if args.table else args.seeds, names):
        whole = projected(mr.open_dataset(args.data / f"{graph}.npz", split=SPLIT, seed=seed))
        for cell, way in product(CELLS, WAYS):
            key = f"{graph}/{cell}/{way}/{seed}"
            if key not in runs:
                torch.manual_seed(seed)
                built = mr.GraphSAGE(hidden=HIDDEN, layers=cell.layers, dropout=DROPOUT)
                model = built.build(whole.features.num_features, whole.num_classes)
                train(whole, model, cell, way, seed, Amount(GRAPHS[graph]))
                runs[key] = figure(graph, model, whole)
                args.json.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
        print(f"{graph}, seed {seed}: done", flush=True)
    found = [line for graph in (names if args.table else GRAPHS) for line in effects(runs, graph, args.seeds)]
    if not args.table:
        args.json.write_text(json.dumps({"runs": runs, "effects": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
