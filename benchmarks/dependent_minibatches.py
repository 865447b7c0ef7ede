"""Accuracy and rows of dependent minibatches (`sampler.batch_dependency`) beside independent ones.

    python benchmarks/dependent_minibatches.py --graphs amazon_computers,coauthor_cs --seeds 5

GraphSAGE on files of ``--data``; 10 % of the nodes train, 20 % validate, the rest test, drawn anew for each seed.
Features are 128 random combinations of those of the file, rows of equal length, so that a run takes seconds. Rows: the
distinct nodes a minibatch, when those of so many consecutive ones are fetched at once (seed 0).
"""

import argparse
import dataclasses
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import millrace as mr
from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.storage.features import ArrayFeatures

FANOUT, BATCH, WIDTH, TOGETHER, EPOCHS = (10, 5), 64, 128, (1, 16), {"amazon_computers": 30, "coauthor_cs": 16}
DEPENDENCY = (1, 4, 16)


def opened(path: Path, seed: int) -> Any:
    """A file's dataset with narrow features."""
    dataset = mr.open_dataset(path, split="fraction:0.1,0.2", seed=seed)
    x = np.asarray(dataset.features.gather(np.arange(dataset.num_nodes)), np.float32)
    x = x @ np.random.default_rng(0).standard_normal((x.shape[1], WIDTH)).astype(np.float32)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9) / WIDTH**0.5
    return dataclasses.replace(dataset, features=ArrayFeatures(x))


def rows(dataset: Any, sampler: Any) -> dict[int, float]:
    """Distinct nodes a minibatch, by the number of minibatches that are fetched at once; of four epochs."""
    plan = SeedPlan(np.sort(dataset.split.train), BATCH, max(TOGETHER), 3)
    bulks = [(epoch, i) for epoch in range(4) for i in range(plan.num_minibatches // max(TOGETHER))]
    nodes = [m.nodes for at in bulks for m in sampler.sample(dataset.graph, plan.request(*at), cpu).minibatches]
    unions = {u: [len(np.unique(np.concatenate(nodes[i : i + u]))) for i in range(0, len(nodes), u)] for u in TOGETHER}
    return {u: sum(counts) / len(nodes) for u, counts in unions.items()}


def main() -> None:
    """Measure and print, a graph after the other."""
    parser = argparse.ArgumentParser(description="Accuracy and rows by sampler.batch_dependency.")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("MILLRACE_DATA", beside)))
    parser.add_argument("--graphs", type=lambda s: s.split(","), default=list(EPOCHS))
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    print(f"{'graph':<18}{'sampler':<10}{'k':>3}{'test accuracy, %':>18}{'of k = 1':>16}{'rows of 1, 16':>16}")
    for graph in args.graphs:
        datasets = [opened(args.data / f"{graph}.npz", seed) for seed in range(args.seeds)]
        for kind in (mr.NeighborSampler, mr.LaborSampler):
            found: dict[int, np.ndarray[Any, Any]] = {}
            for k in DEPENDENCY:
                sampler, runs = kind(FANOUT, batch_dependency=k), []
                for seed, dataset in enumerate(datasets):
                    with tempfile.TemporaryDirectory() as out:
                        result = mr.run(
                            dataset, system=mr.bulk(sampler), model="sage", hidden=64, layers=2, dropout=0.5, lr=0.005,
                            batch_size=BATCH, epochs=EPOCHS[graph], config={"train": {"evaluate_every": 5}}, seed=seed,
                            threads=1, out=f"{out}/run", verbose=False,
                        )  # fmt: skip
                    assert result.test_accuracy is not None
                    runs.append(100 * result.test_accuracy)
                found[k] = np.array(runs)
                beyond = found[k] - found[1]
                error = beyond.std(ddof=1) / len(beyond) ** 0.5 if len(beyond) > 1 else 0.0
                deviation = found[k].std(ddof=1) if len(beyond) > 1 else 0.0
                counts = " ".join(f"{n:,.0f}" for n in rows(datasets[0], sampler).values())
                cells = f"{found[k].mean():.2f} +- {deviation:.2f}".rjust(18)
                cells += f"{beyond.mean():+.2f} +- {error:.2f}".rjust(16)
                print(f"{graph:<18}{sampler.name:<10}{k:>3}{cells}{counts:>16}", flush=True)


if __name__ == "__main__":
    main()
