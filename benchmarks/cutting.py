"""Cutting a graph into parts: cut, memory and time of the methods, and memory and time of writing the parts.

    python benchmarks/cutting.py cuts --data DATA --json cuts.json
    python benchmarks/cutting.py memory
    python benchmarks/cutting.py parts --json cutting.json

``cuts``    edges cut, the largest part over the mean one, processor seconds and peak memory of each method, each in a
            process of its own: on ogbn_arxiv and amazon_computers, symmetrised (``DATA/NAME.npz`` with ``edge_index``),
            and on a stochastic block model in random order of ids. METIS has the graph in memory; the others read its
            store.
``memory``  peak memory of ``metis-streamed`` beside METIS, on R-MAT graphs with ten times as many edges, or four times
            as many nodes.
``parts``   for 1, 2 and 4 times as many edges, in as many more parts, of as many edges each: dealing all rows to their
            owners (`millrace.storage.partition.shuffle`), and then writing each part. The graph is R-MAT, parts are
            random (``hash``): nobody holds a table of owners. Memory is that of a range of rows, and that of a part's
            edges and of the nodes outside that they come from (``halo``, of the part with most), which are more in a
            larger graph. Then what these rates make of 10^12 edges.

Memory is without pages of mapped files, above that of a process that has imported and compiled the same.
``records/cutting.json`` holds the figures of ``parts`` in the docs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from millrace.benchmarks.graphs import Recipe, make
from millrace.benchmarks.partitioned_runs import FEATURES, dataset_at
from millrace.storage.dataset import Dataset, Split
from millrace.storage.dataset_store import open_stored, write_dataset
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph, from_edges

WATCH = """
import json, sys, threading, time
from pathlib import Path
import numpy as np

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
"""
ASSIGN = (
    WATCH
    + """
from millrace.benchmarks.graphs import Recipe, make
from millrace.stages.partition.registry import partitioner
from millrace.stages.partition.rows import stretches
from millrace.storage.dataset_store import open_dataset_store, open_stored

source, name, parts, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
method = partitioner(name, **options)
method.assign(make(Recipe(2000, 10000, {})), 4, 0)
stored = open_stored(source).graph
base = own()
before = time.process_time()
graph = stored if hasattr(method, "reads_rows") else open_dataset_store(source).graph
book, _, peak = watched(lambda: method.assign(graph, parts, 0))
cpu_s = time.process_time() - before
part = book.part(np.arange(stored.num_nodes))
cut = 0
for first, rows in stretches(stored):
    own_part = np.repeat(part[first : first + len(rows.first_edge)], np.diff(rows.indptr))
    cut += int((own_part != part[rows.indices]).sum())
largest = float(book.sizes().max() * parts / stored.num_nodes)
print(json.dumps({"cut": cut / stored.num_edges, "largest": largest, "cpu_s": cpu_s, "peak_bytes": peak}))
"""
)
CUT = (
    WATCH
    + """
from millrace.stages.partition.registry import PARTITIONERS
from millrace.stages.partition.stage import write_part
from millrace.storage.dataset_store import open_stored
from millrace.storage.partition.shuffle import ShuffledStore, begin, deal

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
)


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


METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("metis", {}),
    ("metis-streamed", {}),
    ("ldg", {}),
    ("ldg", {"passes": 8}),
    ("fennel", {}),
    ("fennel", {"passes": 8}),
)


def published(args: argparse.Namespace, name: str) -> Path:
    """A store of a published graph, symmetrised, made on first use."""
    path = args.cache / "graphs" / f"cutting-{name}"
    if not path.exists():
        src, dst = np.load(args.data / f"{name}.npz", allow_pickle=False)["edge_index"].astype(np.int64)
        write_graph(path, symmetric(src, dst, int(max(src.max(), dst.max())) + 1))
    return path


def block_model(args: argparse.Namespace) -> Path:
    """A store of a graph of 100 blocks of nodes with ids in random order; four of five edges stay in a block."""
    path = args.cache / "graphs" / f"cutting-sbm-{args.sbm_nodes}"
    if not path.exists():
        rng, blocks = np.random.default_rng(0), 100
        block = rng.integers(blocks, size=args.sbm_nodes)
        nodes = np.argsort(block, kind="stable")
        first = np.searchsorted(block[nodes], np.arange(blocks + 1))
        src, dst = rng.integers(args.sbm_nodes, size=(2, args.sbm_nodes * 8))
        inside = rng.random(len(src)) < 0.8
        low, high = first[block[src]], first[block[src] + 1]
        dst[inside] = nodes[(low + (rng.random(len(src)) * (high - low)).astype(np.int64))[inside]]
        write_graph(path, symmetric(src, dst, args.sbm_nodes))
    return path


