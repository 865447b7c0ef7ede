"""Exact formulas of what each rank sends and waits for while a bulk is drawn over block rows, from the sizes that were
drawn: frontiers and kept edges of the serial minibatches, and how many darts went to whom."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import numpy as np

from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.row_block.layerwise import partial_sums
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.cpu.terms import Rates
from millrace.stages.placement.row_blocks import Grid
from millrace.stages.sample import remote_layerwise
from millrace.stages.sample.layer_draws import LayerDraw
from millrace.storage.graph import Graph
from millrace.storage.ledger import Ledger
from millrace.storage.minibatch import Bulk
from millrace.storage.partition.book import RangeBook
from millrace.tests.contracts.block_sampling import frontiers, random_book, random_request, worlds

NUMBER = 8
"""Bytes of a size, of a number in the head of a message, of a dart, and of a mass."""
Parts = Mapping[tuple[int, int], int]
"""Bytes of the message from one rank to another."""


@dataclass
class Sent:
    """Bytes that a rank sends, and messages that it waits for."""

    graph: int = 0
    control: int = 0
    waits: int = 0


def counted(ledger: Ledger) -> Sent:
    """Bytes that a rank has sent over the network so far, and its waits."""
    sent, waits = ledger.as_record()["network"], ledger.waits()["network"]
    return Sent(sent["graph"], sent["control"], sum(waits.values()))


def less(now: Sent, before: Sent) -> Sent:
    """Difference of two counts."""
    return Sent(*(getattr(now, f.name) - getattr(before, f.name) for f in fields(Sent)))


@dataclass
class Darts:
    """The darts of one minibatch in one hop."""

    aimed: list[list[int]] = field(default_factory=list)
    """For each round, darts by rank of the circle in which they are thrown."""
    ran_out: bool = False
    need: int = 0
    found: list[int] = field(default_factory=list)


_log = threading.local()


class RecordedThrow(LayerDraw):
    """`LayerDraw` that this thread's `recorded` tells of."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.told = Darts()
        if not hasattr(_log, "throws"):
            _log.throws = []
        _log.throws.append(self)

    def aim(self) -> Any:
        """See `LayerDraw.aim`."""
        aimed = super().aim()
        self.told.aimed.append(np.bincount(aimed[0]).tolist())
        return aimed


def recorded() -> list[Darts]:
    """Darts of all minibatches, hop by hop, since the last call. `remote_layerwise.LayerDraw` be `RecordedThrow`."""
    throws, _log.throws = getattr(_log, "throws", []), []
    for t in throws:
        t.told.ran_out, t.told.need, t.told.found = t.ran_out, t.need, [int(u) for u in t.found]
    return [t.told for t in throws]


def everywhere_known(rows: Any) -> None:
    """Sum P over all V rows, which FastGCN does once for all bulks. All ranks call this together."""
    remote_layerwise._everywhere(rows.blocks)


class Counted:
    """A group in memory that counts what `Gloo` does."""

    def __init__(self, group: Any, sent: Sent) -> None:
        self._group, self._sent = group, sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def sub(self, *args: Any, **options: Any) -> "Counted":
        """See `Group.sub`."""
        return Counted(self._group.sub(*args, **options), self._sent)

    def any(self, flag: bool) -> bool:
        """See `Group.any`."""
        self._sent.control += self._group.size - 1
        self._sent.waits += self._group.size > 1
        return self._group.any(flag)

    def all_to_all(self, parts: list[Any], kind: str, into: list[Any] | None = None) -> list[Any]:
        """See `Group.all_to_all`."""
        others = self._group.size - 1
        self._sent.graph += sum(part.nbytes for r, part in enumerate(parts) if r != self._group.rank)
        self._sent.control += NUMBER * others * (into is None)
        self._sent.waits += (1 + (into is None)) * (others > 0)
        return self._group.all_to_all(parts, kind, into)

    def swap(self, part: Any, to: int, into: Any, *args: Any) -> Any:
        """See `Group.swap`."""
        self._sent.graph += part.nbytes
        self._sent.waits += into.numel() > 0
        return self._group.swap(part, to, into, *args)


@lru_cache
def all_worlds() -> list[tuple[str, Graph, list[Any]]]:
    """See `worlds`."""
    return list(worlds())


def in_world(number: int, i: int, rank: int, ranks: int) -> tuple[BulkRequest, Bulk]:
    """`request_in_world` and its minibatches by the serial sampler."""
    return _in_world(number, i, rank, min(2, ranks))


