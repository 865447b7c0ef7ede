"""Cleaning of a typed graph's arrays into a checked `Dataset`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from typing import Any

import numpy as np
import numpy.typing as npt

from ....storage.dataset import MATRIX_TASKS, SPLITS, Dataset, Split
from ....storage.errors import InputError, nearest, whole_number
from ....storage.features import ArrayFeatures
from ....storage.graph import ALWAYS, Graph
from ....storage.node_names import NodeNames, noted_kind
from ....storage.plural import counted
from ....storage.stored.data_card import data_card
from ....storage.times.moments import as_times, in_one_unit
from ....storage.typed.features import TypedFeatures
from ....storage.typed.graph_types import GraphTypes, RelationType
from .clean import card_facts
from .columns import Card, clean_edge_features, clean_features
from .edges import IGNORED, as_weights, check_weights
from .labels import GivenLabels, settled_labels
from .options import ReadOptions
from .raw import AnyArray
from .relations import REVERSE, graph_of_relations
from .splits import make_split

OF_NODES = (
    "nan_features", "normalize_features", "task", "ignored_labels", "nan_labels", "label_gaps", "overlapping_splits",
    "unlabelled_in_split", "edge_weights", "target", "labels_of", "labelled_edges",
)  # fmt: skip
"""Options that a typed graph follows; the others change edges, or choose columns of tables."""
Ends = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class TypedRaw:
    """One graph with several types of nodes and edges as a source stores it. Ids are those within a type."""

    edges: Mapping[RelationType, Any]
    """Sources and destinations of each relation."""
    labels: AnyArray | None
    """Labels of the nodes of the target type, as in `Raw`; None: there are none, nor a target type."""
    target: str | None
    num_nodes: Mapping[str, int]
    """Numbers of nodes of the types without features."""
    features: Mapping[str, Any]
    """[n, F] of a type, or None."""
    weights: Mapping[RelationType, AnyArray | None] = field(default_factory=dict)
    """[E] of each relation that has weights."""
    split: Mapping[str, AnyArray] = field(default_factory=dict)
    """'train', 'val', 'test' to ids of the target type, or masks."""
    notes: tuple[str, ...] = ()
    node_names: Mapping[str, NodeNames | None] = field(default_factory=dict)
    """Names of a type's nodes; None: they are called 0 to n - 1."""
    class_names: tuple[str, ...] | None = None
    label_names: tuple[str, ...] | None = None
    nulls: int = 0
    """See `Raw.nulls`."""
    stripped: int = 0
    """Labels that had blanks around them."""
    edge_times: Mapping[RelationType, Any] = field(default_factory=dict)
    """[E], times of the edges of each relation that has any."""
    node_times: Mapping[str, Any] = field(default_factory=dict)
    """[n], times of the nodes of each type that has any."""
    edge_features: Mapping[RelationType, Any] = field(default_factory=dict)
    """[E, D] or [E] of each relation whose edges have features, or None."""
    feature_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """See `Raw.feature_columns`, of each node type."""
    edge_feature_columns: Mapping[RelationType, tuple[str, ...]] = field(default_factory=dict)
    read: Mapping[str, Any] = field(default_factory=dict)
    """See `Raw.read`."""


def check_followed(name: str, options: ReadOptions, followed: tuple[str, ...] = OF_NODES) -> None:
    """Raise InputError for an option that a typed graph does not follow."""
    given = [f.name for f in fields_of(options) if f.name not in followed and getattr(options, f.name) != f.default]
    if given:
        raise InputError(f"{name}: a typed graph is read as it is, without {', '.join(given)}; leave it out")


