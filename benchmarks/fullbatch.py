"""Full-batch training in comparison with peers: whole epochs over all train nodes, one process at a time.

    python benchmarks/fullbatch.py --model sage,gat --threads 2 --json fullbatch.json

The task: three layers, hidden width 256 (GAT: 4 heads of 64 and ELU, averaged in the last layer), 40 classes, 128
random features, Adam, float32, no dropout, on a random graph of ogbn-arxiv's size, or with `--npz` on a real one
(`edge_index`, `y`, `train_idx`; used as undirected). 54 % of the nodes have a label to learn. An epoch is forward,
loss, backward and Adam's step over the whole graph; the first of each process warms up. Every engine's GAT attends to
the node itself: the peers' graphs have the self loops in them.

Engines take turns: each is started, loads, trains and ends, then the next one; every other round runs backwards. Peers
run with the system's allocator as it is, with glibc told to keep freed memory (`processes.TUNED`), and with jemalloc
(where it is installed, or `apt-get` can fetch it). "peak" is what the process held at most in its whole life, "loaded"
what it held before training.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from epoch import ratios
from epoch_tables import show_ratios
from graphs import RECIPES, load, stored
from peers import environment
from peers.fullbatch_task import CLASSES, FEATURES, WARM_UP
from processes import JEMALLOC, TUNED, allocator, call, default_limit_gib

from millrace.pipeline.datasets.cleaning.edges import graph_of_keys

HERE = Path(__file__).resolve().parent
TRAIN_SHARE = 0.54
MODES = ("rematerialize", "keep", "halo")
"""Modes of two ranks with one thread each, compared with one rank of two threads."""
ROW = "{:14} {:>2} {:>9} {:>8} {:>17} {:>9} {:>10} {:>11} {:>16}"


@dataclass(frozen=True)
class Engine:
    """One thing that is measured."""

    name: str
    script: str
    model: str
    threads: int
    allocator: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """As printed."""
        return f"{self.model} {self.name} {self.threads}T {self.allocator}"


def engines(model: str, args: argparse.Namespace) -> list[Engine]:
    """Measurements of a model, in the order of a round."""
    known: dict[str, tuple[str, list[str], dict[str, Any]]] = {
        "ours": ("millrace", args.ours_allocators, {}),
        "pyg": ("pyg", args.allocators, {}),
    }
    known |= {f"ours2-{mode}": (f"2 {mode}", args.ours_allocators, {"ranks": 2, "mode": mode}) for mode in MODES}
    known |= {
        "dgl": ("dgl", args.allocators, {"ids": "int32"}),
        "dgl64": ("dgl int64", args.allocators, {"ids": "int64"}),
    }
    found = []
    for t in args.threads:
        for which in args.engines:
            name, allocators, options = known[which]
            found += [
                Engine(name, f"fullbatch_{which.removesuffix('64').partition('2')[0]}.py", model, t, a, options)
                for a in allocators
            ]
    # GAT by scattering needs 14 GiB, and more than 18 where the allocator keeps what it frees.
    return [e for e in found if args.all or (e.name, e.model) != ("pyg", "gat") or e.allocator == "default"]


def run(e: Engine, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One process."""
    task = {"folder": str(folder), "model": e.model, "threads": e.threads, "epochs": args.epochs, "options": e.options}
    foreign = e.script == "fullbatch_dgl.py"
    python = environment.python(args.cache) if foreign else sys.executable
    library = environment.jemalloc(args.cache) if e.allocator == "jemalloc" else None
    variables = {"DGLDEFAULTDIR": str(args.cache / "dgl")} | allocator(e.allocator, library)
    return call(python, HERE / "peers" / e.script, task, e.threads, variables, int(args.limit_gib * 2**30))


