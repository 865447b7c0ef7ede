"""Predictions of `millrace plan` compared with runs: bytes, memory and time over systems, datasets and ranks.

    python benchmarks/plan.py --npz ogbn_arxiv.npz --json plan.json

For each case a plan is made, and then each of its systems is run by the command line, in processes of their own, on the
same machine: this one. "bytes" are those of the whole run over the network and from stores, the largest error of any
kind that makes up 1 % of its channel; "MiB" is the resident size of the largest rank; "seconds" are the median of
``seconds.per_epoch``, under retexo the mean of its layers' medians. Errors are predicted over measured, minus one.
"shortest passes" is the system that took least time for them (`choice`), which should be the recommended one. Time is
only worth comparing on an idle machine: "load" is the mean number of processes that wanted a core during the run, of
which there are `cores`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from millrace.pipeline.config.systems import SYSTEMS
from millrace.pipeline.datasets import open_dataset
from millrace.pipeline.planning import inputs
from millrace.pipeline.planning.choice import FEW
from millrace.pipeline.planning.inputs import variants
from millrace.pipeline.planning.planner import plan
from millrace.pipeline.telemetry.console import Terminal

ROW = "{:12} {:>5} {:21} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8} {:>7} {:>5}"
HEAD = (
    "dataset",
    "ranks",
    "system",
    "network",
    "store",
    "bytes",
    "MiB",
    "seen",
    "error",
    "seconds",
    "seen",
    "error",
    "load",
)
LIMITS = {"bytes": 0.02, "memory": 0.15, "time": 0.30}


@dataclass(frozen=True)
class Case:
    """A plan, and the runs that follow it."""

    name: str
    dataset: str
    ranks: int
    options: dict[str, Any]
    """Shorthands, as the command line knows them."""
    systems: tuple[str, ...] = tuple(variants())
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further keys, by section."""
    most_edges: int = inputs.MOST_EDGES
    """Edges of a graph that a smaller one stands in for if it has more."""


def edges_with_features(folder: Path) -> str:
    """Path of an R-MAT graph in `folder` whose edges have 16 features."""
    graph, rng = open_dataset("rmat:scale=15,edge_factor=8").graph, np.random.default_rng(0)
    dst, n = np.repeat(np.arange(graph.num_nodes), graph.in_degree), graph.num_nodes
    np.savez(
        folder / "edges.npz",
        edge_index=np.stack([graph.indices, dst]),
        edge_attr=rng.standard_normal((graph.num_edges, 16), np.float32),
        x=rng.standard_normal((n, 64), np.float32),
        y=rng.integers(0, 16, n),
        **{f"{name}_mask": np.arange(n) % 10 == i for i, name in enumerate(("val", "test", "train"))},
    )
    return str(folder / "edges.npz")


def cases(npz: Path | None, epochs: int, folder: Path) -> list[Case]:
    """Cases of the benchmark; `folder` is for graphs."""
    two = {"layers": 2, "hidden": 128, "fanout": "10,5", "batch_size": 1024, "epochs": epochs}
    rmat = "rmat:scale=16,edge_factor=8,features=128,train=0.3"
    found = [
        Case("rmat", rmat, 2, two),
        Case("rmat", rmat, 3, {**two, "model": "gat", "hidden": 64}, ("sar", "retexo")),
        Case("types", "hsbm:nodes=60000,degree=10,features=64", 2, {**two, "model": "rgcn"}),
        Case("edges", edges_with_features(folder), 2, {**two, "model": "gine"}),
        Case("zarr", rmat, 2, two, ("bulk", "bulk, owned features"), {"queue": {"kind": "zarr"}}),
        Case("stand-in", rmat.replace("16", "18"), 1, two, most_edges=1_100_000),
        *of_other_tasks(two),
    ]
    return [Case("arxiv", str(npz), 1, two), *found] if npz is not None else found


