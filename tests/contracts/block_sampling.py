"""Graphs, samplers and requests for sampling over block rows, and the comparison with serial minibatches."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from millrace.stages.assignment import BulkRequest
from millrace.stages.comm.base import Group
from millrace.stages.kernels.sampling import layerwise
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.placement.row_blocks import BlockRows
from millrace.stages.placement.row_owners import Owners
from millrace.stages.sample.base import Sampler
from millrace.stages.sample.fastgcn import FastGCNSampler
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph, from_edges
from millrace.storage.minibatch import Bulk, MiniBatch
from millrace.storage.partition.book import RangeBook

LAYERED = (LadiesSampler, FastGCNSampler)
FIELDS = ("src", "indptr", "indices", "weight", "edge_id")


def skewed(nodes: int, edges: int, *, weighted: bool, hub: int = 0, ids: Any = np.int32) -> Graph:
    """Sources and destinations of unlike degrees, loops, multi-edges, a hub, the last tenth isolated; weights 0 and of
    unlike size, and a row that has no other."""
    rng = np.random.default_rng([nodes, edges, weighted])
    linked = max(1, nodes - nodes // 10)
    src, dst = (rng.random(edges) ** 2 * linked).astype(np.int64), (rng.random(edges) ** 1.5 * linked).astype(np.int64)
    dst[:hub] = linked // 2
    src[-edges // 20 :] = dst[-edges // 20 :]
    weight = rng.choice([0.0, 1e-6, 0.25, 1.0, 3.7, 30.0], edges) * rng.random(edges)
    weight[dst == linked // 3] = 0
    graph = from_edges(src, dst, nodes, edge_weight=weight if weighted else None)
    return Graph(graph.indptr, graph.indices.astype(ids), graph.edge_weight)


def block_rows(graph: Graph, book: RangeBook, block: int, column: Group | None) -> BlockRows:
    lo, hi = int(book.offsets[block]), int(book.offsets[block + 1])
    e = slice(int(graph.indptr[lo]), int(graph.indptr[hi]))
    weight = graph.edge_weight
    rows = Graph(
        graph.indptr[lo : hi + 1] - graph.indptr[lo],
        graph.indices[e].copy(),
        None if weight is None else weight[e].copy(),
        types=graph.types,
        edge_type=None if graph.edge_type is None else graph.edge_type[e].copy(),
    )
    none = np.empty(0, np.int64)
    return BlockRows(
        rows,
        ArrayFeatures(np.zeros((hi - lo, 1), np.float32)),
        torch.zeros(hi - lo),
        torch.zeros(hi - lo),
        Split(none, none, none),
        book=book,
        block=block,
        first_edge=e.start,
        heaviest=1.0 if weight is None else float(weight.max(initial=0.0)),
        column=column,
    )


def random_book(rng: np.random.Generator, nodes: int, blocks: int) -> RangeBook:
    """Blocks of any size; of three or more, one is empty."""
    cuts = np.sort(rng.integers(0, nodes + 1, blocks - 1))
    if blocks > 2:
        i = int(rng.integers(blocks - 2))
        cuts[i + 1] = cuts[i]
    return RangeBook(np.concatenate([[0], cuts, [nodes]]).astype(np.int64)).check()


def random_request(rng: np.random.Generator, nodes: int, minibatches: int, most_seeds: int) -> BulkRequest:
    indices = np.sort(rng.choice(50, minibatches, replace=False)).tolist()
    seeds = tuple(rng.permutation(nodes)[: rng.integers(1, most_seeds + 1)] for _ in indices)
    return BulkRequest(int(rng.integers(2**40)), 2, 7, indices[0] if indices else 0, seeds, indices)


def unlike(got: Bulk, want: Bulk) -> list[str]:
    """Differences, down to dtypes and the bits of floats."""
    if (got.epoch, got.number, len(got.minibatches)) != (want.epoch, want.number, len(want.minibatches)):
        return [f"bulk {got.epoch}, {got.number} of {len(got.minibatches)}"]
    wrong = []
    for i, (a, b) in enumerate(zip(got.minibatches, want.minibatches)):
        if (a.epoch, a.index, a.nested, len(a.blocks)) != (b.epoch, b.index, b.nested, len(b.blocks)):
            wrong.append(f"minibatch {i}: {a.epoch}, {a.index}, {a.nested}, {len(a.blocks)} blocks")
            continue
        for layer, (p, q) in enumerate(zip(a.blocks, b.blocks)):
            if p.num_dst != q.num_dst:
                wrong.append(f"minibatch {i}, block {layer}: num_dst {p.num_dst}, not {q.num_dst}")
            for name in FIELDS:
                u, v = getattr(p, name), getattr(q, name)
                if (u is None) != (v is None) or (
                    u is not None and (u.dtype != v.dtype or u.shape != v.shape or u.tobytes() != v.tobytes())
                ):
                    wrong.append(f"minibatch {i}, block {layer}: {name} is {u!r:.200}, not {v!r:.200}")
    return wrong


def compare(
    owners: Owners, graph: Graph, sampler: Sampler, request: BulkRequest, what: object, serial: Bulk | None = None
) -> list[str]:
    """One bulk by owners beside the serial one, which is drawn if it is not given."""
    try:
        got = sampler.sample_by_owners(owners, request)
        # Not of no minibatches: the compiled layer-wise kernels and the serial bulk have nothing to say of them.
        want = serial
        if want is None:
            want = sampler.sample(graph, request, cpu) if request.seeds else Bulk(request.epoch, request.number, ())
        return [f"{what}: {sampler}: {line}" for line in unlike(got, want)]
    except Exception as e:
        e.add_note(f"{what}: {sampler}, seeds {request.seeds}")
        raise


def few_samplers(weighted: bool) -> list[Any]:
    """One of each kind, for graphs that are odd in themselves."""
    found: list[Any] = [
        NeighborSampler((-1, 2), expand="all", edge_ids=True),
        LaborSampler((3, -1), poisson=True, edge_ids=True),
        LaborSampler((3, 2), poisson=True, expand="all"),
        LadiesSampler((3, 9), "bottom_k", edge_ids=True),
        FastGCNSampler((9, 3), "ratio"),
    ]
    return [*found, NeighborSampler((3, 2), weighted=True, replace=True, edge_ids=True)] if weighted else found


def all_samplers(weighted: bool) -> list[Any]:
    found: list[Any] = [
        NeighborSampler((4, 3)),
        NeighborSampler((-1, 2, 3), edge_ids=True),
        NeighborSampler((5, 70), replace=True),
        NeighborSampler((100, 65)),
        LaborSampler((4, -1)),
        LaborSampler((4, 3), expand="all", edge_ids=True),
        LaborSampler((70, 2), poisson=True),
        *(kind((8, 20), "none") for kind in LAYERED),
        *(kind((8, 60), "bottom_k") for kind in LAYERED),
    ]
    if not weighted:
        return found
    return [
        *found,
        NeighborSampler((4, 3), expand="all", edge_ids=True),
        NeighborSampler((3, 2), expand="all", replace=True),
        NeighborSampler((-1, 2), replace=True),
        NeighborSampler((65536, 65535, 256, 255), edge_ids=True),
        NeighborSampler((4, 100), weighted=True),
        LaborSampler((4, 3), weighted=True),
        NeighborSampler((4, -1, 3), weighted=True, replace=True, edge_ids=True),
        NeighborSampler((-1, 70), weighted=True, expand="all"),
        *(kind((60, 400), "ratio") for kind in LAYERED),
        *(kind((20, 8), "with_replacement") for kind in LAYERED),
    ]


def worlds() -> Iterator[tuple[str, Graph, list[Any]]]:
    """Graphs, and the samplers that are tried on each."""
    for weighted in (False, True):
        yield f"hub, weighted: {weighted}", skewed(97, 1000, weighted=weighted, hub=330), all_samplers(weighted)
    yield "no edges", from_edges([], [], 11), few_samplers(False)
    yield "a node without edges", from_edges([], [], 1, edge_weight=[]), few_samplers(True)
    yield "loops of one node", from_edges([0] * 3, [0] * 3, 1, edge_weight=[0.0, 2.0, 0.5]), few_samplers(True)
    yield "fewer nodes than ranks", skewed(5, 9, weighted=True), few_samplers(True)
    yield "weights that are all 0", from_edges([0, 1, 2, 2], [1, 0, 0, 0], 4, edge_weight=[0.0] * 4), few_samplers(True)
    yield "int64 ids", skewed(40, 200, weighted=True, ids=np.int64), few_samplers(True)


def random_graph(rng: np.random.Generator) -> Graph:
    """Empty rows, isolated nodes, loops, multi-edges, hubs, one node, no edges; with weights 0 and of unlike size, or
    without."""
    n = int(rng.integers(1, 40))
    e = int(rng.choice([0, n // 2, 3 * n, 12 * n, 300]))
    src, dst = rng.integers(n, size=(2, e))
    dst[: rng.choice([0, e // 2])] = rng.integers(n)
    weight = rng.choice([0.0, 1e-6, 0.25, 1.0, 30.0], e) if rng.random() < 0.5 else None
    return from_edges(src, dst, n, edge_weight=weight)


def random_sampler(rng: np.random.Generator, weighted: bool) -> Any:
    layers = int(rng.integers(1, 4))
    kind = int(rng.integers(4))
    if kind > 1:
        sizes = tuple(int(s) for s in rng.choice([1, 2, 7, 30, 300], layers))
        return LAYERED[kind - 2](sizes, str(rng.choice(layerwise.DEBIAS)), bool(rng.integers(2)))
    fanout = tuple(int(s) for s in rng.choice([-1, 1, 2, 3, 7, 64, 65, 255, 256], layers))
    if kind == 1:
        return LaborSampler(fanout, bool(rng.integers(2)))
    replace, by_weight, edge_ids = (bool(b) for b in rng.integers(2, size=3))
    return NeighborSampler(fanout, replace, by_weight and weighted, "all" if rng.integers(2) else "new", edge_ids)


def frontiers(m: MiniBatch) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each hop, nearest the seeds first: the rows that were drawn for, and the edges that each got."""
    known = 0
    for block in reversed(m.blocks):
        yield block.src[known : block.num_dst], np.diff(block.indptr)[known:]
        known = block.num_dst if m.nested else 0
