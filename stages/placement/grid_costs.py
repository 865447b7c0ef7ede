"""Cost of sampling a bulk over block rows: words, messages and seconds, by the rows' owners and by 1.5D products.

`Asked` counts a hop. `expected` estimates these counts from the degrees of the graph, for node-wise and layer-wise
samplers. From the sizes that were drawn, bytes and messages follow exactly (`tests/contracts/sampling_traffic.py`).

With p ranks, c of which hold each block, k minibatches of a rank in a bulk, R rows of all of them in a hop, and D
distinct ones among those of the c ranks of a grid row, a rank sends in a hop, on average, in words of 4 bytes:

=========  ==========================================================================================================
owners     (1 - c/p) R (1 + s) / p: an id, and at most s ids of neighbours
1.5d       (1 - c/p) D (2 + d) / c: an id, a length and d entries of each distinct row, along the column; and
           (c - 1)/c of what owners take, along the row
=========  ==========================================================================================================
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...storage.array_kinds import Float64Array, IntArray
from .row_blocks import Grid

WORD = 4
"""Bytes of a word."""
NUMBER = 8
"""Bytes of a number in the head of a message."""
LATENCY_S, BANDWIDTH = 50e-6, 25e9 / 8
"""Assumed link of ranks in a data centre: seconds one way, and bytes a second."""
BINS = 4
"""Bins of degrees for each power of two."""
ROUNDS = 3
"""Rounds of darts that a hop of a layer-wise sampler takes, mostly."""
DARTS = 2.5
"""Darts thrown for each node that is wanted, mostly."""


@dataclass(frozen=True)
class Asked:
    """Requests of a hop, summed over all ranks."""

    heads: float = 0.0
    """Numbers in the heads of messages."""
    told: float = 0.0
    """Ids that travel so that edges between them can be found."""
    rows: float = 0.0
    """Rows asked for."""
    edges: float = 0.0
    """Edges of the answers."""
    darts: float = 0.0
    fetched: float = 0.0
    """Rows that travel whole."""
    entries: float = 0.0
    """In-edges of these."""

    def bytes(self, sizes: "Sizes") -> float:
        """Bytes sent, but for sizes of messages."""
        return (
            NUMBER * self.heads
            + sizes.id * self.told
            + sizes.row * self.rows
            + sizes.edge * self.edges
            + sizes.dart * self.darts
            + sizes.fetched * self.fetched
            + sizes.entry * self.entries
        )


@dataclass(frozen=True)
class Sizes:
    """Bytes of what `Asked` counts."""

    id: int = 4
    row: int = 8
    edge: int = 4
    dart: int = 0
    fetched: int = 8
    entry: int = 4


@dataclass(frozen=True)
class Cost:
    """Cost of a bulk, for one rank on average."""

    words: float
    """Words of 4 bytes that a rank sends."""
    messages: float
    """Messages that a rank waits for, one after the other."""

    def seconds(self, latency_s: float = LATENCY_S, bandwidth: float = BANDWIDTH) -> float:
        """Time over a link of so many seconds one way and bytes a second; a message that is waited for takes a round
        trip."""
        return self.words * WORD / bandwidth + 2 * latency_s * self.messages


@dataclass(frozen=True, eq=False)
class Degrees:
    """Histogram of in-degrees; out-degrees are taken to be like them."""

    nodes: Float64Array
    """[bins], nodes of such a degree."""
    edges: Float64Array
    """[bins], their in-edges."""

    @classmethod
    def histogram(cls, in_degree: IntArray) -> "Degrees":
        """Histogram of these degrees."""
        at = np.ceil(BINS * np.log2(in_degree + 1.0)).astype(np.int64)
        nodes, edges = (np.bincount(at, w, 64 * BINS).astype(np.float64) for w in (None, in_degree))
        return cls(nodes, edges)


def sampler_kind(sampler: object) -> str | None:
    """``node`` or ``layer``; None if there is no model of this sampler's traffic."""
    if getattr(sampler, "rows_travel", False):
        return None
    return "node" if hasattr(sampler, "fanout") else "layer" if hasattr(sampler, "sizes") else None