@lru_cache(maxsize=2000)
def _in_world(number: int, i: int, rank: int, ranks: int) -> tuple[BulkRequest, Bulk]:
    _, graph, samplers = all_worlds()[number]
    request = request_in_world(number, i, rank, ranks)
    empty = Bulk(request.epoch, request.number, ())
    return request, samplers[i].sample(graph, request, cpu) if request.seeds else empty


def request_in_world(number: int, i: int, rank: int, ranks: int) -> BulkRequest:
    """Request of a rank for sampler i of a world; where there are other ranks, some have no minibatches."""
    k, nodes = (1, 3, 0 if ranks > 1 else 2)[(rank + i) % 3], all_worlds()[number][1].num_nodes
    return random_request(np.random.default_rng([number, i, rank]), nodes, k, min(nodes, 12))


def book_in_world(number: int, blocks: int) -> RangeBook:
    """A cut of a world's nodes."""
    return random_book(np.random.default_rng([number, blocks]), all_worlds()[number][1].num_nodes, blocks)


def unlike_the_model(grid: Grid, told: Sequence[Sequence[tuple[Sent, list[Darts]]]], *, staged: bool) -> list[str]:
    """Differences between counts and the model.

    Args:
        grid: of the ranks.
        told: of each rank, for each sampler of each world, what it sent and its darts.
        staged: by 1.5D products.
    """
    wrong, ranks = [], range(grid.ranks)
    each = ((number, i) for number, (_, _, samplers) in enumerate(all_worlds()) for i in range(len(samplers)))
    for (number, i), found in zip(each, zip(*told, strict=True), strict=True):
        name, graph, samplers = all_worlds()[number]
        model = Model(grid, book_in_world(number, grid.blocks), graph, staged=staged)
        want = model.of(samplers[i], [in_world(number, i, r, grid.ranks)[1] for r in ranks], [d for _, d in found])
        wrong += [
            f"{name}: {samplers[i]}, rank {r}: {sent}, by the model {w}"
            for r, ((sent, _), w) in enumerate(zip(found, want))
            if sent != w
        ]
    return wrong


