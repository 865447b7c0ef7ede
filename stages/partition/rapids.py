"""Communities of a graph by RAPIDS cuGraph 26.10, on one GPU or, through Dask, on all of this machine.

Processes with a GPU each read the rows of a stored graph, a range of them at a time; the caller's reads none.

Modules and arguments follow the files of the 26.10 wheels; `tests/contracts/rapids.py` checks them.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial, reduce
from types import ModuleType
from typing import Any, Literal

import numpy as np

from ...storage.array_kinds import IdArray, IntArray, Mask
from ...storage.errors import InputError
from ...storage.graph import Graph, TakenRows, index_dtype
from ..rapids import gpu_cluster
from .rows import RowSource

Algorithm = Literal["louvain", "leiden"]
Frame = Any
"""cuDF's."""
Find = Callable[[Algorithm, float, int], tuple[IntArray, IntArray]]
"""(algorithm, resolution, seed) -> nodes, each once, and the community of each. Nodes without a neighbour may be
absent."""

NAMES = {"source": "low", "destination": "high", "edge_attr": "weight"}
SLICES_PER_GPU = 2
"""Number of slices that `Graph.from_dask_cudf_edgelist` makes."""
ROWS = 2_147_483_100
"""Rows of a frame, at most: of those that cuGraph takes on one GPU. cuDF's may have 547 more."""
EDGES = 1 << 26
"""Edges of a range of rows that a task reads, on average, at most; and of those that a GPU sorts at a time."""


@dataclass(frozen=True)
class Communities:
    """A graph on GPUs: its pairs of neighbours, whatever the direction and number of the edges between them, which are
    their weight."""

    find: Find
    in_degree: IdArray
    """int64 [V], self loops included."""
    joined: Mask
    """[V], True for nodes that have a neighbour."""


