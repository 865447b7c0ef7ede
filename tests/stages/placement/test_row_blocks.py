"""Block rows: who holds what on a process grid, and that a block is a piece of the whole graph."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.pipeline.assembly.parts import Parts
from millrace.stages.comm.solo import Solo
from millrace.stages.messages import Part, Phase, Placement, RankJob
from millrace.stages.partition.base import Partitioner
from millrace.stages.partition.contiguous import Contiguous
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.metis import Metis
from millrace.stages.partition.stage import open_shards, partition_dataset
from millrace.stages.placement.row_blocks import BlockRows, Blocks, Grid, rows_of
from millrace.storage.dataset import Dataset, Split
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import Graph, from_edges
from millrace.storage.ledger import Ledger
from millrace.storage.partition.book import RangeBook
from millrace.storage.partition.edge_shards import shard_edges
from millrace.storage.partition.partition import extract_partition
from millrace.storage.partition.reorder import reorder
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads

PHASE = Phase(0, 0, 1)


@pytest.mark.parametrize(("p", "c"), [(p, c) for p in range(1, 13) for c in range(1, p + 1) if p % c == 0])
def test_every_column_holds_each_block_once(p: int, c: int) -> None:
    grid = Grid(p, c)
    assert grid.blocks * c == p
    columns = [grid.column(r) for r in range(p)]
    for rank in range(p):
        assert rank in columns[rank]
        assert [grid.block(r) for r in columns[rank]] == list(range(grid.blocks))
        assert all(columns[r] == columns[rank] for r in columns[rank])
    assert len({tuple(x) for x in columns}) == c
    # A grid row is ranks one after the other: those that hold one block.
    assert [grid.block(r) for r in range(p)] == sorted(list(range(grid.blocks)) * c)


@pytest.mark.parametrize(
    ("p", "c", "near"),
    [
        (12, 5, "3, 4, 6"),
        (12, 0, "1, 2, 3"),
        (12, -4, "1, 2, 3"),
        (12, 24, "4, 6, 12"),
        (8, 3, "1, 2, 4"),
        (7, 3, "1, 7"),
        (1, 2, "1"),
    ],
)
def test_a_replication_that_does_not_divide_the_ranks_is_refused_with_those_that_do(p: int, c: int, near: str) -> None:
    with pytest.raises(
        InputError, match=rf"^bulk\.replication is {c}, which does not divide {p} ranks; nearest are {near}$"
    ):
        Grid(p, c)


def unsorted(graph: Graph, seed: int = 0) -> Graph:
    """The same edges, each row in an order of its own: blocks must keep it."""
    rng = np.random.default_rng(seed)
    row = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    order = np.lexsort((rng.random(graph.num_edges), row))
    weight = None if graph.edge_weight is None else graph.edge_weight[order]
    return Graph(graph.indptr, graph.indices[order], weight).check()


def piece(graph: Graph, book: RangeBook, block: int) -> Graph:
    lo, hi = book.offsets[block : block + 2]
    edges = slice(int(graph.indptr[lo]), int(graph.indptr[hi]))
    weight = None if graph.edge_weight is None else graph.edge_weight[edges]
    return Graph(graph.indptr[lo : hi + 1] - graph.indptr[lo], graph.indices[edges], weight)


def same_bits(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def assert_same_graph(got: Graph, want: Graph) -> None:
    for name in ("indptr", "indices", "edge_weight", "edge_id"):
        assert same_bits(getattr(got, name), getattr(want, name)), name


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_rows_of_a_part_are_the_whole_graphs(data: st.DataObject) -> None:
    """Isolated nodes, loops, multi-edges, one node, no edges; empty parts and parts of one node."""
    n = data.draw(st.integers(1, 12))
    ends = st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40)
    src, dst = np.array(data.draw(ends), np.int64).reshape(-1, 2).T
    weight = np.arange(len(src)) / 7 if data.draw(st.booleans()) else None
    graph = unsorted(from_edges(src, dst, n, edge_weight=weight), len(src))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    book = RangeBook(np.array([0, *cuts, n], np.int64)).check()
    for block in range(book.num_parts):
        part = extract_partition(graph, book, block)
        rows = rows_of(shard_edges(part, book, graph.indptr[part.owned], graph.num_edges).check(), book)[0]
        assert_same_graph(rows, piece(graph, book, block))


@dataclass(frozen=True)
class Cut:
    """A partitioner that knows where the ranges begin, by their number."""

    offsets: dict[int, tuple[int, ...]]
    name = "cut"

    def assign(self, graph: Graph, parts: int, seed: int) -> RangeBook:
        """See `Partitioner.assign`."""
        return RangeBook(np.array(self.offsets[parts], np.int64))


def dataset(name: str, graph: Graph, *, multilabel: bool = False, train: int = 0) -> Dataset:
    """A third of the nodes, or `train` of them, are train nodes."""
    rng, n = np.random.default_rng(graph.num_nodes), graph.num_nodes
    order = rng.permutation(n)
    split = Split(*(np.sort(part) for part in np.split(order, [train or n // 3, n // 2 + 1])))
    labels = rng.integers(0, 2, (n, 3)).astype(np.float32) if multilabel else rng.integers(0, 5, n)
    features = ArrayFeatures(rng.random((n, 4), np.float32))
    return Dataset(
        name, graph, features, labels, split, 3 if multilabel else 5, "multilabel" if multilabel else "multiclass"
    ).check()


def weighted() -> Graph:
    """Weights so unlike that the order of a sum shows in float64; the heaviest edge leads to the last row."""
    rng = np.random.default_rng(3)
    src, dst = (rng.random((2, 700)) ** 1.5 * 61).astype(np.int64)
    weight = rng.choice([0.0, 1.0, 3e-17, 2e8, 5e-9], 700) * rng.random(700)
    return unsorted(from_edges(np.append(src, 3), np.append(dst, 60), 61, edge_weight=np.append(weight, 7e8)))


def hub() -> Graph:
    rng = np.random.default_rng(4)
    return unsorted(
        from_edges(rng.integers(40, size=700), np.where(np.arange(700) < 550, 13, rng.integers(36, size=700)), 40)
    )


CASES: dict[str, tuple[Dataset, Partitioner, torch.dtype]] = {
    "by hash": (dataset("hashed", weighted()), Hash(), torch.float64),
    "by metis": (dataset("by-metis", hub(), multilabel=True), Metis(), torch.float32),
    "weighted": (dataset("weighted", weighted()), Contiguous("edges"), torch.float64),
    "single precision": (dataset("single", weighted()), Contiguous("nodes"), torch.float32),
    "hub": (dataset("hub", hub(), multilabel=True), Contiguous("edges"), torch.float64),
    "empty blocks": (
        dataset("empty", weighted(), train=2),
        Cut({1: (0, 61), 2: (0, 0, 61), 4: (0, 0, 20, 20, 61)}),
        torch.float64,
    ),
    "as many blocks as nodes": (
        dataset("few", from_edges([0, 1, 1, 0], [1, 0, 0, 0], 4), train=1),
        Contiguous("nodes"),
        torch.float64,
    ),
    "weights that are all 0": (
        dataset("zero", from_edges([0, 1, 1], [1, 0, 0], 5, edge_weight=[0.0] * 3)),
        Contiguous("nodes"),
        torch.float32,
    ),
    "no edges": (dataset("loose", from_edges([], [], 9)), Contiguous("nodes"), torch.float32),
}
RANKS = 4
TRIED = [
    (name, c)
    for i, name in enumerate(CASES)
    for c in (1, 2, 4)
    if c in (1, 2 + 2 * (i % 2)) or name.startswith("empty")
]
"""Cases and replications: all in four blocks, in turns in two blocks and in one."""


def job_of(group: Any, dtype: torch.dtype) -> RankJob:
    return RankJob(0, 1, 1, 1, dtype, None, group, Ledger())


def place_all(group: ThreadGroup, folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    found = {}
    for name, c in TRIED:
        (data, _, dtype), grid, policy = CASES[name], Grid(group.size, c), Blocks(c)
        part = Parts(folder / name / str(grid.blocks), dtype, data.task == "multilabel").part(grid.block(group.rank))
        rows = policy.place(part, PHASE, job_of(group, dtype))
        assert rows.column is not None
        told = torch.tensor([group.rank])
        found[name, c] = {
            "graph": rows.graph,
            "degree": rows.degree,
            "labels": rows.labels,
            "train_labels": rows.labels_of(rows.seeds[::-1]),
            "features": rows.features.gather(np.arange(rows.graph.num_nodes)),
            "split": rows.split,
            "book": rows.book,
            "numbers": (rows.block, rows.first, rows.num_nodes),
            "first_edge": rows.first_edge,
            "heaviest": rows.heaviest,
            "column": [int(t) for t in rows.column.all_to_all([told] * rows.column.size, "control")],
        }
    return found


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, int], dict[str, Any]]]:
    """Results of four ranks for the parts of each dataset."""
    folder = tmp_path_factory.mktemp("parts")
    for name, c in TRIED:
        data, partitioner, _ = CASES[name]
        partition_dataset(data, partitioner, RANKS // c, folder / name / str(RANKS // c))
    return run_threads(partial(place_all, folder=folder), RANKS)


@pytest.mark.parametrize(("name", "c"), TRIED)
def test_each_rank_holds_its_block_of_the_whole(
    placed: list[dict[tuple[str, int], dict[str, Any]]], name: str, c: int
) -> None:
    data, partitioner, dtype = CASES[name]
    grid, graph = Grid(RANKS, c), data.graph
    book = partitioner.assign(graph, grid.blocks, 0)
    if not isinstance(book, RangeBook) and grid.blocks > 1:
        data = reorder(data, book)
        graph, book = data.graph, RangeBook(np.append(0, np.cumsum(book.sizes())))
        assert not np.array_equal(graph.indices, CASES[name][0].graph.indices)
    elif not isinstance(book, RangeBook):
        book = RangeBook(np.array([0, data.num_nodes]))
    labels = torch.from_numpy(data.labels)
    if data.task == "multilabel":
        labels = labels.to(dtype)
    for rank in range(RANKS):
        got, block = placed[rank][name, c], grid.block(rank)
        lo, hi = book.offsets[block : block + 2].tolist()
        assert got["numbers"] == (block, lo, graph.num_nodes)
        assert same_bits(got["book"].offsets, book.offsets)
        assert_same_graph(got["graph"], piece(graph, book, block))
        # The sum of a row is in the row's order, whoever owns its sources: not only near the whole graph's.
        assert same_bits(got["degree"].numpy(), torch.from_numpy(graph.degree[lo:hi]).to(dtype).numpy())
        assert same_bits(got["labels"].numpy(), labels[lo:hi].numpy())
        rows = data.features.gather(np.arange(lo, hi))
        assert same_bits(got["features"], rows.astype(str(dtype).removeprefix("torch.")))
        assert same_bits(got["split"].train, data.split.train)
        assert len(got["split"].val) == len(got["split"].test) == 0
        assert same_bits(got["train_labels"].numpy(), labels[torch.from_numpy(data.split.train[::-1].copy())].numpy())
        assert got["heaviest"] == (1.0 if graph.edge_weight is None else graph.edge_weight.max())
        assert hi == lo or got["first_edge"] == graph.indptr[lo]
        assert got["column"] == grid.column(rank)


def test_the_cases_are_what_they_are_called() -> None:
    """That the order of a sum shows, that blocks are empty, that a block lacks the heaviest edge."""
    data, partitioner, _ = CASES["weighted"]
    row = np.repeat(np.arange(61), data.graph.in_degree)
    by_source = np.lexsort((data.graph.indices, row))
    assert data.graph.edge_weight is not None
    assert not np.array_equal(np.bincount(row, data.graph.edge_weight[by_source]), data.graph.degree)
    for name, blocks in (("hub", 4), ("empty blocks", 4), ("empty blocks", 2)):
        data, partitioner, _ = CASES[name]
        assert 0 in partitioner.assign(data.graph, blocks, 0).sizes(), name
    data, partitioner, _ = CASES["weighted"]
    book = partitioner.assign(data.graph, 4, 0)
    assert isinstance(book, RangeBook)
    heaviest = [piece(data.graph, book, b).edge_weight for b in range(4)]
    assert sum(w is not None and w.max() == 7e8 for w in heaviest) == 1


def whole(data: Dataset) -> Placement:
    degree = torch.from_numpy(data.graph.degree)
    return Placement(data.graph, data.features, torch.from_numpy(data.labels), degree, data.split)


def test_one_rank_that_has_the_whole_graph_holds_one_block(tmp_path: Path) -> None:
    data = CASES["weighted"][0]
    got = Blocks(1).place(whole(data), PHASE, job_of(Solo(), torch.float64))
    assert isinstance(got, BlockRows)
    assert got.graph is data.graph and got.features is data.features
    assert (got.block, got.first, got.first_edge, got.num_nodes) == (0, 0, 0, 61)
    assert got.heaviest == np.float32(7e8) and got.book.offsets.tolist() == [0, 61]
    assert got.split.train is data.split.train and len(got.split.val) == 0
    assert torch.equal(got.labels_of(data.split.train[::-1]), torch.from_numpy(data.labels[data.split.train[::-1]]))
    loose = CASES["no edges"][0]
    assert Blocks(1).place(whole(loose), PHASE, job_of(Solo(), torch.float64)).heaviest == 1.0
    # As from a part that is everything.
    partition_dataset(data, Contiguous(), 1, tmp_path / "one")
    shards, owned, rows = open_shards(tmp_path / "one", 0)
    part = Part(shards, owned, rows.features, torch.from_numpy(rows.labels), rows.split)
    cut = Blocks(1).place(part, PHASE, job_of(Solo(), torch.float64))
    assert_same_graph(cut.graph, got.graph)
    assert (
        torch.equal(cut.degree, got.degree)
        and cut.heaviest == got.heaviest
        and same_bits(cut.split.train, got.split.train)
    )


def place_whole(group: ThreadGroup) -> list[Any]:
    data = CASES["weighted"][0]
    rows = Blocks(2).place(whole(data), PHASE, job_of(group, torch.float64))
    assert rows.column is not None
    try:
        Blocks(1).place(whole(data), PHASE, job_of(group, torch.float64))
    except InputError as e:
        return [rows.column.size, rows.book.offsets.tolist(), str(e)]
    return [rows.column.size, rows.book.offsets.tolist(), None]


def test_ranks_that_have_the_whole_graph_hold_no_blocks_of_it() -> None:
    told = "2 blocks are to be held, but each rank got the whole graph; cut it into parts first"
    assert run_threads(place_whole, 2) == [[1, [0, 61], told]] * 2
