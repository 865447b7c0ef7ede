"""Costs and savings of a store of sampled minibatches: bytes on disk, writing and reading compared with plain files,
reuse in training.

    python benchmarks/store.py --json store.json

Neighbour sampling, batch 1024, fanout 15, 10, 5, bulks of 8, on a generated graph of 131 k nodes and 4 M edges.

Writing and reading: the same packed rows (int32) through `ZarrQueue` and as plain files, a file per bulk, on the same
disk. Neither syncs; "write, then sync" adds what it takes until all lies on the disk. Rates are megabytes of packed
rows a second, so compression shows as speed where it pays. "warm": all pages are in the cache; "cold": they were
written out and dropped (posix_fadvise) just before, on both sides; a virtual machine's host may hold them still.
Reading gives a plain file's bytes, and from the store minibatches that are decompressed, verified and ready; "in order"
goes through the epoch, "at random" takes one minibatch here and one there (plain: a positioned read in an open file).

Reuse: seconds an epoch of training GraphSAGE (hidden 64, 3 layers), sampling as it goes and from a store, on one
thread. "one core": the process is bound to one, and sampling takes turns with training; "all cores": the sampler's
thread has a core of its own. "cpu" is the whole process's processor time, which other work on the machine distorts
less.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import millrace as mr
from millrace.pipeline.precompute import precompute
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.telemetry.events import Event, StageStarted, StepDone, silent
from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.storage.queue.bulk_codec import pack_bulk, packed_words
from millrace.storage.queue.zarr import ZarrQueue

DATASET = "rmat:scale=17,train=0.25"
FANOUT = (15, 10, 5)
BATCH = 1024
BULK = 8
EPOCHS = 2
PARTS = ("sample", "queue_wait", "fetch", "forward_backward")


class Plain:
    """Rows of packed minibatches in plain files, one per bulk."""

    def __init__(self, folder: Path, rows: list[list[np.ndarray]]) -> None:
        self.folder, self.rows = folder, rows
        self._ends = [np.cumsum([0, *(r.nbytes for r in bulk)]) for bulk in rows]
        self._open: list[int] = []

    def write(self) -> None:
        """All of them."""
        self.folder.mkdir()
        for n, bulk in enumerate(self.rows):
            with open(self.folder / str(n), "wb", buffering=0) as f:
                for row in bulk:
                    f.write(row.data)

    def open(self) -> None:
        """Open the files for reading."""
        self._open = [os.open(self.folder / str(n), os.O_RDONLY) for n in range(len(self.rows))]

    def read(self, index: int) -> int:
        """One row into fresh memory; its bytes."""
        n, i = divmod(index, BULK)
        row = np.empty((self._ends[n][i + 1] - self._ends[n][i]) // 4, np.int32)
        read = os.preadv(self._open[n], [row.data], int(self._ends[n][i]))
        assert read == row.nbytes
        return read

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._open:
            os.close(descriptor)


class Stored:
    """The same minibatches in a store."""

    def __init__(self, folder: Path, bulks: list[mr.Bulk]) -> None:
        self.folder, self.bulks = folder, bulks
        self._bytes = [4 * packed_words(m) for b in bulks for m in b.minibatches]

    def write(self) -> None:
        """All of them."""
        queue = ZarrQueue.create(self.folder, fingerprint={}, bulk_size=BULK, max_bytes=1 << 62, keep="all")
        for bulk in self.bulks:
            queue.put(bulk, timeout_s=1)
        queue.close()

    def open(self) -> None:
        """Open the store for reading."""
        self._queue = ZarrQueue.open(self.folder)

    def read(self, index: int) -> int:
        """One minibatch; the bytes of its packed row."""
        m = self._queue.get(0, index, timeout_s=1)
        assert m.index == index
        return self._bytes[index]

    def close(self) -> None:
        """Forget the store."""
        self._queue.close()


def write_out(folder: Path, drop: bool = False) -> None:
    """Write a folder's files out to the disk, and drop their pages from the cache if asked."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as f:
                os.fsync(f.fileno())
                if drop:
                    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_bytes(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def timed(act: Callable[[], Any]) -> float:
    """Seconds."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def input_output(dataset: mr.Dataset, folder: Path, rounds: int) -> dict[str, Any]:
    """Sizes of one epoch's minibatches, and rates of writing and reading them."""
    plan = SeedPlan(dataset.split.train, BATCH, BULK, seed=0)
    workspace, sampler = cpu.Workspace(), mr.NeighborSampler(FANOUT)
    bulks = [sampler.sample(dataset.graph, plan.request(0, n), cpu, workspace) for n in range(plan.num_bulks)]
    minibatches = [m for b in bulks for m in b.minibatches]
    rows = [[row[: packed_words(m)].copy() for row, m in zip(pack_bulk(b), b.minibatches)] for b in bulks]
    packed = sum(row.nbytes for bulk in rows for row in bulk)
    orders = {
        "in order": np.arange(len(minibatches)),
        "at random": np.random.default_rng(0).permutation(len(minibatches)),
    }
    seconds: dict[str, dict[str, list[float]]] = {}
    stored = 0

    def note(what: str, who: str, s: float) -> None:
        seconds.setdefault(what, {"store": [], "plain": []})[who].append(s)

    for turn in range(rounds + 1):
        for who in ("store", "plain") if turn % 2 else ("plain", "store"):
            place = folder / f"{who}-{turn}"
            one = Stored(place, bulks) if who == "store" else Plain(place, rows)
            found = {"write": timed(one.write)}
            found["write, then sync"] = found["write"] + timed(lambda place=place: write_out(place))
            for name, order in orders.items():
                for state in ("cold", "warm"):
                    if state == "cold":
                        write_out(place, drop=True)
                    one.open()
                    found[f"read {name}, {state}"] = timed(
                        lambda one=one, order=order: [one.read(int(i)) for i in order]
                    )
                    one.close()
            on_disk = disk_bytes(place)
            shutil.rmtree(place)
            # The first round warms the code up.
            for what, s in found.items() if turn else ():
                note(what, who, s)
            if who == "store":
                stored = on_disk
    rates = {
        what: {f"{who}_mb_per_s": packed / 1e6 / statistics.median(s) for who, s in by.items()}
        | {f"{who}_range": [packed / 1e6 / max(s), packed / 1e6 / min(s)] for who, s in by.items()}
        | {"fraction": statistics.median(by["plain"]) / statistics.median(by["store"])}
        for what, by in seconds.items()
    }
    count = len(minibatches)
    return {
        "minibatches": count,
        "nodes_per_minibatch": sum(len(m.nodes) for m in minibatches) / count,
        "edges_per_minibatch": sum(m.num_edges for m in minibatches) / count,
        "structure_bytes_per_minibatch": sum(m.nbytes for m in minibatches) / count,
        "packed_bytes_per_minibatch": packed / count,
        "disk_bytes_per_minibatch": stored / count,
        "rates": rates,
    }


@contextmanager
def cores(which: set[int]) -> Iterator[None]:
    """Bind every thread of this process, and those to come."""
    before = os.sched_getaffinity(0)

    def bind(to: set[int]) -> None:
        for task in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(task), to)

    bind(which)
    try:
        yield
    finally:
        bind(before)


