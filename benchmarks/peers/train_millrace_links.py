"""Millrace's link prediction through `millrace.run`: what `train_millrace` is for nodes, without its options but
``set``."""

from typing import Any

import numpy as np
from train_millrace import configured, measured, sizes_of
from train_task import FANOUT, HIDDEN, PAIRS, Task, read

import millrace as mr
from millrace.stages.links.exclude import WithoutOwnEdges
from millrace.stages.links.plan import LinkPlan
from millrace.stages.links.train_pairs import Negatives, TrainPairs
from millrace.storage.features import ArrayFeatures
from millrace.storage.links.pairs import Pairs


def config(task: Task) -> dict[str, Any]:
    """The job, but for its epochs."""
    own = {
        "task": "link",
        "model": {"name": "sage", "hidden": HIDDEN, "layers": len(FANOUT), "dropout": task.dropout},
        "link": {"width": HIDDEN, "decoder": "mlp"},
        "train": {"batch_size": PAIRS},
    }
    return configured(task, own)


def dataset(task: Task) -> mr.Dataset:
    """In memory; the task's edges are positive pairs to train on, and none is held out."""
    graph, edges, none = mr.Graph(*task.graph()), task.edges(), np.empty(0, np.int64)
    destination = np.searchsorted(graph.indptr, edges, side="right") - 1
    pairs = np.stack([graph.indices[edges], destination, np.zeros_like(edges)], axis=1)
    split = mr.Split(np.arange(len(edges)), none, none)
    return mr.Dataset("links", graph, ArrayFeatures(task.data()[0]), pairs, split, 1, task="link")


def sizes(data: mr.Dataset) -> dict[str, float]:
    """See `train_millrace.sizes`."""
    links = TrainPairs.from_graph(data.graph, Pairs(data.labels, {}), Negatives())
    plan = LinkPlan(data.split.train, PAIRS, 8, 0, links=links)
    return sizes_of(WithoutOwnEdges(mr.NeighborSampler(FANOUT)), data.graph, plan)


def measure(task: Task) -> dict[str, Any]:
    """See `train_task.train` for what is answered."""
    data = dataset(task)
    return {**measured(task, data, config(task)), **sizes(data)}


if __name__ == "__main__":
    given, answer = read()
    answer(measure(given))
