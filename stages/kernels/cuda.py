"""The sampling kernels of a GPU, in Triton and torch, under the names that every backend exports.

Here NumPy's arrays become tensors and come back; `sample_cuda` says how a bulk is drawn. Nothing else imports Triton, and nothing
here needs numba: the machine with the GPU may lack it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...storage.graph import Graph
from . import labor_cuda, sample_cuda
from .graph_cuda import TABLE_BYTES, DeviceGraph, Workspace, moved, on_device, stride
from .number_cuda import before
from .sampled import EdgeList, NeighborSample
from .words_cuda import device

__all__ = ["Workspace", "device", "labor", "neighbor"]


def _pieces(graph: DeviceGraph, k: int) -> Iterator[slice]:
    """Minibatches whose tables fit together."""
    step = max(1, TABLE_BYTES // (5 * stride(graph.num_nodes)))
    for at in range(0, k, step):
        yield slice(at, min(k, at + step))


def _flat(graph: DeviceGraph, seeds: Sequence[npt.NDArray[np.integer]]) -> tuple[Tensor, npt.NDArray[np.int64]]:
    """All seeds, and how many of them each minibatch has."""
    flat = np.concatenate([np.asarray(s, np.int64) for s in seeds])
    return moved(flat, graph.device).to(graph.indices.dtype), np.array([len(s) for s in seeds], np.int64)


def _cut(values: Tensor | None, counts: npt.NDArray[np.int64]) -> list[Any]:
    """Each minibatch's part, on the host, which waits for it."""
    if values is None:
        return [None] * len(counts)
    return np.split(values.cpu().numpy(), before(counts)[1:-1])


def _samples(made: sample_cuda.DeviceSample) -> list[NeighborSample]:
    nodes = _cut(made.rows.nodes, made.node_ends[-1])
    ends = np.stack(made.node_ends, axis=1).tolist()
    lists = [
        [EdgeList(*parts) for parts in zip(_cut(x.indptr, x.rows + 1), _cut(x.indices, x.edges), _cut(x.positions, x.edges))]
        for x in made.lists
    ]
    return [NeighborSample(nodes[q], tuple(ends[q]), tuple(x[q] for x in lists)) for q in range(len(nodes))]


def neighbor(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Sequence[int],
    *,
    replace: bool = False,
    probability: npt.NDArray[np.int64] | None = None,
    expand: str = "new",
    keep_positions: bool = False,
    workspace: Workspace | None = None,
) -> list[NeighborSample]:
    """See `sample_reference.neighbor`: the same arguments, the same bits.

    Raises:
        InputError: there is no GPU.
        RunError: a minibatch has more edges than its lists can index.
    """
    on, space, out = on_device(graph), workspace if workspace is not None else Workspace(), []
    weights = None if probability is None else on.weighted(probability)
    for piece in _pieces(on, len(seeds)):
        flat, counts = _flat(on, seeds[piece])
        streams = moved(np.ascontiguousarray(keys[piece].T).view(np.int64), on.device)
        made = sample_cuda.neighbor(
            on, flat, counts, streams, fanout,
            replace=replace, weights=weights, again=expand == "all", keep=keep_positions, workspace=space,
        )  # fmt: skip
        out += _samples(made)
    return out


def labor(
    graph: Graph,
    seeds: Sequence[npt.NDArray[np.integer]],
    keys: npt.NDArray[np.uint64],
    fanout: Sequence[int],
    *,
    poisson: bool = False,
    workspace: Workspace | None = None,
) -> list[NeighborSample]:
    """See `labor_reference.labor`: the same arguments, the same bits. Raises what `neighbor` raises."""
    on, space, out = on_device(graph), workspace if workspace is not None else Workspace(), []
    for piece in _pieces(on, len(seeds)):
        flat, counts = _flat(on, seeds[piece])
        streams = moved(np.ascontiguousarray(keys[piece]).view(np.int64), on.device)
        out += _samples(labor_cuda.labor(on, flat, counts, streams, fanout, poisson=poisson, workspace=space))
    return out
