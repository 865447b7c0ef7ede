"""Neighbour sampling written as matrices beside its own kernel: processor time of the same minibatches, one thread.

    python benchmarks/matrix.py
    python benchmarks/matrix.py --graph products-quarter --fanout 10,5

The best of --rounds, in turns. The matrices are `tests/contracts/matrix_neighbor.py`. Processor time of one thread
suffers less from other work than seconds do, but not nothing: caches are shared.
"""

import argparse
import time

import numpy as np

from millrace.benchmarks.graphs import RECIPES, make
from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.tests.contracts.block_sampling import unlike
from millrace.tests.contracts.matrix_neighbor import MatrixNeighbor


def main() -> int:
    """Measure and print. Returns 1 if minibatches differ."""
    parser = argparse.ArgumentParser(description="Neighbour sampling as matrices beside its own kernel.")
    parser.add_argument("--graph", choices=sorted(RECIPES), default="arxiv")
    parser.add_argument("--fanout", type=lambda s: tuple(int(n) for n in s.split(",")), default=(15, 10, 5))
    parser.add_argument("--minibatches", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    threads.set_num_threads(1)
    graph, rng = make(RECIPES[args.graph], 0), np.random.default_rng(0)
    seeds = tuple(rng.permutation(graph.num_nodes)[: args.batch] for _ in range(args.minibatches))
    request = BulkRequest(0, 0, 0, 0, seeds)
    ways = {"kernel": NeighborSampler(args.fanout), "matrices": MatrixNeighbor(args.fanout)}
    wrong = unlike(*(sampler.sample(graph, request, cpu) for sampler in ways.values()))
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(args.rounds):
        for name, sampler in ways.items():
            start = time.thread_time()
            sampler.sample(graph, request, cpu)
            best[name] = min(best[name], time.thread_time() - start)
    print(f"{args.graph}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges; fanout {args.fanout}")
    print(", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in best.items()), end="")
    print(f": {best['matrices'] / best['kernel']:.2f} times; {'DIFFERENT' if wrong else 'the same'} minibatches")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
