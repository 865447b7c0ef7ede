"""A graph of ogbn-mag's shape (Hu et al., Open Graph Benchmark, NeurIPS 2020): papers, authors, institutions and fields
of study, four relations and their reverses.

Node and edge counts are the dataset's. The ends of a relation's edges are those of a bipartite R-MAT (see `graphs`),
distinct, without papers that cite themselves.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from graphs import SLICE, draw

import millrace as mr

NODES = {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field_of_study": 59_965}
EDGES = {
    ("author", "writes", "paper"): 7_145_660,
    ("paper", "cites", "paper"): 5_416_271,
    ("author", "affiliated_with", "institution"): 1_043_998,
    ("paper", "has_topic", "field_of_study"): 7_505_078,
}


def ends(
    rng: np.random.Generator, num_src: int, num_dst: int, count: int, loops: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sources and destinations of `count` distinct edges, without self loops unless `loops`."""
    scale = (max(num_src, num_dst) - 1).bit_length()
    src_names, dst_names = rng.permutation(num_src), rng.permutation(num_dst)
    keys = np.empty(0, np.int64)
    while len(keys) < count:
        u, v = draw(rng, scale, min(SLICE, count))
        src, dst = src_names[u.astype(np.int64) * num_src >> scale], dst_names[v.astype(np.int64) * num_dst >> scale]
        drawn = src * num_dst + dst
        keys = np.concatenate([keys, drawn if loops else drawn[src != dst]])
        if len(keys) >= count:
            # Later ones are dropped by chance, not because they are late.
            keys = np.unique(keys)
    keys = np.sort(rng.choice(keys, count, replace=False))
    return keys // num_dst, keys % num_dst


def make(part: int = 1, seed: int = 0) -> mr.Graph:
    """The graph with one node and one edge in `part` of ogbn-mag's, and the reverse of each edge."""
    rng = np.random.Generator(np.random.Philox(seed))
    nodes = {name: n // part for name, n in NODES.items()}
    edges = {
        (a, name, b): ends(rng, nodes[a], nodes[b], count // part, a != b) for (a, name, b), count in EDGES.items()
    }
    papers = np.zeros(nodes.pop("paper"), np.int64)
    return mr.from_relations(edges, papers, target="paper", num_nodes=nodes, add_reverse=True).graph


def stored(part: int, cache: Path) -> Path:
    """The folder of the graph, made on first use: `indptr.npy` int64 [V+1], `indices.npy` int32 [E], `edge_type.npy`
    uint8 [E] (in-edges of a node by relation, then by source), `types.json`, and `seeds.npy`, all papers in a random
    order. Papers are the first nodes."""
    folder = cache / "graphs" / f"mag-shaped-{part}"
    if not (folder / "types.json").exists():
        graph = make(part)
        assert not graph.types.is_single
        folder.mkdir(parents=True, exist_ok=True)
        seeds = np.random.default_rng(0).permutation(graph.types.num_nodes(0))
        arrays: dict[str, Any] = {"indptr": graph.indptr, "indices": graph.indices, "edge_type": graph.edge_type}
        for name, array in {**arrays, "seeds": seeds}.items():
            np.save(folder / f"{name}.npy", array)
        (folder / "types.json").write_text(json.dumps(graph.types.record()))
    return folder


def load(folder: Path) -> mr.Graph:
    """The graph that `stored` left in `folder`."""
    from millrace.storage.typed.graph_types import GraphTypes

    types = GraphTypes.of_record(json.loads((folder / "types.json").read_text()))
    indptr, indices, kind = (np.load(folder / f"{name}.npy") for name in ("indptr", "indices", "edge_type"))
    return mr.Graph(indptr, indices, types=types, edge_type=kind)
