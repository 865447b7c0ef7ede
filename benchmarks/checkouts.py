"""Two checkouts of Millrace in turns, in processor time: what a change does to the speed of sampling and of an epoch.

    git worktree add ../before/millrace COMMIT
    python benchmarks/checkouts.py ../before/millrace --work sampling,epoch --pairs 12

Both are loaded, each in a process of its own, on the same CPUs, and one works while the other waits; every other pair
runs backwards. Times are those of the process's threads (`time.process_time`), which other work on the machine changes
little. The interval of the ratio, after over before, is a bootstrap over pairs.

Work: ``sampling`` draws minibatches of 1024 seeds, fanout 15, 10, 5, from a graph of `graphs.py`; ``epoch`` trains
GraphSAGE of three layers on an eighth of them by `mr.run`, 100 features, hidden width 256, 47 classes, an epoch a turn;
``full-batch`` trains the same model under `sar` on the whole graph with one rank; ``evaluation`` predicts all nodes by
that model; ``typed`` draws minibatches of `typed.py`, fanout 25, 10 in every relation; ``start`` is
``millrace run`` of one epoch on 300 nodes, and ``import`` is ``import millrace``, by a new process each.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

BATCH, BULK = 1024, 32
FANOUT = {"typed": (25, 10)} | dict.fromkeys(("sampling", "epoch", "full-batch", "evaluation"), (15, 10, 5))
TRAINED = ("epoch", "full-batch", "evaluation")
SMALL = ["--dataset", "sbm:nodes=300,classes=3,features=4", "--epochs", "1", "--fanout", "5,5", "--batch-size", "64"]
ALONE = {"start": ["-m", "millrace", "run", *SMALL, "--out"], "import": ["-c", "import millrace"]}
"""Words of a new Python process."""
FEATURES, HIDDEN, CLASSES = 100, 256, 47


def serve(job: dict[str, Any]) -> None:
    """Do the work once for each line that comes, and answer its processor seconds; at the end, what has come out: edges
    drawn in all, or a digest of the parameters. Nothing is imported from Millrace but what both checkouts have."""
    import torch

    import millrace as mr

    torch.set_num_threads(job["threads"])
    folder, threads, fanout = Path(job["folder"]), job["threads"], FANOUT.get(job["work"], ())
    if job["work"] in ALONE:
        print(json.dumps({"file": mr.__file__}), flush=True)
        print(json.dumps({"outcome": _started(ALONE[job["work"]], job["turns"])}))
        return
    lists: Any = [np.load(folder / f"{name}.npy") for name in ("indptr", "indices")]
    graph = mr.Graph(*lists)
    if job["work"] == "typed":
        from millrace.storage.typed.graph_types import GraphTypes

        types = GraphTypes.of_record(json.loads((folder / "types.json").read_text()))
        graph = mr.Graph(*lists, types=types, edge_type=np.load(folder / "edge_type.npy"))
        seeds = np.load(folder / "seeds.npy")
    else:
        seeds = np.random.default_rng(0).permutation(graph.num_nodes)
    seeds = seeds[: job["minibatches"] * BATCH]
    print(json.dumps({"file": mr.__file__}), flush=True)
    if job["work"] == "evaluation":
        outcome = _predicted(mr, graph, np.sort(seeds), _config(fanout, threads, "bulk"), job["turns"])
    elif job["work"] in TRAINED:
        config = _config(fanout, threads, "sar" if job["work"] == "full-batch" else "bulk")
        outcome = _train(mr, graph, np.sort(seeds), config, job["turns"])
    else:
        outcome = 0
        for epoch in range(job["turns"]):
            sys.stdin.readline()
            start, sampler = time.process_time(), mr.NeighborSampler(fanout)
            for m in mr.sample_minibatches(graph, sampler, seeds, bulk_size=BULK, epoch=epoch, threads=threads):
                outcome += m.num_edges
            print(json.dumps({"seconds": time.process_time() - start}), flush=True)
    print(json.dumps({"outcome": outcome}))


def _started(words: list[str], turns: int) -> int:
    """Start a process for each line that comes, and wait for it."""
    with tempfile.TemporaryDirectory() as out:
        for turn in range(turns):
            sys.stdin.readline()
            each = [*words, f"{out}/{turn}"] if words[-1] == "--out" else words
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run([sys.executable, *each], capture_output=True, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if done.returncode:
                raise SystemExit(done.stderr.decode())
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(json.dumps({"seconds": seconds}), flush=True)
    return 0


def _config(fanout: tuple[int, ...], threads: int, system: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model": {"name": "sage", "hidden": HIDDEN, "layers": len(fanout), "dropout": 0.0},
        "sampler": {"name": "neighbor", "fanout": list(fanout)},
        "train": {"batch_size": BATCH, "optimizer": "adam", "lr": 0.003, "evaluate_every": 0},
        # Sampling is one bulk ahead, so that each epoch pays for as much of it.
        "queue": {"max_bytes": 1, "bulk_size": 4},
        "threads": threads,
        "cluster": {"dashboard_port": 0},
        "system": system,
    }
    if system == "sar":
        config = {key: table for key, table in config.items() if key not in ("sampler", "queue")}
        del config["train"]["batch_size"]
    return config


def _train(mr: Any, graph: Any, seeds: Any, config: dict[str, Any], turns: int) -> str:
    """Train an epoch for each line that comes, between a first and a last one that do not count, in one run, which
    waits in the watcher of its events. Returns the digest of its parameters."""
    data = _dataset(mr, graph, seeds)
    marks: list[float] = []

    def watch(event: Any) -> None:
        if type(event).__name__ != "EpochDone":
            return
        marks.append(time.process_time())
        if 1 < len(marks) < turns + 2:
            print(json.dumps({"seconds": marks[-1] - marks[-2]}), flush=True)
        if len(marks) < turns + 1:
            sys.stdin.readline()

    with tempfile.TemporaryDirectory() as out:
        return mr.run(data, config=config, epochs=turns + 2, out=Path(out) / "run", emit=watch).parameters_sha256


def _predicted(mr: Any, graph: Any, seeds: Any, config: dict[str, Any], turns: int) -> str:
    """Predict all nodes for each line that comes, by a model of one epoch. Returns the digest of the outputs."""
    data, outputs = _dataset(mr, graph, seeds), b""
    with tempfile.TemporaryDirectory() as out:
        mr.run(data, config=config, epochs=1, out=Path(out) / "run", emit=lambda _: None)
        for _ in range(turns):
            sys.stdin.readline()
            start = time.process_time()
            found = mr.predict(Path(out) / "run", data)
            print(json.dumps({"seconds": time.process_time() - start}), flush=True)
            outputs = np.ascontiguousarray(found.logits).tobytes()
    return hashlib.sha256(outputs).hexdigest()


def _dataset(mr: Any, graph: Any, seeds: Any) -> Any:
    """Random features and labels, and `seeds` to train on."""
    rng, none = np.random.default_rng(0), np.empty(0, np.int64)
    features = rng.standard_normal((graph.num_nodes, FEATURES), np.float32)
    labels = rng.integers(0, CLASSES, graph.num_nodes)
    from millrace.storage import features as stores

    # Its name in earlier checkouts.
    in_memory = getattr(stores, "ArrayFeatures", None) or getattr(stores, "MemoryFeatures")  # noqa: B009
    return mr.Dataset("epoch", graph, in_memory(features), labels, mr.Split(seeds, none, none), CLASSES)


class Checkout:
    """A process of one checkout."""

    def __init__(self, root: Path, job: dict[str, Any]) -> None:
        variables = {"PYTHONPATH": str(root.parent), "OMP_NUM_THREADS": str(job["threads"])}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(root), "--serve", json.dumps(job)],
            env=os.environ | variables | {"MKL_NUM_THREADS": str(job["threads"])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._root, self._minibatches = root, job["minibatches"]
        file = self._answer("file")
        if Path(file).resolve().parent != root.resolve():
            raise SystemExit(f"{file} was measured; expected {root}")

    def turn(self) -> float:
        """Do the work once: milliseconds a minibatch, of full batches an epoch."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return 1000 * self._answer("seconds") / self._minibatches

    def outcome(self) -> int | str:
        """Wait for its end, and return what has come out; see `serve`."""
        return self._answer("outcome")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _answer(self, key: str) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the checkout {self._root} ended with exit code {self._process.wait()}")
        return json.loads(line)[key]


