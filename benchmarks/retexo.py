"""RETEXO against standard full-graph training: bytes, options that save more of them and cost accuracy, clients, and
time over slow links.

    python benchmarks/retexo.py --quick
    python benchmarks/retexo.py --data DIR --json retexo.json
    python benchmarks/retexo.py --data DIR --only links \
        --namespaces a,b,c,d --addresses 10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4 \
        --bandwidth-mbit 100 --latency-ms 0.1

Kolluri, Choudhary, Hooi, Saxena, arXiv 2302.13053. Standard training is ``sar`` with ``sar.mode = "halo"``, the same
convolutions, end to end; parts are random (``hash``). Bytes are those of the ledger: payload, counted by who sends it,
over all ranks.

``bytes``   the ogbn-arxiv graph, undirected, 128 random features, 2 layers of 256, 4 parts. Training is cut short
            and scaled: bytes of every kind are linear in epochs, which three lengths show. ``--whole`` trains RETEXO
            for all of them, ``--plain`` leaves out its variants.
``exact``   rows that RETEXO moves against the formula, B counted from the graph alone, in 2, 4 and 8 parts.
``sync``    gradient synchronisation and rounding: bytes saved, accuracy lost. 4 clients on one rank.
``nodes``   a client for each node.
``links``   predicted time over typical links; with ``--namespaces``, prediction and measurement over the link between
            them. They are network namespaces that exist, each with the address given, and the driver, the scheduler
            and the first worker share the first.

The formulas, with B rows received over all ranks, F features, d the hidden width, R rounds, b bytes a number: standard
training b B (F + 2 R d (L-1)), where rows of the input are kept; RETEXO b B (F + d (L-1)).

The data are the ``.npz`` files of `--data`, of ``MILLRACE_DATA``, or of ``../shared/data`` beside this repository.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from retexo_links import extrapolated, over_links, over_namespaces

import millrace as mr
from millrace.stages.partition.registry import PARTITIONERS
from millrace.storage.features import ArrayFeatures

FLOAT_BYTES = 4
FEATURES = 128
SECTIONS = ("bytes", "exact", "sync", "nodes", "links")
QUICK = "sbm:nodes=3000,classes=8,degree=12,features=64"
ROWS = ("features", "activations")
UNDISTURBED = {"checkpoint": {"every_s": 1e9}, "partition": {"method": "hash"}, "cluster": {"dashboard_port": 0}}
"""A checkpoint by the clock would add bytes that depend on the clock."""


def train(dataset: mr.Dataset, system: str, epochs: int, **options: Any) -> dict[str, Any]:
    """The record of one run, whose folder is gone."""
    config = {
        name: {**UNDISTURBED.get(name, {}), **options.pop(name, {})}
        for name in {*UNDISTURBED, "train", "sar", "retexo"}
    }
    with tempfile.TemporaryDirectory() as folder:
        result = mr.run(dataset, system=system, epochs=epochs, out=Path(folder) / "run", config=config, **options)
    return result.to_record()


def rows_and_gradients(record: dict[str, Any]) -> tuple[int, int]:
    """Bytes over all ranks."""
    sent = record["bytes"]["network"]
    return sum(sent[kind] for kind in ROWS), sent["gradients"]


def boundary_rows(dataset: mr.Dataset, parts: int, seed: int = 0) -> int:
    """B over all parts, from the edges alone: pairs of a row and another part that reads it."""
    graph = dataset.graph
    owner = PARTITIONERS["hash"]().assign(graph, parts, seed).part(np.arange(graph.num_nodes)).astype(np.int64)
    reader = np.repeat(owner, np.diff(graph.indptr))
    there = owner[graph.indices] != reader
    return len(np.unique(reader[there] * graph.num_nodes + graph.indices[there]))


def arxiv(args: argparse.Namespace) -> mr.Dataset:
    """The graph of ogbn-arxiv with random features; a generated one with ``--quick``."""
    if args.quick:
        return mr.open_dataset(QUICK)
    dataset = mr.open_dataset(args.data / "ogbn_arxiv.npz", options=mr.ReadOptions(direction="undirected"))
    x = np.random.default_rng(0).standard_normal((dataset.num_nodes, FEATURES), np.float32)
    return replace(dataset, features=ArrayFeatures(x))


def linear(runs: Sequence[dict[str, Any]]) -> bool:
    """True if the bytes of every rank, channel and kind in three runs lie on a line."""
    a, b, c = runs
    guess = extrapolated(a, b, c["epochs"])
    return guess["bytes"] == dict(c["bytes"]) and guess["waits"] == c["waits"]


def measure_bytes(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Bytes by kind of R rounds, RETEXO and standard."""
    dataset, rounds = arxiv(args), args.rounds
    hidden, ranks = (64 if args.quick else 256), 4
    common: dict[str, Any] = {"ranks": ranks, "threads": 1, "model": mr.GraphSAGE(hidden=hidden, layers=2)}
    B, F, b = boundary_rows(dataset, ranks), dataset.features.num_features, FLOAT_BYTES
    print(
        f"\nBYTES: {dataset.num_nodes:,} nodes, {dataset.graph.num_edges:,} edges, F = {F}, "
        f"2 layers of {hidden}, {ranks} random parts,"
    )
    print(f"{rounds} rounds (RETEXO: for each layer); {B:,} boundary rows over all parts", flush=True)

    def scaled(name: str, system: str, lengths: Sequence[int], upto: int, **options: Any) -> dict[str, Any]:
        runs = [train(dataset, system, n, **common, train={"evaluate_every": 0}, **options) for n in lengths]
        proven = linear(runs) if len(runs) == 3 else None
        if proven is False:
            report["problems"].append(f"{name}: bytes of {lengths} epochs do not lie on a line")
        phases = max(1, len(runs[0]["phases"]))
        full = extrapolated(runs[0], runs[1], upto * phases) if len(runs) > 1 else runs[0]
        took = [round(r["seconds"]["total"]) for r in runs]
        print(f"  {name}: {took} s", file=sys.stderr, flush=True)
        how = (
            f"measured, {upto}"
            if len(runs) == 1
            else f"from {','.join(map(str, lengths))}" + (", linear" if proven else "")
        )
        return {"name": name, "how": how, "record": full}

    lengths = (2, 3, 5)
    sar = {"mode": "halo"}
    every = args.local_steps
    found = [
        scaled("standard (sar halo), all rows", "sar", lengths, rounds, sar={**sar, "prune": False}),
        *([] if args.quick else [scaled("standard (sar halo), pruned", "sar", lengths, rounds, sar=sar)]),
    ]
    standard = len(found)
    found.append(scaled("RETEXO v3", "retexo", (rounds,) if args.whole else lengths, rounds))
    if not (args.quick or args.whole or args.plain):
        found += [
            scaled("RETEXO v3 fp16", "retexo", lengths, rounds, retexo={"rounding": "fp16"}),
            scaled("RETEXO v3 int8", "retexo", lengths, rounds, retexo={"rounding": "int8"}),
            scaled(
                f"RETEXO v3 int8, FedAvg every {every}",
                "retexo", lengths, -(-rounds // every), retexo={"rounding": "int8", "local_steps": every},
            ),
            scaled("RETEXO v1", "retexo", lengths, rounds, retexo={"mode": "v1"}),
        ]  # fmt: skip
    formula = {"standard": b * B * (F + 2 * rounds * hidden), "retexo": b * B * (F + hidden)}
    told = {
        kind: [f["record"]["bytes"]["network"][kind] for f in found] for kind in found[0]["record"]["bytes"]["network"]
    }
    print(f"{'MB':<34}{'features':>10}{'activations':>13}{'gradients':>11}{'graph':>8}{'control':>9}  how")
    for n, f in enumerate(found):
        mb = {kind: values[n] / 1e6 for kind, values in told.items()}
        print(
            f"{f['name']:<34}{mb['features']:>10,.1f}{mb['activations']:>13,.1f}{mb['gradients']:>11,.1f}"
            f"{mb['graph']:>8,.1f}"
            f"{mb['control']:>9,.2f}  {f['how']}"
        )
    print(f"{'formula, standard':<34}{b * B * F / 1e6:>10,.1f}{b * B * 2 * rounds * hidden / 1e6:>13,.1f}")
    print(f"{'formula, RETEXO v3':<34}{b * B * F / 1e6:>10,.1f}{b * B * hidden / 1e6:>13,.1f}")

    rows, gradients = zip(*(rows_and_gradients(f["record"]) for f in found))
    standards = [
        ("formula", formula["standard"], gradients[0]),
        *((f["name"], rows[n], gradients[n]) for n, f in enumerate(found[:standard])),
    ]
    print(
        f"\ntimes less than standard: rows only, and with gradient synchronisation\n{'':<34}"
        + "".join(f"{s[0]:>32}" for s in standards)
    )
    ratios = []
    for n in range(standard, len(found)):
        cells = [(s / rows[n], (s + g) / (rows[n] + gradients[n])) for _, s, g in standards]
        ratios.append(
            {
                "name": found[n]["name"],
                **{s[0]: {"rows": c[0], "with_gradients": c[1]} for s, c in zip(standards, cells)},
            }
        )
        print(f"{found[n]['name']:<34}" + "".join(f"{f'{r:,.0f} and {g:,.0f}':>32}" for r, g in cells))
    if rows[standard] != formula["retexo"]:
        report["problems"].append(
            f"RETEXO v3 moved {rows[standard]} bytes of rows; the formula has {formula['retexo']}"
        )
    report["bytes"] = {"boundary_rows": B, "formula": formula, "runs": found, "ratios": ratios}


def measure_exact(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Rows' bytes against the formula, to the byte."""
    dataset = mr.open_dataset(QUICK) if args.quick else mr.open_dataset(args.data / "cora.npz")
    F, hidden, layers = dataset.features.num_features, 24, 3
    print(f"\nEXACT: {dataset.name}, {layers} layers of {hidden}")
    print(
        f"{'parts':<7}{'rounding':<10}{'rows':>8}{'features':>13}{'activations':>13}{'formula':>25}"
        f"{'exchanges':>11}{'equal':>7}"
    )
    for parts in (2, 4) if args.quick else (2, 4, 8):
        for rounding, row in {"full": lambda d: FLOAT_BYTES * d, "int8": lambda d: d + FLOAT_BYTES}.items():
            if rounding == "int8" and parts != 2:
                continue
            record = train(
                dataset,
                "retexo",
                2,
                ranks=parts,
                threads=1,
                model=mr.GraphSAGE(hidden=hidden, layers=layers),
                retexo={"rounding": rounding},
            )
            B = boundary_rows(dataset, parts)
            wanted = {"features": B * row(F), "activations": B * row(hidden) * (layers - 1)}
            got = {kind: record["bytes"]["network"][kind] for kind in ROWS}
            waits = sum(record["waits"]["network"][kind] for kind in ROWS)
            equal = got == wanted and waits == layers
            numbers = f"{wanted['features']:,} + {wanted['activations']:,}"
            print(
                f"{parts:<7}{rounding:<10}{B:>8,}{got['features']:>13,}{got['activations']:>13,}{numbers:>25}"
                f"{waits:>11}{'yes' if equal else 'no':>7}",
                flush=True,
            )
            if not equal:
                report["problems"].append(
                    f"{parts} parts, {rounding}: {got} in {waits} exchanges, expected {wanted} in {layers}"
                )
            report["exact"].append(
                {"parts": parts, "rounding": rounding, "boundary_rows": B, "got": got, "wanted": wanted, "waits": waits}
            )


TASKS: dict[str, dict[str, Any]] = {
    "cora": {"split": "public", "read": {"normalize_features": "row"}, "lr": 0.01, "dropout": 0.5},
    "coauthor_cs": {"split": "random:20,30", "read": {"normalize_features": "binary"}, "lr": 0.01, "dropout": 0.5},
}


def several(name: str, args: argparse.Namespace, epochs: int, **retexo: Any) -> dict[str, Any]:
    """The same training with each seed, on one rank: mean and spread of test accuracy in points, and what clients would
    send."""
    accuracies, record = [], {}
    for seed in range(args.seeds):
        if args.quick:
            dataset, task = mr.open_dataset(QUICK, seed=seed), TASKS["cora"]
        else:
            task = TASKS[name]
            dataset = mr.open_dataset(
                args.data / f"{name}.npz", options=mr.ReadOptions(**task["read"]), split=task["split"], seed=seed
            )
        model = mr.GraphSAGE(hidden=64, layers=2, dropout=task["dropout"])
        record = train(
            dataset,
            "retexo",
            epochs,
            seed=seed,
            model=model,
            lr=task["lr"],
            weight_decay=5e-4,
            threads=1,
            retexo=retexo,
        )
        accuracies.append(100 * record["test_accuracy"])
    spread = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else 0.0
    return {
        "mean": float(np.mean(accuracies)),
        "std": spread,
        "accuracies": accuracies,
        "clients": record["clients"],
        "retexo": retexo,
    }


def measure_sync(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Savings and costs of fewer synchronisations and rounded rows."""
    steps, clients = args.steps, 4
    for name in ["quick"] if args.quick else args.tasks:
        print(
            f"\nSYNC: {name}, SAGE, 2 layers of 64, v3, {clients} clients in random parts, "
            f"{args.seeds} seeds; bytes over all clients"
        )
        print(
            f"{'':<42}{'rounds':>7}{'rows MB':>9}{'less':>6}{'parameters MB':>15}"
            f"{'less':>6}{'test':>7}{'std':>5}{'change':>8}"
        )
        first: dict[str, Any] = {}
        settings: list[tuple[str, int, dict[str, Any]]] = [("gradients in every step", steps, {})]
        for k in (1, 5, 20):
            settings.append((f"FedAvg every {k}, {steps} steps", max(1, steps // k), {"local_steps": k}))
            if k == 5:
                settings.append((f"FedAvg every {k}, {steps} rounds", steps, {"local_steps": k}))
        settings += [(f"gradients in every step, {r}", steps, {"rounding": r}) for r in ("fp16", "int8")]
        settings.append(
            (f"FedAvg every 5, {steps} steps, int8", max(1, steps // 5), {"local_steps": 5, "rounding": "int8"})
        )
        for label, rounds, options in settings:
            r = several(name, args, rounds, clients=clients, **options)
            rows, parameters = (r["clients"][key]["total"] / 1e6 for key in ("rows_bytes_in", "parameter_bytes"))
            first = first or {"rows": rows, "parameters": parameters, "mean": r["mean"]}
            print(
                f"{label:<42}{rounds:>7}{rows:>9.2f}{first['rows'] / rows:>6.1f}"
                f"{parameters:>15.1f}{first['parameters'] / parameters:>6.1f}"
                f"{r['mean']:>7.1f}{r['std']:>5.1f}{r['mean'] - first['mean']:>+8.1f}",
                flush=True,
            )
            report["sync"].append({"dataset": name, "label": label, "rounds": rounds, **r})


def measure_nodes(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """One part, and a client for each node."""
    name, steps = ("quick" if args.quick else "cora"), args.steps
    print(f"\nNODES: {name}, SAGE, 2 layers of 64, {args.seeds} seeds; kB for each client: median and largest")
    print(f"{'':<42}{'rows in':>16}{'rows out':>17}{'parameters':>18}{'test':>7}{'std':>5}")
    k = args.local_steps
    settings: list[tuple[str, int, dict[str, Any]]] = [
        ("v3, one part", steps, {}),
        ("v3, gradients in every step", steps, {"clients": "nodes"}),
        (f"v3, FedAvg every {k}, {steps // k} rounds", max(1, steps // k), {"clients": "nodes", "local_steps": k}),
        ("v3, gradients in every step, int8", steps, {"clients": "nodes", "rounding": "int8"}),
        ("v1, one part", steps, {"mode": "v1"}),
        ("v1, gradients in every step", steps, {"clients": "nodes", "mode": "v1"}),
    ]
    for label, rounds, options in settings:
        r = several(name, args, rounds, **options)
        cells = ("", "", "")
        if r["clients"]:
            each = [r["clients"][key] for key in ("rows_bytes_in", "rows_bytes_out", "parameter_bytes")]
            cells = tuple(f"{e['median'] / 1e3:,.1f} - {e['max'] / 1e3:,.0f}" for e in each)
        print(f"{label:<42}{cells[0]:>16}{cells[1]:>17}{cells[2]:>18}{r['mean']:>7.1f}{r['std']:>5.1f}", flush=True)
        report["nodes"].append({"label": label, "rounds": rounds, **r})


def measure_links(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Predicted over typical links; measured over the one between namespaces."""
    if args.namespaces:
        report["links"]["measured"] = over_namespaces(args)
    elif report["bytes"]:
        report["links"]["predicted"] = over_links(report["bytes"]["runs"])
    else:
        raise SystemExit("the links' prediction needs the section 'bytes', or --namespaces for a measurement")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="RETEXO against standard full-graph training.")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("MILLRACE_DATA", beside)), help="folder of the .npz files"
    )
    parser.add_argument("--only", type=lambda s: s.split(","), default=list(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="a generated graph and one seed: no data are needed")
    parser.add_argument("--rounds", type=int, default=200, help="that bytes are told for")
    parser.add_argument(
        "--whole", action="store_true", help="train RETEXO for all rounds instead of scaling, and no variants of it"
    )
    parser.add_argument("--plain", action="store_true", help="of bytes, no variants of RETEXO")
    parser.add_argument(
        "--steps", type=int, help="of each layer, where accuracy is measured; by default 200, with --quick 20"
    )
    parser.add_argument("--local-steps", type=int, default=5, help="of clients, where one number is enough")
    parser.add_argument(
        "--tasks", type=lambda s: s.split(","), default=list(TASKS), help=f"of 'sync': {', '.join(TASKS)}"
    )
    parser.add_argument("--seeds", type=int, help="by default 3, with --quick 1")
    parser.add_argument(
        "--namespaces", type=lambda s: s.split(","), help="network namespaces, one for each rank; needs root"
    )
    parser.add_argument("--addresses", type=lambda s: s.split(","), help="an address in each of them")
    parser.add_argument("--bandwidth-mbit", type=float, help="of the link between them")
    parser.add_argument("--latency-ms", type=float, default=0.05, help="of the link between them, one way")
    parser.add_argument(
        "--link-dataset", default="sbm:nodes=8000,classes=8,degree=12,features=64", help="trained on over that link"
    )
    parser.add_argument("--link-epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3, help="runs over that link; the soonest counts")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.steps, args.seeds = args.steps or (20 if args.quick else 200), args.seeds or (1 if args.quick else 3)
    if unknown := set(args.only) - set(SECTIONS):
        parser.error(f"--only has {', '.join(sorted(unknown))}; known are {', '.join(SECTIONS)}")
    if unknown := set(args.tasks) - set(TASKS):
        parser.error(f"--tasks has {', '.join(sorted(unknown))}; known are {', '.join(TASKS)}")
    if args.namespaces and (len(args.addresses or ()) != len(args.namespaces) or not args.bandwidth_mbit):
        parser.error("--namespaces needs as many --addresses, and --bandwidth-mbit")
    if "links" in args.only and "bytes" not in args.only and not args.namespaces:
        parser.error("the links' prediction needs the section 'bytes' too, or --namespaces for a measurement")
    if (
        not args.quick
        and {"bytes", "exact", "sync", "nodes"} & set(args.only)
        and not (args.data / "cora.npz").exists()
    ):
        parser.error(f"{args.data} has no cora.npz; name the folder with --data or MILLRACE_DATA, or use --quick")
    return args


def main() -> int:
    """Measure and print. Returns 1 if a count is not what the formula says."""
    args = arguments()
    report: dict[str, Any] = {"bytes": {}, "exact": [], "sync": [], "nodes": [], "links": {}, "problems": []}
    sections = dict(zip(SECTIONS, (measure_bytes, measure_exact, measure_sync, measure_nodes, measure_links)))
    for name in SECTIONS:
        if name in args.only:
            sections[name](args, report)
            if args.json:
                args.json.write_text(json.dumps(report, indent=1) + "\n")
    for text in report["problems"]:
        print(f"PROBLEM: {text}")
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
