"""Stages at scale: a generated graph as Parquet, and the time, memory and traffic of each stage on it.

    python benchmarks/scale.py generate --nodes 4e6 --edges 6e7 --features 64 --train 2e5 --out graph/
    python benchmarks/scale.py ingest graph/ --out store/ --memory 1GiB --workers 1 --graph npy --feature-dtype float16
    python benchmarks/scale.py generate --kind typed --times --nodes 1e7 --edges 1e8 --features 8 --out typed/
    python benchmarks/scale.py ingest typed/ --out store/ --memory 2GiB --set read.edge_time=time
    python benchmarks/scale.py edges graph/ --out store/ --memory 1GiB
    python benchmarks/scale.py peers graph/ --out peers/ --peers pyg,graphbolt
    python benchmarks/scale.py cut store/ --out parts/ --parts 2 --set partition.owners=owners.npy
    python benchmarks/scale.py relabel store/ --out by-part/ --parts 2 --method hash --memory 1GiB
    python benchmarks/scale.py sample store/ --out samples/ --epochs 1 --fanout 10,5
    python benchmarks/scale.py train store/ --out run/ --ranks 2 --system sar --set partition.method=hash --epochs 1
    python benchmarks/scale.py evaluate store/ --run run/ --nodes 1e5 --fanout 15,10,5
    python benchmarks/scale.py evaluate store/ --run run/ --exact --workers 2

``generate``  writes ``edges-*.parquet`` (``src``, ``dst``) and ``nodes-*.parquet`` (``label``, ``features``), slice by
              slice. ``--kind rmat``: a Kronecker graph (Chakrabarti, Zhan and Faloutsos, SDM 2004; quarters 0.57,
              0.19, 0.19, 0.05) with scrambled ids, and labels that say nothing. ``--kind community``: nodes in classes,
              four of five edges inside one, and features of which each is its class's mean plus noise. ``--kind
              typed``: papers, authors and a few venues with in-edges of all papers, at random. ``--ids
              sparse`` gives the nodes an ``id`` column of integers with gaps, ``--ids uuid`` one of text. ``--train``:
              so many nodes are in the train split, spread evenly, and the others in none.
``ingest``    runs ``millrace convert`` and prints seconds, processor seconds, the peak of anonymous plus shared memory,
              and the bytes read and written, each summed over all processes that the command starts; and the peak in
              each stage that the command tells of. It fails if the peak is above ``--memory``. Further words of the
              command line are those of ``convert``.
``edges``     the same without features: what the edges alone take.
``peers``     the same by PyTorch Geometric, into a file of a `Data`, and by GraphBolt's `OnDiskDataset`, which is given
              arrays in place of Parquet, written beforehand. GraphBolt's environment (5.2 GB) is made on first use, in
              the folder ``--cache``.
``cut``, ``relabel``, ``sample``, ``train``
              run ``millrace partition --out``, ``partition --into``, ``sample`` and ``run`` on a store, with the
              further words of the command line, and print the same; the driver is the command's own process.
``evaluate``  the accuracy of a finished run for nodes spread evenly over the graph, by neighbourhoods sampled with the
              fanout given, graph and features mapped, in one process. It is an estimate; with ``--exact``, `millrace
              evaluate` reads all edges in each layer. ``generate --rest test`` makes all other nodes test nodes.

Shared memory is ``RssShmem``: shmem, memfd and tmpfs. Pages of files that are mapped belong to the page cache and are
not counted. Bytes are those of system calls (``rchar``, ``wchar``), beside those that reached the disk.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.pipeline.ingest.tasks import parse_memory

ROWS_PER_GROUP, ROWS_PER_FILE = 1 << 20, 1 << 24
SPREAD = 0x9E3779B97F4A7C15
"""An odd number, by which ids are scrambled."""
EVERY_S = 0.05
"""Interval between two looks at the memory of the processes."""
STAGES = {
    "cut": ("partition", "{source}", "--out", "{out}"),
    "relabel": ("partition", "{source}", "--into", "{out}"),
    "sample": ("sample", "--dataset", "{source}", "--out", "{out}"),
    "train": ("run", "--dataset", "{source}", "--out", "{out}"),
}
"""Commands on a store."""
TYPED = {
    "nodes-paper": 0.5,
    "nodes-author": 0.4999,
    "nodes-venue": 0.0001,
    "edges-author-writes-paper": 0.4,
    "edges-paper-cites-paper": 0.4,
    "edges-paper-in-venue": 0.2,
}
"""Tables of several types, and their parts of all nodes and of all edges."""
COUNTERS = {"rchar": "read", "wchar": "written", "read_bytes": "from_disk", "write_bytes": "to_disk"}
"""Counters of /proc/PID/io, and their names here."""


def scrambled(ids: np.ndarray, scale: int) -> np.ndarray:
    """A permutation of [0, 2^scale)."""
    mask = np.uint64((1 << scale) - 1)
    x = ids.astype(np.uint64) * np.uint64(SPREAD) & mask
    x ^= x >> np.uint64(max(1, scale // 2))
    return (x * np.uint64(SPREAD) & mask).astype(np.int64)


def rmat(rng: np.random.Generator, count: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends of `count` edges of a Kronecker graph, its ids scrambled."""
    scale = max(1, (nodes - 1).bit_length())
    src, dst = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for _ in range(scale):
        u = rng.random(count, np.float32)
        down = u >= 0.76
        src = 2 * src + down
        dst = 2 * dst + np.where(down, u >= 0.95, u >= 0.57)
    return scrambled(src, scale) % nodes, scrambled(dst, scale) % nodes


