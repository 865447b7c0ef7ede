"""Millrace on labels of edges through `millrace.run`: what `train_millrace` is for nodes, without its options but
``set``. All edges of the graph are labelled, and the task's are the train split."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from edges_task import labelled, set_parameters
from train_millrace import configured, measured, sizes_of
from train_task import EDGE_CLASSES, FANOUT, HIDDEN, PAIRS, Task, read
from train_torch import HeadClock

import millrace as mr
from millrace.pipeline.setup.run_folder import MODEL
from millrace.stages.links.plan import LinkPlan
from millrace.stages.links.train_pairs import TrainPairs
from millrace.stages.messages import PairsToScore
from millrace.storage.features import ArrayFeatures
from millrace.storage.links.pairs import Pairs


def config(task: Task) -> dict[str, Any]:
    """The job, but for its epochs."""
    own = {
        "model": {"name": "sage", "hidden": HIDDEN, "layers": len(FANOUT), "dropout": task.dropout},
        "link": {"width": HIDDEN},
        "train": {"batch_size": PAIRS},
    }
    return configured(task, own)


def dataset(task: Task) -> mr.Dataset:
    """In memory."""
    graph, none = mr.Graph(*task.graph()), np.empty(0, np.int64)
    chosen, labels, features = labelled(task)
    pairs = np.empty((graph.num_edges, 2), np.int64)
    pairs[:, 0] = graph.indices
    pairs[:, 1] = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    split, rows = mr.Split(chosen, none, none), ArrayFeatures(task.data()[0])
    return mr.Dataset("edges", graph, rows, labels, split, EDGE_CLASSES, pairs=pairs, pair_features=features)


def begin_with(folder: Path) -> None:
    """Put the parameters that all engines begin with in the folder of a run."""
    state = torch.load(folder / MODEL, weights_only=True)
    layers = [
        f"convs.{i}.{name}" for i in range(len(FANOUT)) for name in ("own.weight", "neighbours.weight", "own.bias")
    ]
    head = [f"decoder.{layer}.{name}" for layer in ("first", "second") for name in ("weight", "bias")]
    set_parameters([state[name] for name in layers + head])
    torch.save(state, folder / MODEL)


def measure(task: Task) -> dict[str, Any]:
    """See `train_task.train` for what is answered; the head is a part of its own."""
    data, clock, scores = dataset(task), HeadClock(), PairsToScore.scores
    assert data.pairs is not None
    PairsToScore.scores = lambda links, rows: clock(rows, partial(scores, links))

    def started(folder: Path) -> None:
        begin_with(folder)
        clock.taken()

    found = measured(task, data, config(task), started)
    own = 1000 * clock.taken() / (task.minibatches * (task.epochs + 2))
    found["parts_ms"] |= {"forward_backward": found["parts_ms"]["forward_backward"] - own, "head": own}
    links = TrainPairs.from_graph(data.graph, Pairs(data.pairs, {}), None)
    plan = LinkPlan(data.split.train, PAIRS, 8, 0, links=links)
    return {**found, **sizes_of(mr.NeighborSampler(FANOUT), data.graph, plan)}


if __name__ == "__main__":
    given, answer = read()
    answer(measure(given))
