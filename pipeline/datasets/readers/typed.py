"""Datasets with several types of nodes and edges, from arrays and from PyTorch Geometric's `HeteroData`."""

from collections.abc import Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ....storage.dataset import MATRIX_TASKS, SPLITS, Dataset
from ....storage.errors import InputError, nearest
from ....storage.features import MemoryFeatures
from ....storage.graph import Graph
from ....storage.plural import counted
from ....storage.typed.features import TypedFeatures
from ....storage.typed.graph_types import GraphTypes, RelationType
from ..cleaning.class_names import numbered_text
from ..cleaning.clean import names_of_classes
from ..cleaning.columns import clean_features
from ..cleaning.labels import clean_labels
from ..cleaning.options import DEFAULT_OPTIONS, ReadOptions
from ..cleaning.relations import graph_of_relations
from ..cleaning.splits import make_split

OF_NODES = (
    "nan_features", "normalize_features", "task", "ignored_labels", "nan_labels", "label_gaps", "overlapping_splits",
    "unlabelled_in_split", "edge_weights",
)  # fmt: skip
"""Options that a typed graph follows; the others change edges, or choose columns of tables."""


def from_relations(
    edges: Mapping[RelationType, Any],
    labels: npt.ArrayLike,
    *,
    target: str,
    num_nodes: Mapping[str, int] | None = None,
    features: Mapping[str, Any] | None = None,
    train: npt.ArrayLike | None = None,
    val: npt.ArrayLike | None = None,
    test: npt.ArrayLike | None = None,
    add_reverse: bool = False,
    name: str = "relations",
    options: ReadOptions = DEFAULT_OPTIONS,
    split: str | None = None,
    seed: int = 0,
) -> Dataset:
    """A dataset with several types of nodes and edges.

    Nodes of the target type keep their ids, 0 to n - 1; those of the other types follow, type by type. All edges are
    kept as they are.

    Args:
        edges: for each ``(source type, relation, destination type)`` two vectors, or integers [2, E]: ids of sources
            and of destinations, each within its type. Messages flow from sources to destinations.
        labels: of the nodes of the target type, see `from_scipy`.
        target: the node type that is predicted.
        num_nodes: number of nodes of a type, for types without features.
        features: [n, F] numbers of a node type; F may differ from type to type. None, or no entry: it has none.
        train: ids or a mask of nodes of the target type; if train, val and test are all None, there is no stored split.
        val: see `train`.
        test: see `train`.
        add_reverse: add the relation ``rev_NAME`` with all edges turned round, for each relation.
        name: name of the dataset.
        options: treatment of defects of features, labels and splits.
        split: see `open_dataset`.
        seed: seed of a random split.

    Raises:
        InputError: names the relation or node type with the defect.
    """
    given = [f.name for f in fields_of(options) if f.name not in OF_NODES and getattr(options, f.name) != f.default]
    if given:
        raise InputError(f"{name}: a typed graph is read as it is, without {', '.join(given)}; leave it out")
    notes: list[str] = []
    labels = np.asarray(labels)
    if labels.ndim == 0 or not len(labels):
        raise InputError(f"{name}: there are no labels; expected one for each node of type '{target}'")
    counts = _counts(target, len(labels), num_nodes or {}, features or {})
    types = tuple(counts)
    offsets = tuple(np.concatenate([[0], np.cumsum(list(counts.values()))]).tolist())
    found = _relations(edges, counts, offsets)
    if add_reverse:
        turned = {(d, f"rev_{r}", s): (dst, src) for (s, r, d), (src, dst) in found.items()}
        if both := sorted(set(turned) & set(found)):
            raise InputError(f"{name}: add_reverse would add {','.join(both[0])}, which is there; rename it")
        found |= turned
    graph = graph_of_relations(found, GraphTypes(types, offsets, tuple(found)))
    parts = tuple(MemoryFeatures(_features(t, (features or {}).get(t), n, options, notes)) for t, n in counts.items())
    class_names = None
    if labels.dtype.kind in "USO" and labels.size == len(labels):
        labels, class_names = numbered_text(labels)
    y, num_classes, task = clean_labels(labels, options, notes, named=class_names is not None)
    if task not in MATRIX_TASKS and options.label_gaps == "compact" and class_names is None:
        class_names = names_of_classes(labels, y, num_classes)
    stored = {part: np.asarray(ids) for part, ids in zip(SPLITS, (train, val, test)) if ids is not None}
    chosen = make_split(y, stored, split, seed, options, notes)
    full = np.full((offsets[-1], *y.shape[1:]), np.nan if task in MATRIX_TASKS else -1, y.dtype)
    full[: len(y)] = y
    notes.append(
        f"{counted(len(types), 'node type')}, of which '{target}' is predicted, and "
        f"{counted(len(found), 'relation')}; nodes of '{target}' keep their ids."
    )
    return Dataset(
        name, graph, TypedFeatures(parts, offsets), full, chosen, num_classes, task, tuple(notes), None, class_names
    ).check()


