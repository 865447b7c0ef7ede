"""The sampling kernels of a GPU, in Triton and torch, under the names that every backend exports.

Converts NumPy arrays to tensors and back, or leaves results on the device (`*_pieces`); see `cuda.neighbor` and
`cuda.layerwise` for the algorithms, and `cuda.matrix` for samplers that are written as matrices.
Nothing here needs numba, which the machine with the GPU may lack.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace as with_fields
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from .....storage.array_kinds import IdArray, IntArray, NumberArray, WordArray
from .....storage.graph import Graph
from .....storage.optional import when_present
from ...runtime.device_memory import to_device
from ...runtime.triton_rng import device
from ..device_graph import DeviceGraph, number_on_device, on_device
from ..device_samples import DeviceSample, Rows, cumulated, leading, prefix_sums
from ..device_times import DeviceTimes, TimedDraws, TimedSample, place_times, times_on_device
from ..draws import BulkDraws, LaborDraws, LayerDraws, NeighborDraws
from ..layerwise import LayerSample
from ..samples import EdgeList, NeighborSample, with_weights
from . import labor as labor_cuda
from . import layerwise as layerwise_cuda
from . import matrix
from . import neighbor as sample_cuda
from . import temporal as temporal_cuda
from .block_rows import AllNodes, Answers, draw_rows, draw_typed_rows, neighbor_of_owners, rows_of
from .draw import Drawn
from .labor_relations import draw_labor_relations
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


Draws = TypeVar("Draws", bound=BulkDraws)


def _pieces(on: DeviceGraph, asked: Draws) -> Iterator[tuple[slice, sample_cuda.Seeds, Draws]]:
    """Ranges of minibatches whose tables fit together, with what is asked of them."""
    space, k = asked.workspace if asked.workspace is not None else Workspace(), len(asked.seeds)
    for at in range(0, k, step := at_once(on.num_nodes)):
        piece = slice(at, min(k, at + step))
        part = with_fields(asked, seeds=asked.seeds[piece], keys=asked.keys[piece], workspace=space)
        flat = np.concatenate([np.asarray(s, np.int64) for s in part.seeds])
        counts = np.array([len(s) for s in part.seeds], np.int64)
        yield piece, (to_device(flat, on.device).to(on.indices.dtype), counts), part


def _on_device(keys: WordArray, on: DeviceGraph) -> Tensor:
    """The bits of the streams."""
    return to_device(np.ascontiguousarray(keys).view(np.int64), on.device)


def _cut(values: Tensor | None, counts: IdArray) -> list[Any]:
    """Each minibatch's part, on the host, which waits for it."""
    if values is None:
        return [None] * len(counts)
    return np.split(values.cpu().numpy(), prefix_sums(counts)[1:-1])


def _minibatches(
    made: DeviceSample, positions: bool = True
) -> Iterator[tuple[IntArray, tuple[int, ...], tuple[EdgeList, ...]]]:
    """Nodes, their numbers before each hop, and lists of each minibatch, on the host."""
    of_lists = []
    for x in made.lists:
        edges = (_cut(values, x.edges) for values in (x.indices, x.positions if positions else None, x.weight))
        of_lists.append([EdgeList(*parts) for parts in zip(_cut(x.indptr, x.rows + 1), *edges)])
    ends = map(tuple, np.stack(made.node_ends, axis=1).tolist())
    return zip(_cut(made.rows.nodes, made.node_ends[-1]), ends, zip(*of_lists))


def _samples(made: DeviceSample) -> list[NeighborSample]:
    return [NeighborSample(*each) for each in _minibatches(made)]


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


def relation_weights_of(graph: Graph, made: DeviceSample, by_relation: IdArray | None = None) -> list[Tensor]:
    """`relation_weights` of each list of some minibatches; of Poisson draws with these fanouts, if they are given."""
    to = made.rows.nodes.device
    fanout = None if by_relation is None else to_device(by_relation, to)
    found = []
    for h, x in enumerate(made.lists):
        drawn = None if fanout is None else (made.hops(h, *leading(x.rows + 1, to)), fanout)
        found.append(relation_weights(graph, x.positions, x.indptr, drawn))
    return found


def neighbor_pieces(graph: Graph, asked: NeighborDraws) -> Iterator[tuple[slice, DeviceSample]]:
    """`neighbor` with its result on the device, in pieces: ranges of minibatches, each with its samples. Positions
    are there if weights are asked for."""
    on = on_device(graph)
    slots = when_present(on.with_table, asked.table)
    segments = None if graph.types.is_single else segments_of(graph)
    for piece, seeds, part in _pieces(on, asked):
        yield piece, sample_cuda.neighbor(on, seeds, _on_device(part.keys.T, on), part, slots, segments)


