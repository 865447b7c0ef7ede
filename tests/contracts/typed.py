"""Small graphs with several types of nodes and edges."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from millrace.pipeline.datasets.cleaning.relations import graph_of_relations
from millrace.storage.dataset import Dataset, Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph
from millrace.storage.typed.features import TypedFeatures
from millrace.storage.typed.graph_types import GraphTypes


@st.composite
def typed_graphs(draw: st.DrawFn, linked: bool = False) -> Graph:
    """Types without nodes, relations without edges, two relations between the same types, self loops, multi-edges. With
    `linked`, relation 0 is that of pairs, and the last one has its edges reversed, and one more where it can."""
    counts = draw(st.lists(st.integers(0, 7), min_size=1, max_size=3))
    counts[0] = max(1, counts[0])
    names = [f"t{i}" for i in range(len(counts))]
    offsets = [0, *np.cumsum(counts).tolist()]
    edges = {}
    for r in range(draw(st.integers(1, 4))):
        a, b = (draw(st.integers(0, len(counts) - 1)) for _ in range(2))
        ends = st.tuples(st.integers(0, max(0, counts[a] - 1)), st.integers(0, max(0, counts[b] - 1)))
        pairs = draw(st.lists(ends, max_size=30)) if counts[a] and counts[b] else []
        src, dst = np.array(pairs, np.int64).reshape(-1, 2).T
        edges[names[a], f"r{r}", names[b]] = src + offsets[a], dst + offsets[b]
    types = GraphTypes(tuple(names), tuple(offsets), tuple(edges))
    if linked:
        ((a, _, b), (src, dst)) = next(iter(edges.items()))
        edges[b, "back", a] = np.r_[dst, dst[:1]], np.r_[src, src[-1:]]
        types = replace(types, relations=tuple(edges), pair_relations=((0, len(edges) - 1),))
    return graph_of_relations(edges, types, keep_edge_id=True)


def typed_dataset(seed: int = 0, degree: int = 60, edge_features: bool = False) -> Dataset:
    """Papers with classes, authors, and venues without features; five relations, one of which has no edges. With
    `edge_features` edges of three of them have some, of different widths."""
    rng = np.random.default_rng(seed)
    offsets = (0, 20, 32, 36)
    papers, authors, venues = (np.arange(a, b) for a, b in zip(offsets, offsets[1:]))
    edges = {
        ("author", "writes", "paper"): (rng.choice(authors, degree), rng.choice(papers, degree)),
        ("paper", "written_by", "author"): (rng.choice(papers, degree), rng.choice(authors, degree)),
        ("paper", "cites", "paper"): (rng.choice(papers, degree), rng.choice(papers, degree)),
        ("venue", "prints", "paper"): (rng.choice(venues, 20), papers),
        ("author", "chairs", "venue"): (np.empty(0, np.int64), np.empty(0, np.int64)),
    }
    types, of_edges = GraphTypes(("paper", "author", "venue"), offsets, tuple(edges)), []
    if edge_features:
        noise = np.random.default_rng(seed + 1)
        widths = zip(edges.values(), (2, None, 1, None, 3))
        of_edges = [None if w is None else noise.standard_normal((len(src), w)) for (src, _), w in widths]
    graph = graph_of_relations(edges, types, features=of_edges)
    parts = tuple(
        ArrayFeatures(rng.standard_normal((b - a, width)).astype(np.float32))
        for a, b, width in zip(offsets, offsets[1:], (5, 3, 0))
    )
    labels = np.full(36, -1)
    labels[:20] = np.arange(20) % 3
    split = Split(np.arange(0, 12), np.arange(12, 16), np.arange(16, 20))
    return Dataset("typed", graph, TypedFeatures(parts, offsets), labels, split, 3).check()
