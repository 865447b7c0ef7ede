"""Cleaning of the arrays of a graph with several types of nodes and edges."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ....storage.errors import InputError, one_of, whole_number
from ....storage.graph import ALWAYS, Graph, starts_of
from ....storage.node_names import NodeNames, noted_kind
from ....storage.plural import counted
from ....storage.typed.graph_types import GraphTypes, RelationType
from .columns import Card
from .edges import OfEdges, checked_edges, note_borrowed
from .options import ReadOptions
from .raw import Counts, Raw
from .relations import REVERSE, graph_of_relations

OF_NODES = (
    "nan_features", "indicators", "normalize_features", "task", "ignored_labels", "nan_labels", "label_gaps",
    "overlapping_splits", "unlabelled_in_split", "edge_weights", "target", "labels_of", "labelled_edges",
)  # fmt: skip
"""Options that a typed graph follows; the others change edges, or choose columns of tables."""


def check_followed(name: str, options: ReadOptions, followed: tuple[str, ...] = OF_NODES) -> None:
    """Raise InputError for an option that a typed graph does not follow."""
    given = [key for key in options.given if key not in followed]
    if given:
        raise InputError(f"{name}: a typed graph is read as it is, without {', '.join(given)}; leave it out")


def typed_graph(raw: Raw, counts: Counts, options: ReadOptions, notes: list[str], card: Card) -> Graph:
    """The graph of several types of nodes and edges. Edges of a relation without times have those of their sources; a
    type without any has been there always. Nodes have times if those of the target type do. Times are in one unit.
    Raises InputError: names the relation with the defect."""
    offsets = tuple(np.cumsum([0, *counts.values()]).tolist())
    start, ends, of_edges = dict(zip(counts, offsets)), dict[RelationType, Any](), list[OfEdges]()
    for key, own in raw.edges.items():
        src, dst, w = checked_edges(key, own, (counts[key[0]], counts[key[2]]), options, notes, card)
        ends[key] = src.astype(np.int64) + start[key[0]], dst.astype(np.int64) + start[key[2]]
        of_edges.append(w)
    if raw.add_reverse:
        turned = reversed_relations(raw.name, tuple(ends))
        ends |= dict(zip(turned, [(dst, src) for src, dst in ends.values()]))
        of_edges *= 2
    node_times = {t: own.time for t, own in raw.nodes.items() if own.time is not None}
    weights, times, every = None, None, list(zip(ends.values(), of_edges))
    if any(w.weight is not None for w in of_edges):
        weights = [np.ones(len(src), np.float32) if w.weight is None else w.weight for (src, _), w in every]
    node_time, known = None, [w.time for w in of_edges if w.time is not None]
    if node_times or known:
        dtype = np.result_type(*node_times.values(), *known)
        node_time = np.full(offsets[-1], ALWAYS[dtype], dtype)
        for t, time in node_times.items():
            node_time[start[t] : start[t] + counts[t]] = time
        times = [node_time[src] if w.time is None else w.time.astype(dtype) for (src, _), w in every]
        note_borrowed([",".join(r) for r, w in zip(ends, of_edges) if w.time is None and r[0] in node_times], notes)
    types = GraphTypes(tuple(counts), offsets, tuple(ends))
    graph = graph_of_relations(ends, types, False, weights, [w.rows for w in of_edges], times)
    return replace(graph, node_time=node_time if raw.target in node_times else None)


def reversed_relations(name: str, relations: tuple[RelationType, ...]) -> list[RelationType]:
    """The relation ``rev_NAME`` of each, for a dataset called `name`. Raises InputError if one of them is there."""
    turned = [(d, REVERSE + r, s) for s, r, d in relations]
    if both := sorted(set(turned) & set(relations)):
        raise InputError(f"{name}: add_reverse would add {','.join(both[0])}, which is there; rename it")
    return turned


def note_of_types(types: GraphTypes) -> str:
    """Note on the types of a graph, whose first one is predicted."""
    target, *_ = types.node_types
    return (
        f"{counted(len(types.node_types), 'node type')}, of which '{target}' is predicted, and "
        f"{counted(types.num_relations, 'relation')}; nodes of '{target}' keep their ids."
    )


def joined_names(raw: Raw, counts: Counts) -> NodeNames | None:
    """Names of all nodes, if those of some type have others than their numbers."""
    given = {t: own.names for t, own in raw.nodes.items()}
    if all(given.get(t) is None for t in counts):
        return None
    names = [NodeNames.of_numbers(n) if (own := given.get(t)) is None else own for t, n in counts.items()]
    starts = starts_of(np.concatenate([np.diff(own.starts) for own in names]))
    return NodeNames(np.concatenate([own.text for own in names]), starts, noted_kind(own.integers for own in names))


def count_nodes(raw: Raw) -> dict[str | None, int]:
    """Nodes of each type, the target first."""
    counts = {} if raw.labels is None else {raw.target: len(raw.labels.values)}
    for t, own in raw.nodes.items():
        if own.count is not None:
            count = whole_number(f"num_nodes of '{t}'", own.count, 0)
            if (known := counts.setdefault(t, count)) != count:
                if t is None:
                    raise InputError(f"there are {count} nodes and {known} labels; expected one for each")
                raise InputError(f"there are {known} labels of '{t}', and num_nodes says {count}; give one for each")
        elif t not in counts and own.features is None:
            raise InputError(f"node type '{t}' has no features; expected num_nodes={{'{t}': ...}} for it")
        elif t not in counts:
            counts[t] = len(own.features)
        if t is not None and (not t or "," in t or not t.isprintable()):
            raise InputError(f"a node type is called {t!r}; expected a printable name without commas")
    return counts


def check_relations(relations: Sequence[object], counts: Counts) -> None:
    """Raise InputError unless these are names of relations between types of nodes."""
    if not relations:
        raise InputError("there are no relations; expected at least one, {(source type, name, type): edges}")
    for key in relations:
        if not isinstance(key, tuple) or len(key) != 3 or not all(isinstance(part, str) for part in key):
            raise InputError(f"a relation is called {key!r}; expected (source type, name, destination type)")
        if not key[1] or "," in key[1] or not key[1].isprintable():
            raise InputError(f"a relation is called {key[1]!r}; expected a printable name without commas")
        if end := next((end for end in (key[0], key[2]) if end not in counts), None):
            said = f"the relation {','.join(key)} has the node type '{end}', which is not there"
            raise InputError(f"{said}; {one_of(end, counts)}, or num_nodes={{'{end}': ...}}")
