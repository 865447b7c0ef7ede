"""The sampling kernels of a GPU, in Triton and torch, under the names that every backend exports.

Converts NumPy arrays to tensors and back, or leaves results on the device (`*_pieces`); see `cuda.neighbor` and
`cuda.layerwise` for the algorithms, and `cuda.matrix` for samplers that are written as matrices.
Nothing here needs numba, which the machine with the GPU may lack.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace as with_fields
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from .....storage.graph import Graph
from ...runtime.device_memory import to_device
from ...runtime.triton_rng import device
from ..alias import AliasTable
from ..device_graph import DeviceGraph, number_on_device, on_device
from ..device_samples import Rows, prefix_sums
from ..device_times import DeviceTimes, TimedSample, place_times, times_on_device
from ..layerwise import LayerSample
from ..samples import EdgeList, Fanouts, NeighborSample, with_weights
from . import labor as labor_cuda
from . import layerwise as layerwise_cuda
from . import matrix
from . import neighbor as sample_cuda
from . import temporal as temporal_cuda
from .block_rows import AllNodes, Answers, draw_rows, draw_typed_rows, neighbor_of_owners, rows_of
from .draw import Drawn, cumulated
from .labor_relations import draw_labor_relations, hops_of
from .relations import segments_of, weights
from .tables import Tables, Workspace, at_once, table_bytes
from .temporal import degrees_until, look_up
from .terms import terms

__all__ = [
    "AllNodes", "Answers", "Workspace", "at_once", "cumulated", "degrees_until", "device", "draw_rows",
    "draw_typed_rows", "labor", "labor_pieces", "layer_pieces", "layers", "look_up", "matrix",
    "neighbor", "neighbor_of_owners", "neighbor_pieces", "place_times", "relation_weights",
    "relation_weights_of", "rows_of", "table_bytes", "temporal_pieces", "times_on_device",
]  # fmt: skip


def _pieces(graph: DeviceGraph, k: int) -> Iterator[slice]:
    """Ranges of minibatches whose tables fit together."""
    step = at_once(graph.num_nodes)
    for at in range(0, k, step):
        yield slice(at, min(k, at + step))


def _flat(graph: DeviceGraph, seeds: Sequence[npt.NDArray[np.integer]]) -> tuple[Tensor, npt.NDArray[np.int64]]:
    """All seeds, and the number of seeds of each minibatch."""
    flat = np.concatenate([np.asarray(s, np.int64) for s in seeds])
    return to_device(flat, graph.device).to(graph.indices.dtype), np.array([len(s) for s in seeds], np.int64)


def _cut(values: Tensor | None, counts: npt.NDArray[np.int64]) -> list[Any]:
    """Each minibatch's part, on the host, which waits for it."""
    if values is None:
        return [None] * len(counts)
    return np.split(values.cpu().numpy(), prefix_sums(counts)[1:-1])


def _samples(made: sample_cuda.DeviceSample) -> list[NeighborSample]:
    nodes = _cut(made.rows.nodes, made.node_ends[-1])
    ends = np.stack(made.node_ends, axis=1).tolist()
    lists = [
        [
            EdgeList(*parts)
            for parts in zip(_cut(x.indptr, x.rows + 1), _cut(x.indices, x.edges), _cut(x.positions, x.edges))
        ]
        for x in made.lists
    ]
    return [NeighborSample(nodes[q], tuple(ends[q]), tuple(x[q] for x in lists)) for q in range(len(nodes))]


