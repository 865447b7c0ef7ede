"""Uniform neighbour sampling beside plain loops over the memory that it must touch.

    python benchmarks/sampling_loops.py --graph products --threads 1,2

The loops read, for the edges of a bulk drawn before, the offsets of each expanded row, the source of each drawn edge,
and each source's entry in a table of all nodes, where its number in the minibatch is found or written. They draw no
number, check nothing, know the rows beforehand, and fetch nothing ahead; the sampler does all four. Threads take
minibatches, each with a table of its own. `numpy.take` of as many random elements of the graph's indices is set beside
them.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
from graphs import RECIPES, load, stored
from peers.train_task import FANOUT

from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.graph import Graph

BATCH, BULK = 1024, 64
PARTS = "offsets of rows", "sources of edges", "numbers of nodes"


@numba.njit(nogil=True)
def _offsets(indptr: Any, rows: Any) -> int:
    total = 0
    for row in rows:
        total += indptr[row + 1] - indptr[row]
    return total


@numba.njit(nogil=True)
def _sources(indices: Any, positions: Any, out: Any) -> None:
    for i in range(len(positions)):
        out[i] = indices[positions[i]]


@numba.njit(nogil=True)
def _numbers(table: Any, seeds: int, ids: Any, nodes: Any, local: Any, stamp: int) -> int:
    n = seeds
    for i in range(len(ids)):
        entry = table[ids[i]]
        if entry >> 32 != stamp:
            entry = (stamp << 32) | n
            table[ids[i]] = entry
            nodes[n] = ids[i]
            n += 1
        local[i] = entry & 0xFFFFFFFF
    return n


def _ms(calls: Sequence[Callable[[], object]], threads: int) -> float:
    """Milliseconds a call of all of them by threads."""
    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        for done in [pool.submit(lambda part=calls[t::threads]: [call() for call in part]) for t in range(threads)]:
            done.result()
        return 1000 * (time.perf_counter() - start) / len(calls)


def measure(graph: Graph, threads: int, rounds: int) -> dict[str, float]:
    """Milliseconds a minibatch, medians of rounds in turns: of the sampler, of each loop, and of `take`."""
    set_num_threads(threads)
    seeds = np.random.default_rng(0).permutation(graph.num_nodes)[: BATCH * BULK]
    plan = SeedPlan(seeds, BATCH, BULK, seed=0)
    sampler, workspace = NeighborSampler(FANOUT), cpu.Workspace()
    drawn = NeighborSampler(FANOUT, edge_ids=True).sample(graph, plan.request(0, 0), cpu, cpu.Workspace()).minibatches
    ids = [np.concatenate([b.edge_id for b in m.blocks]) for m in drawn]
    rows = [m.nodes[: m.blocks[0].num_dst] for m in drawn]
    sources = [graph.indices[i] for i in ids]
    room = [np.empty(len(i), graph.indices.dtype) for i in ids]
    local, nodes = [np.empty(len(i), np.int32) for i in ids], [np.empty(len(i) + BATCH, np.int64) for i in ids]
    tables = [np.zeros(graph.num_nodes, np.int64) for _ in range(threads)]
    random = np.random.default_rng(1).integers(graph.num_edges, size=max(map(len, ids)))
    stamps = iter(range(1, 1 << 30))

    def sample() -> None:
        sampler.sample(graph, plan.request(0, 0), cpu, workspace)

    loops: dict[str, Callable[[], float]] = {
        PARTS[0]: lambda: _ms([lambda r=r: _offsets(graph.indptr, r) for r in rows], threads),
        PARTS[1]: lambda: _ms([lambda i=i, o=o: _sources(graph.indices, i, o) for i, o in zip(ids, room)], threads),
        PARTS[2]: lambda: _ms(
            [
                lambda k=k, s=s: _numbers(tables[k % threads], BATCH, sources[k], nodes[k], local[k], s)
                for k, s in zip(range(len(drawn)), stamps)
            ],
            threads,
        ),
        "numpy.take": lambda: _ms(
            [lambda o=o: graph.indices.take(random[: len(o)], out=o, mode="clip") for o in room], threads
        ),
    }
    found: dict[str, list[float]] = {name: [] for name in ("sampler", *loops)}
    for turn in range(rounds + 1):
        start = time.perf_counter()
        sample()
        taken = {"sampler": 1000 * (time.perf_counter() - start) / len(drawn)} | {
            name: f() for name, f in loops.items()
        }
        for name, ms in taken.items() if turn else ():
            found[name].append(ms)
    return {name: statistics.median(ms) for name, ms in found.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Neighbour sampling beside plain loops.")
    parser.add_argument("--graph", choices=sorted(RECIPES), default="arxiv")
    parser.add_argument("--threads", type=lambda s: [int(t) for t in s.split(",")], default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="graphs")
    args = parser.parse_args()
    graph = load(stored(args.graph, args.cache))
    for threads in args.threads:
        ms = measure(graph, threads, args.rounds)
        loops = sum(ms[name] for name in PARTS)
        parts = ", ".join(f"{name} {ms[name]:.2f}" for name in PARTS)
        print(
            f"{threads} threads: sampler {ms['sampler']:.2f} ms a minibatch, {ms['sampler'] / loops:.2f} of the loops' "
            f"{loops:.2f} ({parts}); numpy.take {ms['numpy.take']:.2f}"
        )


if __name__ == "__main__":
    main()
