"""Sampling over rows that several ranks hold: the owner of a row draws in it, and only the drawn edges travel.

The topology stays where it is. For each hop of a whole bulk, node ids go to the owners of their rows and at most
`fanout` ids a row come
back: one all-to-all each way (as DSP's collective sampling, PPoPP 2023). The bits are those of the serial samplers,
since every draw is keyed by seed, epoch, minibatch, hop and node, never by the rank. All ranks of the group call
everything at the same time; a rank without minibatches asks for nothing and answers the others.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...storage.array_kinds import AnyArray, Float32Array, WordArray
from ...storage.minibatch import Bulk
from ...storage.optional import present
from ..assignment import BulkRequest
from ..kernels.row_block.draw import Drawn, HopRows
from ..kernels.row_block.numbering import Numbering, in_order
from ..kernels.runtime.threads import parallel
from ..kernels.sampling.samples import EdgeList, NeighborSample, check_edges
from ..placement.row_owners import IdArray, Ids, Letter, Owners, RowsHere, split_counts, splits_of
from .base import NodeWise, minibatch_of


def draw_node_wise(owners: Owners, sampler: NodeWise, request: BulkRequest) -> Bulk:
    """Like ``sampler.sample`` on the whole graph, for a sampler that draws for each row independently.

    Args:
        owners: of this rank.
        sampler: draws for each row by itself.
        request: of this rank's minibatches; there may be none.
    """
    k, keys = len(request.seeds), sampler.streams(request)
    numbered = [Numbering(s, owners.dtype) for s in request.seeds]
    frontiers = [n.nodes for n in numbered]
    ends = [[len(n.nodes)] for n in numbered]
    drawn: list[list[_Rows]] = [[] for _ in range(k)]
    for hop, fanout in enumerate(sampler.fanouts(owners.rows.graph)):
        hop_rows = _ask(owners, sampler, frontiers, keys[:, hop], fanout, ascending=hop > 0 and sampler.expand == "new")

        def unite(q: int, hop_rows: "list[_Rows]" = hop_rows) -> None:
            drawn[q].append(hop_rows[q])
            new = numbered[q].add(hop_rows[q].sources)
            frontiers[q] = new if sampler.expand == "new" else numbered[q].nodes
            ends[q].append(len(numbered[q].nodes))

        parallel(unite, [(q,) for q in range(k)])
    samples: list[Any] = [None] * k

    def assemble(q: int) -> None:
        nested = sampler.expand == "new"
        lists = [_joined(drawn[q])] if nested else drawn[q]
        sample = NeighborSample(numbered[q].nodes, tuple(ends[q]), tuple(r.edges(numbered[q]) for r in lists))
        weights, ids = [r.weight for r in lists], [r.ids for r in lists]
        samples[q] = minibatch_of(request, q, sample, weights, ids, nested=nested)

    parallel(assemble, [(q,) for q in range(k)])
    return Bulk(request.epoch, request.number, tuple(samples))


class _Rows:
    """Edges drawn for some rows of a minibatch."""

    def __init__(self, ends: IdArray, sources: Ids, weight: Float32Array | None, ids: IdArray | None) -> None:
        self.ends, self.sources, self.weight, self.ids = ends, sources, weight, ids

    def edges(self, numbered: Numbering) -> EdgeList:
        check_edges(self.ends[-1], "batch_size or fanout")
        indices = np.empty(len(self.sources), np.int32)
        numbered.positions(self.sources, indices)
        return EdgeList(self.ends.astype(np.int32), indices, None)


def _joined(hops: list[_Rows]) -> _Rows:
    starts = np.cumsum([0, *(r.ends[-1] for r in hops[:-1])])
    ends = np.concatenate([np.zeros(1, np.int64), *(r.ends[1:] + s for r, s in zip(hops, starts))])
    # All hops have weights, or none has; likewise ids.
    weights, ids = present(r.weight for r in hops), present(r.ids for r in hops)
    weight, edge_ids = np.concatenate(weights) if weights else None, np.concatenate(ids) if ids else None
    return _Rows(ends, np.concatenate([r.sources for r in hops]), weight, edge_ids)


def _count_dtype(fanout: Any) -> np.dtype[Any]:
    """The narrowest dtype for the number of edges of a row; int32 with a fanout for each relation."""
    return np.dtype(np.int32) if np.ndim(fanout) or fanout < 0 else np.min_scalar_type(fanout)


def _ask(
    owners: Owners, sampler: NodeWise, frontiers: Sequence[Ids], keys: WordArray, fanout: Any, *, ascending: bool
) -> list[_Rows]:
    """One hop of all minibatches: rows to their owners, edges back."""
    splits = splits_of(frontiers)
    order, owned = owners.route(np.concatenate([np.empty(0, owners.dtype), *frontiers]))
    header = [
        (np.array([len(keys)]), keys, n, ids) if len(ids) else ()
        for ids, n in zip(owned, split_counts(splits, order, owned))
    ]
    asked = owners.exchange(header)
    answers = owners.exchange(_answer(owners, sampler, asked, fanout, ascending))

    weighted, with_ids = sampler.sends_weights(owners.rows.graph), sampler.edge_ids
    kept = [a.take(len(ids), _count_dtype(fanout)).astype(np.int64) for a, ids in zip(answers, owned)]
    edges = [int(n.sum()) for n in kept]
    kinds = [owners.dtype, *([np.float32] if weighted else []), *([np.int64] if with_ids else [])]
    values = [np.concatenate([a.take(e, kind) for a, e in zip(answers, edges)]) for kind in kinds]
    ends, found = in_order(order, np.concatenate(kept), *values)
    rows = []
    for a, b in zip(splits[:-1], splits[1:]):
        cut = slice(int(ends[a]), int(ends[b]))
        sources, *rest = (v[cut] for v in found)
        weight, ids = rest[0] if weighted else None, rest[-1] if with_ids else None
        rows.append(_Rows(ends[a : b + 1] - ends[a], sources, weight, ids))
    return rows


def _answer(
    owners: Owners, sampler: NodeWise, asked: list[Letter], fanout: Any, ascending: bool
) -> list[list[AnyArray]]:
    """Draw in the rows on this rank for all ranks that ask."""
    keys, counts, ids, totals = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], [np.empty(0, owners.local_dtype)], []
    for letter in asked:
        m = int(letter.take(1, np.int64)[0]) if letter else 0
        keys.append(letter.take(m, np.uint64))
        counts.append(letter.take(m, np.int64))
        totals.append(int(counts[-1].sum()))
        ids.append(letter.take(totals[-1], owners.local_dtype))
    splits = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))])
    places, lengths, found = [], [], []
    for here, at, rows in owners.visit(np.concatenate(ids), starts=sampler.edge_ids):
        cuts = splits if at is None else np.searchsorted(at, splits)
        drawn = sampler.draw(here, HopRows(rows, cuts, np.concatenate(keys), fanout, ascending))
        places.append(at)
        lengths.append(drawn.kept)
        found.append(_values(sampler, here, rows, drawn, fanout))
    if len(places) == 1:
        kept, values = lengths[0], found[0]
    else:
        ends, values = in_order(
            np.concatenate(places), np.concatenate(lengths), *(np.concatenate(v) for v in zip(*found))
        )
        kept = np.diff(ends)
    edge_ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    answers, at = [], 0
    for n in totals:
        e = slice(int(edge_ends[at]), int(edge_ends[at + n]))
        answers.append([kept[at : at + n].astype(_count_dtype(fanout)), *(v[e] for v in values)])
        at += n
    return answers


def _values(sampler: NodeWise, here: RowsHere, rows: IdArray, drawn: Drawn, fanout: Any) -> list[AnyArray]:
    """Values sent for each drawn edge: its source, weight and position."""
    values: list[AnyArray] = [drawn.sources]
    if sampler.sends_weights(here.graph):
        weight = drawn.weight
        if weight is None:
            weight = sampler.weigh(here.graph, rows, drawn.kept, (here.graph.edge_weight, drawn.positions), fanout)
        values.append(weight)
    if sampler.edge_ids:
        assert drawn.positions is not None
        first = here.first_edge
        ids = drawn.positions + (first if isinstance(first, int) else np.repeat(first[rows], drawn.kept))
        if not here.graph.types.is_single:
            # Whoever trains on the edge does not have its relation: it comes with the position.
            ids = ids * here.graph.types.num_relations + here.graph.edge_relations[drawn.positions]
        values.append(ids)
    return values
