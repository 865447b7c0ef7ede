"""Memory of a rank in full-batch training, predicted from numbers of rows and edges, without a graph."""

from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from peers.fullbatch_task import FEATURES
from torch import nn

from millrace.stages.fetch.visit import VisitFetch, plan
from millrace.stages.kernels.aggregation.attention_args import EdgeNumbers
from millrace.stages.kernels.aggregation.lists import InLists
from millrace.stages.neighbourhood.full_batch import FullBatch, Shard, View
from millrace.stages.placement.sharded import Share
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph, index_dtype

LAYERS = 3


@dataclass(frozen=True)
class Counts:
    """A layer's needs from one rank's share."""

    dst: int
    src: int
    """Source rows owned by this rank."""
    lists: tuple[int, ...]
    """By rank: rows of this one that read rows of that one."""
    sources: tuple[int, ...]
    """By rank: its rows that this one reads."""
    edges: tuple[int, ...]
    """By rank."""
    wanted: tuple[int, ...]
    """By rank: rows of this one that it reads."""

    def times(self, share: float) -> "Counts":
        """So much of everything."""
        values: list[Any] = [getattr(self, f.name) for f in fields(self)]
        few: list[Any] = [
            tuple(round(n * share) for n in v) if isinstance(v, tuple) else round(v * share) for v in values
        ]
        return Counts(*few)


def random_counts(num_nodes: int, degree: int, size: int) -> Counts:
    """A rank's average share, if each of V nodes draws its in-neighbours from all nodes, and parts are equal."""
    n = num_nodes / size
    per_shard = degree * n / size
    reading = round(n * (1 - (1 - 1 / size) ** degree))
    read = round(n * (1 - (1 - 1 / n) ** per_shard))
    remote = (read,) * (size - 1)
    rows = round(n)
    return Counts(
        rows, rows, (rows, *[reading] * (size - 1)), (rows, *remote), (round(per_shard),) * size, (0, *remote)
    )


def part_counts(
    graph: Graph, owner: npt.NDArray[np.int32], seeds: npt.NDArray[np.int64], size: int
) -> list[list[Counts]]:
    """For each rank: what each layer needs, from the input on, and in the end all rows and edges."""
    rows = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    hops = np.full(graph.num_nodes, LAYERS + 1)
    hops[seeds] = 0
    for k in range(LAYERS):
        near = graph.indices[hops[rows] == k]
        hops[near] = np.minimum(hops[near], k + 1)
    found: list[list[Counts]] = [[] for _ in range(size)]
    for k in [*reversed(range(LAYERS)), LAYERS + 1]:
        of = hops[rows] <= k
        v, u = rows[of], graph.indices[of].astype(np.int64)
        there = owner[u].astype(np.int64)
        edges = np.bincount(owner[v] * size + there, minlength=size**2).reshape(size, size)
        reading = np.unique(v * size + there)
        lists = np.bincount(owner[reading // size] * size + reading % size, minlength=size**2).reshape(size, size)
        read = np.unique(owner[v].astype(np.int64) * graph.num_nodes + u)
        sources = np.bincount(
            read // graph.num_nodes * size + owner[read % graph.num_nodes], minlength=size**2
        ).reshape(size, size)
        dst, src = (np.bincount(owner[hops <= end], minlength=size) for end in (k, k + 1))
        for p in range(size):
            wanted = np.where(np.arange(size) == p, 0, sources[:, p])
            found[p].append(
                Counts(
                    int(dst[p]), int(src[p]), *(tuple(map(int, c)) for c in (lists[p], sources[p], edges[p], wanted))
                )
            )
    return found


def _zeros(n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), n)


def _view(counts: Counts, rank: int) -> View:
    def shard(q: int) -> Shard:
        lists, sources = (counts.dst, counts.src) if q == rank else (counts.lists[q], counts.sources[q])
        edges = InLists(_zeros(lists + 1, np.int64), _zeros(counts.edges[q], np.int32), sources)
        place = _zeros(counts.edges[q], index_dtype(sum(counts.edges)))
        return Shard(edges, None if q == rank else _zeros(lists, np.int32), place, None)

    wanted = tuple(_zeros(n, np.int32) for n in counts.wanted)
    return View(counts.dst, counts.src, tuple(shard(q) for q in range(len(counts.edges))), wanted)


def predicted(counts: list[Counts], rank: int, num_seeds: int, policy: VisitFetch, module: nn.Module) -> int:
    """Bytes of a rank with these counts, of each layer and of the whole."""
    *layers, whole = (_view(c, rank) for c in counts)
    n = whole.num_src
    ids = _zeros(n, np.int64)
    degree = torch.zeros((), dtype=torch.float64).expand(n)
    batch = FullBatch(rank, ids, ids, num_seeds, EdgeNumbers(ids, ids, None), whole, tuple(layers), degree)
    features = ArrayFeatures(np.broadcast_to(np.float32(0), (n, FEATURES)))
    share = Share(batch, features, torch.zeros(1, dtype=torch.int64).expand(n), {})
    size = len(whole.shards)
    group: Any = SimpleNamespace(rank=rank, size=size, all_reduce=lambda flat, kind: None)
    # One rank has nobody to visit, whatever the mode.
    modes = policy.for_layers(LAYERS) if size > 1 else ("halo",) * LAYERS
    _, step = plan(share, modes, policy, group, module)
    return batch.nbytes + n * FEATURES * features.dtype.itemsize + step + model_bytes(module)


def model_bytes(module: nn.Module) -> int:
    """Bytes of parameters, gradients and Adam's two moments."""
    return 4 * sum(p.nbytes for p in module.parameters())
