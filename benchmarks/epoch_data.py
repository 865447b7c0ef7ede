"""Data that `epoch.py` trains on, beside the graphs of `graphs.py`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from graphs import load
from peers.train_task import BATCH, CLASSES, EDGE_CLASSES, EDGE_FEATURES, FANOUT, FEATURES


def training_data(folder: Path, num_nodes: int) -> None:
    """Random features and labels beside the graph, and an order of its nodes that seeds are taken from; made on first
    use."""
    rng = np.random.default_rng(0)
    _made(
        folder / "training",
        {
            "features": lambda: rng.standard_normal((num_nodes, FEATURES), np.float32),
            "labels": lambda: rng.integers(0, CLASSES, num_nodes),
            "seeds": lambda: rng.permutation(num_nodes),
        },
    )


def edge_data(folder: Path) -> None:
    """Random labels and features of all edges beside the graph; made on first use."""
    rng, count = np.random.default_rng(1), len(np.load(folder / "indices.npy", mmap_mode="r"))
    _made(
        folder / "training",
        {
            "edge_labels": lambda: rng.integers(0, EDGE_CLASSES, count),
            "edge_features": lambda: rng.standard_normal((count, EDGE_FEATURES), np.float32),
        },
    )


def _made(target: Path, arrays: dict[str, Callable[[], np.ndarray]]) -> None:
    target.mkdir(exist_ok=True)
    if all((target / f"{name}.npy").exists() for name in arrays):
        return
    for name, make in arrays.items():
        np.save(target / "partial.npy", make())
        (target / "partial.npy").rename(target / f"{name}.npy")


def proof_of(folder: Path) -> Path:
    """The folder of the same graph with the first in-edges of each node alone, so few that every sampler draws all of
    them; made on first use."""
    target, most = folder / f"at-most-{min(FANOUT)}", min(FANOUT)
    if not (target / "indices.npy").exists():
        target.mkdir(exist_ok=True)
        graph = load(folder)
        kept = np.arange(graph.num_edges) - np.repeat(graph.indptr[:-1], graph.in_degree) < most
        np.save(target / "indptr.npy", np.append(0, np.cumsum(np.minimum(graph.in_degree, most))))
        np.save(target / "partial.npy", graph.indices[kept])
        (target / "partial.npy").rename(target / "indices.npy")
    return target


def store_of(folder: Path, minibatches: int) -> Path:
    """A dataset's store with these seeds, made on first use."""
    import millrace as mr
    from millrace.storage.features import MappedFeatures

    path = folder / "training" / f"store-{minibatches}"
    if not path.exists():
        training, none = folder / "training", np.empty(0, np.int64)
        seeds = np.sort(np.load(training / "seeds.npy")[: minibatches * BATCH])
        features, labels = MappedFeatures(training / "features.npy"), np.load(training / "labels.npy")
        split = mr.Split(seeds, none, none)
        mr.write_dataset(
            path, mr.Dataset("epoch", load(folder), features, labels, split, CLASSES), features_format="npy"
        )
    return path
