"""Sampling by owners on GPUs: the bits of the serial samplers, from ranks with and without rows and minibatches."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.runtime.device_memory import ToHost, completed
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.placement.row_owners_cuda import OwnersOnDevice
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

from millrace.stages.kernels.sampling.cuda import neighbor as neighbor_cuda
from millrace.stages.kernels.sampling.cuda import tables as tables_cuda

pytestmark = pytest.mark.usefixtures("on_device")


def drawn(graph: Graph, book: RangeBook, samplers: list[Any], requests: list[BulkRequest]) -> list[str]:
    """Differences of what ranks draw together, by one sampler after the other, from the serial minibatches."""

    def on_rank(group: ThreadGroup) -> list[str]:
        rows, request = block_rows(graph, book, group.rank, group), requests[group.rank]
        owners = OwnersOnDevice(rows, group, DEVICE, lambda number: [len(r.seeds) for r in requests])
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
        monkeypatch.setattr(neighbor_cuda, "LIMIT", edges + 1)
        assert drawn(graph, book, [sampler], [request]) == []
        monkeypatch.setattr(neighbor_cuda, "LIMIT", edges)
        with pytest.raises(RunError, match=f"would hold {edges} edges; at most {edges - 1} fit"):
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
