"""Metrics of the splits of a dataset from the outputs of a model, whatever the task."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from ...storage.dataset import SPLITS, Dataset, IdArray
from ...storage.links.pairs import PairArray
from ..links.decoders import decoder_beside
from ..links.plan import Ends
from .edges import RowsOfEnds, scored_edges
from .layerwise import by_split, outputs
from .link_metrics import Knows, link_metrics
from .measures import Measures, Scored
from .temporal import Chunk, temporal_link_metrics, temporal_outputs

Rows = dict[str, tuple[Tensor, Tensor]] | Tensor | RowsOfEnds


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
    known: Knows,
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
        of_pairs = (dataset.labels, times, numbers, split, names, known, seed, on_progress, chunk)
        return temporal_link_metrics(model, *data, *of_pairs)
    if dataset.pairs is not None:
        assert dataset.pair_time is not None
        ends = Ends.from_pairs(dataset.pairs[numbers], dataset.pair_time[numbers], dataset.num_nodes)
        assert ends.moments is not None
        rows = temporal_outputs(model, *data, ends.nodes, ends.moments, seed, on_progress, chunk)
        return _of_edges(measures, model, dataset, rows, ends.positions, numbers, by_class=by_class)
    times = dataset.graph.node_time
    assert times is not None
    rows = temporal_outputs(model, *data, numbers, times[numbers], seed, on_progress, chunk)
    return scored(measures, model, dataset, rows_of(rows, dataset, (split,)), split, known, by_class=by_class)


def nodes_to_evaluate(dataset: Dataset, splits: Sequence[str] = SPLITS) -> IdArray:
    """int64, nodes whose outputs `rows_of` takes: those of the splits, one after the other; of links, all; of labelled
    edges, the distinct ends, ascending."""
    if dataset.task == "link":
        return np.arange(dataset.num_nodes)
    if dataset.pairs is not None:
        is_end = np.zeros(dataset.num_nodes, bool)
        for name in splits:
            is_end[dataset.pairs[getattr(dataset.split, name)]] = True
        return np.flatnonzero(is_end)
    return np.concatenate([np.empty(0, np.int64), *(getattr(dataset.split, name) for name in splits)])


def rows_of(outputs: Tensor, dataset: Dataset, splits: Sequence[str] = SPLITS) -> Rows:
    """Outputs and labels of the nodes of each split that has any; of links, the rows of all nodes, [V, D]; of labelled
    edges, those of their ends."""
    if dataset.pairs is not None:
        return RowsOfEnds(nodes_to_evaluate(dataset, splits), outputs)
    return outputs if dataset.task == "link" else by_split(outputs, dataset, splits)


def scored(
    measures: Measures,
    model: nn.Module,
    dataset: Dataset,
    rows: Rows,
    split: str,
    known: Knows,
    by_class: bool = False,
) -> Scored | None:
    """Metrics of a split; None if it is empty.

    Args:
        measures: what is measured.
        model: has a decoder, if pairs are labelled.
        dataset: the data.
        rows: see `split_rows`.
        split: train, val or test.
        known: gives pairs that rankings leave out.
        by_class: see `Measures.measured`.
    """
    if isinstance(rows, dict):
        return measures.measured(*rows[split], by_class) if split in rows else None
    numbers = getattr(dataset.split, split)
    if not len(numbers):
        return None
    if isinstance(rows, RowsOfEnds):
        assert dataset.pairs is not None
        positions = rows.positions(dataset.pairs[numbers])
        return _of_edges(measures, model, dataset, rows.rows, positions, numbers, by_class=by_class)
    decoder, names = decoder_beside(model, rows), measures.all_names
    of_pairs = (dataset.labels, numbers, split, names, known, dataset.graph.types)
    return link_metrics(decoder, rows, *of_pairs, ranks_sources=measures.ranks_sources)


def _of_edges(
    measures: Measures,
    model: nn.Module,
    dataset: Dataset,
    rows: Tensor,
    positions: PairArray,
    numbers: IdArray,
    by_class: bool,
) -> Scored:
    """Metrics of the labelled edges of these `numbers`, whose ends are at `positions` among the rows."""
    features = None if dataset.pair_features is None else dataset.pair_features[numbers]
    return scored_edges(
        measures, decoder_beside(model, rows), rows, positions, dataset.labels[numbers], features, by_class=by_class
    )