class Model:
    """Messages of one bulk, counted."""

    def __init__(self, grid: Grid, book: RangeBook, graph: Graph, *, staged: bool) -> None:
        """With `staged`, of 1.5D products, otherwise of the owners."""
        self.grid, self.book, self.graph, self.staged = grid, book, graph, staged
        self.sent = [Sent() for _ in range(grid.ranks)]
        self.columns = [grid.column(r) for r in range(grid.replication)]
        self.rows = [grid.row(r) for r in range(0, grid.ranks, grid.replication)]
        self.circles = self.rows if staged else self.columns
        self.id, self.weighted = graph.indices.itemsize, graph.edge_weight is not None
        self.asked_id = self.id if staged else 4
        column_of = [next(j for j in range(grid.replication) if b in grid.stages(j)) for b in range(grid.blocks)]
        self.answers = np.array(
            [
                grid.column(r)
                if not staged
                else [r if b == grid.block(r) else grid.row(r)[column_of[b]] for b in range(grid.blocks)]
                for r in range(grid.ranks)
            ]
        )
        """[rank, block], the rank that it asks for rows of the block."""
        self.held: list[set[int]] = [set() for _ in range(grid.ranks)]

    def of(self, sampler: Any, bulks: Sequence[Bulk], darts: Sequence[Sequence[Darts]]) -> list[Sent]:
        """Counts of each rank, from its serial bulk and its `recorded` darts."""
        return self.layer_wise(sampler, bulks, darts) if hasattr(sampler, "sizes") else self.node_wise(sampler, bulks)

    def exchange(self, circles: Sequence[Sequence[int]], parts: Parts, *, sizes: bool = True) -> None:
        """An all-to-all in each circle of ranks."""
        for circle in circles:
            for r in circle:
                if len(circle) > 1:
                    self.sent[r].waits += 1 + sizes
                    self.sent[r].control += NUMBER * (len(circle) - 1) * sizes
        for (a, b), n in parts.items():
            self.sent[a].graph += n if a != b else 0

    def any(self, circles: Sequence[Sequence[int]]) -> None:
        """Ask whether a flag is up anywhere in a circle."""
        for circle in circles:
            for r in circle:
                self.sent[r].waits += len(circle) > 1
                self.sent[r].control += len(circle) - 1

    def fetch(self, wanted: Sequence[set[int]], *, starts: bool) -> None:
        """Whole rows of other blocks travel to each rank: `wanted`."""
        asked, heads, bodies = {}, {}, {}
        for r, ids in enumerate(wanted):
            rows = np.array(sorted(ids), np.int64)
            block = self.book.part(rows)
            for b in set(block.tolist()) - {self.grid.block(r)}:
                owner, n = self.grid.column(r)[b], int((block == b).sum())
                entries = int(self.graph.in_degree[rows[block == b]].sum())
                # Ids within a block have 4 bytes.
                asked[r, owner], heads[owner, r] = 4 * n, (4 + NUMBER * starts) * n
                bodies[owner, r] = entries * (self.id + 4 * self.weighted)
        self.exchange(self.columns, asked)
        self.exchange(self.columns, heads, sizes=False)
        for (owner, r), n in bodies.items():
            self.sent[owner].graph += n
            self.sent[r].waits += n > 0

    def to(self, rank: int, ids: np.ndarray) -> np.ndarray:
        """The rank that `rank` asks for each row."""
        return self.answers[rank][self.book.part(ids)]

    def node_wise(self, sampler: Any, bulks: Sequence[Bulk]) -> list[Sent]:
        """Counts of a sampler that draws for each row."""
        more = 4 * (self.weighted or getattr(sampler, "poisson", False)) + NUMBER * sampler.edge_ids
        for hop, s in enumerate(sampler.fanout):
            count = 4 if s < 0 or s > 65535 else 2 if s > 255 else 1
            asked, told = {}, {}
            wanted: list[set[int]] = [set() for _ in bulks]
            for a, bulk in enumerate(bulks):
                found = [list(frontiers(m))[hop] for m in bulk.minibatches]
                ids, kept = (np.concatenate([[], *(f[i] for f in found)]).astype(np.int64) for i in (0, 1))
                to = self.to(a, ids)
                for b in set(to.tolist()):
                    n, edges = int((to == b).sum()), int(kept[to == b].sum())
                    asked[a, b] = NUMBER * (1 + 2 * len(found)) + self.asked_id * n
                    told[b, a] = count * n + (self.id + more) * edges
                    wanted[b] |= set(ids[to == b].tolist())
            self.exchange(self.circles, asked)
            if self.staged:
                self.fetch(wanted, starts=sampler.edge_ids)
            self.exchange(self.circles, told)
        return self.sent

    def layer_wise(self, sampler: Any, bulks: Sequence[Bulk], darts: Sequence[Sequence[Darts]]) -> list[Sent]:
        """Counts of a sampler that draws for each layer."""
        every, keep, hops = sampler.every_row, sampler.edge_ids, range(len(sampler.sizes))
        self.learn(
            [[m.blocks[-1].src[: m.blocks[-1].num_dst] for m in b.minibatches] for b in bulks], every, True, keep
        )
        for h in hops:
            blocks = [[m.blocks[len(hops) - 1 - h] for m in bulk.minibatches] for bulk in bulks]
            thrown = [list(d[h * len(b.minibatches) :][: len(b.minibatches)]) for d, b in zip(darts, bulks)]
            self.throw(thrown, blocks, every)
            if every or h < hops[-1]:
                self.learn([[b.src[b.num_dst :] for b in own] for own in blocks], every, h < hops[-1], keep)
            asked, told = {}, {}
            for a, own in enumerate(blocks):
                for block in own:
                    to, kept = self.to(a, block.src[: block.num_dst]), np.diff(block.indptr)
                    for b in set(to.tolist()):
                        asked.setdefault((a, b), NUMBER)
                        asked[a, b] += 2 * NUMBER + self.id * block.num_src
                        edge = 4 + 4 * self.weighted + NUMBER * keep
                        told[b, a] = told.get((b, a), 0) + 4 * int((to == b).sum()) + edge * int(kept[to == b].sum())
            self.exchange(self.circles, asked)
            self.exchange(self.circles, told)
        return self.sent

    def learn(self, new: Sequence[Sequence[np.ndarray]], every_row: bool, as_rows: bool, keep: bool) -> None:
        """Facts of new nodes: their masses as columns, and their degrees (and sums of weights) as rows."""
        ids = [np.concatenate([np.empty(0, np.int64), *own]).astype(np.int64) for own in new]
        mass, fact = NUMBER * every_row, (4 + 3 * NUMBER * self.weighted) * as_rows
        if self.staged and every_row:
            home = [np.array(self.grid.column(a))[self.book.part(i)] for a, i in enumerate(ids)]
            self.gather(self.columns, home, 4, mass)
            mass = 0
        if not mass + fact:
            return
        to = [self.to(a, i) for a, i in enumerate(ids)]
        wanted: list[set[int]] = [set() for _ in ids]
        for a, i in enumerate(ids):
            for b in set(to[a].tolist()):
                wanted[b] |= set(i[to[a] == b].tolist())

        def between() -> None:
            if self.staged:
                self.fetch([w - h for w, h in zip(wanted, self.held)], starts=keep)
                self.held = [w | h for w, h in zip(wanted, self.held)]

        self.gather(self.circles, to, self.asked_id, mass + fact, between)

    def gather(
        self, circles: Sequence[Sequence[int]], to: Sequence[np.ndarray], each: int, fact: int, between: Any = None
    ) -> None:
        """An id to each rank in `to`, and a fact back."""
        n = {(a, int(b)): int((t == b).sum()) for a, t in enumerate(to) for b in set(t.tolist())}
        self.exchange(circles, {pair: each * count for pair, count in n.items()})
        if between is not None:
            between()
        self.exchange(circles, {(b, a): fact * count for (a, b), count in n.items()})

    def throw(self, darts: Sequence[Sequence[Darts]], blocks: Sequence[Sequence[Any]], every_row: bool) -> None:
        """Rounds of darts, and what follows if they run out."""
        circles = self.columns if every_row else self.circles
        dart = NUMBER + (0 if every_row else self.asked_id)
        for circle in circles:
            one = [circle]
            rounds = max([len(t.aimed) for r in circle for t in darts[r]], default=0)
            for i in range(rounds):
                self.any(one)
                n = {(r, b): sum(t.aimed[i][j] for t in darts[r] if j < len(t.aimed[i])) for r in circle
                     for j, b in enumerate(circle)}  # fmt: skip
                self.exchange(one, {pair: dart * count for pair, count in n.items()})
                self.exchange(one, {(b, a): self.id * count for (a, b), count in n.items()})
            self.any(one)
            self.any(one)
            if any(t.ran_out for r in circle for t in darts[r]):
                parts = (self.race if every_row else self.add_up)(circle, darts, blocks)
                for part in parts:
                    self.exchange(one, part)

    def add_up(
        self, circle: Sequence[int], darts: Sequence[Sequence[Darts]], blocks: Sequence[Sequence[Any]]
    ) -> Iterable[Parts]:
        """Rows of minibatches without darts left, and the partial sums of P by whoever answers for them."""
        w = self.graph.edge_weight
        common = Rates(self.graph, self.graph.num_nodes, 1.0 if w is None else float(w.max(initial=0.0))).common
        asked, told = {}, {}
        for a in circle:
            for t, block in zip(darts[a], blocks[a]):
                rows = block.src[: block.num_dst].astype(np.int64)[: block.num_dst * t.ran_out]
                to, k = self.to(a, rows), len(darts[a])
                for b in set(to.tolist()):
                    columns = len(partial_sums(common, 0, rows[to == b])[0])
                    asked[a, b] = asked.get((a, b), NUMBER * (1 + k)) + self.asked_id * int((to == b).sum())
                    told[b, a] = told.get((b, a), NUMBER * k) + (NUMBER + self.id) * columns
        return asked, told

    def race(
        self, circle: Sequence[int], darts: Sequence[Sequence[Darts]], blocks: Sequence[Sequence[Any]]
    ) -> Iterable[Parts]:
        """Columns that were hit, and the first of the others in each block."""
        asked, told = {}, {}
        sizes = np.diff(self.book.offsets)
        for a in circle:
            running = [t for t in darts[a] if t.ran_out]
            for i, b in enumerate(circle if running else ()):
                asked[a, b] = NUMBER * (1 + 3 * len(running) + sum(len(t.found) for t in running))
                told[b, a] = NUMBER * len(running)
                for t in running:
                    hit = int((self.book.part(np.array(t.found, np.int64)) == i).sum())
                    told[b, a] += 2 * NUMBER * min(t.need + 1, int(sizes[i]) - hit)
        return asked, told
