"""Test accuracy of isolated training, for every schedule and correction, compared with training on one process: means
over seeds.

    python benchmarks/grappa_accuracy.py --data DIR [--only amazon_computers] [--axes schedule,correction] \
        [--json grappa_accuracy.json] [--plot grappa_accuracy.svg]

Xu, Siebenbrunner, Bindschaedler, arXiv 2602.01872. A *cell* is a graph, a depth, a number of parts, how they are cut,
and a way to train. Around a centre (depth 2, 4 parts by METIS, the sweep with a halo) one axis moves at a time:

``schedule``    which chunks a rank sees: naive isolation (its own, without and with a halo), fixed pairs, the sweep,
                the sweep with half of the halo (the paper's 50 % of remote sampling) and without (the paper's 0 %),
                chunks dealt anew
``correction``  of the sweep without a halo: the paper's is ``batch``. With a halo seeds have all their in-edges: all
                corrections are then one run, to the bit. `grappa_weights.py` has more seeds, on other graphs
``parts``       4 and 16, METIS and hash: naive isolation, the centre, the paper's; by hash in 4 also what sees the most
``depth``       2, 3, 4, 6 layers: naive isolation and the centre

``one process`` is ``bulk`` with as many seeds a step. Isolated ranks take as many steps an epoch as the one with most
seeds needs, which is that or more, and more steps are better training where epochs are few: ``one process, more steps``
takes 2 instead of 1 (amazon_computers), 3 of 2 (coauthor_cs), 5 of 4 (sbm). 4 parts by hash take 1, 2, 5, by METIS 2, 2
or 3, 5; 16 parts 1 to 3, 2 to 4, 5 or 6. GraphSAGE, Adam, the same epochs, learning rate and fanout for all; nothing
was searched for, so no figure is the best that a model can do. The parameters of the best validation epoch are tested.
A gap is the mean over seeds of the difference to one process, on the same graph and split, with half of its interval of
95 % (Student's): one that is smaller may be noise.

coauthor_cs and amazon_computers: 20 train and 30 validation nodes of each class, drawn by the seed. sbm: 100,000 nodes
in 16 classes, features that say little, 1 % train. Every finished run is in ``--json`` at once, and is not run again:
all of it is 645 runs, some three hours of two cores, which ``records/grappa_accuracy.json`` holds.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy.stats import t

import millrace as mr
from millrace.benchmarks.partitioned_runs import here

SBM = "sbm:nodes=100000,classes=16,degree=12,features=32,train=0.01,val=0.05"
SHCHUR = "random:20,30"


@dataclass(frozen=True)
class Setting:
    """Settings of a graph, the same for all variants."""

    epochs: int
    every: int
    """Epochs in a super-epoch: each rank sees all others' chunks twice in a run of 4 ranks."""
    seeds_a_step: int
    fewer_seeds: int
    """Seeds in a step of one process that takes more steps."""
    lr: float = 0.01
    hidden: int = 64
    fanout: int = 10
    dropout: float = 0.5
    weight_decay: float = 5e-4


GRAPHS = {
    "amazon_computers": Setting(epochs=72, every=12, seeds_a_step=256, fewer_seeds=100, lr=0.003),
    "coauthor_cs": Setting(epochs=12, every=2, seeds_a_step=256, fewer_seeds=100, lr=0.003),
    "sbm": Setting(epochs=24, every=4, seeds_a_step=256, fewer_seeds=200, lr=0.003),
}


ONE = ("one process", "one process, more steps")


@dataclass(frozen=True)
class Cell:
    """Position of the axes."""

    graph: str
    way: str = "sweep"
    layers: int = 2
    parts: int = 4
    method: str = "metis-work"

    @property
    def key(self) -> str:
        """Its key in ``--json``, without a seed."""
        parts = "" if self.way in ONE else f"/{self.parts} {self.method}"
        return f"{self.graph}/{self.layers} layers{parts}/{self.way}"


def grappa(**options: Any) -> dict[str, Any]:
    """Keys of section ``grappa``; with a halo, unless it is said."""
    return {"correction": "none", "halo": 1, **options}


WAYS: dict[str, dict[str, Any]] = {
    "naive": grappa(rotation="none", halo=0),
    "naive, halo": grappa(rotation="none"),
    "fixed": grappa(rotation="fixed"),
    "sweep": grappa(),
    "half a halo": grappa(halo=0.5),
    "dealt, half": grappa(chunks=4, reshuffle_fraction=0.5),
    "dealt, all": grappa(chunks=4, reshuffle_fraction=1.0),
    "no halo": grappa(halo=0),
    **{f"no halo, {c}": grappa(halo=0, correction=c) for c in ("batch", "node")},
    "no halo, batch, empirical": grappa(halo=0, correction="batch", shrink="empirical"),
}
CENTRE, PUBLISHED = "sweep", "no halo, batch"
COMPARED = ("naive", "naive, halo", CENTRE)
MOST_SEEN = ("no halo", "no halo, node", "dealt, all")


