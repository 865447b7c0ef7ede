"""Whole runs over block rows: time that prefetching hides and costs, on a link and on loopback; epochs by layout.

See `collective_feed.py`.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import millrace as mr
from millrace.benchmarks.graphs import RECIPES, Recipe, load, make, stored
from millrace.benchmarks.namespaces import RUN_S, run_in
from millrace.pipeline.config.load import Job
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.model import Outline
from millrace.pipeline.setup.open_queue import queue_for_rank
from millrace.pipeline.setup.prepare import CutData, prepare, prepare_part
from millrace.pipeline.telemetry.control import Control
from millrace.pipeline.telemetry.events import EpochDone
from millrace.pipeline.telemetry.timers import Clock
from millrace.pipeline.training.context import Member
from millrace.pipeline.training.trainer import train_and_evaluate
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.partition.stage import partition_dataset
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph
from millrace.tests.contracts.process_ranks import run_ranks

FEATURES, CLASSES = 100, 47
"""As ogbn-products has."""
UNDISTURBED = {"checkpoint": {"every_s": 1e9}, "threads": 1, "system": "bulk"}
WAYS: dict[str, dict[str, Any]] = {"ahead": {}, "in turns": {"prefetch_bytes": 0}}
"""To fetch."""
GOAL, MOST_CPU = 0.7, 1.03


def dataset_at(path: Path, graph: Graph, train: int, test: int = 0) -> Path:
    """A store of the graph, made on first use, with random rows and labels, and with random nodes as seeds."""
    if not path.exists():
        rng = np.random.default_rng(0)
        x = rng.standard_normal((graph.num_nodes, FEATURES), np.float32)
        labels, none = rng.integers(0, CLASSES, graph.num_nodes), np.empty(0, np.int64)
        order = rng.permutation(graph.num_nodes)
        split = mr.Split(np.sort(order[:train]), none, np.sort(order[train : train + test]))
        mr.write_dataset(
            path, mr.Dataset(path.name, graph, ArrayFeatures(x), labels, split, CLASSES), features_format="npy"
        )
    return path


def known(name: str, cache: Path, train: int, test: int = 0) -> Path:
    """A store over one of the graphs of `graphs.py`."""
    folder = stored(name, cache)
    path = folder / f"blocks-{train}-{test}"
    return path if path.exists() else dataset_at(path, load(folder), train, test)


def rank(
    group: Any, job: dict[str, Any], store: str, parts: str | None, outline: dict[str, Any], out: str
) -> dict[str, Any]:
    """One rank's part in a run, as `pipeline.cluster.rank_main` does it, with an account of its processor time."""
    set_num_threads(1)
    told = Job.model_validate(job)
    if parts is None:
        prepared = prepare(told, mr.open_dataset(store, features="mapped"))
    else:
        prepared = prepare_part(told, CutData(Outline(**outline), Path(parts), group.rank, {}))
    cpu: list[float] = []

    def emit(event: Any) -> None:
        if isinstance(event, EpochDone):
            cpu.append(time.process_time())

    report = train_and_evaluate(
        prepared,
        Path(out),
        queue_for_rank(prepared, None, None),
        Member(group, group._ledger, Clock()),
        Control(emit),
    )
    # What the first epoch takes besides, such as loading compiled kernels, is left out.
    return {**asdict(report), "cpu_s": (cpu[-1] - cpu[0]) / max(1, len(cpu) - 1)}


def here(
    store: Path, scratch: Path, ranks: int, epochs: int, train: Mapping[str, Any], fanout: Sequence[int], **options: Any
) -> dict[str, Any]:
    """A run of gloo ranks on this machine: seconds, means or most over ranks, and the digest of the parameters."""
    table = {**UNDISTURBED, "ranks": ranks, "executor": "dask" if ranks > 1 else "inline", "epochs": epochs, **options}
    table |= {"train": {"evaluate_every": 0, **train}, "sampler": {"name": "neighbor", "fanout": list(fanout)}}
    model = {
        "name": "sage",
        "layers": len(fanout),
        "hidden": table.pop("hidden", 128),
        "dropout": table.pop("dropout", 0.0),
    }
    table |= {"dataset": str(store), "model": model}
    job = configure(table)
    dataset = mr.open_dataset(store, features="mapped")
    prepared, parts = prepare(job, dataset), None
    if prepared.system.partition.partitioner is not None:
        cut, blocks = prepared.system.partition.partitioner, prepared.system.parts_before(ranks)
        parts = scratch / f"{store.name}-{blocks}-{cut.name}-{job.seed}"
        partition_dataset(dataset, cut, blocks, parts, job.seed)
    with tempfile.TemporaryDirectory(dir=scratch) as out:
        reports = run_ranks(
            rank, ranks, job.model_dump(), str(store), parts and str(parts), asdict(prepared.outline), out,
            timeout_s=RUN_S, group_timeout_s=300.0,
        )  # fmt: skip
    seconds = {name: max(r["seconds"].get(name, 0.0) for r in reports) for name in reports[0]["seconds"]}
    return {
        "epoch_s": statistics.median(h["seconds"] for h in reports[0]["history"][1:]),
        "seconds": seconds,
        "wait_s": max(waited(r["seconds"]) for r in reports) / epochs,
        "sample_s": seconds["sample"] / epochs,
        "cpu_s": sum(r["cpu_s"] for r in reports),
        "sha256": reports[0]["parameters_sha256"],
        "test_accuracy": reports[0]["test_accuracy"],
        "best_accuracy": reports[0]["best_accuracy"],
        "minibatches": sum(r["minibatches"] for r in reports),
        "bytes": [r["bytes"] for r in reports],
        "parameters": sum(p.numel() for p in prepared.model.build().parameters()),
    }