def neighbor(graph: Graph, asked: NeighborDraws) -> list[NeighborSample]:
    """See `cpu.neighbor.neighbor`: the same arguments, the same bits.

    Raises:
        InputError: there is no GPU.
        RunError: a minibatch has more edges than its lists can index.
    """
    pieces = neighbor_pieces(graph, asked)
    if not graph.types.is_single:
        return [s for _, made in pieces for s in _samples(made.weighing(relation_weights_of(graph, made)))]
    samples = [s for _, made in pieces for s in _samples(made)]
    if not asked.keep_weights or graph.edge_weight is None:
        return samples
    return with_weights(samples, graph.edge_weight, asked.keep_positions)


def labor_pieces(graph: Graph, asked: LaborDraws) -> Iterator[tuple[slice, DeviceSample]]:
    """`labor` with its result on the device; see `neighbor_pieces`. Positions are there in any case; there are no
    `iterations`."""
    assert not asked.iterations, "see `stages.sample.base.check_kernel`"
    on, typed = on_device(graph), not graph.types.is_single
    weights = when_present(lambda _: number_on_device(graph, "edge_weight"), asked.weight)
    for piece, seeds, part in _pieces(on, asked):
        streams = _on_device(part.keys, on)

        def draw(rows: Rows, s: IdArray, tables: Tables, streams: Tensor = streams) -> Drawn:
            return draw_labor_relations(segments_of(graph), rows, streams, s, tables, poisson=asked.poisson)

        yield piece, labor_cuda.labor(on, seeds, streams, part, weights, draw if typed else None)


def labor(graph: Graph, asked: LaborDraws) -> list[NeighborSample]:
    """See `cpu.labor.labor`: the same arguments, the same bits. Raises what `neighbor` raises."""
    pieces = labor_pieces(graph, asked)
    if graph.types.is_single:
        return [s for _, made in pieces for s in _samples(made)]
    fanout_of = np.asarray(asked.fanout) if asked.poisson else None
    weighed = (made.weighing(relation_weights_of(graph, made, fanout_of)) for _, made in pieces)
    return [s for made in weighed for s in _samples(made)]


def _layers(made: DeviceSample, keep_positions: bool) -> list[LayerSample]:
    weighted, found = made.lists[0].weight is not None, []
    for nodes, ends, lists in _minibatches(made, keep_positions):
        blocks = ((x.indptr, x.indices, x.weight, x.positions) for x in lists)
        found.append(LayerSample.from_blocks(nodes, ends, blocks, weighted, keep_positions))
    return found


def layer_pieces(graph: Graph, asked: LayerDraws) -> Iterator[tuple[slice, DeviceSample]]:
    """`layers` with its result on the device; see `neighbor_pieces`."""
    known = terms(graph)
    for piece, seeds, part in _pieces(known.graph, asked):
        yield piece, layerwise_cuda.layers(known, seeds, part)


def layers(graph: Graph, asked: LayerDraws) -> list[LayerSample]:
    """See `cpu.layerwise.layers`: the same arguments, the same bits. Raises what `neighbor` raises."""
    return [s for _, made in layer_pieces(graph, asked) for s in _layers(made, asked.keep_positions)]


def temporal_pieces(
    times: DeviceTimes,
    seeds: Sequence[IdArray],
    trees: Sequence[IdArray],
    moments: Sequence[NumberArray],
    keys: Sequence[WordArray],
    asked: TimedDraws,
) -> Iterator[tuple[slice, TimedSample]]:
    """Minibatches of `sample.temporal.TemporalSampler` on the device, in pieces: ranges of them, each with its samples.

    Args:
        times: the graph.
        seeds: of each minibatch.
        trees: number of the tree of each seed, in its minibatch.
        moments: of the trees of each minibatch, in the dtype of the times of edges.
        keys: uint64 [L, T], random streams of the hops and trees of each minibatch.
        asked: how edges are drawn.

    Raises:
        RunError: a minibatch has more edges than its lists can index.
    """
    to = times.device
    for piece in temporal_cuda.pieces(len(seeds), max(map(len, seeds), default=0), asked.fanout, times):
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
        yield piece, temporal_cuda.temporal(times, grown, asked)
