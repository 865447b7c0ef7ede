"""Sampling or epochs of a store whose graph and features are mapped beside the same in memory, in turns.

    python benchmarks/mapped.py store/ --pairs 8 --every 8
    python benchmarks/mapped.py store/ --what sampling --pairs 10

The store is one of `scale.py ingest ... --graph npy`. ``--what epoch``: each run trains GraphSAGE on every `--every`th
train node for two epochs, without validation; the faster epoch counts. ``--what sampling``: each turn samples all
minibatches of these nodes (1,024 seeds, fanout 15, 10, 5) on one thread, from two datasets that stay open. A first
pair, which is not counted, brings the files' pages into memory. Printed are the ratio of mapped to memory and its 95 %
interval, of seconds and of processor seconds; those of epochs include the opening of the store.
"""

import argparse
import math
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

import millrace as mr

Place = Literal["memory", "mapped"]
FANOUT, BATCH_SIZE = [15, 10, 5], 1024
T95 = (0.0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Quantiles of Student's t by degrees of freedom."""


def opened(store: Path, place: Place, every: int) -> mr.Dataset:
    """The dataset with every so many of its train nodes."""
    data, none = mr.open_dataset(store, features=place, graph=place), np.empty(0, np.int64)
    return replace(data, split=mr.Split(data.split.train[::every], none, none))


def epoch(store: Path, place: Place, every: int) -> tuple[float, float]:
    """Seconds of the faster epoch of a run, and processor seconds of the run."""
    start, job = time.process_time(), {"fanout": FANOUT, "hidden": 128, "batch_size": BATCH_SIZE, "epochs": 2}
    data = opened(store, place, every)
    with tempfile.TemporaryDirectory() as folder:
        result = mr.run(data, out=Path(folder) / "run", verbose=False, train={"evaluate_every": 0}, **job)
    return min(result.seconds["per_epoch"]), time.process_time() - start


def sampling(data: mr.Dataset, turn: int) -> tuple[float, float]:
    """Seconds and processor seconds of sampling once around the train nodes."""
    start = time.perf_counter(), time.process_time()
    sampler, options = mr.NeighborSampler(FANOUT), {"batch_size": BATCH_SIZE, "bulk_size": 8, "threads": 1}
    for _ in mr.sample_minibatches(data, sampler, data.split.train, seed=turn, **options):
        pass
    return time.perf_counter() - start[0], time.process_time() - start[1]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--what", choices=["epoch", "sampling"], default="epoch")
    parser.add_argument("--pairs", type=int, default=8, choices=range(2, len(T95) + 1))
    parser.add_argument("--every", type=int, default=8)
    args = parser.parse_args()
    logs: list[list[float]] = [[], []]
    of = {place: opened(args.store, place, args.every) for place in get_args(Place)} if args.what == "sampling" else {}
    # Sampling of a mapped graph touches pages of its own in each turn: two turns until most are mapped.
    for i in range(-2 if of else -1, args.pairs):
        order: tuple[Place, ...] = ("memory", "mapped") if i % 2 else ("mapped", "memory")
        found = {p: sampling(of[p], i + 2) if of else epoch(args.store, p, args.every) for p in order}
        print(", ".join(f"{place} {a:.3f} s, {b:.3f} processor s" for place, (a, b) in found.items()), flush=True)
        for log, mapped, memory in zip(logs if i >= 0 else (), found["mapped"], found["memory"]):
            log.append(math.log(mapped / memory))
    for name, log in zip(("seconds", "processor seconds"), logs):
        mean, half = statistics.mean(log), T95[len(log) - 1] * statistics.stdev(log) / math.sqrt(len(log))
        low, high = (math.exp(mean + sign * half) for sign in (-1, 1))
        print(f"{args.what}, mapped over memory, {name}: {math.exp(mean):.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
