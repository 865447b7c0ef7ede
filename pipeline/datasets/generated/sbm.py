"""``sbm:...``: a planted-partition graph with class-mean features, and classes or targets, generated in O(E) memory."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ....storage.dataset import Dataset
from ....storage.features import ArrayFeatures
from ....storage.graph import Graph, run_starts
from ..cleaning.edges import graph_of_keys
from .spec import generator, number, one_of_each, parse_spec, split_of, unit_vectors


@dataclass(frozen=True)
class Sbm:
    """Parameters of the planted partition (Condon and Karp, 2001)."""

    nodes: int = number(100_000, 2, 2**31 - 2)
    """Number of nodes, V."""
    classes: int = number(16, 1, 100_000)
    """Number of classes, C; their sizes differ by at most one."""
    degree: float = number(20, 0, 1e6)
    """Mean in-degree before duplicates and self loops are removed."""
    features: int = number(64, 1, 1e5)
    """Width of the features, F."""
    homophily: float = number(0.8, 0, 1)
    """Share of edges between nodes of one class."""
    noise: float = number(1.0, 0, 1e6)
    """Standard deviation of each feature about its class's mean. The means are random unit vectors, so that at 1 a
    single node says little about its class and its neighbourhood says much."""
    targets: int = number(0, 0, 1000)
    """Number of targets for a regression, in place of the classes. Each is a linear function of the mean of the
    in-neighbours' features, of mean 0 and standard deviation 1, plus noise."""
    target_noise: float = number(0.1, 0, 1e6)
    """Standard deviation of the noise on targets, which no model can predict: the RMSE of the best one."""
    train: float = number(0.1, 1e-9, 1)
    """Share of train nodes."""
    val: float = number(0.1, 0, 1)
    seed: int = number(0, 0, 2**63 - 1)


def generate_sbm(text: str, name: str | None) -> Dataset:
    """The graph described by `text`: symmetric, without self loops or multi-edges. A pure function of `text`."""
    p = parse_spec(text, Sbm)
    classes = generator(p, 0).permutation(np.arange(p.nodes, dtype=np.int64) % p.classes)
    keys = _edges(p, classes)
    note = f"Generated: {len(keys)} edges (both directions) after duplicates and self loops were removed."
    graph, x = graph_of_keys(keys, p.nodes), _features(p, classes)
    labels = _targets(p, graph, x) if p.targets else classes
    parts, number, task = split_of(p, labels), p.targets or p.classes, "regression" if p.targets else "multiclass"
    return Dataset(name or text, graph, ArrayFeatures(x), labels, parts, number, task=task, notes=(note,)).check()


def _edges(p: Sbm, labels: np.ndarray) -> np.ndarray:
    """Ascending keys dst * V + src, int64 [E]: each drawn edge picks one end uniformly, then a class for the other,
    then a member."""
    rng = generator(p, 1)
    drawn = round(p.nodes * p.degree / 2)
    u = rng.integers(0, p.nodes, drawn, dtype=np.int32)
    c = labels[u].astype(np.int32)
    if p.classes > 1:
        other = rng.random(drawn, np.float32) >= p.homophily
        c[other] = (c[other] + rng.integers(1, p.classes, int(other.sum()), dtype=np.int32)) % p.classes
    # A class is empty only if there are more classes than nodes.
    keep = np.bincount(labels, minlength=p.classes)[c] > 0
    u, c = u[keep], c[keep]
    v = one_of_each(rng, labels, c, p.classes)
    u, v = u[u != v].astype(np.int64), v[u != v]
    keys = np.concatenate([v * p.nodes + u, u * p.nodes + v])
    keys.sort()
    return keys[run_starts(keys)]


def _features(p: Sbm, labels: np.ndarray) -> np.ndarray:
    rng = generator(p, 2)
    means = unit_vectors(rng, p.classes, p.features)
    x = rng.standard_normal((p.nodes, p.features), np.float32)
    x *= np.float32(p.noise)
    # In slices, so that the gathered means need no second [V, F].
    for low in range(0, p.nodes, 1 << 16):
        x[low : low + (1 << 16)] += means[labels[low : low + (1 << 16)]]
    return x


def _targets(p: Sbm, graph: Graph, x: np.ndarray) -> np.ndarray:
    """float32 [V, targets]. A target is a random projection of the mean of the in-neighbours' features, shifted and
    scaled to mean 0 and standard deviation 1 over all nodes, plus normal noise of standard deviation `target_noise`."""
    rng = generator(p, 3)
    projected = x.astype(np.float64) @ rng.standard_normal((p.features, p.targets))
    ones = np.ones(graph.num_edges)
    adjacency = sp.csr_matrix((ones, graph.indices, graph.indptr), shape=(p.nodes, p.nodes))
    mean = adjacency @ projected / np.maximum(graph.in_degree, 1)[:, None]
    deviation = mean.std(axis=0)
    known = (mean - mean.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    return (known + p.target_noise * rng.standard_normal(known.shape)).astype(np.float32)
