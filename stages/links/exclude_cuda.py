"""`exclude` on the device that drew the minibatches, for all of a bulk at once.

Both ends of a pair are seeds, and the seeds' rows are the first of each list, so only their edges are searched, among
sorted keys (seed, source). They are moved towards the edges of the other rows, which are many more and stay where they
are; own edges are left in the gap before them. The host waits for the numbers of own edges, and where layers have lists
of their own before that for the numbers of seeds' edges: once each, for all minibatches and lists together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...storage.links.pairs import PairArray
from ...storage.minibatch import Bulk, MiniBatch
from ..kernels import sampling_backend
from ..kernels.aggregation.lists import CHUNK
from ..kernels.minibatch_cuda.bulk import ResidentBulk
from ..kernels.runtime.device_memory import ToHost, to_device
from ..kernels.sampling.device_samples import Counts, DeviceList, DeviceSample, Rows, leading, prefix_sums
from ..sample.resident import ResidentMiniBatch
from .own_edges import EdgeKinds, own_keys
from .plan import LinkRequest


def _of_pairs(kinds: EdgeKinds, ids: Tensor) -> Tensor:
    """True for each edge of a relation whose edges may be those of pairs."""
    among = np.isin(np.arange(kinds.types.num_relations), kinds.types.own_relations)
    return to_device(among, ids.device)[kinds.of_edges(ids).long()]


async def without_own_edges(
    drawn: Bulk,
    request: LinkRequest,
    relations: EdgeKinds,
    *,
    nested: bool,
    device: torch.device | None = None,
) -> Bulk:
    """The minibatches of `drawn`, whose arrays are overwritten, without the edges of their positive pairs and the
    reverses: the same bits as by `exclude.without_pairs`. Awaits sizes, as often for a bulk without minibatches.

    Args:
        drawn: minibatches on a device. Their seeds ascend.
        request: has the pairs of each minibatch.
        relations: of the edges.
        nested: true if all hops of a minibatch share a list.
        device: of the sizes awaited; None: that of `drawn`, which has minibatches.
    """
    of_bulk: dict[int, list[_Work]] = {}
    of_pairs = request.relations or (None,) * len(request.positives)
    for m, pairs, kind in zip(drawn.minibatches, request.positives, of_pairs, strict=True):
        assert isinstance(m, ResidentMiniBatch)
        of_bulk.setdefault(id(m.bulk), []).append(_Work(m, pairs, kind))
    pieces = [_Piece(found, relations) for found in of_bulk.values()]
    none = torch.empty(0, dtype=torch.int64, device=pieces[0].device if device is None else device)
    if not nested:
        sizes = await ToHost(torch.cat([none, *(p.sizes() for p in pieces)]))
        for p, own in zip(pieces, np.split(sizes, np.cumsum([p.bulk.size * len(p.bulk.lists) for p in pieces])[:-1])):
            p.of_seeds = own.reshape(len(p.bulk.lists), -1)
    taken = [p.take_out(i) for p in pieces for i in range(len(p.bulk.lists))]
    gone = await ToHost(torch.cat([none, *(t.gone for t in taken)]))
    made: list[MiniBatch] = []
    for p in pieces:
        own, taken = taken[: len(p.bulk.lists)], taken[len(p.bulk.lists) :]
        counts, gone = np.split(gone, [len(own) * p.bulk.size])
        left = p.left([t.list for t in own], counts.reshape(len(own), -1))
        made += [m.within(left) for m in p.minibatches]
    return replace(drawn, minibatches=tuple(made))


@dataclass(frozen=True, eq=False)
class _Work:
    """A minibatch and its positive pairs."""

    minibatch: ResidentMiniBatch
    pairs: PairArray
    """int64 [b, 2]."""
    relation: Counts | None
    """int64 [b], of each pair; None: they are of one, or have none."""


@dataclass(frozen=True, eq=False)
class _Taken:
    """A list without own edges, but for counts on the host; and the number of those taken out of each minibatch."""

    list: DeviceList
    gone: Tensor


class _Piece:
    """Minibatches that lie in one `ResidentBulk`."""

    def __init__(self, work: Sequence[_Work], relations: EdgeKinds) -> None:
        """
        Args:
            work: all of the bulk's minibatches, in order.
            relations: see `without_own_edges`.
        """
        self.minibatches, self._relations = [w.minibatch for w in work], relations
        self.bulk = self.minibatches[0].bulk
        self._by_relation = work[0].relation is not None
        self.device = self.bulk.device
        counts = self.bulk.node_ends[0]
        self._owner, self._row = leading(counts, self.device)
        self._width = int(counts.max(initial=1))
        self._own = torch.sort(to_device(self._keys(work), self.device)).values
        self.of_seeds: Counts = self.bulk.edge_ends[0][None]
        """int64 [lists, k], edges of the seeds' rows, which are the first ones of each list."""

    def _keys(self, work: Sequence[_Work]) -> Counts:
        """int64, for each edge to take out: number of the destination among all seeds, and of the source among those of
        the minibatch, and the relation if pairs have one, as one number. One more, -1, which is none."""
        first, keys = prefix_sums(self.bulk.node_ends[0]), [np.array([-1])]
        types = self._relations.types
        for at, w in zip(first, work, strict=False):
            local = np.searchsorted(w.minibatch.seeds, w.pairs)
            keys.append(own_keys(local, w.relation, types, self._width, at))
        return np.concatenate(keys)

    def _row_at(self, x: DeviceList) -> Tensor:
        """int64 [k], where `indptr` of each minibatch begins."""
        return to_device(prefix_sums(x.rows + 1)[:-1], self.device)

    def sizes(self) -> Tensor:
        """int64 [lists * k], see `of_seeds`."""
        seeds = to_device(self.bulk.node_ends[0], self.device)
        return torch.cat([x.indptr[self._row_at(x) + seeds].long() for x in self.bulk.lists])

    def take_out(self, i: int) -> _Taken:
        """Move the own edges of list i before the others of their minibatch."""
        x, of_seeds, to = self.bulk.lists[i], self.of_seeds[i], self.device
        seeds_at, edge_at, total = prefix_sums(of_seeds), to_device(x.edge_at, to), int(of_seeds.sum())
        row_at, first = self._row_at(x), to_device(seeds_at, to)
        row = row_at[self._owner] + self._row
        end = x.indptr[row + 1]
        # Of each edge of a seed: the seed's number among all, its minibatch, and the edge's place in the list.
        kept = (end - x.indptr[row]).long()
        seed = torch.repeat_interleave(torch.arange(len(row), device=to), kept, output_size=total)
        q = self._owner[seed]
        at = torch.arange(total, device=to) + (edge_at - first[:-1])[q]
        source = x.indices[at]
        keys, relations = seed * self._width + source, self._relations
        if self._by_relation:
            assert x.positions is not None, "the sampler keeps edge_ids"
            keys = keys * relations.types.num_relations + relations.of_edges(x.positions[at]).long()
        near = torch.searchsorted(self._own, keys).clamp_(max=len(self._own) - 1)
        is_own = (self._own[near] == keys) & (source < self._width)
        if not (self._by_relation or relations.types.is_single):
            assert x.positions is not None, "the sampler keeps edge_ids"
            is_own &= _of_pairs(relations, x.positions[at])
        before = sampling_backend("cuda").cumulated(is_own.long())
        of_bulk = before[first]
        gone, rank = of_bulk.diff(), before[:-1] - of_bulk[q]
        place = torch.where(is_own, edge_at[q] + rank, at + gone[q] - rank)
        x.indices[place] = source
        for values in (x.positions, x.weight):
            if values is not None:
                values[place] = values[at]
        rows = int(x.rows.sum()) + len(x.rows)
        indptr = x.indptr - torch.repeat_interleave(gone.int(), to_device(x.rows + 1, to), output_size=rows)
        indptr.index_fill_(0, row_at, 0)
        indptr[row + 1] = (end - (before[first[self._owner] + end] - of_bulk[self._owner])).int()
        return _Taken(replace(x, indptr=indptr), gone)

    def left(self, lists: Sequence[DeviceList], gone: Counts) -> ResidentBulk:
        """The bulk of lists without their `gone` own edges, [lists, k]."""
        b = self.bulk
        lists = tuple(replace(x, edges=x.edges - n, begin=x.edge_at + n) for x, n in zip(lists, gone))
        ends = tuple(e - gone[0 if b.nested else h] for h, e in enumerate(b.edge_ends))
        drawn = DeviceSample(Rows(b.nodes, b.nodes), b.node_ends, lists, ends)
        return ResidentBulk(drawn, nested=b.nested, bound=b.longest if b.longest <= CHUNK else None)