def relation_weights(
    graph: Graph, positions: Tensor | None, indptr: Tensor, drawn: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """float32 [e], weights of edges that were drawn by relation, for lists that end at `indptr`: the number of a row's
    edges in each edge's relation, divided by that of those kept.

    With `drawn`, the hop of each row by its place in `indptr` and the fanout of each hop and relation, int64 [L, R], it
    is divided by the fanout: the edges are those of Poisson draws.
    """
    assert positions is not None
    return weights(segments_of(graph), positions, indptr, drawn)


def relation_weights_of(
    graph: Graph, made: sample_cuda.DeviceSample, by_relation: npt.NDArray[np.int64] | None = None
) -> list[Tensor]:
    """`relation_weights` of each list of some minibatches; of Poisson draws with these fanouts, if they are given."""
    to = made.rows.nodes.device
    fanout = None if by_relation is None else to_device(by_relation, to)
    drawn = [None if fanout is None else (hops_of(made, h), fanout) for h in range(len(made.lists))]
    return [relation_weights(graph, x.positions, x.indptr, d) for x, d in zip(made.lists, drawn)]


def _with_weights(
    graph: Graph, made: sample_cuda.DeviceSample, by_relation: npt.NDArray[np.int64] | None = None
) -> list[NeighborSample]:
    """`_samples` with `relation_weights_of`."""
    found = [_cut(w, x.edges) for w, x in zip(relation_weights_of(graph, made, by_relation), made.lists)]
    return [
        with_fields(s, lists=tuple(with_fields(x, weight=w[q]) for x, w in zip(s.lists, found)))
        for q, s in enumerate(_samples(made))
    ]


def neighbor_pieces(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Fanouts,
    *,
    replace: bool = False,
    table: AliasTable | None = None,
    expand: str = "new",
    keep_positions: bool = False,
    workspace: Workspace | None = None,
) -> Iterator[tuple[slice, sample_cuda.DeviceSample]]:
    """`neighbor` with its result on the device, in pieces: ranges of minibatches, each with its samples."""
    on, space = on_device(graph), workspace if workspace is not None else Workspace()
    slots = None if table is None else on.with_table(table)
    segments = None if graph.types.is_single else segments_of(graph)
    for piece in _pieces(on, len(seeds)):
        flat, counts = _flat(on, seeds[piece])
        streams = to_device(np.ascontiguousarray(keys[piece].T).view(np.int64), on.device)
        yield (
            piece,
            sample_cuda.neighbor(
                on, flat, counts, streams, fanout,
                replace=replace, table=slots, again=expand == "all", keep=keep_positions, workspace=space,
                segments=segments,
            ),
        )  # fmt: skip


def neighbor(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Fanouts,
    *,
    keep_positions: bool = False,
    keep_weights: bool = False,
    **options: Any,
) -> list[NeighborSample]:
    """See `cpu.neighbor.neighbor`: the same arguments, the same bits.

    Raises:
        InputError: there is no GPU.
        RunError: a minibatch has more edges than its lists can index.
    """
    keep = keep_positions or keep_weights
    pieces = neighbor_pieces(graph, seeds, keys, fanout, keep_positions=keep, **options)
    if not graph.types.is_single:
        return [s for _, made in pieces for s in _with_weights(graph, made)]
    samples = [s for _, made in pieces for s in _samples(made)]
    if not keep_weights or graph.edge_weight is None:
        return samples
    return with_weights(samples, graph.edge_weight, keep_positions)


def labor_pieces(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Fanouts,
    *,
    poisson: bool = False,
    weight: npt.NDArray[np.float32] | None = None,
    expand: str = "new",
    keep_positions: bool = True,
    iterations: int = 0,
    workspace: Workspace | None = None,
) -> Iterator[tuple[slice, sample_cuda.DeviceSample]]:
    """`labor` with its result on the device; see `neighbor_pieces`. Positions are there in any case; there are no
    `iterations`."""
    assert not iterations, "see `stages.sample.base.check_kernel`"
    on, space = on_device(graph), workspace if workspace is not None else Workspace()
    weights = None if weight is None else number_on_device(graph, "edge_weight")
    for piece in _pieces(on, len(seeds)):
        flat, counts = _flat(on, seeds[piece])
        streams = to_device(np.ascontiguousarray(keys[piece]).view(np.int64), on.device)

        def draw(rows: Rows, s: npt.NDArray[np.int64], tables: Tables, streams: Tensor = streams) -> Drawn:
            return draw_labor_relations(segments_of(graph), rows, streams, s, tables, poisson=poisson)

        yield (
            piece,
            labor_cuda.labor(
                on, flat, counts, streams, fanout,
                poisson=poisson, weight=weights, again=expand == "all", workspace=space,
                draw_relations=None if graph.types.is_single else draw,
            ),
        )  # fmt: skip


def labor(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Fanouts,
    **options: Any,
) -> list[NeighborSample]:
    """See `cpu.labor.labor`: the same arguments, the same bits. Raises what `neighbor` raises."""
    pieces = labor_pieces(graph, seeds, keys, fanout, **options)
    if graph.types.is_single:
        return [s for _, made in pieces for s in _samples(made)]
    fanout_of = np.asarray(fanout) if options.get("poisson") else None
    return [s for _, made in pieces for s in _with_weights(graph, made, fanout_of)]


def _layers(made: layerwise_cuda.DeviceLayers, keep_positions: bool) -> list[LayerSample]:
    nodes = _cut(made.rows.nodes, made.node_ends[-1])
    ends = np.stack(made.node_ends, axis=1).tolist()
    indptr = [_cut(x.indptr, x.rows + 1) for x in made.lists]
    indices = [_cut(x.indices, x.edges) for x in made.lists]
    weight = None if made.weight is None else [_cut(w, x.edges) for w, x in zip(made.weight, made.lists)]
    positions = [_cut(x.positions, x.edges) for x in made.lists] if keep_positions else None
    return [
        LayerSample(
            nodes[q],
            tuple(ends[q]),
            tuple(x[q] for x in indptr),
            tuple(x[q] for x in indices),
            None if weight is None else tuple(x[q] for x in weight),
            None if positions is None else tuple(x[q] for x in positions),
        )
        for q in range(len(nodes))
    ]


def layer_pieces(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    sizes: Sequence[int],
    *,
    debias: str = "ratio",
    every_row: bool = False,
    workspace: Workspace | None = None,
) -> Iterator[tuple[slice, layerwise_cuda.DeviceLayers]]:
    """`layers` with its result on the device; see `neighbor_pieces`."""
    known, space = terms(graph), workspace if workspace is not None else Workspace()
    for piece in _pieces(known.graph, len(seeds)):
        flat, counts = _flat(known.graph, seeds[piece])
        yield (
            piece,
            layerwise_cuda.layers(
                known, flat, counts, keys[piece], sizes, debias=debias, every_row=every_row, workspace=space
            ),
        )


def layers(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    sizes: Sequence[int],
    *,
    keep_positions: bool = False,
    **options: Any,
) -> list[LayerSample]:
    """See `cpu.layerwise.layers`: the same arguments, the same bits. Raises what `neighbor` raises."""
    return [s for _, made in layer_pieces(graph, seeds, keys, sizes, **options) for s in _layers(made, keep_positions)]


def temporal_pieces(
    times: DeviceTimes,
    seeds: Sequence[npt.NDArray[np.int64]],
    trees: Sequence[npt.NDArray[np.int64]],
    moments: Sequence[npt.NDArray[np.number]],
    keys: Sequence[npt.NDArray[np.uint64]],
    fanout: Sequence[int],
    **options: bool | Tensor | None,
) -> Iterator[tuple[slice, TimedSample]]:
    """Minibatches of `sample.temporal.TemporalSampler` on the device, in pieces: ranges of them, each with its samples.

    Args:
        times: the graph.
        seeds: of each minibatch.
        trees: number of the tree of each seed, in its minibatch.
        moments: of the trees of each minibatch, in the dtype of the times of edges.
        keys: uint64 [L, T], random streams of the hops and trees of each minibatch.
        fanout: see `temporal.temporal`, as `options`.
        options: see there.

    Raises:
        RunError: a minibatch has more edges than its lists can index.
    """
    to = times.device
    for piece in temporal_cuda.pieces(len(seeds), max(map(len, seeds), default=0), fanout, times):
        nodes, first = np.concatenate(seeds[piece]), prefix_sums(np.array([len(m) for m in moments[piece]], np.int64))
        tree = np.concatenate([t + at for t, at in zip(trees[piece], first)]).astype(np.int32)
        grown = temporal_cuda.Trees(
            to_device(nodes, to),
            to_device(tree, to),
            np.array([len(s) for s in seeds[piece]], np.int64),
            first,
            to_device(np.concatenate(moments[piece]), to),
            to_device(np.concatenate(keys[piece], axis=1).view(np.int64), to),
            times.num_rows(nodes),
        )
        yield piece, temporal_cuda.temporal(times, grown, fanout, **options)
