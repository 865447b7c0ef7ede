"""Bound on two ranks of one thread that share a machine: minibatches of their own beside cooperative ones.

    python benchmarks/cooperative.py --cache CACHE --json cooperative.json

Task: that of `epoch.py` (SAGE-256 x 3, fanout 15, 10, 5), 1024 seeds a step. Independent ranks sample 512 seeds each.
Cooperative ranks sample the step's 1024 seeds once and share out the rows of every layer; each then needs rows of a
layer that the other has computed, and returns their gradients.

Measured in processor seconds of one thread, in turns: training on one minibatch of 1024 seeds, on two of 512, and
moving rows of 256 numbers through shared memory. Counted: what each way samples, reads and multiplies, the distinct
rows that the other rank has, and how unevenly the edges fall. From these follows the best that each way can do, without
any wait:

    one process of two threads       C / 2                       C: processor seconds of 1024 seeds
    two ranks, independent           H / 2                       H: of two times 512
    two ranks, cooperative, copies   u C / 2 + moved rows        u: edges of the busier rank over the mean
    two ranks, cooperative, in place u C / 2                     every layer's rows in memory that both have mapped
"""

import argparse
import json
import mmap
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from epoch import interval
from epoch_data import training_data
from graphs import RECIPES, stored

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from train_millrace import Bare, dataset, warm_up
from train_task import BATCH, CLASSES, FEATURES, HIDDEN, Parts, Task

import millrace as mr
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.kernels.sampling.cpu import backend as cpu

WIDTHS = (FEATURES, HIDDEN, HIDDEN, CLASSES)
REPEATS = 5


class ProcessorParts(Parts):
    """Processor seconds by part."""

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """See `Parts.measure`."""
        start = time.process_time()
        yield
        self.seconds[name] += time.process_time() - start


def work(minibatches: list[mr.MiniBatch], steps: int) -> dict[str, float]:
    """Counts of one step of 1024 seeds, in millions."""
    blocks = [m.blocks for m in minibatches]
    products = sum(2 * b.num_dst * 2 * i * o for bs in blocks for b, i, o in zip(bs, WIDTHS, WIDTHS[1:]))
    return {
        "sampled edges": sum(m.num_edges for m in minibatches) / steps / 1e6,
        "distinct input rows": sum(len(m.nodes) for m in minibatches) / steps / 1e6,
        "rows computed": sum(b.num_dst for bs in blocks for b in bs) / steps / 1e6,
        "numbers aggregated": sum(b.num_edges * i for bs in blocks for b, i in zip(bs, WIDTHS)) / steps / 1e6,
        "flops of products, forward": products / steps / 1e6,
    }


def exchange(minibatch: mr.MiniBatch) -> tuple[list[int], float]:
    """Rows of each layer's input, the features' first, that a rank needs and the other has, over both ranks; and the
    edges of the busier rank over the mean, if layers are done in step.

    Every other node of the minibatch, in its order, is a rank's: rows of one hop are shared out evenly.
    """
    remote, busy, total = [], 0, 0
    for b in minibatch.blocks:
        owner = np.arange(b.num_src) % 2
        of_edge = np.repeat(owner[: b.num_dst], np.diff(b.indptr))
        edges = [int((of_edge == rank).sum()) for rank in (0, 1)]
        busy, total = busy + max(edges), total + sum(edges)
        needed = 0
        for rank in (0, 1):
            sources = np.unique(b.indices[of_edge == rank])
            needed += int((owner[sources] != rank).sum())
        remote.append(needed)
    return remote, 2 * busy / total


def moving_s(rows: int, width: int) -> float:
    """Processor seconds of moving that many rows through shared memory: written by one rank, gathered by the other into
    memory of its own. The best of several."""
    shared = torch.frombuffer(mmap.mmap(-1, rows * width * 4), dtype=torch.float32).view(rows, width)
    own, there = torch.rand(rows, width), torch.empty(rows, width)
    order = torch.from_numpy(np.random.default_rng(0).permutation(rows))
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        shared.copy_(own)
        torch.index_select(shared, 0, order, out=there)
        best = min(best, time.process_time() - start)
    return best


