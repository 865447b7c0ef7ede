"""Counts of a cut against the rows that ranks hold and read when they arrange their parts, on small graphs with all
defects."""

import numpy as np
import pytest

from millrace.stages.partition.cut_counts import count_cut, halo_counts
from millrace.tests.contracts.full_batch import Case, make_case
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads

LAYERS = 2


@pytest.mark.parametrize("prune", [True, False])
@pytest.mark.parametrize("seed", range(16))
def test_counts_are_those_of_the_arranged_parts(seed: int, prune: bool) -> None:
    case = make_case(seed, parts=3)
    cut = count_cut(case.graph, case.book, case.split.train, LAYERS)

    def rank(group: ThreadGroup) -> tuple[np.ndarray, dict[str, int]]:
        share = case.share(group, LAYERS, prune)
        views = [*share.graph.layers, share.graph.whole]
        rows = np.array([[0 if s.rows is None else s.lists.num_src for s in v.shards] for v in views])
        return rows, group.ledger.as_record()["network"]

    seen = run_threads(rank, case.parts)
    rows = np.stack([r for r, _ in seen], axis=1)
    assert np.array_equal(rows, cut.rows if prune else np.stack([cut.rows[-1]] * (LAYERS + 1)))
    assert cut.arrange_bytes(LAYERS if prune else 0)[0] == sum(told["graph"] for _, told in seen)
    parts = [case.part(p) for p in range(case.parts)]
    assert cut.nodes.tolist() == [len(p.owned) for p in parts]
    assert cut.edges.tolist() == [p.shards.num_edges for p in parts]
    assert cut.train.tolist() == [len(p.split.train) for p in parts]
    assert cut.lists.tolist() == [len(p.shards.rows) for p in parts]
    weighted = case.graph.edge_weight is not None
    assert [cut.shard_bytes(p, weighted) for p in range(case.parts)] == [p.shards.nbytes for p in parts]
    assert cut.boundary == case.remote_rows(np.ones(case.graph.num_nodes, bool))


@pytest.mark.parametrize("seed", range(8))
def test_halo_nodes_are_the_sources_outside(seed: int) -> None:
    case = make_case(seed, parts=3)
    outside = sources_outside(case, {0, 2})
    assert halo_counts(case.graph, case.book, (0, 2)) == (len(set(outside)), len(outside))
    assert halo_counts(case.graph, case.book, range(3)) == (0, 0)


def sources_outside(case: Case, chunks: set[int]) -> list[int]:
    dst = np.repeat(np.arange(case.graph.num_nodes), case.graph.in_degree)
    edges = zip(case.graph.indices.tolist(), dst.tolist())
    return [u for u, v in edges if case.part_of[v] in chunks and case.part_of[u] not in chunks]
