"""Cleaning of a reader's arrays into a checked `Dataset`."""

from dataclasses import replace
from typing import Any

import numpy as np

from ....storage.dataset import MATRIX_TASKS, SPLITS, Dataset, Split
from ....storage.errors import InputError
from ....storage.features import ArrayFeatures
from ....storage.graph import Graph
from ....storage.node_names import NodeNames
from ....storage.plural import counted, were
from ....storage.stored.data_card import AS_GIVEN, data_card
from ....storage.times.moments import as_times, in_one_unit
from ....storage.typed.features import TypedFeatures
from .columns import Card, RowKind, clean_features, degree_rows, note_missing
from .components import in_largest_component, restricted, restricted_split
from .edges import clean_edges, note_borrowed, note_weights
from .filling import check_indicators
from .labels import CleanLabels, settled_labels
from .options import ReadOptions
from .raw import AnyArray, Counts, Faults, GivenLabels, Raw, RawNodes, about, noted, refuse, type_text
from .splits import make_split
from .typed import check_relations, count_nodes, joined_names, note_of_types, typed_graph


def clean(raw: Raw, options: ReadOptions, split: str | None, seed: int) -> Dataset:
    """Check and repair the arrays of a reader; `split` and `seed` are those of `make_split`. Of a graph with several
    types, the target's nodes come first, those of the other types follow, and all edges are kept as they are. Raises
    InputError: starts with the name of the input, and names the defect and what to change."""
    with about(raw.name):
        return replace(_clean(raw, options, split, seed), read_as=options.given)


def _clean(raw: Raw, options: ReadOptions, split: str | None, seed: int) -> Dataset:
    notes, card, given = list(raw.notes), list[dict[str, Any]](), raw.labels
    if not raw.is_typed:
        check_no_target(options)
    if given is not None and not (np.ndim(given.values) and len(given.values)):
        what = f"labels; expected one for each node of type '{raw.target}'"
        raise InputError(f"there are no {what if raw.is_typed else 'nodes (no labels); expected one for each node'}")
    counts = count_nodes(raw)
    if given is not None and options.task == "link":  # pairs take their place
        given = None if raw.is_typed else GivenLabels(np.zeros(counts[None], np.int64))
    faults, of_labels, of_features = Faults(raw.faults), Faults(), Faults()
    if raw.is_typed:
        check_relations(tuple(raw.edges), counts)
    raw, unit = _in_one_unit(raw, counts)
    own, graph = raw.nodes.get(raw.target, RawNodes()), Graph(np.zeros(1, np.int64), np.empty(0, np.int64))
    more: Any = {"times": own.time, "time_unit": unit}
    if not faults:
        with faults.noted():
            graph = replace(_graph(raw, counts, options, notes, card), time_unit=unit)
    settled = CleanLabels(np.empty(0, np.int64), 0, "multiclass", None)
    if given is not None:
        with of_labels.noted():
            settled = settled_labels(given, options, notes)
    y, num_classes, task, class_names = settled
    names = joined_names(raw, counts) if raw.is_typed else own.names
    of_types = list[AnyArray]()
    with of_features.noted():
        of_types = [_features(t, raw, n, options, notes, card) for t, n in counts.items()]
    stored = {part: _by_name(part, np.asarray(ids), own.names) for part, ids in raw.split.items()}
    if faults or of_labels or of_features:
        if given is not None and not of_labels and options.task != "link":
            with of_labels.noted():
                make_split(y, stored, split, seed, options, [], **more)
        refuse([*faults, *of_labels, *of_features])
    if raw.is_typed:
        features: Any = TypedFeatures(tuple(map(ArrayFeatures, of_types)), graph.types.offsets)
    else:
        (x,) = of_types
        if not x.shape[1]:
            note_missing(options, notes)
            x = degree_rows(graph.in_degree)
        if options.task == "link":
            stored = {"train": np.ones(len(y), bool)}
        if options.components == "largest" and not (keep := in_largest_component(graph)).all():
            outside = int((~keep).sum())
            notes.append(
                f"{counted(outside, 'node')} outside the largest connected component {were(outside)} left out "
                "(components=largest)."
            )
            graph, y, x, stored = restricted(graph, keep), y[keep], x[keep], restricted_split(stored, keep)
            names = NodeNames.of_integers(np.flatnonzero(keep)) if names is None else names.kept(keep)
        features = ArrayFeatures(x)
    parts = Split(*(np.empty(0, np.int64) for _ in SPLITS))
    if given is not None:
        if graph.node_time is not None:
            more["times"] = graph.node_time[: len(y)]
        of_split = [] if options.task == "link" else notes  # the set of all nodes is no stored split
        parts = make_split(y, stored, split, seed, options, of_split, **more)
    if raw.is_typed:
        full = np.full((graph.num_nodes, *y.shape[1:]), np.nan if task in MATRIX_TASKS else -1, y.dtype)
        full[: len(y)] = y
        y, notes = full, notes if given is None else [*notes, note_of_types(graph.types)]
    check_indicators(options, card)
    found = data_card(card, **card_facts(split, seed, bool(raw.split)), read=dict(raw.read))
    more = {"notes": tuple(notes), "node_names": names, "class_names": class_names, "card": found}
    return Dataset(raw.name, graph, features, y, parts, num_classes, task=task, **more).check()


