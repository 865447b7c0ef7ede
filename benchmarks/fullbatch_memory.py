"""Memory of full-batch training over ranks, compared with its prediction: the largest rank's, in each mode.

    python benchmarks/fullbatch_memory.py --npz ogbn_arxiv.npz --json fullbatch_memory.json
    python benchmarks/fullbatch_memory.py --largest 8 --edges 1e8,2e8,3e8

The task: three layers, hidden width 256 (GAT: 4 heads of 64, averaged in the last layer), 128 random float32 features,
40 classes, Adam, no dropout, one epoch, one thread a rank. Two graphs:

* `dense`: every node has 64 in-neighbours drawn from all nodes, parts are ranges of ids, and every node is trained on.
  Nearly every row of every other rank is a neighbour: what keeps those rows cannot scale.
* `arxiv`: with `--npz` a real graph (`edge_index`, `y`, `train_idx`; made undirected), else one of that size by
  `graphs.py`; METIS.

"measured" is what a run tells in ``memory_bytes`` (edges, features, and the tensors of a step, the arena's and all
others), with parameters, gradients and Adam's state. "predicted" is made before the run: from numbers alone for
`dense`, from counts of nodes and edges by part for `arxiv`; `step_memory.step_bytes` says what a step takes on a graph
of such proportions. "c0 + c1/N" is the same without neighbours on other ranks: c0 does not grow with the graph; c0 + c1
is one rank's memory. What "predicted" has beyond it are rows of other ranks: kept, or under way (of those the next
round's only as far as `prefetch_bytes`, 64 MiB, goes).

"RSS" is the largest resident size of the rank's process in its whole life, "base" that of a rank over a graph of 500
nodes. Reading the parts and arranging them, which takes more memory than it leaves, is in it, and so are edges as the
modes index them.

`--largest GIB`: an epoch of GraphSAGE (three layers of width 64) on graphs like `dense` with 64 features and so many
edges, by one process, and by `sar` with two ranks over mapped parts and `rematerialize`: anonymous and shared memory of
all processes at most. A way that takes more is killed, and is not tried on larger graphs.

`halo, unfused` is the baseline (`unfused_attention`): rows of other ranks in one exchange, and a value for each edge
and head.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from fullbatch import data, real
from fullbatch_prediction import LAYERS, Counts, model_bytes, part_counts, predicted, random_counts
from graphs import load, stored
from peers.fullbatch_task import CLASSES, FEATURES
from scale import measured
from torch import nn
from unfused_attention import Unfused

import millrace as mr
from millrace.stages.fetch.visit import PREFETCH_BYTES, Mode, VisitFetch
from millrace.stages.models.base import ModelConfig
from millrace.stages.models.gat import GAT
from millrace.stages.models.sage import SAGE
from millrace.stages.partition.contiguous import Contiguous
from millrace.stages.partition.metis import Metis
from millrace.storage.features import ArrayFeatures, MappedFeatures
from millrace.storage.graph import Graph

NODES, DEGREE, SMALL_NODES = 200_000, 64, 500
MODES: tuple[Mode, ...] = get_args(Mode)
UNFUSED = "halo, unfused"
MODELS: dict[str, ModelConfig] = {"sage": SAGE(layers=LAYERS, dropout=0.0), "gat": GAT(layers=LAYERS, dropout=0.0)}
PARTITIONERS = {"dense": Contiguous("nodes"), "arxiv": Metis()}
CLAIMS = {("sage", "halo"): 1.6, ("gat", UNFUSED): 3.6}
"""Least ratio of these modes' memory to that of `rematerialize`, at 8 ranks on `dense`."""
TOLERANCE = 0.15
ROW = "{:6} {:5} {:14} {:>2} {:>10} {:>10} {:>9} {:>6} {:>7} {:>9} {:>8} {:>9}"


