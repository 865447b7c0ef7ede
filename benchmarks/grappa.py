"""Isolated training (Grappa) against sampling with partitioned features and against full batches, over links of any
speed.

    python benchmarks/grappa.py --json grappa.json
    python benchmarks/grappa.py --only speed --bandwidth-mbit 100 --json grappa.json

Xu, Siebenbrunner, Bindschaedler, arXiv 2602.01872. What each way to train learns is another question,
``grappa_accuracy.py``, and what it takes to cut a large graph a third, ``cutting.py``.

``speed``   4 ranks, GraphSAGE of 3 layers of 256, 1024 seeds a rank and step, fanout 15,10,5: seconds of an epoch under
            ``grappa``, ``bulk`` (features owned, fetched ahead, 5 % of rows hot) and ``sar``. ``grappa`` is as
            published, without a halo, and its switches are left to ``switch``. On loopback, or as root with
            ``--bandwidth-mbit`` over links of that rate between network namespaces, which are made. Links that were
            measured before stand in ``--json`` and are told again beside the new one; ``--plot`` draws them all.
            ``records/grappa.json`` holds those of the docs.
``model``   what an epoch of the three would take with 2 to 16 parts, and with 2 to 6 layers, on as many machines like
            this one, a thread each, over links of 10 Gb/s, 1 Gb/s and 100 Mb/s without delay: a prediction of
            `millrace.plan` from rehearsals of at most 4 ranks, and not a measurement. A graph of `--model-nodes`, as
            many seeds.
``bytes``   bytes that each rank sends in a step, beside 2 (P-1)/P 4 parameters, for depths 2 to 6 and 2 to 16 parts;
            and what a step's gradients would take over typical links, by the model of
            `millrace.pipeline.planning.network`.
``memory``  what the largest rank sees and holds, in 2 to 16 parts, with and without a halo, beside the whole graph.
``switch``  seconds at a switch where what comes next is read and joined then, and where that was done ahead.

The graph is R-MAT: it has hubs and no clusters, so parts are random (``hash``), and METIS would not make them better.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import millrace as mr
from millrace.benchmarks.graphs import Recipe, make
from millrace.benchmarks.links import links
from millrace.benchmarks.namespaces import run_in
from millrace.benchmarks.partitioned_runs import FEATURES, dataset_at, here, waited
from millrace.pipeline.assembly.parts import Parts
from millrace.pipeline.planning.network import LINKS, Link
from millrace.stages.messages import Arrays, Phase
from millrace.stages.partition.registry import PARTITIONERS
from millrace.stages.partition.stage import partition_dataset
from millrace.stages.placement.chunks import Chunks
from millrace.storage.ledger import Ledger

FANOUT = (15, 10, 5)
WAYS: dict[str, dict[str, Any]] = {
    "grappa": {"partition.method": "hash", "grappa.halo": 0},
    "bulk": {"features": "owned", "bulk.cache_fraction": 0.05},
    "sar": {"partition.method": "hash"},
}
MODELLED = {"bulk": "bulk, owned features", "grappa": "grappa", "sar": "sar"}
"""Label of each system in a plan."""
MODEL_MBIT = (10_000, 1_000, 100)
GOALS = {100.0: 4.0, 1000.0: 1.5}
"""Mb/s, and how many times sooner than ``bulk`` an epoch should be over."""


def store_of(args: argparse.Namespace, nodes: int | None = None, seeds: int | None = None) -> Path:
    """A store of an R-MAT graph of so many nodes, made on first use."""
    nodes = nodes or args.nodes
    recipe, seeds = Recipe(nodes, nodes * args.degree // 2, {}), seeds or round(nodes * args.seeds)
    path = args.cache / "graphs" / f"grappa-{nodes}-{recipe.num_pairs}-{seeds}"
    return path if path.exists() else dataset_at(path, make(recipe), seeds)


def measure_speed(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Section ``speed``."""
    if not args.bandwidth_mbit:
        measure_link(args, report, ("127.0.0.1",) * args.ranks, None)
        return
    with links(args.ranks, args.bandwidth_mbit) as made:
        spaces, addresses = zip(*((path.name, address) for path, address in made))
        measure_link(args, report, addresses, spaces)