class CpuSeconds:
    """Processor time of the whole process from the start of training to its last step."""

    def __init__(self) -> None:
        self._start = self._last = 0.0

    def __call__(self, event: Event) -> None:
        """Hear what the run says."""
        if isinstance(event, StageStarted) and event.stage == "train":
            self._start = time.process_time()
        elif isinstance(event, StepDone):
            self._last = time.process_time()

    @property
    def per_epoch(self) -> float:
        """Seconds."""
        return (self._last - self._start) / EPOCHS


def reuse(dataset: mr.Dataset, folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds an epoch, sampled on the fly and from a store."""
    options: dict[str, Any] = {
        "epochs": EPOCHS,
        "fanout": FANOUT,
        "batch_size": BATCH,
        "hidden": 64,
        "threads": 1,
        "train": {"evaluate_every": 0},
        "queue": {"bulk_size": BULK},
    }
    job = configure({"dataset": DATASET, "model": {"name": "sage"}}, **options)
    everything = os.sched_getaffinity(0)
    one = {min(everything)}
    with cores(one):
        filled = precompute(job, folder / "samples", emit=silent, stop=lambda: False)
        sampling = timed(lambda: precompute(job, folder / "again", emit=silent, stop=lambda: False))
    shutil.rmtree(folder / "again")
    found: dict[str, Any] = {
        "epochs": EPOCHS,
        "precompute_s": [filled["seconds"], sampling],
        "store_bytes": filled["bytes"],
    }
    places = {"one core": one, "all cores": everything}
    per_epoch: dict[tuple[str, str], list[float]] = {
        (p, how): [] for p in places for how in ("on the fly", "from the store")
    }
    cpu_s: dict[tuple[str, str], list[float]] = {key: [] for key in per_epoch}
    parts: dict[tuple[str, str], list[dict[str, float]]] = {key: [] for key in per_epoch}
    parameters = set()
    for turn in range(rounds + 1):
        for p, how in list(per_epoch)[:: 1 if turn % 2 else -1]:
            out = folder / "run"
            with cores(places[p]):
                samples = folder / "samples" if how == "from the store" else None
                spent = CpuSeconds()
                result = mr.run(dataset, model="sage", out=out, samples=samples, emit=spent, **options)
            shutil.rmtree(out)
            parameters.add(result.parameters_sha256)
            # The first round warms the code up.
            if turn:
                per_epoch[p, how] += result.seconds["per_epoch"]
                cpu_s[p, how].append(spent.per_epoch)
                parts[p, how].append({k: result.seconds[k] / EPOCHS for k in PARTS})
        print(f"  training, round {turn} of {rounds} done, load average {os.getloadavg()[0]:.1f}", flush=True)
    if len(parameters) != 1:
        raise SystemExit(
            "the runs should end with the same parameters, wherever their minibatches come from; they differ"
        )
    for p in places:
        ways = ("on the fly", "from the store")
        found[p] = {
            how: {
                "seconds": statistics.median(per_epoch[p, how]),
                "range": [min(per_epoch[p, how]), max(per_epoch[p, how])],
                "cpu_seconds": statistics.median(cpu_s[p, how]),
                "parts": {k: statistics.median(part[k] for part in parts[p, how]) for k in PARTS},
            }
            for how in ways
        }
        found[p]["saved"] = {k: 1 - found[p][ways[1]][k] / found[p][ways[0]][k] for k in ("seconds", "cpu_seconds")}
    return found


def show(report: dict[str, Any]) -> None:
    """Print the tables."""
    io, training = report["input_output"], report["reuse"]
    print(
        f"\na minibatch: {io['nodes_per_minibatch']:.0f} nodes, {io['edges_per_minibatch']:.0f} edges; "
        f"structure {io['structure_bytes_per_minibatch'] / 1e6:.3f} MB, packed "
        f"{io['packed_bytes_per_minibatch'] / 1e6:.3f} MB, "
        f"on disk {io['disk_bytes_per_minibatch'] / 1e6:.3f} MB "
        f"({100 * io['disk_bytes_per_minibatch'] / io['structure_bytes_per_minibatch']:.0f} % of the structure)"
    )
    print(
        f"\n{'MB of packed rows a second':28}{'store':>8}{'min - max':>16}"
        f"{'plain':>8}{'min - max':>16}{'store/plain':>13}"
    )
    for what, r in io["rates"].items():
        spread = {who: f"{r[who + '_range'][0]:.0f} - {r[who + '_range'][1]:.0f}" for who in ("store", "plain")}
        print(
            f"{what:28}{r['store_mb_per_s']:>8.0f}{spread['store']:>16}{r['plain_mb_per_s']:>8.0f}"
            f"{spread['plain']:>16}{r['fraction']:>13.2f}"
        )
    print(f"\n{'an epoch, one thread':28}{'seconds':>9}{'min - max':>16}{'cpu s':>8}  of it")
    for p in ("one core", "all cores"):
        for how in ("on the fly", "from the store"):
            r = training[p][how]
            spread = f"{r['range'][0]:.2f} - {r['range'][1]:.2f}"
            parts = ", ".join(f"{name} {s:.2f}" for name, s in r["parts"].items())
            print(f"{p + ', ' + how:28}{r['seconds']:>9.2f}{spread:>16}{r['cpu_seconds']:>8.2f}  {parts}")
        saved = training[p]["saved"]
        print(f"{p + ', saved':28}{100 * saved['seconds']:>8.1f}%{'':16}{100 * saved['cpu_seconds']:>7.1f}%")
    print(
        f"filling the store once, {training['epochs']} epochs, with opening the "
        f"data: {training['precompute_s'][-1]:.2f} s"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A store of sampled minibatches: size, speed, and what reuse saves.")
    parser.add_argument("--rounds", type=int, default=5, help="of writing and reading")
    parser.add_argument("--runs", type=int, default=3, help="training runs of each kind")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; by default where temporary files go")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "sched_setaffinity"):
        parser.error("this benchmark needs Linux: it drops pages and binds threads to cores")
    load_before = os.getloadavg()
    if load_before[0] > 0.5:
        print(f"the load average is {load_before[0]:.1f}: other work distorts this")
    dataset = mr.open_dataset(DATASET)
    print(f"{DATASET}: {dataset.num_nodes} nodes, {dataset.graph.num_edges} edges", flush=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        set_num_threads(1)
        io = input_output(dataset, Path(folder), args.rounds)
        set_num_threads(None)
        training = reuse(dataset, Path(folder), args.runs)
    report = {
        "dataset": DATASET,
        "fanout": FANOUT,
        "batch_size": BATCH,
        "bulk_size": BULK,
        "input_output": io,
        "reuse": training,
        "machine": {"processor": platform.processor() or platform.machine(), "cpus": os.cpu_count()}
        | {"load_before": load_before, "load_after": os.getloadavg()},
    }
    show(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
        print(f"written: {args.json}")


if __name__ == "__main__":
    main()
