"""Products and draws of samplers that are written as sparse matrices, on the device: the bits of `matrix.products`.

Torch operations, and the race of `alias`. Entries stay on the device; the host has where rows begin and end, and
copies entries when a callback reads them. Values are whole numbers, so sums have the same bits in any order; random
words are functions of their coordinates. A product by a selector only says where rows are, as on the CPU; any other
sorts its terms by row and column.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .....storage.array_kinds import IntArray, WordArray
from .....storage.graph import Graph
from .....storage.optional import taken, when_present
from ....random import GOLDEN, M1, M2
from ...runtime.device_memory import to_device, wait_for_copies
from ...runtime.once_per_graph import once_per_graph
from ...runtime.triton_rng import device
from .. import sparse
from ..device_graph import in_memory, number_on_device
from ..device_samples import DeviceEdges, Lists, Rows, cumulated, leading
from ..samples import EdgeList
from ..sparse import IdArray, Sparse, stacked
from .alias import NEVER, finish_times, ranked

if TYPE_CHECKING:
    from ..numbering import DenseNumbering

__all__ = ["DeviceSparse", "adjacency", "choose", "choose_all", "induced", "multiply", "multiply_all"]

TOGETHER = True
"""The minibatches of a bulk are drawn together, by `multiply_all` and `choose_all`."""
Words = WordArray
_GOLDEN, _M1, _M2 = (int(word.view(np.int64)) for word in (GOLDEN, M1, M2))
_LOW = (1 << 32) - 1


class DeviceSparse(Sparse):
    """A matrix whose entries are on the device; `columns` and `values` are copied to the host when they are read."""

    on_device: tuple[Tensor, Tensor | None]
    """Columns, and int64 values or None."""

    def __init__(
        self,
        start: IdArray,
        stop: IdArray,
        columns: Tensor,
        values: Tensor | None = None,
        host: "Sparse | _Slice | None" = None,
    ) -> None:
        """`host` has the same entries, if they are on the host already."""
        self.__dict__.update(start=start, stop=stop, on_device=(columns, values), host=host)

    host: "Sparse | _Slice | None"

    def parts(self, rows: Sequence[int]) -> "list[DeviceSparse]":
        """So many rows each. Rows must be one after the other; what parts are read of the host is copied once."""
        columns, values = self.on_device
        found, ends = [], np.cumsum([0, *rows])
        at = np.append(self.start, len(columns))
        for a, b in zip(ends[:-1], ends[1:]):
            e = slice(int(at[a]), int(at[b]))
            start, stop = self.start[a:b] - e.start, self.stop[a:b] - e.start
            found.append(DeviceSparse(start, stop, columns[e], taken(values, e), _Slice(self, e)))
        return found

    @cached_property
    # pyrefly: ignore[bad-override]
    def columns(self) -> IntArray:
        return self.host.columns if self.host is not None else self.on_device[0].cpu().numpy()

    @cached_property
    # pyrefly: ignore[bad-override]
    def values(self) -> IdArray | None:
        values = self.on_device[1]
        if values is None:
            return None
        return self.host.values if self.host is not None else values.cpu().numpy()

    def packed(self) -> "DeviceSparse":
        columns, values = self.on_device
        if np.array_equal(np.append(self.start, len(columns)), np.append(0, self.stop)):
            return self
        _, at = _entries(self.start, self.lengths, columns.device)
        ends = np.concatenate([[0], np.cumsum(self.lengths)])
        return DeviceSparse(ends[:-1], ends[1:], columns[at], taken(values, at))


class _Slice:
    """Some of a matrix's entries on the host."""

    def __init__(self, of: DeviceSparse, entries: slice) -> None:
        self._of, self._entries = of, entries

    @property
    def columns(self) -> IntArray:
        return self._of.columns[self._entries]

    @property
    def values(self) -> IdArray | None:
        return taken(self._of.values, self._entries)


@once_per_graph
def adjacency(graph: Graph) -> DeviceSparse:
    """See `sparse.adjacency`; copied to the device once, kept as long as the graph lives.

    Raises:
        InputError: there is no GPU, or the topology is not in its memory.
    """
    host, there = sparse.adjacency(graph), in_memory(graph, "samplers written as matrices")
    columns = there.indices if host.columns is graph.indices else to_device(host.columns, there.device)
    values = when_present(lambda known: to_device(known, there.device), host.values)
    wait_for_copies(there.device)
    return DeviceSparse(host.start, host.stop, columns, values, host)


def _on_device(M: Sparse) -> DeviceSparse:
    """M, with its entries on the device."""
    if isinstance(M, DeviceSparse):
        return M
    M = M.packed()
    values = when_present(lambda known: to_device(known, device()), M.values)
    return DeviceSparse(M.start, M.stop, to_device(M.columns, device()), values, M)


def _entries(start: IdArray, lengths: IdArray, to: torch.device) -> tuple[Tensor, Tensor]:
    """Row and place of each entry of some rows, row by row."""
    row, place = leading(lengths, to)
    return row, to_device(start, to)[row] + place


