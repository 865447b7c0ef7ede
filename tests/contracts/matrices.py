"""A small weighted graph as SciPy matrices, and a dataset's graph as a matrix."""

import numpy as np
import scipy.sparse as sp

V = 12


def small_graph(seed=3):
    """Adjacency [V, V] and features [V, 6] as CSR, and labels [V] of three classes."""
    r = np.random.default_rng(seed)
    a = sp.random(V, V, 0.3, "csr", random_state=r)
    a.data = np.round(a.data * 5) + 2
    return a, sp.random(V, 6, 0.5, "csr", random_state=r), np.arange(V) % 3


def weights_of(dataset):
    """[V, V], the weight of each edge at (source, destination); 1 if edges have none."""
    g = dataset.graph
    dst = np.repeat(np.arange(g.num_nodes), np.diff(g.indptr))
    weight = np.ones(g.num_edges) if g.edge_weight is None else np.asarray(g.edge_weight)
    return sp.coo_matrix((weight, (np.asarray(g.indices), dst)), shape=(g.num_nodes,) * 2).toarray()