def symmetric(src: np.ndarray, dst: np.ndarray, nodes: int) -> Graph:
    """Each edge in both directions, once; no loops."""
    pairs = np.unique(np.minimum(src, dst)[src != dst] * nodes + np.maximum(src, dst)[src != dst])
    low, high = pairs // nodes, pairs % nodes
    return from_edges(np.r_[low, high], np.r_[high, low], nodes)


def write_graph(path: Path, graph: Graph) -> None:
    """A store of a graph with a label and a feature that say nothing."""
    n, none = graph.num_nodes, np.empty(0, np.int64)
    features = ArrayFeatures(np.zeros((n, 1), np.float32))
    write_dataset(path, Dataset(path.name, graph, features, np.zeros(n, np.int64), Split(np.arange(n), none, none), 1))


def assigned(store: Path, name: str, parts: int, options: dict[str, Any]) -> dict[str, Any]:
    """Measure a method on a store, in a process of its own."""
    words = [sys.executable, "-c", ASSIGN, str(store), name, str(parts), json.dumps(options)]
    told = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    graph = open_stored(store).graph
    line = {"graph": store.name, "nodes": graph.num_nodes, "edges": graph.num_edges, "parts": parts}
    line |= {"method": name, **options, **told}
    shown = name + "".join(f", {key} {value}" for key, value in options.items())
    print(
        f"{line['graph']:<34}{line['nodes']:>11,}{line['edges']:>13,}{parts:>7}  {shown:<24}{line['cut']:>7.1%}"
        f"{line['largest']:>7.3f}{line['cpu_s']:>8.1f}{line['peak_bytes'] / 2**20:>8,.0f}",
        flush=True,
    )
    return line


def compare(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Cut three graphs by each method, and print."""
    print_header()
    stores = [published(args, name) for name in ("ogbn_arxiv", "amazon_computers")] if args.data else []
    report["cuts"] = [
        assigned(store, name, parts, options)
        for store in [*stores, block_model(args)]
        for parts in args.cut_parts
        for name, options in METHODS
    ]
    for line in report["cuts"]:
        key = (line["graph"], line["parts"])
        (metis,) = (o for o in report["cuts"] if (o["graph"], o["parts"], o["method"]) == (*key, "metis"))
        bound = 1.5 if "sbm" in line["graph"] else 1.25
        if line["method"] == "metis-streamed" and (line["cut"] > bound * metis["cut"] or line["largest"] > 1.0501):
            report["problems"].append(f"{key}: {line['cut']:.1%} of edges cut, METIS {metis['cut']:.1%}")


def grow(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Memory of cuts of graphs with more edges, more nodes, or both, and print."""
    print_header()
    report["memory"] = []
    for nodes, degree in ((1_000_000, 6), (1_000_000, 25), (1_000_000, 60), (4_000_000, 15)):
        recipe = Recipe(nodes, nodes * degree // 2, {})
        path = args.cache / "graphs" / f"cutting-{nodes}-{recipe.num_pairs}"
        if not path.exists():
            write_graph(path, make(recipe))
        report["memory"] += [assigned(path, name, 8, {}) for name in ("metis-streamed", *(args.beside or ()))]


def print_header() -> None:
    """Heads of the columns of `assigned`."""
    print(
        f"{'graph':<34}{'nodes':>11}{'edges':>13}{'parts':>7}  {'method':<24}"
        f"{'cut':>7}{'most':>7}{'cpu s':>8}{'MiB':>8}"
    )


def main() -> int:
    """Measure and print. Returns 1 if a figure is not as it should be."""
    parser = argparse.ArgumentParser(description="Cutting a graph: cut, memory and time.")
    parser.add_argument("what", choices=("cuts", "memory", "parts"), nargs="?", default="parts")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="generated graphs"
    )
    parser.add_argument("--data", type=Path, help="cuts: folder of ogbn_arxiv.npz and amazon_computers.npz")
    parser.add_argument("--cut-parts", type=int, nargs="+", default=[4, 16, 64], help="cuts: numbers of parts")
    parser.add_argument("--sbm-nodes", type=int, default=1_000_000, help="cuts: nodes of the block model")
    parser.add_argument("--beside", nargs="*", help="memory: further methods, such as metis")
    parser.add_argument("--nodes", type=int, default=400_000, help="parts: of the smallest graph")
    parser.add_argument("--degree", type=int, default=50, help="parts: mean, before duplicates go")
    parser.add_argument("--parts", type=int, default=8, help="parts: of the smallest graph")
    args = parser.parse_args()
    if min(args.nodes, args.degree, args.parts, args.sbm_nodes, *args.cut_parts) < 1:
        parser.error("numbers must be at least 1")
    args.cache = args.cache.resolve()
    report: dict[str, Any] = {"cores": os.cpu_count(), "problems": []}
    {"cuts": compare, "memory": grow, "parts": measure}[args.what](args, report)
    for text in report["problems"]:
        print(f"PROBLEM: {text}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
