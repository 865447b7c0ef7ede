"""Orders of nodes on one machine: seconds and page faults of sampling and gathering from a store that is not in memory.

    python benchmarks/locality.py --graph sbm:nodes=500000,classes=5000,degree=20,features=32 --parts 2000
    python benchmarks/locality.py --graph ../shared/data/ogbn_arxiv.npz --parts 512
    python benchmarks/scale.py relabel store/ --out rcm/ --parts 64 --method metis-streamed --order rcm
    python benchmarks/locality.py store/ rcm/ --each --rounds 5

For each order the graph is renumbered (`mr.reorder`) and stored, graph and features in files that are mapped. A process
of its own opens the store, then gives its pages back to the system and has them dropped from the page cache, so that
every page comes from the disk once more; then it samples minibatches of shuffled train nodes and gathers their rows.
``as it comes`` is the order of the source, ``parts`` many small parts by metis-streamed, ``parts, rcm`` these with
reverse Cuthill-McKee inside. Faults are those for which the disk was read. A fault reads one page: how much the system
would read around it differs from disk to disk (``--read-ahead`` leaves that as it is).

Stores that are there, of one graph in several orders, are measured in turns (``--rounds``), and medians are printed.
``--each`` drops all pages before each minibatch: it finds nothing in memory, as in a store many times larger than that.
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import millrace as mr

RANDOM, DONTNEED = 1, 4
"""MADV_RANDOM and MADV_DONTNEED of Linux."""


def made(data: mr.Dataset, order: str, parts: int) -> mr.Dataset:
    """The dataset in an order."""
    if order == "as it comes":
        return data
    if order.startswith("parts"):
        book = mr.partitioner("metis-streamed").assign(data.graph, parts, seed=0)
        return mr.reorder(data, book, "rcm" if order.endswith("rcm") else "ids")
    return mr.reorder(data, order)


def advise(array: np.ndarray, advice: int) -> None:
    """Tell the system how the pages of a mapped array are used."""
    page = os.sysconf("SC_PAGE_SIZE")
    begin = array.ctypes.data // page * page
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(array.ctypes.data + array.nbytes - begin), advice):
        raise OSError(ctypes.get_errno(), "madvise")


def read_bytes() -> int:
    """Bytes that this process has read from disks."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def measured(store: Path, args: argparse.Namespace) -> dict[str, float]:
    """Seconds and faults of sampling and gathering, in this process."""
    data = mr.open_dataset(store, features="mapped", graph="mapped")
    sampler = mr.NeighborSampler([int(n) for n in args.fanout.split(",")])
    options = {"batch_size": args.batch_size, "bulk_size": 1 if args.each else 8, "threads": 1}
    # Kernels are compiled, and their memory is there.
    warm = next(iter(mr.sample_minibatches(data, sampler, data.split.train, **options)))
    data.features.gather(warm.nodes)
    kept: Any = getattr(data.features, "kept", data.features)
    mapped = [data.graph.indptr, data.graph.indices, kept.rows]

    def drop() -> None:
        for array, name in zip(mapped, ("indptr", "indices", "features")):
            advise(array, DONTNEED)
            if not args.read_ahead:
                advise(array, RANDOM)
            with open(store / f"{name}.npy", "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    for name in ("indptr", "indices", "features"):
        with open(store / f"{name}.npy", "rb") as file:
            os.fsync(file.fileno())
    drop()
    minibatches = mr.sample_minibatches(data, sampler, data.split.train, seed=1, **options)
    found = dict.fromkeys(("sample_s", "sample_faults", "gather_s", "gather_faults", "rows", "minibatches"), 0.0)
    read = read_bytes()

    def step(name: str, work: Any) -> Any:
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        out = work()
        found[f"{name}_s"] += time.perf_counter() - start
        found[f"{name}_faults"] += resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
        return out

    for _ in range(args.minibatches):
        minibatch = step("sample", lambda: next(minibatches, None))
        if minibatch is None:
            break
        step("gather", lambda at=minibatch: data.features.gather(at.nodes))
        if args.each:
            drop()
        found["rows"] += len(minibatch.nodes)
        found["minibatches"] += 1
    return {**found, "read_mib": (read_bytes() - read) / 2**20}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path, nargs="*")
    parser.add_argument("--graph", default="sbm:nodes=500000,classes=5000,degree=20,features=32")
    parser.add_argument("--parts", type=int, default=2000)
    parser.add_argument("--fanout", default="10,5")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--minibatches", type=int, default=16)
    parser.add_argument("--read-ahead", action="store_true")
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="of stores that are there")
    parser.add_argument("--orders", default="as it comes;degree;rcm;parts;parts, rcm")
    parser.add_argument("--folder", type=Path, help="of the stores; a temporary one by default")
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.store is not None:
        print(json.dumps(measured(args.store, args)))
        return
    words = ["--fanout", args.fanout, "--batch-size", str(args.batch_size), "--minibatches", str(args.minibatches)]
    words += ["--read-ahead"] * args.read_ahead + ["--each"] * args.each

    def found(store: Path) -> dict[str, float]:
        command = [sys.executable, __file__, "--store", str(store), *words]
        r = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        return {name: value / r["minibatches"] for name, value in r.items()}

    if args.stores:
        rounds = [[found(store) for store in args.stores] for _ in range(args.rounds)]
        for store, seen in zip(args.stores, zip(*rounds)):
            show(store.name, {name: median(r[name] for r in seen) for name in seen[0]})
            spans = [[1000 * r[name] for r in seen] for name in ("sample_s", "gather_s")]
            sampling, gathering = (f"{min(span):.1f} to {max(span):.1f} ms" for span in spans)
            print(f"  {args.rounds} rounds: sampling {sampling}, gathering {gathering}", flush=True)
        return
    options = mr.ReadOptions() if ":" in args.graph else mr.ReadOptions(direction="undirected")
    data = mr.open_dataset(args.graph, options=options)
    print(f"{data.num_nodes:,} nodes, {data.graph.num_edges:,} edges, {data.num_features} features", flush=True)
    for order in args.orders.split(";"):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            place, start = Path(folder) / "s", time.perf_counter()
            mr.write_dataset(place, made(data, order, args.parts), features_format="npy", graph_format="npy")
            show(f"{order} (made in {time.perf_counter() - start:.1f} s)", found(place))


def show(order: str, r: dict[str, float]) -> None:
    """Print figures of a minibatch."""
    print(
        f"{order}: sampling {1000 * r['sample_s']:.1f} ms and {r['sample_faults']:.0f} faults a minibatch, gathering "
        f"{r['rows']:,.0f} rows {1000 * r['gather_s']:.1f} ms and {r['gather_faults']:.0f} faults, "
        f"{r['read_mib']:.2f} MiB read",
        flush=True,
    )


if __name__ == "__main__":
    main()