def _in_one_unit(raw: Raw, counts: Counts) -> tuple[Raw, str | None]:
    """The same where all dates count one unit, and times of nodes are checked; and that unit."""
    none = np.empty(0, np.int64)  # times of no edges, which are neither dates nor numbers when given as []
    edges = {k: own if own.time is None or len(own.time) else replace(own, time=none) for k, own in raw.edges.items()}
    times, unit = in_one_unit(None if own.time is none else own.time for own in (*edges.values(), *raw.nodes.values()))
    edges = {k: own if own.time is none else replace(own, time=time) for (k, own), time in zip(edges.items(), times)}
    nodes = dict(raw.nodes)
    for (t, own), time in zip(raw.nodes.items(), times[len(edges) :]):
        what = f"node_time of '{t}'" if raw.is_typed else "node_time"
        nodes[t] = own if time is None else replace(own, time=as_times(time, what, counts[t]))
    return replace(raw, edges=edges, nodes=nodes), unit


def _graph(raw: Raw, counts: Counts, options: ReadOptions, notes: list[str], card: Card) -> Graph:
    """The graph. Edges without times get those of their sources."""
    note_weights({key: own.weight is not None for key, own in raw.edges.items()}, options, notes)
    if raw.is_typed:
        return typed_graph(raw, counts, options, notes, card)
    graph = clean_edges(raw.edges[None], counts[None], options, raw.hint, notes, card)
    time = raw.nodes[None].time
    if time is not None and graph.edge_time is None:
        note_borrowed([0], notes)
        graph = replace(graph, edge_time=time[graph.indices])
    return replace(graph, node_time=time)


def _features(
    kind: str | None, raw: Raw, num_nodes: int, options: ReadOptions, notes: list[str], card: Card
) -> AnyArray:
    """float32 [n, F] of a node type; F is 0 if it has none. Raises InputError: they have a defect."""
    own, seen = raw.nodes.get(kind, RawNodes()), list[str]()
    of = RowKind(own.columns, called=str(kind or "nodes"))
    with about(f"features of {type_text(kind)}" if raw.is_typed else ""):
        rows = clean_features(own.features, num_nodes, options, seen, of, card)
    notes += noted(kind, seen)
    return rows


def card_facts(split: str | None, seed: int, stored: bool) -> dict[str, Any]:
    """What a data card says of the split: how it came about."""
    return {"split": split or (AS_GIVEN if stored else "drawn, see the notes"), "seed": seed}


def check_no_target(options: ReadOptions) -> None:
    """Raise InputError if a node type is to be predicted, of a graph with one."""
    if options.target is not None:
        raise InputError(f"target is '{options.target}', but there is one type of nodes; leave target out")


def _by_name(part: str, ids: AnyArray, names: NodeNames | None) -> AnyArray:
    """A stored set, whose nodes may be given by name, as ids or a mask."""
    if names is None or ids.dtype.kind not in "UOiu" or ids.ndim != 1:
        return ids
    try:
        return names.meant(ids)
    except InputError as e:
        raise InputError(f"the {part} split: {e}") from e