def clean_typed(
    name: str, raw: TypedRaw, options: ReadOptions, split: str | None, seed: int, add_reverse: bool = False
) -> Dataset:
    """Check `raw`; the target's nodes come first, those of the other types follow. All edges are kept as they are.

    Args:
        name: of the dataset.
        raw: the arrays of a reader.
        options: treatment of defects of features, labels and splits.
        split: see `make_split`.
        seed: of a random split.
        add_reverse: add the relation ``rev_NAME`` with all edges reversed, for each relation.

    Raises:
        InputError: names the relation or node type with the defect.
    """
    notes, card = list(raw.notes), list[dict[str, Any]]()
    if raw.labels is not None and not np.size(raw.labels):
        raise InputError(f"{name}: there are no labels; expected one for each node of type '{raw.target}'")
    counts = _counts(raw)
    types = tuple(counts)
    offsets = tuple(np.concatenate([[0], np.cumsum(list(counts.values()))]).tolist())
    found = _relations(raw.edges, counts, offsets)
    weights = _weights(found, raw.weights, options, notes)
    forward: dict[RelationType, RelationType] = {}
    of_edges = _edge_features(found, raw, options, notes, card)
    if add_reverse:
        turned = reversed_relations(name, tuple(found))
        forward = dict(zip(turned, found))
        found |= {relation: (found[own][1], found[own][0]) for relation, own in forward.items()}
        weights, of_edges = None if weights is None else [*weights, *weights], [*of_edges, *of_edges]
    kinds = GraphTypes(types, offsets, tuple(found))
    graph = graph_of_relations(found, kinds, weights=weights, features=of_edges)
    graph = _with_times(graph, found, forward, raw, counts, notes)
    parts = tuple(ArrayFeatures(_features(t, raw, n, options, notes, card)) for t, n in counts.items())
    names, features = _names(counts, raw.node_names), TypedFeatures(parts, offsets)
    full_card = data_card(card, **card_facts(split, seed, bool(raw.split)), read=dict(raw.read))
    if raw.labels is None or options.task == "link":  # pairs take their place
        nobody = np.full(offsets[-1], -1), Split(*(np.empty(0, np.int64) for _ in SPLITS))
        told: dict[str, Any] = {"notes": tuple(notes), "node_names": names, "read_as": options.given}
        return Dataset(name, graph, features, *nobody, 0, **told, card=full_card).check()
    given = GivenLabels(np.asarray(raw.labels), raw.class_names, raw.label_names, raw.nulls, raw.stripped)
    y, num_classes, task, class_names = settled_labels(given, options, notes)
    times = None if graph.node_time is None else graph.node_time[: len(y)]
    chosen = make_split(y, raw.split, split, seed, options, notes, times=times, time_unit=graph.time_unit)
    full = np.full((offsets[-1], *y.shape[1:]), np.nan if task in MATRIX_TASKS else -1, y.dtype)
    full[: len(y)] = y
    notes.append(note_of_types(kinds))
    told = {"notes": tuple(notes), "node_names": names, "class_names": class_names, "read_as": options.given}
    return Dataset(name, graph, features, full, chosen, num_classes, task=task, **told, card=full_card).check()


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
    raw: TypedRaw,
    counts: Mapping[str, int],
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
    for what, given, known in (("edges", raw.edge_times, found), ("nodes", raw.node_times, counts)):
        if key := next((k for k in given if k not in known), None):
            name = key if isinstance(key, str) else ",".join(map(str, key))
            raise InputError(f"there are times of {what} of {name}, which is not there; leave them out")
    if not raw.edge_times and not raw.node_times:
        return graph
    aligned, unit = in_one_unit((*raw.node_times.values(), *raw.edge_times.values()))
    node_times = dict(zip(raw.node_times, aligned))
    edge_times = dict(zip(raw.edge_times, aligned[len(node_times) :]))
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
    if of_nodes and (bare := [",".join(r) for r in found if r not in of_edges and r[0] in of_nodes]):
        notes.append(f"Edges of {', '.join(bare)} have no times of their own, and have those of their sources.")
    assert graph.edge_type is not None
    # Within a relation edges are sorted as in the graph: by destination, then source.
    edge_time = np.empty(graph.num_edges, dtype)
    for number, ((src, dst), times) in enumerate(zip(found.values(), lists)):
        edge_time[graph.edge_type == number] = times[np.lexsort((src, dst))]
    node_time = node_time if raw.target in of_nodes else None
    return replace(graph, edge_time=edge_time, node_time=node_time, time_unit=unit)


def _names(counts: Mapping[str, int], given: Mapping[str, NodeNames | None]) -> NodeNames | None:
    """Names of all nodes, if those of some type have others than their numbers."""
    if all(given.get(t) is None for t in counts):
        return None
    names = [NodeNames.of_numbers(n) if (own := given.get(t)) is None else own for t, n in counts.items()]
    starts = [np.zeros(1, np.int64)]
    for own in names:
        starts.append(own.starts[1:] + starts[-1][-1])
    kind = noted_kind(own.integers for own in names)
    return NodeNames(np.concatenate([own.text for own in names]), np.concatenate(starts), kind)


