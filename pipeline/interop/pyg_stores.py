"""A pair of PyG's `FeatureStore` and `GraphStore` as a graph that `PyGSampler` samples. The edges are read once."""

from typing import Any

import torch

from ...storage.errors import InputError
from .pyg_many_types import ManyTypes
from .pyg_one_type import OneType


def of_stores(stores: Any, weight_attr: Any, time_attr: Any) -> OneType | ManyTypes:
    """The graph of a pair.

    Args:
        stores: `FeatureStore` and `GraphStore`.
        weight_attr: argument of the loader.
        time_attr: likewise; name of features of nodes, or of edge types.

    Raises:
        InputError: `stores` is no such pair, or `weight_attr` is given.
    """
    from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData

    if len(stores) != 2 or not isinstance(stores[0], FeatureStore) or not isinstance(stores[1], GraphStore):
        kinds = ", ".join(type(part).__name__ for part in stores)
        raise InputError(f"data is ({kinds}); expected a pair of FeatureStore and GraphStore, a Data or a HeteroData")
    if weight_attr is not None:
        raise InputError("weight_attr is not supported with feature stores, as in PyG; give a Data or a HeteroData")
    features, graph = stores
    edges, attributes = graph.get_all_edge_attrs(), features.get_all_tensor_attrs()
    if not edges:
        raise InputError("the GraphStore has no edges; expected at least one edge type")
    row, col, _ = graph.coo()
    times = {a.group_name: _whole(features, a) for a in attributes if a.attr_name == time_attr}
    if not isinstance(row, dict):
        data: Any = Data()
        sizes = [max(e.size) for e in edges if e.size is not None]
        data.num_nodes = sizes[0] if sizes else _rows(features, attributes, None)
        data.edge_index = torch.stack([row, col])
        for time in times.values():
            data[time_attr] = time
        return OneType(data, None)
    data = HeteroData()
    ends = [t for relation in row for t in (relation[0], relation[2])]
    for t in dict.fromkeys([*(a.group_name for a in attributes if isinstance(a.group_name, str)), *ends]):
        sizes = [e.size[i] for e in edges for i in (0, 1) if e.size is not None and e.edge_type[2 * i] == t]
        data[t].num_nodes = sizes[0] if sizes else _rows(features, attributes, t)
    for relation in row:
        data[relation].edge_index = torch.stack([row[relation], col[relation]])
    for group, time in times.items():
        data[group][time_attr] = time
    return ManyTypes(data, None)


def _whole(features: Any, attribute: Any) -> Any:
    """All rows of an attribute."""
    attribute.index = None
    return features.get_tensor(attribute)


def _rows(features: Any, attributes: Any, node_type: str | None) -> int:
    """Number of nodes of a type, by its features."""
    for attribute in attributes:
        group = attribute.group_name if isinstance(attribute.group_name, str | tuple) else None
        if group == node_type:
            return int(features.get_tensor_size(attribute)[0])
    of = "" if node_type is None else f" of type '{node_type}'"
    raise InputError(f"the stores do not tell the number of nodes{of}; give the edges a size, or the nodes features")
