"""Renumbering of nodes, so that the nodes of a part, or nodes that are used together, have neighbouring ids."""

from dataclasses import replace
from typing import Any

import numpy as np

from ..array_kinds import AnyArray, IdArray, IntArray
from ..dataset import SPLITS, Dataset, Split, check_one_type, require_dataset
from ..errors import InputError
from ..features import ReorderedFeatures
from ..graph import GRAPH_ARRAYS, Graph, edges_of_rows, index_dtype
from ..node_names import NodeNames
from ..optional import taken
from .book import PartitionBook
from .node_order import node_order


def ascending(indptr: IdArray, indices: IntArray, *of_edges: AnyArray | None) -> tuple[Any, ...]:
    """`indices` in ascending order within each row, and each array of `of_edges` in the same order. Equal ones keep
    their order. Arrays that ascend already are returned as they are."""
    falls = np.flatnonzero(indices[1:] < indices[:-1]) + 1
    if np.isin(falls, indptr, assume_unique=False).all():
        return indices, *of_edges
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    # Rows are sorted already, so a stable sort by source and then by row keeps each row's edges together.
    width = int(indices.max()) + 1
    keys = rows * width + indices
    if all(array is None for array in of_edges):
        keys.sort()
        return (keys - rows * width).astype(indices.dtype), *of_edges
    order = np.argsort(keys, kind="stable")
    return indices[order], *(taken(array, order) for array in of_edges)


def reorder(dataset: Dataset, order: IntArray | PartitionBook | str, within: str = "ids") -> Dataset:
    """Renumber a dataset's nodes. Their old names, or numbers, become the nodes' names.

    The graph, labels and split are copied; feature rows, of edges too, are read when they are gathered. Links to
    predict and labelled edges keep their order, and so their labels, times, features and sets.

    Args:
        dataset: V nodes.
        order: [V], the old number of each new node; or a partition book: nodes part by part, so that a part is a range
            of ids, which ``graph.part_offsets`` keeps; or ``"degree"`` or ``"rcm"``: see `within`, of the whole graph.
        within: order of a part's nodes: ``"ids"``, ascending; ``"degree"``, those that many rows name first; ``"rcm"``,
            reverse Cuthill-McKee.

    Raises:
        InputError: `order` does not name every node once, or there is no such order.
    """
    require_dataset(dataset)
    check_one_type(dataset, "renumbering")
    n, graph, offsets = dataset.num_nodes, dataset.graph, None
    if isinstance(order, PartitionBook):
        offsets = np.append(0, np.cumsum(order.sizes())).astype(np.int64)
        order = node_order(graph, within, order)
    elif within != "ids":
        raise InputError(f"within is '{str(within)[:80]}', and order is no partition book; leave within out")
    elif isinstance(order, str):
        order = node_order(graph, order)
    old = np.asarray(order)
    if old.shape != (n,) or old.dtype.kind not in "iu" or not np.array_equal(np.sort(old), np.arange(n)):
        raise InputError(f"order is {old.dtype}{list(old.shape)}; expected each of the {n} nodes once")
    old = old.astype(np.int64, copy=False)
    new = np.empty(n, index_dtype(n))
    new[old] = np.arange(n, dtype=new.dtype)
    rows = graph.take(old)
    later = graph.later
    moves = graph.edge_features is not None or any(GRAPH_ARRAYS[name].per == "edge" for name in later)
    edges = edges_of_rows(rows.first_edge, np.diff(rows.indptr))[1] if moves else None
    indices, weight, edge_id, edges = ascending(rows.indptr, new[rows.indices], rows.edge_weight, rows.edge_id, edges)
    of_edges = None if graph.edge_features is None else ReorderedFeatures(graph.edge_features, edges)
    names = NodeNames.of_numbers(n) if dataset.node_names is None else NodeNames.from_values(dataset.node_names)
    return replace(
        dataset,
        graph=Graph(
            rows.indptr,
            indices.astype(graph.indices.dtype, copy=False),
            weight,
            edge_id,
            offsets,
            edge_features=of_edges,
            time_unit=graph.time_unit,
            **{name: a[edges if GRAPH_ARRAYS[name].per == "edge" else old] for name, a in later.items()},
        ),
        features=ReorderedFeatures(dataset.features, old),
        **relabelled(dataset, old, new),
        node_names=names.reordered(old),
    )


def relabelled(dataset: Dataset, old: IntArray, new: IntArray) -> dict[str, Any]:
    """Labels and split of a dataset, and pairs, where node v has the number ``new[v]``, and node w had ``old[w]``."""
    if not dataset.of_pairs:
        split = Split(*(np.sort(new[getattr(dataset.split, name)]).astype(np.int64) for name in SPLITS))
        return {"labels": dataset.labels[old], "split": split}
    table = dataset.pair_table
    moved = np.concatenate([new[table[:, :2]], table[:, 2:]], axis=1).astype(np.int64)
    own = {"labels": dataset.labels, "pairs": moved} if dataset.has_edge_labels else {"labels": moved}
    return {**own, "split": dataset.split}