def _counts(raw: TypedRaw) -> dict[str, int]:
    """Nodes of each type, the target first."""
    counts = {} if raw.target is None or raw.labels is None else {raw.target: len(raw.labels)}
    for t, n in raw.num_nodes.items():
        if (known := counts.setdefault(str(t), whole_number(f"num_nodes of '{t}'", n, 0))) != n:
            raise InputError(f"there are {known} labels of '{t}', and num_nodes says {n}; expected one number")
    for t, x in raw.features.items():
        if x is None and t not in counts:
            raise InputError(f"node type '{t}' has no features; expected num_nodes={{'{t}': ...}} for it")
        if x is not None:
            counts.setdefault(str(t), len(x))
    for t in counts:
        if not t or "," in t or not t.isprintable():
            raise InputError(f"a node type is called {t!r}; expected a printable name without commas")
    return counts


def _relations(
    edges: Mapping[RelationType, Any], counts: Mapping[str, int], offsets: tuple[int, ...]
) -> dict[RelationType, Ends]:
    """Global ids of each relation's sources and destinations."""
    if not edges:
        raise InputError("there are no relations; expected at least one, {(source type, name, type): edges}")
    start = dict(zip(counts, offsets))
    found: dict[RelationType, Ends] = {}
    for key, pair in edges.items():
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
        ends = [np.asarray(side) for side in pair]
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
    found: Mapping[RelationType, Ends],
    given: Mapping[RelationType, AnyArray | None],
    options: ReadOptions,
    notes: list[str],
) -> list[npt.NDArray[np.float32]] | None:
    """Weights of each relation's edges, 1 where the relation has none; None if no relation has weights."""
    for key in given:
        if key not in found:
            raise InputError(f"there are weights of {','.join(map(str, key))}, which is no relation; leave them out")
    given = {key: w for key, w in given.items() if w is not None}
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
        try:
            w, faults = as_weights(own)
            check_weights(faults)
        except InputError as e:
            raise InputError(f"relation {what}: {e}") from e
        weights.append(w)
    note_unweighted([key for key in found if key not in given], notes)
    return weights


def note_unweighted(bare: Sequence[RelationType], notes: list[str]) -> None:
    """Note relations without weights of a graph with some."""
    if bare:
        notes.append(f"Edges of {', '.join(map(','.join, bare))} have no weights; each counts 1.")


def _edge_features(
    found: Mapping[RelationType, Ends], raw: "TypedRaw", options: ReadOptions, notes: list[str], card: Card
) -> list[npt.NDArray[np.float32] | None]:
    """float32 [E, D] of each relation; None where edges have no features."""
    for key in (given := raw.edge_features):
        if key not in found:
            raise InputError(
                f"there are features of edges of {','.join(map(str, key))}, which is no relation; leave them out"
            )
    rows: list[npt.NDArray[np.float32] | None] = []
    for key, (src, _) in found.items():
        x = given.get(key)
        try:
            own: list[str] = []
            columns = raw.edge_feature_columns.get(key, ())
            rows.append(
                None if x is None else clean_edge_features(x, len(src), options, own, columns, card, of=",".join(key))
            )
            notes += [f"Relation {','.join(key)}: {note}" for note in own]
        except InputError as e:
            raise InputError(f"relation {','.join(key)}: {e}") from e
        except ValueError:
            what = f"features of edges of {','.join(key)}"
            raise InputError(f"{what} have rows of different widths; expected one") from None
    return rows


def _features(
    node_type: str, raw: TypedRaw, num_nodes: int, options: ReadOptions, notes: list[str], card: Card
) -> npt.NDArray[np.float32]:
    """float32 [n, F] of a node type; F is 0 if it has none."""
    if (given := raw.features.get(node_type)) is None:
        return np.zeros((num_nodes, 0), np.float32)
    try:
        x = given if hasattr(given, "todense") else np.asarray(given)
    except ValueError:
        raise InputError(f"features of node type '{node_type}' have rows of different widths; expected one") from None
    if x.ndim == 2 and x.shape[1] == 0 and len(x) == num_nodes:
        return np.zeros((num_nodes, 0), np.float32)
    if x.ndim != 2 or x.shape[0] != num_nodes:
        raise InputError(
            f"features of node type '{node_type}' have shape {list(x.shape)}; expected [{num_nodes}, F], a row for "
            "each of its nodes"
        )
    own: list[str] = []
    try:
        graph, columns = Graph(np.zeros(num_nodes + 1, np.int64), np.empty(0, np.int32)), raw.feature_columns
        rows = clean_features(x, graph, options, own, columns.get(node_type, ()), card, of=node_type)
    except InputError as e:
        raise InputError(f"features of node type '{node_type}': {e}") from e
    notes += noted(node_type, own)
    return rows


def noted(node_type: str, notes: Sequence[str]) -> list[str]:
    """Notes on one node type, with its name."""
    return [f"Node type '{node_type}': {note[0].lower()}{note[1:]}" for note in notes]
