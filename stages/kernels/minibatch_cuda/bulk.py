"""Minibatches of a bulk on the device that sampled them: neighbour lists for each minibatch and hop.

Sizes are on the host, arrays on the device. Work that takes several launches or a wait is done once for all minibatches
of a bulk, when it is first needed: above all the transposed lists, along which gradients flow. So a training step never
waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from ....storage.optional import present, taken, when_present
from ..aggregation.lists import CHUNK, DeviceLists, Rest
from ..runtime.device_memory import to_device
from ..sampling.device_samples import Counts, DeviceList, DeviceSample, leading, prefix_sums


class ResidentBulk:
    """k sampled minibatches on the device. Hop h = 0 is nearest the seeds."""

    def __init__(
        self,
        drawn: DeviceSample,
        *,
        nested: bool,
        bound: int | None,
        until: Callable[[], Tensor] | None = None,
        trees: Sequence[Tensor] = (),
    ) -> None:
        """
        Args:
            drawn: the minibatches: with one list whose leading rows are those of each hop, if `nested`, or L lists.
            nested: true if hops share one list.
            bound: maximum edges of a row; None: not known, and the host waits for it.
            until: returns the degrees of all nodes until the moments of their trees, float64, where samples go by time.
            trees: what it reads besides: the tree of each node, int32 [n], and the moment of each tree.
        """
        self.nodes, self.node_ends, self.edge_ends = drawn.rows.nodes, drawn.node_ends, drawn.edge_ends
        self.lists, self.nested = drawn.lists, nested
        """True if all hops are leading rows of one list."""
        self.device = self.nodes.device
        self.longest = bound if bound is not None and bound <= CHUNK else max(_longest(x) for x in self.lists)
        """Maximum edges of a row."""
        self._node_at = prefix_sums(self.node_ends[-1])
        self._row_at = [prefix_sums(x.rows + 1) for x in self.lists]
        self._edge_at = [x.edge_at for x in self.lists]
        self._until, self._trees = when_present(cache, until), trees
        self._there: dict[int, Transposed] = {}
        self._inverse: dict[torch.dtype, list[Tensor]] = {}
        self._ready: torch.cuda.Event | None = None
        """Recorded when the device has made all arrays; None: it has."""
        self._waiting: set[int] = set()
        """Streams that wait for that."""
        if self.device.type == "cuda":
            self._ready = torch.cuda.Event()
            self._ready.record()

    @property
    def size(self) -> int:
        """k."""
        return len(self.node_ends[0])

    @property
    def num_hops(self) -> int:
        """L."""
        return len(self.edge_ends)

    @property
    def is_weighted(self) -> bool:
        """True if edges have weights."""
        return self.lists[0].weight is not None

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors on the device, except those that are made later."""
        of_lists = present(t for x in self.lists for t in (x.indptr, x.indices, x.positions, x.weight))
        return [self.nodes, *of_lists, *self._trees]

    def nbytes(self, q: int) -> int:
        """Bytes of minibatch q."""
        size = int(self.node_ends[-1][q]) * (self.nodes.itemsize + sum(t.itemsize for t in self._trees[:1]))
        for x in self.lists:
            e = 4 + (8 if x.positions is not None else 0) + (0 if x.weight is None else x.weight.itemsize)
            size += 4 * int(x.rows[q] + 1) + e * int(x.edges[q])
        return size

    def await_here(self) -> None:
        """Make the stream of this thread wait until the bulk is made, and keep its memory until that stream is done
        with it."""
        if self._ready is None:
            return
        here = torch.cuda.current_stream(self.device)
        if here.cuda_stream not in self._waiting:
            self._waiting.add(here.cuda_stream)
            here.wait_event(self._ready)
            for t in self.tensors:
                t.record_stream(here)

    def nodes_of(self, q: int) -> Tensor:
        """[n] ids of the nodes of minibatch q, in the dtype of the graph's."""
        return self.nodes[self._node_at[q] : self._node_at[q + 1]]

    def degrees_until(self, q: int) -> Tensor:
        """float64 [n] or [n, 3], degrees of the nodes of minibatch q until the moments of their trees; found once for
        all minibatches."""
        assert self._until is not None
        return self._until()[self._node_at[q] : self._node_at[q + 1]]

    def _at(self, h: int) -> int:
        return 0 if self.nested else h

    def _slices(self, q: int, h: int) -> tuple[slice, slice]:
        i = self._at(h)
        row, edge = int(self._row_at[i][q]), int(self._edge_at[i][q])
        return slice(row, row + int(self.node_ends[h][q]) + 1), slice(edge, edge + int(self.edge_ends[h][q]))

    def block(self, q: int, h: int) -> "ResidentLists":
        """The edges of hop h of minibatch q."""
        rows, edges = self._slices(q, h)
        x, num_src = self.list_of(h), int(self.node_ends[h + 1][q])
        return ResidentLists(x.indptr[rows], x.indices[edges], num_src, self.longest, CHUNK, self, q, h)

    def weight_of(self, q: int, h: int) -> Tensor | None:
        """float32 [e], weights of the edges of hop h of minibatch q, or None."""
        return taken(self.list_of(h).weight, self._slices(q, h)[1])

    def positions_of(self, q: int, h: int) -> Tensor | None:
        """int64 [e], positions in the graph's edge arrays, if known."""
        return taken(self.list_of(h).positions, self._slices(q, h)[1])

    def inverse_kept(self, q: int, h: int, dtype: torch.dtype) -> Tensor:
        """[num_dst] of `dtype`, 1 / max(kept edges, 1); computed once for every row of every list, in the layout of
        `indptr`."""
        if dtype not in self._inverse:
            kept = (torch.diff(x.indptr, append=x.indptr[-1:]).clamp_(min=1) for x in self.lists)
            self._inverse[dtype] = [x.to(dtype).reciprocal_() for x in kept]
        rows = self._slices(q, h)[0]
        return self._inverse[dtype][self._at(h)][rows.start : rows.stop - 1]

    def list_of(self, h: int) -> DeviceList:
        """List of hop h, of all minibatches."""
        return self.lists[self._at(h)]

    def back(self, h: int) -> "Transposed":
        """Lists by source of hop h of all minibatches, made once."""
        if h not in self._there:
            self._there[h] = Transposed(self.list_of(h), self.node_ends[h], self.edge_ends[h], self.node_ends[h + 1])
        return self._there[h]

    def long_lists(self, h: int) -> tuple[int, int, int]:
        """Maxima over minibatches: pieces of long lists by source, and these lists; and edges of the longest."""
        back = self.back(h)
        return max(len(x[2]) for x in back.long_of_each), max(len(x[3]) for x in back.long_of_each), max(back.longest)