def cells(graph: str, axes: tuple[str, ...]) -> Iterator[Cell]:
    """Variants to train, the central one and its neighbours first."""
    at = Cell(graph)
    yield from (*(replace(at, way=way) for way in ONE), at)
    if "schedule" in axes:
        seen = ("naive", "naive, halo", "fixed", "half a halo", "no halo", "dealt, half", "dealt, all")
        yield from (replace(at, way=way) for way in seen)
    if "correction" in axes:
        yield from (replace(at, way=way) for way in WAYS if way.startswith(("sweep, ", "no halo, ")))
    if "parts" in axes:
        for parts, method in ((4, "hash"), (16, "metis-work"), (16, "hash")):
            ways = (*COMPARED, PUBLISHED, *(MOST_SEEN if (parts, method) == (4, "hash") else ()))
            yield from (replace(at, way=way, parts=parts, method=method) for way in ways)
    if "depth" in axes:
        for layers in (3, 4, 6):
            yield from (replace(at, way=way, layers=layers) for way in (*ONE, *COMPARED))


def store_of(args: argparse.Namespace, graph: str, seed: int) -> Path:
    """The graph with the split of this seed, stored on first use."""
    path = args.cache / "accuracy" / f"{graph}-{seed}"
    if not path.exists():
        if graph == "sbm":
            dataset = mr.open_dataset(SBM, seed=seed)
        else:
            dataset = mr.open_dataset(args.data / f"{graph}.npz", split=SHCHUR, seed=seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        mr.write_dataset(path, dataset, features_format="npy")
    return path


def train(cell: Cell, seed: int, args: argparse.Namespace, scratch: Path) -> dict[str, float]:
    """One run. Accuracy in percent."""
    setting = GRAPHS[cell.graph]
    options: dict[str, Any] = {"seed": seed, "hidden": setting.hidden}
    ranks, batch = 1, setting.seeds_a_step
    if cell.way == ONE[1]:
        batch = setting.fewer_seeds
    elif cell.way != ONE[0]:
        # A sweep is as long for 16 parts as for 4: each rank sees fewer of the others.
        options |= {
            "system": "grappa",
            "grappa": {"repartition_every": setting.every, **WAYS[cell.way]},
            "partition": {"method": cell.method},
        }
        ranks, batch = cell.parts, max(1, setting.seeds_a_step // cell.parts)
    rules = {"batch_size": batch, "lr": setting.lr, "weight_decay": setting.weight_decay, "evaluate_every": 3}
    options["dropout"] = setting.dropout
    run = here(
        store_of(args, cell.graph, seed),
        scratch,
        ranks,
        setting.epochs,
        rules,
        (setting.fanout,) * cell.layers,
        **options,
    )
    return {
        "test": 100 * run["test_accuracy"],
        "val": 100 * run["best_accuracy"],
        "cpu_s": run["cpu_s"] * setting.epochs,
    }


def gap(tests: Mapping[int, float], one: Mapping[int, float]) -> dict[str, float] | None:
    """The mean of the differences over the seeds of both, and half of Student's interval of 95 %; None for fewer than
    two."""
    apart = [tests[seed] - one[seed] for seed in tests.keys() & one.keys()]
    if len(apart) < 2:
        return None
    error = statistics.stdev(apart) / len(apart) ** 0.5
    return {"mean": statistics.mean(apart), "half": float(t.ppf(0.975, len(apart) - 1)) * error}


def table(found: Mapping[str, Mapping[int, float]], graph: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Print the cells of a graph that have been run with two seeds at least."""
    print(f"\n{graph}: {len(args.seeds)} seeds at most, {GRAPHS[graph]}")
    print(
        f"{'layers':>6}{'parts':>16}  "
        f"{'way':<28}{'n':>3}{'test':>7}{'std':>6}{'gap':>8}{'95 %':>6}{'gap to more steps':>20}{'95 %':>6}"
    )
    told = []
    for cell in dict.fromkeys(cells(graph, args.axes)):
        tests = found.get(cell.key, {})
        if len(tests) < 2:
            continue
        line: dict[str, Any] = {"cell": cell.key, "seeds": len(tests)}
        line |= {"test": statistics.mean(tests.values()), "std": statistics.stdev(tests.values())}
        beside = ""
        for name, way, wide in zip(("gap", "gap_more_steps"), ONE, (8, 20)):
            line[name] = None if cell.way in ONE else gap(tests, found.get(replace(cell, way=way).key, {}))
            beside += f"{line[name]['mean']:>+{wide}.1f}{line[name]['half']:>6.1f}" if line[name] else " " * (wide + 6)
        parts = "" if cell.way in ONE else f"{cell.parts} {cell.method}"
        print(
            f"{cell.layers:>6}{parts:>16}  "
            f"{cell.way:<28}{len(tests):>3}{line['test']:>7.1f}{line['std']:>6.1f}{beside}",
            flush=True,
        )
        told.append(line)
    return told


def draw(tables: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """The gap of each cell beside one process and its interval, and a cross for that beside one of more steps; a panel
    for each graph."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(line["cell"].split("/", 1)[1] for lines in tables.values() for line in lines))
    names = [name for name in names if not name.endswith(ONE)]
    figure, panels = plt.subplots(
        1,
        len(tables),
        figsize=(3.0 + 2.4 * len(tables), 1.0 + 0.17 * len(names)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, (graph, lines) in zip(panels[0], tables.items()):
        for line in lines:
            name, beside, more = line["cell"].split("/", 1)[1], line["gap"], line["gap_more_steps"]
            if name in names and beside:
                # Two seeds say nothing about their spread.
                sure = (
                    "C7"
                    if line["seeds"] < 3 or abs(beside["mean"]) <= beside["half"]
                    else "C0"
                    if beside["mean"] > 0
                    else "C3"
                )
                half = beside["half"] if line["seeds"] > 2 else 0
                axes.errorbar(beside["mean"], names.index(name), xerr=half, fmt="o", ms=3, lw=1, color=sure)
            if name in names and more:
                axes.plot(more["mean"], names.index(name), "x", ms=4, color="black")
        axes.axvline(0, color="black", lw=0.8)
        # Isolated hash parts can lose fifty points, and most else one.
        axes.set_xscale("symlog", linthresh=2)
        axes.grid(axis="y", lw=0.3)
        axes.set(title=graph, xlabel="points beside one process")
    panels[0][0].set_yticks(
        range(len(names)), [name.replace("metis-work", "metis").replace("/", ", ") for name in names], fontsize=7
    )
    panels[0][0].invert_yaxis()
    figure.savefig(path, dpi=150)


def main() -> int:
    """Train what is lacking, and print the table."""
    parser = argparse.ArgumentParser(description="Test accuracy of isolated training.")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    names = lambda text: tuple(text.split(","))  # noqa: E731
    axes = ("schedule", "correction", "parts", "depth")
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("MILLRACE_DATA", beside)), help="folder of the .npz files"
    )
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "millrace-benchmarks", help="stored graphs"
    )
    parser.add_argument("--only", type=names, default=tuple(GRAPHS), help=f"of {', '.join(GRAPHS)}")
    parser.add_argument("--axes", type=names, default=axes, help=f"of {', '.join(axes)}")
    parser.add_argument(
        "--seeds", type=lambda n: range(int(n)), default=range(5), help="runs of each cell, from seed 0"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("grappa_accuracy.json"), help="what is there is not run again"
    )
    parser.add_argument("--table", action="store_true", help="run nothing, and print what is there")
    parser.add_argument("--plot", type=Path, help="a PNG or SVG of the gaps")
    args = parser.parse_args()
    if not set(args.only) <= set(GRAPHS) or not set(args.axes) <= set(axes) or not len(args.seeds):
        parser.error(f"graphs are {', '.join(GRAPHS)}, axes {', '.join(axes)}, and there is at least one seed")
    absent = [g for g in args.only if g != "sbm" and not (args.data / f"{g}.npz").exists()]
    if absent:
        parser.error(f"{args.data} lacks {', '.join(absent)}; name the folder with --data or MILLRACE_DATA")
    report = json.loads(args.json.read_text()) if args.json.exists() else {"runs": {}}
    runs: dict[str, dict[str, float]] = report["runs"]
    with tempfile.TemporaryDirectory() as scratch:
        # All cells by one seed before the next: an interrupted table is whole, with fewer seeds.
        for seed in args.seeds:
            for cell in dict.fromkeys(c for graph in args.only for c in cells(graph, args.axes)):
                key = f"{cell.key}/seed {seed}"
                if key not in runs and not args.table:
                    runs[key] = train(cell, seed, args, Path(scratch))
                    print(f"{key}: test {runs[key]['test']:.1f}, {runs[key]['cpu_s']:.1f} CPU s", flush=True)
                    args.json.write_text(json.dumps(report, indent=1) + "\n")
    found: dict[str, dict[int, float]] = {}
    for key, run in runs.items():
        cell, _, seed = key.rpartition("/seed ")
        if int(seed) in args.seeds:
            found.setdefault(cell, {})[int(seed)] = run["test"]
    report["tables"] = {graph: table(found, graph, args) for graph in args.only}
    if not args.table:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.plot:
        draw(report["tables"], args.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
