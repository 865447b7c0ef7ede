"""Memory of a full-batch training step, found by running it at a small scale.

The step is run with the real model and the real neighbourhoods, on a graph of a few rows that has the same proportions:
as many shards, and of rows, remote rows and edges one in so many. Whatever the model calls, its tensors have the sizes
of the full step divided by the scale, except those that do not grow with the graph, such as the gradients of weights:
two scales tell them apart, tensor by tensor. Then an arena is asked for tensors of the sizes to come, in the
same order: which of them can share a buffer depends on their sizes, and at a small scale a gradient of weights is as
    large as a layer's rows. There is no communication.
"""

import copy
import math
import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..comm.base import Swap
from ..comm.solo import Solo
from ..kernels.aggregation.attention_args import EdgeNumbers
from ..kernels.aggregation.lists import InLists
from ..memory.arena import SMALL, Arena, reusing
from ..memory.meter import TensorBytes
from ..models.base import layered
from ..neighbourhood.base import Neighbourhood
from ..neighbourhood.full_batch import FullBatch, Shard, View
from ..policies import InputRows

ROWS = (256, 512)
"""Rows of the two trial runs: few enough for one block of a product (`dense`), so that both have as many blocks."""
REPLAYED_BYTES = 1 << 20
"""Size of the largest tensor in an arena that only computes how much it would take."""


Change = tuple[int, float]
"""Number of a tensor, and its bytes when it is made, or their negative when it is freed; or `ELSEWHERE` and the change
in bytes of all tensors that `arena.empty` did not make."""
ELSEWHERE = -1
Hoods = Callable[[int, FullBatch, Any], Sequence[Neighbourhood]]
"""Makes the layers' neighbourhoods, from the scale, a full batch and a group."""


def step_bytes(module: nn.Module, batch: FullBatch, size: int, given: InputRows, neighbourhoods: Hoods) -> int:
    """Peak bytes of tensors in one forward and backward pass of the module, which is not changed, beside the features,
    the graph and the model itself, on one of `size` ranks."""
    rows = max(view.num_src for view in batch.layers)

    def trial(scale: float) -> list[Change]:
        small, group, log = _smaller(batch, scale), _Absent(batch.rank, size), _Log()
        tried = copy.deepcopy(module).cpu().train()
        h = _zeros(given, small.layers[0].num_src)
        with reusing(log), _Elsewhere(log):
            for i, neighbourhood in enumerate(neighbourhoods(max(1, int(scale)), small, group)):
                h = layered(tried).layer(i, neighbourhood, h)
            seeds = h[: max(1, small.num_seeds)]
            nn.functional.cross_entropy(seeds, torch.zeros(len(seeds), dtype=torch.int64), reduction="sum").backward()
        return log.changes

    state = torch.default_generator.get_state()
    try:
        few, many = (trial(max(1.0, rows / r)) for r in ROWS)
    finally:
        torch.default_generator.set_state(state)
    beyond = max(0, rows - ROWS[0]) / (ROWS[1] - ROWS[0])
    if [number for number, _ in few] == [number for number, _ in many]:
        return round(_peak([(number, a + beyond * (b - a)) for (number, a), (_, b) in zip(few, many)]))
    # The tensors depend on the number of rows.
    return max(0, round(_peak(few) + beyond * (_peak(many) - _peak(few))))


def _zeros(given: InputRows, count: int) -> Tensor:
    """So many rows of features."""
    return torch.zeros((count, given.num_features), dtype=given.dtype, requires_grad=given.are_learned)


class _Log(Arena):
    """Arena that gives every tensor memory of its own, and logs the changes."""

    def __init__(self) -> None:
        super().__init__(small=1)
        self.changes: list[Change] = []
        self._live: dict[int, tuple[int, int]] = {}
        self._made = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        raw = np.empty(prod(shape), torch.empty(0, dtype=dtype).numpy().dtype)
        number, self._made = self._made, self._made + 1
        self.changes.append((number, raw.nbytes))
        self._live[number] = raw.ctypes.data, raw.nbytes
        weakref.finalize(raw, self._free, number)
        return torch.from_numpy(raw.reshape(tuple(shape)))

    def _free(self, number: int) -> None:
        self.changes.append((number, -self._live.pop(number)[1]))

    def holds(self, address: int) -> bool:
        return any(first <= address < first + nbytes for first, nbytes in self._live.values())


class _Elsewhere(TensorBytes):
    """Logs tensors made elsewhere."""

    def __init__(self, log: _Log) -> None:
        super().__init__(log)
        self._log, self._known = log, 0

    def _follow(self, x: Tensor, lent: bool) -> None:
        super()._follow(x, lent)
        self._log.changes.append((ELSEWHERE, self._bytes - self._known))
        self._known = self._bytes


def _peak(changes: list[Change]) -> float:
    """Peak bytes of an `Arena` that is asked for these tensors, and of all others."""
    unit = max(1.0, max(n for _, n in changes) / REPLAYED_BYTES)
    arena, held = Arena(int(SMALL / unit)), {}
    elsewhere = most = 0.0
    for number, n in changes:
        if number == ELSEWHERE or abs(n) < SMALL:
            elsewhere += n
            most = max(most, elsewhere)
        elif n > 0:
            held[number] = arena.empty((math.ceil(n / unit / 4),), torch.int32)
        else:
            held.pop(number, None)
    return arena.peak_bytes * unit + most