def waited(seconds: Mapping[str, float]) -> float:
    """Seconds that a rank stood still for minibatches and rows."""
    return seconds["fetch"] + seconds["queue_wait"]


def over(args: argparse.Namespace, store: Path, bulk: Mapping[str, Any]) -> dict[str, Any]:
    """A run of ranks in namespaces."""
    words = (
        *("--dataset", str(store), "--system", "bulk", "--epochs", str(args.epochs), "--hidden", str(args.hidden)),
        *("--layers", str(len(args.overlap_fanout)), "--fanout", ",".join(map(str, args.overlap_fanout))),
    )
    settings = {"threads": 1, "train.evaluate_every": 0, "train.batch_size": args.batch_size, "features": "owned"}
    record, wire = run_in(
        args.addresses, args.namespaces, words, settings | {f"bulk.{key}": value for key, value in bulk.items()}
    )
    seconds = record["seconds"]
    return {
        "epoch_s": statistics.median(seconds["per_epoch"][1:]),
        "seconds": seconds,
        "wait_s": waited(seconds) / args.epochs,
        "sample_s": seconds["sample"] / args.epochs,
        "wire_bytes": max(wire),
        "bytes": record["bytes"]["network"],
        "sha256": record["parameters_sha256"],
    }


def measure_overlap(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Section ``overlap``."""
    recipe, P = Recipe(args.overlap_nodes, args.overlap_nodes * 25, {}), 2
    seeds = round(recipe.num_nodes * args.overlap_seeds)
    path = args.cache / "graphs" / f"blocks-{recipe.num_nodes}-{recipe.num_pairs}-{seeds}"
    store = path if path.exists() else dataset_at(path, make(recipe), seeds)
    settings = {name: {"topology": args.overlap_topology, **bulk} for name, bulk in WAYS.items()}
    settings["all rows local"] = {"topology": args.overlap_topology, "replication": P}
    ways = ["loopback", *(["link"] if args.namespaces else [])]
    fanout = ",".join(map(str, args.overlap_fanout))
    print(
        f"\nOVERLAP: {recipe.num_nodes:,} nodes, {seeds:,} seeds, {FEATURES} features, "
        f"topology {args.overlap_topology}, {P} ranks,"
    )
    print(
        f"SAGE {args.hidden}, batch {args.batch_size}, fanout {fanout}, {args.epochs} "
        f"epochs; medians of {args.rounds} rounds, in turns;"
    )
    print("seconds an epoch; waited: for minibatches and rows; of the network: beyond the run with all rows local")
    print(
        f"{'':<10}{'rows':<16}{'epoch s':>9}{'waited':>9}{'of network':>12}"
        f"{'hidden':>8}{'CPU s':>8}{'beside in turns':>17}",
        flush=True,
    )
    report["overlap"] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for way in ways:
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in settings}
            for n in range(args.rounds):
                # Whoever comes first meets a machine in another state.
                for name in list(settings)[n % 3 :] + list(settings)[: n % 3]:
                    if way == "link":
                        runs[name].append(over(args, store, settings[name]))
                    else:
                        train = {"batch_size": args.batch_size}
                        common: dict[str, Any] = {"hidden": args.hidden, "bulk": settings[name], "features": "owned"}
                        runs[name].append(
                            here(store, Path(scratch), P, args.epochs, train, args.overlap_fanout, **common)
                        )
            report["overlap"][way] = runs
            told_of_overlap(way, runs, args, report)


def told_of_overlap(
    way: str, runs: Mapping[str, list[dict[str, Any]]], args: argparse.Namespace, report: dict[str, Any]
) -> None:
    """A line for each setting, and what is not as it should be."""

    def middle(name: str, key: str) -> float:
        return statistics.median(r[key] for r in runs[name])

    local = middle("all rows local", "wait_s")
    beyond = {name: middle(name, "wait_s") - local for name in runs}
    hidden = 1 - beyond["ahead"] / beyond["in turns"] if beyond["in turns"] > 0 else None
    for name in runs:
        cells = f"{middle(name, 'epoch_s'):>9.2f}{middle(name, 'wait_s'):>9.2f}"
        cells += f"{beyond[name]:>12.2f}" if name in WAYS else f"{'':>12}"
        cells += f"{hidden:>8.0%}" if (way, name) == ("link", "ahead") and hidden is not None else f"{'':>8}"
        if way == "loopback":
            cells += f"{middle(name, 'cpu_s'):>8.2f}{middle(name, 'cpu_s') / middle('in turns', 'cpu_s'):>17.3f}"
        print(f"{way:<10}{name:<16}{cells}", flush=True)
    if way == "link" and args.bandwidth_mbit:
        first = runs["in turns"][0]
        rows, wire = first["bytes"]["features"] / len(args.namespaces), first["wire_bytes"]
        took = rows / (args.bandwidth_mbit * 1e6 / 8) / args.epochs
        print(
            f"  {rows / 1e6:,.0f} MB of rows from each rank in turns, {wire / 1e6:,.0f} MB "
            f"of all on the wire; {took:.2f} s an epoch"
        )
    if len({r["sha256"] for records in runs.values() for r in records}) > 1:
        report["problems"].append(
            f"overlap, {way}: parameters differ with who holds what, or with when rows are fetched"
        )
    if way == "link" and hidden is not None and hidden < GOAL:
        report["problems"].append(
            f"overlap: {hidden:.0%} of the network's wait is hidden; the goal is {GOAL:.0%} at 1 Gb/s"
        )
    if way == "loopback" and middle("ahead", "cpu_s") > MOST_CPU * middle("in turns", "cpu_s"):
        more = middle("ahead", "cpu_s") / middle("in turns", "cpu_s") - 1
        report["problems"].append(
            f"overlap: fetching ahead takes {more:+.1%} processor time; at most {MOST_CPU - 1:.0%} is meant"
        )


def measure_times(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Section ``times``."""
    V = RECIPES["small"].num_nodes
    store, fanout, batch, epochs = known("small", args.cache, V // 2), (15, 10, 5), 256, args.epochs
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    layouts: dict[str, dict[str, Any]] = {"replicated": {}, "partitioned, c = 1": {"topology": "partitioned"}}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(args.rounds):
            for ranks in (1, 2, 4):
                with_full = (
                    {"partitioned, c = p": {"topology": "partitioned", "replication": ranks}} if ranks > 1 else {}
                )
                for name, bulk in (layouts | with_full).items():
                    # The same seeds in a step, whatever the number of ranks.
                    train = {"batch_size": batch, "minibatches_per_step": 4}
                    run = here(store, Path(scratch), ranks, epochs, train, fanout, hidden=args.hidden, bulk=bulk)
                    found.setdefault((ranks, name), []).append(run)
    print(
        f"\nTIMES: graph 'small', {V:,} nodes, {V // 2:,} seeds, batch {batch}, fanout "
        f"{','.join(map(str, fanout))}, 4 minibatches a step,"
    )
    print(
        f"SAGE {args.hidden}, a thread a rank; of {args.rounds} rounds the "
        f"soonest; seconds an epoch, CPU over all ranks"
    )
    print(
        f"{'ranks':>6}  "
        f"{'topology':<20}{'epoch s':>9}{'beside replicated':>19}{'sampling s':>12}{'waited s':>10}{'CPU s':>8}"
    )
    told = []
    for (ranks, name), runs in found.items():
        best = {key: min(r[key] for r in runs) for key in ("epoch_s", "sample_s", "wait_s", "cpu_s")}
        beside = best["epoch_s"] / min(r["epoch_s"] for r in found[ranks, "replicated"])
        print(
            f"{ranks:>6}  {name:<20}{best['epoch_s']:>9.3f}{beside:>19.2f}{best['sample_s']:>12.3f}"
            f"{best['wait_s']:>10.3f}{best['cpu_s']:>8.3f}",
            flush=True,
        )
        told.append({"ranks": ranks, "topology": name, "runs": runs, **best})
    report["times"] = told
    for ranks in (1, 2, 4):
        if len({r["sha256"] for (n, _), runs in found.items() if n == ranks for r in runs}) > 1:
            report["problems"].append(f"times: parameters of {ranks} ranks differ with the topology")
