"""Several parts as one, against a cut that makes that one part."""

from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from millrace.pipeline.training.evaluate_together import evaluate_together
from millrace.stages.fetch.visit import Visits
from millrace.stages.models.sage import SAGE
from millrace.stages.neighbourhood.full_batch import WantedRows, arrange
from millrace.stages.placement.merged import edges_of, merged
from millrace.stages.placement.sharded import share
from millrace.storage.dataset import Dataset
from millrace.storage.features import ArrayFeatures
from millrace.storage.partition.edge_shards import EdgeShards
from millrace.tests.contracts.accuracies import evaluate
from millrace.tests.contracts.full_batch import C, Case, F, job, make_case
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads


def cut(seed: int, ranks: int, m: int, ordered: bool) -> Case:
    """Into m chunks for each rank; `ordered`: in the order of their nodes."""
    case = make_case(seed, ranks * m)
    return replace(case, part_of=np.sort(case.part_of)) if ordered else case


def of_rank(case: Case, rank: int, m: int):
    return merged([case.part(c) for c in range(rank * m, rank * m + m)], case.book.sizes())


CUTS = {"seed": st.integers(0, 10**6), "ranks": st.integers(1, 3), "m": st.integers(1, 3)}


@given(**CUTS)
@example(seed=3, ranks=3, m=2)
@settings(deadline=None, max_examples=25)
def test_chunks_in_order_are_the_part_that_they_make(seed: int, ranks: int, m: int) -> None:
    """Bit for bit."""
    case = cut(seed, ranks, m, ordered=True)
    whole = replace(case, part_of=case.part_of // m, parts=ranks)
    for rank in range(ranks):
        got, want = of_rank(case, rank, m), whole.part(rank)
        got.shards.check()
        for name, value in vars(want.shards).items():
            mine = getattr(got.shards, name)
            same = isinstance(value, np.ndarray) and mine.dtype == value.dtype and np.array_equal(mine, value)
            assert same or (not isinstance(value, np.ndarray) and mine == value), name
        assert np.array_equal(got.owned, want.owned)
        assert torch.equal(got.labels, want.labels)
        assert np.array_equal(
            got.features.gather(np.arange(len(got.owned))), want.features.gather(np.arange(len(want.owned)))
        )
        assert all(np.array_equal(getattr(got.split, s), getattr(want.split, s)) for s in ("train", "val", "test"))


def edges_by_name(shards: EdgeShards, owned: list[np.ndarray]) -> Counter[tuple[int, int, int]]:
    """(source, destination, number in the whole graph) of each edge."""
    kept = np.bincount(shards.rows, shards.counts, minlength=shards.num_owned).astype(np.int64)
    before = np.cumsum(kept) - kept
    found: Counter[tuple[int, int, int]] = Counter()
    for q, names in enumerate(owned):
        row, source, _ = edges_of(shards, q)
        number = shards.edge[shards.edge_splits[q] : shards.edge_splits[q + 1]] - before[row] + shards.first_edge[row]
        found.update(zip(names[source].tolist(), owned[shards.part][row].tolist(), number.tolist()))
    return found


@given(**CUTS)
@example(seed=8, ranks=2, m=3)
@settings(deadline=None, max_examples=25)
def test_chunks_in_any_order_hold_every_edge_once(seed: int, ranks: int, m: int) -> None:
    case = cut(seed, ranks, m, ordered=False)
    parts = [of_rank(case, r, m) for r in range(ranks)]
    found = sum((edges_by_name(p.shards, [p.owned for p in parts]) for p in parts), Counter())
    dst = np.repeat(np.arange(case.graph.num_nodes), case.graph.in_degree)
    assert found == Counter(zip(case.graph.indices.tolist(), dst.tolist(), range(case.graph.num_edges)))


@given(**CUTS)
@example(seed=11, ranks=3, m=2)
@settings(deadline=None, max_examples=8)
def test_ranks_evaluate_their_chunks(seed: int, ranks: int, m: int) -> None:
    """As one rank evaluates the whole graph."""
    case = cut(seed, ranks, m, ordered=False)
    torch.manual_seed(0)
    model: nn.Module = SAGE(hidden=4, layers=2, dropout=0.0).build(F, C).double()
    whole = Dataset("case", case.graph, ArrayFeatures(case.x), case.labels.numpy(), case.split, C)

    def rank(group: ThreadGroup) -> float | None:
        part = of_rank(case, group.rank, m)
        held = share(part, arrange(part.shards, part.owned, WantedRows(part.split.train, 2), group, reads_loops=False))
        held.graph.check()
        scored = evaluate_together(model, Visits(held, (), 0, job(group, 2).group), "train")
        return None if scored is None else scored.accuracy

    want = evaluate(model, whole, torch.from_numpy(case.graph.degree), ("train",))["train"]
    assert set(run_threads(rank, ranks)) == {want}
