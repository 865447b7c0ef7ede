"""Datasets with several types of nodes and edges, from arrays and from PyTorch Geometric's `HeteroData`."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ....storage.dataset import SPLITS, Dataset
from ....storage.errors import InputError, nearest
from ....storage.plural import are
from ....storage.typed.graph_types import RelationType
from ..cleaning.options import DEFAULT_OPTIONS, ReadOptions
from ..cleaning.splits import as_flags
from ..cleaning.typed import TypedRaw, check_followed, clean_typed


def from_relations(
    edges: Mapping[RelationType, Any],
    labels: npt.ArrayLike | None = None,
    *,
    target: str | None = None,
    num_nodes: Mapping[str, int] | None = None,
    features: Mapping[str, Any] | None = None,
    edge_weights: Mapping[RelationType, Any] | None = None,
    edge_times: Mapping[RelationType, Any] | None = None,
    node_times: Mapping[str, Any] | None = None,
    edge_features: Mapping[RelationType, Any] | None = None,
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
        labels: of the nodes of the target type, see `from_scipy`. None: there are none, as for `link_dataset`; types
            are then in the order of `num_nodes` and `features`.
        target: the node type that is predicted, of labels.
        num_nodes: number of nodes of a type, for types without features.
        features: [n, F] numbers of a node type; F may differ from type to type. None, or no entry: it has none.
        edge_weights: [E] of a relation, finite and not negative; edges of other relations then count 1.
        edge_times: [E] numbers or dates of a relation. Edges of others have the times of their sources.
        node_times: [n] of a node type, likewise. Nodes and edges without times have been there always.
        edge_features: [E, D] finite numbers of a relation, or [E]; D may differ from relation to relation. None, or no
            entry: its edges have none.
        train: ids or a mask of nodes of the target type; if train, val and test are all None, there is no stored split.
        val: see `train`.
        test: see `train`.
        add_reverse: add the relation ``rev_NAME`` with all edges reversed, for each relation.
        name: name of the dataset.
        options: treatment of defects of features, labels and splits.
        split: of the labelled nodes, see `open_dataset`.
        seed: seed of a random split.

    Raises:
        InputError: names the relation or node type with the defect.
    """
    check_followed(name, options)
    if options.target not in (None, target):
        raise InputError(f"{name}: target is '{target}' and the option target '{options.target}'; expected one of them")
    stored = {part: host(ids) for part, ids in zip(SPLITS, (train, val, test)) if ids is not None}
    if (labels is None) != (target is None) or (labels is None and (stored or split is not None)):
        raise InputError(f"{name}: labels, target and train, val, test, split go together; give both labels and target")
    y = None if labels is None else host(labels)
    raw = TypedRaw(edges, y, target, num_nodes or {}, _on_host(features), _on_host(edge_weights), split=stored)
    raw = replace(raw, edge_features=_on_host(edge_features), edge_times=edge_times or {}, node_times=node_times or {})
    return clean_typed(name, raw, options, split, seed, add_reverse)


def from_hetero(
    data: Any, *, target: str | None, name: str, options: ReadOptions, split: str | None, seed: int
) -> Dataset:
    """See `from_pyg`, of a `HeteroData`: every node type may have ``x``; the target has ``y`` and the masks. For links
    there need not be any."""
    chosen = _target_of(data, options.target if target is None else target, name, options.task == "link")
    edges, weights, attr = {}, {}, {}
    for relation in data.edge_types:
        store, what = data[relation], ",".join(relation)
        if "edge_index" not in store:
            raise InputError(f"{name}: the relation {what} has no edge_index; expected [2, E] (an adj_t is not read)")
        if "edge_weight" in store:
            weights[relation] = host(store.edge_weight).reshape(-1)
        if "edge_attr" in store:
            attr[relation] = host(store.edge_attr)
        edges[relation] = host(store.edge_index)
    counts = {}
    for t in data.node_types:
        if (n := data[t].num_nodes) is None:
            raise InputError(f"{name}: the node type '{t}' has no num_nodes; set data['{t}'].num_nodes")
        counts[t] = int(n)
    named = options.edge_time or "edge_time", options.node_time or "node_time"
    edge_times, node_times = (
        {kind: host(data[kind][attribute]) for kind in kinds if attribute in data[kind]}
        for attribute, kinds in zip(named, (data.edge_types, data.node_types))
    )
    for key, attribute, times in (("edge_time", named[0], edge_times), ("node_time", named[1], node_times)):
        if getattr(options, key) is not None and not times:
            raise InputError(f"{name}: {key} is '{attribute}', but no type has this attribute")
    options = replace(options, edge_time=None, node_time=None)
    y: Any = None
    masks: dict[str, Any] = {}
    if chosen is not None:
        store = data[chosen]
        y = store.y if "y" in store else np.zeros(counts[chosen], np.int64)  # links, which have no labels
        if options.task is None and has_targets(y):
            options = replace(options, task="regression")
        keys = {part: f"{part}_mask" for part in SPLITS}
        masks = {part: masks_of(store[key], key) for part, key in keys.items() if key in store}
    dataset = from_relations(
        edges,
        None if y is None else host(y),
        target=chosen,
        num_nodes=counts,
        features={t: host(data[t].x) for t in data.node_types if "x" in data[t]},
        edge_weights=weights,
        edge_times=edge_times,
        node_times=node_times,
        edge_features=attr,
        **masks,
        name=name,
        options=options,
        split=split,
        seed=seed,
    )
    stores = {f"'{kind}'": data[kind] for kind in data.node_types}
    stores |= {",".join(kind): data[kind] for kind in data.edge_types}
    return replace(dataset, notes=(*dataset.notes, *unread(stores, named)))


