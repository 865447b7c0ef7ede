"""Cleaning of the arrays of a graph with several types of nodes and edges."""

from collections.abc import Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ....storage.errors import InputError, nearest, whole_number
from ....storage.graph import ALWAYS, Graph
from ....storage.node_names import NodeNames, noted_kind
from ....storage.plural import counted
from ....storage.times.moments import as_times, in_one_unit
from ....storage.typed.graph_types import GraphTypes, RelationType
from .columns import Card, clean_edge_features, clean_features
from .edges import IGNORED, as_weights, check_weights, note_borrowed
from .options import ReadOptions
from .raw import Counts, Raw, RawNodes, about, noted, type_text
from .relations import REVERSE, graph_of_relations

OF_NODES = (
    "nan_features", "indicators", "normalize_features", "task", "ignored_labels", "nan_labels", "label_gaps",
    "overlapping_splits", "unlabelled_in_split", "edge_weights", "target", "labels_of", "labelled_edges",
)  # fmt: skip
"""Options that a typed graph follows; the others change edges, or choose columns of tables."""
Ends = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def check_followed(name: str, options: ReadOptions, followed: tuple[str, ...] = OF_NODES) -> None:
    """Raise InputError for an option that a typed graph does not follow."""
    given = [f.name for f in fields_of(options) if f.name not in followed and getattr(options, f.name) != f.default]
    if given:
        raise InputError(f"{name}: a typed graph is read as it is, without {', '.join(given)}; leave it out")


def typed_graph(raw: Raw, counts: Counts, options: ReadOptions, notes: list[str], card: Card) -> Graph:
    """The graph of several types of nodes and edges.

    Args:
        raw: has the edges.
        counts: nodes of each type.
        options: treatment of weights, and of missing features.
        notes: get what is remarkable.
        card: gets a record of each column of features.

    Raises:
        InputError: names the relation with the defect.
    """
    offsets = tuple(np.cumsum([0, *counts.values()]).tolist())
    found = _relations(raw, counts, offsets)
    weights = _weights(found, raw, options, notes)
    forward: dict[RelationType, RelationType] = {}
    of_edges = _edge_features(found, raw, options, notes, card)
    if raw.add_reverse:
        turned = reversed_relations(raw.name, tuple(found))
        forward = dict(zip(turned, found))
        found |= {relation: (found[own][1], found[own][0]) for relation, own in forward.items()}
        weights, of_edges = None if weights is None else [*weights, *weights], [*of_edges, *of_edges]
    graph = graph_of_relations(found, GraphTypes(tuple(counts), offsets, tuple(found)), False, weights, of_edges)
    return _with_times(graph, found, forward, raw, counts, notes)


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


def _with_times(
    graph: Graph,
    found: Mapping[RelationType, Ends],
    forward: Mapping[RelationType, RelationType],
    raw: Raw,
    counts: Counts,
    notes: list[str],
) -> Graph:
    """The graph with times: edges of a relation without any have those of their sources; a type without any has been
    there always. Nodes have times if those of the target type do.

    Args:
        graph: of these relations.
        found: ends of each relation's edges.
        forward: the relation that each reverse was made of.
        raw: has the times.
        counts: nodes of each type.
        notes: gets what is remarkable.
    """
    times = {t: own.time for t, own in raw.nodes.items() if own.time is not None}
    times_of_edges = {key: own.time for key, own in raw.edges.items() if own.time is not None}
    if not times and not times_of_edges:
        return graph
    aligned, unit = in_one_unit((*times.values(), *times_of_edges.values()))
    node_times = dict(zip(times, aligned))
    edge_times = dict(zip(times_of_edges, aligned[len(node_times) :]))
    of_nodes = {t: as_times(x, f"node_time of '{t}'", counts[t]) for t, x in node_times.items()}
    of_edges = {}
    for relation, (src, _) in found.items():
        own = edge_times.get(forward.get(relation, relation))
        if own is not None:
            of_edges[relation] = as_times(own, f"edge_time of {','.join(relation)}", len(src))
    dtype = np.result_type(*of_nodes.values(), *of_edges.values())
    starts = np.cumsum([0, *counts.values()])
    node_time = np.full(starts[-1], ALWAYS[dtype], dtype)
    for start, t in zip(starts, counts):
        if t in of_nodes:
            node_time[start : start + counts[t]] = of_nodes[t]
    lists = [node_time[src] if r not in of_edges else of_edges[r].astype(dtype) for r, (src, _) in found.items()]
    note_borrowed([",".join(r) for r in found if r not in of_edges and r[0] in of_nodes], notes)
    assert graph.edge_type is not None
    # Within a relation edges are sorted as in the graph: by destination, then source.
    edge_time = np.empty(graph.num_edges, dtype)
    for number, ((src, dst), times) in enumerate(zip(found.values(), lists)):
        edge_time[graph.edge_type == number] = times[np.lexsort((src, dst))]
    node_time = node_time if raw.target in of_nodes else None
    return replace(graph, edge_time=edge_time, node_time=node_time, time_unit=unit)


