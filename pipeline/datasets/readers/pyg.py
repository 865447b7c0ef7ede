"""Datasets from objects of PyTorch Geometric, which is not imported."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ....storage.dataset import SPLITS, Dataset
from ....storage.errors import InputError, one_of
from ....storage.plural import are
from ....storage.typed.graph_types import GraphTypes
from ..cleaning.clean import clean
from ..cleaning.options import DEFAULT_OPTIONS, ReadOptions
from ..cleaning.raw import AnyArray, GivenLabels, Raw, RawEdges, RawNodes, type_text
from ..cleaning.splits import as_flags
from ..cleaning.typed import OF_NODES, check_followed
from ..schema.columns import NONE
from .foreign.npz_words import own_name
from .typed import host

OF_PYG = ("target", "edge_time", "node_time")
"""Options for tables that PyG's data follow too."""


def from_pyg(
    data: Any,
    *,
    name: str = "pyg",
    target: str | None = None,
    options: ReadOptions = DEFAULT_OPTIONS,
    split: str | None = None,
    seed: int = 0,
) -> Dataset:
    """A dataset from a `torch_geometric.data.Data`, or from a `HeteroData` with several types of nodes and edges.

    A `Data` has ``edge_index``, ``y`` (classes, or targets if it is
    floating-point), and optionally ``x``, ``edge_weight``,
    ``edge_attr`` (features of edges), ``edge_time`` and ``node_time`` (or the attributes that `options` name),
    ``train_mask``, ``val_mask``, ``test_mask`` (or ``train_idx``, ...). Tensors are copied to the host. In a
    `HeteroData` each node type may have an ``x`` of its own width; one has ``y`` and the masks.

    Args:
        data: a `Data` or `HeteroData`.
        name: name of the dataset.
        target: the node type that is predicted, of a `HeteroData`; by default the one with ``y``.
        options: treatment of each defect.
        split: see `open_dataset`.
        seed: seed of a random split.

    Raises:
        InputError: an attribute is missing; see also `clean` and `from_relations`.
    """
    if options.labels_of == "edges" and options.task != "link":
        raise InputError(
            "from_pyg reads labels of nodes, but labels_of is 'edges'; use open_dataset(data, options=...), or "
            "edge_dataset for labels of your own"
        )
    typed, links = hasattr(data, "node_types"), options.task == "link"
    options.check_no_tables("PyG's data", OF_PYG)
    if typed:
        check_followed(name, options, (*OF_NODES, *OF_PYG))
        target = _target_of(data, options.target if target is None else target, name, links)
    elif target is not None:
        raise InputError(f"target is '{target}', but the PyG data has one node type; leave it out")
    of_nodes = {t: data[t] for t in data.node_types} if typed else {None: data}
    of_edges = {r: data[r] for r in data.edge_types} if typed else {None: data}
    times = {"edge_time": options.edge_time or "edge_time", "node_time": options.node_time or "node_time"}
    for (key, attribute), stores in zip(times.items(), (of_edges, of_nodes)):
        if getattr(options, key) not in (None, NONE) and not any(attribute in store for store in stores.values()):
            raise InputError(f"{key} is '{attribute}', but the PyG data has no such attribute; leave it out")
    edges = {kind: _edges_of(store, type_text(kind) or "the PyG data", times) for kind, store in of_edges.items()}
    nodes = {}
    for kind, store in of_nodes.items():
        if typed and store.num_nodes is None:
            raise InputError(f"{name}: the node type '{kind}' has no num_nodes; set data['{kind}'].num_nodes")
        time = _array(store, times["node_time"])
        nodes[kind] = RawNodes(_array(store, "x"), time=time, count=store.num_nodes)
    labels, stored = None, dict[str, AnyArray]()
    if not typed or target is not None:
        store = of_nodes[target]
        if "y" not in store and not (links and store.num_nodes is not None):
            raise InputError("the PyG data has no y; expected [V] class numbers or targets, or [V, C]")
        y = store["y"] if "y" in store else np.zeros(store.num_nodes, np.int64)  # links, which have no labels
        labels = labels_of_tensor(y)
        for key in sorted(store.keys(), key=lambda k: "mask" not in k):
            part, form = _set_of(key)
            if part not in {"", *stored} and not (links and form == "idx"):
                stored[part] = masks_of(store[key], key) if form == "mask" else host(store[key])
    every: dict[str, Any] = {"the PyG data": getattr(data, "_store", {})}
    if typed:
        every = {f"'{t}'": of for t, of in of_nodes.items()} | {",".join(r): of for r, of in of_edges.items()}
    raw = Raw(name, edges, labels, nodes, target, split=stored, notes=unread(every, times.values()))
    return clean(raw, options, split, seed)