def community(rng: np.random.Generator, count: int, nodes: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends of `count` edges, of which four in five stay in a class: that of node v is v modulo `classes`."""
    src, dst = rng.integers(0, nodes, count), rng.integers(0, nodes, count)
    inside = rng.random(count, np.float32) < 0.8
    same = dst - dst % classes + src % classes
    return src, np.where(inside & (same < nodes), same, dst)


def spread(ids: np.ndarray, wanted: int, nodes: int, classes: int) -> np.ndarray:
    """True for about so many of all nodes, spread evenly: rows of `classes` neighbours, one of each class."""
    rows, wanted, ids = -(-nodes // classes), max(1, wanted // classes), ids // classes
    return (ids * wanted) // rows != ((ids - 1) * wanted) // rows


def typed_tables(args: argparse.Namespace, stem: str) -> Iterator[pa.Table]:
    """Row groups of a table of `TYPED`."""
    counts = {name: max(1, int(args.nodes * part)) for name, part in TYPED.items() if name.startswith("nodes-")}
    kind, *names = stem.split("-")
    total = counts[stem] if kind == "nodes" else int(args.edges * TYPED[stem])
    rename = {"none": lambda v: v, "sparse": lambda v: v * 37 + 5}[args.ids]
    for at, first in enumerate(range(0, total, ROWS_PER_GROUP)):
        count = min(ROWS_PER_GROUP, total - first)
        rng = np.random.default_rng([args.seed, list(TYPED).index(stem), at])
        if kind == "edges":
            ends = (rng.integers(0, counts[f"nodes-{t}"], count, np.int32) for t in (names[0], names[-1]))
            times = {"time": pa.array(rng.integers(0, 2**40, count)).cast(pa.timestamp("ms"))} if args.times else {}
            yield pa.table(dict(zip(("src", "dst"), map(rename, ends))) | times)
            continue
        ids = np.arange(first, first + count)
        columns: dict[str, Any] = {"id": rename(ids)}
        if names == ["paper"]:
            columns["label"] = (ids % args.classes).astype(np.int16)
        if names != ["venue"] and args.features:
            flat = rng.standard_normal(count * args.features, np.float32).astype(args.dtype)
            columns["features"] = pa.FixedSizeListArray.from_arrays(pa.array(flat), args.features)
        yield pa.table(columns)


def tables(args: argparse.Namespace, stem: str) -> Iterator[pa.Table]:
    """Row groups of the edges or of the nodes."""
    if args.kind == "typed":
        yield from typed_tables(args, stem)
        return
    kind = np.int32 if args.nodes < 2**31 else np.int64
    name = np.vectorize(lambda v: f"{v:016x}-{v * 7:08x}", otypes=[object])
    rename = {"none": lambda v: v, "sparse": lambda v: v * 37 + 5, "uuid": name}[args.ids]
    total = args.edges if stem == "edges" else args.nodes
    means = np.random.default_rng(args.seed).standard_normal((args.classes, args.features)).astype(np.float32)
    for at, first in enumerate(range(0, total, ROWS_PER_GROUP)):
        count = min(ROWS_PER_GROUP, total - first)
        rng = np.random.default_rng([args.seed, stem == "edges", at])
        if stem == "edges":
            draw = rmat(rng, count, args.nodes) if args.kind == "rmat" else None
            src, dst = draw or community(rng, count, args.nodes, args.classes)
            yield pa.table({"src": rename(src.astype(kind)), "dst": rename(dst.astype(kind))})
            continue
        ids = np.arange(first, first + count)
        labels = ids % args.classes if args.kind == "community" else rng.integers(0, args.classes, count)
        x = np.float32(args.noise) * rng.standard_normal((count, args.features), np.float32)
        if args.kind == "community":
            x += means[labels]
        flat = pa.array(x.astype(args.dtype).reshape(-1))
        columns: dict[str, Any] = {} if args.ids == "none" else {"id": rename(ids)}
        columns["label"] = labels.astype(np.int16)
        if args.train:
            columns["split"] = pa.array(
                np.where(spread(ids, args.train, args.nodes, args.classes), "train", args.rest), pa.string()
            )
        if args.features:
            columns["features"] = pa.FixedSizeListArray.from_arrays(flat, args.features)
        yield pa.table(columns)


def generate(args: argparse.Namespace) -> None:
    """Write the graph."""
    args.out.mkdir(parents=True, exist_ok=True)
    for stem in TYPED if args.kind == "typed" else ("nodes", "edges"):
        writer, held = None, 0
        for table in tables(args, stem):
            if writer is None or held >= ROWS_PER_FILE:
                if writer is not None:
                    writer.close()
                number = len(list(args.out.glob(f"{stem}-*.parquet")))
                writer, held = pq.ParquetWriter(args.out / f"{stem}-{number:05d}.parquet", table.schema), 0
            writer.write_table(table, row_group_size=ROWS_PER_GROUP)
            held += table.num_rows
        if writer is not None:
            writer.close()
    print(f"{args.out}: {sum(f.stat().st_size for f in args.out.iterdir()) / 1e9:.2f} GB")


def fields(pid: int, file: str) -> dict[str, int]:
    """Numbers of a file of /proc; empty if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    return {name: int(value.split()[0]) for name, value in pairs if value.split() and value.split()[0].isdigit()}


def tree(root: int) -> list[int]:
    """A process and everything below it."""
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        try:
            todo += [int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()]
        except OSError:
            continue
    return found


def is_rank(pid: int) -> bool:
    """True if a process was forked by the server of ranks, or is it."""
    try:
        return b"cluster.rank_" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def measured(command: list[str], most_bytes: float = float("inf")) -> dict[str, Any]:
    """Run a command; seconds, processor seconds, peak memory in bytes, and traffic in bytes, of all its processes. They
    are killed if they hold more than `most_bytes`."""
    import resource

    peak, io, stop = 0, dict.fromkeys(COUNTERS, 0), threading.Event()
    alone = {"driver": 0, "worker": 0, "rank": 0}
    stages, told = dict[str, int](), ["start"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(text := line.decode(errors="replace"))
            # Tasks of a stage are counted once they are done: the stage before the first of them is told with it.
            if (found := re.match(r"([\w-]+): (\d+) of \d+", text)) is not None:
                told[0] = found[1]

    def watch() -> None:
        nonlocal peak
        while not stop.wait(EVERY_S):
            held, now = 0, dict.fromkeys(COUNTERS, 0)
            for pid in tree(process.pid):
                status = fields(pid, "status")
                size = (status.get("RssAnon", 0) + status.get("RssShmem", 0)) << 10
                held += size
                role = "driver" if pid == process.pid else "rank" if is_rank(pid) else "worker"
                alone[role] = max(alone[role], size)
                for key, value in fields(pid, "io").items():
                    if key in now:
                        now[key] += value
            peak = max(peak, held)
            if held > most_bytes:
                for pid in tree(process.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            stages[told[0]] = max(stages.get(told[0], 0), held)
            # A process has the counts of its children that have ended.
            io.update({key: max(io[key], value) for key, value in now.items()})

    threads = [threading.Thread(target=work) for work in (watch, listen)]
    for thread in threads:
        thread.start()
    assert process.stdout is not None
    out = process.stdout.read()
    process.wait()
    stop.set()
    for thread in threads:
        thread.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    traffic = {name: io[key] for key, name in COUNTERS.items()}
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    seconds = {"seconds": time.perf_counter() - start, "processor_seconds": cpu}
    peaks = {"peak_bytes": peak, **{f"{role}_bytes": size for role, size in alone.items()}}
    return {"code": process.returncode, **seconds, **peaks, "stages": stages, **traffic, "result": out.decode()}


def shown(stage: str, found: dict[str, Any], count: int) -> None:
    """Print a line of figures."""
    if found["code"]:
        sys.exit(f"{stage} failed with exit code {found['code']}")
    gb = {name: f"{found[name] / 1e9:.2f}" for name in ("read", "written", "from_disk", "to_disk")}
    ranks = f", rank {found['rank_bytes'] / 2**20:,.0f}" if found["rank_bytes"] else ""
    print(
        f"{stage}: {found['seconds']:.1f} s, {found['processor_seconds']:.1f} processor s, "
        f"{count / found['seconds'] / 1e6:.2f} M edges/s, peak {found['peak_bytes'] / 2**20:,.0f} MiB "
        f"(driver {found['driver_bytes'] / 2**20:,.0f}, largest other process "
        f"{found['worker_bytes'] / 2**20:,.0f}{ranks}), "
        f"read {gb['read']} GB, written {gb['written']} GB (disk {gb['from_disk']} and {gb['to_disk']})",
        flush=True,
    )
    if len(found["stages"]) > 1:
        print(
            "  by stage: " + ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in found["stages"].items()) + " MiB"
        )


def ingest(args: argparse.Namespace, source: Path, more: list[str]) -> None:
    """Run ``millrace convert`` on a folder of Parquet."""
    words = [sys.executable, "-m", "millrace", "convert", str(source), "--out", str(args.out), "--json"]
    words += ["--features", args.format, *more]
    for name in ("memory", "workers", "scheduler"):
        if getattr(args, name) is not None:
            words += [f"--{name}", str(getattr(args, name))]
    for text in args.set or ["read.direction=directed"]:
        words += ["--set", text]
    found = measured(words)
    edges = sum(pq.read_metadata(f).num_rows for f in source.glob("edges*.parquet"))
    shown(args.command, found, edges)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    if args.memory is not None and found["peak_bytes"] > parse_memory(args.memory):
        sys.exit(f"the peak is above --memory {args.memory}")


def edges_alone(args: argparse.Namespace, more: list[str]) -> None:
    """``ingest`` of the same edges and labels without features."""
    with tempfile.TemporaryDirectory(dir=args.source.resolve().parent) as folder:
        for file in args.source.resolve().glob("edges*.parquet"):
            (Path(folder) / file.name).symlink_to(file)
        for file in sorted(args.source.glob("nodes*.parquet")):
            bare = pq.read_table(file, columns=[c for c in pq.read_schema(file).names if c != "features"])
            pq.write_table(bare, Path(folder) / file.name)
        ingest(args, Path(folder), more)


def peers(args: argparse.Namespace) -> None:
    """Measure what others make of a folder of Parquet."""
    from peers.environment import python

    here, edges = Path(__file__).parent / "peers", sorted(args.source.glob("edges*.parquet"))
    count = sum(pq.read_metadata(f).num_rows for f in edges)
    args.out.mkdir(parents=True)
    for peer in args.peers.split(","):
        if peer == "pyg":
            found = measured(
                [sys.executable, str(here / "ingest_pyg.py"), str(args.source), str(args.out / "graph.pt")]
            )
        else:
            as_arrays(args.source, args.out)
            found = measured([str(python(args.cache)), str(here / "ingest_graphbolt.py"), str(args.out)])
        shown(peer, found, count)


def as_arrays(source: Path, out: Path) -> None:
    """Write ``edges.npy`` [2, E] and ``features.npy`` [V, F] of a folder of Parquet, file by file."""
    for stem, name in (("edges", "edges"), ("nodes", "features")):
        files = sorted(source.glob(f"{stem}*.parquet"))
        rows, array, at = sum(pq.read_metadata(f).num_rows for f in files), None, 0
        for file in files:
            table = pq.read_table(file, columns=["src", "dst"] if stem == "edges" else ["features"])
            if stem == "edges":
                piece = np.stack([table["src"].to_numpy(), table["dst"].to_numpy()])
            else:
                piece = table["features"].combine_chunks().flatten().to_numpy().reshape(len(table), -1).T
            if array is None:
                shape = (2, rows) if stem == "edges" else (rows, len(piece))
                array = np.lib.format.open_memmap(out / f"{name}.npy", "w+", piece.dtype, shape)
            (array if stem == "edges" else array.T)[:, at : at + len(table)] = piece
            at += len(table)


def stage(args: argparse.Namespace, words: list[str]) -> None:
    """Run a command of `STAGES` on a store, with further words of the command line."""
    command = [word.format(source=args.source, out=args.out) for word in STAGES[args.command]]
    found = measured([sys.executable, "-m", "millrace", *command, *words, "--json"])
    manifest = json.loads((args.source / "manifest.json").read_text())
    shown(args.command, found, manifest["arrays"]["indices"]["shape"][0])
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


def evaluate(args: argparse.Namespace) -> None:
    """Measure `sampled_accuracy`, or the exact evaluation, in processes of its own."""
    if args.exact:
        found = measured([sys.executable, "-m", "millrace", "evaluate", str(args.run), "--json", *args.words])
        shown(
            "evaluate", found, json.loads((args.source / "manifest.json").read_text())["arrays"]["indices"]["shape"][0]
        )
        print("  " + found["result"].strip(), flush=True)
        return
    words = [str(args.source), "--run", str(args.run), "--nodes", str(args.nodes), "--fanout", args.fanout]
    found = measured([sys.executable, __file__, "evaluate", *words, "--here"])
    shown("evaluate", found, json.loads((args.source / "manifest.json").read_text())["arrays"]["indices"]["shape"][0])
    print("  " + found["result"].strip(), flush=True)


def sampled_accuracy(args: argparse.Namespace) -> None:
    """Print a run's accuracy for nodes of a store by sampled neighbourhoods."""
    import torch

    import millrace as mr

    start, trained = time.perf_counter(), mr.load(args.run)
    data = mr.open_dataset(args.source, features="mapped", graph="mapped")
    ids = np.arange(data.num_nodes)
    nodes, none = ids[spread(ids, args.nodes, data.num_nodes, data.num_classes)], ids[:0]
    del ids
    fanout = [int(n) for n in args.fanout.split(",")]
    asked = replace(data, split=mr.Split(nodes, none, none))
    right, batches = 0, mr.minibatches(asked, fanout=fanout, batch_size=1024, epochs=1, seed=1)
    opened = time.perf_counter()
    with torch.no_grad():
        for batch in batches:
            right += int((trained.model(batch.neighbourhoods, batch.h).argmax(1) == batch.y).sum())
    seconds = time.perf_counter() - opened
    print(
        f"accuracy {right / len(nodes):.4f} of {len(nodes):,} nodes by neighbourhoods of {args.fanout}, "
        f"{seconds:.1f} s after {opened - start:.1f} s of opening"
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("generate")
    make.add_argument("--kind", choices=["rmat", "community", "typed"], default="rmat")
    make.add_argument("--ids", choices=["none", "sparse", "uuid"], default="none")
    make.add_argument("--dtype", choices=["float16", "float32"], default="float32")
    whole = {"type": lambda text: int(float(text))}
    for name, default in {"nodes": 4e6, "edges": 6e7, "features": 64, "classes": 16, "seed": 0, "train": 0}.items():
        make.add_argument(f"--{name}", default=int(default), **whole)
    make.add_argument("--rest", choices=["val", "test"], help="split of all other nodes; none by default")
    make.add_argument("--noise", type=float, default=1.0, help="deviation of features; at 0 the files are small")
    make.add_argument("--times", action="store_true", help="edges of several types have times")
    make.add_argument("--out", type=Path, required=True)
    for name in ("ingest", "edges"):
        run = commands.add_parser(name)
        run.add_argument("source", type=Path)
        run.add_argument("--out", type=Path, required=True)
        run.add_argument("--format", choices=["zarr", "npy"], default="npy")
        run.add_argument("--json", type=Path)
        run.add_argument("--set", action="append")
        for option in ("memory", "workers", "scheduler"):
            run.add_argument(f"--{option}")
    for name in STAGES:
        run = commands.add_parser(name)
        run.add_argument("source", type=Path)
        run.add_argument("--out", type=Path, required=True)
        run.add_argument("--json", type=Path)
    beside = commands.add_parser("peers")
    beside.add_argument("source", type=Path)
    beside.add_argument("--out", type=Path, required=True)
    beside.add_argument("--peers", default="pyg,graphbolt")
    beside.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks")
    score = commands.add_parser("evaluate")
    score.add_argument("source", type=Path)
    score.add_argument("--run", type=Path, required=True)
    score.add_argument("--nodes", default=100_000, **whole)
    score.add_argument("--fanout", default="15,10,5")
    score.add_argument("--exact", action="store_true", help="by millrace evaluate, over all edges of every layer")
    score.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args, words = parser.parse_known_args()
    args.words = words
    if words and (args.command in ("generate", "peers") or (args.command == "evaluate" and not args.exact)):
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    if args.command == "generate":
        generate(args)
    elif args.command == "peers":
        peers(args)
    elif args.command == "evaluate":
        (sampled_accuracy if args.here else evaluate)(args)
    elif args.command in STAGES:
        stage(args, words)
    else:
        (ingest if args.command == "ingest" else lambda a, _, more: edges_alone(a, more))(args, args.source, words)


if __name__ == "__main__":
    main()