READ = ("edge_index", "y", "x", "edge_weight", "edge_attr", "num_nodes", "n_id", "e_id", *(f"{s}_mask" for s in SPLITS))
"""Attributes of PyG's data that are read, or that say nothing more."""


def unread(stores: Mapping[str, Mapping[str, object]], times: Iterable[str]) -> tuple[str, ...]:
    """A note for each store of PyG whose tensors are not all read; those of pairs are read elsewhere."""
    known, found = {*READ, *times}, []
    for what, store in stores.items():
        rows = [name for name, value in store.items() if getattr(value, "ndim", 0)]
        names = [n for n in rows if n not in known and not n.startswith(("edge_label", "pos_edge_", "neg_edge_"))]
        if names:
            found.append(f"{what} has {' and '.join(names)}, which {are(len(names))} not read.")
    return tuple(found)


def _target_of(data: Any, target: str | None, name: str, links: bool) -> str | None:
    """The node type that is predicted; None if labels are not wanted, and no type is named or has any."""
    labelled = [t for t in data.node_types if "y" in data[t]]
    if target is None and len(labelled) != 1:
        if links:
            return None
        seen = "no node type has y" if not labelled else f"the node types {', '.join(labelled)} have y"
        raise InputError(f"{name}: {seen}; say which one is predicted: from_pyg(data, target=...)")
    chosen: str = labelled[0] if target is None else target
    if chosen not in data.node_types:
        raise InputError(
            f"{name}: there is no node type '{chosen}'; expected one of {', '.join(data.node_types)}"
            f"{nearest(chosen, list(data.node_types))}"
        )
    if chosen not in labelled and not links:
        raise InputError(f"{name}: the node type '{chosen}' has no y; expected class numbers or targets")
    return chosen


def _on_host(given: Mapping[Any, Any] | None) -> dict[Any, Any]:
    """Arrays by name, tensors among them as arrays."""
    return {key: host(value) if hasattr(value, "detach") else value for key, value in (given or {}).items()}


def host(tensor: Any) -> npt.NDArray[Any]:
    """A tensor as a dense array on the host, bfloat16 as float32; what is no tensor as an array."""
    if not callable(getattr(tensor, "detach", None)):
        return np.asarray(tensor)
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    return (tensor if str(tensor.layout) == "torch.strided" else tensor.to_dense()).numpy()


def has_targets(y: Any) -> bool:
    """True if floating-point labels are one column of other values than 0, 1, -1 and NaN. Others follow the rule for
    all sources."""
    values = host(y)
    one_column = values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)
    return values.dtype.kind == "f" and one_column and not (np.isin(values, (0, 1, -1)) | np.isnan(values)).all()


def masks_of(mask: Any, name: str) -> npt.NDArray[Any]:
    """The mask of a PyG object, whose flags may be numbers. Raises InputError if these are others than 0 and 1."""
    found = host(mask)
    if found.dtype == np.bool_ or found.ndim != 1:
        return found
    return as_flags(found, f"the PyG data's {name}", "expected a flag for each node: make a mask of node ids")
