"""Least cost of a GraphSAGE minibatch on this machine: its matrix products and its bytes, at rates measured here.

    python benchmarks/roofline.py --task '{...}'

A process of `epoch.py`, which says how many threads. The realistic bound takes each matrix product at the best rate
that was seen for that very shape, and moves bytes at the rate of gathering feature rows into a buffer that is reused;
the ideal one takes a square product's rate and a copy's. Nothing overlaps.

Bytes: in each layer forward, every source row is read once and every aggregate written once; backward, the other way
round, but not in the first layer, whose input needs no gradient. The products are those of one matrix a layer on [mean
| self], twice as wide as the layer's input: forward, weights' gradient, and after the first layer input's gradient.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peers.train_task import BATCH, CLASSES, FANOUT, FEATURES, HIDDEN, Task, read
from torch import Tensor

import millrace as mr
from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.sampling.cpu import backend as cpu

SQUARE, COPY_BYTES = 4096, 512 << 20
REPEATS, SHORT_S = 5, 0.02
"""Best of so many; a short one is repeated until so many seconds have passed each time."""


@dataclass(frozen=True)
class Layer:
    """Mean sizes of a block, and the layer's widths."""

    num_src: int
    num_dst: int
    num_edges: int
    width_in: int
    width_out: int


def best_s(fn: Callable[[], Any]) -> float:
    """Seconds of one call, the best of several."""
    fn()
    best, spent = float("inf"), 0.0
    for n in range(1000):
        start = time.perf_counter()
        fn()
        seconds = time.perf_counter() - start
        best, spent = min(best, seconds), spent + seconds
        if n + 1 >= REPEATS and spent > REPEATS * SHORT_S:
            break
    return best


def layers(minibatches: list[mr.MiniBatch]) -> list[Layer]:
    """Input's first, over all minibatches."""
    widths = [FEATURES, *[HIDDEN] * (len(FANOUT) - 1), CLASSES]
    found = []
    for i, (a, b) in enumerate(zip(widths, widths[1:])):
        blocks = [m.blocks[i] for m in minibatches]
        src, dst, edges = (
            round(float(np.mean([getattr(x, n) for x in blocks]))) for n in ("num_src", "num_dst", "num_edges")
        )
        found.append(Layer(src, dst, edges, a, b))
    return found


def products(layer: Layer, first: bool) -> dict[str, tuple[float, float]]:
    """(floating-point operations, best seconds) of each product that training needs."""
    n, k, out = layer.num_dst, 2 * layer.width_in, layer.width_out
    x, g, w = torch.randn(n, k), torch.randn(n, out), torch.randn(out, k)
    wt, y, gw, gwt = w.t().contiguous(), torch.empty(n, out), torch.empty(out, k), torch.empty(k, out)
    ways: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {
        "forward": [(x, w.t(), y), (x, wt, y)],
        "weights": [(g.t(), x, gw), (x.t(), g, gwt)],
    }
    if not first:
        gx = torch.empty(n, k)
        ways["input"] = [(g, w, gx), (g, wt.t(), gx)]
    flops = 2.0 * n * k * out
    return {
        name: (flops, min(best_s(lambda a=a, b=b, c=c: torch.mm(a, b, out=c)) for a, b, c in found))
        for name, found in ways.items()
    }


def moved_bytes(sizes: list[Layer]) -> int:
    """Over all layers, forward and backward."""
    total = 0
    for i, layer in enumerate(sizes):
        total += 4 * (layer.num_src + layer.num_dst) * layer.width_in * (1 if i == 0 else 2)
    return total


def gather_rate(features: Tensor, minibatches: list[mr.MiniBatch]) -> float:
    """Bytes read and written a second."""
    ids = [torch.from_numpy(m.nodes.astype(np.int64)) for m in minibatches]
    out = torch.empty(max(map(len, ids)), features.shape[1])

    def rate(nodes: Tensor) -> float:
        rows = out[: len(nodes)]
        ways: list[Callable[[], Any]] = [
            lambda: torch.index_select(features, 0, nodes, out=rows),
            lambda: np.take(features.numpy(), nodes.numpy(), axis=0, out=rows.numpy(), mode="clip"),
        ]
        return 2 * rows.nbytes / min(map(best_s, ways))

    return float(np.median([rate(nodes) for nodes in ids]))


def copy_rate() -> float:
    """Bytes read and written a second."""
    a, b = torch.zeros(COPY_BYTES, dtype=torch.uint8), torch.zeros(COPY_BYTES, dtype=torch.uint8)
    return 2 * COPY_BYTES / best_s(lambda: b.copy_(a))


def square_rate() -> float:
    """Floating-point operations a second."""
    a, b, c = (torch.randn(SQUARE, SQUARE) for _ in range(3))
    return 2 * SQUARE**3 / best_s(lambda: torch.mm(a, b, out=c))


def measure(task: Task) -> dict[str, Any]:
    """Everything that `epoch.py` prints of the bound. Sizes are means over the task's minibatches."""
    torch.set_num_threads(task.threads)
    graph = mr.Graph(*task.graph())
    plan = SeedPlan(task.seeds(), BATCH, task.minibatches, seed=0)
    minibatches = list(mr.NeighborSampler(FANOUT).sample(graph, plan.request(0, 0), cpu).minibatches)
    sizes = layers(minibatches)
    del graph
    gather = gather_rate(torch.from_numpy(task.data()[0]), minibatches[:4])
    copy, square = copy_rate(), square_rate()
    found = {f"layer {i + 1} {name}": p for i, layer in enumerate(sizes) for name, p in products(layer, i == 0).items()}
    flops, gemm_s, moved = sum(f for f, _ in found.values()), sum(s for _, s in found.values()), moved_bytes(sizes)
    return {
        "layers": [vars(layer) for layer in sizes],
        "gflop": flops / 1e9,
        "moved_bytes": moved,
        "gemm_ms": 1000 * gemm_s,
        "move_ms": 1000 * moved / gather,
        "realistic_ms": 1000 * (gemm_s + moved / gather),
        "ideal_ms": 1000 * (flops / square + moved / copy),
        "gflops": {name: f / s / 1e9 for name, (f, s) in found.items()} | {"square": square / 1e9},
        "gather_gb_per_s": gather / 1e9,
        "copy_gb_per_s": copy / 1e9,
    }


if __name__ == "__main__":
    given, answer = read()
    answer(measure(given))
