"""LADIES and FastGCN over rows that several ranks hold: darts travel to the owners of the rows that they hit.

The skeleton's product P = Q (W o W) is needed in few places: a dart lands in one term of one row, and debiasing needs P
at the sampled columns alone, which follows from the block's edges. So, for each hop of a whole bulk,

    facts       ids of rows not seen before ->  <- their degrees and masses
    darts       (row, rest) ->  <- a column each; again for those that want more
    P           only where darts ran out: rows ->  <- partial sums of P by the owner of the rows, added up by minibatch
    extract     known nodes ->  <- the edges between them, in places

in place of the rows themselves, which the 1.5D product (MLSys 2024) moves. The bits are those of
`kernels.sampling.cpu.layerwise`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...storage.array_kinds import AnyArray, Float32Array, Int32Array, ValueArray
from ...storage.graph import starts_of
from ...storage.optional import present
from ..kernels.row_block.layerwise import Rates, add_up, extract, partial_sums, resolve, summed, weigh
from ..kernels.row_block.numbering import in_order
from ..kernels.runtime.threads import parallel
from ..kernels.sampling import exponential_race
from ..kernels.sampling.draws import LayerDraws
from ..kernels.sampling.layerwise import Drawn, LayerSample, factors, fraction_bits, same_scale, squares
from ..kernels.sampling.samples import check_edges
from ..placement.row_owners import Ids, Letter, Owners, split_counts, splits_of
from ..random import draw, node_words
from .layer_draws import IdArray, LayerDraw, LayerMinibatch

Answer = Callable[[Sequence[Ids]], list[list[AnyArray]]]


def draw_layer_wise(owners: Owners, asked: LayerDraws) -> list[LayerSample]:
    """See `cpu.layerwise.layers`: the same arguments, the same bits. All ranks
    call this together."""
    layers = _RemoteLayers(owners, asked)
    minibatches = [LayerMinibatch(s, owners.dtype) for s in asked.seeds]
    layers.learn(minibatches, [m.nodes for m in minibatches], as_rows=True)
    for h, s in enumerate(asked.sizes):
        drawn = layers.draw(minibatches, [int(k) for k in asked.keys[:, h]], s)
        new = [m.unite(d) for m, d in zip(minibatches, drawn)]
        last = h + 1 == len(asked.sizes)
        if asked.every_row or not last:
            layers.learn(minibatches, new, as_rows=not last)
        layers.extract(minibatches, drawn)
    weighted = asked.debias != "none" or layers.weighted
    return [m.sample(weighted, asked.keep_positions) for m in minibatches]


class _RemoteLayers:
    """Draws one bulk, hop by hop, together with the owners of the rows."""

    def __init__(self, owners: Owners, asked: LayerDraws) -> None:
        rows, self.keep, every_row = owners.rows, asked.keep_positions, asked.every_row
        self.owners, self.debias, self.every_row = owners, asked.debias, every_row
        self.weighted = rows.graph.is_weighted
        self.held = owners.answered_rows(starts=self.keep)
        self.thrown_to = owners.blocks if every_row else owners
        """Target of darts: columns of P over all rows, or rows."""
        self.one_bits = fraction_bits(rows.num_nodes)
        if every_row:
            self.everywhere = _everywhere(owners.blocks)

    @property
    def rates(self) -> Rates:
        """Rates of the rows that this rank holds."""
        return self.held.rates

    def learn(self, minibatches: Sequence[LayerMinibatch], new: Sequence[Ids], as_rows: bool) -> None:
        """Ask the owners of new nodes for the numbers that draws and weights need: as rows, and with `every_row` as
        columns."""
        owners, splits = self.owners, splits_of(new)
        columns = [np.int64] if self.every_row else []
        rows = [np.int32, *([np.int64, np.int64, np.float64] if self.weighted else [])] if as_rows else []
        if owners is owners.blocks:
            told = (self._masses if columns else None, self._facts if rows else None)
            facts = _gather(owners, new, columns + rows, *told)
        else:
            facts = _gather(owners.blocks, new, columns, self._masses) if columns else []
            facts += _gather(owners, new, rows, self._facts) if rows else []
        for m, a, b in zip(minibatches, splits[:-1], splits[1:]):
            found = iter(f[a:b] for f in facts)
            if self.every_row:
                m.importance = np.concatenate([m.importance, next(found)])
            if not as_rows:
                continue
            degree = next(found).astype(np.int64)
            m.in_degree = np.concatenate([m.in_degree, degree])
            if self.weighted:
                m.degree = np.concatenate([m.degree, next(found)])
                m.mass = np.concatenate([m.mass, next(found)])
                m.sums = np.concatenate([m.sums, next(found)])
            else:
                whole = degree + 1
                m.mass = np.concatenate([m.mass, squares(np.ones(len(whole), np.int64), whole, self.one_bits) * whole])

    def _masses(self, asked: Sequence[Ids]) -> list[list[ValueArray]]:
        """P over all rows, at columns of this rank's block."""
        return [[self.everywhere[0][ids]] for ids in asked]

    def _facts(self, asked: Sequence[Ids]) -> list[list[AnyArray]]:
        """Numbers of rows that this rank answers for."""
        self.held.add(np.concatenate(asked))
        found, r = [], self.rates
        for rows in map(self.held.index, asked):
            found.append([self.held.graph.in_degree[rows].astype(np.int32)])
            if self.weighted:
                assert r.degree is not None and r.mass is not None and r.sums is not None
                found[-1] += [r.degree[rows], r.mass[rows], r.sums[rows]]
        return found

    def draw(self, minibatches: Sequence[LayerMinibatch], keys: Sequence[int], s: int) -> list[Drawn]:
        """SAMPLE for each minibatch."""
        blocks = self.everywhere[2] if self.every_row else None
        throws = [LayerDraw(m, key, s, self.debias, self.owners.book, blocks) for m, key in zip(minibatches, keys)]
        group = self.thrown_to.group
        while group.any(any(t.wants_more for t in throws)):
            self._round(throws)
        if group.any(any(t.ran_out for t in throws)):
            (self._race_at_owners if self.every_row else self._add_up)(throws)
        return [t.drawn() for t in throws]

    def _round(self, throws: Sequence[LayerDraw]) -> None:
        """One more round of darts."""
        owners = self.thrown_to
        aimed = [t.aim() for t in throws]
        splits = splits_of([a[0] for a in aimed])
        owner = np.concatenate([np.empty(0, np.int64), *(a[0] for a in aimed)])
        order = np.argsort(owner.astype(np.uint16), kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=owners.group.size))[:-1]
        parts = [np.concatenate([np.empty(0, np.int64), *(a[i] for a in aimed)])[order] for i in (1, 2)]
        rests, rows = np.split(parts[1], ends), np.split(parts[0].astype(owners.local_dtype), ends)
        if self.every_row:
            letters = owners.exchange([(r,) for r in rests])
            answers = [[self._resolve_everywhere(a.take(a.count(np.int64), np.int64))] for a in letters]
        else:
            letters = owners.exchange(list(zip(rests, rows)))
            each = 8 + owners.local_dtype.itemsize
            answers = [[self._resolve(a, a.bytes // each)] for a in letters]
        columns = [a.take(len(r), owners.dtype) for a, r in zip(owners.exchange(answers), rests)]
        hits = np.empty(len(order), owners.dtype)
        hits[order] = np.concatenate(columns)
        for t, a, b in zip(throws, splits[:-1], splits[1:]):
            t.hit(hits[a:b])

    def _resolve(self, letter: Letter, n: int) -> Ids:
        rests = letter.take(n, np.int64)
        rows = self.held.index(letter.take(n, self.owners.local_dtype))
        return resolve(self.rates.common, self.held.first, rows, rests, self.owners.dtype)

    def _resolve_everywhere(self, rests: IdArray) -> Ids:
        place = np.searchsorted(self.everywhere[1], rests, side="right") - 1
        return (place + self.owners.rows.first).astype(self.owners.dtype)

    def _add_up(self, throws: Sequence[LayerDraw]) -> None:
        """Add up P of the minibatches whose darts ran out: partial sums by the owners of their rows."""
        owners = self.owners
        rows = [t.m.nodes if t.ran_out else t.m.nodes[:0] for t in throws]
        splits = splits_of(rows)
        order, owned = owners.route(np.concatenate([np.empty(0, owners.dtype), *rows]))
        counts = split_counts(splits, order, owned)
        letters = owners.exchange(
            [(np.array([len(rows)]), n, ids) if len(ids) else () for n, ids in zip(counts, owned)]
        )
        answers = []
        for letter in letters:
            lengths = letter.take(int(letter.take(1, np.int64)[0]), np.int64) if letter else np.empty(0, np.int64)
            sums = [
                partial_sums(
                    self.rates.common, self.held.first, self.held.index(letter.take(int(n), owners.local_dtype))
                )
                for n in lengths
            ]
            found = [np.concatenate([np.empty(0, np.int64), *(x[i] for x in sums)]) for i in (0, 1)]
            answers.append([np.array([len(x[0]) for x in sums], np.int64), found[1], found[0].astype(owners.dtype)])
        terms: list[list[tuple[IdArray, IdArray]]] = [[] for _ in throws]
        for letter in owners.exchange(answers):
            if not letter:
                continue
            lengths = letter.take(len(throws), np.int64)
            n = int(lengths.sum())
            mass, columns = letter.take(n, np.int64), letter.take(n, owners.dtype).astype(np.int64)
            ends = np.cumsum(lengths)[:-1]
            for into, c, w in zip(terms, np.split(columns, ends), np.split(mass, ends)):
                into.append((c, w))
        for t, parts in zip(throws, terms):
            if t.ran_out:
                t.finish(*summed(*(np.concatenate([p[i] for p in parts]) for i in (0, 1))))

    def _race_at_owners(self, throws: Sequence[LayerDraw]) -> None:
        """Let each owner's columns race; the first of all are among the first of each."""
        owners = self.thrown_to
        header = [v for t in throws if t.ran_out for v in (t.key, t.need + 1, len(t.found))]
        body = [np.array(header, np.uint64), *(np.array(t.found, np.int64) for t in throws if t.ran_out)]
        running = [t for t in throws if t.ran_out]
        letters = owners.exchange(
            [[np.array([len(running)]), *body] if running else [] for _ in range(owners.group.size)]
        )
        answers = []
        for letter in letters:
            message = (
                letter.take(3 * int(letter.take(1, np.int64)[0]), np.uint64).reshape(-1, 3)
                if letter
                else np.empty((0, 3), np.uint64)
            )
            best = [self._first(int(key), int(need), letter.take(int(n), np.int64)) for key, need, n in message]
            answers.append([np.array([len(b[0]) for b in best], np.int64), *(a for b in best for a in b)])
        found: list[list[tuple[IdArray, IdArray]]] = [[] for _ in running]
        for letter in owners.exchange(answers):
            if not letter:
                continue
            for into, n in zip(found, letter.take(len(running), np.int64)):
                into.append((letter.take(int(n), np.int64), letter.take(int(n), np.int64)))
        for t, parts in zip(running, found):
            # Columns hit before are no candidates any more.
            t.finish(*(np.concatenate([p[i] for p in parts]) for i in (0, 1)))

    def _first(self, key: int, need: int, hit: IdArray) -> tuple[IdArray, IdArray]:
        """The first `need` in the race among this rank's columns that were not hit, and their masses."""
        importance, first = self.everywhere[0], self.owners.rows.first
        ids = np.setdiff1d(np.arange(first, first + len(importance)), hit)
        mass = importance[ids - first]
        order = np.lexsort((ids, exponential_race.keys(draw(node_words(key, ids), 0), mass)))[:need]
        return ids[order], mass[order]

    def extract(self, minibatches: Sequence[LayerMinibatch], drawn: Sequence[Drawn]) -> None:
        """EXTRACT for each minibatch, and the weights of its edges."""
        owners, rows = self.owners, [m.rows for m in minibatches]
        order, owned = owners.route(np.concatenate([np.empty(0, owners.dtype), *rows]))
        counts = split_counts(splits_of(rows), order, owned)
        letters = owners.exchange([self._known(minibatches, n) for n in counts])
        mine: list[list[AnyArray]] = [self._edges(letter, asker) for asker, letter in enumerate(letters)]
        answers = owners.exchange(mine)
        kept = [a.take(len(ids), np.int32) for a, ids in zip(answers, owned)]
        edges = [int(n.sum()) for n in kept]
        kinds = [np.int32, *([np.float32] if self.weighted else []), *([np.int64] if self.keep else [])]
        values = [np.concatenate([a.take(e, kind) for a, e in zip(answers, edges)]) for kind in kinds]
        ends, found = in_order(order, np.concatenate(kept), *values)
        splits = splits_of(rows)

        def block(q: int) -> None:
            a, b = splits[q], splits[q + 1]
            cut = slice(int(ends[a]), int(ends[b]))
            check_edges(cut.stop - cut.start, "batch_size or sizes")
            row_ends = (ends[a : b + 1] - ends[a]).astype(np.int32)
            values = found[1][cut] if self.weighted else np.empty(1, np.float32)
            weighed = self._with_weights(minibatches[q], drawn[q], row_ends, found[0][cut].copy(), values)
            minibatches[q].blocks.append((*weighed, found[-1][cut].copy() if self.keep else np.empty(0, np.int64)))

        parallel(block, [(q,) for q in range(len(minibatches))])

    def _known(self, minibatches: Sequence[LayerMinibatch], counts: IdArray) -> list[AnyArray]:
        """Message to one owner: for each minibatch with rows there, its numbers of nodes and rows, and its nodes."""
        message = [m for m, n in zip(minibatches, counts) if n]
        if not message:
            return []
        return [
            np.array([len(message), *(v for m in message for v in (len(m.nodes), len(m.rows)))]),
            *(m.nodes for m in message),
        ]

    def _edges(self, letter: Letter, asker: int) -> list[AnyArray]:
        """Answer to one rank: counts, places, weights and positions of the edges of rows that this rank answers for."""
        if not letter:
            return []
        owners, held, dtype = self.owners, self.held, self.owners.dtype
        sizes = letter.take(2 * int(letter.take(1, np.int64)[0]), np.int64).reshape(-1, 2)
        asked = [(letter.take(int(m), dtype), int(n)) for m, n in sizes]
        found: list[Any] = [None] * len(asked)

        def one(i: int) -> None:
            nodes, n = asked[i]
            rows = nodes[:n][owners.answers(nodes[:n], asker)]
            # Ids as this rank was asked for them.
            rows = held.index((rows - owners.book.offsets[owners.group.rank]).astype(owners.local_dtype))
            counts, places, weights, positions = extract(held.graph, nodes, rows, self.keep)
            first = held.first_edge
            if self.keep:
                positions = positions + (first if isinstance(first, int) else np.repeat(first[rows], counts))
            found[i] = counts, places, weights, positions

        parallel(one, [(i,) for i in range(len(asked))])
        return [np.concatenate([f[i] for f in found]) for i in range(4)]

    def _with_weights(
        self, m: LayerMinibatch, drawn: Drawn, row_ends: Int32Array, indices: Int32Array, values: Float32Array
    ) -> tuple[Int32Array, Int32Array, Float32Array]:
        """Debias as `cpu.layerwise` does, over the rows of the minibatch as if they were a graph."""
        if self.debias == "none" and not self.weighted:
            return row_ends, indices, np.empty(0, np.float32)
        n = len(row_ends) - 1
        own = np.arange(n)
        indptr = starts_of(m.in_degree[:n])
        mass = np.empty(len(m.nodes), np.int64)
        if self.every_row:
            mass = m.importance
        else:
            weight, degree = (values, m.degree) if self.weighted else (None, None)
            add_up(indptr, weight, degree, self.rates.scale, self.rates.one, own, n, row_ends, indices, values, mass)
        factor = factors(
            self.debias,
            mass.astype(np.float64) * (1.0 / m.total) if m.total else mass.astype(np.float64),
            m.nodes,
            n,
            drawn,
        )
        out = np.empty(len(indices), np.float32)
        sums = m.sums if self.weighted else None
        weigh(indptr, sums, own, n, row_ends, indices, self.weighted, values, factor, same_scale(self.debias), out)
        return row_ends, indices, out


def _gather(
    owners: Owners, new: Sequence[Ids], dtypes: Sequence[npt.DTypeLike], *answer: Answer | None
) -> list[AnyArray]:
    """Numbers of all these nodes, of each dtype, as whoever is asked for a node computes them."""
    order, owned = owners.route(np.concatenate([np.empty(0, owners.dtype), *new]))
    letters = owners.exchange([(ids,) for ids in owned])
    asked = [a.take(a.count(owners.local_dtype), owners.local_dtype) for a in letters]
    told = [of(asked) for of in present(answer)]
    answers = owners.exchange([[x for part in parts for x in part] for parts in zip(*told)])
    facts = [np.empty(len(order), dtype) for dtype in dtypes]
    arrived = [[a.take(len(ids), dtype) for dtype in dtypes] for a, ids in zip(answers, owned)]
    for back, parts in zip(facts, zip(*arrived)):
        back[order] = np.concatenate(parts)
    return facts


def _everywhere(owners: Owners) -> tuple[IdArray, IdArray, IdArray]:
    """P over all V rows: of this rank's columns, their prefix sums, and the prefix sums of all blocks; made once, by
    all ranks together."""
    if "everywhere" not in owners.kept:
        rows, group, held = owners.rows, owners.group, owners.answered_rows()
        n = rows.graph.num_nodes
        columns, mass = partial_sums(held.rates.common, held.first, np.arange(n))
        ends = np.searchsorted(columns, rows.book.offsets[1:-1])
        letters = owners.exchange(
            [(w, c.astype(owners.dtype)) for c, w in zip(np.split(columns, ends), np.split(mass, ends))]
        )
        importance = np.zeros(n, np.int64)
        for letter in letters:
            count = letter.bytes // (8 + owners.dtype.itemsize)
            w = letter.take(count, np.int64)
            importance[letter.take(count, owners.dtype) - rows.first] += w
        totals = torch.zeros(group.size, dtype=torch.int64)
        totals[group.rank] = int(importance.sum())
        group.all_reduce(totals, "control")
        blocks = np.concatenate([[0], np.cumsum(totals.numpy())])
        owners.kept["everywhere"] = importance, np.concatenate([[0], np.cumsum(importance)]), blocks
    return owners.kept["everywhere"]
