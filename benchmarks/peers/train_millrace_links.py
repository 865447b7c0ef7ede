"""Millrace's link prediction through `millrace.run`: what `train_millrace` is for nodes, without its options but
``set``."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from train_millrace import FIRST, STAGES, Watch
from train_task import FANOUT, HIDDEN, LR, PAIRS, Task, read, settle

import millrace as mr
from millrace.pipeline.config.aliases import merged
from millrace.pipeline.config.load import parse_override
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.links.exclude import WithoutOwnEdges
from millrace.stages.links.plan import LinkPlan
from millrace.stages.links.train_pairs import Negatives, TrainPairs
from millrace.storage.features import ArrayFeatures
from millrace.storage.links.pairs import Pairs


def config(task: Task) -> dict[str, Any]:
    """The job, but for its epochs."""
    table: dict[str, Any] = {
        "task": "link",
        "model": {"name": "sage", "hidden": HIDDEN, "layers": len(FANOUT), "dropout": task.dropout},
        "link": {"width": HIDDEN, "decoder": "mlp"},
        "sampler": {"name": "neighbor", "fanout": list(FANOUT)},
        "train": {"batch_size": PAIRS, "optimizer": "adam", "lr": LR, "evaluate_every": 0},
        "queue": {"max_bytes": 1},
        "threads": task.threads,
    }
    for text in task.options.get("set", []):
        table = merged(table, *parse_override(text))
    return table


def dataset(task: Task) -> mr.Dataset:
    """In memory; the task's edges are positive pairs to train on, and none is held out."""
    graph, edges, none = mr.Graph(*task.graph()), task.edges(), np.empty(0, np.int64)
    destination = np.searchsorted(graph.indptr, edges, side="right") - 1
    pairs = np.stack([graph.indices[edges], destination, np.zeros_like(edges)], axis=1)
    split = mr.Split(np.arange(len(edges)), none, none)
    return mr.Dataset("links", graph, ArrayFeatures(task.data()[0]), pairs, split, 1, task="link")


def sizes(data: mr.Dataset) -> dict[str, float]:
    """See `train_millrace.sizes`."""
    links = TrainPairs.of(data.graph, Pairs(data.labels, {}), Negatives())
    plan = LinkPlan(data.split.train, PAIRS, 8, 0, links=links)
    sampler = WithoutOwnEdges(mr.NeighborSampler(FANOUT))
    drawn = sampler.sample(data.graph, plan.request(0, 0), cpu).minibatches
    return {
        "aggregated": float(np.mean([sum(b.num_edges for b in m.blocks) for m in drawn])),
        "rows": float(np.mean([sum(b.num_dst for b in m.blocks) for m in drawn])),
        "nodes": float(np.mean([len(m.nodes) for m in drawn])),
    }


def measure(task: Task) -> dict[str, Any]:
    """See `train_task.train` for what is answered."""
    data, watch = dataset(task), Watch(task.epochs)
    loaded = settle()
    few = replace(data, split=replace(data.split, train=data.split.train[: FIRST * PAIRS]))
    with tempfile.TemporaryDirectory() as folder:
        mr.run(few, config=config(task), epochs=1, out=Path(folder) / "first")
        result = mr.run(data, config=config(task), epochs=task.epochs + 2, out=Path(folder) / "run", emit=watch)
    count = task.minibatches * result.epochs
    return {
        "ms": watch.ms(task.minibatches),
        "cpu_ms": watch.ms(task.minibatches, "cpu"),
        "parts_ms": {name: 1000 * result.seconds[name] / count for name in STAGES if result.seconds[name]},
        "edges": result.sampled_edges / count,
        "loss": result.train_loss,
        "peak_bytes": watch.peak_bytes,
        "loaded_bytes": loaded,
        **sizes(data),
    }


if __name__ == "__main__":
    given, answer = read()
    answer(measure(given))
