"""Millrace's R-GCN on a graph with types, through `millrace.run`; timed as in `train_millrace`."""

from typing import Any

import numpy as np
from train_millrace import configured, measured
from train_task import BATCH, Task, read
from typed_task import CLASSES, HIDDEN, LR, graph, papers

import millrace as mr
from millrace.storage.features import ArrayFeatures
from millrace.storage.typed.features import TypedFeatures
from millrace.storage.typed.graph_types import GraphTypes


def dataset(task: Task) -> mr.Dataset:
    """In memory; all seeds in the train split."""
    *lists, kind, record = graph(task)
    types = GraphTypes.of_record(record)
    features, labels, seeds = papers(task, BATCH)
    others = [np.empty((n, 0), np.float32) for n in np.diff(types.offsets)[1:]]
    rows = TypedFeatures(tuple(map(ArrayFeatures, [features, *others])), types.offsets)
    known = np.full(types.offsets[-1], -1, np.int64)
    known[: len(labels)] = labels
    none = np.empty(0, np.int64)
    given = mr.Graph(*lists, types=types, edge_type=kind)
    return mr.Dataset("mag-shaped", given, rows, known, mr.Split(seeds, none, none), CLASSES)


def measure(task: Task) -> dict[str, Any]:
    """See `train_task.train` for what is answered."""
    fanout = list(task.options["fanout"])
    own = {
        "model": {"name": "rgcn", "hidden": HIDDEN, "layers": len(fanout), "dropout": 0.0},
        "sampler": {"fanout": fanout},
        "train": {"lr": LR},
    }
    return measured(task, dataset(task), configured(task, own))


if __name__ == "__main__":
    given, answer = read()
    answer(measure(given))
