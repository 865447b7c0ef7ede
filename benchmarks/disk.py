"""Training from disk beside the disk's own limit: units of minibatches, and runs in memory cgroups.

    python benchmarks/disk.py --folder disk/                  11 GB of disk; as root for the cgroups
    python benchmarks/disk.py --folder disk/ --base ../older  runs of another checkout beside

It makes a store of random edges and rows of 1 KiB. **Units**: the rows of 1, 8 and 25 minibatches as training collects
them, the same ranges through bare readers (by the cache of pages, and past it in threads: the limit is the faster of
both), and `torch.index_select` over a map with ``MADV_RANDOM`` for one minibatch.
**Packed**: rows beside samples, and the same files read in order. **Runs**: GraphSAGE of width 128 on minibatches of
1,024 seeds, fanout 10, 5, in a cgroup of each size: features in memory (no limit), mapped (as many minibatches together
as memory allows; eight in 2 GiB, 25 in 4 GiB, for ``--epochs``) and packed: an epoch of 100 minibatches, from its begin
to its last step, with the first unit's reading and the last one's training. **Sweep**: three trainings over one packed
store, from it alone, beside three live runs, which read the mapped features. **Predict**: exact outputs of all nodes in
the smallest cgroup, on the random graph and on one whose neighbours lie near: seconds, passes over the features, and
seconds until SIGINT in the midst has ended it. Units are read in 3 GiB, since a file that memory has room for goes
through the cache of pages. Pages of the features are dropped before each measurement, in this machine; sides take
turns; each line has the load, for machines that others use too. The last lines say which targets were met by the best
of all rounds; some need ``--base``.
"""

import argparse
import json
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import millrace as mr
from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Dataset, Split
from millrace.storage.dataset_store import open_dataset_store, write_dataset
from millrace.storage.features import ArrayFeatures, MappedFeatures
from millrace.storage.graph import Graph
from millrace.storage.queue.zarr import ZarrQueue

WIDTH, BATCH, FANOUT, STEPS = 256, 1024, (10, 5), 25
EPOCH = 100
"""Minibatches of an epoch: `STEPS` are read together four times."""
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
THREADS = 64
"""Reads of the bare reader that are under way past the cache of pages."""
ROWS = 58_000
"""Rows of a minibatch on the store of four million nodes."""
Best = dict[str, float]
"""Best seconds of a minibatch by what was measured."""


class Computed(ArrayFeatures):
    """Rows that are computed from their ids."""

    def __init__(self, nodes: int) -> None:
        super().__init__(np.broadcast_to(np.float32(0), (nodes, WIDTH)))

    def gather(self, ids: Any, out: Any = None) -> Any:
        """See `FeatureStore.gather`."""
        mixed = np.asarray(ids, np.uint32)[:, None] * np.uint32(2654435761) + np.arange(WIDTH, dtype=np.uint32)
        rows = (mixed >> np.uint32(8)).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)
        if out is None:
            return rows
        out[...] = rows
        return out


def make(store: Path, nodes: int, edges: int, reach: int = 0) -> None:
    """A store of a random graph, whose neighbours have ids at most so far away; 0: any."""
    rng = np.random.default_rng(0)
    degree = rng.multinomial(edges, np.full(nodes, 1 / nodes))
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    rows, near = np.repeat(np.arange(nodes, dtype=np.int64), degree), rng.integers(-reach, reach or nodes, edges)
    keys = rows * nodes + ((rows + near) % nodes if reach else near)
    keys.sort()
    order = rng.permutation(nodes)
    train, rest = np.sort(order[: EPOCH * BATCH]), order[EPOCH * BATCH :]
    split = Split(train, np.sort(rest[:1000]), np.sort(rest[1000:2000]))
    graph = Graph(indptr, (keys % nodes).astype(np.int32))
    dataset = Dataset("disk", graph, Computed(nodes), rng.integers(0, 16, nodes), split, 16)
    write_dataset(store, dataset, features_format="npy")


