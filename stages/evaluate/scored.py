"""Metrics of the splits of a dataset from the outputs of a model, whatever the task."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.dataset import SPLITS, Dataset, IdArray
from ...storage.links.pairs import PairArray
from ...storage.optional import taken
from ..links.decoders import decoder_beside
from ..links.plan import Ends
from .edges import NodeRows, edge_outputs
from .layerwise import by_split, outputs
from .limits import Limits
from .link_metrics import Knows, PairsOfSet, link_metrics
from .measures import Measures, Scored
from .temporal import Draws, temporal_link_metrics, temporal_outputs

Rows = dict[str, tuple[Tensor, Tensor]] | Tensor | NodeRows


def split_rows(model: nn.Module, dataset: Dataset, degree: Tensor, splits: Sequence[str], limits: Limits) -> Rows:
    """Everything that `scored` reads, in one pass over the layers. Arguments as in `layerwise.evaluate`."""
    nodes = nodes_to_evaluate(dataset, splits)
    return rows_of(outputs(model, dataset.graph, dataset.features, degree, nodes, limits), dataset, splits)


def temporal_scored(
    measures: Measures, model: nn.Module, dataset: Dataset, draws: Draws, split: str, known: Knows
) -> Scored | None:
    """`scored` where samples go by time: nodes and pairs at their times. See `temporal`."""
    numbers, data = getattr(dataset.split, split), (dataset.graph, dataset.features, draws)
    if not len(numbers):
        return None
    if dataset.task == "link":
        return temporal_link_metrics(model, dataset, draws, split, measures.all_names, known)
    if dataset.has_edge_labels:
        assert dataset.pair_time is not None
        ends = Ends.from_pairs(dataset.pair_table[numbers], dataset.pair_time[numbers], dataset.num_nodes)
        assert ends.moments is not None
        rows = temporal_outputs(model, *data, ends.nodes, ends.moments)
        return _of_edges(measures, model, dataset, rows, ends.positions, split)
    times = dataset.graph.node_time
    assert times is not None
    rows = temporal_outputs(model, *data, numbers, times[numbers])
    return scored(measures, model, dataset, rows_of(rows, dataset, (split,)), split, known)


def nodes_to_evaluate(dataset: Dataset, splits: Sequence[str] = SPLITS) -> IdArray:
    """int64, nodes whose outputs `rows_of` takes: those of the splits, one after the other; of links, all; of labelled
    edges, the distinct ends, ascending."""
    if dataset.task == "link":
        return np.arange(dataset.num_nodes)
    if dataset.has_edge_labels:
        is_end = np.zeros(dataset.num_nodes, bool)
        for name in splits:
            is_end[dataset.pair_table[getattr(dataset.split, name)]] = True
        return np.flatnonzero(is_end)
    return np.concatenate([np.empty(0, np.int64), *(getattr(dataset.split, name) for name in splits)])


def rows_of(outputs: Tensor, dataset: Dataset, splits: Sequence[str] = SPLITS) -> Rows:
    """Outputs and labels of the nodes of each split that has any; of links, the rows of all nodes, [V, D]; of labelled
    edges, those of their ends."""
    if dataset.has_edge_labels:
        return NodeRows(nodes_to_evaluate(dataset, splits), outputs)
    return outputs if dataset.task == "link" else by_split(outputs, dataset, splits)


def scored(
    measures: Measures, model: nn.Module, dataset: Dataset, rows: Rows, split: str, known: Knows
) -> Scored | None:
    """Metrics of a split from the rows of `split_rows`, those of the test split by class too; None if it is empty. The
    model has a decoder, if pairs are labelled; `known` gives those that rankings leave out."""
    if isinstance(rows, dict):
        return measures.measured(*rows[split], split == "test") if split in rows else None
    numbers = getattr(dataset.split, split)
    if not len(numbers):
        return None
    if isinstance(rows, NodeRows):
        return _of_edges(measures, model, dataset, rows.rows, rows.positions(dataset.pair_table[numbers]), split)
    pairs = PairsOfSet(dataset.labels, numbers, split, dataset.graph.types)
    return link_metrics(decoder_beside(model, rows), rows, pairs, measures.all_names, known, measures.ranks_sources)


def _of_edges(
    measures: Measures, model: nn.Module, dataset: Dataset, rows: Tensor, positions: PairArray, split: str
) -> Scored:
    """Metrics of the labelled edges of a split, whose ends are at `positions` among the rows."""
    numbers = getattr(dataset.split, split)
    features = taken(dataset.pair_features, numbers)
    outputs = edge_outputs(decoder_beside(model, rows), rows, positions, features)
    return measures.measured(outputs, torch.from_numpy(dataset.labels[numbers]).to(outputs.device), split == "test")
