"""Millrace's R-GCN on a graph with types, through `millrace.run`; timed as in `train_millrace`."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from train_millrace import FIRST, STAGES, Watch
from train_task import BATCH, Task, read, settle
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


def run(task: Task, data: mr.Dataset, epochs: int, emit: Any = None) -> mr.Result:
    """Train from scratch."""
    fanout = list(task.options["fanout"])
    config = {
        "model": {"name": "rgcn", "hidden": HIDDEN, "layers": len(fanout), "dropout": 0.0},
        "sampler": {"name": "neighbor", "fanout": fanout},
        "train": {"batch_size": BATCH, "optimizer": "adam", "lr": LR, "evaluate_every": 0},
        # One bulk ahead: with the default bound sampling would run through all epochs during the warm-up.
        "queue": {"max_bytes": 1},
        "threads": task.threads,
    }
    with tempfile.TemporaryDirectory() as folder:
        return mr.run(data, config=config, epochs=epochs, out=Path(folder) / "run", emit=emit)


def measure(task: Task) -> dict[str, Any]:
    """See `train_task.train` for what is answered: one epoch warms up, and the one after those that are measured does
    not count, since sampling is ahead of it."""
    data = dataset(task)
    loaded = settle()
    run(task, replace(data, split=replace(data.split, train=data.split.train[: FIRST * BATCH])), 1)
    watch = Watch(task.epochs)
    result = run(task, data, task.epochs + 2, watch)
    count = task.minibatches * result.epochs
    return {
        "ms": watch.ms(task.minibatches),
        "cpu_ms": watch.ms(task.minibatches, "cpu"),
        "parts_ms": {name: 1000 * result.seconds[name] / count for name in STAGES if result.seconds[name]},
        "edges": result.sampled_edges / count,
        "loss": result.train_loss,
        "peak_bytes": watch.peak_bytes,
        "loaded_bytes": loaded,
    }


if __name__ == "__main__":
    given, answer = read()
    answer(measure(given))