def _smaller(batch: FullBatch, scale: float) -> FullBatch:
    views = {id(v): _smaller_view(v, batch.rank, scale) for v in (batch.whole, *batch.layers)}
    whole = views[id(batch.whole)]
    n = max([whole.num_src, *(v.num_src for v in views.values())])
    numbers = EdgeNumbers(np.zeros(n, np.int64), np.zeros(n, np.int64), None)
    layers = tuple(views[id(v)] for v in batch.layers)
    seeds, degree = max(1, math.ceil(batch.num_seeds / scale)), batch.degree_rows
    ones = degree.new_ones(n, *degree.shape[1:])
    return FullBatch(batch.rank, np.arange(n), np.arange(n), seeds, numbers, whole, layers=layers, degree_rows=ones)


def _smaller_view(view: View, rank: int, scale: float) -> View:
    def count(n: int) -> int:
        return math.ceil(n / scale)

    num_dst, num_src = count(view.num_dst), count(view.num_src)
    shards = []
    for q, shard in enumerate(view.shards):
        lists = num_dst if q == rank else min(count(shard.lists.num_dst), num_dst)
        sources = num_src if q == rank else count(shard.lists.num_src)
        edges = count(shard.lists.num_edges) if lists and sources else 0
        indptr = np.linspace(0, edges, lists + 1).astype(np.int64)
        indices = (np.arange(edges) % max(1, sources)).astype(np.int32)
        weight = None if shard.weight is None else torch.ones(edges)
        rows = None if q == rank else np.arange(lists, dtype=np.int32)
        shards.append(
            Shard(InLists.from_arrays(indptr, indices, sources), rows, np.arange(edges, dtype=np.int32), weight)
        )
    wanted = tuple(np.arange(min(count(len(w)), num_src), dtype=np.int32) for w in view.wanted)
    return View(num_dst, num_src, tuple(shards), wanted)


class _Absent(Solo):
    """A `Group` whose other ranks contribute only zeros."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_to_all(self, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        return [p.zero_() for p in into] if into is not None else [torch.zeros_like(p) for p in parts]

    def swap(self, part: Tensor, to: int, into: Tensor, source: int, tag: int, kind: str) -> Swap:
        into.zero_()
        return _Done(part)


FEW, SENT, READ = 8, 2, 3
"""Rows of the two ranks of `row_traffic`: all, those sent and those read, chosen to tell apart what travels."""


def row_traffic(module: nn.Module, given: InputRows, neighbourhoods: Hoods) -> list[tuple[int, int]]:
    """Bytes that travel per row between ranks in a training step, layer by layer.

    Each layer runs by itself on a handful of rows, on one of two ranks; the other contributes only zeros. Rows of the
    rank have edges to themselves too, unless the graph has types.

    Returns: For each layer, from the input on, bytes that the owner of a row sends for each rank that reads it, and
        bytes that come back.
    """
    ids, count = np.arange(FEW), FEW * given.types.is_single
    near, far = np.arange(count, dtype=np.int32), np.arange(READ, dtype=np.int32)
    own = Shard(InLists.from_arrays(np.minimum(np.arange(FEW + 1), count), near, FEW), None, near, None)
    remote = Shard(InLists.from_arrays(np.arange(READ + 1), far, READ), far, far + count, None)
    view = View(FEW, FEW, (own, remote), (np.empty(0, np.int32), np.arange(SENT, dtype=np.int32)))
    group = _Counting(0, 2)
    module = copy.deepcopy(module).cpu().train()
    layers = layered(module).num_layers
    degree = torch.from_numpy(view.kept.astype(np.float64))
    batch = FullBatch(0, ids, ids, FEW, EdgeNumbers(ids, ids, None), view, layers=(view,) * layers, degree_rows=degree)
    h, found = _zeros(given, FEW), []
    state = torch.default_generator.get_state()
    try:
        for i, neighbourhood in enumerate(neighbourhoods(1, batch, group)):
            group.bytes = {SENT: 0, READ: 0}
            out = layered(module).layer(i, neighbourhood, h)
            out.sum().backward()
            found.append((group.bytes[SENT], group.bytes[READ]))
            h = out.detach().requires_grad_()
    finally:
        torch.default_generator.set_state(state)
    return found


class _Counting(_Absent):
    """Adds up the bytes of a row, by how many rows travel."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.bytes = {SENT: 0, READ: 0}

    def _count(self, part: Tensor) -> None:
        if len(part):
            self.bytes[len(part)] += part.nbytes // len(part)

    def all_to_all(self, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        self._count(parts[1])
        return super().all_to_all(parts, kind, into)

    def swap(self, part: Tensor, to: int, into: Tensor, source: int, tag: int, kind: str) -> Swap:
        self._count(part)
        return super().swap(part, to, into, source, tag, kind)


class _Done:
    def __init__(self, part: Tensor) -> None:
        # Held until it has been sent, as a real one does.
        self._part: Tensor | None = part

    def received(self, what: str) -> None:
        """No effect: received at once."""

    def sent(self, what: str) -> None:
        """Release the part."""
        self._part = None