def _counts(target: str, labelled: int, num_nodes: Mapping[str, int], features: Mapping[str, Any]) -> dict[str, int]:
    """Nodes of each type, the target first."""
    counts = {target: labelled}
    for t, n in num_nodes.items():
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
            raise InputError(f"num_nodes of '{t}' is {n!r}; expected a whole number, at least 0")
        if counts.setdefault(str(t), int(n)) != n:
            raise InputError(f"there are {labelled} labels of '{t}', and num_nodes says {n}; expected one number")
    for t, x in features.items():
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
) -> dict[RelationType, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Global ids of each relation's sources and destinations."""
    if not edges:
        raise InputError("there are no relations; expected at least one, {(source type, name, type): edges}")
    start = dict(zip(counts, offsets))
    found: dict[RelationType, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}
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


def _features(
    node_type: str, given: Any, num_nodes: int, options: ReadOptions, notes: list[str]
) -> npt.NDArray[np.float32]:
    """float32 [n, F] of a node type; F is 0 if it has none."""
    if given is None:
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
        rows = clean_features(x, Graph(np.zeros(num_nodes + 1, np.int64), np.empty(0, np.int32)), options, own)
    except InputError as e:
        raise InputError(f"features of node type '{node_type}': {e}") from e
    notes.extend(f"Node type '{node_type}': {note[0].lower()}{note[1:]}" for note in own)
    return rows


def from_hetero(
    data: Any, *, target: str | None, name: str, options: ReadOptions, split: str | None, seed: int
) -> Dataset:
    """See `from_pyg`, of a `HeteroData`: every node type may have ``x``; the target has ``y`` and the masks."""
    labelled = [t for t in data.node_types if "y" in data[t]]
    if target is None and len(labelled) != 1:
        seen = "no node type has y" if not labelled else f"the node types {', '.join(labelled)} have y"
        raise InputError(f"{name}: {seen}; say which one is predicted: from_pyg(data, target=...)")
    chosen: str = labelled[0] if target is None else target
    if chosen not in data.node_types:
        raise InputError(
            f"{name}: there is no node type '{chosen}'; expected one of {', '.join(data.node_types)}"
            f"{nearest(chosen, list(data.node_types))}"
        )
    if chosen not in labelled:
        raise InputError(f"{name}: the node type '{chosen}' has no y; expected class numbers or targets")
    edges, left = {}, []
    for relation in data.edge_types:
        store, what = data[relation], ",".join(relation)
        if "edge_index" not in store:
            raise InputError(f"{name}: the relation {what} has no edge_index; expected [2, E] (an adj_t is not read)")
        if "edge_weight" in store and options.edge_weights == "use":
            raise InputError(
                f"{name}: the relation {what} has an edge_weight, which typed graphs do not hold; leave it out, or set "
                "edge_weights=ignore"
            )
        left += [f"edge_attr of {what}"] if "edge_attr" in store else []
        edges[relation] = host(store.edge_index)
    counts = {}
    for t in data.node_types:
        if (n := data[t].num_nodes) is None:
            raise InputError(f"{name}: the node type '{t}' has no num_nodes; set data['{t}'].num_nodes")
        counts[t] = int(n)
    y, store = data[chosen].y, data[chosen]
    if options.task is None and has_targets(y):
        options = replace(options, task="regression")
    masks: dict[str, Any] = {part: host(store[f"{part}_mask"]) for part in SPLITS if f"{part}_mask" in store}
    found = from_relations(
        edges,
        host(y),
        target=chosen,
        num_nodes=counts,
        features={t: host(data[t].x) for t in data.node_types if "x" in data[t]},
        **masks,
        name=name,
        options=options,
        split=split,
        seed=seed,
    )
    if left:
        return replace(found, notes=(*found.notes, f"{' and '.join(left)} was left out: typed graphs hold none."))
    return found


def host(tensor: Any) -> npt.NDArray[Any]:
    """A tensor as a dense array on the host."""
    tensor = tensor.detach().cpu()
    return (tensor if str(tensor.layout) == "torch.strided" else tensor.to_dense()).numpy()


def has_targets(y: Any) -> bool:
    """True if floating-point labels are one column of other values than 0, 1, -1 and NaN. Others follow the rule for
    all sources."""
    values = host(y)
    one_column = values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)
    return values.dtype.kind == "f" and one_column and not (np.isin(values, (0, 1, -1)) | np.isnan(values)).all()
