"""Finds and numbers the columns that darts hit, on the device: the bulk's hits are sorted once, and no table is looked
through."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...runtime.triton_rng import TILE, elements, launch, programs
from ..device_samples import Counts, Rows
from .renumber import Group
from .tables import Tables

BLOCK = TILE


@triton.jit(do_not_specialize=["limit", "num_hits"])
def _mark_first(places, order, first, last, prefix, new, limit, num_hits, BLOCK: tl.constexpr):
    """new[j + 1] is 1 if dart j is the first of its minibatch at its place; darts at no mass hit nothing."""
    i, some = elements(num_hits, BLOCK)
    q = i // limit
    here = tl.load(places + i, mask=some, other=0)
    before = tl.load(places + i - 1, mask=some & (i > 0), other=-1)
    begin, end = tl.load(first + q, mask=some, other=0), tl.load(last + q, mask=some, other=0)
    mass = tl.load(prefix + end, mask=some, other=0) - tl.load(prefix + begin, mask=some, other=0)
    is_new = (here != before) & (mass > 0)
    tl.store(new + tl.load(order + i, mask=some, other=0) + 1, is_new.to(tl.int64), mask=some)
    # Sums begin with 0.
    tl.store(new + i, 0, mask=i == 0)


@triton.jit(do_not_specialize=["limit", "num_hits", "size", "want"])
def _choose(places, order, ranks, local, chosen, darts, limit, num_hits, size, want, BLOCK: tl.constexpr):
    """chosen[i + 1] is 1 if the hit is among the first `size` and has no number; darts[q] is the number of those that
    hit `want` places."""
    i, some = elements(num_hits, BLOCK)
    q = i // limit
    j = tl.load(order + i, mask=some, other=0)
    rank = tl.load(ranks + j + 1, mask=some, other=0)
    is_new = some & (rank > tl.load(ranks + j, mask=some, other=0))
    rank -= tl.load(ranks + q * limit, mask=is_new, other=0)
    number = tl.load(local + tl.load(places + i, mask=is_new, other=0).to(tl.int64), mask=is_new, other=0)
    tl.store(chosen + i + 1, (is_new & (rank <= size) & (number < 0)).to(tl.int64), mask=some)
    tl.store(chosen + i, 0, mask=i == 0)
    tl.store(darts + q, j - q * limit + 1, mask=is_new & (rank == want))


@triton.jit(do_not_specialize=["limit", "num_hits", "num_rows"])
def _enter(
    places, chosen_ends, ends, nodes, owner, local, found, all_nodes, all_owner, limit, num_hits, num_rows, stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write each minibatch's rows and then its chosen hits, which get numbers and marks."""
    i, some = elements(num_rows, BLOCK)
    q = tl.load(owner + i, mask=some, other=0)
    out = i + tl.load(chosen_ends + q.to(tl.int64) * limit, mask=some, other=0)
    tl.store(all_nodes + out, tl.load(nodes + i, mask=some, other=0), mask=some)
    tl.store(all_owner + out, q, mask=some)
    some = i < num_hits
    before = tl.load(chosen_ends + i, mask=some, other=0)
    some = some & (tl.load(chosen_ends + i + 1, mask=some, other=0) > before)
    q = i // limit
    place = tl.load(places + i, mask=some, other=0).to(tl.int64)
    known = tl.load(ends + q + 1, mask=some, other=0)
    tl.store(all_nodes + known + before, place - q * stride, mask=some)
    tl.store(all_owner + known + before, q.to(tl.int32), mask=some)
    number = known - tl.load(ends + q, mask=some, other=0) + before
    number -= tl.load(chosen_ends + q * limit, mask=some, other=0)
    tl.store(local + place, number.to(tl.int32), mask=some)
    tl.store(found + place, 1, mask=some)


@dataclass(frozen=True, eq=False)
class Hits:
    """Darts of k minibatches, `limit` each."""

    places: Tensor
    """[k limit], ``minibatch * stride + column``, ascending."""
    ranks: Tensor
    """int64 [k limit + 1], before each dart the number of those that are the first at their place."""
    chosen_ends: Tensor
    """int64 [k limit + 1], sums before each of `places` of those that are drawn and have no number yet."""
    darts: Tensor
    """int64 [k], darts up to the one that hit the last place that is wanted; undefined where fewer are hit."""
    limit: int

    @property
    def sizes(self) -> tuple[Tensor, Tensor]:
        """int64 [k + 1] each: sums before each minibatch of places hit, and of new nodes."""
        return self.ranks[:: self.limit], self.chosen_ends[:: self.limit]


def find(hits: Tensor, first: Tensor, last: Tensor, prefix: Tensor, size: int, want: int, tables: Tables) -> Hits:
    """The first `size` places that each minibatch's darts hit.

    Args:
        hits: [k, limit], places in the order of the darts.
        first: see `Terms.throw`, as `last` and `prefix`.
        last: see there.
        prefix: see there.
        size: places drawn.
        want: places of which `Hits.darts` speaks.
        tables: of the bulk.
    """
    k, limit = hits.shape
    places, order = torch.sort(hits.view(-1), stable=True)
    new, chosen = torch.empty(2, k * limit + 1, dtype=torch.int64, device=hits.device)
    darts = torch.empty(k, dtype=torch.int64, device=hits.device)
    grid = programs(k * limit, BLOCK)
    launch(_mark_first, grid)(places, order, first, last, prefix, new, limit, k * limit, BLOCK=BLOCK)
    ranks = new.cumsum_(0)
    launch(_choose, grid)(places, order, ranks, tables.local, chosen, darts, limit, k * limit, size, want, BLOCK=BLOCK)
    return Hits(places, ranks, chosen.cumsum_(0), darts, limit)


def entered(group: Group, ends: Tensor, hits: Hits, counts: Counts, tables: Tables) -> tuple[Group, Tensor]:
    """Each minibatch's rows and then its drawn nodes, ascending; these get their numbers.

    Args:
        group: the rows.
        ends: int64 [k + 1], where each minibatch's end.
        hits: what is drawn.
        counts: new nodes of each minibatch.
        tables: of the bulk.

    Returns:
        All rows, and their `ends`.
    """
    n, total = len(group.rows.nodes), len(group.rows.nodes) + int(counts.sum())
    rows = Rows(group.rows.nodes.new_empty(total), group.rows.owner.new_empty(total))
    num_hits = len(hits.places)
    launch(_enter, programs(max(n, num_hits), BLOCK))(
        hits.places, hits.chosen_ends, ends, group.rows.nodes, group.rows.owner, tables.local, tables.found,
        rows.nodes, rows.owner, hits.limit, num_hits, n, tables.stride, BLOCK=BLOCK,
    )  # fmt: skip
    return Group(rows, group.counts + counts), ends + hits.chosen_ends[:: hits.limit]
