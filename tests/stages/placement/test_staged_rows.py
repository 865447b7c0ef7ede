"""Sampling by 1.5D products: the bits of the serial samplers on every grid, and what travels."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from millrace.stages.comm.gloo import Gloo
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.placement.row_blocks import Grid
from millrace.stages.placement.staged_rows import StagedRows
from millrace.stages.sample import remote_layerwise
from millrace.stages.sample.fastgcn import FastGCNSampler
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.graph import Graph
from millrace.storage.minibatch import Bulk
from millrace.storage.partition.book import RangeBook
from millrace.tests.contracts.block_sampling import (
    block_rows,
    compare,
    random_graph,
    random_request,
    random_sampler,
    skewed,
)
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.contracts.sampling_traffic import (
    Counted,
    Model,
    RecordedThrow,
    Sent,
    all_worlds,
    book_in_world,
    counted,
    everywhere_known,
    in_world,
    less,
    recorded,
    unlike_the_model,
)
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads

GRIDS = ((1, 1), (3, 1), (2, 2), (6, 3), (6, 2))
"""(p, c): one rank, one column of several stages, one of each block, columns of which one has no stage, and columns of
one stage and of two."""


def staged(group: Any, c: int, graph: Graph, book: RangeBook) -> StagedRows:
    grid = Grid(group.size, c)
    column, row = grid.subgroup(group, "column"), grid.across(group, "row")
    return StagedRows(block_rows(graph, book, grid.block(group.rank), column), column, row)


@pytest.mark.parametrize(("p", "c"), GRIDS, ids=str)
def test_every_grid_draws_what_the_serial_samplers_draw(p: int, c: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each rank sends the bytes, and waits for the messages, that the sizes drawn imply."""
    monkeypatch.setattr(remote_layerwise, "LayerDraw", RecordedThrow)

    def on_rank(group: ThreadGroup) -> tuple[list[str], int, list[Any]]:
        wrong, told, sent = [], [], Sent()
        staged_rows = None
        for number, (name, graph, samplers) in enumerate(all_worlds()):
            book = book_in_world(number, p // c)
            staged_rows = staged(Counted(group, sent), c, graph, book)
            everywhere_known(staged_rows)
            for i, sampler in enumerate(samplers):
                (request, serial), before = in_world(number, i, group.rank, p), replace(sent)
                what = (name, book.offsets.tolist(), group.rank)
                wrong += compare(staged_rows, graph, sampler, request, what, serial)
                told.append((less(sent, before), recorded()))
        assert staged_rows is not None
        return wrong, len(staged_rows.stages), told

    found = run_threads(on_rank, p)
    assert [line for wrong, _, _ in found for line in wrong] == []
    # A grid column forms ceil((p/c)/c) block rows at most, and a rank reads its own.
    assert max(stages for _, stages, _ in found) == (0 if p == c else -(-p // c // c) - (c == 1))
    assert unlike_the_model(Grid(p, c), [told for _, _, told in found], staged=True) == []


@pytest.mark.parametrize(("p", "c"), [(3, 1), (4, 2)], ids=str)
def test_any_graph_cut_and_sampler(p: int, c: int) -> None:
    threads.set_num_threads(1)

    def on_rank(group: ThreadGroup) -> list[str]:
        wrong = []
        for case in range(40):
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


# What travels, counted by real ranks.

PLAIN, WEIGHTED = skewed(90, 900, weighted=False, hub=280), skewed(90, 900, weighted=True, hub=280)
LADIES = LadiesSampler((20, 30))
CASES: tuple[tuple[Graph, Any], ...] = (
    (PLAIN, LADIES),
    (PLAIN, NeighborSampler((300, -1), edge_ids=True)),
    (PLAIN, LaborSampler((3, 4), poisson=True)),
    (WEIGHTED, NeighborSampler((4, 3), expand="all", edge_ids=True)),
    (WEIGHTED, LadiesSampler((40, 90), edge_ids=True)),
    (WEIGHTED, FastGCNSampler((9, 80), "with_replacement")),
    (PLAIN, FastGCNSampler((70, 9), "bottom_k")),
)
MEASURED = ((4, 1), (4, 2))
BOOKS = {2: RangeBook(np.array([0, 35, 90])), 4: RangeBook(np.array([0, 30, 30, 71, 90]))}


def request_of(rank: int) -> Any:
    return random_request(np.random.default_rng(rank), 90, (2, 0, 3, 1)[rank], 15)


def measure(group: Gloo) -> dict[Any, Any]:
    """Bytes that this rank sent and its darts, by grid and case."""
    remote_layerwise.LayerDraw = RecordedThrow
    found: dict[Any, Any] = {}
    for p, c in MEASURED:
        grid = Grid(p, c)
        column, row = grid.subgroup(group, f"column {c}"), grid.across(group, f"row {c}")
        for case, (graph, sampler) in enumerate(CASES):
            rows = StagedRows(block_rows(graph, BOOKS[grid.blocks], grid.block(group.rank), column), column, row)
            everywhere_known(rows)
            before = counted(group._ledger)
            sampler.sample_by_owners(rows, request_of(group.rank))
            found[p, c, case] = less(counted(group._ledger), before), recorded()
            found[p, c, "entries", case] = (rows.traffic.asked_rows, rows.traffic.received_words)
    return found


@pytest.fixture(scope="module")
def measured() -> list[dict[Any, Any]]:
    return run_ranks(measure, 4, timeout_s=120.0, group_timeout_s=60.0)


def bulk_of(sampler: Any, graph: Graph, rank: int) -> Bulk:
    request = request_of(rank)
    return sampler.sample(graph, request, cpu) if request.seeds else Bulk(2, 7, ())


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: str(CASES[i][1]))
@pytest.mark.parametrize(("p", "c"), MEASURED, ids=str)
def test_words_and_messages_are_those_of_the_sizes_drawn(measured: Any, p: int, c: int, case: int) -> None:
    graph, sampler = CASES[case]
    model = Model(Grid(p, c), BOOKS[p // c], graph, staged=True)
    found = [rank[p, c, case] for rank in measured]
    assert [sent for sent, _ in found] == model.of(
        sampler, [bulk_of(sampler, graph, rank) for rank in range(p)], [darts for _, darts in found]
    )


def test_rows_of_a_layer_wise_bulk_travel_once(measured: Any) -> None:
    """With one column nothing else travels: no darts and no sets of nodes."""
    book = BOOKS[4]
    total = 0
    for rank in range(4):
        nodes = [m.nodes[: m.blocks[0].num_dst] for m in bulk_of(LADIES, PLAIN, rank).minibatches]
        rows = np.unique(np.concatenate([np.empty(0, np.int64), *nodes]).astype(np.int64))
        rows = rows[book.part(rows) != rank]
        words = int(PLAIN.in_degree[rows].sum())
        assert measured[rank][4, 1, "entries", 0] == (len(rows), words)
        total += 8 * len(rows) + 4 * words
    assert sum(rank[4, 1, 0][0].graph for rank in measured) == total
