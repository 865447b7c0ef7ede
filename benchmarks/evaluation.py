"""Exact evaluation of all nodes in comparison with DGL: time and memory, one process at a time.

    python benchmarks/evaluation.py --graph products --model sage,gat --engines ours,dgl,dgl-batches \
        --json evaluation.json

Three layers, hidden width 256 (GAT: 4 heads of 64, averaged in the last layer), 100 random features, 47 classes,
float32. ``dgl`` computes each layer over the whole graph at once, ``dgl-batches`` in batches of 1024 nodes with all
in-neighbours. All engines have the same parameters, and their logits must agree. Engines take turns; every other round
runs backwards. "peak" is the most that was resident from the moment when all was loaded, mapped pages counted. Where
other work shares the processors, compare seconds of processors.
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
from graphs import RECIPES, load, stored
from peers import environment
from peers.evaluate_task import FEATURES
from processes import allocator, call, default_limit_gib

HERE = Path(__file__).resolve().parent
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "ours": ("evaluate_millrace.py", {}),
    "ours-mapped": ("evaluate_millrace.py", {"mapped": True}),
    "dgl": ("evaluate_dgl.py", {"way": "whole"}),
    "dgl-batches": ("evaluate_dgl.py", {"way": "batches"}),
}
PEERS_HAVE = ("sage", "gat")
TOLERANCE = 1e-3
"""Largest difference of summed logits, relative to the largest sum."""
ROW = "{:6} {:14} {:>9} {:>17} {:>12} {:>10} {:>10}"


def run(engine: str, model: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One process."""
    script, options = ENGINES[engine]
    task = {"folder": str(folder), "model": model, "threads": args.threads, "options": options}
    python = environment.python(args.cache) if "dgl" in script else sys.executable
    variables = {"DGLDEFAULTDIR": str(args.cache / "dgl")} | allocator("default")
    return call(python, HERE / "peers" / script, task, args.threads, variables, int(args.limit_gib * 2**30))


def measure(model: str, folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Let the engines take turns; one summary for each."""
    engines = [e for e in args.engines if "dgl" not in e or model in PEERS_HAVE]
    runs: dict[str, list[dict[str, Any]]] = {e: [] for e in engines}
    for turn in range(args.rounds):
        for e in engines[:: 1 if turn % 2 == 0 else -1]:
            if any("failed" in r for r in runs[e]):
                continue
            before = os.getloadavg()[0]
            r = run(e, model, folder, args)
            runs[e].append({**r, "load_before": before})
            if "failed" not in r:
                print(
                    f"  {model} {e}: {r['seconds']:.1f} s, {r['cpu_s']:.1f} s of processors, peak "
                    f"{r['peak_bytes'] / 2**30:.2f} GiB (load before {before:.1f})",
                    flush=True,
                )
    found = []
    for e in engines:
        done = [r for r in runs[e] if "failed" not in r]
        if not done:
            found.append({"model": model, "engine": e, "failed": runs[e][0]["failed"]})
            continue
        found.append(
            {
                "model": model,
                "engine": e,
                "seconds": [r["seconds"] for r in done],
                "cpu_s": [r["cpu_s"] for r in done],
                "peak_bytes": max(r["peak_bytes"] for r in done),
                "loaded_bytes": max(r["loaded_bytes"] for r in done),
                "load_before": [r["load_before"] for r in done],
                "logits": done[0]["logits"],
            }
        )
    return found


def problems(rows: list[dict[str, Any]]) -> list[str]:
    """Engines that failed, or whose logits differ from the first one's."""
    said = [f"{r['model']} {r['engine']}: {r['failed']}" for r in rows if "failed" in r]
    done = [r for r in rows if "failed" not in r]
    for r in done[1:]:
        a, b = np.array(done[0]["logits"]), np.array(r["logits"])
        if np.abs(a - b).max() > TOLERANCE * np.abs(a).max():
            said.append(f"{r['model']} {r['engine']}: logits differ by {np.abs(a - b).max():.2g}")
    return said


def show(rows: list[dict[str, Any]]) -> None:
    """A line for each engine."""
    print("\n" + ROW.format("model", "engine", "median s", "min - max", "processors s", "peak GiB", "loaded"))
    for r in (r for r in rows if "failed" not in r):
        s = sorted(r["seconds"])
        print(
            ROW.format(
                r["model"],
                r["engine"],
                f"{statistics.median(s):.1f}",
                f"{s[0]:.1f} - {s[-1]:.1f}",
                f"{statistics.median(r['cpu_s']):.1f}",
                f"{r['peak_bytes'] / 2**30:.2f}",
                f"{r['loaded_bytes'] / 2**30:.2f}",
            )
        )


def main() -> int:
    """Measure and print. Returns 1 if an engine failed or the logits differ."""
    parser = argparse.ArgumentParser(description="Exact evaluation of all nodes beside DGL.")
    parser.add_argument("--graph", choices=sorted(RECIPES), default="products-quarter")
    parser.add_argument("--model", type=lambda s: s.split(","), default=["sage"], help="sage, gcn, gat, gin")
    parser.add_argument("--engines", type=lambda s: s.split(","), default=["ours", "dgl"], help=", ".join(ENGINES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-gib", type=float, default=default_limit_gib(), help="of a process's data")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    for asked, known in ((args.engines, ENGINES), (args.model, ("sage", "gcn", "gat", "gin"))):
        if unknown := set(asked) - set(known):
            parser.error(f"expected some of {', '.join(known)}; got {', '.join(sorted(unknown))}")
    if args.rounds < 1 or args.threads < 1:
        parser.error("expected --rounds and --threads of at least 1")
    args.cache = args.cache.resolve()
    folder = stored(args.graph, args.cache)
    graph, file = load(folder), folder / "evaluation" / "features.npy"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        np.save(file, np.random.default_rng(0).standard_normal((graph.num_nodes, FEATURES), dtype=np.float32))
    print(f"graph {args.graph}: {graph.num_nodes} nodes, {graph.num_edges} edges; {args.threads} threads", flush=True)
    if os.getloadavg()[0] > 0.5:
        print(
            f"  the load average is {os.getloadavg()[0]:.1f}: other work distorts this; compare seconds of processors"
        )
    machine = {"processor": platform.processor() or platform.machine(), "cpus": os.cpu_count()}
    report: dict[str, Any] = {"graph": args.graph, "threads": args.threads, "machine": machine, "rows": []}
    said: list[str] = []
    for model in args.model:
        rows = measure(model, folder, args)
        said += problems(rows)
        show(rows)
        report["rows"] += [{k: v for k, v in r.items() if k != "logits"} for r in rows]
        if args.json:
            args.json.write_text(json.dumps(report | {"problems": said}, indent=1) + "\n")
    for text in said:
        print(f"PROBLEM: {text}")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