def multiply(Q: Sparse, A: Sparse, num_columns: int) -> DeviceSparse:
    A = _on_device(A)
    columns, values = A.on_device
    if _is_selector(Q):
        some = Q.lengths > 0
        rows = Q.columns[Q.start[some]]
        start, stop = np.zeros(Q.num_rows, np.int64), np.zeros(Q.num_rows, np.int64)
        start[some], stop[some] = A.start[rows], A.stop[rows]
        return DeviceSparse(start, stop, columns, values, A.host)
    Q, to = Sparse.packed(Q), columns.device
    # One row of A for each entry of Q.
    entry, at = _entries(A.start[Q.columns], A.lengths[Q.columns], to)
    terms = to_device(Q.mass, to)[entry]
    if values is not None:
        terms = terms * values[at]
    place, inverse = torch.unique(to_device(Q.row_of, to)[entry] * num_columns + columns[at], return_inverse=True)
    sums = torch.zeros(len(place), dtype=torch.int64, device=to).index_add_(0, inverse, terms)
    counts = torch.bincount(place // num_columns, minlength=Q.num_rows).cpu().numpy()
    ends = np.concatenate([[0], np.cumsum(counts)])
    return DeviceSparse(ends[:-1], ends[1:], (place % num_columns).to(columns.dtype), sums)


def multiply_all(Qs: Sequence[Sparse], A: Sparse, num_columns: int) -> list[Sparse]:
    """`multiply` of several matrices by one: one product, unless they are selectors, which take none."""
    apart = [i for i, Q in enumerate(Qs) if not _is_selector(Q)]
    found: list[Any] = [None if i in apart else multiply(Q, A, num_columns) for i, Q in enumerate(Qs)]
    if apart:
        whole = multiply(stacked([Sparse.packed(Qs[i]) for i in apart]), A, num_columns)
        for i, P in zip(apart, whole.packed().parts([Qs[i].num_rows for i in apart])):
            found[i] = P
    return found


def choose_all(Ps: Sequence[Sparse], s: int, words: Sequence[Words], *, replace: bool = False) -> list[Sparse]:
    """`choose` from several matrices: one draw from those of ones, and one from the others."""
    if s < 0:
        return [P.packed() for P in Ps]
    there: list[Any] = [_on_device(P) for P in Ps]
    for ones in (True, False):
        some = [i for i, P in enumerate(Ps) if (_values_are_ones(P)) == ones]
        if some:
            whole = _below_each_other([there[i] for i in some])
            S = choose(whole, s, np.concatenate([words[i] for i in some]), replace=replace)
            for i, part in zip(some, S.packed().parts([Ps[i].num_rows for i in some])):
                there[i] = part
    return there


def _is_selector(Q: Sparse) -> bool:
    return _values_are_ones(Q) and bool((Q.lengths <= 1).all())


def _values_are_ones(M: Sparse) -> bool:
    return (M.on_device[1] if isinstance(M, DeviceSparse) else M.values) is None


def _below_each_other(parts: Sequence[DeviceSparse]) -> DeviceSparse:
    """The rows of all, all with values or all without. Rows of one matrix are not copied."""
    first = parts[0]
    if any(p.on_device[0] is not first.on_device[0] for p in parts):
        parts = [p.packed() for p in parts]
        columns = [p.on_device[0] for p in parts]
        values = [v for p in parts if (v := p.on_device[1]) is not None]
        offsets = np.cumsum([0, *(len(x) for x in columns[:-1])])
        start, stop = (np.concatenate([getattr(p, at) + o for p, o in zip(parts, offsets)]) for at in ("start", "stop"))
        return DeviceSparse(start, stop, torch.cat(columns), torch.cat(values) if values else None)
    start, stop = (np.concatenate([getattr(p, at) for p in parts]) for at in ("start", "stop"))
    return DeviceSparse(start, stop, *first.on_device, first.host)


def choose(P: Sparse, s: int, words: Words, *, replace: bool = False) -> DeviceSparse:
    P = _on_device(P)
    if s < 0:
        return P.packed()
    columns, values = P.on_device
    stream = to_device(np.ascontiguousarray(words).view(np.int64), columns.device)
    if values is not None and not replace:
        return _exponential_race(P, s, stream)
    if not replace:
        s = min(s, max(1, int(P.lengths.max(initial=0))))
    start, degree = (to_device(x, columns.device)[:, None] for x in (P.start, P.lengths))
    draw = torch.arange(s, device=columns.device)
    if values is not None:
        at, some = _throw(P, s, stream)
        kept = some.cpu().numpy() * s
    elif replace:
        at = start + ((_shifted(_draw_word(stream[:, None], draw), 32) * degree) >> 32)
        kept = (P.lengths > 0) * s
    else:
        at, kept = start + _floyd(P.lengths, stream, s), np.minimum(P.lengths, s)
    ends = np.concatenate([[0], np.cumsum(kept)])
    return DeviceSparse(ends[:-1], ends[1:], columns[at[draw < to_device(kept, columns.device)[:, None]]])


def _floyd(lengths: IdArray, stream: Tensor, s: int) -> Tensor:
    """int64 [n, s], distinct entries of each row by Floyd's algorithm; all, in order, of rows that have no more."""
    picks = torch.arange(s, device=stream.device).expand(len(stream), s).clone()
    rows = np.flatnonzero(lengths > s)
    many, degree = to_device(rows, stream.device), to_device(lengths[rows], stream.device)
    stream = stream[many]
    found = picks[many]
    for i in range(s):
        last = degree - s + i
        pick = (_shifted(_draw_word(stream, i), 32) * (last + 1)) >> 32
        found[:, i] = torch.where((found[:, :i] == pick[:, None]).any(1), last, pick)
    picks[many] = found
    return picks


def _throw(P: DeviceSparse, s: int, stream: Tensor) -> tuple[Tensor, Tensor]:
    """int64 [n, s], entries drawn independently in proportion to their values, and the rows that have any."""
    columns, values = P.on_device
    assert values is not None
    _, at = _entries(P.start, P.lengths, columns.device)
    # Sums of all rows together may wrap around; a row's own do not.
    prefix = cumulated(values[at])
    first = to_device(np.cumsum(P.lengths) - P.lengths, columns.device)[:, None]
    low = first.expand(-1, s)
    high = low + to_device(P.lengths, columns.device)[:, None]
    base = prefix[low]
    total = prefix[high] - base
    x = _below(_draw_word(stream[:, None], torch.arange(s, device=columns.device)), total)
    for _ in range(int(P.lengths.max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        here = prefix[middle] - base <= x
        low, high = torch.where(here, middle, low), torch.where(here, high, middle)
    return low + to_device(P.start, columns.device)[:, None] - first, total[:, 0] > 0


def _exponential_race(P: DeviceSparse, s: int, stream: Tensor) -> DeviceSparse:
    """Up to s distinct entries of each row in proportion to their values: the first of an exponential race."""
    columns, values = P.on_device
    assert values is not None
    begin, until = (to_device(x, columns.device) for x in (P.start, P.stop))
    each = torch.arange(P.num_rows, device=columns.device)
    row, at, finish = finish_times(columns, Lists(Rows(each, each), begin, until), stream, values, shared=True)
    order = ranked(finish, row)
    first = to_device(np.cumsum(P.lengths) - P.lengths, columns.device)
    rank = torch.arange(len(row), device=row.device) - first[row[order]]
    won = torch.zeros(len(row), dtype=torch.bool, device=row.device)
    won[order] = rank < s
    won &= finish != NEVER
    ends = np.concatenate([[0], np.cumsum(torch.bincount(row[won], minlength=P.num_rows).cpu().numpy())])
    return DeviceSparse(ends[:-1], ends[1:], columns[begin[row[won]] + at[won]])


def induced(graph: Graph, known: "DenseNumbering", keep_positions: bool = False) -> EdgeList:
    """See `matrix.products.induced`. Sources are looked up among the sorted nodes: no array over all nodes."""
    there, nodes = in_memory(graph, "samplers written as matrices"), known.nodes
    row, at = _entries(graph.indptr[nodes], graph.in_degree[nodes], there.device)
    ids, number = torch.sort(to_device(nodes, there.device))
    sources = there.indices[at]
    place = torch.searchsorted(ids, sources).clamp(max=len(ids) - 1)
    kept = ids[place] == sources
    at = at[kept]
    counts = torch.bincount(row[kept], minlength=len(nodes)).cpu().numpy()
    return DeviceEdges(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        number[place[kept]].int(),
        at if keep_positions else None,
        None if graph.edge_weight is None else number_on_device(graph, "edge_weight")[at],
    )


# `stages.random` in int64, which wraps around; shifts to the right must not copy the sign.


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _M1
    z = (z ^ _shifted(z, 27)) * _M2
    return z ^ _shifted(z, 31)


def _draw_word(words: Tensor, i: Tensor | int) -> Tensor:
    step = (i + 1) * _GOLDEN if isinstance(i, Tensor) else _signed((i + 1) * _GOLDEN)
    return _mixed(words + step)


def _signed(x: int) -> int:
    """The int64 that equals x modulo 2**64."""
    return (x + (1 << 63)) % (1 << 64) - (1 << 63)


def _below(bits: Tensor, bound: Tensor) -> Tensor:
    """floor(bits * bound / 2**64) of 64 random bits, in halves of 32 bits."""
    a, b, c, d = _shifted(bits, 32), bits & _LOW, _shifted(bound, 32), bound & _LOW
    u = a * d + _shifted(b * d, 32)
    v = b * c + (u & _LOW)
    return a * c + _shifted(u, 32) + _shifted(v, 32)