def of_other_tasks(options: dict[str, Any]) -> list[Case]:
    """Cases of links, samples by time, and learnt features."""
    of_links = {"read": {"task": "link"}, "train": {"evaluate_every": 3}}
    links = "rmat:scale=15,edge_factor=8,features=64"
    many = {**options, "hidden": 64, "fanout": "5,3", "batch_size": 4096, "split": "fraction:0.985,0.005"}
    by_metis = {**of_links, "partition": {"method": "metis"}}
    by_time: dict[str, Any] = {"sampler": {"name": "temporal"}}
    tsbm = "tsbm:nodes=40000,degree=20,features=64"
    typed = {"read": {"task": "link", "relation": "likes"}, "train": {"evaluate_every": 3}}
    rated = {**by_time, "read": {"task": "link"}, "train": {"evaluate_every": 3}, "link": {"negatives": "destinations"}}
    found = [
        *(Case("links", links, ranks, options, config=of_links) for ranks in (1, 2)),
        Case("links, 3", links, 3, options, ("grappa",), of_links),
        Case("links, metis", links, 2, options, ("bulk, partitioned",), by_metis),
        Case("links, a stand-in", links, 1, options, ("bulk",), of_links, most_edges=200_000),
        Case("links, many", links.replace("15", "18"), 1, {**many, "epochs": 2}, ("bulk",), of_links),
        Case("links, types", "hsbm:nodes=30000,degree=6,features=64", 2, {**options, "model": "rgcn"}, config=typed),
        *(Case("time", tsbm, ranks, options, config=by_time) for ranks in (1, 2)),
        *(Case("labels of edges", "payments:accounts=20000,features=64", ranks, options) for ranks in (1, 2)),
        Case("labels of edges, a stand-in", "payments:accounts=20000", 1, options, ("bulk",), most_edges=100_000),
        Case("links, time", "ratings:users=4000,items=4000", 2, {**options, "split": "time:0.8,0.1"}, config=rated),
    ]
    learned = {"learned": {"width": 64}}
    rows = "rmat:scale=17,edge_factor=4,features=32,train=0.3"
    in_place = {"learned": {"width": 64, "beside": False, "optimizer": "adam"}}
    found += [
        Case("blocks", links + ",train=0.3", 3, options, ("bulk, partitioned",)),
        *(Case("learned", rows, ranks, options, config=learned) for ranks in (1, 2)),
        Case("learned alone", rows, 2, options, ("bulk",), in_place),
        Case("learned, a stand-in", rows, 2, options, ("bulk",), learned, most_edges=300_000),
    ]
    return found


def run(case: Case, label: str, scratch: Path) -> dict[str, Any]:
    """Record of a run, and the load of the machine."""
    changes = variants()[label]
    words = [
        sys.executable,
        "-m",
        "millrace.pipeline",
        "run",
        "--dataset",
        case.dataset,
        "--ranks",
        str(case.ranks),
        "--json",
    ]
    words += [
        "--system",
        changes["system"],
        "--out",
        str(scratch / label.replace(" ", "-").replace(",", "")),
        *(("--set", "cluster.dashboard_port=0") if case.ranks > 1 else ()),
    ]
    if "features" in changes:
        words += ["--set", f"features={changes['features']}"]
    for key, value in changes.get(changes["system"], {}).items():
        words += ["--set", f"{changes['system']}.{key}={value}"]
    for section, keys in case.config.items():
        words += [word for k, v in keys.items() for word in ("--set", f"{section}.{k}={v}")]
    for name, value in case.options.items():
        if changes["system"] in ("sar", "retexo") and name in ("fanout", "batch_size"):
            continue
        words += [f"--{name.replace('_', '-')}", str(value)]
    loads = [os.getloadavg()[0]]
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate()
    loads.append(os.getloadavg()[0])
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}\n{err}")
    return {**json.loads(out.splitlines()[-1]), "load": sum(loads) / 2, "wall_s": time.perf_counter() - start}


def worst(law: dict[str, dict[str, int]], seen: dict[str, Any]) -> float:
    """The largest error of a kind of bytes that matters."""
    errors = [0.0]
    for channel in ("network", "store"):
        total = sum(seen[channel].values())
        for kind, count in seen[channel].items():
            if count >= 0.01 * total and total:
                errors.append(law[channel].get(kind, 0) / count - 1)
    return max(errors, key=abs)