def drop(store: Path, name: str = "features.npy") -> None:
    """Take the pages of the features from this machine's cache."""
    handle = os.open(store / name, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def bytes_read() -> int:
    """Bytes that this process has had read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


Ranges = list[tuple[int, int]]
"""Starts of reads, and their bytes."""


def ranges_of(path: Path, ids: np.ndarray[Any, Any], row: int) -> Ranges:
    """The reads of ascending ids, neighbours together."""
    # Here, since an older checkout has none of them.
    from millrace.storage.store.npy import data_offset
    from millrace.storage.store.row_file import GAP_BYTES, READ_BYTES

    first, cuts = data_offset(path), np.flatnonzero((np.diff(ids) - 1) * row > GAP_BYTES) + 1
    return [
        (first + at * row, min(READ_BYTES, (last + 1 - at) * row))
        for low, last in zip(ids[[0, *cuts]].tolist(), ids[[*(cuts - 1), len(ids) - 1]].tolist())
        for at in range(low, last + 1, READ_BYTES // row)
    ]


def by_cache(path: Path, ranges: Ranges) -> None:
    """Reads through the cache of pages, which are announced ahead, and leaves rows where they come."""
    handle, buffer, ahead = os.open(path, os.O_RDONLY), memoryview(bytearray(1 << 20)), 4096
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
    for k in range(-ahead, len(ranges)):
        if k + ahead < len(ranges):
            os.posix_fadvise(handle, *ranges[k + ahead], os.POSIX_FADV_WILLNEED)
        if k >= 0:
            os.preadv(handle, [buffer[: ranges[k][1]]], ranges[k][0])
    os.close(handle)


def past_cache(path: Path, ranges: Ranges) -> None:
    """Reads past the cache of pages, of which each thread has one under way."""
    handle, page = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.PAGESIZE

    def read(k: int) -> None:
        buffer = memoryview(mmap.mmap(-1, (1 << 20) + 2 * page))
        for at, size in ranges[k::THREADS]:
            begin = at // page * page
            os.preadv(handle, [buffer[: -(-(at + size) // page) * page - begin]], begin)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read, range(THREADS)))
    os.close(handle)


def units(store: Path, rounds: int, best_of: Best) -> None:
    """Seconds of units of several sizes."""
    data = open_dataset_store(store, features="mapped")
    plan = SeedPlan(data.split.train, BATCH, STEPS, 0)
    bulk = NeighborSampler(FANOUT).sample(data.graph, plan.request(0, 0), cpu)
    features = data.features
    assert isinstance(features, MappedFeatures)
    path = store / "features.npy"
    # Here, since an older checkout has none.
    from millrace.stages.fetch.ahead.disk_rows import DiskRows

    for together in (1, 8, STEPS):
        asked = np.concatenate([m.nodes for m in bulk.minibatches[:together]])
        ids = np.unique(asked)
        ranges = ranges_of(path, ids, WIDTH * 4)
        # From the second on into buffers of the units before, as in training.
        sides = {"by cache": partial(by_cache, path, ranges), "unit": partial(DiskRows(features).collect, asked)}
        with suppress(OSError):
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
            sides["past cache"] = partial(past_cache, path, ranges)
        if together == 1:
            sides["index_select"] = partial(selected, store, asked)
        found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, read in sides.items():
                drop(store)
                start, used = time.perf_counter(), time.process_time()
                read()
                found[side].append((time.perf_counter() - start, time.process_time() - used))
        best = {side: [round(x / together, 3) for x in min(s)] for side, s in found.items()}
        best_of.update({f"{side} of {together}": min(s)[0] / together for side, s in found.items()})
        limits = [best_of[f"{side} of {together}"] for side in ("by cache", "past cache") if side in sides]
        best_of[f"limit of {together}"] = min(limits)
        print(json.dumps({"together": together, "rows": len(ids), "s, cpu s each": best, **load()}), flush=True)


def selected(store: Path, asked: np.ndarray[Any, Any]) -> None:
    """Rows by torch, of a map that is gone afterwards: mapped pages cannot be dropped."""
    rows = np.load(store / "features.npy", mmap_mode="c")
    rows._mmap.madvise(mmap.MADV_RANDOM)
    torch.from_numpy(np.asarray(rows)).index_select(0, torch.from_numpy(asked).long())


def load() -> dict[str, float]:
    """The machine's load."""
    return {"load": round(os.getloadavg()[0], 1)}


@contextmanager
def held(gib: float) -> Iterator[None]:
    """This process in a memory cgroup of this size, where one may be made."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    first = next((path for _, kinds, path in own if "memory" in kinds.split(",")), None)
    before = (V2 / own[-1][2].lstrip("/")) if first is None else V1 / first.lstrip("/")
    with ExitStack() as stack:
        try:
            (stack.enter_context(cgroup(gib)) / "cgroup.procs").write_text(str(os.getpid()))
            stack.callback((before / "cgroup.procs").write_text, str(os.getpid()))
        except OSError as e:
            print(f"units: no memory cgroup may be made here ({e.strerror}): {e.filename}")
        yield


@contextmanager
def cgroup(gib: float) -> Iterator[Path]:
    """A memory cgroup of this size, of version 1 or 2. Raises OSError where none may be made."""
    first = (V1 / "memory.limit_in_bytes").exists()
    folder = (V1 if first else V2) / f"millrace-disk-{os.getpid()}"
    folder.mkdir()
    try:
        name = "memory.limit_in_bytes" if first else "memory.max"
        (folder / name).write_text(str(int(gib * 2**30)))
        yield folder
    finally:
        folder.rmdir()


def packed_units(packed: Path, rounds: int, best_of: Best) -> None:
    """Seconds of packed rows, and of the same files read in order."""
    rows = ZarrQueue.open(packed).packed
    assert rows is not None
    files = sorted(packed.rglob("rows.npy"))

    def in_order() -> None:
        buffer = memoryview(bytearray(1 << 20))
        for file in files:
            with file.open("rb", buffering=0) as f:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                while f.readinto(buffer):
                    pass

    from millrace.stages.memory.arena import Arena

    buffers = Arena(idle_steps=0)

    def as_trained() -> None:
        for index in range(EPOCH):
            rows.rows(0, index, np.float32, buffers.array)
            buffers.step()

    for _ in range(rounds):
        for side, read in (("limit of packed", in_order), ("packed", as_trained)):
            for file in files:
                drop(file.parent, file.name)
            start = time.perf_counter()
            read()
            best_of[side] = min(best_of.get(side, np.inf), (time.perf_counter() - start) / EPOCH)
    print(json.dumps({"packed, s each": {k: round(best_of[k], 4) for k in ("limit of packed", "packed")}, **load()}))


def child(store: Path, features: str, out: Path, steps: int, together: int) -> None:
    """A run that ends after some steps and prints the seconds of each: of all from the begin of training, and without
    the first, which waits for the compiler too. `features` are ``memory``, ``mapped`` or a store of
    samples; `together`: minibatches whose rows are read together, 0 as the memory allows."""
    drop(store)
    at: list[float] = []
    before = bytes_read()

    def emit(event: object) -> None:
        if type(event).__name__ != "StepDone" and getattr(event, "stage", "") != "train":
            return
        at.append(time.perf_counter())
        if len(at) == steps + 1:
            each, later = (at[-1] - at[0]) / steps, (at[-1] - at[1]) / (steps - 1)
            read = round((bytes_read() - before) / 1e9, 2)
            found = {"s each": round(each, 3), "later": round(later, 3), "GB read": read}
            print(json.dumps({**found, **load()}), flush=True)
            os._exit(0)

    job: dict[str, Any] = {"epochs": -(-steps // EPOCH), "batch_size": BATCH, "fanout": list(FANOUT), "hidden": 128}
    job |= {"layers": 2, "train": {"evaluate_every": 0}}
    if together:
        # Two units, and what is being read.
        job["bulk"] = {"prefetch_bytes": 2 * together * ROWS * WIDTH * 4 + (128 << 20)}
    if features in ("memory", "mapped"):
        mr.run(store, out=out, emit=emit, verbose=False, seed=1, features=features, **job)
    else:
        mr.run(samples=features, out=out, emit=emit, verbose=False, seed=1, **job)


def runs(args: argparse.Namespace, store: Path, packed: Path, best_of: Best) -> None:
    """Seconds of minibatches of whole runs, side by side."""
    out = args.folder / "run"
    sides: list[tuple[str, float, str, Path | None, int, int]] = [("memory", 0, "memory", None, EPOCH, 0)]
    for gib in args.gib:
        sides.append((f"disk, {gib:g} GiB", gib, "mapped", None, EPOCH, 0))
        if args.base is not None:
            sides.append((f"disk, {gib:g} GiB, base", gib, "mapped", args.base, args.base_steps, 0))
    many = args.epochs * EPOCH
    sides += [(f"disk, {k} together", gib, "mapped", None, many, k) for gib, k in ((2, 8), (4, STEPS))]
    sides.append(("packed, 2 GiB", 2, str(packed), None, EPOCH, 0))
    for number in range(args.rounds):
        for name, gib, features, base, steps, together in sides:
            shutil.rmtree(out, ignore_errors=True)
            for file in packed.rglob("rows.npy") if features == str(packed) else ():
                drop(file.parent, file.name)
            words = [sys.executable, __file__, "--child", str(store), features, str(out), str(steps), str(together)]
            env = dict(os.environ)
            if base is not None:
                link = args.folder / "base" / "millrace"
                link.parent.mkdir(exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(base.resolve())
                env["PYTHONPATH"] = str(link.parent.resolve())
            try:
                found = limited(words, gib, env)
                print(json.dumps({"run": name, "round": number, **found}), flush=True)
                # Few steps are taken of the other checkout.
                seconds = found.get("s each" if base is None else "later", np.inf)
                best_of[name] = min(best_of.get(name, np.inf), seconds)
            except OSError as e:
                print(f"{name}: skipped, no memory cgroup may be made here ({e.strerror}): {e.filename}", flush=True)


SWEEP: tuple[dict[str, Any], ...] = (
    {"seeds": {"initial": 7}},
    {"model": {"name": "sage", "hidden": 64, "layers": 2}},
    {"model": {"name": "gcn", "hidden": 128, "layers": 2}},
)
"""Another seed, width and model on the same minibatches."""


def whole(store: str, samples: str, out: Path, number: int) -> None:
    """One training of `SWEEP`: from packed samples alone, or live from the mapped store."""
    drop(Path(store))
    start, before = time.perf_counter(), bytes_read()
    job = {"epochs": 1, "batch_size": BATCH, "fanout": list(FANOUT), "features": "mapped", "seed": 1, **SWEEP[number]}
    job |= {"model": job.get("model", {"name": "sage", "hidden": 128, "layers": 2}), "train": {"evaluate_every": 0}}
    data: dict[str, Any] = {"samples": samples} if samples else {"dataset": store}
    last = start, before

    def emit(event: object) -> None:
        nonlocal last
        if type(event).__name__ == "StepDone":
            last = time.perf_counter(), bytes_read()

    more = {} if samples else data
    found = mr.run(config=job | more, **(data if samples else {}), out=out, emit=emit, verbose=False)
    # Until the last step: packed samples alone are not evaluated.
    read = {"s": round(last[0] - start, 2), "GB read": round((last[1] - before) / 1e9, 2)}
    print(json.dumps({**read, "sha256": found.parameters_sha256[:12], **load()}), flush=True)


def pack(store: Path, packed: Path) -> None:
    """Sample and pack, and what that takes."""
    shutil.rmtree(packed, ignore_errors=True)
    drop(store)
    start = time.perf_counter()
    from millrace.pipeline.config.load import resolve
    from millrace.pipeline.precompute import precompute

    job = {"dataset": str(store), "epochs": 1, "seed": 1, "sampler": {"fanout": list(FANOUT)}, "features": "mapped"}
    job |= {"train": {"batch_size": BATCH}, "graph": "memory"}
    made = precompute(resolve(job), packed, emit=lambda _: None, stop=lambda: False, features="own")
    facts = {"s": round(time.perf_counter() - start, 2), "GB packed": round(made["packed_bytes"] / 1e9, 2)}
    print(json.dumps({"sample and pack": facts, **load()}), flush=True)


def sweep(args: argparse.Namespace, store: Path, packed: Path) -> None:
    """Three trainings over one packed store beside three live runs, in turns."""
    out = args.folder / "run"
    for number in range(len(SWEEP)):
        for side, samples in (("live", ""), ("packed", str(packed))):
            shutil.rmtree(out, ignore_errors=True)
            for file in packed.rglob("rows.npy"):
                drop(file.parent, file.name)
            words = [sys.executable, __file__, "--whole", str(store), samples, str(out), str(number)]
            found = limited(words, args.gib[0], dict(os.environ))
            print(json.dumps({"sweep": side, "number": number, **found}), flush=True)


def predict(args: argparse.Namespace, random: Path) -> None:
    """Exact outputs of all nodes by a trained model, and their end by SIGINT."""
    near, out, file = args.folder / "near", args.folder / "predicted-run", args.folder / "out.npy"
    if not near.exists():
        make(near, args.nodes, args.edges, reach=1000)
    for store in (random, near):
        shutil.rmtree(out, ignore_errors=True)
        job = {"epochs": 1, "batch_size": BATCH, "fanout": list(FANOUT), "hidden": 128, "layers": 2}
        job |= {"features": "mapped", "train": {"evaluate_every": 0}}
        mr.run(store, out=out, verbose=False, seed=1, emit=lambda _: None, **job)
        took = 0.0
        for stops in (False, True):
            drop(store)
            file.unlink(missing_ok=True)
            words = [sys.executable, "-m", "millrace", "predict", str(out), "--out", str(file)]
            with cgroup(min(args.gib)) as folder:
                start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
                done = subprocess.Popen(words, preexec_fn=partial(enter, folder), stderr=subprocess.DEVNULL)
                if stops:
                    time.sleep(took / 2)
                    done.send_signal(signal.SIGINT)
                    start = time.perf_counter()
                code, took = done.wait(), time.perf_counter() - start
            read = (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before) * 512
            facts = {"exit code": code, "s": round(took, 1), "GB read": round(read / 1e9, 2)}
            passes = {} if stops else {"passes": round(read / (args.nodes * WIDTH * 4), 2)}
            print(json.dumps({"predict": store.name, "SIGINT": stops, **facts, **passes, **load()}), flush=True)


def enter(folder: Path) -> None:
    """Enter a cgroup, and hear of SIGINT, which a shell's background jobs do not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    (folder / "cgroup.procs").write_text(str(os.getpid()))


def limited(words: list[str], gib: float, env: dict[str, str]) -> dict[str, Any]:
    """What a child prints that runs in a cgroup; without one for a size of 0."""
    if not gib:
        return outcome(subprocess.run(words, env=env, capture_output=True, text=True, check=False))
    with cgroup(gib) as folder:
        into = partial(enter, folder)
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, preexec_fn=into)
    return outcome(done)


