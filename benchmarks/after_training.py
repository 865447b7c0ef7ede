"""Cost of callbacks a step, of predictions beside evaluation, and what a sweep saves by drawing samples once.

python benchmarks/after_training.py callbacks
python benchmarks/after_training.py predict --nodes 1000000
python benchmarks/after_training.py sweep
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import millrace as mr
from millrace.pipeline.custom.callback import Callbacks, RunView
from millrace.pipeline.telemetry.events import silent
from millrace.pipeline.telemetry.metrics_file import recorded


class Counts(mr.Callback):
    """Logs as a tracker does: counts each step, and writes a line after every tenth."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, run: RunView) -> None:
        """Count, and log now and then."""
        self.steps += 1
        if self.steps % 10 == 0:
            run.log(loss=run.loss or 0.0)

    def on_epoch(self, run: RunView) -> None:
        """Log the epoch."""
        run.log(**run.metrics)


def callbacks(folder: Path, args: argparse.Namespace) -> None:
    """Paired runs with and without, in turns, and the calls by themselves."""
    data = mr.open_dataset("sbm:nodes=20000,classes=8,features=64,train=0.5")
    shares = []
    for turn in range(args.turns):
        spent: dict[bool, float] = {}
        for given in (turn % 2 == 0, turn % 2 == 1):
            result = mr.run(
                data, fanout=[10, 5], hidden=64, layers=2, batch_size=256, epochs=4, train={"evaluate_every": 0},
                threads=1, callbacks=[Counts()] if given else None, out=folder / f"{turn}{given}", verbose=False,
            )  # fmt: skip
            spent[given] = sum(result.seconds["per_epoch"][1:])
        shares.append(spent[True] / spent[False] - 1)
    mean, error = statistics.mean(shares), statistics.stdev(shares) / len(shares) ** 0.5
    print(f"an epoch with callbacks: {100 * mean:+.2f} % +- {100 * error:.2f} (standard error, {args.turns} pairs)")
    with recorded(folder / "metrics.jsonl", silent, False) as emit:
        run: Any = RunView(rank=0, ranks=1, model=None, config=None, folder=folder, epochs=1, emit=emit)  # pyright: ignore
        calls = Callbacks([Counts()], run)
        start = time.process_time()
        for step in range(100_000):
            calls.step(0, step, 0.5)
        each = (time.process_time() - start) / 100_000
    step_s = spent[False] / 3 / 40
    print(f"the calls alone: {1e6 * each:.2f} us a step of {1e3 * step_s:.1f} ms, {100 * each / step_s:.3f} %")


def predict(folder: Path, args: argparse.Namespace) -> None:
    """Seconds and memory of prediction and of evaluation, each in a process of its own."""
    source = f"sbm:nodes={args.nodes},classes=16,degree=10,features=64,train=0.01"
    mr.write_dataset(folder / "data", mr.open_dataset(source), features_format="npy")
    mr.run(
        folder / "data", fanout=[10, 5], hidden=64, layers=2, epochs=1, out=folder / "run", features="mapped",
        train={"evaluate_every": 0},
    )  # fmt: skip
    for name in (["evaluate"], ["predict", "--out", str(folder / "p.parquet")],
                 ["predict", "--embeddings", "--out", str(folder / "e.npy")]):  # fmt: skip
        code = (
            "import resource, runpy, sys; sys.argv = sys.argv[1:]\n"
            "try:\n    runpy.run_module('millrace', run_name='__main__')\n"
            "except SystemExit:\n    pass\n"
            "u = resource.getrusage(resource.RUSAGE_SELF)\n"
            "print('USED', u.ru_utime + u.ru_stime, u.ru_maxrss / 2**20, file=sys.stderr)"
        )
        command = [sys.executable, "-c", code, "millrace", name[0], str(folder / "run"), *name[1:], "--json"]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, gib = done.stderr.split("USED")[1].split()
        wall = time.perf_counter() - start
        said = json.loads(done.stdout)["seconds"]
        text = f"{float(seconds):.1f} s of processor, {wall:.1f} s, {said:.1f} s of work, {float(gib):.2f} GiB at most"
        print(f"{' '.join(name[:2])}: {text}", flush=True)


def sweep(folder: Path, args: argparse.Namespace) -> None:
    """Ten runs over one store of samples, and ten that sample."""
    source = "sbm:nodes=50000,classes=8,degree=20,features=32,train=0.5"
    options: dict[str, Any] = {"fanout": [15, 10], "hidden": 32, "layers": 2, "batch_size": 512, "epochs": 3}
    spent, sums = {}, {}
    # Kernels are compiled before.
    mr.sweep(source, grid={"lr": [0.1, 0.2]}, out=folder / "first", jobs=1, verbose=False, **{**options, "epochs": 1})
    for share in (True, False):
        out = folder / str(share)
        start = time.process_time()
        found = mr.sweep(
            source, grid={"lr": [0.01, 0.003]}, seeds=5, out=out, jobs=1, share=share, verbose=False, **options
        )
        spent[share] = time.process_time() - start
        names = [name for row in found.rows for name in row["folders"]]
        results = {name: json.loads((out / name / "result.json").read_text()) for name in names}
        sums[share] = {name: r["parameters_sha256"] for name, r in results.items()}
        sampled = sum(r["seconds"]["sample"] for r in results.values()) + found.sampled_s
        print(f"shared {share}: {spent[share]:.1f} s of processor, {sampled:.1f} s of sampling", flush=True)
    assert sums[True] == sums[False]
    print("the same parameters")


def main() -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser()
    parser.add_argument("which", choices=("callbacks", "predict", "sweep"))
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"callbacks": callbacks, "predict": predict, "sweep": sweep}[args.which](Path(folder), args)


if __name__ == "__main__":
    main()