@dataclass(frozen=True)
class Cell:
    """One run."""

    graph: str
    model: str
    mode: str
    ranks: int

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Mode of each layer."""
        return ("halo" if self.mode == UNFUSED else self.mode,) * LAYERS

    def module(self) -> nn.Module:
        """The model, its parameters always the same."""
        torch.manual_seed(0)
        config = MODELS[self.model]
        if self.mode == UNFUSED:
            assert isinstance(config, GAT)
            return Unfused(config, FEATURES, CLASSES)
        return config.build(FEATURES, CLASSES)


LARGE: dict[str, list[str]] = {
    "one process": ["--ranks", "1"],
    "sar, two ranks, mapped, rematerialize": [
        *("--ranks", "2", "--set", "graph=mapped", "--set", "features=mapped", "--set", "sar.mode=rematerialize"),
        *("--set", "partition.method=contiguous"),
    ],
}
"""Ways to train the largest graph."""


def large_store(edges: int, folder: Path) -> Path:
    """A random graph of so many edges, `DEGREE` into each node, every node a train node."""
    path, n = folder / "graphs" / f"large-{edges}", edges // DEGREE
    if not path.exists():
        rng, none = np.random.default_rng(0), np.empty(0, np.int64)
        indices = np.concatenate(
            [
                np.sort(rng.integers(0, n, (min(1 << 16, n - a), DEGREE), np.int32), 1).ravel()
                for a in range(0, n, 1 << 16)
            ]
        )
        graph = Graph(np.arange(n + 1, dtype=np.int64) * DEGREE, indices)
        rows = ArrayFeatures(rng.standard_normal((n, 64), np.float32))
        split = mr.Split(np.arange(n), none, none)
        dataset = mr.Dataset("large", graph, rows, rng.integers(0, CLASSES, n), split, CLASSES)
        mr.write_dataset(path, dataset, features_format="npy", graph_format="npy")
    return path


def largest(args: argparse.Namespace) -> int:
    """Train on larger and larger graphs, and print what each way takes."""
    left, rows = dict(LARGE), []
    for edges in args.edges:
        store = large_store(edges, args.cache)
        for way in list(left):
            with tempfile.TemporaryDirectory(dir=args.cache) as scratch:
                command = ["run", "--dataset", str(store), "--system", "sar", "--epochs", "1", "--layers", "3"]
                command += ["--hidden", "64", "--dropout", "0", "--set", "threads=1", "--set", "train.evaluate_every=0"]
                command += ["--out", f"{scratch}/run", "--json", *left[way]]
                found = measured([sys.executable, "-m", "millrace", *command], args.largest * 2**30)
            fits = not found["code"]
            kept = {k: v for k, v in found.items() if k != "result"}
            rows.append({"edges": edges, "way": way, "fits": fits, **kept})
            print(
                f"{edges:>13,} edges, {way}: {'fits' if fits else 'does not fit'}, "
                f"{found['peak_bytes'] / 2**30:.2f} GiB, largest rank {found['rank_bytes'] / 2**30:.2f}, "
                f"{found['seconds']:.0f} s, {found['processor_seconds']:.0f} processor s",
                flush=True,
            )
            if not fits:
                del left[way]
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


class Lab:
    """The graphs, predictions and runs."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.cache, self.npz = args.cache, args.npz
        self.num_nodes = round(NODES * args.scale)
        # In proportion, so that a small graph shows what the large one would.
        self.prefetch_bytes = round(PREFETCH_BYTES * args.scale)
        self.base = cache(lambda model, ranks: self.run(Cell("small", model, "rematerialize", ranks))["rss_bytes"])

    def store(self, name: str) -> Path:
        """The dataset as ranks can open it, made on first use."""
        if name == "arxiv":
            folder = real(self.npz, self.cache) if self.npz else stored("arxiv", self.cache)
            data(folder)
            graph, given = load(folder), folder / "fullbatch"
            features, labels, train = (
                MappedFeatures(given / "features.npy"),
                np.load(given / "labels.npy"),
                np.load(given / "train.npy"),
            )
            path = given / "memory-store"
        else:
            n = self.num_nodes if name == "dense" else SMALL_NODES
            rng = np.random.default_rng(0)
            indices = np.sort(rng.integers(0, n, (n, DEGREE), dtype=np.int32), axis=1).ravel()
            graph = Graph(np.arange(n + 1, dtype=np.int64) * DEGREE, indices)
            features, labels = (
                ArrayFeatures(rng.standard_normal((n, FEATURES), np.float32)),
                rng.integers(0, CLASSES, n),
            )
            train, path = np.arange(n), self.cache / "graphs" / f"dense-{n}-{DEGREE}"
        if not path.exists():
            none = np.empty(0, np.int64)
            mr.write_dataset(
                path,
                mr.Dataset(name, graph, features, labels, mr.Split(train, none, none), CLASSES),
                features_format="npy",
            )
        return path

    def counts(self, name: str, ranks: int) -> list[tuple[list[Counts], int]]:
        """For each kind of rank: counts of each layer and of the whole, and seeds."""
        if name == "dense":
            counts = random_counts(self.num_nodes, DEGREE, ranks)
            return [([counts] * (LAYERS + 1), counts.dst)]
        dataset = mr.open_dataset(self.store(name))
        train, book = dataset.split.train, PARTITIONERS[name].assign(dataset.graph, ranks, 0)
        owner = book.part(np.arange(dataset.num_nodes))
        seeds = np.bincount(owner[train], minlength=ranks)
        return [(c, int(s)) for c, s in zip(part_counts(dataset.graph, owner, train, ranks), seeds)]

    def predict(self, cell: Cell) -> tuple[int, int, int]:
        """Predicted memory of the largest rank; c0 and c1."""
        module, policy = cell.module(), VisitFetch(cell.modes, prefetch_bytes=self.prefetch_bytes)

        def one_rank(share: float) -> int:
            (counts, seeds), *_ = self.counts(cell.graph, 1)
            return predicted([c.times(share) for c in counts], 0, round(seeds * share), policy, module)

        largest = max(
            predicted(c, rank, seeds, policy, module)
            for rank, (c, seeds) in enumerate(self.counts(cell.graph, cell.ranks))
        )
        c0 = 2 * one_rank(0.5) - one_rank(1)
        return largest, c0, one_rank(1) - c0

    def run(self, cell: Cell) -> dict[str, Any]:
        """Measured memory of the largest rank."""
        with tempfile.TemporaryDirectory() as scratch:
            done = mr.run(
                self.store(cell.graph),
                system=mr.sar(
                    cell.modes,
                    partitioner=PARTITIONERS.get(cell.graph, Contiguous("nodes")),
                    prefetch_bytes=self.prefetch_bytes,
                ),
                model=cell.module(),
                features="mapped",
                ranks=cell.ranks,
                executor="dask",
                epochs=1,
                threads=1,
                out=Path(scratch) / "run",
            )
        parts = max(done.memory_bytes, key=lambda m: sum(m.values()))
        return {
            "measured_bytes": sum(parts.values()) + model_bytes(cell.module()),
            "parts": parts,
            "rss_bytes": max(done.peak_rss_bytes),
            "train_loss": done.train_loss,
            "seconds": done.seconds["total"],
        }

    def measure(self, cell: Cell) -> dict[str, Any]:
        """One row."""
        largest, c0, c1 = self.predict(cell)
        return {**asdict(cell), "predicted_bytes": largest, "c0_bytes": c0, "c1_bytes": c1} | {
            **self.run(cell),
            "base_bytes": self.base(cell.model, cell.ranks),
        }


