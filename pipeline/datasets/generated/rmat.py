"""``rmat:...``: a recursive-matrix graph with a skewed degree distribution and labels that a neighbourhood mean can
learn."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ....storage.dataset import Dataset
from ....storage.errors import InputError
from ....storage.features import ArrayFeatures
from ....storage.graph import Graph, run_starts
from ..cleaning.edges import graph_of_keys
from .spec import generator, number, parse_spec, split_of

SLICE = 1 << 18
"""Edges drawn at a time: few enough for the cache, and fixed so that the graph does not depend on the machine."""


@dataclass(frozen=True)
class Rmat:
    """Parameters of R-MAT (Chakrabarti, Zhan, Faloutsos, SDM 2004); the defaults of a, b, c are close to Graph500's."""

    scale: int = number(20, 1, 30)
    """Binary logarithm of V."""
    edge_factor: int = number(16, 0, 1024)
    """Edges drawn per node, before duplicates and self loops are removed and reverses added."""
    features: int = number(100, 1, 1e5)
    """Width of the features, F."""
    classes: int = number(16, 1, 100_000)
    """Number of classes, C."""
    a: float = number(0.45, 0, 1)
    """Probability of the quarter (low source, low destination) at each of the `scale` halvings, as a multiple of
    1/65536."""
    b: float = number(0.22, 0, 1)
    """Probability of the quarter (low, high)."""
    c: float = number(0.22, 0, 1)
    """Probability of the quarter (high, low); the rest is that of (high, high)."""
    symmetric: bool = number(True, 0, 1)
    """Add the reverse of every edge."""
    train: float = number(0.1, 1e-9, 1)
    """Share of train nodes."""
    val: float = number(0.1, 0, 1)
    seed: int = number(0, 0, 2**63 - 1)


def generate_rmat(text: str, name: str | None) -> Dataset:
    """The graph described by `text`, with permuted ids, without self loops or multi-edges. A pure function of `text`.

    Features are standard normal. The label of a node is the largest of C random projections of the mean of its own and
    its in-neighbours' features, so that one mean aggregation and one linear layer can represent it. Raises InputError:
    see `parse_spec` and `make_split`; or a + b + c exceeds 1."""
    p = parse_spec(text, Rmat)
    if p.a + p.b + p.c > 1 + 1e-9:
        raise InputError(f"'{text}': a + b + c is {p.a + p.b + p.c:g}; expected at most 1")
    graph = _graph(p)
    note = f"Generated: {graph.num_edges} edges after duplicates and self loops were removed."
    x = generator(p, 2).standard_normal((graph.num_nodes, p.features), np.float32)
    labels = _labels(p, graph, x)
    parts = split_of(p, labels)
    return Dataset(name or text, graph, ArrayFeatures(x), labels, parts, p.classes, notes=(note,)).check()


def _graph(p: Rmat) -> Graph:
    num_nodes = 1 << p.scale
    drawn = num_nodes * p.edge_factor
    rng = generator(p, 0)
    keys = np.empty(drawn * (2 if p.symmetric else 1), np.int64)
    names = generator(p, 1).permutation(num_nodes)
    filled = 0
    for low in range(0, drawn, SLICE):
        src, dst = _draw(p, rng, min(SLICE, drawn - low))
        src, dst = names[src], names[dst]
        src, dst = src[src != dst], dst[src != dst]
        for ends in ((dst, src), (src, dst))[: 2 if p.symmetric else 1]:
            keys[filled : filled + len(src)] = ends[0] * num_nodes + ends[1]
            filled += len(src)
    keys = keys[:filled]
    keys.sort()
    return graph_of_keys(keys[run_starts(keys)], num_nodes)


def _draw(p: Rmat, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Sources and destinations, int32 [count], before renaming: one quarter per halving."""
    ab, abc, a = (round(65536 * share) for share in (p.a + p.b, p.a + p.b + p.c, p.a))
    src, dst = np.zeros(count, np.int32), np.zeros(count, np.int32)
    for _ in range(p.scale):
        u = rng.integers(0, 65536, count, dtype=np.uint16).astype(np.int32)
        down = u >= ab
        src += src
        src += down
        dst += dst
        dst += np.where(down, u >= abc, u >= a)
    return src, dst


def _labels(p: Rmat, graph: Graph, x: np.ndarray) -> np.ndarray:
    """int64 [V]. Features are projected before averaging, since C is smaller than F."""
    directions = generator(p, 3).standard_normal((p.features, p.classes), np.float32)
    directions /= np.linalg.norm(directions, axis=0)
    score = x @ directions
    adjacency = sp.csr_matrix(
        (np.ones(graph.num_edges, np.float32), graph.indices, graph.indptr), shape=(graph.num_nodes,) * 2
    )
    # The sum is enough: dividing a row by its degree does not move its largest entry.
    score += adjacency @ score
    return score.argmax(axis=1).astype(np.int64)