def _longest(x: DeviceList) -> int:
    return int(torch.diff(x.indptr).max()) if len(x.indptr) > 1 else 0


@dataclass(frozen=True, eq=False)
class ResidentLists(DeviceLists):
    """Lists of one minibatch and hop, which its bulk transposes together with the others'."""

    bulk: ResidentBulk
    q: int
    h: int

    @cached_property
    def transposed(self) -> tuple[DeviceLists, Tensor]:
        return self.bulk.back(self.h).minibatch(self.q)


class Transposed:
    """Transposed lists of one hop of all minibatches: one sort by (minibatch, source), which keeps the order of
    destinations."""

    def __init__(self, x: DeviceList, rows: Counts, edges: Counts, sources: Counts) -> None:
        """
        Args:
            x: their lists.
            rows: int64 [k], leading rows that belong to the hop.
            edges: int64 [k], their edges.
            sources: int64 [k], nodes after the hop.
        """
        to, k = x.indices.device, len(rows)
        self._source_at, self._edge_at, self._num_dst = prefix_sums(sources + 1), prefix_sums(edges), rows
        row_at, list_at, num_sources = prefix_sums(x.rows + 1), x.edge_at, prefix_sums(sources)
        owner, row = leading(rows, to)
        at = to_device(row_at[:-1], to)[owner] + row
        begin = x.indptr[at].long()
        kept = x.indptr[at + 1].long() - begin
        total = int(edges.sum())
        # For every edge: its minibatch, its row, and its position in the minibatch's list.
        which, edge = leading(edges, to)
        dst = torch.repeat_interleave(row, kept, output_size=total)
        source = x.indices[to_device(list_at, to)[which] + edge].long() + to_device(num_sources[:-1], to)[which]
        source, order = torch.sort(source.int() if num_sources[-1] < 2**31 else source, stable=True)
        self.dst, self.edge = dst[order].int(), edge[order].int()
        # One entry more than sources for each minibatch: the end of the last one's edges.
        owner, entry = leading(sources + 1, to)
        ends = torch.searchsorted(source, (to_device(num_sources[:-1], to)[owner] + entry).to(source.dtype))
        self.indptr = (ends - to_device(self._edge_at[:-1], to)[owner]).int()
        length = torch.diff(self.indptr, append=self.indptr[-1:])
        # The last entry of each minibatch is followed by the first of the next, which is 0.
        long = torch.nonzero(length > CHUNK)[:, 0]
        sizes = torch.stack([long, self.indptr[long].long(), length[long].long()]).cpu().numpy()
        self._cut(sizes, k, to)

    def _cut(self, sizes: np.ndarray, k: int, to: torch.device) -> None:
        """Pieces of long lists, made on the host, since there are few: see `lists.Rest`."""
        entry, begin, length = sizes
        q = np.searchsorted(self._source_at, entry, side="right") - 1
        count = (length - 1) // CHUNK
        of = np.repeat(np.arange(len(entry)), count)
        place = np.arange(len(of)) - np.repeat(prefix_sums(count)[:-1], count)
        first = begin[of] + (place + 1) * CHUNK
        source = entry - self._source_at[q]
        self._long_at = np.searchsorted(q, np.arange(k + 1))
        self._piece_at = prefix_sums(count)[self._long_at]
        # For each minibatch, the beginning of its lists' pieces, counted from its own first one.
        own = [prefix_sums(count[a:b]) for a, b in zip(self._long_at, self._long_at[1:])]
        parts = first, np.minimum(first + CHUNK, (begin + length)[of]), source[of], source, np.concatenate(own)
        by_piece, by_list = (list(zip(at, at[1:])) for at in (self._piece_at, self._long_at))
        self.long_of_each = [
            (*(p[a:b] for p in parts[:3]), source[c:d], o) for (a, b), (c, d), o in zip(by_piece, by_list, own)
        ]
        """For each minibatch, on the host: begin, end and list of its pieces, its long lists, and the beginnings of
        their pieces."""
        lengths = [len(p) for p in parts]
        self._begin, self._end, self._of, self._long, self._own = to_device(np.concatenate(parts), to).split(lengths)
        self.longest = [int(length[a:b].max(initial=0)) for a, b in zip(self._long_at, self._long_at[1:])]
        self._each = torch.arange(int(np.diff(self._piece_at).max(initial=0)), device=to)

    def minibatch(self, q: int) -> tuple[DeviceLists, Tensor]:
        """Transposed lists of minibatch q."""
        entries = slice(int(self._source_at[q]), int(self._source_at[q + 1]))
        edges = slice(int(self._edge_at[q]), int(self._edge_at[q + 1]))
        longest = self.longest[q]
        lists = DeviceLists(self.indptr[entries], self.dst[edges], int(self._num_dst[q]), max(longest, 1), CHUNK)
        if longest:
            a, b = int(self._long_at[q]), int(self._long_at[q + 1])
            first, last = int(self._piece_at[q]), int(self._piece_at[q + 1])
            pieces = DeviceLists(
                self._own[a + q : b + q + 1], self._each[: last - first], last - first, (longest - 1) // CHUNK, CHUNK
            )
            parts = self._begin[first:last], self._end[first:last], self._of[first:last], self._long[a:b]
            lists.__dict__["rest"] = Rest(*parts, pieces)
        return lists, self.edge[edges]
