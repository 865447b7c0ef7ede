"""Features kept in fewer bytes: test accuracy, and seconds of gathering, for each form that a store may keep.

    python benchmarks/feature_dtypes.py --data DATA/ --seeds 5
    python benchmarks/feature_dtypes.py --gather

The first trains GraphSAGE on stores of some graphs, once for each form and seed: split, parameters and
minibatches are those of the seed, whatever the form. Shown is the mean test accuracy over seeds and its standard
deviation, and the mean and standard deviation of the difference from float32, seed by seed.

``--gather`` times random rows of a matrix of 2 million rows of 128 features, mapped and warm, in one thread.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import millrace as mr
from millrace.storage.features import ArrayFeatures
from millrace.storage.store.narrow import FEATURE_DTYPES

SMALL = {"batch_size": 64, "fanout": [10, 10], "hidden": 64, "dropout": 0.5}
STANDARD = {"direction": "undirected", "normalize_features": "standard"}
GRAPHS = {
    "cora": ({**SMALL, "epochs": 30}, STANDARD),
    "citeseer": ({**SMALL, "epochs": 30}, STANDARD),
    "amazon_computers": ({**SMALL, "epochs": 20}, STANDARD),
    "coauthor_cs": ({**SMALL, "epochs": 10}, {"direction": "undirected"}),
    "sbm:nodes=5000,classes=8,train=0.2": ({**SMALL, "epochs": 5}, {}),
}
"""Jobs, and how the graph is read: columns of mean 0 and standard deviation 1 where words are rare are the hardest case
for one scale a row. Short runs: the difference between forms is what is measured."""
ROWS, WIDTH, ASKED = 2_000_000, 128, 100_000


def accuracies(args: argparse.Namespace, graph: str, folder: Path) -> None:
    """Print a line for each form."""
    before, (given, reading) = None, GRAPHS[graph]
    options, generated = mr.ReadOptions(**reading), graph.startswith("sbm:")
    for kind in args.forms.split(","):
        found, store = [], folder
        for seed in range(args.seeds):
            store = folder / f"{graph.partition(':')[0]}-{kind}-{seed}"
            source = f"{graph},seed={seed}" if generated else args.data / f"{graph}.npz"
            data = mr.open_dataset(source, options=options, seed=seed)
            mr.write_dataset(store, data, features_format="npy", feature_dtype=kind)
            job = {key: value for key, value in given.items() if key != "batch_size"}
            job |= {"seed": seed, "threads": 1, "train": {"evaluate_every": 0, "batch_size": given["batch_size"]}}
            run = mr.run(store, features="mapped", out=folder / f"run-{store.name}", verbose=False, **job)
            found.append(100 * (run.test_accuracy or 0.0))
        values = np.array(found)
        before = values if before is None else before
        size = (store / "features.npy").stat().st_size / 2**20
        apart = values - before
        print(
            f"{graph} {kind}: {values.mean():.2f} ± {values.std(ddof=1):.2f} %, "
            f"{apart.mean():+.2f} ± {apart.std(ddof=1):.2f} from float32, {size:.1f} MiB",
            flush=True,
        )


def gather(folder: Path) -> None:
    """Print seconds of gathering, the shortest of some turns."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, WIDTH), np.float32)
    none = np.empty(0, np.int64)
    graph, split = mr.from_edges(none, none, ROWS), mr.Split(none, none, none)
    data = mr.Dataset("x", graph, ArrayFeatures(x), np.zeros(ROWS, np.int64), split, 1)
    stores = {}
    for kind in FEATURE_DTYPES:
        mr.write_dataset(folder / kind, data, features_format="npy", feature_dtype=kind)
        stores[kind] = mr.open_dataset(folder / kind, features="mapped").features
    asked = [rng.integers(0, ROWS, ASKED) for _ in range(12)]
    out, best = np.empty((ASKED, WIDTH), np.float32), dict.fromkeys(stores, float("inf"))
    for ids in asked:
        for kind, features in stores.items():
            start = time.perf_counter()
            features.gather(ids, out)
            best[kind] = min(best[kind], time.perf_counter() - start)
    for kind, seconds in best.items():
        print(
            f"gather {kind}: {seconds * 1e3:.1f} ms for {ASKED:,} rows, {seconds / ASKED * 1e9:.0f} ns a row",
            flush=True,
        )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--graphs", default=";".join(GRAPHS))
    parser.add_argument("--forms", default=",".join(FEATURE_DTYPES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gather", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.gather:
            gather(Path(folder))
            return
        for graph in args.graphs.split(";"):
            accuracies(args, graph, Path(folder))


if __name__ == "__main__":
    main()