def outcome(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The last line that a child has printed, or how it ended."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"ended": done.returncode, "error": done.stderr[-300:]}


def targets(best: Best) -> None:
    """Print the targets of issue and specification, and whether they were met."""
    rows = [(f"unit of {k} against the limit", f"unit of {k}", f"limit of {k}", 1.25, False) for k in (1, 8, STEPS)]
    rows += [(f"index_select against a unit of {STEPS}", "index_select of 1", f"unit of {STEPS}", 20, True)]
    rows += [("packed rows against the files in order", "packed", "limit of packed", 1.2, False)]
    for name, unit in (("disk, 8 together", 8), (f"disk, {STEPS} together", STEPS)):
        best[f"floor of {unit}"] = float(np.maximum(best.get(f"limit of {unit}", np.nan), best.get("memory", np.nan)))
        rows.append((f"{name}, against max(limit, step in memory)", name, f"floor of {unit}", 1.15, False))
    for name, gib, factor in (
        ("disk, 2 GiB", 2, 12),
        ("disk, 8 together", 2, 20),
        (f"disk, {STEPS} together", 4, 30),
        ("packed, 2 GiB", 2, 30),
    ):
        rows.append((f"the other checkout against {name}", f"disk, {gib} GiB, base", name, factor, True))
    print(f"{'what':58} {'target':>8} {'found':>8}")
    for what, above, below, target, at_least in rows:
        ratio = best.get(above, np.nan) / best.get(below, np.nan)
        met = "not measured" if not 0 < ratio < np.inf else "met" if (ratio >= target) == at_least else "missed"
        print(f"{what:58} {'>=' if at_least else '<='}{target:6g} {ratio:8.2f} {met}")
    print(json.dumps({"best, s each": {k: round(v, 4) for k, v in sorted(best.items()) if np.isfinite(v)}}))


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--nodes", type=int, default=4_000_000)
    parser.add_argument("--edges", type=int, default=64_000_000)
    parser.add_argument("--epochs", type=int, default=1, help="epochs of runs with eight and with 25 together")
    parser.add_argument("--gib", type=float, nargs="*", default=[1, 2, 4], help="sizes of cgroups")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--base", type=Path, help="another checkout")
    parser.add_argument("--base-steps", type=int, default=4, help="minibatches of a run of the other checkout")
    parser.add_argument("--only", choices=("units", "packed", "runs", "sweep", "predict"))
    parser.add_argument(
        "--child", nargs=5, metavar=("STORE", "FEATURES", "OUT", "STEPS", "TOGETHER"), help=argparse.SUPPRESS
    )
    parser.add_argument("--whole", nargs=4, metavar=("STORE", "SAMPLES", "OUT", "NUMBER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.whole:
        whole(args.whole[0], args.whole[1], Path(args.whole[2]), int(args.whole[3]))
        return
    if args.child:
        child(Path(args.child[0]), args.child[1], Path(args.child[2]), int(args.child[3]), int(args.child[4]))
        return
    store, packed, best = args.folder / "store", args.folder / "packed", Best()
    if not store.exists():
        make(store, args.nodes, args.edges)
    if args.only not in ("units", "predict"):
        pack(store, packed)
    if args.only in (None, "units"):
        with held(3):
            units(store, args.rounds, best)
    if args.only in (None, "packed"):
        packed_units(packed, args.rounds, best)
    if args.only in (None, "runs"):
        runs(args, store, packed, best)
    try:
        if args.only in (None, "sweep"):
            sweep(args, store, packed)
        if args.only in (None, "predict"):
            predict(args, store)
    except OSError as e:
        print(f"sweep or predict ended early, {e.strerror}: {e.filename} (memory cgroups need root)", flush=True)
    targets(best)


if __name__ == "__main__":
    main()
