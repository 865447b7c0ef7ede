"""Sampling and training on a graph of ogbn-mag's shape, in comparison with GraphBolt's and DGL's hetero samplers and
with DGL's R-GCN: processes that take turns on one machine.

    python benchmarks/typed.py --threads 1,2 --json typed.json

1.9 million nodes of four types, 21 million edges of four relations, and their reverses (`typed_graphs.py`); minibatches
of 1024 papers, two hops, fanout 25, 10 in every relation, as in GraphBolt's example of this dataset.

Sampling: see `sampling.py`, whose processes these are; one minibatch of each engine is proved first. "new" expands
newly found nodes only (PyG's semantics, Millrace's default), "all" the whole frontier again at each hop (DGL,
GraphBolt); Millrace is measured both ways.

An epoch: R-GCN of two layers, hidden width 64, 349 classes, 128 features of papers, which a matrix projects; nodes of
each other type share a learnt vector. A matrix for each relation over the mean of its sampled edges, and one for the
node itself: in DGL's example one for each node type. Adam, float32, no dropout. Millrace runs as `mr.run`, timed from
the end of one epoch to the end of the next; see `epoch.py`, whose reports these are.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from check import check_relations
from epoch import ratio
from peers import environment
from processes import allocator, call, default_limit_gib
from sampling import Check, Config, measure, multiples, show_engines
from typed_graphs import load, stored

HERE = Path(__file__).resolve().parent / "peers"
FANOUT = (25, 10)
BATCH = 1024
BULK = 32


def samplers(t: int, peers: list[str], fanout: tuple[int, ...]) -> list[Config]:
    """Measurements of sampling on t threads, in the order of a round."""

    def config(name: str, script: str, **options: Any) -> Config:
        expand = options.setdefault("expand", "all")
        foreign = script != "typed_millrace.py"
        return Config(name, "neighbor", script, t, expand, {"fanout": fanout, **options}, foreign, 0)

    found = [config(f"millrace {e}", "typed_millrace.py", expand=e, bulk_size=BULK) for e in ("new", "all")]
    if "graphbolt" in peers:
        found.append(config("graphbolt", "typed_graphbolt.py"))
        if t > 1:
            found.append(config("graphbolt, thread pool", "typed_graphbolt.py", pool=t))
    if "dgl" in peers:
        found.append(config("dgl DataLoader", "typed_dgl.py"))
    return found


def checker(folder: Path, fanout: tuple[int, ...]) -> Check:
    """See `check.check_relations`."""
    from millrace.stages.kernels.row_block.relation_rows import RelationRows

    cut = RelationRows.from_graph(load(folder))
    return lambda path, expand: check_relations(cut, path, fanout, expand)


def train(args: argparse.Namespace, folder: Path, minibatches: int) -> list[dict[str, Any]]:
    """Let the engines of an epoch take turns; a summary of each."""
    engines = [(name, t, tuned) for t in args.threads for name, tuned in args.trained]
    runs: dict[tuple[str, int, str], list[dict[str, Any]]] = {e: [] for e in engines}
    for turn in range(args.rounds):
        for name, t, tuned in engines[:: 1 if turn % 2 == 0 else -1]:
            task = {"folder": str(folder), "model": "rgcn", "threads": t, "minibatches": minibatches}
            task |= {"epochs": args.epochs, "dropout": 0.0, "options": {"fanout": args.fanout}}
            python = environment.python(args.cache) if name == "dgl" else sys.executable
            variables = {"DGLDEFAULTDIR": str(args.cache / "dgl"), **allocator(tuned)}
            limit = int(default_limit_gib() * 2**30)
            r = call(python, HERE / f"typed_train_{name}.py", task, t, variables, limit)
            if "failed" in r:
                raise SystemExit(f"{name} {t}T failed: {r['failed']}")
            runs[name, t, tuned].append(r)
            print(f"  {name} {t}T {tuned}: {r['ms']:.1f} ms a minibatch, {r['cpu_ms']:.1f} of processors", flush=True)
    return [_summary(*e, r) for e, r in runs.items()]


def _summary(name: str, threads: int, tuned: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    ms = [r["ms"] for r in runs]
    numbers = {k: statistics.mean(r[k] for r in runs) for k in ("cpu_ms", "edges", "loss")}
    parts = {k: statistics.median(r["parts_ms"].get(k, 0.0) for r in runs) for k in runs[0]["parts_ms"]}
    row = {"name": name, "ours": name == "millrace", "model": "rgcn", "threads": threads, "allocator": tuned}
    row |= {"ms": statistics.median(ms), "ms_min": min(ms), "ms_max": max(ms), "parts_ms": parts, "runs": runs}
    return row | numbers | {"peak_bytes": max(r["peak_bytes"] for r in runs)}


def show_training(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print the epochs, and ours beside DGL's, which are returned."""
    print(f"\n{'R-GCN':10} {'T':>2} {'allocator':9} {'ms':>7} {'min - max':>15} {'cpu ms':>7} {'k edges':>8}", end="")
    print(f" {'loss':>5} {'peak MiB':>8}  ms by part")
    for r in rows:
        parts = ", ".join(f"{name} {ms:.1f}" for name, ms in r["parts_ms"].items())
        print(
            f"{r['name']:10} {r['threads']:2} {r['allocator']:9} {r['ms']:7.1f} "
            f"{r['ms_min']:7.1f} -{r['ms_max']:6.1f} {r['cpu_ms']:7.1f} {r['edges'] / 1e3:8.1f} "
            f"{r['loss']:5.2f} {r['peak_bytes'] / 2**20:8.0f}  {parts}"
        )
    pairs = [(o, p) for o in rows if o["ours"] for p in rows if not p["ours"] and p["threads"] == o["threads"]]
    found = []
    for ours, peer in pairs:
        found.append({**ratio(peer, ours), "cpu": peer["cpu_ms"] / ours["cpu_ms"]})
        low, high = found[-1]["range"]
        print(
            f"{ours['threads']}T: {found[-1]['ratio']:.2f} times as fast as {found[-1]['over']} "
            f"({low:.2f} - {high:.2f}; in processor seconds {found[-1]['cpu']:.2f})"
        )
    return found


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="A graph of ogbn-mag's shape side by side with peers.")
    numbers: Any = lambda s: tuple(int(t) for t in s.split(","))  # noqa: E731
    parser.add_argument("--part", type=int, default=1, help="one node and edge in this many of ogbn-mag's")
    parser.add_argument("--threads", type=numbers, default=(1, 2))
    parser.add_argument("--fanout", type=numbers, default=FANOUT, help="in every relation, nearest the seeds first")
    parser.add_argument("--only", choices=("sampling", "training"))
    parser.add_argument("--minibatches", type=int, default=64, help="that are sampled in a round")
    parser.add_argument("--steps", type=int, default=24, help="minibatches of an epoch that is trained")
    parser.add_argument("--epochs", type=int, default=1, help="trained and measured in each process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=lambda s: [p for p in s.split(",") if p], default=["dgl", "graphbolt"])
    parser.add_argument(
        "--allocators", type=lambda s: s.split(","), default=["default", "tuned"], help="of DGL's R-GCN"
    )
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="graphs, peers' environment"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unknown := set(args.peers) - {"dgl", "graphbolt"}:
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; known are dgl, graphbolt")
    args.cache = args.cache.resolve()
    args.trained = [("millrace", "default")] + [("dgl", a) for a in args.allocators if "dgl" in args.peers]
    return args


def main() -> None:
    """Measure and print."""
    args = arguments()
    folder = stored(args.part, args.cache)
    graph = load(folder)
    papers = len(np.load(folder / "seeds.npy", mmap_mode="r"))
    print(f"{graph}; cache {args.cache}; load average {os.getloadavg()[0]:.1f}", flush=True)
    report: dict[str, Any] = {
        "part": args.part,
        "graph": str(graph),
        "fanout": args.fanout,
        "batch_size": BATCH,
        "minibatches": min(args.minibatches, papers // BATCH),
        "rounds": args.rounds,
        "machine": {"processor": platform.processor() or platform.machine(), "load_before": os.getloadavg()},
    }
    del graph
    if args.only != "training":
        counts = (report["minibatches"], args.rounds, lambda f: checker(f, args.fanout))
        report["engines"] = [
            row
            for t in args.threads
            for row in measure(samplers(t, args.peers, args.fanout), folder, folder / "seeds.npy", args.cache, *counts)
        ]
        report["multiples"] = multiples(report["engines"])
        show_engines(report)
    if args.only != "sampling":
        report["epochs"] = train(args, folder, min(args.steps, papers // BATCH))
        report["epoch_ratios"] = show_training(report["epochs"])
    report["machine"]["load_after"] = os.getloadavg()
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
        print(f"\nwritten: {args.json}")


if __name__ == "__main__":
    main()