def store_of_pairs(data: Any, types: GraphTypes, where: str) -> tuple[Any, str]:
    """The store with the edges that are predicted, and what it is called; empty if the data has none of them."""
    if types.is_single:
        return data, where
    relation = types.relations[types.one_predicted]
    found = data[relation] if relation in getattr(data, "edge_types", ()) else {}
    return found, f"{where} at {','.join(relation)}"


def _array(store: Any, key: str) -> AnyArray | None:
    return host(store[key]) if key in store else None


def _edges_of(store: Any, where: str, times: Mapping[str, str]) -> RawEdges:
    """The edges of a store of PyG, which is called `where`."""
    if "edge_index" not in store:
        raise InputError(f"{where} has no edge_index; expected [2, E] (adj_t is not read: do not apply ToSparseTensor)")
    ends, weight = host(store["edge_index"]), _array(store, "edge_weight")
    if ends.ndim != 2 or ends.shape[0] != 2:
        raise InputError(f"{where}: edge_index has shape {list(ends.shape)}; expected [2, E]")
    if weight is not None and weight.ndim == 2 and weight.shape[1] == 1:
        weight = weight[:, 0]
    return RawEdges((ends[0], ends[1]), weight, _array(store, "edge_attr"), time=_array(store, times["edge_time"]))


READ = ("edge_index", "y", "x", "edge_weight", "edge_attr", "num_nodes", "n_id", "e_id")
"""Attributes of PyG's data that are read, or that say nothing more."""


def _set_of(key: str) -> tuple[str, str]:
    """Set whose members an attribute has, and idx or mask; empty if it has none."""
    part, _, form = (own_name(key) or "").partition("_")
    return (part, form) if part in SPLITS else ("", "")


def unread(stores: Mapping[str, Mapping[str, object]], times: Iterable[str]) -> tuple[str, ...]:
    """A note for each store of PyG whose tensors are not all read; those of pairs are read elsewhere."""
    known, found = {*READ, *times}, []
    for what, store in stores.items():
        rows = [name for name, value in store.items() if getattr(value, "ndim", 0) and not _set_of(name)[0]]
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
        raise InputError(f"{name}: there is no node type '{chosen}'; {one_of(chosen, data.node_types)}")
    if chosen not in labelled and not links:
        raise InputError(f"{name}: the node type '{chosen}' has no y; expected class numbers or targets")
    return chosen


def labels_of_tensor(y: Any) -> GivenLabels:
    """Labels of a PyG object: targets if they are one column of floating-point numbers, others than 0, 1, -1 and NaN.
    Others follow the rule for all sources."""
    values = host(y)
    one_column = values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)
    are_targets = values.dtype.kind == "f" and one_column and not (np.isin(values, (0, 1, -1)) | np.isnan(values)).all()
    return GivenLabels(values, task="regression" if are_targets else None)


def masks_of(mask: Any, name: str) -> AnyArray:
    """The mask of a PyG object, whose flags may be numbers. Raises InputError if these are others than 0 and 1."""
    found = host(mask)
    if found.dtype == np.bool_ or found.ndim != 1:
        return found
    return as_flags(found, f"the PyG data's {name}", "expected a flag for each node: make a mask of node ids")
