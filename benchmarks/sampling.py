"""Neighbour sampling in comparison with peers: one process per engine and thread count, taking turns on one machine.

    python benchmarks/sampling.py --graph products --threads 1,2 --samplers neighbor,labor,weighted --json sampling.json
    python benchmarks/sampling.py --graph products-quarter --threads 1,2 --samplers links --minibatches 96

Every process holds its own copy of the graph in NumPy arrays (huge pages where the system gives them on request),
samples the same seeds, and is idle while another one runs. An epoch includes shuffling the seeds and everything up to
relabelled blocks; the consumer drops each minibatch at once.

Semantics differ. "new": only newly found nodes are expanded (PyG; Millrace's default). "all": the whole frontier is
expanded again at each hop (DGL, GraphBolt), 14 to 20 % more edges a minibatch. Millrace is measured both ways, and
multiples are given in minibatches and in edges a second. In `labor` the hops of a minibatch share random numbers here,
and only the rows of a hop in GraphBolt 2.1. `weighted` draws without replacement.
`links`: a minibatch is 512 edges of the graph as positive pairs, with one uniform negative each that keeps the source;
all ends are seeds of `neighbor`, and the edges of the minibatch's pairs and their reverses are taken out of the sample.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from check import check
from graphs import RECIPES, load, stored
from graphs import statistics as degree_statistics
from peers import environment

HERE = Path(__file__).resolve().parent / "peers"
FANOUT = (15, 10, 5)
BATCH = 1024
BULK = 64
MEMORY_BULKS = (1, 8, 64)
SAMPLERS = ("neighbor", "labor", "weighted", "links")
PAIRS = 512
"""Positive pairs of a minibatch of links, as in DGL's example."""
SLOW_PEERS = {"neighbor": 0, "labor": 48, "weighted": 12, "links": 24}
"""Minibatches of a round of GraphBolt, at most."""


@dataclass(frozen=True)
class Config:
    """One engine at one thread count."""

    name: str
    sampler: str
    script: str
    threads: int
    expand: str
    options: dict[str, Any]
    foreign: bool
    """Runs in the peers' environment."""
    most: int
    """Minibatches of a round at most; 0: the whole epoch."""

    @property
    def label(self) -> str:
        """As printed."""
        return f"{self.sampler} {self.name} {self.threads}T"

    @property
    def ours(self) -> bool:
        """Not a peer."""
        return not self.foreign and "millrace" in self.script


def ours(sampler: str, t: int, expand: str, bulk_size: int = BULK, **options: Any) -> Config:
    """Millrace."""
    options |= _of(sampler) | {"expand": expand, "bulk_size": bulk_size}
    return Config(f"millrace {expand}", sampler, "run_millrace.py", t, expand, options, False, 0)


def _of(sampler: str) -> dict[str, Any]:
    return {"sampler": sampler, **({"batch_size": PAIRS} if sampler == "links" else {})}


def configurations(t: int, sampler: str, peers: list[str]) -> list[Config]:
    """Measurements of a sampler on t threads, in the order of a round."""
    found = [ours(sampler, t, expand) for expand in ("new", "all")]
    if "graphbolt" in peers:
        most, script, options = SLOW_PEERS[sampler], "run_graphbolt.py", _of(sampler)
        found.append(Config("graphbolt", sampler, script, t, "all", options, True, most))
        if t > 1:
            found.append(Config("graphbolt, thread pool", sampler, script, t, "all", options | {"pool": t}, True, most))
    if "dgl" in peers and sampler in ("neighbor", "links"):
        found.append(Config("dgl DataLoader", sampler, "run_dgl.py", t, "all", _of(sampler), True, 0))
    if "scipy" in peers and t == 1 and sampler == "neighbor":
        found.append(Config("scipy SpGEMM", sampler, "run_scipy.py", 1, "new", {}, False, 1))
    return found


