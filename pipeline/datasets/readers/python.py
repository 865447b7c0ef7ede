"""Datasets from objects of SciPy and NetworkX. Only SciPy is imported here."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ....storage.dataset import SPLITS, Dataset
from ....storage.errors import InputError
from ....storage.node_names import NodeNames
from ....storage.optional import when_present
from ..cleaning.class_names import numbered
from ..cleaning.clean import clean
from ..cleaning.options import DEFAULT_OPTIONS, ReadOptions
from ..cleaning.raw import AnyArray, GivenLabels, Hint, Raw, RawEdges, RawNodes
from ..schema import words
from ..schema.columns import listed
from .foreign.npz_layouts import ends_of
from .typed import host


def from_scipy(
    adjacency: Any,
    features: Any,
    labels: npt.ArrayLike,
    *,
    train: npt.ArrayLike | None = None,
    val: npt.ArrayLike | None = None,
    test: npt.ArrayLike | None = None,
    node_names: Sequence[str] | None = None,
    name: str = "scipy",
    options: ReadOptions = DEFAULT_OPTIONS,
    split: str | None = None,
    seed: int = 0,
) -> Dataset:
    """A dataset from a SciPy sparse adjacency.

    Args:
        adjacency: [V, V]; A[i, j] != 0 is an edge i -> j. Values other than 1 become edge weights. Entries that a COO
            matrix repeats are duplicate edges.
        features: [V, F], dense or SciPy sparse, or None.
        labels: [V] class numbers with -1 for unlabelled, or text with "" or None for unlabelled; [V, C] of 0 and 1; or
            [V] or [V, C] floating-point targets of a regression, with NaN where not known.
        train: node ids, names or a boolean mask [V]; if train, val and test are all None, there is no stored split.
        val: see `train`.
        test: see `train`.
        node_names: [V] distinct names of the nodes, kept for predictions.
        name: name of the dataset.
        options: treatment of each defect.
        split: see `open_dataset`.
        seed: seed of a random split.

    Raises:
        InputError: see `clean`.
    """
    if not sp.issparse(adjacency):
        raise InputError(f"adjacency is {type(adjacency).__name__}; expected a SciPy sparse matrix [V, V]")
    options.check_no_tables("a SciPy matrix", ())
    y = host(labels)
    count = len(np.atleast_1d(y))
    if tuple(adjacency.shape) != (count, count):
        raise InputError(
            f"adjacency has shape {list(adjacency.shape)} and there are {count} labels; expected [V, V] and V"
        )
    found = ends_of(adjacency, "adjacency")
    edges = RawEdges(found["edge_index"], found.get("edge_weight"))
    names = when_present(lambda names: distinct_names(names, count), node_names)
    nodes = RawNodes(features if features is None or sp.issparse(features) else host(features), names=names)
    stored = {part: host(ids) for part, ids in zip(SPLITS, (train, val, test)) if ids is not None}
    return clean(Raw(name, {None: edges}, GivenLabels(y), {None: nodes}, split=stored), options, split, seed)


def distinct_names(names: Sequence[Any], num_nodes: int) -> NodeNames:
    """Names of nodes. Raises InputError unless there is one for each, and no two are the same text."""
    texts = [str(n) for n in names]
    if len(texts) != num_nodes:
        raise InputError(f"there are {len(texts)} node names for {num_nodes} nodes; expected one for each")
    if len(set(texts)) < num_nodes:
        again = next(t for t, count in Counter(texts).items() if count > 1)
        raise InputError(
            f"two nodes are called '{again}' (a number and a text of the same letters count as one name); rename one "
            "of them"
        )
    return NodeNames.from_values(names)


def from_networkx(
    graph: Any,
    *,
    label: str = "y",
    features: str = "x",
    weight: str = "weight",
    split_attribute: str = "split",
    train: Iterable[Any] | None = None,
    val: Iterable[Any] | None = None,
    test: Iterable[Any] | None = None,
    name: str = "networkx",
    options: ReadOptions = DEFAULT_OPTIONS,
    split: str | None = None,
    seed: int = 0,
) -> Dataset:
    """A dataset from a NetworkX graph.

    Nodes are numbered in their order in the graph, and keep their names as `Dataset.node_names`; nodes that are the
    numbers 0 to V-1 keep those. Without `options.direction`, a DiGraph is read as directed (messages flow u -> v) and a
    Graph has both directions.

    Args:
        graph: Graph, DiGraph, MultiGraph or MultiDiGraph.
        label: node attribute with the class, a number or text, a vector of 0 and 1, or a target; nodes without it are
            unlabelled.
        features: node attribute with F numbers; on every node or on none. "" reads none.
        weight: edge attribute; on every edge or on none. "" reads none.
        split_attribute: node attribute with "train", "val" or "test". Other attributes that look like sets
            are refused, unless there is a split or one is asked for.
        train: nodes of the graph, in place of the attribute.
        val: see `train`.
        test: see `train`.
        name: name of the dataset.
        options: treatment of each defect.
        split: see `open_dataset`.
        seed: seed of a random split.

    Raises:
        InputError: an attribute is missing or ragged; see also `clean`.
    """
    if not hasattr(graph, "nodes"):
        raise InputError(f"graph is a {type(graph).__name__}; expected a NetworkX graph")
    options.check_no_tables("a NetworkX graph", ())
    for value in (label, features, weight, split_attribute):
        if not isinstance(value, Hashable):
            raise InputError(f"{value!r} is given as an attribute; expected the name of one, which may hold a vector")
    nodes, notes, names = list(graph.nodes), (), None
    if set(nodes) == set(range(len(nodes))):
        nodes = list(range(len(nodes)))
    else:
        notes, names = ("Nodes were numbered in their order in the graph.",), distinct_names(nodes, len(nodes))
    number = {node: i for i, node in enumerate(nodes)}
    edges = list(graph.edges(data=weight or ""))
    src = np.array([number[u] for u, _, _ in edges], np.int64)
    dst = np.array([number[v] for _, v, _ in edges], np.int64)
    weights = _on_all([w for _, _, w in edges], "edge", weight)
    if not graph.is_directed():
        back = src != dst
        src, dst = np.concatenate([src, dst[back]]), np.concatenate([dst, src[back]])
        weights = when_present(lambda w: np.concatenate([w, w[back]]), weights)
    parts = [graph.nodes[n].get(split_attribute) for n in nodes]
    named = np.array(["" if p is None else words.set_of(str(p)) or str(p) for p in parts])
    if strange := sorted({*named} - {*SPLITS, ""}):
        raise InputError(f"node attribute '{split_attribute}' holds '{strange[0]}'; expected train, val or test")
    stored = {part: named == part for part in SPLITS} if any(parts) else {}
    if any(given is not None for given in (train, val, test)):
        stored = {part: _numbers_of(part, given or (), number) for part, given in zip(SPLITS, (train, val, test))}
        if names is not None:
            stored = {part: np.array(names.take(ids), object) for part, ids in stored.items()}
    attributes = {str(a) for n in nodes for a in graph.nodes[n]}
    sets = sorted(a for a in attributes if words.mask_of(a) or words.is_split(a))
    every = attributes.union(*(own for *_, own in graph.edges(data=True)))
    if unread := sorted(str(a) for a in every - {label, features, split_attribute, weight}):
        notes = (*notes, f"Attributes that were not read: {listed(unread)}.")
    if (sets or split_attribute != "split") and not stored and split is None and options.task != "link":
        but = f", but {', '.join(sets)} look like one" if sets else ""
        said = f"no node has a set in '{split_attribute}'{but}; give train=, val= and test=, or draw a split"
        raise InputError(f"{said} by split=fraction:0.6,0.2")
    if (label, features) == ("y", "x") and options.task is None:
        _check_no_layout([graph.nodes[n] for n in nodes])
    unlabelled = GivenLabels(np.zeros(len(nodes), np.int64))
    given = unlabelled if options.task == "link" else _node_labels(graph, nodes, label)
    x = _on_all([graph.nodes[n].get(features) for n in nodes], "node", features)
    x = x[:, None] if x is not None and x.ndim == 1 else x
    ends, rows = {None: RawEdges((src, dst), weights)}, RawNodes(x, names=names)
    hint = Hint("directed", "the NetworkX graph is directed") if graph.is_directed() else None
    return clean(Raw(name, ends, given, {None: rows}, split=stored, hint=hint, notes=notes), options, split, seed)


def _numbers_of(part: str, nodes: Iterable[Any], number: dict[Any, int]) -> AnyArray:
    given = list(nodes)
    if absent := [n for n in given if n not in number]:
        raise InputError(
            f"{len(absent)} nodes of the {part} split (first: {absent[0]!r}) are not in the graph; correct the split"
        )
    return np.array([number[n] for n in given], np.int64)


def _check_no_layout(attributes: Sequence[Any]) -> None:
    """Raise InputError if the attributes x and y look like the positions of a drawing: one number each, and y is no
    class."""
    pairs = [(a.get("x"), a.get("y")) for a in attributes]
    positions = [p for p in pairs if all(isinstance(v, float | np.floating) for v in p)]
    if positions and len(positions) == sum(y is not None for _, y in pairs) and any(y % 1 for _, y in positions):
        raise InputError(
            "the node attributes x and y are one number each and look like the positions of a drawing; name the "
            "attributes with label=... and features=..., or set task=regression to predict y"
        )


def _node_labels(graph: Any, nodes: list[Any], attribute: str) -> GivenLabels:
    """Class numbers, targets or vectors; NaN for nodes without the attribute."""
    values = [graph.nodes[n].get(attribute) for n in nodes]
    given = [v for v in values if v is not None]
    if nodes and not given:
        raise InputError(f"no node has the attribute '{attribute}'; name the one with the class by label=...")
    if given and np.ndim(given[0]) > 0 and len(given) < len(values):
        raise InputError(
            f"{len(values) - len(given)} nodes have no attribute '{attribute}'; multi-label vectors are needed on "
            "every node"
        )
    if any(isinstance(v, str) for v in given):
        if other := next((type(v).__name__ for v in given if not isinstance(v, str)), None):
            raise InputError(
                f"node attribute '{attribute}' is text on some nodes and {other} on others; expected one of them on all"
            )
        found = numbered(values)
        return GivenLabels(found.labels, found.class_names, stripped=found.stripped)
    filled = [math.nan if v is None else v for v in values]
    return GivenLabels(_rectangular(filled, f"node attribute '{attribute}'"), nulls=len(values) - len(given))


def _on_all(values: list[Any], of: str, attribute: str) -> AnyArray | None:
    """An attribute of all nodes or edges; None if none has it."""
    absent = sum(v is None for v in values)
    if absent == len(values):
        if absent and attribute not in ("x", "weight", "", None):
            raise InputError(f"no {of} has the attribute '{attribute}'; name one that they have, or leave it out")
        return None
    if absent:
        raise InputError(f"{absent} of {len(values)} {of}s have no attribute '{attribute}'; give it to all or none")
    return _rectangular(values, f"{of} attribute '{attribute}'")


def _rectangular(values: list[Any], what: str) -> AnyArray:
    try:
        return np.asarray([np.asarray(v) for v in values])
    except ValueError as e:
        raise InputError(f"{what} holds vectors of different lengths ({e}); expected one length") from e