def measure_link(
    args: argparse.Namespace, report: dict[str, Any], addresses: Sequence[str], spaces: Sequence[str] | None
) -> None:
    """Section ``speed`` between ranks at these addresses, in these network namespaces."""
    store = store_of(args)
    link = f"{args.bandwidth_mbit:g} Mb/s" if spaces else "loopback"
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in args.systems}
    for n in range(args.rounds):
        # Whoever comes first meets a machine in another state.
        for name in args.systems[n % len(args.systems) :] + args.systems[: n % len(args.systems)]:
            of_model = {
                "dataset": store,
                "system": name,
                "epochs": args.epochs,
                "hidden": args.hidden,
                "layers": len(FANOUT),
            }
            words = tuple(str(word) for key, value in of_model.items() for word in (f"--{key}", value))
            words += () if name == "sar" else ("--fanout", ",".join(map(str, FANOUT)))
            settings = {"threads": 1, "train.evaluate_every": 0, **WAYS[name]}
            settings |= {} if name == "sar" else {"train.batch_size": args.batch_size}
            record, wire = run_in(addresses, spaces, words, settings)
            runs[name].append({"record": record, "wire": wire})
    seeds = round(args.nodes * args.seeds)
    told: dict[str, Any] = {"bandwidth_mbit": args.bandwidth_mbit, "ways": {}}
    for name, found in runs.items():
        records = [f["record"] for f in found]
        steps = records[0]["epochs"] * (1 if name == "sar" else -(-seeds // (args.batch_size * len(addresses))))
        sent = max(sum(rank["network"].values()) for rank in records[0]["bytes"]["per_rank"])
        told["ways"][name] = {
            # The first epoch loads compiled kernels.
            "epoch_s": [statistics.median(r["seconds"]["per_epoch"][1:]) for r in records],
            "waited_s": statistics.median(waited(r["seconds"]) / r["epochs"] for r in records),
            "reduce_s": statistics.median(r["seconds"]["reduce"] / r["epochs"] for r in records),
            "sent_a_step": sent / steps,
            "sent_an_epoch": sent / records[0]["epochs"],
            "rss": max(records[0]["peak_rss_bytes"]),
            "edges": records[0]["sampled_edges"] / records[0]["epochs"],
        }
    report.setdefault("speed", {})[link] = told
    print(
        f"\nSPEED: {args.nodes:,} nodes, mean degree {args.degree}, {seeds:,} seeds, {FEATURES} features,",
        f"{len(addresses)} ranks, SAGE {args.hidden}x{len(FANOUT)},\nbatch {args.batch_size} a rank, fanout",
        f"{','.join(map(str, FANOUT))}; medians of {args.rounds} rounds of {args.epochs} epochs, in turns;",
        "MB of the rank that sends most",
    )
    print(
        f"{'link':<12}{'system':<8}{'epoch s':>9}{'bulk / it':>11}{'waited s':>10}"
        f"{'reduce s':>10}{'MB a step':>11}{'MB an epoch':>13}",
        f"{'edges an epoch':>15}{'RSS MiB':>9}",
    )
    for known, speeds in sorted(report["speed"].items(), key=lambda item: -(item[1]["bandwidth_mbit"] or 1e12)):
        middle = {name: statistics.median(way["epoch_s"]) for name, way in speeds["ways"].items()}
        for name, way in speeds["ways"].items():
            ratio = f"{middle['bulk'] / middle[name]:.2f}x" if "bulk" in middle else ""
            print(
                f"{known:<12}{name:<8}{middle[name]:>9.2f}{ratio:>11}{way['waited_s']:>10.2f}{way['reduce_s']:>10.2f}",
                f"{way['sent_a_step'] / 1e6:>10.2f}{way['sent_an_epoch'] / 1e6:>13.1f}"
                f"{way['edges']:>16,.0f}{way['rss'] / 2**20:>9,.0f}",
                flush=True,
            )
        goal = GOALS.get(speeds["bandwidth_mbit"] or 0)
        if goal and {"bulk", "grappa"} <= middle.keys() and middle["bulk"] < goal * middle["grappa"]:
            found = f"{middle['bulk'] / middle['grappa']:.2f}x"
            report["problems"].append(f"speed, {known}: {found}; the goal is {goal:g}x")


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Seconds of an epoch against bandwidth, measured; how many times sooner ``grappa`` is than ``bulk``, predicted for
    other parts."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 4.0), layout="constrained")
    speeds = report.get("speed", {})
    measured = sorted((s["bandwidth_mbit"], s["ways"]) for s in speeds.values() if s["bandwidth_mbit"])
    for name, marker in zip(WAYS, "os^"):
        points = [(mbit, statistics.median(ways[name]["epoch_s"])) for mbit, ways in measured if name in ways]
        if points:
            (line,) = left.plot(*zip(*points), marker=marker, label=name)
            local = speeds.get("loopback", {}).get("ways", {}).get(name)
            if local:
                left.axhline(statistics.median(local["epoch_s"]), color=line.get_color(), linestyle=":", linewidth=1)
    left.set(
        xscale="log",
        yscale="log",
        xlabel="link of each rank, Mb/s",
        ylabel="seconds an epoch",
        title="measured; dotted: on loopback",
    )
    modelled = {(m["layers"], m["ranks"], m["system"]): m for m in report.get("model", ())}
    mbit = np.geomspace(10, 25_000, 200)
    for layers, ranks, system in modelled:
        if system == "grappa" and layers == len(FANOUT):
            bulk, grappa = (
                m["compute_s"] + m["bytes"] * 8 / (mbit * 1e6)
                for m in (modelled[layers, ranks, way] for way in ("bulk", "grappa"))
            )
            right.plot(mbit, bulk / grappa, label=f"{ranks} parts")
    right.axhline(1, color="black", linewidth=0.8)
    right.set(xscale="log", xlabel="link of each rank, Mb/s", ylabel="bulk / grappa, seconds", title="predicted")
    for axes in (left, right):
        axes.xaxis.set_major_formatter("{x:,g}")
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter("{x:g}")
    figure.savefig(path, dpi=150)


def measure_model(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Section ``model``."""
    seeds, known = round(args.nodes * args.seeds), Link(1e9 / 8, 0.0)
    store = store_of(args, args.model_nodes, seeds)
    print(
        f"\nMODEL: predicted, not measured. {args.model_nodes:,} nodes, mean degree "
        f"{args.degree}, {seeds:,} seeds, SAGE of {args.hidden};"
    )
    print(
        "seconds of an epoch: without messages, and over a link; MB that a rank sends; "
        "how many times sooner grappa is than bulk"
    )
    print(
        f"{'layers':>6}{'parts':>6}  {'system':<8}{'compute':>9}{'MB':>9}"
        + "".join(f"{f'{mbit:,} Mb/s':>14}{'':>7}" for mbit in MODEL_MBIT)
    )
    report["model"] = []
    shapes = [*((len(FANOUT), p) for p in args.parts), *((n, args.ranks) for n in args.depths)]
    for layers, ranks in dict.fromkeys(shapes):
        told = mr.plan(
            store,
            cluster=mr.Cluster(hosts=ranks, link=known),
            model=mr.GraphSAGE(hidden=args.hidden, layers=layers),
            fanout=(*FANOUT, *FANOUT[-1:] * layers)[:layers],
            batch_size=args.batch_size,
            ranks=ranks,
            threads=1,
            config={"partition": {"method": "hash"}, "grappa": {"halo": 0}, "bulk": {"cache_fraction": 0.05}},
        )
        forecasts = {f.label: f for f in told.systems}
        times: dict[str, dict[int, float]] = {}
        for label, name in MODELLED.items():
            f = forecasts[name]
            if f.seconds_per_epoch is None:
                raise SystemExit(f"{name} on {ranks} ranks: {f.arithmetic}")
            compute, wire = f.seconds_per_epoch - f.network_seconds, f.network_seconds * known.bandwidth
            times[label] = {mbit: compute + wire / (mbit * 1e6 / 8) for mbit in MODEL_MBIT}
            report["model"].append(
                {"layers": layers, "ranks": ranks, "system": label, "compute_s": compute, "bytes": wire}
            )
            sooner = {
                mbit: f"{times['bulk'][mbit] / times[label][mbit]:.1f}x" if label == "grappa" else ""
                for mbit in MODEL_MBIT
            }
            print(
                f"{layers:>6}{ranks:>6}  {label:<8}{compute:>9.2f}{wire / 1e6:>9.1f}"
                + "".join(f"{times[label][mbit]:>14.2f}{sooner[mbit]:>7}" for mbit in MODEL_MBIT),
                flush=True,
            )


def measure_bytes(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Section ``bytes``."""
    store, hidden, epochs = store_of(args, 4_000), 64, 2
    print(
        f"\nBYTES: 4,000 nodes, SAGE of {hidden}, {epochs} epochs; a rank and "
        f"step, and the ring's 2 (P-1)/P 4 parameters"
    )
    heads = f"{'layers':>7}{'parts':>6}{'parameters':>12}{'gradients':>11}{'formula':>10}{'control':>9}{'rows':>6}"
    print(heads, end="")
    print("".join(f"{name + ' ms':>17}" for name in LINKS))
    report["bytes"] = []
    with tempfile.TemporaryDirectory() as scratch:
        for layers in args.depths:
            for ranks in args.parts:
                system = {"system": "grappa", "partition": {"method": "hash"}, "grappa": {"repartition_every": 1}}
                run = here(
                    store, Path(scratch), ranks, epochs, {"batch_size": 64}, (3,) * layers, hidden=hidden, **system
                )
                steps, P = run["minibatches"] / ranks, run["parameters"]
                mine = max(run["bytes"], key=lambda kinds: kinds["network"]["gradients"])["network"]
                formula = 2 * (ranks - 1) / ranks * 4 * P
                sent, control = mine["gradients"] / steps, mine["control"] / steps
                rows = sum(kinds["network"][k] for kinds in run["bytes"] for k in ("features", "activations", "graph"))
                # A ring takes P - 1 turns to add up and P - 1 to hand out.
                ms = {
                    name: 1e3 * (sent / link.bandwidth + 2 * (ranks - 1) * link.latency_s)
                    for name, link in LINKS.items()
                }
                print(
                    f"{layers:>7}{ranks:>6}{P:>12,}{sent:>11,.0f}{formula:>10,.0f}{control:>9,.0f}{rows:>6}"
                    + "".join(f"{t:>17,.2f}" for t in ms.values()),
                    flush=True,
                )
                report["bytes"].append(
                    {
                        "layers": layers,
                        "ranks": ranks,
                        "parameters": P,
                        "gradients": sent,
                        "formula": formula,
                        "control": control,
                        "ms": ms,
                    }
                )
                if rows or abs(sent - formula) > 0.01 * formula + 64:
                    report["problems"].append(
                        f"bytes, {layers} layers, {ranks} parts: {sent:,.0f} of gradients for {formula:,.0f}"
                    )


def measure_memory(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Section ``memory``."""
    store = store_of(args)
    dataset = mr.open_dataset(store, features="mapped")
    V, E = dataset.num_nodes, dataset.graph.num_edges
    row = FEATURES * dataset.features.dtype.itemsize
    whole = dataset.graph.nbytes + V * row
    print(
        f"\nMEMORY: {V:,} nodes, {E:,} edges: {whole / 2**20:,.0f} MiB of "
        f"structure and rows; of the rank that sees most"
    )
    print(f"{'parts':>6}{'halo':>5}{'nodes':>11}{'of all':>8}{'edges':>13}{'of all':>8}{'MiB':>8}{'of all':>8}")
    report["memory"] = []
    with tempfile.TemporaryDirectory() as scratch:
        for parts in args.parts:
            folder = Path(scratch) / str(parts)
            partition_dataset(dataset, PARTITIONERS["hash"](), parts, folder)
            for halo in (0, 1):
                seen = placed(folder, 0, parts, halo)
                nbytes = seen.graph.nbytes + seen.graph.num_nodes * row
                line = {
                    "parts": parts,
                    "halo": halo,
                    "nodes": seen.graph.num_nodes,
                    "edges": seen.graph.num_edges,
                    "bytes": nbytes,
                }
                report["memory"].append(line)
                print(
                    f"{parts:>6}{halo:>5}{line['nodes']:>11,}{line['nodes'] / V:>8.1%}"
                    f"{line['edges']:>13,}{line['edges'] / E:>8.1%}"
                    f"{nbytes / 2**20:>8,.0f}{nbytes / whole:>8.1%}",
                    flush=True,
                )


def placed(
    folder: Path, rank: int, ranks: int, halo: int, phase: int = 0, before: Any = None, ahead: bool = False
) -> Any:
    """Place a phase's data. With `ahead` the next phase's data is under way when this returns."""
    job = isolated_job(rank, ranks)
    data = Parts(folder, torch.float32, matrix=False).part(rank)
    return Chunks(PARTITIONERS["hash"](), halo=halo, ahead=ahead).place(
        data, Phase(phase, phase, phase + 1), job, before
    )


def isolated_job(rank: int, ranks: int) -> Any:
    """A `RankJob` as far as placement asks for it."""
    group = SimpleNamespace(rank=rank, size=ranks)
    return SimpleNamespace(group=group, ledger=Ledger(), dtype=torch.float32, epochs=10**6, seed=0, arrays=Arrays())


def measure_switch(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Section ``switch``."""
    store, parts = store_of(args), args.ranks
    dataset = mr.open_dataset(store, features="mapped")
    print(
        f"\nSWITCH: {dataset.num_nodes:,} nodes, {dataset.graph.num_edges:,} edges, "
        f"{parts} parts; seconds, medians of {args.rounds}"
    )
    print(f"{'halo':>5}{'chunk MiB':>11}{'seen MiB':>10}{'read then':>11}{'read ahead':>12}{'hidden':>8}")
    report["switch"] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "parts"
        partition_dataset(dataset, PARTITIONERS["hash"](), parts, folder)
        for halo in (0, 1):
            then, after, seen_mib = [], [], 0.0
            for _ in range(args.rounds):
                for ahead, found in ((False, then), (True, after)):
                    first = placed(folder, 0, parts, halo, ahead=ahead)
                    if first.following is not None:
                        first.following.result()
                    start = time.perf_counter()
                    second = placed(folder, 0, parts, halo, 1, first, ahead)
                    found.append(time.perf_counter() - start)
                    seen_mib = (second.graph.nbytes + second.graph.num_nodes * FEATURES * 4) / 2**20
                    del first, second
            size = placed(folder, 0, parts, 0)
            mib = (size.graph.nbytes + size.graph.num_nodes * FEATURES * 4) / 2 / 2**20
            line = {"halo": halo, "then_s": then, "ahead_s": after, "chunk_mib": mib, "seen_mib": seen_mib}
            report["switch"].append(line)
            a, b = statistics.median(then), statistics.median(after)
            print(f"{halo:>5}{mib:>11,.0f}{seen_mib:>10,.0f}{a:>11.3f}{b:>12.3f}{1 - b / a:>8.0%}", flush=True)


Measure = Callable[[argparse.Namespace, dict[str, Any]], None]
SECTIONS: dict[str, Measure] = {
    "speed": measure_speed,
    "model": measure_model,
    "bytes": measure_bytes,
    "memory": measure_memory,
    "switch": measure_switch,
}


def arguments() -> argparse.Namespace:
    """The command line."""

    def words(text: str) -> tuple[str, ...]:
        return tuple(text.split(","))

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(n) for n in text.split(","))

    parser = argparse.ArgumentParser(description="Isolated training: time, bytes and memory.")
    parser.add_argument("--only", type=words, default=tuple(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="a PNG or SVG of the links measured so far, and of the model")
    cache = Path.home() / ".cache" / "millrace-benchmarks"
    parser.add_argument("--cache", type=Path, default=cache, help="generated graphs")
    parser.add_argument("--nodes", type=int, default=400_000)
    parser.add_argument("--model-nodes", type=int, default=100_000, help="of the graph of section model")
    parser.add_argument("--degree", type=int, default=50, help="mean, before duplicates go")
    parser.add_argument("--seeds", type=float, default=0.08, help="share of nodes trained on, as of ogbn-products")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=3, help="of which the first is left out of seconds an epoch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--systems", type=words, default=tuple(WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--bandwidth-mbit", type=float, help="of links between ranks in namespaces; needs root")
    parser.add_argument("--depths", type=numbers, default=(2, 3, 4, 5, 6))
    parser.add_argument("--parts", type=numbers, default=(2, 4, 8, 16))
    args = parser.parse_args()
    args.cache = args.cache.resolve()
    for given, known in ((args.only, SECTIONS), (args.systems, WAYS)):
        if unknown := set(given) - set(known):
            parser.error(f"{', '.join(sorted(unknown))} is unknown; known are {', '.join(known)}")
    counts = (args.rounds, args.nodes, args.degree, args.batch_size, args.ranks, *args.depths, *args.parts)
    if min(counts) < 1 or args.epochs < 2:
        parser.error("numbers must be at least 1, and --epochs at least 2")
    return args


def main() -> int:
    """Measure and print. Returns 1 if something is not as formulas, or goals, have it."""
    args = arguments()
    report: dict[str, Any] = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    report |= {"options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}, "problems": []}
    report["cores"] = os.cpu_count()
    for name, measure in SECTIONS.items():
        if name in args.only:
            measure(args, report)
            if args.json:
                args.json.write_text(json.dumps(report, indent=1, default=np.ndarray.tolist) + "\n")
    if args.plot:
        draw(report, args.plot)
    for text in report["problems"]:
        print(f"PROBLEM: {text}")
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