def measure(found: list[Engine], folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Let the engines take turns; one summary for each."""
    runs: dict[int, list[dict[str, Any]]] = {n: [] for n in range(len(found))}
    for turn in range(args.rounds):
        for n in range(len(found))[:: 1 if turn % 2 == 0 else -1]:
            e = found[n]
            if any("failed" in r for r in runs[n]):
                continue
            start, before = time.perf_counter(), os.getloadavg()[0]
            r = run(e, folder, args)
            runs[n].append({**r, "load_before": before, "round": turn})
            said = r.get("failed")
            if not said:
                # Much less on processors than the threads could have had: something else held them up.
                times = ", ".join(f"{s:.2f}" for s in r["seconds"])
                said = f"{times} s an epoch, {r['cpu_s']:.2f} s of processors, peak {r['peak_bytes'] / 2**30:.2f} GiB"
            print(
                f"  {e.label}: {said} (process {time.perf_counter() - start:.0f} s, load before {before:.1f})",
                flush=True,
            )
    return [_summary(e, runs[n]) for n, e in enumerate(found)]


def _summary(e: Engine, runs: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": e.name,
        "ours": e.script == "fullbatch_ours.py",
        "model": e.model,
        "threads": e.threads,
        "allocator": e.allocator,
        "options": e.options,
        "runs": runs,
    }
    if failed := [r["failed"] for r in runs if "failed" in r]:
        return {**row, "failed": failed[0]}
    ms = [1000 * s for r in runs for s in r["seconds"]]
    return {
        **row,
        "ms": statistics.median(ms),
        "ms_min": min(ms),
        "ms_max": max(ms),
        "losses": runs[0]["losses"],
        "peak_bytes": max(r["peak_bytes"] for r in runs),
        "loaded_bytes": max(r["loaded_bytes"] for r in runs),
    }


def show_rows(model: str, rows: list[dict[str, Any]]) -> None:
    """One table."""
    print(
        f"\n{model.upper()}: s an epoch, median of all epochs of all rounds; memory in "
        f"GiB; loss before the first and the last epoch"
    )
    print(ROW.format("engine", "T", "malloc", "s", "min - max", "peak", "loaded", "peak-loaded", "loss"))
    for r in rows:
        head = (r["name"], r["threads"], r["allocator"])
        if "failed" in r:
            print(f"{ROW.format(*head, 'failed', *[''] * 5)} {r['failed']}")
            continue
        peak, loaded = (r[name] / 2**30 for name in ("peak_bytes", "loaded_bytes"))
        seconds = (f"{r['ms'] / 1000:.3f}", f"{r['ms_min'] / 1000:.3f} - {r['ms_max'] / 1000:.3f}")
        loss = f"{r['losses'][0]:.3f} - {r['losses'][-1]:.3f}"
        print(ROW.format(*head, *seconds, f"{peak:.2f}", f"{loaded:.2f}", f"{peak - loaded:.2f}", loss))


def problems(rows: list[dict[str, Any]]) -> list[str]:
    """Engines that failed, or that did not learn."""
    said = [
        f"{r['model']} {r['name']} {r['threads']}T {r['allocator']} failed: {r['failed']}"
        for r in rows
        if "failed" in r
    ]
    said += [
        f"{r['model']} {r['name']} {r['threads']}T {r['allocator']}: the loss did not fall: {r['losses']}"
        for r in rows
        # NaN compares as false.
        if "failed" not in r and not r["losses"][-1] < r["losses"][0]
    ]
    return said


def data(folder: Path) -> None:
    """Random features beside the graph; labels that a linear map of them gives, unless there are real ones; made on
    first use."""
    target = folder / "fullbatch"
    if (target / "features.npy").exists():
        return
    target.mkdir(exist_ok=True)
    num_nodes = len(np.load(folder / "indptr.npy", mmap_mode="r")) - 1
    rng = np.random.default_rng(0)
    features = rng.standard_normal((num_nodes, FEATURES), np.float32)
    if not (target / "labels.npy").exists():
        np.save(target / "labels.npy", (features @ rng.standard_normal((FEATURES, CLASSES), np.float32)).argmax(1))
        np.save(target / "train.npy", np.sort(rng.permutation(num_nodes)[: int(TRAIN_SHARE * num_nodes)]))
    np.save(target / "partial.npy", features)
    (target / "partial.npy").rename(target / "features.npy")


def real(path: Path, cache: Path) -> Path:
    """The graph of an .npz file, made undirected, with its labels and train nodes: a folder as `graphs.stored` leaves
    it."""
    folder = cache / "graphs" / f"{path.stem}-undirected"
    if not (folder / "indices.npy").exists():
        (folder / "fullbatch").mkdir(parents=True, exist_ok=True)
        with np.load(path, allow_pickle=False) as given:
            y, (u, v) = given["y"].astype(np.int64), given["edge_index"].astype(np.int64)
            np.save(folder / "fullbatch" / "labels.npy", y)
            np.save(folder / "fullbatch" / "train.npy", np.sort(given["train_idx"].astype(np.int64)))
        if y.max() >= CLASSES:
            raise SystemExit(f"{path} has {y.max() + 1} classes; at most {CLASSES} are expected")
        graph = graph_of_keys(np.unique(np.concatenate([u * len(y) + v, v * len(y) + u])[np.tile(u != v, 2)]), len(y))
        np.save(folder / "indptr.npy", graph.indptr)
        np.save(folder / "partial.npy", graph.indices)
        (folder / "partial.npy").rename(folder / "indices.npy")
    return folder


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Full-batch training side by side with peers.")
    parser.add_argument("--graph", choices=sorted(RECIPES), default="arxiv")
    parser.add_argument("--npz", type=Path, help="a real graph instead")
    lists = {
        "model": (["sage", "gat"], ("sage", "gat")),
        "engines": (["ours", "dgl", "pyg"], ("ours", *(f"ours2-{m}" for m in MODES), "dgl", "dgl64", "pyg")),
        "allocators": (["default", "tuned", "jemalloc"], ("default", "tuned", "jemalloc")),
        "ours-allocators": (["default"], ("default", "tuned", "jemalloc")),
    }
    for name, (usual, known) in lists.items():
        parser.add_argument(
            f"--{name}", type=lambda s: [w for w in s.split(",") if w], default=usual, help=f"of {', '.join(known)}"
        )
    parser.add_argument("--all", action="store_true", help="PyG's GAT with the other allocators too: more than 18 GiB")
    parser.add_argument("--threads", type=lambda s: [int(t) for t in s.split(",")], default=[2])
    parser.add_argument("--epochs", type=int, default=3, help="measured in each process")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit-gib", type=float, default=default_limit_gib(), help="memory of a process")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="graphs, peers' environment"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.cache = args.cache.resolve()
    for name, (_, known) in lists.items():
        if unknown := set(getattr(args, name.replace("-", "_"))) - set(known):
            parser.error(f"--{name} has {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    if min(args.epochs, args.rounds, *args.threads) < 1:
        parser.error("--epochs, --rounds and --threads must be at least 1")
    return args


def main() -> int:
    """Measure and print. Returns 1 if an engine failed or did not learn."""
    args = arguments()
    folder = real(args.npz, args.cache) if args.npz else stored(args.graph, args.cache)
    data(folder)
    if "jemalloc" in args.allocators + args.ours_allocators and environment.jemalloc(args.cache) is None:
        print("no jemalloc: it is not installed, and apt-get cannot fetch it")
        args.allocators, args.ours_allocators = (
            [a for a in found if a != "jemalloc"] for found in (args.allocators, args.ours_allocators)
        )
    graph = load(folder)
    print(
        f"graph {folder.name}: {graph.num_nodes} nodes, {graph.num_edges} edges; warm-up {WARM_UP}; cache {args.cache}"
    )
    del graph
    if os.getloadavg()[0] > 0.5:
        print(
            f"  the load average is {os.getloadavg()[0]:.1f}: other work distorts this, "
            f"most of all threads that wait for each other"
        )
    report: dict[str, Any] = {k: v if not isinstance(v, Path) else str(v) for k, v in vars(args).items()} | {
        "tuned": TUNED,
        "jemalloc": JEMALLOC,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "load_before": os.getloadavg(),
        },
        **{k: [] for k in ("engines_measured", "ratios", "problems")},
    }
    for model in args.model:
        rows = measure(engines(model, args), folder, args)
        report["engines_measured"] += rows
        report["problems"] += problems(rows)
        show_rows(model, rows)
        print("\ntimes faster, of medians (worst - best pairing of epochs)")
        show_ratios(ratios(rows))
        report["ratios"] += ratios(rows)
        if args.json:
            args.json.write_text(json.dumps(report, indent=1) + "\n")
    for text in report["problems"]:
        print(f"PROBLEM: {text}")
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
