"""Datasets whose labels are of edges: pairs of nodes with a class or a target each."""

from dataclasses import replace
from typing import Any

import numpy as np

from ...storage.dataset import SPLITS, Dataset, require_dataset
from ...storage.errors import InputError, whole_number
from ...storage.optional import when_present
from ...storage.plural import counted, were
from ...storage.stored.data_card import with_columns
from ...storage.times.moments import in_one_unit
from ...storage.typed.graph_types import RelationType
from .cleaning.columns import EDGES, LARGE_VALUE, Card, clean_edge_features
from .cleaning.kept import PAIRS, of_pairs
from .cleaning.labels import settled_labels
from .cleaning.options import DEFAULT_OPTIONS, ReadOptions, require_options
from .cleaning.raw import GivenLabels
from .cleaning.splits import make_split
from .edge_labels import LabelledEdges
from .links import like_edges, relations_of, without_pairs
from .pair_relation import with_pair_relation
from .pairs import as_pairs, times_like
from .readers.pyg import has_targets
from .readers.typed import host


def edge_dataset(
    dataset: Dataset,
    pairs: Any,
    labels: Any,
    *,
    features: Any = None,
    times: Any = None,
    train: Any = None,
    val: Any = None,
    test: Any = None,
    split: str | None = None,
    seed: int = 0,
    relation: str | RelationType | None = None,
    options: ReadOptions = DEFAULT_OPTIONS,
) -> Dataset:
    """A dataset whose labels are of edges: which transaction is a fraud, how a user rates an item.

    The labelled edges may be edges of the graph, several between two nodes too, or any other pairs of nodes. By default
    all edges stay in the graph, also those of val and test, whose labels alone are unknown. With
    ``ReadOptions(labelled_edges="hidden")`` the model predicts a labelled edge without seeing it.

    Args:
        dataset: its graph, features and names stay; labels and split are replaced.
        pairs: [N, 2] ids or names of nodes, source and destination. In a graph with several types, each column is of
            ids or names within the type of that end of `relation`.
        labels: [N] class numbers (-1: unlabelled), text or targets, or [N, C], as those of nodes.
        features: [N, K], features of these edges that their prediction reads, or None.
        times: [N], times of these edges, for splits and samples by time, or None.
        train: ids in [0, N) or a mask [N] of the edges to train on; None: drawn by `split`.
        val: likewise.
        test: likewise.
        split: of the labelled edges, see `open_dataset`; fraction:0.6,0.2 by default if no set is given.
        seed: seed of a drawn split.
        relation: the relation that is labelled, of a graph with several types: its name, or (source type, name,
            destination type), also joined by commas.
        options: the task, the treatment of defects of labels and splits, and `ReadOptions.labelled_edges`.

    Raises:
        InputError: an end is no node, numbers of rows differ, or labels have a defect.
    """
    require_dataset(dataset)
    require_options(options)
    if dataset.of_pairs:
        raise InputError(f"the labels of {dataset.name} are of pairs already; expected a dataset of nodes")
    dataset = with_pair_relation(dataset, relation)
    ends = as_pairs(pairs, dataset, "pairs")
    given = {"labels": labels, "features": features, "times": times}
    rows = {what: when_present(host, a) for what, a in given.items()}
    for what, array in rows.items():
        if array is not None and (not array.ndim or len(array) != len(ends)):
            raise InputError(f"{what} have shape {list(array.shape)}; expected a row for each of {len(ends)} pairs")
    y = rows["labels"]
    if y is None:
        raise InputError("labels are None; expected one for each pair")
    sets = {part: host(ids) for part, ids in zip(SPLITS, (train, val, test)) if ids is not None}
    own = GivenLabels(y, task="regression" if hasattr(labels, "detach") and has_targets(labels) else None)
    raw = LabelledEdges(ends, own, rows["features"], rows["times"], sets)
    return with_labelled_edges(dataset, raw, split, seed, options)


def with_labelled_edges(
    dataset: Dataset, raw: LabelledEdges, split: str | None, seed: int, options: ReadOptions
) -> Dataset:
    """The dataset with these labelled edges, checked and cleaned; its graph names the relation of pairs if it has
    several types. See `edge_dataset`."""
    notes = [*dataset.notes, *raw.notes]
    settled = settled_labels(raw.labels, options, notes, "edge")
    times = None
    if raw.time is not None:
        timed = dataset.graph.has_edge_times or dataset.graph.has_node_times
        if not timed and (own := in_one_unit([raw.time])[1]) is not None:
            dataset = replace(dataset, graph=replace(dataset.graph, time_unit=own))
        found = times_like(raw.time, "times of labelled edges", len(raw.pairs), dataset.graph)
        times = like_edges(found, dataset.graph)
    unit = dataset.graph.time_unit
    more: Any = {"times": times, "unit": "edge", "time_unit": unit}
    parts = make_split(settled.labels, raw.split, split, whole_number("seed", seed), options, notes, **more)
    features = None
    if raw.features is not None:
        given = np.asarray(raw.features)
        if given.dtype.kind not in "biuf" or given.ndim > 2:
            raise InputError(
                f"features of labelled edges are {given.dtype} {list(given.shape)}; expected numbers [N, K]: encode "
                "them first"
            )
        features = given.reshape(len(raw.pairs), -1).astype(np.float32)
        if features.size:
            columns: Card = []
            of = EDGES._replace(columns=raw.feature_columns)
            features = clean_edge_features(given, len(given), of_pairs(options), notes, of, columns)
            if raw.has_own_columns and (card := dataset.card):
                dataset = replace(dataset, card=with_columns(card, [each | {"of": PAIRS} for each in columns]))
        if (largest := float(np.abs(features).max(initial=0))) > LARGE_VALUE:
            notes.append(
                f"Features of labelled edges reach {largest:,.0f}, and training needs values near 1: scale them before "
                "they are read, amounts by their logarithm."
            )
    hidden, graph = options.labelled_edges == "hidden", dataset.graph
    if hidden:
        held_out = raw.pairs[np.concatenate([parts.val, parts.test])]
        graph = without_pairs(graph, held_out, relations_of(graph))
        if removed := dataset.graph.num_edges - graph.num_edges:
            notes.append(
                f"{counted(removed, 'edge')} {were(removed)} held out: the val and test edges, left out of the graph."
            )
    more = {"pairs": raw.pairs, "pair_features": features, "pair_time": times, "hides_pairs": hidden}
    return replace(dataset, graph=graph, split=parts, notes=tuple(notes), **settled._asdict(), **more).check()