@contextmanager
def communities(graph: RowSource, gpus: int) -> Iterator[Communities]:
    """Context with a graph on `gpus` GPUs, in which communities can be found.

    Args:
        graph: V nodes, in memory or stored where processes of this machine can read it.
        gpus: from `stages.rapids.count_gpus`. Unless there is one, and the graph is in memory, a cluster of this
            machine with a process for each is started and ended.
    """
    v, e = graph.num_nodes, graph.num_edges
    if gpus == 1 and isinstance(graph, Graph):
        rows = graph.rows(0, v)
        here = cache(lambda: _on_one([_pairs(rows, 0, v, e)], v))
        yield Communities(lambda a, r, s: _found(here(), a, r, s), _degrees(rows), _joined(rows, 0, v))
        return
    with gpu_cluster(gpus) as client:
        submit, count = partial(client.submit, pure=False), max(gpus * SLICES_PER_GPU, -(-e // EDGES))
        first, stop = ([v * (i + after) // count for i in range(count)] for after in (0, 1))
        if isinstance(graph, Graph):
            slices = client.scatter([graph.rows(a, b) for a, b in zip(first, stop)], hash=False)
        else:
            slices = [submit(graph.rows, a, b) for a, b in zip(first, stop)]
        degrees = [submit(_degrees, rows) for rows in slices]
        joined = [submit(_joined, rows, a, v) for rows, a in zip(slices, first)]
        frames = [submit(_pairs, rows, a, v, e) for rows, a in zip(slices, first)]
        # Rows go from the host's memory once they are pairs on a GPU.
        del slices
        in_degree = np.concatenate(client.gather(degrees))
        has_neighbour = reduce(partial(submit, np.logical_or), joined).result()
        del degrees, joined
        if gpus == 1:

            @cache
            def made() -> Any:
                graph = submit(_on_one, frames, v)
                frames.clear()  # the task keeps what it needs of them
                return graph

            yield Communities(lambda a, r, s: submit(_found, made(), a, r, s).result(), in_degree, has_neighbour)
        else:
            with _over_all(client, frames, v, e) as find:
                yield Communities(find, in_degree, has_neighbour)


def _degrees(rows: TakenRows) -> IdArray:
    return np.diff(rows.indptr)


def _ends(rows: TakenRows, first: int) -> tuple[IdArray, IntArray]:
    """Both ends of each edge of the rows from node `first` on, without self loops."""
    dst = first + np.repeat(np.arange(len(rows.first_edge)), np.diff(rows.indptr))
    kept = dst != rows.indices
    return dst[kept], rows.indices[kept]


def _joined(rows: TakenRows, first: int, num_nodes: int) -> Mask:
    found = np.zeros(num_nodes, np.bool_)
    for ends in _ends(rows, first):
        found[ends] = True
    return found


def _pairs(rows: TakenRows, first: int, num_nodes: int, num_edges: int) -> Frame:
    """The ends of each edge, the smaller first, on the GPU."""
    import cudf

    # Both directions of each pair are counted by indices of the same width.
    a, b = (ends.astype(index_dtype(max(num_nodes, 2 * num_edges))) for ends in _ends(rows, first))
    frames = []
    for at in (slice(i, i + EDGES) for i in range(0, max(len(a), 1), EDGES)):
        ends = {"low": np.minimum(a[at], b[at]), "high": np.maximum(a[at], b[at])}
        frames.append(_merged(cudf.DataFrame(ends | {"weight": np.ones(len(ends["low"]), np.float32)}), num_nodes))
    return _all_merged(frames, num_nodes)


def _keys(frame: Frame, num_nodes: int) -> Any:
    """int64, ascending as the pairs do."""
    import cupy

    low, high = (cupy.asarray(frame[name]).astype("int64") for name in ("low", "high"))
    return low * num_nodes + high


def _merged(frame: Frame, num_nodes: int, **_: object) -> Frame:
    """Each pair once, in order, with the sum of its rows' weights, which are counts."""
    import cudf
    import cupy

    if not len(frame):
        return frame
    frame = frame.sort_values(["low", "high"], ignore_index=True)
    key, count = _keys(frame, num_nodes), cupy.asarray(frame["weight"]).astype("int64")
    first = cupy.searchsorted(key, key) == cupy.arange(len(key), dtype="int64")
    total = cupy.cumsum(count)
    sums = total[cupy.searchsorted(key, key[first], side="right") - 1] - total[first] + count[first]
    low, high = (cupy.asarray(frame[name])[first] for name in ("low", "high"))
    return cudf.DataFrame({"low": low, "high": high, "weight": sums.astype("float32")})


def _all_merged(frames: list[Frame], num_nodes: int) -> Frame:
    """All pairs of some frames, each of which has a pair once, in order.

    Raises:
        InputError: they are more than a frame can have.
    """
    import cudf

    ranges = [*_in_ranges(frames, num_nodes)]
    if (pairs := sum(map(len, ranges))) > ROWS:
        raise InputError(
            f"one GPU would cut {pairs} pairs of neighbours, but cuGraph takes at most {ROWS} on one; cut on several "
            "GPUs, or use 'metis-work'"
        )
    return cudf.concat(ranges, ignore_index=True) if len(ranges) > 1 else ranges[0]


def _in_ranges(frames: list[Frame], num_nodes: int) -> Iterator[Frame]:
    """Frames merged in ranges of pairs, so many that none of them has more than `ROWS` rows before. In each, two at a
    time: what they share is in memory once when the next ones come."""
    import cudf
    import cupy

    if sum(map(len, frames)) > ROWS and max(map(len, frames)) > 1:
        keys = [_keys(frame, num_nodes) for frame in frames]
        largest = max(range(len(keys)), key=lambda i: len(keys[i]))
        middle = keys[largest][len(keys[largest]) // 2 :][:1]
        cuts = [int(cupy.searchsorted(key, middle)[0]) for key in keys]
        del keys
        for below in (True, False):
            halves = ((f, slice(at) if below else slice(at, None)) for f, at in zip(frames, cuts))
            part = [cudf.DataFrame({n: cupy.asarray(f[n])[at] for n in NAMES.values()}) for f, at in halves]
            yield from _in_ranges(part, num_nodes)
        return
    left = deque(frames)
    while len(left) > 1:
        left.append(_merged(cudf.concat([left.popleft(), left.popleft()], ignore_index=True), num_nodes))
    yield left[0]


def _on_one(frames: list[Frame], num_nodes: int) -> Any:
    """The graph on one GPU."""
    import cugraph

    graph = cugraph.Graph(directed=False)
    graph.from_cudf_edgelist(_all_merged(frames, num_nodes), **NAMES)
    return graph


def _found(graph: Any, algorithm: Algorithm, resolution: float, seed: int) -> tuple[IntArray, IntArray]:
    import cugraph

    return _on_host(_called(cugraph, graph, algorithm, resolution, seed))


@contextmanager
def _over_all(client: Any, frames: list[Frame], num_nodes: int, num_edges: int) -> Iterator[Find]:
    # After the cluster: these set up the first GPU for this process, which must not happen before workers start.
    import cudf
    import cugraph
    import cugraph.dask as on_all
    import cugraph.dask.comms.comms as comms
    import dask_cudf

    @cache
    def made() -> Any:
        ids = np.empty(0, index_dtype(max(num_nodes, 2 * num_edges)))
        empty = cudf.DataFrame({"low": ids, "high": ids, "weight": np.empty(0, np.float32)})
        edges = dask_cudf.from_delayed(frames, meta=empty, verify_meta=False)
        # All rows of a pair meet in one partition. Shuffled by tasks: p2p goes through Arrow in host memory.
        merge = partial(_merged, num_nodes=num_nodes)
        pieces = client.compute(edges.sort_values("low", sort_function=merge, shuffle_method="tasks").to_delayed())
        frames.clear()  # the tasks keep what they need of them
        # Of a sorted collection Dask takes columns before they are sorted, and believes that all rows are kept.
        merged = dask_cudf.from_delayed(pieces, meta=empty, verify_meta=False)
        graph = cugraph.Graph(directed=False)
        graph.from_dask_cudf_edgelist(merged, **NAMES)
        return graph

    comms.initialize(p2p=True)
    try:
        yield lambda a, r, s: _on_host(_called(on_all, made(), a, r, s).compute())
    finally:
        comms.destroy()


def _called(module: ModuleType, graph: Any, algorithm: Algorithm, resolution: float, seed: int) -> Any:
    """Arguments of the algorithm: Louvain takes no seed."""
    if algorithm == "louvain":
        return module.louvain(graph, resolution=resolution)[0]
    return module.leiden(graph, resolution=resolution, random_state=seed)[0]


def _on_host(frame: Frame) -> tuple[IntArray, IntArray]:
    return frame["vertex"].to_numpy(), frame["partition"].to_numpy()
