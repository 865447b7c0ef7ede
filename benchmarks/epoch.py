"""Whole training epochs in comparison with peers: one process at a time, each with its own copy of graph and features.

    python benchmarks/epoch.py --model sage,gat --threads 1,2 --ranks --json epoch.json
    python benchmarks/epoch.py --model links --graph products-quarter --threads 1,2
    python benchmarks/epoch.py --model edges --graph products-quarter --threads 1,2

The task of `sage` and `gat`: three layers, hidden width 256 (GAT: 4 heads of 64, averaged in the last layer), 47
classes, minibatches of 1024 seeds, fanout 15, 10, 5, Adam, float32, dropout as ``--dropout`` says (none), 100 random
features on a random graph of ogbn-products' size. An epoch is N minibatches, from shuffled seeds to the optimiser's
step.

The model `links` predicts links as DGL's example does: 512 edges a minibatch as positive pairs, one uniform negative
each, own edges and their reverses left out of the samples, three layers of width 256, two dense layers on products of
rows. Its peer is DGL.

The model `edges` predicts labels of edges: 512 edges a minibatch, all edges left in the samples, three layers of width
256, and two dense layers on the rows of both ends and eight features of the edge. All edges of the graph have features
and one of two labels. Before the rounds each engine trains on one minibatch of the same graph with so few in-edges that
every sampler draws all of them, from the same parameters: the losses of three steps must be the same to rounding, and
the nodes the same (`epoch_proof.py`). "head" is what these dense layers take, forward and backward, and is not in
"train" or "forward_backward".

Engines take turns: each is started, loads, warms up, measures and ends, then the next one; every other round runs
backwards. Peers run with the system's allocator as it is and with settings that keep freed memory for the next step
(`TUNED`), which is worth as much as a better kernel; Millrace runs as it is. Ours is `millrace.run`, timed from the end
of one epoch to the end of the next. PyG is fed by Millrace's loader; as `pyg-own` by its own with torch-sparse, which
does not say what each hop found, so that each layer computes all rows. Parts are those of the measured epochs; of ours
those of the whole run, the first epoch included, and "sample" is a thread beside the others. "peak RSS" is what the
process held at most in the measured epochs, "loaded" what it held before training.

Semantics differ: DGL expands the whole frontier again at each hop, and so draws more edges (14 % on products); but its
layers then read fewer, since in Millrace and PyG a layer reads the edges of all hops inside it. "drawn" and "read"
below say how many. DGL's attention leaves out the node itself.

The bound is explained in `roofline.py`, and is measured anew in every round. `--overhead` sets `millrace.run` against
the same stages in a plain loop, in pairs in one process. `--halves` sets minibatches of 512 seeds against half as many
of 1024 on one thread of one process: what several ranks pay for seeds that share fewer neighbours, before they say a
word to each other. `--ranks` sets two ranks of one thread and 512 seeds each against one process of two threads; their
peak is the sum over both, of their whole lives, without the driver and the workers that hold them. After the rounds the
two live at the same time and take turns of `TURN_S`: see `epoch_turns.py`.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from epoch_data import edge_data, proof_of, store_of, training_data
from epoch_proof import STEPS, prove
from epoch_tables import show_halves, show_overhead, show_ratios, show_roofline, show_rows, show_turns
from epoch_turns import Paused, compared, take_turns
from graphs import RECIPES, stored
from peers import environment
from peers.train_task import BATCH, CLASSES, EDGE_CLASSES, WARM_UP
from processes import TUNED, allocator, call, default_limit_gib

HERE = Path(__file__).resolve().parent
TURN_S = 15.0
PEERS = {"dgl": ("dgl", "dgl-2.1.0"), "pyg": ("pyg", None), "pyg-own": ("pyg", "pyg-2.8.1")}
"""Word in the names of a peer's scripts, and its environment; None: ours."""


