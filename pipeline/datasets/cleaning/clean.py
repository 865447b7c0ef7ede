"""Cleaning of a reader's arrays into a checked `Dataset`."""

from dataclasses import replace
from typing import Any

import numpy as np

from ....storage.dataset import Dataset
from ....storage.errors import InputError
from ....storage.features import ArrayFeatures
from ....storage.graph import Graph
from ....storage.node_names import NodeNames
from ....storage.plural import counted, were
from ....storage.stored.data_card import data_card
from ....storage.times.moments import as_times, in_one_unit
from .columns import clean_features
from .components import in_largest_component, restricted, restricted_split
from .edges import clean_edges, clean_ordered
from .labels import GivenLabels, settled_labels
from .options import ReadOptions
from .raw import AnyArray, Raw
from .splits import make_split


def clean(raw: Raw, options: ReadOptions, split: str | None, seed: int) -> Dataset:
    """Check and repair `raw`. V is the number of labels.

    Args:
        raw: the arrays of a reader.
        options: treatment of each defect.
        split: see `make_split`.
        seed: of a random split; nothing else depends on it.

    Raises:
        InputError: starts with the name of the input, and names the defect and what to change.
    """
    try:
        return replace(_clean(raw, options, split, seed), read_as=options.given)
    except InputError as e:
        raise type(e)(f"{raw.name}: {e}") from e


def _clean(raw: Raw, options: ReadOptions, split: str | None, seed: int) -> Dataset:
    notes, card = list(raw.notes), list[dict[str, Any]]()
    (edge_time, node_time), unit = in_one_unit((raw.edge_time, raw.node_time))
    check_no_target(options)
    labels, class_names = np.asarray(raw.labels), raw.class_names
    if options.task == "link":  # the pairs take their place
        labels, class_names = np.zeros(len(labels) if labels.ndim else 0, np.int64), None
    if labels.ndim == 0 or len(labels) == 0:
        raise InputError("there are no nodes (no labels); expected one label for each node")
    if raw.ordered is not None:
        graph = clean_ordered(raw.ordered, len(labels), options, raw.hint, notes)
    else:
        graph = clean_edges(
            np.asarray(raw.src),
            np.asarray(raw.dst),
            raw.edge_weight,
            len(labels),
            options,
            raw.hint,
            notes=notes,
            features=raw.edge_features,
            time=edge_time,
            columns=raw.edge_feature_columns,
            card=card,
        )
    graph = replace(with_node_times(graph, node_time, notes), time_unit=unit)
    given = GivenLabels(labels, class_names, raw.label_names, raw.nulls, raw.stripped, raw.task)
    y, num_classes, task, class_names = settled_labels(given, options, notes)
    x = clean_features(raw.features, graph, options, notes, raw.feature_columns, card)
    names = raw.node_names
    stored = (
        raw.split
        if names is None
        else {part: _by_name(part, np.asarray(ids), names) for part, ids in raw.split.items()}
    )
    if options.task == "link":
        stored = {"train": np.ones(len(y), bool)}
    if options.components == "largest":
        keep = in_largest_component(graph)
        if not keep.all():
            outside = int((~keep).sum())
            notes.append(
                f"{counted(outside, 'node')} outside the largest connected component {were(outside)} left out "
                "(components=largest)."
            )
            graph, y, x, stored = restricted(graph, keep), y[keep], x[keep], restricted_split(stored, keep)
            names = NodeNames.of_integers(np.flatnonzero(keep)) if names is None else names.kept(keep)
    of_split = [] if options.task == "link" else notes  # the set of all nodes is no stored split
    parts = make_split(y, stored, split, seed, options, of_split, times=graph.node_time, time_unit=unit)
    return Dataset(
        raw.name,
        graph,
        ArrayFeatures(x),
        y,
        parts,
        num_classes,
        task=task,
        notes=tuple(notes),
        node_names=names,
        class_names=class_names,
        card=data_card(card, **card_facts(split, seed, bool(raw.split)), read=dict(raw.read)),
    ).check()


def card_facts(split: str | None, seed: int, stored: bool) -> dict[str, Any]:
    """What a data card says of the split: how it came about."""
    return {"split": split or ("of the input" if stored else "drawn, see the notes"), "seed": seed}


def check_no_target(options: ReadOptions) -> None:
    """Raise InputError if a node type is to be predicted, of a graph with one."""
    if options.target is not None:
        raise InputError(f"target is '{options.target}', but there is one type of nodes; leave target out")


def with_node_times(graph: Graph, given: AnyArray | None, notes: list[str]) -> Graph:
    """The graph with times of nodes. Edges without times get those of their sources.

    Raises:
        InputError: they are no times, one for each node.
    """
    if given is None:
        return graph
    times = as_times(given, "node_time", graph.num_nodes)
    if graph.edge_time is None:
        notes.append("Edges have no times of their own, and have those of their sources.")
        graph = replace(graph, edge_time=times[graph.indices])
    return replace(graph, node_time=times)


def _by_name(part: str, ids: AnyArray, names: NodeNames) -> AnyArray:
    """A stored set, whose nodes may be given by name, as ids or a mask."""
    if ids.dtype.kind not in "UOiu" or ids.ndim != 1:
        return ids
    try:
        return names.meant(ids)
    except InputError as e:
        raise InputError(f"the {part} split: {e}") from e