def factors(rows: list[dict[str, Any]]) -> None:
    """Set in each row how many times less `rematerialize` takes: in tensors, and in resident size beyond the base."""

    def key(r: dict[str, Any]) -> tuple[Any, ...]:
        return r["graph"], r["model"], r["ranks"]

    frugal = {key(r): r for r in rows if r["mode"] == "rematerialize"}
    for r in rows:
        if other := frugal.get(key(r)):
            r["factor"] = r["measured_bytes"] / other["measured_bytes"]
            r["rss_factor"] = (r["rss_bytes"] - r["base_bytes"]) / max(1, other["rss_bytes"] - other["base_bytes"])


def show(r: dict[str, Any]) -> None:
    """One line."""
    mib = [r[f"{name}_bytes"] / 2**20 for name in ("predicted", "measured", "rss", "base")]
    law = f"{(r['c0_bytes'] + r['c1_bytes'] / r['ranks']) / 2**20:,.0f}"
    ratio = f"{r['measured_bytes'] / r['predicted_bytes']:.2f}"
    times = [f"{r[name]:.2f}" if name in r else "" for name in ("factor", "rss_factor")]
    head = (r["graph"], r["model"], r["mode"], r["ranks"])
    print(
        ROW.format(*head, law, f"{mib[0]:,.0f}", f"{mib[1]:,.0f}", ratio, *(f"{m:,.0f}" for m in mib[2:]), *times),
        flush=True,
    )


