"""Graphs of the sampling benchmark: R-MAT (Chakrabarti, Zhan, Faloutsos, SDM 2004), with the sizes of well-known
datasets.

R-MAT draws ids below a power of two, and V is none: an id x of `scale` bits becomes x * V >> scale, which merges
neighbouring ids evenly (rejecting ids above V, or folding them, gave other tails than `Recipe.expected`). Then ids are
permuted, self loops and duplicates go, and every edge gets its reverse. There is no community structure, so locality is
worse than in the real datasets.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from millrace.storage.graph import Graph

ABC = (0.45, 0.22, 0.22)
"""Probabilities of the quarters (low, low), (low, high), (high, low) at each halving; (high, high) has the rest."""
SLICE = 1 << 18
"""Pairs drawn at a time: fits the cache; part of the definition, since it orders the random numbers."""


@dataclass(frozen=True)
class Recipe:
    """One graph."""

    num_nodes: int
    """V."""
    num_pairs: int
    """Pairs drawn, before loops and duplicates go."""
    expected: dict[str, float]
    """Degree statistics of the graph that this one stands for: E, degree quantiles, isolated nodes."""


RECIPES = {
    "products": Recipe(
        2_449_029,
        61_920_000,
        {"edges": 123_718_280, "mean": 50.5, "median": 14, "p95": 200, "p99": 557, "max": 26_159, "isolated": 141_000},
    ),
    "products-half": Recipe(1_224_514, 30_960_000, {}),
    "products-quarter": Recipe(612_257, 15_480_000, {}),
    "arxiv": Recipe(169_343, 1_168_500, {"edges": 2_332_486, "median": 5, "max": 2_499, "isolated": 23_600}),
    "small": Recipe(20_000, 140_000, {}),
}


def draw(rng: np.random.Generator, scale: int, count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Both ends of `count` pairs, each below 2 ** scale."""
    a, ab, abc = (round(65536 * p) for p in np.cumsum(ABC))
    u, v = np.zeros(count, np.int32), np.zeros(count, np.int32)
    for _ in range(scale):
        dart = rng.integers(0, 65536, count, dtype=np.uint16)
        low = dart < ab
        u += u
        u += ~low
        v += v
        v += np.where(low, dart >= a, dart >= abc)
    return u, v


def make(recipe: Recipe, seed: int = 0) -> Graph:
    """A simple symmetric graph without self loops; a pure function of its arguments. Peak memory about 24 bytes an
    edge."""
    # Here, since it needs the whole of the package's dependencies, and the recipes are read where some are missing.
    from millrace.pipeline.datasets.cleaning.edges import graph_of_keys

    V = recipe.num_nodes
    scale = (V - 1).bit_length()
    rng = np.random.Generator(np.random.Philox(seed))
    names = rng.permutation(V).astype(np.int64)
    keys = np.empty(recipe.num_pairs, np.int64)
    filled = 0
    for low in range(0, recipe.num_pairs, SLICE):
        u, v = (names[x.astype(np.int64) * V >> scale] for x in draw(rng, scale, min(SLICE, recipe.num_pairs - low)))
        pair = (np.minimum(u, v) * V + np.maximum(u, v))[u != v]
        keys[filled : filled + len(pair)] = pair
        filled += len(pair)
    keys = keys[:filled]
    keys.sort()
    keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
    both = np.empty(2 * len(keys), np.int64)
    both[: len(keys)] = keys
    both[len(keys) :] = keys % V * V + keys // V
    del keys
    both.sort()
    return graph_of_keys(both, V)


def load(folder: Path) -> Graph:
    """The graph that `stored` left in `folder`."""
    return Graph(np.load(folder / "indptr.npy"), np.load(folder / "indices.npy"))


def stored(name: str, cache: Path) -> Path:
    """The folder that holds the graph (`indptr.npy` int64 [V+1], `indices.npy` int32 [E]), made on first use."""
    recipe = RECIPES[name]
    folder = cache / "graphs" / f"{name}-{recipe.num_nodes}-{recipe.num_pairs}"
    if not (folder / "indices.npy").exists():
        graph = make(recipe)
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "indptr.npy", graph.indptr)
        np.save(folder / "partial.npy", graph.indices)
        (folder / "partial.npy").rename(folder / "indices.npy")
    return folder


def statistics(graph: Graph) -> dict[str, float]:
    """The quantities of `Recipe.expected`."""
    degree = graph.in_degree
    median, p95, p99 = (float(q) for q in np.quantile(degree, [0.5, 0.95, 0.99], method="nearest"))
    return {
        "edges": graph.num_edges,
        "mean": round(float(degree.mean()), 1),
        "median": median,
        "p95": p95,
        "p99": p99,
        "max": int(degree.max()),
        "isolated": int((degree == 0).sum()),
    }