@dataclass(frozen=True)
class Engine:
    """One thing that is measured."""

    name: str
    script: str
    model: str
    threads: int
    tuned: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    environment: str | None = None
    """See `PEERS`."""

    @property
    def label(self) -> str:
        """As printed."""
        return f"{self.name} {self.threads}T {self.allocator}"

    @property
    def allocator(self) -> str:
        """Word for the settings."""
        return "own" if "ranks" in self.options else "tuned" if self.tuned else "default"

    @property
    def ours(self) -> bool:
        """Not a peer."""
        return self.script.startswith("train_millrace")


def engines(model: str, args: argparse.Namespace) -> list[Engine]:
    """Measurements of a model, in the order of a round."""
    found, kind = [], f"_{model}" if model in ("links", "edges") else ""
    for t in args.threads:
        for variant in ["", *args.ours]:
            name, options = f"millrace {variant}".strip(), {"set": variant.split()}
            found += [
                Engine(name, f"train_millrace{kind}.py", model, t, tuned, options)
                for tuned in ([False, True] if args.ours_tuned else [False])
            ]
        for peer in (p for p in args.peers if model != "links" or p == "dgl"):
            word, home = PEERS[peer]
            script = f"train_{word}{kind}.py"
            found += [Engine(peer, script, model, t, a == "tuned", environment=home) for a in args.allocators]
    return found


def rank_engines(store: Path) -> list[Engine]:
    """Two ranks and one process on the same store, whose features both map. Ranks choose their allocator's settings
    themselves."""
    common = {"store": str(store), "set": ["features=mapped"]}
    ranks = {"store": str(store), "set": ["features=mapped", "executor=dask"], "ranks": 2}
    return [
        Engine("2 ranks of 512 seeds", "train_millrace.py", "sage", 1, False, ranks),
        Engine("1 process of 1024 seeds", "train_millrace.py", "sage", 2, False, common),
        Engine("1 process of 1024 seeds", "train_millrace.py", "sage", 2, True, common),
    ]


