"""Typed datasets in the order of another's types."""

from dataclasses import replace

import numpy as np

from ...storage.dataset import Dataset
from ...storage.features import FeatureStore, ReorderedFeatures
from ...storage.lazy_dataset import LazyDataset
from ...storage.node_names import NodeNames
from ...storage.optional import taken, when_present
from ...storage.partition.reorder import relabelled
from ...storage.typed.features import TypedFeatures
from ...storage.typed.graph_types import GraphTypes
from .cleaning.relations import graph_of_relations


def in_type_order(dataset: Dataset, like: GraphTypes) -> Dataset:
    """The dataset with its node types and relations in the order of `like`, which has the same ones. Its graph is built
    anew in memory, without `Graph.edge_id`."""
    data = dataset.as_read() if isinstance(dataset, LazyDataset) else dataset
    graph, types = data.graph, data.graph.types
    kinds = [types.node_types.index(t) for t in like.node_types]
    numbers = [types.relations.index(r) for r in like.relations]  # those before, by the new ones
    place = np.argsort(numbers)
    old = np.argsort(np.argsort(kinds)[types.types_of(np.arange(data.num_nodes))], kind="stable")
    new = np.argsort(old)
    offsets = (0, *np.cumsum([types.num_nodes(k) for k in kinds]).tolist())
    pairs = tuple(tuple(place[list(group)].tolist()) for group in types.pair_relations)
    moved = GraphTypes(like.node_types, offsets, like.relations, pair_relations=pairs)

    of_each = [np.flatnonzero(graph.edge_type == r) for r in numbers]
    ends = new[graph.indices], new[np.repeat(np.arange(data.num_nodes), graph.in_degree)]
    edges = {r: (ends[0][at], ends[1][at]) for r, at in zip(like.relations, of_each)}
    weights, times = (when_present(lambda a: [a[i] for i in of_each], a) for a in (graph.edge_weight, graph.edge_time))
    rows = []
    if graph.edge_features is not None:
        widths = [types.edge_widths[r] for r in numbers]
        rows = [graph.edge_features.gather(at)[:, :w] if w else None for w, at in zip(widths, of_each)]
    found = graph_of_relations(edges, moved, weights=weights, features=rows, times=times)
    found = replace(found, node_time=taken(graph.node_time, old), time_unit=graph.time_unit)

    features: FeatureStore = ReorderedFeatures(data.features, old)
    if isinstance(data.features, TypedFeatures):
        features = TypedFeatures(tuple(data.features.parts[k] for k in kinds), offsets)
    names = when_present(lambda names: NodeNames.from_values(names).reordered(old), data.node_names)
    labels = relabelled(data, old, new)
    if types.predicts_several:
        labels["labels"][:, 3] = place[labels["labels"][:, 3]]
    return replace(data, graph=found, features=features, node_names=names, **labels)
