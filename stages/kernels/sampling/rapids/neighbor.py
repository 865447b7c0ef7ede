"""Node-wise sampling by RAPIDS' pylibcugraph 26.10, on one GPU or several: the distributions of `cpu.neighbor`, not its
bits.

Samples depend on which minibatches are sampled together. Checked against the interfaces of 26.10 only
(`tests/contracts/rapids.py`); it has not been run on a GPU yet.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .....storage.array_kinds import AnyArray, IdArray, IntArray, NumberArray
from .....storage.errors import RunError
from .....storage.graph import Graph, index_dtype
from .....storage.optional import taken
from ....rapids import TO_SAMPLE, count_gpus
from ...runtime.once_per_graph import once_per_graph
from ..draws import NeighborDraws
from ..samples import EdgeList, NeighborSample, with_weights

Hop = tuple[IntArray, IntArray, IdArray | None]
"""Destination, source and position in the graph's edge arrays, of each edge of a hop."""


def neighbor(graph: Graph, asked: NeighborDraws, on: "_OnDevice | None" = None) -> list[NeighborSample]:
    """k minibatches of in-neighbours, as `sampling.cpu.neighbor` returns them.

    Args:
        graph: V nodes. It is copied to the GPU once, and stays there for as long as it is the same object.
        asked: the first key is the seed of the whole bulk; the workspace is ignored.
        on: the graph as several GPUs have it, whose processes all call this; None: this process's GPU has it.

    Raises:
        InputError: there is no GPU, or RAPIDS is not installed.
        RunError: cuGraph returned an unexpected result.
    """
    seeds = asked.seeds
    if not seeds and on is None:
        return []
    on = on or _on_device(graph)
    import pylibcugraph

    hops, keep = len(asked.fanout), asked.keep_positions or asked.keep_weights
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in seeds])])
    drawn = pylibcugraph.neighbor_sample(
        on.handle,
        on.graph,
        _moved(np.concatenate([np.empty(0, np.int64), *seeds]).astype(on.dtype)),
        np.array(asked.fanout, np.int32),
        starting_vertex_label_offsets=_moved(offsets.astype(np.int64)),
        with_replacement=asked.replace,
        do_expensive_check=False,
        prior_sources_behavior="exclude" if asked.expand == "new" else "carryover",
        deduplicate_sources=True,
        return_hops=True,
        random_state=int(asked.keys[0, 0] >> np.uint64(1)) if len(seeds) else 0,
        use_edge_weights_as_biases=asked.table is not None,
    )
    if not len(seeds):
        return []
    ends = drawn["label_hop_offsets"].get()
    if len(ends) != len(seeds) * hops + 1:
        raise RunError(
            f'cuGraph returned {len(ends)} offsets for {len(seeds)} minibatches of {hops} hops; use kernel = "cpu"'
        )
    dst, src, place = (drawn[name].get() for name in ("majors", "minors", "edge_id"))
    found = [(dst[a:b], src[a:b], place[a:b].astype(np.int64) if keep else None) for a, b in zip(ends, ends[1:])]
    of_each = [found[i * hops : (i + 1) * hops] for i in range(len(seeds))]
    samples = [_minibatch(s.astype(graph.indices.dtype), h, asked.expand) for s, h in zip(seeds, of_each)]
    if not asked.keep_weights or graph.edge_weight is None:
        return samples
    return with_weights(samples, graph.edge_weight, asked.keep_positions)


@dataclass(frozen=True, eq=False)
class _OnDevice:
    """A graph in the memory of this process's GPU, or its share of a graph that several GPUs hold."""

    handle: object
    graph: Any
    dtype: np.dtype
    """Dtype of its ids."""


