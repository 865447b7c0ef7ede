"""Cost of callbacks and trackers, of predictions beside evaluation, and ten runs as a sweep and as commands.

python benchmarks/after_training.py callbacks
python benchmarks/after_training.py predict --nodes 1000000
python benchmarks/after_training.py sweep
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import millrace as mr
from millrace.pipeline.custom.callback import Callbacks, RunView
from millrace.pipeline.telemetry.events import Emit, silent
from millrace.pipeline.trackers.base import TRACKERS, Axis, Tracked, Tracker
from millrace.pipeline.trackers.tracking import Tracking, _Beside


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


class Diary(Tracker):
    """A tracker that writes a line of JSON for each log, as file stores do."""

    name, package, install = "diary", "json", ""

    def start(self, run: Tracked) -> None:
        """Open the file."""
        self.file = (run.folder / "diary.jsonl").open("a")

    def log(self, values: Mapping[str, float], axis: Axis, at: int) -> None:
        """Write a line."""
        self.file.write(json.dumps({axis: at, **values}) + "\n")
        self.file.flush()

    def end(self, status: str, files: Sequence[Path]) -> None:
        """Close the file."""
        self.file.close()


class Spent:
    """Processor time that calls of functions take, in the threads that make them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time is counted under `name`."""

        def timed(*args: Any, **options: Any) -> Any:
            start = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - start
                self.calls[name] = self.calls.get(name, 0) + 1

        return timed


def callbacks(folder: Path, args: argparse.Namespace) -> None:
    """Share of a run's processor time that its callbacks and its tracker take, within the run: a busy machine does not
    change it much, but for the tracker's logs of steps, one a second. In each turn also the same run without both."""
    data = mr.open_dataset("sbm:nodes=20000,classes=8,features=64,train=0.5")
    spent = Spent()
    Callbacks.step = spent.watched("callbacks, steps", Callbacks.step)
    Callbacks.call = spent.watched("callbacks, other events", Callbacks.call)
    beside = Tracking.beside

    @contextmanager
    def watched(self: Tracking, emit: Emit) -> Iterator[Emit]:
        with beside(self, silent) as tell:

            def both(event: Any) -> None:
                spent.watched("tracker, told by the loop", tell)(event)
                emit(event)

            yield both

    Tracking.beside = watched
    _Beside._work = spent.watched("tracker, in its thread", _Beside._work)
    TRACKERS.register(Diary)
    totals: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(args.turns + 1):
        for given in (turn % 2 == 0, turn % 2 == 1):
            start = time.process_time()
            mr.run(
                data, fanout=[10, 5], hidden=64, layers=2, batch_size=256, epochs=4, train={"evaluate_every": 0},
                threads=1, callbacks=[Counts()] if given else None, out=folder / f"{turn}{given}", verbose=False,
                track=["diary"] if given else [],
            )  # fmt: skip
            totals[given].append(time.process_time() - start)
        if not turn:  # kernels were compiled
            spent.seconds.clear()
            spent.calls.clear()
            totals = {True: [], False: []}
    pairs = [a / b - 1 for a, b in zip(totals[True], totals[False])]
    mean, error = statistics.mean(pairs), statistics.stdev(pairs) / len(pairs) ** 0.5
    for name, seconds in spent.seconds.items():
        share = seconds / sum(totals[True])
        calls = spent.calls[name]
        print(f"{name}: {calls} calls, {1e6 * seconds / calls:.2f} us each, {100 * share:.3f} % of the run")
    print(f"whole runs with both: {100 * mean:+.2f} % +- {100 * error:.2f} of processor time ({args.turns} pairs)")


