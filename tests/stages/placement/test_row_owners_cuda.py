"""Sampling by owners on GPUs: the bits of the serial samplers, from ranks with and without rows and minibatches."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.runtime.device_memory import ToHost, completed
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.device_graph import place_graph
from millrace.stages.placement.row_blocks import Grid
from millrace.stages.placement.row_owners_cuda import OwnersOnDevice, StagedOnDevice
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import RunError
from millrace.storage.graph import Graph
from millrace.storage.minibatch import Block, Bulk
from millrace.storage.partition.book import RangeBook
from millrace.tests.contracts.block_sampling import (
    block_rows,
    random_book,
    random_graph,
    random_request,
    skewed,
    unlike,
    worlds,
)
from millrace.tests.contracts.pretended_device import DEVICE, OnDevice, is_pretended
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads
from millrace.tests.contracts.typed import typed_dataset

pytest.importorskip("triton")

from millrace.stages.kernels.sampling.cuda import tables as tables_cuda

pytestmark = pytest.mark.usefixtures("on_device")


def drawn(graph: Graph, book: RangeBook, samplers: list[Any], requests: list[BulkRequest]) -> list[str]:
    """Differences of what ranks draw together, by one sampler after the other, from the serial minibatches."""

    def on_rank(group: ThreadGroup) -> list[str]:
        rows, request = block_rows(graph, book, group.rank, group), requests[group.rank]
        owners = OwnersOnDevice(rows, group, DEVICE)
        owners.minibatches = [len(r.seeds) for r in requests]
        wrong = []
        for sampler in samplers:
            got = completed(sampler.sample_by_owners_on_device(owners, request))
            assert not any(m.on_host for m in got.minibatches)
            want = sampler.sample(graph, request, cpu) if request.seeds else Bulk(request.epoch, request.number, ())
            if not graph.types.is_single:
                want = with_relations(graph, want)
            wrong += [f"rank {group.rank}, blocks {book.offsets.tolist()}, {sampler}: {x}" for x in unlike(got, want)]
        return wrong

    return [line for lines in run_threads(on_rank, len(requests)) for line in lines]


def with_relations(graph: Graph, bulk: Bulk) -> Bulk:
    """The bulk with edge ids by which owners say relations, too."""

    def told(b: Block) -> Block:
        return replace(b, edge_id=b.edge_id * graph.types.num_relations + graph.edge_type[b.edge_id])

    return replace(
        bulk, minibatches=tuple(replace(m, blocks=tuple(told(b) for b in m.blocks)) for m in bulk.minibatches)
    )


def random_neighbor(rng: np.random.Generator, weighted: bool) -> NeighborSampler:
    fanout = tuple(int(s) for s in rng.choice([-1, 1, 2, 3, 7, 65], int(rng.integers(1, 4))))
    replace, by_weight, edge_ids = (bool(b) for b in rng.integers(2, size=3))
    return NeighborSampler(fanout, replace, by_weight and weighted, "all" if rng.integers(2) else "new", edge_ids)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_odd_graphs(ranks: int) -> None:
    """Hubs, loops, multi-edges, no edges, weights of 0; of four blocks one has no rows; ranks without minibatches."""
    for number, (name, graph, samplers) in enumerate(worlds()):
        rng = np.random.default_rng([number, ranks])
        few = [s for s in samplers if isinstance(s, NeighborSampler) and max(s.fanout) < 200][ranks % 2 :: 2]
        requests = [random_request(rng, graph.num_nodes, r * number % 3, 9) for r in range(ranks)]
        assert drawn(graph, random_book(rng, graph.num_nodes, ranks), few, requests) == [], name


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_graph_cut_and_sampler(ranks: int) -> None:
    idle = 0
    for case in range(8):
        rng = np.random.default_rng([ranks, case])
        graph = random_graph(rng)
        book = random_book(rng, graph.num_nodes, ranks)
        sampler = random_neighbor(rng, graph.edge_weight is not None)
        counts = rng.integers(0, 4, ranks)
        idle += int((counts == 0).sum())
        requests = [random_request(rng, graph.num_nodes, int(k), graph.num_nodes) for k in counts]
        assert drawn(graph, book, [sampler], requests) == []
    assert idle


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_relations(ranks: int, weighted: bool) -> None:
    """Fanouts of single relations, none and all of their edges among them; ranks without rows or minibatches."""
    graph, rng = typed_dataset(degree=120).graph, np.random.default_rng(ranks)
    if weighted:
        graph = replace(graph, edge_weight=np.arange(1, graph.num_edges + 1, dtype=np.float32))
    samplers = [
        NeighborSampler((2, 3), relations={"cites": (-1, 1), "writes": 0}, edge_ids=True),
        NeighborSampler((2, 2), replace=True, expand="all", edge_ids=True),
    ]
    requests = [random_request(rng, graph.num_nodes, k, 9) for k in (2, 1, 0)[:ranks]]
    assert drawn(graph, random_book(rng, graph.num_nodes, ranks), samplers, requests) == []


def test_a_bulk_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks go through as many pieces as the one with the most minibatches."""
    monkeypatch.setattr(tables_cuda, "TABLE_BYTES", 2 * 5 * tables_cuda.SCAN)
    graph, rng = skewed(50, 300, weighted=True, hub=60), np.random.default_rng(1)
    requests = [random_request(rng, 50, k, 6) for k in (5, 1, 0)]
    samplers = [NeighborSampler((3, 2), edge_ids=True), NeighborSampler((-1,))]
    assert drawn(graph, random_book(rng, 50, 3), samplers, requests) == []