def joined_names(raw: Raw, counts: Counts) -> NodeNames | None:
    """Names of all nodes, if those of some type have others than their numbers."""
    given = {t: own.names for t, own in raw.nodes.items()}
    if all(given.get(t) is None for t in counts):
        return None
    names = [NodeNames.of_numbers(n) if (own := given.get(t)) is None else own for t, n in counts.items()]
    starts = [np.zeros(1, np.int64)]
    for own in names:
        starts.append(own.starts[1:] + starts[-1][-1])
    kind = noted_kind(own.integers for own in names)
    return NodeNames(np.concatenate([own.text for own in names]), np.concatenate(starts), kind)


def count_nodes(raw: Raw) -> dict[str | None, int]:
    """Nodes of each type, the target first."""
    counts = {} if raw.labels is None else {raw.target: len(raw.labels.values)}
    for t, own in raw.nodes.items():
        if own.count is not None:
            count = whole_number(f"num_nodes of '{t}'", own.count, 0)
            if (known := counts.setdefault(t, count)) != count:
                if t is None:
                    raise InputError(f"there are {count} nodes and {known} labels; expected one for each")
                raise InputError(
                    f"there are {known} labels of '{t}', and num_nodes says {count}; expected one for each"
                )
        elif t not in counts and own.features is None:
            raise InputError(f"node type '{t}' has no features; expected num_nodes={{'{t}': ...}} for it")
        elif t not in counts:
            counts[t] = len(own.features)
        if t is not None and (not t or "," in t or not t.isprintable()):
            raise InputError(f"a node type is called {t!r}; expected a printable name without commas")
    return counts


def _relations(raw: Raw, counts: Counts, offsets: tuple[int, ...]) -> dict[RelationType, Ends]:
    """Global ids of each relation's sources and destinations."""
    if not raw.edges:
        raise InputError("there are no relations; expected at least one, {(source type, name, type): edges}")
    start = dict(zip(counts, offsets))
    found: dict[RelationType, Ends] = {}
    for key, own in raw.edges.items():
        if not isinstance(key, tuple) or len(key) != 3 or not all(isinstance(part, str) for part in key):
            raise InputError(f"a relation is called {key!r}; expected (source type, name, destination type)")
        what = ",".join(key)
        if not key[1] or "," in key[1] or not key[1].isprintable():
            raise InputError(f"a relation is called {key[1]!r}; expected a printable name without commas")
        for end in (key[0], key[2]):
            if end not in counts:
                raise InputError(
                    f"the relation {what} has the node type '{end}', which is not there; expected one of "
                    f"{', '.join(counts)}{nearest(end, list(counts))}, or num_nodes={{'{end}': ...}}"
                )
        ends = [np.asarray(side) for side in own.ends]
        if len(ends) != 2 or any(e.ndim != 1 for e in ends) or len(ends[0]) != len(ends[1]):
            raise InputError(
                f"edges of {what} are {[list(e.shape) for e in ends][:3]}; expected two vectors of a length"
            )
        for side, (ids, t) in enumerate(zip(ends, (key[0], key[2]))):
            if len(ids) and ids.dtype.kind not in "iu":
                raise InputError(f"edges of {what} hold {ids.dtype}; expected integer ids")
            if len(ids) and (ids.min() < 0 or ids.max() >= counts[t]):
                raise InputError(
                    f"{'destinations' if side else 'sources'} of {what} lie in [{ids.min()}, {ids.max()}]; there are "
                    f"{counts[t]} nodes of '{t}'"
                )
        src, dst = (ids.astype(np.int64) + start[t] for ids, t in zip(ends, (key[0], key[2])))
        found[key] = src, dst
    return found