class AcrossGpus:
    """`neighbor` by P processes with a GPU each, which share a graph's edges: each draws its own minibatches from the
    whole graph.

    All of them make one and call `neighbor` equally often, at the same time, with or without seeds: each call waits for
    the others.

    Args:
        graph: V nodes, E edges; the same in every process. Only E / P edges go to this one's GPU.
        rank: number of this process, in [0, P).
        size: P.
        unique: result of `new_unique_id` in one of the processes.

    Raises:
        InputError: there is no GPU, or RAPIDS is not installed.
    """

    def __init__(self, graph: Graph, rank: int, size: int, unique: Any) -> None:
        check_available()
        import pylibcugraph
        import pylibcugraph.comms as comms

        # dask-cuda makes each process's own GPU its first.
        comms.cugraph_comms_init(rank, size, unique, device=0)
        handle = pylibcugraph.ResourceHandle(comms.cugraph_comms_get_raft_handle().getHandle())
        # As lists of arrays, of which there is one.
        self.neighbor = partial(neighbor, on=_made_of(graph, handle, rank, size, pylibcugraph.MGGraph, lambda x: [x]))

    def close(self) -> None:
        """Leave the other processes."""
        import pylibcugraph.comms as comms

        # The graph must be freed before its communicator.
        del self.neighbor
        comms.cugraph_comms_shutdown()


def new_unique_id() -> Any:
    """Id by which the processes of an `AcrossGpus` find each other; made by one of them."""
    import pylibcugraph.comms as comms

    return comms.cugraph_comms_create_unique_id()


def check_available() -> int:
    """The number of GPUs.

    Raises:
        InputError: RAPIDS is not installed, or there is no GPU.
    """
    return count_gpus('kernel "cugraph"', 'kernel = "cpu"', TO_SAMPLE)


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


def _by_row(rows: IntArray, sources: IntArray, place: IdArray | None, num_rows: int) -> EdgeList:
    order = np.argsort(rows, kind="stable")
    indptr = np.zeros(num_rows + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=indptr[1:])
    return EdgeList(indptr, sources[order].astype(np.int32), taken(place, order))


@once_per_graph
def _on_device(graph: Graph) -> _OnDevice:
    """The graph on one GPU; copied at first use."""
    check_available()
    import pylibcugraph

    handle, kind = pylibcugraph.ResourceHandle(), partial(pylibcugraph.SGGraph, renumber=True)
    return _made_of(graph, handle, 0, 1, kind, lambda array: array)


def _made_of(
    graph: Graph, handle: object, rank: int, size: int, kind: Callable[..., object], given: Callable[[object], object]
) -> _OnDevice:
    """The share of process `rank` of P in a graph on GPUs: each P-th of the edges and nodes. cuGraph walks from row to
    source: transposed, that is from a node to its in-neighbours."""
    import pylibcugraph

    # Ids and counts of edges have one width.
    dtype = index_dtype(max(graph.num_nodes, graph.num_edges))
    (first, last), nodes = ([n * r // size for r in (rank, rank + 1)] for n in (graph.num_edges, graph.num_nodes))
    row = np.repeat(np.arange(graph.num_nodes, dtype=dtype), np.diff(np.clip(graph.indptr, first, last)))
    arrays: dict[str, NumberArray] = {
        # Ids come with types, or not at all.
        "edge_id_array": np.arange(first, last, dtype=dtype),
        "edge_type_array": np.zeros(last - first, np.int32),
        "vertices_array": np.arange(*nodes, dtype=dtype),
    }
    if graph.edge_weight is not None:
        arrays["weight_array"] = graph.edge_weight[first:last]
    made = kind(
        handle,
        pylibcugraph.GraphProperties(is_symmetric=False, is_multigraph=True),
        *(given(_moved(array)) for array in (row, graph.indices[first:last].astype(dtype))),
        store_transposed=False,
        do_expensive_check=False,
        **{name: given(_moved(array)) for name, array in arrays.items()},
    )
    return _OnDevice(handle, made, dtype)


def _moved(array: AnyArray) -> Any:
    import cupy

    return cupy.asarray(array)
