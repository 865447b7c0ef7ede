"""Node-wise sampling by RAPIDS' pylibcugraph 26.10 on one GPU: the laws of `sample_cpu`, not its bits.

What it draws depends on which minibatches are sampled together. Checked against the interfaces of 26.10 only
(`tests/contracts/rapids.py`); it has not been run on a GPU yet.
"""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ...storage.errors import RunError
from ...storage.graph import Graph, index_dtype
from ..rapids import count_gpus
from .sampled import EdgeList, NeighborSample

IntArray = npt.NDArray[np.integer]
Hop = tuple[IntArray, IntArray, npt.NDArray[np.int64] | None]
"""Destination, source and place in the graph's edge arrays, of each edge of a hop."""


def neighbor(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.int64]],
    keys: npt.NDArray[np.uint64],
    fanout: tuple[int, ...],
    *,
    replace: bool = False,
    probability: npt.NDArray[np.int64] | None = None,
    expand: str = "new",
    keep_positions: bool = False,
    workspace: Any = None,
) -> list[NeighborSample]:
    """k minibatches of in-neighbours, as `kernels.cpu.neighbor` returns them.

    Args:
        graph: V nodes. It is copied to the GPU once, and stays there for as long as it is the same object.
        seeds: k vectors of distinct nodes.
        keys: uint64 [k, L]; the first is the seed of the whole bulk.
        fanout: L numbers, nearest the seeds first; -1 takes all.
        replace: draw independently.
        probability: where it is given, edges are drawn in proportion to the graph's weights.
        expand: ``new``: each node once, when it is found; ``all``: all nodes so far at each hop.
        keep_positions: where each edge lies in the graph's edge arrays.
        workspace: ignored.

    Raises:
        InputError: there is no GPU, or RAPIDS is not installed.
        RunError: cuGraph returned something else than was asked for.
    """
    if not seeds:
        return []
    count_gpus("sampling by cuGraph", 'kernel = "cpu"')
    import cupy  # pyright: ignore[reportMissingImports]
    import pylibcugraph  # pyright: ignore[reportMissingImports]

    handle, on_device, dtype = _on_device(graph)
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in seeds])])
    drawn = pylibcugraph.neighbor_sample(
        handle,
        on_device,
        cupy.asarray(np.concatenate(seeds).astype(dtype)),
        np.array(fanout, np.int32),
        starting_vertex_label_offsets=cupy.asarray(offsets.astype(np.int64)),
        with_replacement=replace,
        do_expensive_check=False,
        prior_sources_behavior="exclude" if expand == "new" else "carryover",
        deduplicate_sources=True,
        return_hops=True,
        random_state=int(keys[0, 0] >> np.uint64(1)),
        use_edge_weights_as_biases=probability is not None,
    )
    ends = drawn["label_hop_offsets"].get()
    if len(ends) != len(seeds) * len(fanout) + 1:
        raise RunError(f'cuGraph returned {len(ends)} offsets for {len(seeds)} minibatches of {len(fanout)} hops; use kernel = "cpu"')
    dst, src, place = (drawn[name].get() for name in ("majors", "minors", "edge_id"))
    hops = [(dst[a:b], src[a:b], place[a:b].astype(np.int64) if keep_positions else None) for a, b in zip(ends, ends[1:])]
    of_each = [hops[i * len(fanout) : (i + 1) * len(fanout)] for i in range(len(seeds))]
    return [_minibatch(s.astype(graph.indices.dtype), h, expand) for s, h in zip(seeds, of_each)]


def _minibatch(seeds: IntArray, hops: list[Hop], expand: str) -> NeighborSample:
    nodes, node_ends = seeds, [len(seeds)]
    for _, src, _ in hops:
        nodes = np.concatenate([nodes, np.setdiff1d(src, nodes).astype(nodes.dtype)])
        node_ends.append(len(nodes))
    order = np.argsort(nodes)
    ascending = nodes[order]
    lists: list[Hop] = []
    for h, (dst, src, place) in enumerate(hops):
        at = np.minimum(np.searchsorted(ascending, dst), len(nodes) - 1)
        rows = order[at]
        first = node_ends[h - 1] if h and expand == "new" else 0
        if (ascending[at] != dst).any() or (rows < first).any() or (rows >= node_ends[h]).any():
            raise RunError(f'cuGraph expanded nodes that are not in the frontier of hop {h + 1}; use kernel = "cpu"')
        lists.append((rows, order[np.searchsorted(ascending, src)], place))
    if expand == "new":
        columns = list(zip(*lists))
        place = None if lists[0][2] is None else np.concatenate(columns[2])
        lists, rows_of = [(np.concatenate(columns[0]), np.concatenate(columns[1]), place)], [node_ends[-2]]
    else:
        rows_of = node_ends[:-1]
    return NeighborSample(nodes, tuple(node_ends), tuple(_by_row(*edges, rows) for edges, rows in zip(lists, rows_of)))


def _by_row(rows: IntArray, sources: IntArray, place: npt.NDArray[np.int64] | None, num_rows: int) -> EdgeList:
    order = np.argsort(rows, kind="stable")
    indptr = np.zeros(num_rows + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=indptr[1:])
    return EdgeList(indptr, sources[order].astype(np.int32), None if place is None else place[order])


_graphs: WeakKeyDictionary[Graph, tuple[Any, Any, np.dtype]] = WeakKeyDictionary()


def _on_device(graph: Graph) -> tuple[Any, Any, np.dtype]:
    """A handle, the graph on the GPU, and the dtype of its ids."""
    if graph not in _graphs:
        import cupy  # pyright: ignore[reportMissingImports]
        import pylibcugraph  # pyright: ignore[reportMissingImports]

        # Ids and counts of edges are of one width.
        dtype = index_dtype(max(graph.num_nodes, graph.num_edges))
        handle = pylibcugraph.ResourceHandle()
        on_device = pylibcugraph.SGGraph(
            handle,
            pylibcugraph.GraphProperties(is_symmetric=False, is_multigraph=True),
            # cuGraph walks from the first of these to the second: transposed, that is from a node to its in-neighbours.
            cupy.asarray(np.repeat(np.arange(graph.num_nodes, dtype=dtype), graph.in_degree)),
            cupy.asarray(graph.indices.astype(dtype)),
            weight_array=None if graph.edge_weight is None else cupy.asarray(graph.edge_weight),
            store_transposed=False,
            renumber=True,
            do_expensive_check=False,
            # Ids come with types, or not at all.
            edge_id_array=cupy.asarray(np.arange(graph.num_edges, dtype=dtype)),
            edge_type_array=cupy.asarray(np.zeros(graph.num_edges, np.int32)),
            vertices_array=cupy.asarray(np.arange(graph.num_nodes, dtype=dtype)),
        )
        _graphs[graph] = handle, on_device, dtype
    return _graphs[graph]