def expected(
    sampler: Any, degrees: Degrees, grid: Grid, *, batch: int, bulk: int, weighted: bool = False
) -> dict[str, Cost]:
    """Expected cost of a bulk for each algorithm.

    Args:
        sampler: draws it; of a known kind (`sampler_kind`).
        degrees: of the whole graph.
        grid: of the ranks, p in p/c rows.
        batch: seeds of a minibatch.
        bulk: k, minibatches of a rank in a bulk.
        weighted: edges have weights.
    """
    p, c, blocks = grid.ranks, grid.replication, grid.blocks
    if blocks == 1:
        return dict.fromkeys(("owners", "1.5d"), Cost(0.0, 0.0))
    per_node = sampler_kind(sampler) == "node"
    every_row = bool(getattr(sampler, "every_row", False))
    across, along = 1 - c / p, (1 - c / p) * (c - 1) / c
    stages = -(-blocks // c) - (c == 1)
    extra = 4 if weighted or getattr(sampler, "poisson", False) else 0
    entry = 4 + (4 if weighted else 0)
    words, messages = {"owners": 0.0, "1.5d": 0.0}, {"owners": 0.0, "1.5d": 0.0}
    for hop in (_node_wise if per_node else _layer_wise)(sampler, degrees, batch, bulk * c):
        if per_node:
            sizes = Sizes(row=4 + (1 if 0 <= hop.most < 256 else 2 if 0 <= hop.most < 65536 else 4), edge=4 + extra)
        else:
            sizes = Sizes(row=8 + (24 if weighted else 0) + 8 * every_row, edge=entry, dart=16 - 4 * every_row)
        for name, share, others in (("owners", across, blocks - 1), ("1.5d", along, c - 1)):
            heads = others * (1 + 2 * bulk)
            asked = Asked(
                heads=heads,
                told=others * bulk * hop.told,
                rows=share * bulk * hop.rows,
                edges=share * bulk * hop.edges,
                darts=(across if every_row else share) * bulk * hop.darts,
            )
            words[name] += asked.bytes(sizes) / WORD
            # Rows of a layer-wise sampler's answers are counted apart from what is learnt of them.
            words[name] += 0 if per_node else share * bulk * hop.kept * 4 / WORD
            round_trips = 4 if per_node else 4 + 4 + 2 + 5 * ROUNDS
            messages[name] += round_trips * (others > 0)
        sizes = Sizes(entry=entry)
        words["1.5d"] += Asked(fetched=across * hop.distinct / c, entries=across * hop.entries / c).bytes(sizes) / WORD
        messages["1.5d"] += 3 + stages + (4 + 2 + 5 * ROUNDS) * every_row
    return {name: Cost(words[name], messages[name]) for name in words}


@dataclass(frozen=True)
class _Hop:
    """Expected counts of a minibatch in a hop, and of the minibatches of a grid row together."""

    rows: float
    """New rows."""
    kept: float
    """Rows drawn for."""
    edges: float
    distinct: float
    entries: float
    most: int = 0
    told: float = 0.0
    darts: float = 0.0


def _node_wise(sampler: Any, degrees: Degrees, batch: int, together: int) -> Iterator[_Hop]:
    n, m = degrees.nodes, degrees.edges
    degree, share = m / np.maximum(n, 1), m / max(1.0, m.sum()) / np.maximum(n, 1)
    known = np.full(len(n), min(1.0, batch / max(1.0, n.sum())))
    x = known
    for s in sampler.fanout:
        kept = degree if s < 0 else np.minimum(degree, s)
        edges = float((n * x * kept).sum())
        any_of = 1 - (1 - x) ** together
        rows = float((n * x).sum())
        yield _Hop(rows, rows, edges, float((n * any_of).sum()), float((m * any_of).sum()), s)
        new = (1 - known) * -np.expm1(-edges * share)
        known = known + new
        x = known if getattr(sampler, "expand", "new") == "all" else new


def _layer_wise(sampler: Any, degrees: Degrees, batch: int, together: int) -> Iterator[_Hop]:
    n, m = degrees.nodes, degrees.edges
    share = m / max(1.0, m.sum()) / np.maximum(n, 1)
    known = np.full(len(n), min(1.0, batch / max(1.0, n.sum())))
    x = known
    for s in sampler.sizes:
        any_of = 1 - (1 - x) ** together
        kept = float((n * known).sum())
        new = (1 - known) * -np.expm1(-s * share)
        rows, entries = float((n * x).sum()), float((m * known).sum())
        known = known + new
        # Each sampled node has an edge to some row.
        edges = min(entries, s + entries * float((n * known * share).sum()))
        told = float((n * known).sum())
        yield _Hop(rows, kept, edges, float((n * any_of).sum()), float((m * any_of).sum()), told=told, darts=DARTS * s)
        x = new
