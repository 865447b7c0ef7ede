"""Epochs of a store whose graph and features are mapped beside epochs with both in memory, in pairs that take turns.

    python benchmarks/mapped.py store/ --pairs 8 --every 8

The store is one of `scale.py ingest ... --graph npy`. Each run trains GraphSAGE on every `--every`th train node for two
epochs, without validation; the faster epoch counts. A first pair, which is not counted, brings the files' pages into
memory. Printed are the ratio of mapped to memory and its 95 % interval, of seconds and of processor seconds, which
include the opening of the store.
"""

import argparse
import math
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

import millrace as mr

T95 = (0.0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Quantiles of Student's t by degrees of freedom."""


def epoch(store: Path, place: Literal["memory", "mapped"], every: int) -> tuple[float, float]:
    """Seconds of the faster epoch of a run, and processor seconds of the run."""
    start = time.process_time()
    data = mr.open_dataset(store, features=place, graph=place)
    none = np.empty(0, np.int64)
    data = replace(data, split=mr.Split(data.split.train[::every], none, none))
    job = {"fanout": [15, 10, 5], "hidden": 128, "batch_size": 1024, "epochs": 2, "train": {"evaluate_every": 0}}
    with tempfile.TemporaryDirectory() as folder:
        result = mr.run(data, out=Path(folder) / "run", verbose=False, **job)
    return min(result.seconds["per_epoch"]), time.process_time() - start


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--pairs", type=int, default=8, choices=range(2, len(T95) + 1))
    parser.add_argument("--every", type=int, default=8)
    args = parser.parse_args()
    logs: list[list[float]] = [[], []]
    for i in range(-1, args.pairs):
        order: tuple[Literal["memory", "mapped"], ...] = ("memory", "mapped") if i % 2 else ("mapped", "memory")
        found = {place: epoch(args.store, place, args.every) for place in order}
        print(", ".join(f"{place} {a:.2f} s, {b:.2f} processor s" for place, (a, b) in found.items()), flush=True)
        for log, mapped, memory in zip(logs if i >= 0 else (), found["mapped"], found["memory"]):
            log.append(math.log(mapped / memory))
    for name, log in zip(("seconds", "processor seconds"), logs):
        mean, half = statistics.mean(log), T95[len(log) - 1] * statistics.stdev(log) / math.sqrt(len(log))
        low, high = (math.exp(mean + sign * half) for sign in (-1, 1))
        print(f"mapped over memory, {name}: {math.exp(mean):.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
