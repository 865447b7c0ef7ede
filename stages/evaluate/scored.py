"""Metrics of the splits of a dataset from the outputs of a model, whatever the task."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from ...storage.dataset import SPLITS, Dataset, IdArray
from ..links.decoders import decoder_beside
from .layerwise import by_split, outputs
from .links import KnownPairs, link_metrics
from .measures import Measures, Scored
from .temporal import Chunk, temporal_link_metrics, temporal_outputs

Rows = dict[str, tuple[Tensor, Tensor]] | Tensor


def split_rows(
    model: nn.Module, dataset: Dataset, degree: Tensor, splits: Sequence[str] = SPLITS, **limits: Any
) -> Rows:
    """Everything that `scored` reads, in one pass over the layers. Arguments as in `layerwise.evaluate`."""
    nodes = nodes_to_evaluate(dataset, splits)
    return rows_of(outputs(model, dataset.graph, dataset.features, degree, nodes, **limits), dataset, splits)


def temporal_scored(
    measures: Measures,
    model: nn.Module,
    dataset: Dataset,
    sampler: Any,
    seed: int,
    split: str,
    known: Callable[[], KnownPairs],
    by_class: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    chunk: Chunk | None = None,
) -> Scored | None:
    """`scored` where samples go by time: nodes and pairs at their times. See `temporal`."""
    numbers, data = getattr(dataset.split, split), (dataset.graph, dataset.features, sampler)
    if not len(numbers):
        return None
    if dataset.task == "link":
        times, names = dataset.pair_time, measures.all_names
        assert times is not None
        of_pairs = (dataset.labels, times, numbers, split, names, known(), seed, on_progress, chunk)
        return Scored(None, temporal_link_metrics(model, *data, *of_pairs))
    times = dataset.graph.node_time
    assert times is not None
    rows = temporal_outputs(model, *data, numbers, times[numbers], seed, on_progress, chunk)
    return scored(measures, model, dataset, rows_of(rows, dataset, (split,)), split, known, by_class)


def nodes_to_evaluate(dataset: Dataset, splits: Sequence[str] = SPLITS) -> IdArray:
    """int64, nodes whose outputs `rows_of` takes: those of the splits, one after the other; of links, all."""
    if dataset.task == "link":
        return np.arange(dataset.num_nodes)
    return np.concatenate([np.empty(0, np.int64), *(getattr(dataset.split, name) for name in splits)])


def rows_of(outputs: Tensor, dataset: Dataset, splits: Sequence[str] = SPLITS) -> Rows:
    """Outputs and labels of the nodes of each split that has any; of links, the rows of all nodes, [V, D]."""
    return outputs if dataset.task == "link" else by_split(outputs, dataset, splits)


def scored(
    measures: Measures,
    model: nn.Module,
    dataset: Dataset,
    rows: Rows,
    split: str,
    known: Callable[[], KnownPairs],
    by_class: bool = False,
) -> Scored | None:
    """Metrics of a split; None if it is empty.

    Args:
        measures: what is measured.
        model: has a decoder, if the task is link.
        dataset: the data.
        rows: see `split_rows`.
        split: train, val or test.
        known: pairs that rankings leave out.
        by_class: see `Measures.of`.
    """
    if not isinstance(rows, Tensor):
        return measures.of(*rows[split], by_class) if split in rows else None
    numbers = getattr(dataset.split, split)
    if not len(numbers):
        return None
    decoder, names = decoder_beside(model, rows), measures.all_names
    values = link_metrics(decoder, rows, dataset.labels, numbers, split, names, known())
    return Scored(None, values)