def compared(case: Case, label: str, forecast: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """One row."""
    epochs, per_epoch = case.options["epochs"], result["seconds"]["per_epoch"]
    phases = [per_epoch[i : i + epochs] for i in range(0, len(per_epoch), epochs)]
    measured = {
        "memory_bytes": max(result["peak_rss_bytes"]),
        "seconds_per_epoch": mean(median(phase) for phase in phases),
    }
    return {
        "case": case.name,
        "ranks": case.ranks,
        "label": label,
        "predicted": forecast,
        "measured": {
            **measured,
            "bytes": {k: result["bytes"][k] for k in ("network", "store")},
            "parts": result["memory_bytes"],
        },
        "per_epoch": result["seconds"]["per_epoch"],
        "error": {
            "bytes": worst(forecast["bytes"], result["bytes"]),
            "memory": forecast["memory_bytes"] / measured["memory_bytes"] - 1,
            "time": forecast["seconds_per_epoch"] / measured["seconds_per_epoch"] - 1,
        },
        "load": result["load"],
        "wall_s": result["wall_s"],
    }


def show(row: dict[str, Any]) -> None:
    """One line."""
    predicted, measured, error = row["predicted"], row["measured"], row["error"]
    network, store = (sum(measured["bytes"][channel].values()) for channel in ("network", "store"))
    cells = [f"{network / 1e6:,.1f}", f"{store / 1e6:,.1f}", f"{error['bytes']:+.1%}"]
    cells += [f"{m / 2**20:,.0f}" for m in (predicted["memory_bytes"], measured["memory_bytes"])] + [
        f"{error['memory']:+.0%}"
    ]
    cells += [f"{s:.3g}" for s in (predicted["seconds_per_epoch"], measured["seconds_per_epoch"])] + [
        f"{error['time']:+.0%}"
    ]
    print(ROW.format(row["case"], row["ranks"], row["label"], *cells, f"{row['load']:.1f}"), flush=True)


def main() -> int:
    """Print the table; 1 if a prediction was further off than it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--npz", type=Path, help="a real graph")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows, plans = [], []
    print(f"{os.cpu_count()} cores\n" + ROW.format(*HEAD), flush=True)
    graphs = tempfile.TemporaryDirectory()
    for case in cases(args.npz, args.epochs, Path(graphs.name)):
        if args.only and case.name not in args.only:
            continue
        load = os.getloadavg()[0]
        with Terminal() as terminal, tempfile.TemporaryDirectory() as scratch:
            inputs.MOST_EDGES = case.most_edges
            made = plan(case.dataset, emit=terminal, ranks=case.ranks, config=case.config, **case.options).to_record()
            by_label = {f["label"]: f for f in made["systems"]}
            of_case = [
                compared(case, label, by_label[label], run(case, label, Path(scratch)))
                for label in case.systems
                if label in by_label
            ]
        for row in of_case:
            show(row)
        usual = [r for r in of_case if not SYSTEMS.find(r["predicted"]["system"]).for_slow_links]
        steps = {r["label"]: r["predicted"]["steps_per_epoch"] * made["epochs"] for r in usual or of_case}
        trained = [r for r in usual or of_case if steps[r["label"]] >= min(FEW, max(steps.values()))]
        shortest = min(trained, key=lambda r: r["measured"]["seconds_per_epoch"] * r["predicted"]["epochs"])["label"]
        chosen = f"{case.name}, {case.ranks} ranks: recommended {made['recommended']}, shortest passes {shortest}"
        print(f"{chosen}; planned in {made['seconds']:.0f} s at load {load:.1f}")
        rows += of_case
        plans.append(
            {
                "case": case.name,
                "ranks": case.ranks,
                "recommended": made["recommended"],
                "shortest": shortest,
                "load": load,
                "plan": made,
            }
        )
        if args.json:
            args.json.write_text(json.dumps({"cores": os.cpu_count(), "rows": rows, "plans": plans}, indent=2) + "\n")
    off = [
        f"{r['case']} {r['label']}: {what} {r['error'][what]:+.0%}"
        for r in rows
        for what, limit in LIMITS.items()
        if abs(r["error"][what]) > limit
    ]
    print("\n".join(off))
    return 1 if off else 0


if __name__ == "__main__":
    raise SystemExit(main())