def compare(roots: tuple[Path, Path], job: dict[str, Any], pairs: int, starts: int) -> dict[str, Any]:
    """Milliseconds a minibatch before and after, in turns, and their ratio."""
    found: list[list[float]] = []
    same = True
    job = {**job, "turns": 1 + pairs // starts}
    for start in range(starts):
        # The process that is started second is slower, by 2 % of an epoch.
        first = start % 2
        both = {i: Checkout(roots[i], job) for i in (first, 1 - first)}
        try:
            for c in both.values():
                c.turn()
            for n in range(pairs // starts):
                pair = {i: both[i].turn() for i in ((0, 1) if n % 2 == 0 else (1, 0))}
                found.append([pair[0], pair[1]])
                print(f"  {pair[0]:.3f} {pair[1]:.3f} ms", flush=True)
            same &= both[0].outcome() == both[1].outcome()
        finally:
            for c in both.values():
                c.close()
    ms, rng = np.array(found), np.random.default_rng(0)
    drawn = ms[rng.integers(0, len(ms), (2000, len(ms)))].sum(1)
    low, high = np.quantile(drawn[:, 1] / drawn[:, 0], [0.025, 0.975])
    before, after = ms.mean(0)
    row = {"before_ms": before, "after_ms": after, "ratio": after / before, "low": low, "high": high}
    return {**job, **row, "same_outcome": same, "pairs": found}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Two checkouts in turns.")
    parser.add_argument("before", type=Path, help="a checkout, a folder named millrace")
    parser.add_argument("--after", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--work", type=lambda s: s.split(","), default=["sampling", "epoch"])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--starts", type=int, default=2, help="of both processes, one first and then the other")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--graph", default="products", help="a graph of graphs.py")
    parser.add_argument("--minibatches", type=int, default=64)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="graphs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    if unknown := set(args.work) - {*FANOUT, *ALONE}:
        parser.error(f"unknown work {', '.join(sorted(unknown))}; known are {', '.join([*FANOUT, *ALONE])}")
    # A process that stays on a slower CPU than the other would be measured by it.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-args.threads :])
    report = []
    for work in args.work:
        import graphs
        import typed_graphs

        folder = typed_graphs.stored(1, args.cache) if work == "typed" else graphs.stored(args.graph, args.cache)
        whole = dict.fromkeys(("full-batch", "evaluation", *ALONE), 1)
        count = {"epoch": max(1, args.minibatches // 8), **whole}.get(work, args.minibatches)
        job = {"work": work, "folder": str(folder), "threads": args.threads, "minibatches": count}
        r = compare((args.before, args.after), job, args.pairs, args.starts)
        report.append(r)
        unit = "a turn" if work in whole else "a minibatch"
        print(
            f"{work}, {args.threads} threads: {r['before_ms']:.2f} -> {r['after_ms']:.2f} ms {unit}, "
            f"ratio {r['ratio']:.3f} ({r['low']:.3f} to {r['high']:.3f}), "
            f"{'the same' if r['same_outcome'] else 'OTHER'} {'parameters' if work in TRAINED else 'edges'}"
        )
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