def _weights(
    found: Mapping[RelationType, Ends], raw: Raw, options: ReadOptions, notes: list[str]
) -> list[npt.NDArray[np.float32]] | None:
    """Weights of each relation's edges, 1 where the relation has none; None if no relation has weights."""
    given = {key: own.weight for key, own in raw.edges.items() if own.weight is not None}
    if not given:
        return None
    if options.edge_weights == "ignore":
        notes.append(IGNORED)
        return None
    weights = []
    for key, (src, _) in found.items():
        what, own = ",".join(key), np.asarray(given.get(key, np.ones(len(src), np.float32)))
        if own.shape != src.shape:
            raise InputError(
                f"weights of {what} have shape {list(own.shape)}; expected [{len(src)}], one for each edge"
            )
        with about(type_text(key)):
            w, faults = as_weights(own)
            check_weights(faults)
        weights.append(w)
    note_unweighted([key for key in found if key not in given], notes)
    return weights


def note_unweighted(bare: Sequence[RelationType], notes: list[str]) -> None:
    """Note relations without weights of a graph with some."""
    if bare:
        notes.append(f"Edges of {', '.join(map(','.join, bare))} have no weights; each counts 1.")


def _edge_features(
    found: Mapping[RelationType, Ends], raw: Raw, options: ReadOptions, notes: list[str], card: Card
) -> list[npt.NDArray[np.float32] | None]:
    """float32 [E, D] of each relation; None where edges have no features."""
    rows: list[npt.NDArray[np.float32] | None] = []
    for key, (src, _) in found.items():
        x, of = raw.edges[key].features, ",".join(key)
        seen: list[str] = []
        try:
            with about(type_text(key)):
                columns = raw.edges[key].columns
                rows.append(
                    None if x is None else clean_edge_features(x, len(src), options, seen, columns, card, of=of)
                )
        except InputError:
            raise
        except ValueError:
            raise InputError(f"features of edges of {of} have rows of different widths; expected one") from None
        notes += noted(key, seen)
    return rows


def features_of_type(
    node_type: str | None, raw: Raw, num_nodes: int, options: ReadOptions, notes: list[str], card: Card
) -> npt.NDArray[np.float32]:
    """float32 [n, F] of a node type; F is 0 if it has none. Raises InputError: they have a defect."""
    given = raw.nodes.get(node_type, RawNodes())
    what = f"features of {type_text(node_type)}"
    if given.features is None:
        return np.zeros((num_nodes, 0), np.float32)
    try:
        x = given.features if hasattr(given.features, "todense") else np.asarray(given.features)
    except ValueError:
        raise InputError(f"{what} have rows of different widths; expected one") from None
    if x.ndim == 2 and x.shape[1] == 0 and len(x) == num_nodes:
        return np.zeros((num_nodes, 0), np.float32)
    if x.ndim != 2 or x.shape[0] != num_nodes:
        raise InputError(f"{what} have shape {list(x.shape)}; expected [{num_nodes}, F], a row for each of its nodes")
    seen: list[str] = []
    with about(what):
        graph = Graph(np.zeros(num_nodes + 1, np.int64), np.empty(0, np.int32))
        rows = clean_features(x, graph, options, seen, given.columns, card, of=str(node_type))
    notes += noted(node_type, seen)
    return rows