def measure(task: Task, pairs: int) -> dict[str, Any]:
    """Everything, in this process."""
    torch.set_num_threads(1)
    data = dataset(task)
    warm_up(task, data)
    set_num_threads(1)
    ways = {"halves": 2, "whole": 1}
    bare = {n: Bare(Task(**{**task.__dict__, "options": {"ranks": r}}), data) for n, r in ways.items()}
    for b in bare.values():
        b.ms(Parts())
    parts, seconds = {n: ProcessorParts() for n in bare}, []
    for turn in range(pairs):
        pair = {}
        for n in list(bare)[:: 1 if turn % 2 == 0 else -1]:
            start = time.process_time()
            bare[n].ms(parts[n])
            pair[n] = (time.process_time() - start) / task.minibatches
        seconds.append(pair)
        print("  " + ", ".join(f"{n} {1000 * s:.0f} ms" for n, s in pair.items()), flush=True)
    drawn = {}
    for n, b in bare.items():
        bulks = [b.sampler.sample(data.graph, b.plan.request(0, i), cpu).minibatches for i in range(b.plan.num_bulks)]
        drawn[n] = [m for bulk in bulks for m in bulk]
    steps = task.minibatches
    crossings, uneven = zip(*(exchange(m) for m in drawn["whole"]))
    rows: npt.NDArray[np.float64] = np.mean(crossings, axis=0)
    # Layer outputs go across forward, their gradients backward; features lie where both read them.
    moved = [moving_s(int(n), HIDDEN) for n in rows[1:]]
    whole, halves = (float(np.mean([p[n] for p in seconds])) for n in ("whole", "halves"))
    u = float(np.mean(uneven))
    return {
        "work": {n: work(m, steps) for n, m in drawn.items()},
        "processor_ms": {"whole": 1000 * whole, "halves": 1000 * halves},
        "halves_over_whole": interval(seconds, "halves", "whole"),
        "parts_ms": {n: {k: 1000 * s / pairs / steps for k, s in p.seconds.items()} for n, p in parts.items()},
        "remote_rows": rows.tolist(),
        "unevenness": u,
        "moved_bytes": float(2 * 4 * HIDDEN * rows[1:].sum()),
        "moving_ms": 1000 * 2 * sum(moved),
        "step_ms": {
            "one process of two threads": 1000 * whole / 2,
            "two ranks, independent": 1000 * halves / 2,
            "two ranks, cooperative, rows copied": 1000 * (u * whole / 2 + sum(moved)),
            "two ranks, cooperative, rows in place": 1000 * u * whole / 2,
        },
    }


def show(report: dict[str, Any]) -> None:
    """Print the tables."""
    print("\na step of 1024 seeds, millions        1 x 1024      2 x 512    ratio")
    for k, whole in report["work"]["whole"].items():
        halves = report["work"]["halves"][k]
        print(f"{k:32} {whole:12.3f} {halves:12.3f} {halves / whole:8.3f}")
    for k, whole in report["parts_ms"]["whole"].items():
        halves = report["parts_ms"]["halves"][k]
        print(f"{k + ', ms of a processor':32} {whole:12.1f} {halves:12.1f} {halves / whole:8.3f}")
    r = report["halves_over_whole"]
    print(f"all: {r['ratio']:.3f} times the processor time (95 %: {r['low']:.3f} to {r['high']:.3f})")
    print(
        f"\nrows that the other rank has: {', '.join(f'{n / 1e3:.0f} k' for n in report['remote_rows'])} (features' "
        f"first); {report['moved_bytes'] / 1e6:.0f} MB of outputs and gradients move in {report['moving_ms']:.0f} ms "
        f"of a processor; busier rank {report['unevenness']:.3f} times the mean"
    )
    one = report["step_ms"]["one process of two threads"]
    for name, ms in report["step_ms"].items():
        print(f"{name:40} {ms:8.1f} ms at best, {one / ms:.3f} of one process")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", choices=sorted(RECIPES), default="products")
    parser.add_argument("--minibatches", type=int, default=8, help="of 1024 seeds")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder = stored(args.graph, args.cache.resolve())
    num_nodes = len(np.load(folder / "indptr.npy", mmap_mode="r")) - 1
    training_data(folder, num_nodes)
    minibatches = min(args.minibatches, num_nodes // BATCH)
    report = measure(Task(folder, "sage", 1, minibatches, 1, 0.0, {}), args.pairs)
    show(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