def problems(rows: list[dict[str, Any]]) -> list[str]:
    """Claims that do not hold, and modes that did not compute the same."""
    said = []
    for r in rows:
        label = f"{r['graph']} {r['model']} {r['mode']}, {r['ranks']} ranks"
        off = r["measured_bytes"] / r["predicted_bytes"] - 1
        if abs(off) > TOLERANCE:
            said.append(f"{label}: {off:+.0%} beside the prediction")
        claim = CLAIMS.get((r["model"], r["mode"]), 0.0) if (r["graph"], r["ranks"]) == ("dense", 8) else 0.0
        if r.get("factor", claim) < claim:
            said.append(f"{label}: {r['factor']:.2f} times what rematerialize takes; expected {claim} or more")
        first = next(other for other in rows if (other["graph"], other["model"]) == (r["graph"], r["model"]))
        if not np.isclose(r["train_loss"], first["train_loss"], rtol=1e-4):
            said.append(
                f"{label}: the loss is {r['train_loss']}, and {first['train_loss']} by "
                f"{first['mode']}, {first['ranks']} ranks"
            )
    return said


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Memory of full-batch training over ranks, beside what it should be.")
    lists = {
        "graphs": (list(PARTITIONERS), list(PARTITIONERS)),
        "models": (list(MODELS), list(MODELS)),
        "modes": ([*MODES, "unfused"], [*MODES, "unfused"]),
    }
    for name, (usual, known) in lists.items():
        parser.add_argument(f"--{name}", type=lambda s: s.split(","), default=usual, help=f"of {', '.join(known)}")
    parser.add_argument("--ranks", type=lambda s: [int(n) for n in s.split(",")], default=[1, 2, 4, 8])
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the dense graph's nodes, and of the rows under way"
    )
    parser.add_argument("--npz", type=Path, help="a real graph for arxiv")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="graphs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--largest", type=float, help="GiB of all processes; train the largest graph that fits")
    sizes = lambda text: [int(float(n)) for n in text.split(",")]  # noqa: E731
    parser.add_argument("--edges", type=sizes, default=[10**8, 2 * 10**8, 3 * 10**8], help="of --largest, ascending")
    args = parser.parse_args()
    args.cache = args.cache.resolve()
    for name, (_, known) in lists.items():
        if unknown := set(getattr(args, name)) - set(known):
            parser.error(f"--{name} has {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    if min(args.ranks) < 1 or round(NODES * args.scale) < 1:
        parser.error("--ranks must be at least 1, --scale large enough for a node")
    return args


def main() -> int:
    """Measure and print. Returns 1 if something is not as predicted."""
    args = arguments()
    if args.largest:
        return largest(args)
    # Ranks unpickle the baseline by its name.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    lab, rows = Lab(args), []
    print("MiB of the largest rank; factors over rematerialize, of tensors and of RSS beyond the base")
    print(
        ROW.format(
            "graph",
            "model",
            "mode",
            "N",
            "c0 + c1/N",
            "predicted",
            "measured",
            "ratio",
            "RSS",
            "base",
            "factor",
            "of RSS",
        )
    )
    for graph in args.graphs:
        for model in args.models:
            modes = [UNFUSED if m == "unfused" else m for m in args.modes if m != "unfused" or model == "gat"]
            for ranks in args.ranks:
                # One rank has nobody to visit: its modes are the same.
                for mode in modes if ranks > 1 else [m for m in modes if m in (modes[0], UNFUSED)]:
                    rows.append(lab.measure(Cell(graph, model, mode, ranks)))
                    factors(rows)
                    show(rows[-1])
                    if args.json:
                        report = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
                        args.json.write_text(
                            json.dumps({**report, "rows": rows, "problems": problems(rows)}, indent=1) + "\n"
                        )
    for text in problems(rows):
        print(f"PROBLEM: {text}")
    return 1 if problems(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
