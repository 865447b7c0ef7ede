"""Samplers that are written as matrices over block rows: the minibatches of the whole graph on every grid."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling.sparse import Sparse
from millrace.stages.placement.row_blocks import Grid
from millrace.stages.placement.row_owners import Owners
from millrace.stages.placement.row_products import RowProducts
from millrace.stages.placement.staged_rows import StagedRows
from millrace.stages.sample.matrix import SubgraphSampler
from millrace.stages.sample.ppr import PprSampler
from millrace.stages.sample.saint import SaintSampler
from millrace.storage.errors import InputError, RunError
from millrace.storage.graph import Graph, from_edges
from millrace.storage.partition.book import RangeBook
from millrace.tests.contracts.block_sampling import block_rows, compare, random_book, random_graph, random_request
from millrace.tests.contracts.matrix_neighbor import MatrixNeighbor
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads

GRIDS = ((1, 1), (2, 1), (4, 1), (4, 2), (4, 4), (6, 3))


@dataclass(frozen=True)
class Shared(SubgraphSampler):
    """One draw for the whole minibatch, in `extract`."""

    size: int = 4
    name: ClassVar[str] = "shared"

    @property
    def draws(self) -> tuple[int, ...]:
        return ()

    def extract(self, seeds: Any, selectors: Any, drawn: Any, c: Any) -> Any:
        P = c.multiply(Sparse(np.array([0]), np.array([len(seeds)]), seeds), c.A)
        return c.induced(c.choose(P, self.size, c.keys[-1:]).columns, self.layers)


SAMPLERS = (
    SaintSampler(2, 3, 2),
    SaintSampler(1, 2, 2, edge_ids=True),
    PprSampler(3, 4, 2),
    PprSampler(2, 2, 4, 0.1, 1e-6, edge_ids=True),
    MatrixNeighbor((3, -1, 2)),
    Shared(2),
)


def rows_of(group: ThreadGroup, c: int, graph: Graph, book: RangeBook, algorithm: str) -> Owners:
    grid = Grid(group.size, c)
    column, row = grid.subgroup(group, "column"), grid.across(group, "row")
    block = block_rows(graph, book, grid.block(group.rank), column)
    return Owners(block, column) if algorithm == "owners" else StagedRows(block, column, row)


@pytest.mark.parametrize(("p", "c"), GRIDS, ids=str)
def test_every_grid_draws_the_minibatches_of_the_whole_graph(p: int, c: int) -> None:
    """Graphs with parallel edges and without, weighted or not, also where some ranks have no minibatches."""

    def on_rank(group: ThreadGroup) -> list[str]:
        wrong = []
        for case in range(6):
            rng = np.random.default_rng([p, c, case])
            graph = simple(rng) if case % 3 == 0 else random_graph(rng)
            rows = rows_of(group, c, graph, random_book(rng, graph.num_nodes, p // c), ("1.5d", "owners")[case % 2])
            for i, sampler in enumerate(SAMPLERS):
                own = np.random.default_rng([case, i, group.rank])
                k = (1, 3, 0 if p > 1 else 2)[(group.rank + i) % 3]
                request = random_request(own, graph.num_nodes, k, min(graph.num_nodes, 8))
                wrong += compare(rows, graph, sampler, request, (case, group.rank))
        return wrong

    assert [line for wrong in run_threads(on_rank, p) for line in wrong] == []


def simple(rng: np.random.Generator) -> Graph:
    """Without parallel edges: draws are by Floyd's algorithm."""
    keys = np.unique(rng.integers(0, 30 * 30, 200))
    return from_edges(keys % 30, keys // 30, 30)


@dataclass(frozen=True)
class Reads(Shared):
    """Reads what no rank has."""

    what: str = "indices"

    def extract(self, seeds: Any, selectors: Any, drawn: Any, c: Any) -> Any:
        if self.what == "lengths":
            return c.A.lengths
        return getattr(c.graph, self.what) if seeds[0] == 7 else c.induced(seeds, self.layers)


def test_what_no_rank_has_is_refused_once_the_other_minibatches_are_drawn() -> None:
    """The other rank has its minibatches."""
    graph = simple(np.random.default_rng(0))

    def on_rank(group: ThreadGroup) -> list[str]:
        rows, told = rows_of(group, 1, graph, RangeBook(np.array([0, 11, 30])), "1.5d"), []
        for what, of in (("indices", "the graph"), ("edge_weight", "the graph"), ("lengths", "c.A")):
            seeds = [np.array([7]), np.array([3, 4])] if group.rank == 0 else [np.array([8])]
            request = BulkRequest(0, 0, 0, 0, tuple(seeds))
            if group.rank == 0 or what == "lengths":
                with pytest.raises(InputError, match=f"the sampler reads {what} of {of}, whose rows are on several"):
                    Reads(1, what=what).sample_by_owners(rows, request)
            else:
                told += [len(m.seeds) for m in Reads(1, what=what).sample_by_owners(rows, request).minibatches]
        return told

    assert run_threads(on_rank, 2) == [[], [1, 1]]


def test_minibatches_end_if_other_ranks_are_lost() -> None:
    def on_rank(group: ThreadGroup) -> int:
        rows = rows_of(group, 1, simple(np.random.default_rng(0)), RangeBook(np.array([0, 30])), "owners")
        products = RowProducts(rows, keep_positions=False)
        group.any = lambda flag: (_ for _ in ()).throw(RunError("rank 3 is lost"))  # type: ignore[method-assign]
        errors: list[BaseException] = []

        def draw() -> None:
            try:
                products.edges(np.array([1, 2], np.int32))
            except RunError as e:
                errors.append(e)

        with pytest.raises(RunError, match="rank 3 is lost"):
            products.run([draw] * 3)
        return len(errors)

    assert run_threads(on_rank, 1) == [3]