def test_dependent_minibatches() -> None:
    graph, rng = skewed(60, 500, weighted=False), np.random.default_rng(2)
    requests = [random_request(rng, 60, 3, 9) for _ in range(2)]
    assert drawn(graph, random_book(rng, 60, 2), [NeighborSampler((3, 2), batch_dependency=4)], requests) == []


def test_a_minibatch_of_too_many_edges_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, request = skewed(40, 400, weighted=False), BulkRequest(0, 0, 0, 0, (np.arange(20),))
    book = RangeBook(np.array([0, 40]))
    for sampler in (NeighborSampler((5,)), NeighborSampler((5,), replace=True)):
        edges = 20 * 5 if sampler.replace else sampler.sample(graph, request, cpu).minibatches[0].num_edges
        monkeypatch.setattr("millrace.stages.kernels.sampling.samples.LIMIT", edges + 1)
        assert drawn(graph, book, [sampler], [request]) == []
        monkeypatch.setattr("millrace.stages.kernels.sampling.samples.LIMIT", edges)
        with pytest.raises(
            RunError, match=f"would hold {edges} edges; at most {edges - 1} fit: .* batch_size, fanout or sizes"
        ):
            drawn(graph, book, [sampler], [request])


def test_ids_and_edges_go_from_device_to_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes too: no host waits for another, and three times a hop for the device."""
    if not is_pretended():
        pytest.skip("there is a GPU")
    plain, sent, waits = ThreadGroup.all_to_all, [], []
    copied = ToHost.__await__

    def exchanged(self: ThreadGroup, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        sent.append((kind, isinstance(parts[0], OnDevice)))
        assert len({isinstance(x, OnDevice) for x in (*parts, *(into or ()))}) == 1
        return plain(self, parts, kind, into)

    def waited(self: ToHost) -> Any:
        waits.append(self)
        return copied(self)

    monkeypatch.setattr(ThreadGroup, "all_to_all", exchanged)
    monkeypatch.setattr(ToHost, "__await__", waited)
    graph, rng = skewed(60, 500, weighted=True), np.random.default_rng(3)
    requests = [random_request(rng, 60, 2, 9) for _ in range(2)]
    assert drawn(graph, random_book(rng, 60, 2), [NeighborSampler((3, 2), edge_ids=True)], requests) == []
    of_hop = {("control", True): 1, ("graph", True): 5}
    assert {x: sent.count(x) for x in set(sent)} == {x: 4 * n + 2 * (x[0] == "graph") for x, n in of_hop.items()}
    assert len(waits) == 4 * 3


# --- 1.5D products ---

GRIDS = ((1, 1), (3, 1), (2, 2), (4, 2), (6, 3), (6, 2))
"""(p, c): of `test_staged_rows`."""


def staged(c: int, graph: Graph, book: RangeBook, samplers: list[Any], requests: list[BulkRequest]) -> list[str]:
    """Differences of what the ranks of a grid draw together, by one sampler after the other, from the serial
    minibatches."""

    def on_rank(group: ThreadGroup) -> list[str]:
        grid, request, wrong = Grid(group.size, c), requests[group.rank], []
        column, row = grid.subgroup(group, "column"), grid.across(group, "row")
        rows = block_rows(graph, book, grid.block(group.rank), column)
        place_graph(rows.graph, "pinned" if group.rank % 2 else "device")
        owners = StagedOnDevice(rows, column, row, DEVICE, grid.row(group.rank))
        owners.minibatches = [len(r.seeds) for r in requests]
        for sampler in samplers:
            got = completed(sampler.sample_by_owners_on_device(owners, request))
            assert not any(m.on_host for m in got.minibatches)
            want = sampler.sample(graph, request, cpu) if request.seeds else Bulk(request.epoch, request.number, ())
            wrong += [f"rank {group.rank}, blocks {book.offsets.tolist()}, {sampler}: {x}" for x in unlike(got, want)]
        assert completed(owners.most(10 * group.rank)) == 10 * (group.size - 1)
        return wrong

    return [line for lines in run_threads(on_rank, len(requests)) for line in lines]


@pytest.mark.parametrize(("p", "c"), GRIDS, ids=str)
def test_odd_graphs_on_every_grid(p: int, c: int) -> None:
    """Hubs, loops, multi-edges, no edges, weights of 0; blocks without rows; ranks without minibatches."""
    for number, (name, graph, samplers) in enumerate(worlds()):
        rng = np.random.default_rng([number, p])
        few = [s for s in samplers if isinstance(s, NeighborSampler) and max(s.fanout) < 200][p % 2 :: 2]
        requests = [random_request(rng, graph.num_nodes, r * number % 3, 9) for r in range(p)]
        assert staged(c, graph, random_book(rng, graph.num_nodes, p // c), few, requests) == [], name


@pytest.mark.parametrize(("p", "c"), [(3, 1), (4, 2)], ids=str)
def test_any_graph_cut_and_sampler_on_a_grid(p: int, c: int) -> None:
    for case in range(8):
        rng = np.random.default_rng([p, case])
        graph = random_graph(rng)
        sampler = random_neighbor(rng, graph.edge_weight is not None)
        requests = [random_request(rng, graph.num_nodes, int(k), graph.num_nodes) for k in rng.integers(0, 4, p)]
        assert staged(c, graph, random_book(rng, graph.num_nodes, p // c), [sampler], requests) == []


def test_a_bulk_in_pieces_on_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks go through as many pieces as the one of the grid with the most minibatches."""
    monkeypatch.setattr(tables_cuda, "TABLE_BYTES", 2 * 5 * tables_cuda.SCAN)
    graph, rng = skewed(50, 300, weighted=True, hub=60), np.random.default_rng(1)
    requests = [random_request(rng, 50, k, 6) for k in (5, 1, 0, 2)]
    samplers = [NeighborSampler((3, 2), edge_ids=True, weighted=True), NeighborSampler((-1,))]
    assert staged(2, graph, random_book(rng, 50, 2), samplers, requests) == []


def test_distinct_rows_travel_once_and_from_device_to_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one block on each rank, the rows of the others' that a bulk needs: each once, however many ask for it."""
    plain, edges = ThreadGroup.all_to_all, []

    def exchanged(self: ThreadGroup, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        assert not is_pretended() or all(isinstance(x, OnDevice) for x in (*parts, *(into or ())))
        if self.size > 1 and kind == "graph":
            edges.append(sum(x.numel() for r, x in enumerate(parts) if r != self.rank))
        return plain(self, parts, kind, into)

    monkeypatch.setattr(ThreadGroup, "all_to_all", exchanged)
    graph = skewed(60, 500, weighted=False)
    seeds = tuple(np.arange(60) for _ in range(5))
    requests = [BulkRequest(0, 0, 0, 0, seeds), BulkRequest(0, 0, 0, 0, ())]
    assert staged(1, graph, RangeBook(np.array([0, 20, 60])), [NeighborSampler((-1,))], requests) == []
    # Ids of 40 rows go there, their lengths and edges come back.
    assert sum(edges) == 40 + 40 + int(graph.in_degree[20:].sum())
