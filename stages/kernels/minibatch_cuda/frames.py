"""Frames: minibatches padded to one shape at a fixed address, as recorded training steps need them.

A CUDA graph replays a step's launches without the host, but only over the same memory and the same sizes. So the
minibatches of a bulk are laid out as the rows of one matrix, each array with room for the longest; the recorded step
reads a row of it that is copied into place. Padding beyond a minibatch's end is harmless: rows without edges, whose
results are not read and whose gradients are 0.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ....storage.array_kinds import Int32Array
from ..aggregation.lists import CHUNK, DeviceLists, Rest
from ..runtime.device_memory import to_device
from ..runtime.triton_rng import elements, launch, programs
from ..sampling.device_samples import Counts, prefix_sums
from .bulk import ResidentBulk

ALIGN = 32
"""Alignment of arrays in words: 128 bytes."""
SLACK = 1.04
"""Room for minibatches that are larger than those seen so far."""
BLOCK = 1024


@triton.jit(do_not_specialize=["at", "width", "row"])
def _spread(source, starts, last, out, at, width, row, BLOCK: tl.constexpr):
    """out[q, at + j] = source[starts[q] + min(j, last[q])]; 0 if the source is empty."""
    q = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    end = tl.load(last + q)
    x = tl.load(source + tl.load(starts + q) + tl.minimum(j, end), mask=(j < width) & (end >= 0), other=0)
    tl.store(out + q * row + at + j, x, mask=j < width)


@triton.jit(do_not_specialize=["at", "onto", "width", "row"])
def _inverse(out, at, onto, width, row, BLOCK: tl.constexpr):
    """From the ends of lists in a row, at `at`, store the bits of 1 / max(length, 1) of each, at `onto`."""
    q = tl.program_id(1).to(tl.int64)
    j, some = elements(width, BLOCK)
    kept = tl.load(out + q * row + at + j + 1, mask=some, other=1) - tl.load(out + q * row + at + j, mask=some, other=0)
    share = 1.0 / tl.maximum(kept, 1).to(tl.float32)
    tl.store(out + q * row + onto + j, share.to(tl.int32, bitcast=True), mask=some)


@dataclass(frozen=True)
class Layout:
    """Length of each array, the same for all minibatches. Hop 0 is nearest the seeds."""

    nodes: tuple[int, ...]
    """L+1: rows before and after each hop."""
    edges: tuple[int, ...]
    """L."""
    pieces: tuple[tuple[int, int, int] | None, ...]
    """L: for hops that need lists by source, (pieces of long lists, long lists, edges of the longest)."""
    weighted: bool

    @classmethod
    def with_room_for(cls, bulk: ResidentBulk, hops: tuple[int, ...], at_least: "Layout | None" = None) -> "Layout":
        """Layout with room for the minibatches of `bulk`, and some slack.

        Args:
            bulk: minibatches with as many seeds each.
            hops: hops that need lists by source.
            at_least: a layout that must fit too.
        """

        def padded(seen: int, known: int) -> int:
            return max(-(-int(seen * SLACK) // ALIGN) * ALIGN, known)

        def most(counts: Counts) -> int:
            return int(counts.max(initial=0))

        L = bulk.num_hops
        old = cls((0,) * (L + 1), (0,) * L, (None,) * L, False) if at_least is None else at_least

        def pieces(h: int) -> tuple[int, int, int]:
            seen, known = bulk.long_lists(h), old.pieces[h] or (0, 0, 0)
            return padded(seen[0], known[0]), padded(seen[1], known[1]), max(seen[2], known[2])

        nodes = (padded(most(n), known) for n, known in zip(bulk.node_ends[1:], old.nodes[1:]))
        edges = tuple(padded(most(e), known) for e, known in zip(bulk.edge_ends, old.edges))
        of_hops = tuple(pieces(h) if h in hops else None for h in range(L))
        return cls((most(bulk.node_ends[0]), *nodes), edges, of_hops, bulk.is_weighted)

    def holds(self, bulk: ResidentBulk) -> bool:
        """True if there is room for the minibatches of `bulk`."""
        fits = all(int(n.max()) <= have for n, have in zip(bulk.node_ends, self.nodes))
        fits = fits and all(int(e.max()) <= have for e, have in zip(bulk.edge_ends, self.edges))
        for h, have in enumerate(self.pieces):
            fits = fits and (have is None or all(a <= b for a, b in zip(bulk.long_lists(h), have)))
        return fits

    @cached_property
    def extents(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Extent of each array, by name and hop: its beginning in a row, and its length in words."""
        found: dict[tuple[str, int], tuple[int, int]] = {}
        at = 0

        def add(name: str, h: int, words: int) -> None:
            nonlocal at
            found[name, h] = at, words
            at += -(-max(words, 1) // ALIGN) * ALIGN

        add("nodes", 0, self.nodes[-1])
        for h, (rows, sources, edges, pieces) in enumerate(zip(self.nodes, self.nodes[1:], self.edges, self.pieces)):
            add("indptr", h, rows + 1)
            add("inverse", h, rows)
            # Each hop has its own, even if hops share a list: padding beyond a hop's end then names rows that the hop
            # has.
            add("indices", h, edges)
            if self.weighted:
                add("weight", h, edges)
            if pieces is not None:
                add("t_indptr", h, sources + 1)
                add("t_dst", h, edges)
                add("t_edge", h, edges)
                for name, words in (("begin", pieces[0]), ("end", pieces[0]), ("of", pieces[0]), ("long", pieces[1])):
                    add(name, h, words)
                add("own", h, pieces[1] + 1)
        found["end of row", 0] = at, 0
        return found

    @property
    def row_words(self) -> int:
        """Words of a row."""
        return self.extents["end of row", 0][0]

    def rows(self, bulk: ResidentBulk) -> Tensor:
        """int32 [k, row_words], the minibatches of `bulk`, which must fit."""
        k, to = bulk.size, bulk.device
        out = torch.empty(k, self.row_words, dtype=torch.int32, device=to)

        def spread(source: Tensor, starts: Counts, ends: Counts, name: str, h: int) -> None:
            at, width = self.extents[name, h]
            if width:
                of = to_device(np.stack([starts, ends]), to)
                launch(_spread, programs(width, BLOCK), k)(
                    source, of[0], of[1], out, at, width, self.row_words, BLOCK=BLOCK
                )

        nodes = prefix_sums(bulk.node_ends[-1])
        spread(bulk.nodes, nodes[:-1], np.diff(nodes) - 1, "nodes", 0)
        for h, (rows, sources, edges) in enumerate(zip(bulk.node_ends, bulk.node_ends[1:], bulk.edge_ends)):
            x = bulk.list_of(h)
            row_at, edge_at = prefix_sums(x.rows + 1)[:-1], x.edge_at
            spread(x.indptr, row_at, rows, "indptr", h)
            (ends, _), (inverse, width) = self.extents["indptr", h], self.extents["inverse", h]
            launch(_inverse, programs(width, BLOCK), k)(out, ends, inverse, width, self.row_words, BLOCK=BLOCK)
            spread(x.indices, edge_at, edges - 1, "indices", h)
            if x.weight is not None:
                spread(x.weight.view(torch.int32), edge_at, edges - 1, "weight", h)
            if self.pieces[h] is not None:
                back = bulk.back(h)
                of_sources, of_edges = prefix_sums(sources + 1)[:-1], prefix_sums(edges)[:-1]
                spread(back.indptr, of_sources, sources, "t_indptr", h)
                spread(back.dst, of_edges, edges - 1, "t_dst", h)
                spread(back.edge, of_edges, edges - 1, "t_edge", h)
                self._long_lists(bulk, h, out)
        return out

    def _long_lists(self, bulk: ResidentBulk, h: int, out: Tensor) -> None:
        """Unused pieces are empty, and unused long lists are -1."""
        first = self.extents["begin", h][0]
        stop = self.extents["own", h][0] + self.extents["own", h][1]
        table = np.zeros((bulk.size, stop - first), np.int32)

        def part(name: str) -> Int32Array:
            at, words = self.extents[name, h]
            return table[:, at - first : at - first + words]

        part("long")[:] = -1
        for q, (begin, end, of, long, own) in enumerate(bulk.back(h).long_of_each):
            for name, values in (("begin", begin), ("end", end), ("of", of), ("long", long)):
                part(name)[q, : len(values)] = values
            part("own")[q, : len(own)] = own
            part("own")[q, len(own) :] = own[-1]
        out[:, first:stop] = to_device(table, out.device)


class NoListsBySourceError(Exception):
    """A gradient needs lists by source of a hop that has none in the layout."""

    def __init__(self, hop: int) -> None:
        super().__init__(hop)
        self.hop = hop


@dataclass(frozen=True, eq=False)
class _FramedLists(DeviceLists):
    hop: int

    @cached_property
    def transposed(self) -> tuple[DeviceLists, Tensor]:
        raise NoListsBySourceError(self.hop)


class Frame:
    """One minibatch at a fixed address, with the interface of a `ResidentBulk`."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        """
        Args:
            layout: layout of the minibatches to come.
            device: the device.
        """
        self.layout = layout
        self.words = torch.zeros(layout.row_words, dtype=torch.int32, device=device)
        most = max((p[0] for p in layout.pieces if p is not None), default=0)
        self._each = torch.arange(most, device=device)

    def _part(self, name: str, h: int) -> Tensor:
        at, words = self.layout.extents[name, h]
        return self.words[at : at + words]

    @property
    def nodes(self) -> Tensor:
        """int32 [n], ids."""
        return self._part("nodes", 0)

    def block(self, q: int, h: int) -> DeviceLists:
        """See `ResidentBulk.block`; there is only one minibatch."""
        layout = self.layout
        lists = _FramedLists(self._part("indptr", h), self._part("indices", h), layout.nodes[h + 1], CHUNK, CHUNK, h)
        pieces = layout.pieces[h]
        if pieces is None:
            return lists
        back = DeviceLists(self._part("t_indptr", h), self._part("t_dst", h), layout.nodes[h], max(pieces[2], 1), CHUNK)
        if pieces[2]:
            parts = [self._part(name, h) for name in ("begin", "end", "of", "long")]
            inner = DeviceLists(
                self._part("own", h), self._each[: pieces[0]], pieces[0], min((pieces[2] - 1) // CHUNK, CHUNK), CHUNK
            )
            back.__dict__["rest"] = Rest(parts[0], parts[1], parts[2], parts[3], inner)
        lists.__dict__["transposed"] = back, self._part("t_edge", h)
        return lists

    def weight_of(self, q: int, h: int) -> Tensor | None:
        return self._part("weight", h).view(torch.float32) if self.layout.weighted else None

    def inverse_kept(self, q: int, h: int, dtype: torch.dtype) -> Tensor:
        if dtype == torch.float32:
            return self._part("inverse", h).view(torch.float32)
        return torch.diff(self._part("indptr", h)).clamp_(min=1).to(dtype).reciprocal_()
