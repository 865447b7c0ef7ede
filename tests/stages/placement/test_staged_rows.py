"""Sampling by 1.5D products: the bits of the serial samplers on every grid, and what travels, by the cost model."""

from typing import Any

import numpy as np
import pytest

from millrace.stages.comm.gloo import Gloo
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.placement.grid_costs import Asked, Sizes
from millrace.stages.placement.row_blocks import Grid
from millrace.stages.placement.row_owners import Owners
from millrace.stages.placement.staged_rows import StagedRows
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.graph import Graph
from millrace.storage.minibatch import Bulk
from millrace.storage.partition.book import RangeBook
from millrace.tests.contracts.block_sampling import (
    block_rows,
    compare,
    frontiers,
    random_book,
    random_graph,
    random_request,
    random_sampler,
    skewed,
    worlds,
)
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads

GRIDS = ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (6, 3), (8, 2))


def staged(group: Any, c: int, graph: Graph, book: RangeBook) -> StagedRows:
    grid = Grid(group.size, c)
    column, row = grid.among(group, "column"), grid.across(group, "row")
    return StagedRows(block_rows(graph, book, grid.block(group.rank), column), column, row)


@pytest.mark.parametrize(("p", "c"), GRIDS, ids=str)
def test_every_grid_draws_what_the_serial_samplers_draw(p: int, c: int) -> None:
    def on_rank(group: ThreadGroup) -> tuple[list[str], int]:
        wrong = []
        staged_rows = None
        for number, (name, graph, samplers) in enumerate(worlds()):
            book = random_book(np.random.default_rng([number, p // c]), graph.num_nodes, p // c)
            staged_rows = staged(group, c, graph, book)
            for i, sampler in enumerate(samplers):
                # Where there are other ranks, some have no minibatches.
                k = (1, 3, 0 if p > 1 else 2)[(group.rank + i) % 3]
                rng = np.random.default_rng([number, i, group.rank])
                request = random_request(rng, graph.num_nodes, k, min(graph.num_nodes, 12))
                wrong += compare(staged_rows, graph, sampler, request, (name, book.offsets.tolist(), group.rank))
        assert staged_rows is not None
        return wrong, len(staged_rows.stages)

    found = run_threads(on_rank, p)
    assert [line for wrong, _ in found for line in wrong] == []
    # A grid column forms ceil((p/c)/c) block rows at most, and a rank reads its own.
    assert max(stages for _, stages in found) == (0 if p == c else -(-p // c // c) - (c == 1))


@pytest.mark.parametrize(("p", "c"), [(3, 1), (4, 2)], ids=str)
def test_any_graph_cut_and_sampler(p: int, c: int) -> None:
    threads.set_num_threads(1)

    def on_rank(group: ThreadGroup) -> list[str]:
        wrong = []
        for case in range(60):
            rng = np.random.default_rng([p, case])
            graph = random_graph(rng)
            cuts = np.sort(rng.integers(0, graph.num_nodes + 1, p // c - 1))
            book = RangeBook(np.concatenate([[0], cuts, [graph.num_nodes]]).astype(np.int64))
            sampler = random_sampler(rng, graph.edge_weight is not None)
            requests = [random_request(rng, graph.num_nodes, int(k), graph.num_nodes) for k in rng.integers(0, 4, p)]
            rows = staged(group, c, graph, book)
            # Twice: a bulk leaves nothing behind.
            for _ in range(2):
                wrong += compare(rows, graph, sampler, requests[group.rank], f"case {case}, {book.offsets.tolist()}")
        return wrong

    try:
        assert [line for wrong in run_threads(on_rank, p) for line in wrong] == []
    finally:
        threads.set_num_threads(None)


def test_rows_of_very_unlike_length_are_drawn_from_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers have room for the longest row; few such rows fit at a time."""
    from millrace.stages.kernels.row_block import draw

    monkeypatch.setattr(draw, "ROOM", 700)
    graph = skewed(97, 1000, weighted=True, hub=330)
    samplers = [NeighborSampler((65536, 400)), NeighborSampler((5, 400), weighted=True), LaborSampler((400, 3))]

    def on_rank(group: ThreadGroup) -> list[str]:
        rows = staged(group, 1, graph, RangeBook(np.array([0, 20, 97])))
        request = random_request(np.random.default_rng(group.rank), 97, 2, 60)
        return [line for s in samplers for line in compare(rows, graph, s, request, "unlike rows")]

    assert [line for wrong in run_threads(on_rank, 2) for line in wrong] == []


# What travels.

PLAIN, WEIGHTED = skewed(90, 900, weighted=False, hub=280), skewed(90, 900, weighted=True, hub=280)
CASES: tuple[tuple[Graph, Any], ...] = (
    (PLAIN, NeighborSampler((4, 3))),
    (PLAIN, NeighborSampler((300, -1), edge_ids=True)),
    (PLAIN, LaborSampler((3, 4), poisson=True)),
    (WEIGHTED, NeighborSampler((4, 3), expand="all", edge_ids=True)),
    (WEIGHTED, NeighborSampler((4, 3), weighted=True)),
)
MEASURED = ((4, 1), (4, 2))
BOOKS = {2: RangeBook(np.array([0, 35, 90])), 4: RangeBook(np.array([0, 30, 30, 71, 90]))}
LADIES = LadiesSampler((20, 30))


def request_of(rank: int) -> Any:
    return random_request(np.random.default_rng(rank), 90, (2, 0, 3, 1)[rank], 15)


def measure(group: Gloo) -> dict[Any, Any]:
    """Bytes sent and messages waited for, by grid, algorithm and case."""
    found: dict[Any, Any] = {}
    for p, c in MEASURED:
        grid = Grid(p, c)
        column, row = grid.among(group, f"column {c}"), grid.across(group, f"row {c}")
        for case, (graph, sampler) in enumerate([*CASES, (PLAIN, LADIES)]):
            block = block_rows(graph, BOOKS[grid.blocks], grid.block(group.rank), column)
            for name, rows in (("owners", Owners(block, column)), ("1.5d", StagedRows(block, column, row))):
                before, waited = group._ledger.as_record()["network"], sum(group._ledger.waits()["network"].values())
                sampler.sample_by_owners(rows, request_of(group.rank))
                after, later = group._ledger.as_record()["network"], sum(group._ledger.waits()["network"].values())
                sent = {kind: after[kind] - before[kind] for kind in ("graph", "control")}
                found[p, c, name, case] = {**sent, "waits": later - waited}
                if isinstance(rows, StagedRows):
                    found[p, c, "entries", case] = (rows.traffic.asked_rows, rows.traffic.received_words)
    return found


@pytest.fixture(scope="module")
def measured() -> list[dict[Any, Any]]:
    return run_ranks(measure, 4, timeout_s=120.0, group_timeout_s=60.0)


def bulk_of(sampler: Any, graph: Graph, rank: int) -> Bulk:
    request = request_of(rank)
    return sampler.sample(graph, request, cpu) if request.seeds else Bulk(2, 7, ())


def counted(grid: Grid, name: str, graph: Graph, sampler: Any, bulks: list[Bulk], hop: int) -> tuple[Asked, list[int]]:
    """What travels in a hop, and the stages in which each rank needs rows, from the serial minibatches of all ranks."""
    book = BOOKS[grid.blocks]
    column_of = np.array([next(j for j in range(grid.replication) if s in grid.stages(j)) for s in range(grid.blocks)])
    pairs = heads = rows = edges = fetched = entries = 0
    wanted: dict[tuple[int, int], set[int]] = {}
    for rank, bulk in enumerate(bulks):
        i, j = rank // grid.replication, rank % grid.replication
        by_rank: dict[int, int] = {}
        for m in bulk.minibatches:
            ids, kept = list(frontiers(m))[hop]
            block = book.part(ids)
            for v, b, n in zip(ids.tolist(), block.tolist(), kept.tolist()):
                if b == i:
                    continue
                to = b if name == "owners" else int(column_of[b])
                if name == "owners" or to != j:
                    by_rank[to] = by_rank.get(to, 0) + 1
                    rows, edges = rows + 1, edges + n
                if name != "owners":
                    wanted.setdefault((i * grid.replication + to, b), set()).add(v)
        pairs += len(by_rank)
        heads += len(by_rank) * (1 + 2 * len(bulk.minibatches))
    for ids in wanted.values():
        fetched += len(ids)
        entries += int(graph.in_degree[list(ids)].sum())
    stages = [sum(1 for rank, _ in wanted if rank == r) for r in range(grid.ranks)]
    return Asked(pairs=pairs, heads=heads, rows=rows, edges=edges, fetched=fetched, entries=entries), stages


def sizes_of(graph: Graph, sampler: Any, s: int) -> Sizes:
    weighted = graph.edge_weight is not None
    more = 4 * (weighted or getattr(sampler, "poisson", False)) + 8 * getattr(sampler, "edge_ids", False)
    count = 4 if s < 0 or s > 65535 else 2 if s > 255 else 1
    lengths = 12 if getattr(sampler, "edge_ids", False) else 4
    return Sizes(row=4 + count, edge=4 + more, fetched=4 + lengths, entry=8 if weighted else 4)


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: str(CASES[i][1]))
@pytest.mark.parametrize("name", ["owners", "1.5d"])
@pytest.mark.parametrize(("p", "c"), MEASURED, ids=str)
def test_words_and_messages_are_those_of_the_cost_model(measured: Any, p: int, c: int, name: str, case: int) -> None:
    graph, sampler = CASES[case]
    grid = Grid(p, c)
    bulks = [bulk_of(sampler, graph, rank) for rank in range(p)]
    total, waits, entries = 0.0, [0] * p, 0
    for hop, s in enumerate(sampler.fanout):
        asked, stages = counted(grid, name, graph, sampler, bulks, hop)
        total += asked.bytes(sizes_of(graph, sampler, s))
        entries += asked.entries
        for r in range(p):
            # Sizes and parts of each exchange; ids, lengths and the rows of each stage.
            waits[r] += 4 if name == "owners" else 4 * (c > 1) + 3 + stages[r]
    found = [rank[p, c, name, case] for rank in measured]
    assert sum(f["graph"] for f in found) == total
    assert [f["waits"] for f in found] == waits
    others = grid.blocks - 1
    per_hop = 2 * others if name == "owners" else 2 * (c - 1) + others
    assert [f["control"] for f in found] == [8 * per_hop * len(sampler.fanout)] * p
    if name == "1.5d":
        assert sum(rank[p, c, "entries", case][1] for rank in measured) == entries


def test_rows_of_a_layer_wise_bulk_travel_once(measured: Any) -> None:
    """With one column nothing else travels: no darts and no sets of nodes."""
    case, book = len(CASES), BOOKS[4]
    total = 0
    for rank in range(4):
        nodes = [m.nodes[: m.blocks[0].num_dst] for m in bulk_of(LADIES, PLAIN, rank).minibatches]
        rows = np.unique(np.concatenate([np.empty(0, np.int64), *nodes]).astype(np.int64))
        rows = rows[book.part(rows) != rank]
        words = int(PLAIN.in_degree[rows].sum())
        assert measured[rank][4, 1, "entries", case] == (len(rows), words)
        total += 8 * len(rows) + 4 * words
    assert sum(rank[4, 1, "1.5d", case]["graph"] for rank in measured) == total
