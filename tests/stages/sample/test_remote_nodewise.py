"""Sampling by the owners of rows: the bits of the serial samplers on every grid, what travels, and a peer that dies."""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.assignment import BulkRequest
from millrace.stages.comm.gloo import Gloo
from millrace.stages.comm.solo import Solo
from millrace.stages.kernels.row_block.draw import Drawn, HopRows, draw_labor, draw_rows
from millrace.stages.kernels.row_block.layerwise import extract, partial_sums, resolve
from millrace.stages.kernels.row_block.numbering import Numbering, in_order
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling import layerwise
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.cpu.alias import alias_table
from millrace.stages.kernels.sampling.cpu.terms import Rates
from millrace.stages.kernels.sampling.draws import LaborDraws, LayerDraws, NeighborDraws
from millrace.stages.placement.row_blocks import BlockRows, Grid
from millrace.stages.placement.row_owners import Owners
from millrace.stages.sample import layer_draws as darts
from millrace.stages.sample import remote_layerwise as layer_wise
from millrace.stages.sample.fastgcn import FastGCNSampler
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import PeerLostError, RunError
from millrace.storage.graph import Graph, from_edges
from millrace.storage.minibatch import Bulk, MiniBatch
from millrace.storage.partition.book import RangeBook
from millrace.tests.contracts.block_sampling import (
    LAYERED,
    block_rows,
    compare,
    frontiers,
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
from millrace.tests.oracles.sampling import backend as reference


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    yield
    threads.set_num_threads(None)


GRIDS = ((2, 1), (3, 1), (2, 2), (6, 3))


def on_grid(group: ThreadGroup, c: int, darts: "WatchedDarts") -> dict[str, Any]:
    """Draws and messages of a rank of a grid, for each sampler of each world."""
    sent = Sent()
    circle = Counted(group, sent)
    grid = Grid(circle.size, c)
    column: Any = grid.subgroup(circle, "column")
    wrong, minibatches, idle, rowless, told = [], 0, 0, 0, []
    for number, (name, graph, samplers) in enumerate(all_worlds()):
        book = book_in_world(number, grid.blocks)
        owners = Owners(block_rows(graph, book, grid.block(circle.rank), column), column)
        rowless += int(owners.rows.graph.num_nodes == 0)
        everywhere_known(owners)
        for i, sampler in enumerate(samplers):
            (request, serial), before = in_world(number, i, circle.rank, circle.size), replace(sent)
            what = (name, book.offsets.tolist(), "rank", circle.rank)
            wrong += compare(owners, graph, sampler, request, what, serial)
            told.append((less(sent, before), recorded()))
            minibatches, idle = minibatches + len(request.seeds), idle + (not request.seeds)
    seen = darts.of_thread()
    return {"wrong": wrong, "minibatches": minibatches, "idle": idle, "rowless": rowless, "darts": seen, "told": told}


class WatchedDarts(threading.local):
    """Counts for each thread the rounds of a hop in which darts travelled, at most, and how often a race after them had
    to choose."""

    rounds = most_rounds = 0
    under_way = ""

    def __init__(self) -> None:
        self.chose = {"ladies": 0, "fastgcn": 0}

    def of_thread(self) -> dict[str, int]:
        """Draws and messages that this thread has seen."""
        return {"most rounds": self.most_rounds, **{f"{name} chose": n for name, n in self.chose.items()}}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Watch all threads from now on."""
        kind = layer_wise._RemoteLayers
        plain_draw, plain_round, complete = kind.draw, kind._round, darts.complete

        def draw(layers: Any, *args: Any) -> Any:
            self.rounds, self.under_way = 0, "fastgcn" if layers.every_row else "ladies"
            return plain_draw(layers, *args)

        def one_round(layers: Any, throws: Any) -> None:
            self.rounds += 1
            self.most_rounds = max(self.most_rounds, self.rounds)
            plain_round(layers, throws)

        def counted(key: int, s: int, found: Any, count: int, total: int, candidates: Any, mass: Any) -> Any:
            self.chose[self.under_way] += int(len(np.setdiff1d(candidates, found)) > s - len(found))
            return complete(key, s, found, count, total, candidates, mass)

        patch.setattr(kind, "draw", draw)
        patch.setattr(kind, "_round", one_round)
        patch.setattr(darts, "complete", counted)


@pytest.fixture(scope="module")
def grids() -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Results of the ranks of each grid."""
    watched = WatchedDarts()
    with pytest.MonkeyPatch.context() as patch:
        watched.install(patch)
        patch.setattr(layer_wise, "LayerDraw", RecordedThrow)
        return {(p, c): run_threads(partial(on_grid, c=c, darts=watched), p) for p, c in GRIDS}


@settings(max_examples=20, deadline=None)
@given(graph=st.deferred(lambda: graphs), data=st.data())
def test_one_rank_that_owns_all_rows_draws_what_the_serial_samplers_draw(graph: Graph, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sampler = random_sampler(rng, graph.edge_weight is not None)
    threads.set_num_threads(data.draw(st.sampled_from([1, 3])))
    request = random_request(rng, graph.num_nodes, data.draw(st.integers(1, 4)), graph.num_nodes)
    owners = Owners(block_rows(graph, RangeBook(np.array([0, graph.num_nodes])), 0, Solo()), Solo())
    # Twice: what is kept from the first bulk serves the second.
    for _ in range(2):
        assert not compare(owners, graph, sampler, request, "alone")


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_every_grid_draws_what_the_serial_samplers_draw(
    grids: dict[tuple[int, int], list[dict[str, Any]]], grid: tuple[int, int]
) -> None:
    p, c = grid
    ranks = grids[grid]
    assert len(ranks) == p
    assert [line for r in ranks for line in r["wrong"]] == []
    # What there is to see was seen: ranks without minibatches or rows, second rounds of darts, both races.
    tried = sum(len(samplers) for _, _, samplers in all_worlds())
    assert all(r["minibatches"] > tried and r["idle"] > tried / 4 for r in ranks)
    assert p // c < 3 or sum(r["rowless"] for r in ranks) >= c * len(all_worlds())
    assert all(r["darts"]["most rounds"] > 1 for r in ranks)
    assert all(sum(r["darts"][f"{name} chose"] for r in ranks) > 0 for name in ("ladies", "fastgcn"))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_words_and_messages_are_those_of_the_sizes_drawn(
    grids: dict[tuple[int, int], list[dict[str, Any]]], grid: tuple[int, int]
) -> None:
    assert unlike_the_model(Grid(*grid), [r["told"] for r in grids[grid]], staged=False) == []


graphs = st.builds(lambda seed: random_graph(np.random.default_rng(seed)), st.integers(0, 2**32))


CASES, SEED = 60, 12


def random_case(seed: int, case: int, ranks: int) -> tuple[Graph, RangeBook, Any, int, list[BulkRequest]]:
    """A graph, its blocks, a sampler, a number of kernels' threads, and the request of each rank."""
    rng = np.random.default_rng([seed, case])
    graph = random_graph(rng)
    # Not only in random_book's way: blocks of one node, and all nodes in one block.
    offsets = np.sort(rng.integers(0, graph.num_nodes + 1, ranks - 1))
    book = RangeBook(np.concatenate([[0], offsets, [graph.num_nodes]]).astype(np.int64))
    sampler = random_sampler(rng, graph.edge_weight is not None)
    count = int(rng.choice([1, 3]))
    requests = [random_request(rng, graph.num_nodes, int(k), graph.num_nodes) for k in rng.integers(0, 4, ranks)]
    return graph, book, sampler, count, requests


def on_random_cases(group: Gloo) -> tuple[list[str], int, set[str], list[Any]]:
    wrong, minibatches, kinds, told = [], 0, set(), []
    layer_wise.LayerDraw = RecordedThrow
    for case in range(CASES):
        # The same on all ranks; then each takes its own request.
        graph, book, sampler, count, requests = random_case(SEED, case, group.size)
        threads.set_num_threads(count)
        owners = Owners(block_rows(graph, book, group.rank, group), group)
        everywhere_known(owners)
        what = f"case {case}, blocks {book.offsets.tolist()}, rank {group.rank}"
        before = counted(group._ledger)
        wrong += compare(owners, graph, sampler, requests[group.rank], what)
        told.append((less(counted(group._ledger), before), recorded()))
        minibatches += len(requests[group.rank].seeds)
        kinds.add(sampler.name)
    return wrong, minibatches, kinds, told


def test_any_graph_cut_and_sampler() -> None:
    """By real ranks, whose ledgers count what the sizes drawn imply."""
    ranks = run_ranks(on_random_cases, 3, timeout_s=200.0, group_timeout_s=100.0)
    for wrong, minibatches, kinds, _ in ranks:
        assert wrong == []
        assert minibatches > CASES and kinds == {"neighbor", "labor", "ladies", "fastgcn"}
    for case in range(CASES):
        graph, book, sampler, _, requests = random_case(SEED, case, 3)
        bulks = [sampler.sample(graph, r, cpu) if r.seeds else Bulk(0, 0, ()) for r in requests]
        found = [told[case] for *_, told in ranks]
        model = Model(Grid(3, 1), book, graph, staged=False)
        assert [sent for sent, _ in found] == model.of(sampler, bulks, [darts for _, darts in found]), (case, sampler)


@pytest.mark.parametrize(
    "sampler", [NeighborSampler((5,)), LaborSampler((5,)), LadiesSampler((9,)), FastGCNSampler((9,), "none")], ids=str
)
def test_a_minibatch_of_too_many_edges_is_refused(monkeypatch: pytest.MonkeyPatch, sampler: Any) -> None:
    graph, request = skewed(40, 400, weighted=False), BulkRequest(0, 0, 0, 0, (np.arange(20),))
    owners = Owners(block_rows(graph, RangeBook(np.array([0, 40])), 0, Solo()), Solo())
    edges = sampler.sample_by_owners(owners, request).minibatches[0].num_edges
    monkeypatch.setattr("millrace.stages.kernels.sampling.samples.LIMIT", edges + 1)
    sampler.sample_by_owners(owners, request)
    monkeypatch.setattr("millrace.stages.kernels.sampling.samples.LIMIT", edges)
    wanted = f"would hold {edges} edges; at most {edges - 1} fit: use a smaller batch_size or (fanout|sizes)"
    with pytest.raises(RunError, match=wanted):
        sampler.sample_by_owners(owners, request)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_dart_at_the_edge_of_a_row_is_the_rows(monkeypatch: pytest.MonkeyPatch, weighted: bool) -> None:
    """Random darts come here once in 2^40: the first and the last number of each row, and, under FastGCN, of each
    block and column."""
    graph = skewed(30, 200, weighted=weighted)
    owners = Owners(block_rows(graph, RangeBook(np.array([0, 30])), 0, Solo()), Solo())
    rates, rows = rates_of(graph, graph), np.array([4, 29, 0, 17])
    mass = np.array([terms_of(graph, row)[1].sum() for row in rows])
    everywhere = np.zeros(30, np.int64)
    for row in range(30):
        np.add.at(everywhere, *terms_of(graph, row))
    for every_row, masses in ((False, mass), (True, everywhere)):
        asked = LayerDraws((), np.empty((0, 0), np.uint64), (), every_row=every_row)
        layers, m = layer_wise._RemoteLayers(owners, asked), darts.LayerMinibatch(rows, np.int32)
        layers.learn([m], [m.nodes], as_rows=True)
        ends = np.cumsum(masses)
        aims = np.concatenate([ends - masses, ends - 1])
        monkeypatch.setattr(darts, "throw", lambda word, first, more, total, aims=aims: aims)
        owner, row, rest = darts.LayerDraw(
            m, 1, 9, "ratio", owners.rows.book, layers.everywhere[2] if every_row else None
        ).aim()
        assert not owner.any()
        place = np.tile(np.arange(len(masses)), 2)
        if every_row:
            # Of the one block, all of it.
            assert np.array_equal(rest, aims) and np.array_equal(layers._resolve_everywhere(rest), place)
        else:
            assert np.array_equal(row, rows[place]) and np.array_equal(rest, aims - (ends - masses)[place])
            # A term of mass 0 covers nothing, and the last term is the row's loop.
            columns = [terms_of(graph, v)[0][terms_of(graph, v)[1] > 0] for v in rows]
            assert resolve(rates.common, 0, row, rest, np.int64).tolist() == [*(c[0] for c in columns), *rows]


@pytest.mark.parametrize("nodes", [30, 1 << 24])
def test_masses_have_as_many_bits_as_in_the_whole_graph(nodes: int) -> None:
    """A block may be small where the graph is not: sums over all V rows must fit."""
    few = from_edges([3, 1, 2], [0, 1, 1], 10)
    block = block_rows(few, RangeBook(np.array([0, 10])), 0, Solo())
    rows = BlockRows(**{**vars(block), "book": RangeBook(np.array([0, 10, nodes]))})
    layers = layer_wise._RemoteLayers(Owners(rows, Solo()), LayerDraws((), np.empty((0, 0), np.uint64), ()))
    assert layers.one_bits == layerwise.fraction_bits(nodes) == (40 if nodes == 30 else 37)
    assert layers.rates.one == 2.0**layers.one_bits


# What travels.

MODEL = NeighborSampler((10, 5))
MODEL_REPLICATION = (1, 2)
DEGREES = (20, 200)
LAYERS = tuple(kind((64, 64), way) for kind in LAYERED for way in ("ratio", "with_replacement"))
LARGE_NODES = 4000


def even(degree: int) -> Graph:
    """Every row has as many in-edges, from anywhere."""
    rng = np.random.default_rng(degree)
    return from_edges(
        rng.integers(LARGE_NODES, size=LARGE_NODES * degree), np.repeat(np.arange(LARGE_NODES), degree), LARGE_NODES
    )


def even_book(blocks: int) -> RangeBook:
    return RangeBook(np.arange(blocks + 1) * LARGE_NODES // blocks)


def large_request(rank: int) -> BulkRequest:
    rng = np.random.default_rng(rank)
    return BulkRequest(5, 0, 0, 0, tuple(rng.permutation(LARGE_NODES)[:64] for _ in range(3)))


def layered_request(rank: int) -> BulkRequest:
    """As `large_request`, and a minibatch whose seeds are all in the first block."""
    r = large_request(rank)
    return BulkRequest(r.seed, r.epoch, r.number, r.first_index, (*r.seeds, 100 * rank + np.arange(3)))


def traffic(group: Gloo) -> dict[str, int]:
    return {kind: group._ledger.get("network", kind) for kind in ("graph", "control")}


def delta(group: Gloo, before: dict[str, int]) -> dict[str, int]:
    return {kind: n - before[kind] for kind, n in traffic(group).items()}


def measure(group: Gloo) -> dict[str, Any]:
    found: dict[str, Any] = {"model": {}, "layers": {}}
    for c in MODEL_REPLICATION:
        grid = Grid(group.size, c)
        column = grid.subgroup(group, f"measured {c}")
        block = grid.block(group.rank)
        owners = Owners(block_rows(even(25), even_book(grid.blocks), block, column), column)
        before = traffic(group)
        MODEL.sample_by_owners(owners, large_request(group.rank))
        found["model"][c] = delta(group, before)
    seen = watch_extraction(group)
    for degree in DEGREES:
        owners = Owners(block_rows(even(degree), even_book(group.size), group.rank, group), group)
        for i, sampler in enumerate(LAYERS):
            # The first bulk of FastGCN adds up P over all rows, once.
            sampler.sample_by_owners(owners, layered_request(group.rank))
            before, seen["extraction"] = traffic(group), 0
            sampler.sample_by_owners(owners, layered_request(group.rank))
            found["layers"][degree, i] = {"all": delta(group, before)["graph"], **seen}
    return found


def watch_extraction(group: Gloo) -> dict[str, int]:
    """Counts the bytes of EXTRACT."""
    seen, plain = {"extraction": 0}, layer_wise._RemoteLayers.extract

    def counted(self: Any, minibatches: Any, drawn: Any) -> None:
        before = traffic(group)
        plain(self, minibatches, drawn)
        seen["extraction"] += delta(group, before)["graph"]

    layer_wise._RemoteLayers.extract = counted
    return seen


@pytest.fixture(scope="module")
def measured() -> list[dict[str, Any]]:
    """Bytes sent by four ranks."""
    return run_ranks(measure, 4, timeout_s=200.0, group_timeout_s=100.0)


def expected_bytes(sampler: Any, graph: Graph, book: RangeBook, bulks: list[Bulk]) -> list[dict[str, int]]:
    """Bytes sent by each rank of a column, counted from the serial minibatches of all of them."""
    sent: list[dict[str, int]] = [dict.fromkeys(("header", "counts", "ids", "more"), 0) for _ in bulks]
    poisson = isinstance(sampler, LaborSampler) and sampler.poisson
    more = 4 * (graph.edge_weight is not None or poisson) + 8 * sampler.edge_ids
    for hop, fanout in enumerate(sampler.fanout):
        width = 4 if fanout < 0 or fanout > 65535 else 2 if fanout > 255 else 1
        for asks, bulk in enumerate(bulks):
            for answers in set(range(len(bulks))) - {asks}:
                lo, hi = book.offsets[answers : answers + 2]
                rows = edges = 0
                for m in bulk.minibatches:
                    ids, kept = list(frontiers(m))[hop]
                    there = (ids >= lo) & (ids < hi)
                    rows, edges = rows + int(there.sum()), edges + int(kept[there].sum())
                if rows:
                    sent[asks]["header"] += 8 * (1 + 2 * len(bulk.minibatches))
                    sent[asks]["ids"] += 4 * rows
                    sent[answers]["counts"] += width * rows
                    sent[answers]["ids"] += graph.indices.itemsize * edges
                    sent[answers]["more"] += more * edges
    return sent


@pytest.mark.parametrize("c", MODEL_REPLICATION)
def test_ids_follow_the_model(measured: list[dict[str, Any]], c: int) -> None:
    """R (1 + s) / p words a rank and hop, less c / p for what is the rank's own."""
    graph, grid = even(25), Grid(4, c)
    bulks = [MODEL.sample(graph, large_request(rank), cpu) for rank in range(4)]
    rows = [sum(len(list(frontiers(m))[h][0]) for b in bulks for m in b.minibatches) for h in range(2)]
    model = sum(r * (1 + s) for r, s in zip(rows, MODEL.fanout)) / 4 * (1 - c / 4)
    for rank in range(4):
        column = grid.column(rank)
        sent = expected_bytes(MODEL, graph, even_book(grid.blocks), [bulks[r] for r in column])[column.index(rank)]
        assert measured[rank]["model"][c]["graph"] == sum(sent.values())
        assert abs(sent["ids"] / 4 / model - 1) < 0.1, (rank, sent, model)


def expected_extraction(book: RangeBook, bulks: list[Bulk]) -> list[int]:
    """Bytes that each rank sends to get the edges between known nodes, on a graph without weights, counted from the
    minibatches."""
    sent = [0] * len(bulks)
    for hop in range(len(bulks[0].minibatches[0].blocks)):
        for asks, bulk in enumerate(bulks):
            for answers in set(range(len(bulks))) - {asks}:
                lo, hi = book.offsets[answers : answers + 2]
                told = 0
                for m in bulk.minibatches:
                    b = m.blocks[len(m.blocks) - 1 - hop]
                    there = (b.src[: b.num_dst] >= lo) & (b.src[: b.num_dst] < hi)
                    if there.any():
                        told += 1
                        sent[asks] += 8 * 2 + 4 * b.num_src
                        sent[answers] += 4 * int(there.sum()) + 4 * int(np.diff(b.indptr)[there].sum())
                sent[asks] += 8 * (told > 0)
    return sent


def darts_and_facts(sampler: Any, m: MiniBatch) -> int:
    """Bytes of a minibatch of two hops, on a graph without weights, if all of its nodes are other ranks'."""
    rows, new = m.blocks[0].num_dst, m.blocks[0].num_src - m.blocks[0].num_dst
    # Of a row, its id and its degree; of a dart, how far it reaches, its row and its column.
    if isinstance(sampler, LadiesSampler):
        return rows * (4 + 4) + sum(sampler.sizes) * (8 + 4 + 4)
    # Rows and columns have an importance too, and the owner of a column needs no row.
    return rows * (4 + 4 + 8) + new * (4 + 8) + sum(sampler.sizes) * (8 + 4)


@pytest.mark.parametrize("i", range(len(LAYERS)), ids=lambda i: str(LAYERS[i]))
def test_layer_wise_traffic_does_not_grow_with_the_degree(measured: list[dict[str, Any]], i: int) -> None:
    """But for the edges that a minibatch keeps, of which more lie between as many nodes."""
    rest = {}
    for degree in DEGREES:
        bulks = [LAYERS[i].sample(even(degree), layered_request(rank), cpu) for rank in range(4)]
        found = [rank["layers"][degree, i] for rank in measured]
        assert [f["extraction"] for f in found] == expected_extraction(even_book(4), bulks)
        rest[degree] = np.array([f["all"] - f["extraction"] for f in found])
        # Three quarters of the rows are others'. At degree 20 there is little to save.
        rows = sum(b.num_dst for bulk in bulks for m in bulk.minibatches for b in m.blocks)
        fetched = 4 * rows * degree / 4 * (3 / 4)
        assert degree < 200 or max(f["all"] for f in found) < fetched / 6
        if LAYERS[i].debias == "with_replacement":
            model = sum(darts_and_facts(LAYERS[i], m) for bulk in bulks for m in bulk.minibatches) * 3 / 4
            assert abs(rest[degree].sum() / model - 1) < 0.05
    few, many = (rest[degree] for degree in DEGREES)
    assert (many < 1.1 * few).all() and (few > 0).all()


def die(group: Gloo, folder: Path) -> float | None:
    """The last rank of each column ends where it should answer; one column draws node by node, the other layer by
    layer."""
    grid, number = Grid(group.size, 2), group.rank % 2
    column = grid.subgroup(group, "column")
    graph, sampler = skewed(60, 600, weighted=False), (NeighborSampler((4, 3)), LadiesSampler((9, 9)))[number]
    rows = block_rows(graph, RangeBook(np.array([0, 20, 40, 60])), grid.block(group.rank), column)
    owners = (Mortal if column.rank == 2 else Owners)(rows, column)
    if isinstance(owners, Mortal):
        owners.will = folder / f"column-{number}"
    request = random_request(np.random.default_rng(group.rank), 60, 2, 20)
    try:
        for _ in range(20):
            sampler.sample_by_owners(owners, request)
    except PeerLostError:
        return time.time()
    return None


class Mortal(Owners):
    """Ends its process, unannounced, in the eighth exchange: the second of the second hop or bulk, before it
    answers."""

    will: Path
    turn = 0

    def exchange(self, parts: Any) -> Any:
        """See `Owners.exchange`."""
        self.turn += 1
        if self.turn == 8:
            self.will.write_text(repr(time.time()))
            os._exit(1)
        return super().exchange(parts)


def test_a_rank_that_dies_in_mid_bulk_is_told_at_once(tmp_path: Path) -> None:
    ends = run_ranks(die, 6, tmp_path, mortal=(4, 5), timeout_s=120.0, group_timeout_s=60.0)
    for rank in range(4):
        died = float((tmp_path / f"column-{rank % 2}").read_text())
        assert ends[rank] is not None, "nobody told this rank"
        assert 0 <= ends[rank] - died < 5.0


# The kernels, beside NumPy.


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from([np.int32, np.int64]), st.integers(0, 2**31 - 4000))
def test_numbering_is_first_come_first_served_and_ascending_within_a_hop(
    data: st.DataObject, dtype: Any, base: int
) -> None:
    base = base << 30 if dtype is np.int64 else base
    ids = st.integers(0, 300).map(lambda i: base + 11 * i)
    seeds = np.array(data.draw(st.lists(ids, unique=True, max_size=20)), np.int64)
    numbered, known = Numbering(seeds, dtype), seeds.tolist()
    hops = data.draw(st.lists(st.lists(ids, max_size=30), max_size=4))
    # Many at once, so that the table grows under way.
    hops.insert(
        data.draw(st.integers(0, len(hops))), [base + 11 * (i * i % 301) for i in range(data.draw(st.integers(0, 300)))]
    )
    for sources in hops:
        new = numbered.add(np.array(sources, dtype))
        wanted = sorted(set(sources) - set(known))
        known += wanted
        assert new.dtype == numbered.nodes.dtype == dtype
        assert new.tolist() == wanted and numbered.nodes.tolist() == known
        asked = data.draw(st.permutations(known))
        out = np.full(len(known), -7, np.int32)
        numbered.positions(np.array(asked, dtype), out)
        assert out.tolist() == [known.index(u) for u in asked]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_segments_come_back_in_the_order_in_which_they_were_asked_for(data: st.DataObject) -> None:
    counts = np.array(data.draw(st.lists(st.integers(0, 4), max_size=12)), np.int64)
    order = np.array(data.draw(st.permutations(range(len(counts)))), np.int64)
    a = np.arange(counts.sum(), dtype=np.int32)
    b = a.astype(np.float32) / 3
    ends, (first, second) = in_order(order, counts.astype(data.draw(st.sampled_from([np.int32, np.int64]))), a, b)
    came = np.split(a, np.cumsum(counts)[:-1]) if len(counts) else []
    asked = sorted(range(len(counts)), key=lambda i: order[i])
    assert ends.dtype == np.int64 and ends.tolist() == np.cumsum([0, *(counts[i] for i in asked)]).tolist()
    assert first.tolist() == [x for i in asked for x in came[i].tolist()]
    assert (first.dtype, second.dtype) == (np.int32, np.float32) and np.array_equal(
        second, first.astype(np.float32) / 3
    )


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Graph, Graph, int, int]:
    """A graph, some successive rows of it, the id of the first and the number of its first edge."""
    graph = draw(graphs)
    lo = draw(st.integers(0, graph.num_nodes - 1))
    hi = draw(st.integers(lo + 1, graph.num_nodes))
    book = RangeBook(np.array([0, lo, hi, graph.num_nodes]))
    rows = block_rows(graph, book, 1, None)
    return graph, rows.graph, rows.first, rows.first_edge


@st.composite
def segments(draw: st.DrawFn, num_rows: int, ascending: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of some minibatches one after the other, where each begins, and their keys."""
    each = draw(
        st.lists(st.lists(st.integers(0, num_rows - 1), unique=True, max_size=num_rows), min_size=1, max_size=4)
    )
    each = [sorted(s) if ascending else s for s in each]
    keys = draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(each), max_size=len(each)))
    return np.array([v for s in each for v in s], np.int64), np.cumsum([0, *map(len, each)]), np.array(keys, np.uint64)


def check_drawn(drawn: Drawn, samples: list[Any], graph: Graph, first_edge: int, with_positions: bool) -> None:
    lists = [s.lists[0] for s in samples]
    positions = [at for e in lists for at in e.positions.tolist()]
    assert drawn.kept.dtype == np.int64 and drawn.kept.tolist() == [
        n for e in lists for n in np.diff(e.indptr).tolist()
    ]
    assert drawn.sources.dtype == graph.indices.dtype and drawn.sources.tolist() == graph.indices[positions].tolist()
    if with_positions:
        assert drawn.positions is not None and drawn.positions.dtype == np.int64
        assert (drawn.positions + first_edge).tolist() == positions


@settings(max_examples=30, deadline=None)
@given(
    st.data(),
    blocks(),
    st.booleans(),
    st.sampled_from([-1, 1, 2, 3, 64, 65, 300]),
    st.booleans(),
    st.sampled_from([1, 3]),
)
def test_rows_of_a_block_are_drawn_from_as_in_the_whole_graph(
    data: st.DataObject, cut: tuple[Graph, Graph, int, int], ascending: bool, fanout: int, replace: bool, count: int
) -> None:
    graph, block, first, first_edge = cut
    rows, splits, keys = data.draw(segments(block.num_nodes, ascending))
    weighted = graph.edge_weight is not None and data.draw(st.booleans())
    threads.set_num_threads(count)
    mine = alias_table(block) if weighted else None
    keep = data.draw(st.booleans())
    drawn = draw_rows(block, first, HopRows(rows, splits, keys, fanout, ascending), replace, mine, keep)
    seeds = [s + first for s in np.split(rows, splits[1:-1])]
    whole = alias_table(graph) if weighted else None
    samples = reference.neighbor(
        graph, NeighborDraws(seeds, keys[:, None], (fanout,), replace=replace, table=whole, keep_positions=True)
    )
    check_drawn(drawn, samples, graph, first_edge, keep)


@settings(max_examples=25, deadline=None)
@given(st.data(), blocks(), st.sampled_from([-1, 1, 2, 3, 70]), st.booleans(), st.sampled_from([1, 3]))
def test_rows_of_a_block_agree_on_sources_as_in_the_whole_graph(
    data: st.DataObject, cut: tuple[Graph, Graph, int, int], fanout: int, poisson: bool, count: int
) -> None:
    graph, block, first, first_edge = cut
    rows, splits, keys = data.draw(segments(block.num_nodes, data.draw(st.booleans())))
    threads.set_num_threads(count)
    drawn = draw_labor(block, HopRows(rows, splits, keys, fanout), poisson)
    seeds = [s + first for s in np.split(rows, splits[1:-1])]
    check_drawn(
        drawn, reference.labor(graph, LaborDraws(seeds, keys, (fanout,), poisson=poisson)), graph, first_edge, True
    )


@settings(max_examples=25, deadline=None)
@given(st.data(), blocks(), st.sampled_from([np.int32, np.int64]))
def test_edges_between_nodes_are_extracted_in_the_order_of_rows(
    data: st.DataObject, cut: tuple[Graph, Graph, int, int], dtype: Any
) -> None:
    graph, block, first, _ = cut
    nodes = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), unique=True))
    rows = data.draw(st.lists(st.integers(first, first + block.num_nodes - 1), unique=True))
    keep = data.draw(st.booleans())
    counts, places, values, positions = extract(
        block, np.array(nodes, dtype), np.array(rows, np.int64) - first, keep_positions=keep
    )
    wanted = [[e for e in range(*graph.indptr[v : v + 2].tolist()) if int(graph.indices[e]) in nodes] for v in rows]
    assert (counts.dtype, places.dtype, values.dtype) == (np.int32, np.int32, np.float32)
    assert counts.tolist() == [len(w) for w in wanted]
    edges = [e for w in wanted for e in w]
    assert places.tolist() == [nodes.index(u) for u in graph.indices[edges].tolist()]
    assert values.tolist() == ([] if graph.edge_weight is None else graph.edge_weight[edges].tolist())
    assert positions.tolist() == ([e - int(graph.indptr[first]) for e in edges] if keep else [])


def terms_of(graph: Graph, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns and masses of a row of W o W in exact integers: its edges, then the loop."""
    edges = slice(*graph.indptr[row : row + 2].tolist())
    scale, a = 1.0, np.ones(edges.stop - edges.start, np.int64)
    if graph.edge_weight is not None:
        scale = layerwise.weight_scale(float(graph.edge_weight.max(initial=0.0)))
        a = layerwise.integers(graph.edge_weight[edges], scale)
    part = np.append(a, layerwise.integers(np.ones(1), scale))
    mass = layerwise.squares(part, np.full(len(part), part.sum()), layerwise.fraction_bits(graph.num_nodes))
    return np.append(graph.indices[edges], row).astype(np.int64), mass


def rates_of(graph: Graph, block: Graph) -> Rates:
    return Rates(
        block, graph.num_nodes, 1.0 if graph.edge_weight is None else float(graph.edge_weight.max(initial=0.0))
    )


@settings(max_examples=25, deadline=None)
@given(st.data(), blocks())
def test_a_dart_lands_in_the_term_that_covers_it(data: st.DataObject, cut: tuple[Graph, Graph, int, int]) -> None:
    graph, block, first, _ = cut
    rows, rests, wanted = [], [], []
    for row in range(block.num_nodes):
        columns, mass = terms_of(graph, row + first)
        ends = np.cumsum(mass)
        # Both ends of every term, and one between.
        aims = np.concatenate([ends - mass, ends - 1, [data.draw(st.integers(0, int(ends[-1]) - 1))]])
        aims = aims[(aims >= 0) & (aims < ends[-1])]
        rows += [row] * len(aims)
        rests += aims.tolist()
        wanted += columns[np.searchsorted(ends, aims, side="right")].tolist()
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    found = resolve(rates_of(graph, block).common, first, np.array(rows, np.int64), np.array(rests, np.int64), dtype)
    assert found.dtype == dtype and found.tolist() == wanted


@settings(max_examples=25, deadline=None)
@given(st.data(), blocks())
def test_partial_sums_are_those_of_the_rows(data: st.DataObject, cut: tuple[Graph, Graph, int, int]) -> None:
    graph, block, first, _ = cut
    rows = data.draw(st.lists(st.integers(0, block.num_nodes - 1), unique=True))
    columns, mass = partial_sums(rates_of(graph, block).common, first, np.array(rows, np.int64))
    total = np.zeros(graph.num_nodes, np.int64)
    for row in rows:
        np.add.at(total, *terms_of(graph, row + first))
    assert columns.dtype == mass.dtype == np.int64
    assert columns.tolist() == np.flatnonzero(total).tolist() and mass.tolist() == total[total > 0].tolist()
