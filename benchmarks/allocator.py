"""Effect of an allocator's settings on a training step's time and memory: glibc only.

    python benchmarks/allocator.py --json allocator.json

Each row is a process of its own with `GLIBC_TUNABLES` set to some of three settings: transparent huge pages for the
heap (`hugetlb`), no separate mappings for large blocks (`mmap`), and how much free memory the heap keeps at its end
(`trim`, in MiB). The models:

* `sage`: its tensors lie in Millrace's arena, so the allocator should not matter.
* `sage, batch norm`: norms are torch's own, and allocate.
* `own`: layers of a user's, of `torch.nn.Linear` and `neighbourhood.mean`, of the same shapes; everything but the
  aggregation allocates.

The task is that of `epoch.py`. Milliseconds are the median step's; "step" is the largest resident size while training
beyond that of the loaded process, "after" what the process still holds of it once the model and the last minibatch are
gone.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from epoch_data import training_data
from graphs import stored
from peers.train_task import BATCH, CLASSES, FANOUT, FEATURES, HIDDEN, LR, memory, reset_peak, settle
from torch import Tensor, nn

from millrace.stages.assignment import SeedPlan
from millrace.stages.comm.solo import Solo
from millrace.stages.fetch.fetch import Fetch
from millrace.stages.forward_backward import forward_backward
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.memory.arena import Arena, reusing
from millrace.stages.messages import Placement, RankJob
from millrace.stages.models.base import Model
from millrace.stages.models.sage import SAGE
from millrace.stages.neighbourhood.base import Neighbourhood, destinations
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph
from millrace.storage.ledger import Ledger

MINIBATCHES, WARM_UP = 8, 4
SETTINGS: dict[str, dict[str, int]] = {
    "default": {},
    "hugetlb": {"hugetlb": 1},
    "mmap": {"mmap_max": 0},
    "trim": {"trim_threshold": 1 << 34},
    "mmap, trim": {"mmap_max": 0, "trim_threshold": 1 << 34},
    "hugetlb, mmap, trim": {"hugetlb": 1, "mmap_max": 0, "trim_threshold": 1 << 34},
    "hugetlb, mmap, trim 1024": {"hugetlb": 1, "mmap_max": 0, "trim_threshold": 1 << 30},
    "hugetlb, mmap, trim 256": {"hugetlb": 1, "mmap_max": 0, "trim_threshold": 1 << 28},
}
MODELS = ("sage", "sage, batch norm", "own")


class Own(Model):
    """GraphSAGE as a user might write it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_layers = len(FANOUT)
        widths = [FEATURES, *[HIDDEN] * (self.num_layers - 1), CLASSES]
        self.linears = nn.ModuleList(nn.Linear(2 * a, b) for a, b in zip(widths, widths[1:]))

    def layer(self, i: int, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        """See `Model.layer`."""
        out = self.linears[i](torch.cat([neighbourhood.mean(h), destinations(neighbourhood, h)], dim=1))
        return torch.relu(out) if i < self.num_layers - 1 else out


def train(folder: Path, model: str, threads: int) -> dict[str, float]:
    """One row; in a process of its own."""
    torch.set_num_threads(threads)
    graph = Graph(np.load(folder / "indptr.npy"), np.load(folder / "indices.npy"))
    features = ArrayFeatures(np.load(folder / "training" / "features.npy"))
    labels = torch.from_numpy(np.load(folder / "training" / "labels.npy"))
    seeds = np.load(folder / "training" / "seeds.npy")[: MINIBATCHES * BATCH]
    placement = Placement(
        graph,
        features,
        labels,
        torch.from_numpy(graph.in_degree.astype(np.float32)),
        Split(seeds, seeds[:0], seeds[:0]),
    )
    bulk = NeighborSampler(FANOUT).sample(graph, SeedPlan(seeds, BATCH, MINIBATCHES, 0).request(0, 0), cpu)
    config = SAGE(hidden=HIDDEN, dropout=0.0, norm="batch" if "norm" in model else "none")
    module = Own() if model == "own" else config.build(FEATURES, CLASSES)
    optimizer = torch.optim.Adam(module.parameters(), lr=LR)
    arena = Arena()
    job = RankJob(
        seed=0,
        batch_size=BATCH,
        bulk_size=MINIBATCHES,
        epochs=1,
        dtype=torch.float32,
        kernel=cpu,
        group=Solo(),
        ledger=Ledger(),
    )
    gather = Fetch().fetcher(placement, job)
    loaded, seconds = settle(), []
    reset_peak()
    for minibatch in 3 * bulk.minibatches:
        start = time.perf_counter()
        with reusing(arena):
            optimizer.zero_grad(set_to_none=True)
            forward_backward(module, gather.fetch(minibatch), 0, "multiclass", 1 / BATCH)
            optimizer.step()
        arena.step()
        seconds.append(time.perf_counter() - start)
    peak = memory("VmHWM")
    del module, optimizer, arena
    gc.collect()
    return {
        "ms": 1000 * statistics.median(seconds[WARM_UP:]),
        "step_bytes": peak - loaded,
        "after_bytes": memory("VmRSS") - loaded,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="What the parts of an allocator's settings are worth to a training step."
    )
    parser.add_argument("--graph", default="products")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="graphs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = stored(args.graph, args.cache.resolve())
    training_data(folder, len(np.load(folder / "indptr.npy", mmap_mode="r")) - 1)
    if args.row:
        print(json.dumps(train(folder, args.row, args.threads)))
        return
    rows: list[dict[str, Any]] = []
    runs: dict[tuple[str, str], list[dict[str, float]]] = {(m, s): [] for m in MODELS for s in SETTINGS}
    for _ in range(args.rounds):
        for (model, name), found in runs.items():
            tunables = ":".join(f"glibc.malloc.{key}={value}" for key, value in SETTINGS[name].items())
            environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
            environment |= {"GLIBC_TUNABLES": tunables} if tunables else {}
            environment |= {"OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads)}
            command = [
                sys.executable,
                __file__,
                "--graph",
                args.graph,
                "--threads",
                str(args.threads),
                "--cache",
                str(args.cache),
            ]
            done = subprocess.run(
                [*command, "--row", model], env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"{model}, {name} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
            found.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{'model':18} {'settings':26} {'ms a minibatch':>14} {'step MiB':>9} {'after MiB':>9}")
    for (model, name), found in runs.items():
        row = {key: statistics.median(r[key] for r in found) for key in found[0]}
        rows.append({"model": model, "settings": name, **row, "runs": found})
        print(
            f"{model:18} {name:26} {row['ms']:14.1f} {row['step_bytes'] / 2**20:9.0f} {row['after_bytes'] / 2**20:9.0f}"
        )
    if args.json:
        args.json.write_text(json.dumps({"graph": args.graph, "threads": args.threads, "rows": rows}, indent=1) + "\n")
        print(f"written: {args.json}")


if __name__ == "__main__":
    main()
