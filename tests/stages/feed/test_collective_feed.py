"""The choice between the rows' owners and 1.5D products."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millrace.stages.feed.collective_feed import SampledByOwners
from millrace.stages.placement.grid_costs import Cost
from millrace.stages.placement.row_blocks import Grid
from millrace.stages.placement.row_owners import Owners
from millrace.stages.placement.staged_rows import StagedRows
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.graph import Graph, from_edges
from millrace.storage.partition.book import RangeBook
from millrace.tests.contracts.block_sampling import block_rows
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads

V = 4000


def graph_of(degree: int) -> Graph:
    rng = np.random.default_rng(degree)
    return from_edges(rng.integers(V, size=V * degree), np.repeat(np.arange(V), degree), V)


def meet(algorithm: Any, degree: int, sampler: Any, c: int = 1) -> list[tuple[type, list[str]]]:
    """Type of sampler and notes to the user of each of four ranks."""
    graph = graph_of(degree)

    def on_rank(group: ThreadGroup) -> tuple[type, list[str]]:
        grid, told = Grid(4, c), []
        column, row = grid.subgroup(group, "column"), grid.across(group, "row")
        book = RangeBook(np.arange(grid.blocks + 1) * V // grid.blocks)
        rows = block_rows(graph, book, grid.block(group.rank), column)
        object.__setattr__(rows, "split", Split(np.arange(V), rows.split.train, rows.split.train))
        job: Any = SimpleNamespace(
            group=group, batch_size=50, bulk_size=30, seed=0, minibatches_per_step=4, tell=told.append
        )
        return type(SampledByOwners(sampler, algorithm=algorithm).meet(rows, job, column, row)), told

    return run_threads(on_rank, 4)


@pytest.mark.parametrize(("degree", "c", "kind"), [(20, 1, StagedRows), (40, 1, Owners), (40, 2, Owners)])
def test_auto_takes_the_cheaper_one_on_all_ranks_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, degree: int, c: int, kind: type
) -> None:
    # As over a slow link; in a data centre few words take no time.
    monkeypatch.setattr(Cost, "seconds", lambda cost: cost.words)
    found = meet("auto", degree, NeighborSampler((20, 20) if kind is StagedRows else (3, 3)), c)
    assert [k for k, _ in found] == [kind] * 4
    (told,), *others = [lines for _, lines in found]
    name = "1.5d" if kind is StagedRows else "owners"
    assert told.startswith(f'bulk.algorithm = "auto" is "{name}": a rank is expected to send ')
    assert others == [[]] * 3


def test_a_fixed_algorithm_is_taken_without_a_word() -> None:
    for algorithm, kind in (("owners", Owners), ("1.5d", StagedRows)):
        assert meet(algorithm, 5, NeighborSampler((3,))) == [(kind, [])] * 4


def test_auto_leaves_rows_with_their_owners_where_a_samplers_traffic_is_unknown() -> None:
    assert meet("auto", 2, SimpleNamespace(name="other")) == [(Owners, [])] * 4
