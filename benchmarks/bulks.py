"""Cost of a minibatch where 1, 8 or 64 are sampled at once, on a CPU, by node-wise and layer-wise samplers.

    OMP_NUM_THREADS=1 python benchmarks/bulks.py [--dataset SPEC] [--minibatches 64] [--rounds 3] [--json bulks.json]

One thread; the ways take turns, and figures are medians over rounds of processor milliseconds a minibatch, which other
work on the machine distorts less. A line ``a + b/k`` is fitted to each of the first two by least squares: a is what a
minibatch costs whatever k is, b what a call costs, or a bulk on disk, shared by its k minibatches.

``sample``  the samplers' own classes, in memory: `neighbor` and `labor` with fanout 15, 10, 5, `ladies` and `fastgcn`
            with 512 nodes a layer; 512 seeds
``disk``    these bulks written to a store of samples (a file a bulk) and read back, minibatch by minibatch; files and
            megabytes a minibatch beside it
``rows``    rows of features that a minibatch reads: its own nodes, and the distinct nodes of its bulk divided by k,
            which is what one pass over the file for the whole bulk reads

Minibatches are the same to the bit for every k; that is checked.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import millrace as mr
from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.sample.base import Sampler
from millrace.storage.graph import Graph
from millrace.storage.queue.zarr import ZarrQueue

BULKS = (1, 8, 64)
SEEDS, SIZES, FANOUT = 512, (512, 512, 512), (15, 10, 5)
SAMPLERS: dict[str, Sampler] = {
    "neighbor": mr.NeighborSampler(FANOUT),
    "labor": mr.LaborSampler(FANOUT),
    "ladies": mr.LadiesSampler(SIZES),
    "fastgcn": mr.FastGCNSampler(SIZES),
}


def drawn(sampler: Sampler, graph: Graph, k: int, count: int, workspace: Any) -> list[mr.Bulk]:
    """Bulks of so many minibatches, k in each."""
    nodes = np.random.default_rng(0).permutation(graph.num_nodes)[: count * SEEDS]
    plan = SeedPlan(nodes, SEEDS, k, seed=0)
    return [sampler.sample(graph, plan.request(0, n), cpu, workspace) for n in range(plan.num_bulks)]


def from_disk(bulks: list[mr.Bulk], k: int, count: int, folder: Path) -> int:
    """Write bulks to a store and read each minibatch of it; files of the store."""
    queue = ZarrQueue.create(folder, fingerprint={}, bulk_size=k, max_bytes=1 << 62, keep="all")
    for bulk in bulks:
        queue.put(bulk, timeout_s=1)
    queue.close()
    queue = ZarrQueue.open(folder)
    for index in range(count):
        assert queue.get(0, index, timeout_s=1).index == index
    queue.close()
    return sum(path.is_file() for path in folder.rglob("*"))


def processor_ms(act: Callable[[], Any], count: int) -> tuple[float, Any]:
    """Processor milliseconds of each of `count`, and the result."""
    start = time.process_time()
    result = act()
    return 1000 * (time.process_time() - start) / count, result


def rows_read(bulks: list[mr.Bulk], count: int) -> tuple[float, float]:
    """Rows of features a minibatch: read for each minibatch, and once for each bulk."""
    own = sum(len(m.nodes) for b in bulks for m in b.minibatches)
    together = sum(len(np.unique(np.concatenate([m.nodes for m in b.minibatches]))) for b in bulks)
    return own / count, together / count


def fitted(by_k: dict[int, float]) -> tuple[float, float]:
    """a and b of a + b/k."""
    b, a = np.polyfit([1 / k for k in by_k], list(by_k.values()), 1)
    return float(a), float(b)


def measure(name: str, graph: Graph, count: int, rounds: int) -> dict[str, Any]:
    """All figures of a sampler."""
    sampler, workspaces, seen = SAMPLERS[name], {k: cpu.Workspace() for k in BULKS}, {}
    found: dict[int, dict[str, Any]] = {k: {"sample": [], "disk": []} for k in BULKS}
    for k in BULKS:
        seen[k] = drawn(sampler, graph, k, count, workspaces[k])
        assert sum(len(b.minibatches) for b in seen[k]) == count
    first = [np.concatenate([m.nodes for b in seen[k] for m in b.minibatches]) for k in BULKS]
    assert all(np.array_equal(first[0], other) for other in first), f"{name}: minibatches depend on k"
    for turn in range(rounds):
        for k in BULKS[:: 1 if turn % 2 == 0 else -1]:
            ms, bulks = processor_ms(lambda k=k: drawn(sampler, graph, k, count, workspaces[k]), count)
            found[k]["sample"].append(ms)
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch) / "samples"
                ms, files = processor_ms(lambda k=k, b=bulks, f=folder: from_disk(b, k, count, f), count)
                size = sum(path.stat().st_size for path in folder.rglob("*"))
            found[k]["disk"].append(ms)
            found[k] |= {"files": files / count, "megabytes": size / count / 1e6}
    for k in BULKS:
        own, together = rows_read(seen[k], count)
        medians = {what: statistics.median(found[k][what]) for what in ("sample", "disk")}
        found[k] |= {"rows": own, "rows_of_bulk": together, **medians}
    fits = {what: fitted({k: found[k][what] for k in BULKS}) for what in ("sample", "disk")}
    return {"sampler": name, "bulks": found, "fits": fits}


def show(result: dict[str, Any]) -> None:
    """Print a sampler's table."""
    print(
        f"\n{result['sampler']:10}{'k':>4}{'sample ms':>11}{'disk ms':>9}{'files':>8}{'MB':>7}{'rows':>9}{'by bulk':>9}"
    )
    for k, f in result["bulks"].items():
        print(
            f"{'':10}{k:>4}{f['sample']:>11.2f}{f['disk']:>9.2f}{f['files']:>8.2f}{f['megabytes']:>7.2f}"
            f"{f['rows']:>9,.0f}{f['rows_of_bulk']:>9,.0f}"
        )
    for what, (a, b) in result["fits"].items():
        print(
            f"{'':10}{what}: {a:.2f} ms a minibatch + {b:.2f} ms a {'call' if what == 'sample' else 'bulk'}", flush=True
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="What sampling many minibatches at once amortises on a CPU.")
    parser.add_argument("--dataset", default="rmat:scale=17,edge_factor=32", help="as millrace run takes it")
    parser.add_argument("--samplers", type=lambda s: s.split(","), default=list(SAMPLERS))
    parser.add_argument("--minibatches", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unknown := set(args.samplers) - set(SAMPLERS):
        parser.error(f"unknown samplers {', '.join(sorted(unknown))}; known are {', '.join(SAMPLERS)}")
    set_num_threads(1)
    graph = mr.open_dataset(args.dataset, seed=0).graph
    if args.minibatches < 1 or args.minibatches * SEEDS > graph.num_nodes:
        parser.error(f"--minibatches is {args.minibatches}; the graph has nodes for 1 to {graph.num_nodes // SEEDS}")
    print(f"{args.dataset}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {SEEDS} seeds, one thread")
    results = []
    for name in args.samplers:
        results.append(measure(name, graph, args.minibatches, args.rounds))
        show(results[-1])
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
