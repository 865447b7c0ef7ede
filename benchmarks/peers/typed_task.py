"""The training task on a graph of ogbn-mag's shape: needs nothing but the standard library and NumPy."""

import json
from typing import Any

import numpy as np
from train_task import Task

FEATURES, HIDDEN, CLASSES, LR = 128, 64, 349, 0.01
"""Papers have features and classes; nodes of the other types have neither."""


def graph(task: Task) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """In-neighbour lists int64 [V+1] and int32 [E], the relation of each edge uint8 [E], and the types."""
    arrays = (np.load(task.folder / f"{name}.npy") for name in ("indptr", "indices", "edge_type"))
    return *arrays, json.loads((task.folder / "types.json").read_text())


def papers(task: Task, batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features float32 [P, F] and labels int64 [P] of all papers, random, and seeds int64 [N * batch], ascending."""
    order = np.load(task.folder / "seeds.npy")
    rng = np.random.default_rng(0)
    features = rng.standard_normal((len(order), FEATURES), np.float32)
    return features, rng.integers(0, CLASSES, len(order)), np.sort(order[: task.minibatches * batch])
