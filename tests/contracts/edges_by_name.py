"""The edges and features of a dataset by the names of its nodes."""

import numpy as np


def names_of(dataset):
    """Name of each node, text."""
    names = dataset.node_names
    return [str(v) for v in range(dataset.num_nodes)] if names is None else list(names)


def edges_of(dataset):
    """(source, destination) of each edge, sorted."""
    names, g = names_of(dataset), dataset.graph
    dst = np.repeat(np.arange(g.num_nodes), np.diff(g.indptr))
    return sorted((names[int(u)], names[int(v)]) for u, v in zip(g.indices, dst))


def rows_of(dataset):
    """Features of each node by its name."""
    return dict(zip(names_of(dataset), np.asarray(dataset.features.gather(np.arange(dataset.num_nodes))).tolist()))