class Lab:
    """Starts the processes."""

    def __init__(self, folder: Path, args: argparse.Namespace, minibatches: int, epochs: int) -> None:
        self.folder, self.cache, self.minibatches, self.epochs = folder, args.cache, minibatches, epochs
        self.dropout = args.dropout
        self._limit = int(args.limit_gib * 2**30)

    def run(
        self, script: Path, *, model: str, threads: int, tuned: bool = False, home: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """The process's answer, or ``{"failed": why}``."""
        python = environment.python(self.cache, home) if home else sys.executable
        task, variables = (
            self._task(model, threads, options),
            {"DGLDEFAULTDIR": str(self.cache / "dgl")} | _malloc(tuned),
        )
        return call(python, script, task, threads, variables, self._limit)

    def engine(self, e: Engine) -> dict[str, Any]:
        """See `run`."""
        script = HERE / "peers" / e.script
        return self.run(script, model=e.model, threads=e.threads, tuned=e.tuned, home=e.environment, **e.options)

    def turns(self, found: list[Engine], pairs: int) -> dict[str, Any]:
        """Two of ours, from a store, at the same time: what `compared` says of the first against the second."""
        alive: dict[str, Paused] = {}
        with ExitStack() as stack:
            for e in found:
                task = self._task(e.model, e.threads, e.options)
                alive[e.label] = stack.enter_context(Paused(HERE / "peers" / e.script, task, _malloc(e.tuned)))
            turns = take_turns(alive, pairs, TURN_S)
        return {"pairs": turns, **compared(turns, *alive)}

    def _task(self, model: str, threads: int, options: dict[str, Any]) -> dict[str, Any]:
        task = {
            "folder": str(self.folder),
            "model": model,
            "threads": threads,
            "minibatches": self.minibatches,
            "epochs": self.epochs,
        }
        return {**task, "dropout": self.dropout, "options": options}


def _malloc(tuned: bool) -> dict[str, str]:
    return allocator("tuned" if tuned else "default")


def measure(
    lab: Lab, found: list[Engine], rounds: int, before_round: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Let the engines take turns; one summary for each."""
    runs: dict[int, list[dict[str, Any]]] = {n: [] for n in range(len(found))}
    for turn in range(rounds):
        before_round()
        for n in range(len(found))[:: 1 if turn % 2 == 0 else -1]:
            e = found[n]
            if any("failed" in r for r in runs[n]):
                continue
            start, before = time.perf_counter(), os.getloadavg()[0]
            r = lab.engine(e)
            runs[n].append({**r, "load_before": before, "round": turn})
            # Much less on processors than the threads could have had: something else held them up.
            busy = f", {r['cpu_ms']:.1f} ms of processors" if r.get("cpu_ms") else ""
            said = r.get("failed") or f"{r['ms']:.1f} ms a minibatch{busy}"
            print(
                f"  {e.model} {e.label}: {said} (process "
                f"{time.perf_counter() - start:.0f} s, load before {before:.1f})",
                flush=True,
            )
    return [_summary(e, runs[n]) for n, e in enumerate(found)]


def _summary(e: Engine, runs: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": e.name,
        "ours": e.ours,
        "model": e.model,
        "threads": e.threads,
        "allocator": e.allocator,
        "options": e.options,
        "runs": runs,
    }
    if failed := [r["failed"] for r in runs if "failed" in r]:
        return {**row, "failed": failed[0]}
    ms = [r["ms"] for r in runs]
    parts = {name: statistics.median(r["parts_ms"].get(name, 0.0) for r in runs) for name in runs[0]["parts_ms"]}
    means = {
        name: statistics.mean(r[name] for r in runs)
        for name in ("edges", "aggregated", "nodes", "loss")
        if name in runs[0]
    }
    return {
        **row,
        "ms": statistics.median(ms),
        "ms_min": min(ms),
        "ms_max": max(ms),
        "parts_ms": parts,
        **means,
        "peak_bytes": max(r["peak_bytes"] for r in runs),
        "loaded_bytes": max(r["loaded_bytes"] for r in runs),
        "loader": runs[0].get("loader"),
    }


def ratio(slow: dict[str, Any], fast: dict[str, Any]) -> dict[str, Any]:
    """Speed-up of `fast`: by medians, and in the worst and best pairing of rounds."""
    pairing = [slow["ms_min"] / fast["ms_max"], slow["ms_max"] / fast["ms_min"]]
    return {
        "name": fast["name"],
        "over": f"{slow['name']} {slow['allocator']}",
        "threads": fast["threads"],
        "model": fast["model"],
    } | {
        "allocator": fast["allocator"],
        "ratio": slow["ms"] / fast["ms"],
        "range": pairing,
        "peak_memory": fast["peak_bytes"] / slow["peak_bytes"],
    }


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours over each peer at the same number of threads."""
    alive = [r for r in rows if "failed" not in r]
    return [ratio(p, o) for o in alive if o["ours"] for p in alive if not p["ours"] and p["threads"] == o["threads"]]


def problems(rows: list[dict[str, Any]]) -> list[str]:
    """Engines that failed, or that cannot have done the work."""
    said = [
        f"{r['model']} {r['name']} {r['threads']}T {r['allocator']} failed: {r['failed']}"
        for r in rows
        if "failed" in r
    ]
    alive = [r for r in rows if "failed" not in r]
    for r in alive:
        label = f"{r['model']} {r['name']} {r['threads']}T {r['allocator']}"
        # The labels are random: a model that learns and one that does not are both near the logarithm of the number of
        # classes.
        near = float(np.log({"links": 2, "edges": EDGE_CLASSES}.get(r["model"], CLASSES)))
        if r["loss"] is None or not 0.5 * near < r["loss"] < 2 * near:
            said.append(f"{label} has a loss of {r['loss']}; near {near:.2f} is expected")
        for o in (o for o in alive if o["ours"] and not r["ours"] and o["threads"] == r["threads"]):
            share = r["edges"] / o["edges"]
            if not 0.97 < share < (2.0 if r["name"] == "dgl" else 1.03):
                said.append(f"{label} drew {share:.2f} times our edges")
    return said


def interval(pairs: list[dict[str, float]], above: str, below: str) -> dict[str, float]:
    """Mean ratio of one over the other, and its 95 % confidence interval (Student's t on the logarithms of the pairs'
    ratios)."""
    from scipy import stats

    logs = np.log([p[above] / p[below] for p in pairs])
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    low, middle, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])
    return {"ratio": float(middle), "low": float(low), "high": float(high)}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Whole training epochs side by side with peers.")
    parser.add_argument("--graph", choices=sorted(RECIPES), default="products")
    parser.add_argument(
        "--model",
        type=lambda s: s.split(","),
        default=["sage", "gat"],
        help="sage, gat, links, edges; empty: none",
    )
    parser.add_argument("--threads", type=lambda s: [int(t) for t in s.split(",")], default=[1, 2])
    parser.add_argument("--minibatches", type=int, default=16, help="of an epoch; fewer on graphs with fewer nodes")
    parser.add_argument("--epochs", type=int, default=1, help="measured in each process")
    parser.add_argument(
        "--dropout", type=float, default=0.0, help="on the input of every layer; the bound knows of none"
    )
    parser.add_argument("--rounds", type=int, default=3, help="0 with --ranks or --halves and no model: only these")
    parser.add_argument(
        "--peers", type=lambda s: [p for p in s.split(",") if p], default=["dgl", "pyg"], help="pyg-own too"
    )
    parser.add_argument("--allocators", type=lambda s: s.split(","), default=["default", "tuned"], help="of the peers")
    parser.add_argument(
        "--ours", action="append", default=[], metavar="KEY=VALUE ...", help="one more variant of ours; may be repeated"
    )
    parser.add_argument("--ours-tuned", action="store_true", help="ours with the tuned allocator too")
    parser.add_argument("--ranks", action="store_true", help="two ranks against one process too (SAGE)")
    parser.add_argument(
        "--halves",
        action="store_true",
        help="minibatches of 512 seeds against half as many of 1024, on one thread (SAGE)",
    )
    parser.add_argument("--overhead", action="store_true", help="millrace.run against the bare stages too")
    parser.add_argument("--pairs", type=int, default=8, help="of --overhead and --halves, and of turns of --ranks")
    parser.add_argument("--limit-gib", type=float, default=default_limit_gib(), help="memory of a process")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="graphs, peers' environment"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.model, args.cache = [m for m in args.model if m], args.cache.resolve()
    for name, known in (
        ("model", ("sage", "gat", "links", "edges")),
        ("peers", tuple(PEERS)),
        ("allocators", ("default", "tuned")),
    ):
        if unknown := set(getattr(args, name)) - set(known):
            parser.error(f"--{name} has {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    alone = (args.ranks or args.halves) and not args.model
    if args.pairs < 2 or min(args.minibatches, args.epochs, args.rounds or alone, *args.threads) < 1:
        parser.error("--pairs must be at least 2; --minibatches, --epochs, --rounds and --threads at least 1")
    return args


def proof(folder: Path, args: argparse.Namespace) -> list[str]:
    """See `epoch_proof.prove`, on labels of edges."""
    small = proof_of(folder)
    training_data(small, len(np.load(small / "indptr.npy", mmap_mode="r")) - 1)
    for of in (folder, small):
        edge_data(of)
    lab = Lab(small, args, 1, STEPS)
    return prove(lambda e: lab.engine(replace(e, options={**e.options, "proof": True})), engines("edges", args))


def main() -> int:
    """Measure and print. Returns 1 if an engine failed or did not do the same work."""
    args = arguments()
    # Whoever is told to end ends its engines, which otherwise train on without end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = stored(args.graph, args.cache)
    num_nodes = len(np.load(folder / "indptr.npy", mmap_mode="r")) - 1
    training_data(folder, num_nodes)
    minibatches = min(args.minibatches, num_nodes // BATCH)
    print(
        f"graph {args.graph}: {num_nodes} nodes; epochs of {minibatches} minibatches; "
        f"peers warm up with {WARM_UP}; cache {args.cache}"
    )
    if os.getloadavg()[0] > 0.5:
        print(
            f"  the load average is {os.getloadavg()[0]:.1f}: other work distorts this, "
            f"most of all threads that wait for each other"
        )
    lab = Lab(folder, args, minibatches, args.epochs)
    report: dict[str, Any] = {k: v if not isinstance(v, Path) else str(v) for k, v in vars(args).items()} | {
        "minibatches": minibatches,
        "tuned": TUNED,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "load_before": os.getloadavg(),
        },
        **{k: [] for k in ("engines", "ratios", "problems")},
        **{k: {} for k in ("roofline", "overhead", "halves", "ranks_engines")},
    }

    def save() -> None:
        if args.json:
            args.json.write_text(json.dumps(report, indent=1) + "\n")

    bounds: dict[int, list[dict[str, Any]]] = {t: [] for t in args.threads}

    def bound() -> None:
        """The host's rates change from minute to minute: the bound belongs to a round."""
        for t, found in bounds.items():
            found.append(lab.run(HERE / "roofline.py", model="sage", threads=t))

    for model in args.model:
        if model == "edges" and (wrong := proof(folder, args)):
            report["problems"] += wrong
            continue
        rows = measure(lab, engines(model, args), args.rounds, bound if model == "sage" else lambda: None)
        report["engines"] += rows
        report["problems"] += problems(rows)
        show_rows(model.upper(), rows)
        print("\ntimes faster, of medians (worst - best pairing of rounds)")
        show_ratios(ratios(rows))
        report["ratios"] += ratios(rows)
        for t, found in bounds.items() if model == "sage" else ():
            report["roofline"][t] = found
            if any("failed" in b for b in found):
                report["problems"].append(f"roofline {t}T failed")
            else:
                show_roofline(found, t, rows)
        save()
    nodes = [m for m in args.model if m in ("sage", "gat")]
    for model, t in ((m, t) for m in nodes for t in args.threads if args.overhead):
        r = lab.run(HERE / "peers" / "train_millrace.py", model=model, threads=t, pairs=args.pairs)
        report["overhead"][f"{model} {t}T"] = r if "failed" in r else r | interval(r["pairs"], "run", "bare")
        report["problems"] += [f"overhead {model} {t}T: {r['failed']}"] if "failed" in r else []
        show_overhead(model, t, report["overhead"][f"{model} {t}T"])
        save()
    if args.halves:
        r = lab.run(HERE / "peers" / "train_millrace.py", model="sage", threads=1, pairs=args.pairs, halves=True)
        report["halves"] = r if "failed" in r else r | interval(r["pairs"], "halves", "whole")
        report["problems"] += [f"halves: {r['failed']}"] if "failed" in r else []
        show_halves(report["halves"])
        save()
    if args.ranks:
        rows = measure(lab, rank_engines(store_of(folder, minibatches)), args.rounds) if args.rounds else []
        report["problems"] += problems(rows)
        show_rows("SAGE, ranks and threads", rows)
        alive = [r for r in rows if "failed" not in r]
        found = [ratio(r, alive[0]) for r in alive[1:]] if alive and alive[0] is rows[0] else []
        show_ratios(found)
        ranks, *alone = rank_engines(store_of(folder, minibatches))
        # Stopped ranks hold their memory: one of the two settings at a time.
        turns = [lab.turns([ranks, e], args.pairs) for e in alone]
        for e, record in zip(alone, turns):
            show_turns(ranks.label, e.label, record)
        report["ranks_engines"] = {"engines": rows, "ratios": found, "turns": turns}
        save()
    report["machine"]["load_after"] = os.getloadavg()
    save()
    for text in report["problems"]:
        print(f"PROBLEM: {text}")
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
