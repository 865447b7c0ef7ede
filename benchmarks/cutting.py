"""Cutting a stored graph into parts: memory and time of the process that does it, as the graph grows.

    python benchmarks/cutting.py --json cutting.json

For 1, 2 and 4 times as many edges, in as many more parts, of as many edges each: dealing all rows to their owners
(`millrace.storage.partition.shuffle`), and then writing each part. Memory is without pages of mapped files: that of a
range of rows, and that of a part's edges and of the nodes outside that they come from (``halo``, of the part with
most), which are more in a larger graph. Then what these rates make of 10^12 edges.

The graph is R-MAT, parts are random (``hash``): nobody holds a table of owners. ``records/cutting.json`` holds the
figures of the docs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from millrace.benchmarks.graphs import Recipe, make
from millrace.benchmarks.partitioned_runs import FEATURES, dataset_at
from millrace.storage.dataset_store import open_stored

CUT = """
import json, sys, threading, time
from pathlib import Path
import numpy as np
from millrace.stages.partition.registry import PARTITIONERS
from millrace.stages.partition.stage import write_part
from millrace.storage.dataset_store import open_stored
from millrace.storage.partition.shuffle import ShuffledStore, begin, deal

def own():
    # Pages of mapped files are the system's to take back.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))

def watched(work):
    most, over = [0], threading.Event()
    def look():
        while not over.wait(0.005):
            most[0] = max(most[0], own())
    watcher = threading.Thread(target=look)
    watcher.start()
    start = time.perf_counter()
    out = work()
    took = time.perf_counter() - start
    over.set()
    watcher.join()
    return out, took, most[0] - base

def dealing():
    ranges = begin(dataset, parts, range(parts), folder)
    for k in range(ranges):
        deal(dataset, k, book, folder)
    return ranges

source, out, parts = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
folder, dataset = out / "dealt", open_stored(source)
folder.mkdir(parents=True)
book = PARTITIONERS["hash"]().assign(dataset.graph, parts, 0)
base = own()
book.sizes()
ranges, deal_s, deal_bytes = watched(dealing)
# Nodes of every block of the book, as the nodes outside a part are.
_, book_s, _ = watched(lambda: book.local(np.arange(0, book.num_nodes, 1000)))
counts, part_s, part_bytes = watched(
    lambda: [write_part(out, ShuffledStore(folder).part(part), book, part, {}) for part in range(parts)]
)
halo = max(c.halo for c in counts)
told = {"ranges": ranges, "deal_s": deal_s, "deal_bytes": deal_bytes, "book_s": book_s}
told |= {"part_s": part_s, "part_bytes": part_bytes}
print(json.dumps({**told, "halo": halo}))
"""


def rmat(args: argparse.Namespace, times: int) -> Path:
    """A store of an R-MAT graph, made on first use."""
    nodes = args.nodes * times
    recipe = Recipe(nodes, nodes * args.degree // 2, {})
    path = args.cache / "graphs" / f"cutting-{nodes}-{recipe.num_pairs}"
    return path if path.exists() else dataset_at(path, make(recipe), nodes // 10)


def measure(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Cut three graphs, and print."""
    print(f"{'':>53}{'dealing':>16}{'writing parts':>16}")
    print(
        f"{'nodes':>10}{'edges':>13}{'parts':>7}{'store MiB':>11}{'halo':>12}{'s':>9}"
        f"{'MiB':>7}{'s':>9}{'MiB':>7}{'edges/s':>11}"
    )
    report["scale"] = []
    with tempfile.TemporaryDirectory() as scratch:
        for times in (1, 2, 4):
            store, parts = rmat(args, times), args.parts * times
            stored = open_stored(store)
            nodes, edges = stored.graph.num_nodes, stored.graph.num_edges
            of_edge = sum(dtype.itemsize for dtype in stored.graph.of_edges.values())
            size = nodes * (8 + 8 + FEATURES * stored.features.dtype.itemsize) + edges * of_edge
            words = [sys.executable, "-c", CUT, str(store), str(Path(scratch) / store.name), str(parts)]
            told = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            line = {"nodes": nodes, "edges": edges, "parts": parts, "store_bytes": size, **told}
            report["scale"].append(line)
            print(
                f"{nodes:>10,}{edges:>13,}{parts:>7}{size / 2**20:>11,.0f}{line['halo']:>12,}"
                f"{line['deal_s']:>9.1f}{line['deal_bytes'] / 2**20:>7,.0f}"
                f"{line['part_s']:>9.1f}{line['part_bytes'] / 2**20:>7,.0f}"
                f"{edges / (line['deal_s'] + line['part_s']):>11,.0f}",
                flush=True,
            )
    first, last = report["scale"][0], report["scale"][-1]
    edges, parts, book = last["edges"], last["parts"], last["book_s"] / last["nodes"]
    dealt, written = last["deal_s"] / edges, (last["part_s"] - parts * last["book_s"]) / edges
    print(
        f"An edge, with its share of a row: {1e9 * dealt:.0f} ns to deal, "
        f"{1e9 * written:.0f} ns to write, in parts of this size."
    )
    print(f"To know where others' nodes lie, a part goes through all nodes: {1e9 * book:.0f} ns each.")
    for size in (1e8, 1e9):
        nodes = 1e12 * last["nodes"] / edges
        hours = (1e12 * (dealt + written) + 1e12 / size * nodes * book) / 3600
        memory = f"{last['part_bytes'] * parts / edges * size / 2**30:,.0f} GiB"
        print(
            f"10^12 edges in parts of {size:.0e}, {memory} each: {hours:,.0f} hours of "
            f"one process, {hours / 256:,.1f} of 256"
        )
    if max(last["part_bytes"], last["deal_bytes"]) > 2 * max(first["part_bytes"], first["deal_bytes"]):
        report["problems"].append("memory grows with the graph, though parts stay as large")


def main() -> int:
    """Measure and print. Returns 1 if memory follows the graph."""
    parser = argparse.ArgumentParser(description="Cutting a stored graph: memory and time.")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="generated graphs"
    )
    parser.add_argument("--nodes", type=int, default=400_000, help="of the smallest graph")
    parser.add_argument("--degree", type=int, default=50, help="mean, before duplicates go")
    parser.add_argument("--parts", type=int, default=8, help="of the smallest graph")
    args = parser.parse_args()
    if min(args.nodes, args.degree, args.parts) < 1:
        parser.error("numbers must be at least 1")
    args.cache = args.cache.resolve()
    report: dict[str, Any] = {"cores": os.cpu_count(), "problems": []}
    measure(args, report)
    for text in report["problems"]:
        print(f"PROBLEM: {text}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