class Process:
    """A running engine."""

    def __init__(self, config: Config, graph: Path, seeds: Path, cache: Path, **options: Any) -> None:
        self.config = config
        job = {"fanout": FANOUT, "batch_size": BATCH, "threads": config.threads, **config.options, **options}
        # Threads inside an operator; each Python thread of a pool has its own.
        inner = str(config.threads // config.options.get("pool", 1))
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [
                *(environment.python(cache) if config.foreign else sys.executable, HERE / config.script),
                *("--graph", graph, "--seeds", seeds, "--job", json.dumps(job)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": inner, "MKL_NUM_THREADS": inner}
            | {"DGLBACKEND": "pytorch", "DGLDEFAULTDIR": str(cache / "dgl"), "PYTHONWARNINGS": "ignore"},
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise SystemExit(
                f"{self.config.label} ended with exit code {self._process.returncode}:\n{self._log.read()[-3000:]}"
            )
        return json.loads(line)

    def ask(self, **command: Any) -> dict[str, Any]:
        """See `peers.serve`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End it."""
        self._process.communicate()
        self._log.close()


def _same_work(results: list[dict[str, Any]]) -> None:
    """Refuse engines that say they do the same and do not: minibatches after the checked one may go wrong too."""
    for expand in ("new", "all"):
        mean = {
            r["config"].label: r["runs"][-1]["edges"] / r["minibatches"]
            for r in results
            if r["config"].expand == expand
        }
        if mean and max(mean.values()) > 1.05 * min(mean.values()):
            raise SystemExit(f"edges per minibatch should agree within 5 % where '{expand}' is expanded; seen: {mean}")


Check = Callable[[Path, str], dict[str, Any]]
"""Proves the minibatch in a file that `peers.serve.save` wrote, of an engine that expands "new" or "all"."""


def checker(folder: Path) -> Check:
    """See `check.check`."""
    graph = load(folder)
    return lambda path, expand: check(graph, path, FANOUT, expand)


def measure(
    configs: list[Config],
    folder: Path,
    seeds: Path,
    cache: Path,
    minibatches: int,
    rounds: int,
    make_check: Callable[[Path], Check] = checker,
) -> list[dict[str, Any]]:
    """Check one minibatch of each engine, warm them up, then let them take turns."""
    prove = make_check(folder)
    results, running = [], []
    try:
        for config in configs:
            process = Process(config, folder, seeds, cache)
            running.append(process)
            with tempfile.TemporaryDirectory() as scratch:
                path = Path(scratch) / f"{config.label.replace(' ', '-')}.npz"
                process.ask(do="one", path=str(path))
                checked = prove(path, config.expand)
            count = min(config.most or minibatches, minibatches)
            process.ask(do="epoch", minibatches=min(count, BULK if config.ours else 4))
            results.append({"config": config, "minibatches": count, "checked": checked, "runs": []})
            print(
                f"  {config.label:28} checked: {checked['edges_per_hop']} edges, {checked['nodes']} nodes", flush=True
            )
        del prove
        for turn in range(rounds):
            # Every other round runs backwards, so that nobody always follows the same neighbour.
            for process, result in list(zip(running, results))[:: 1 if turn % 2 == 0 else -1]:
                result["runs"].append(process.ask(do="epoch", minibatches=result["minibatches"]))
            print(f"  round {turn + 1} of {rounds} done, load average {os.getloadavg()[0]:.1f}", flush=True)
        for process, result in zip(running, results):
            result["report"] = process.ask(do="report")
    finally:
        for process in running:
            process.close()
    _same_work(results)
    return [_summary(r) for r in results]


def _summary(result: dict[str, Any]) -> dict[str, Any]:
    config, runs, k = result["config"], result["runs"], result["minibatches"]
    seconds = [r["seconds"] for r in runs]
    middle = statistics.median(seconds)
    edges = statistics.mean(r["edges"] for r in runs)
    return {
        "name": config.name,
        "sampler": config.sampler,
        "ours": config.ours,
        "threads": config.threads,
        "expand": config.expand,
        "minibatches": k,
        "seconds_median": middle,
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
        "cpu_ms_per_minibatch": 1000 * statistics.median(r["cpu_s"] for r in runs) / k,
        "minibatches_per_s": k / middle,
        "edges_per_s": edges / middle,
        "edges_per_minibatch": edges / k,
        "nodes_per_minibatch": statistics.mean(r["nodes"] for r in runs) / k,
        "checked": result["checked"],
        "report": result["report"],
        "runs": runs,
    }


def multiples(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours over the best peer at the same thread count, by each measure."""
    found = []
    for row in rows:
        peers = [r for r in rows if not r["ours"] and (r["sampler"], r["threads"]) == (row["sampler"], row["threads"])]
        if not row["ours"] or not peers:
            continue
        entry: dict[str, Any] = {"name": row["name"], "sampler": row["sampler"], "threads": row["threads"]}
        for measure in ("minibatches_per_s", "edges_per_s"):
            best = max(peers, key=lambda r: r[measure])
            entry[measure] = row[measure] / best[measure]
            # The worst of ours over the best of theirs, and the other way round.
            work, theirs = row[measure] * row["seconds_median"], best[measure] * best["seconds_median"]
            entry[measure + "_range"] = [
                (work / row["seconds_max"]) / (theirs / best["seconds_min"]),
                (work / row["seconds_min"]) / (theirs / best["seconds_max"]),
            ]
            entry[measure + "_best_peer"] = best["name"]
        found.append(entry)
    return found


def memory(folder: Path, seeds: Path, cache: Path, threads: int) -> list[dict[str, Any]]:
    """Peak memory of one bulk of k minibatches over the idle process that holds the graph; each k in a process of its
    own."""
    found = []
    for k in MEMORY_BULKS:
        process = Process(ours("neighbor", threads, "new", k), folder, seeds, cache)
        idle = process.ask(do="report")["rss_bytes"]
        process.ask(do="epoch", minibatches=k)
        report = process.ask(do="report")
        process.close()
        found.append(
            {"k": k, "peak_growth_bytes": report["peak_rss_bytes"] - idle}
            | {n: report[n] for n in ("workspace_bytes", "bulk_bytes")}
        )
    return found


def profile(folder: Path, seeds: Path, cache: Path, minibatches: int, threads: int) -> dict[str, float]:
    """Milliseconds a minibatch in each parallel section of the kernel."""
    process = Process(ours("neighbor", threads, "new", profile=True), folder, seeds, cache)
    process.ask(do="epoch", minibatches=minibatches)
    before = process.ask(do="report")["stages_s"]
    process.ask(do="epoch", minibatches=minibatches)
    after = process.ask(do="report")["stages_s"]
    process.close()
    stages = {name: 1000 * (s - before.get(name, 0.0)) / minibatches for name, s in after.items()}
    return {**stages, "outside the kernel's sections": 2 * stages["whole"] - sum(stages.values())}


def show_engines(report: dict[str, Any]) -> None:
    """Print what each engine did, and the multiples."""
    print(f"\n{'sampler':8} {'engine':23} {'T':>2} {'expands':>7} {'epoch s':>8} {'min - max':>15}", end="")
    print(f" {'batches/s':>9} {'M edges/s':>9} {'k edges':>8} {'k nodes':>8} {'cpu ms':>7}")
    for r in report["engines"]:
        spread = f"{r['seconds_min']:.2f} - {r['seconds_max']:.2f}"
        print(
            f"{r['sampler']:8} {r['name']:23} {r['threads']:2} {r['expand']:>7} {r['seconds_median']:8.2f} "
            f"{spread:>15} {r['minibatches_per_s']:9.1f} "
            f"{r['edges_per_s'] / 1e6:9.2f} {r['edges_per_minibatch'] / 1e3:8.1f} "
            f"{r['nodes_per_minibatch'] / 1e3:8.1f} {r['cpu_ms_per_minibatch']:7.1f}"
            + ("" if r["minibatches"] == report["minibatches"] else f"  ({r['minibatches']} minibatches)")
        )
    print("\nmultiples of the best peer at the same number of threads, median (worst - best pairing of rounds)")
    for m in report["multiples"]:
        parts = []
        for measure, word in (("minibatches_per_s", "minibatches/s"), ("edges_per_s", "edges/s")):
            low, high = m[measure + "_range"]
            parts.append(f"{m[measure]:5.2f}x {word} ({low:.2f} - {high:.2f}, over {m[measure + '_best_peer']})")
        print(f"{m['sampler']:8} {m['name']:12} {m['threads']}T  " + "  ".join(parts))


def show(report: dict[str, Any]) -> None:
    """Print the tables."""
    show_engines(report)
    print("\nmemory of one bulk of k minibatches, MB (peak growth includes loading compiled code)")
    for m in report["memory"]:
        mega = {name: m[name] / 1e6 for name in ("peak_growth_bytes", "workspace_bytes", "bulk_bytes")}
        print(
            f"k = {m['k']:3}: peak growth {mega['peak_growth_bytes']:8.1f}, buffers "
            f"held {mega['workspace_bytes']:8.1f}, "
            f"of which the bulk itself {mega['bulk_bytes']:8.1f}"
        )
    for threads, stages in report["profile_ms_per_minibatch"].items():
        print(f"\nms a minibatch, {threads} threads: " + ", ".join(f"{name} {ms:.2f}" for name, ms in stages.items()))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Neighbour sampling side by side with its peers.")
    parser.add_argument("--graph", choices=sorted(RECIPES), default="arxiv")
    parser.add_argument("--threads", type=lambda s: [int(t) for t in s.split(",")], default=[1, 2])
    parser.add_argument(
        "--minibatches", type=int, default=192, help="of 1024 seeds; fewer where the graph has fewer nodes"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--samplers", type=lambda s: s.split(","), default=list(SAMPLERS[:3]), help=f"of {', '.join(SAMPLERS)}"
    )
    parser.add_argument("--peers", type=lambda s: [p for p in s.split(",") if p], default=["dgl", "graphbolt", "scipy"])
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="graphs, peers' environment"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unknown := set(args.peers) - {"dgl", "graphbolt", "scipy"}:
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; known are dgl, graphbolt, scipy")
    if unknown := set(args.samplers) - set(SAMPLERS):
        parser.error(f"unknown samplers {', '.join(sorted(unknown))}; known are {', '.join(SAMPLERS)}")
    cache = args.cache.resolve()
    print(f"cache: {cache}", flush=True)
    folder = stored(args.graph, cache)
    graph = load(folder)
    seen, expected = degree_statistics(graph), RECIPES[args.graph].expected
    print(f"graph {args.graph}: {graph.num_nodes} nodes; expected in brackets")
    print("  " + ", ".join(f"{name} {value:g} [{expected.get(name, '-')}]" for name, value in seen.items()), flush=True)
    minibatches = min(args.minibatches, graph.num_nodes // BATCH)
    count, rng = max(minibatches, BULK), np.random.default_rng(0)
    seeds, edges = folder / "seeds.npy", folder / "edges.npy"
    np.save(seeds, rng.permutation(graph.num_nodes)[: count * BATCH])
    np.save(edges, rng.choice(graph.num_edges, min(count * PAIRS, graph.num_edges), replace=False))
    del graph
    if minibatches < args.minibatches:
        print(f"  {minibatches} minibatches of {BATCH} seeds are a whole epoch here")
    if os.getloadavg()[0] > 0.5:
        print(
            f"  the load average is {os.getloadavg()[0]:.1f}: other work distorts this, most of "
            f"all peers whose threads wait for each other"
        )
    started = time.time()
    report: dict[str, Any] = {
        "graph": args.graph,
        "statistics": seen,
        "expected": expected,
        "fanout": FANOUT,
        "batch_size": BATCH,
        "bulk_size": BULK,
        "minibatches": minibatches,
        "rounds": args.rounds,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "load_before": os.getloadavg(),
        },
        "engines": [
            row
            for t in args.threads
            for s in args.samplers
            for row in measure(
                configurations(t, s, args.peers),
                folder,
                edges if s == "links" else seeds,
                cache,
                minibatches,
                args.rounds,
            )
        ],
        "memory": memory(folder, seeds, cache, max(args.threads)) if "neighbor" in args.samplers else [],
        "profile_ms_per_minibatch": {
            t: profile(folder, seeds, cache, minibatches, t) for t in args.threads if "neighbor" in args.samplers
        },
    }
    report["multiples"] = multiples(report["engines"])
    report["machine"]["load_after"] = os.getloadavg()
    report["seconds"] = time.time() - started
    show(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
        print(f"\nwritten: {args.json}")


if __name__ == "__main__":
    main()
