"""Samplers other than uniform neighbour sampling, on one thread: milliseconds a minibatch, and LADIES and FastGCN
compared with plain SciPy.

    python benchmarks/layerwise.py --graph products --json layerwise.json

LADIES and FastGCN: 512 seeds, 512 nodes a layer, 3 layers. LABOR-0 and weighted neighbour sampling: 1024 seeds, fanout
15, 10, 5, edge weights uniform in (0, 1]. Ours are drawn 64 at a time by the compiled kernels; SciPy takes a minibatch
at a time (`peers/layerwise_scipy.py`), in two ways: "join", where drawn nodes join the rows as in our blocks (the same
work: 512, 1024 and 1536 rows), and "drawn", where they replace them as in the LADIES authors' code (512 rows a layer).
All share one process, take turns, and drop each minibatch at once; what depends on the graph alone is made before the
clock starts.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from graphs import RECIPES, load, stored
from peers.layerwise_scipy import Layer, LayerwiseScipy

from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.sample.base import Sampler
from millrace.stages.sample.fastgcn import FastGCNSampler
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.graph import Graph
from millrace.storage.minibatch import MiniBatch

SIZES = (512, 512, 512)
FANOUT = (15, 10, 5)
BULK = 64
SLOWER = 8
"""SciPy takes so many times fewer minibatches a round."""


@dataclass(frozen=True, eq=False)
class Engine:
    """One way to sample."""

    name: str
    method: str
    run: Callable[[int], Iterator[tuple[int, int]]]
    """Number of minibatches -> (edges, distinct nodes) of each."""
    minibatches: int
    """Minibatches of a round."""
    ours: bool


def ours(method: str, sampler: Sampler, graph: Graph, batch_size: int, minibatches: int) -> Engine:
    """Millrace through its public classes."""
    nodes = np.random.default_rng(0).permutation(graph.num_nodes)[: minibatches * batch_size]
    workspace = cpu.Workspace()
    epochs = iter(range(1 << 30))

    def run(count: int) -> Iterator[tuple[int, int]]:
        plan = SeedPlan(nodes[: count * batch_size], batch_size, BULK, seed=0)
        epoch = next(epochs)
        for n in range(plan.num_bulks):
            for m in sampler.sample(graph, plan.request(epoch, n), cpu, workspace).minibatches:
                yield _edges(m), len(m.nodes)

    return Engine("millrace", method, run, minibatches, True)


def _edges(m: MiniBatch) -> int:
    return m.blocks[0].num_edges if m.nested else sum(b.num_edges for b in m.blocks)


def scipy(
    method: str, sample: Callable[[Any], list[Layer]], name: str, graph: Graph, batch_size: int, minibatches: int
) -> Engine:
    """The peer, with seeds as ours."""
    nodes = np.random.default_rng(0).permutation(graph.num_nodes)

    def run(count: int) -> Iterator[tuple[int, int]]:
        for i in range(count):
            layers = sample(nodes[i * batch_size : (i + 1) * batch_size])
            yield sum(layer.block.nnz for layer in layers), len(layers[-1].src)

    return Engine(f"scipy, {name}", method, run, minibatches, False)


def check(graph: Graph, dst: np.ndarray, src: np.ndarray, row: np.ndarray, column: np.ndarray) -> None:
    """Prove that a block holds every edge between its rows and columns once, loops aside. Raises ValueError
    otherwise."""
    ends = graph.in_degree[dst]
    at = np.repeat(graph.indptr[dst] - np.concatenate([[0], np.cumsum(ends)[:-1]]), ends) + np.arange(ends.sum())
    of, to = graph.indices[at].astype(np.int64), np.repeat(dst, ends)
    among = np.isin(of, src)
    want = np.sort(to[among] * graph.num_nodes + of[among])
    seen = dst[row] * graph.num_nodes + src[column]
    seen = np.sort(seen[dst[row] != src[column]])
    if not np.array_equal(seen, want):
        raise ValueError(
            f"a block has {len(seen)} edges besides loops; between its rows and columns there are {len(want)}"
        )


def checked(graph: Graph, kind: type, peers: dict[str, list[Layer]]) -> None:
    """Check the first minibatch of ours and of the peers."""
    seeds = np.random.default_rng(0).permutation(graph.num_nodes)[:512]
    plan = SeedPlan(seeds, 512, 1, seed=0)
    for block in kind(SIZES).sample(graph, plan.request(0, 0), cpu, cpu.Workspace()).minibatches[0].blocks:
        src = block.src.astype(np.int64)
        check(
            graph, src[: block.num_dst], src, np.repeat(np.arange(block.num_dst), np.diff(block.indptr)), block.indices
        )
    for layers in peers.values():
        for layer in layers:
            block = layer.block.tocoo()
            check(graph, layer.dst, layer.src, block.row, block.col)
            sums = np.asarray(layer.block.sum(axis=1)).ravel()
            if not np.allclose(sums[sums > 0], 1):
                raise ValueError("a row of the SciPy block does not sum to 1")


def measure(engines: list[Engine], rounds: int) -> list[dict[str, Any]]:
    """Warm the engines up, then let them take turns."""
    seconds: dict[Engine, list[float]] = {e: [] for e in engines}
    counts: dict[Engine, list[tuple[int, int]]] = {}
    for e in engines:
        list(e.run(min(e.minibatches, BULK if e.ours else 2)))
    for turn in range(rounds):
        # Every other round runs backwards, so that nobody always follows the same neighbour.
        for e in engines[:: 1 if turn % 2 == 0 else -1]:
            start = time.perf_counter()
            counts[e] = list(e.run(e.minibatches))
            seconds[e].append(time.perf_counter() - start)
        print(f"  round {turn + 1} of {rounds} done, load average {os.getloadavg()[0]:.1f}", flush=True)
    found = []
    for e in engines:
        ms = sorted(1000 * s / e.minibatches for s in seconds[e])
        edges = statistics.mean(c[0] for c in counts[e])
        found.append(
            {
                "method": e.method,
                "name": e.name,
                "ours": e.ours,
                "minibatches": e.minibatches,
                "ms_median": statistics.median(ms),
                "ms_min": ms[0],
                "ms_max": ms[-1],
                "edges_per_minibatch": edges,
                "nodes_per_minibatch": statistics.mean(c[1] for c in counts[e]),
                "edges_per_s": 1000 * edges / statistics.median(ms),
            }
        )
    return found


def layerwise(graph: Graph, minibatches: int, rounds: int) -> list[dict[str, Any]]:
    """LADIES and FastGCN."""
    minibatches = max(1, min(minibatches, graph.num_nodes // 512))
    peers = {
        "join": LayerwiseScipy(graph.indptr, graph.indices, SIZES, join=True),
        "drawn": LayerwiseScipy(graph.indptr, graph.indices, SIZES, join=False),
    }
    engines = []
    for kind in (LadiesSampler, FastGCNSampler):
        seeds = np.random.default_rng(0).permutation(graph.num_nodes)[:512]
        checked(graph, kind, {name: getattr(peer, kind.name)(seeds) for name, peer in peers.items()})
        engines.append(ours(kind.name, kind(SIZES), graph, 512, minibatches))
        for name, peer in peers.items():
            engines.append(scipy(kind.name, getattr(peer, kind.name), name, graph, 512, max(1, minibatches // SLOWER)))
    return measure(engines, rounds)


def nodewise(graph: Graph, minibatches: int, rounds: int) -> list[dict[str, Any]]:
    """LABOR-0 and weighted neighbour sampling; uniform neighbour sampling beside them."""
    minibatches = max(1, min(minibatches, graph.num_nodes // 1024))
    weight = 1 - np.random.default_rng(1).random(graph.num_edges, np.float32)
    weighted = Graph(graph.indptr, graph.indices, weight)
    engines = [
        ours("labor", LaborSampler(FANOUT), graph, 1024, minibatches),
        ours("neighbor, weighted", NeighborSampler(FANOUT, weighted=True), weighted, 1024, minibatches),
        ours("neighbor", NeighborSampler(FANOUT), graph, 1024, minibatches),
    ]
    return measure(engines, rounds)


def multiples(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ratio of each peer's time for a minibatch to ours; the range pairs the worst of one with the best of the
    other."""
    found = []
    for peer in (r for r in rows if not r["ours"]):
        (own,) = (r for r in rows if r["ours"] and r["method"] == peer["method"])
        found.append(
            {
                "method": peer["method"],
                "peer": peer["name"],
                "multiple": peer["ms_median"] / own["ms_median"],
                "range": [peer["ms_min"] / own["ms_max"], peer["ms_max"] / own["ms_min"]],
            }
        )
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Layer-wise, LABOR and weighted sampling on one thread.")
    parser.add_argument("--graph", choices=sorted(RECIPES), default="arxiv")
    parser.add_argument("--minibatches", type=int, default=192, help="of a round; SciPy takes an eighth of it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="where graphs are kept"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    set_num_threads(1)
    graph = load(stored(args.graph, args.cache.resolve()))
    print(f"graph {args.graph}: {graph.num_nodes} nodes, {graph.num_edges} edges; one thread", flush=True)
    if os.getloadavg()[0] > 0.5:
        print(f"  the load average is {os.getloadavg()[0]:.1f}: other work distorts this")
    load_before = os.getloadavg()
    rows = layerwise(graph, args.minibatches, args.rounds) + nodewise(graph, args.minibatches, args.rounds)
    found = multiples(rows)
    print(
        f"\n{'method':20}{'engine':16}{'ms/minibatch':>13}{'min - max':>18}"
        f"{'k edges':>9}{'k nodes':>9}{'M edges/s':>11}"
    )
    for r in rows:
        spread = f"{r['ms_min']:.2f} - {r['ms_max']:.2f}"
        print(
            f"{r['method']:20}{r['name']:16}{r['ms_median']:>13.2f}{spread:>18}{r['edges_per_minibatch'] / 1e3:>9.1f}"
            f"{r['nodes_per_minibatch'] / 1e3:>9.1f}{r['edges_per_s'] / 1e6:>11.2f}"
        )
    print()
    for m in found:
        print(
            f"{m['method']:9} millrace over {m['peer']:14} {m['multiple']:6.2f}x  "
            f"({m['range'][0]:.2f} - {m['range'][1]:.2f})"
        )
    if args.json:
        machine = {"processor": platform.processor() or platform.machine(), "cpus": os.cpu_count()}
        machine |= {"load_before": load_before, "load_after": os.getloadavg()}
        report = {
            "graph": args.graph,
            "sizes": SIZES,
            "fanout": FANOUT,
            "bulk_size": BULK,
            "rounds": args.rounds,
            "machine": machine,
        }
        args.json.write_text(json.dumps({**report, "engines": rows, "multiples": found}, indent=1) + "\n")
        print(f"written: {args.json}")


if __name__ == "__main__":
    main()