def predict(folder: Path, args: argparse.Namespace) -> None:
    """Seconds and memory of prediction and of evaluation, each in a process of its own."""
    source = f"sbm:nodes={args.nodes},classes=16,degree=10,features=64,train=0.01"
    mr.write_dataset(folder / "data", mr.open_dataset(source), features_format="npy")
    mr.run(
        folder / "data", fanout=[10, 5], hidden=64, layers=2, epochs=1, out=folder / "run", features="mapped",
        train={"evaluate_every": 0},
    )  # fmt: skip
    for name in (["evaluate"], ["predict", "--out", str(folder / "p.parquet")],
                 ["predict", "--embeddings", "--out", str(folder / "e.npy")],
                 ["predict", "--workers", "2", "--out", str(folder / "q.parquet")]):  # fmt: skip
        code = (
            "import resource, runpy, sys; sys.argv = sys.argv[1:]\n"
            "try:\n    runpy.run_module('millrace', run_name='__main__')\n"
            "except SystemExit:\n    pass\n"
            "u, w = (resource.getrusage(r) for r in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))\n"
            "# ru_maxrss would begin with that of the process which started this one.\n"
            "peak = open('/proc/self/status').read().split('VmHWM:')[1].split()[0]\n"
            "print('USED', u.ru_utime + u.ru_stime + w.ru_utime + w.ru_stime, int(peak) / 2**20,\n"
            "    w.ru_maxrss / 2**20, file=sys.stderr)"
        )
        command = [sys.executable, "-c", code, "millrace", name[0], str(folder / "run"), *name[1:], "--json"]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, gib, of_worker = done.stderr.split("USED")[1].split()
        wall = time.perf_counter() - start
        said = json.loads(done.stdout)["seconds"]
        text = f"{float(seconds):.1f} s of processor, {wall:.1f} s, {said:.1f} s of work, {float(gib):.2f} GiB at most"
        if "--workers" in name:
            text += f", {float(of_worker):.2f} GiB at most in a worker"
        print(f"{' '.join(name[:2])}: {text}", flush=True)
    same = (folder / "p.parquet").read_bytes() == (folder / "q.parquet").read_bytes()
    print("the same file" if same else "OTHER ROWS", flush=True)


def sweep(folder: Path, args: argparse.Namespace) -> None:
    """Ten runs as a sweep over one store of samples, as one whose runs sample, and as ten commands."""
    seeds, rates = range(5), (0.01, 0.003)
    flags = ["--dataset", args.dataset, "--epochs", "3", "--set", f"sampler.fanout={args.fanout}"]
    flags += ["--set", "train.batch_size=512", "--set", "model.hidden=32", "--set", "threads=1"]
    run = [sys.executable, "-m", "millrace", "run", *flags]

    def as_sweep(out: Path, share: bool) -> list[list[str]]:
        code = (
            "import sys\nfrom millrace.pipeline.sweep import sweep\nfrom millrace.pipeline import cli\n"
            f"if not {share}:\n    sweep._shared_samples = lambda *_: ({{}}, 0.0)\ncli.main()"
        )
        varied = ["--set", f"train.lr={','.join(map(str, rates))}", "--seeds", str(len(seeds)), "--jobs", "1"]
        return [[sys.executable, "-c", code, "sweep", *flags, *varied, "--out", str(out)]]

    def by_hand(out: Path) -> list[list[str]]:
        return [
            [
                *run,
                "--set",
                f"train.lr={rate}",
                "--set",
                f"seeds.initial={seed}",
                "--out",
                str(out / f"{k:03}-seed{seed}"),
            ]
            for k, rate in enumerate(rates)
            for seed in seeds
        ]

    subprocess.run([*run, "--out", str(folder / "first")], check=True, capture_output=True)  # kernels are compiled
    ways = {
        "a sweep over shared samples": as_sweep(folder / "shared", True),
        "a sweep whose runs sample": as_sweep(folder / "apart", False),
        "ten commands": by_hand(folder / "commands"),
    }
    sums = []
    for (name, commands), out in zip(ways.items(), ("shared", "apart", "commands")):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        for command in commands:
            subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{name}: {spent:.1f} s of processor, {time.perf_counter() - start:.1f} s", flush=True)
        results = {p.parent.name: json.loads(p.read_text()) for p in (folder / out).glob("*/result.json")}
        total = sum(r["seconds"]["total"] for r in results.values())
        sampled = sum(r["seconds"]["sample"] for r in results.values())
        print(f"  in runs: {total:.1f} s, {sampled:.1f} s of sampling beside training", flush=True)
        sums.append({name: r["parameters_sha256"] for name, r in results.items()})
    assert len(sums[0]) == 10 and sums[0] == sums[1] == sums[2]
    print("the same parameters")


def main() -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser()
    parser.add_argument("which", choices=("callbacks", "predict", "sweep"))
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=8, help="at least 2")
    parser.add_argument("--dataset", default="rmat:scale=15,features=32,classes=8,train=0.3")
    parser.add_argument("--fanout", default="[15,10,5]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"callbacks": callbacks, "predict": predict, "sweep": sweep}[args.which](Path(folder), args)


if __name__ == "__main__":
    main()
