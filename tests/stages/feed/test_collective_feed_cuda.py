"""Bulks that owners draw on devices ahead of the training, by all ranks at the same steps."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from millrace.stages.assignment import SeedPlan
from millrace.stages.feed.collective_feed import SampledByOwners, SharedOwnersFeed
from millrace.stages.feed.draws import own_draws
from millrace.stages.feed.link_feed import LinksByOwners
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.links.exclude import WithoutOwnEdges
from millrace.stages.links.train_pairs import Negatives
from millrace.stages.messages import Phase
from millrace.stages.placement.row_blocks import Grid
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.dataset import Split
from millrace.storage.graph import Graph
from millrace.storage.ledger import Ledger
from millrace.storage.links.pairs import Pairs
from millrace.storage.minibatch import MiniBatch
from millrace.storage.partition.book import RangeBook
from millrace.storage.queue.zarr import ZarrQueue
from millrace.tests.contracts.block_sampling import block_rows, skewed
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.pretended_device import DEVICE, OnDevice, is_pretended
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads

pytest.importorskip("triton")

from millrace.stages.feed.collective_feed_cuda import OwnersFeedOnDevice, SharedFeedOnDevice
from millrace.stages.feed.queue_feed import BulkSpan, own_queue
from millrace.stages.placement.row_owners_cuda import OwnersOnDevice

pytestmark = pytest.mark.usefixtures("on_device")
V, BATCH, EPOCHS = 60, 4, 2
GRAPH, SAMPLER = skewed(V, 400, weighted=False), NeighborSampler((3, 2))
SEEDS = np.arange(55)
"""Fourteen minibatches."""


def serial(epoch: int) -> tuple[MiniBatch, ...]:
    return SAMPLER.sample(GRAPH, SeedPlan(SEEDS, BATCH, 100, 7).request(epoch, 0), cpu).minibatches


class Ahead:
    """A rank that takes its minibatches from one on, after each step of all ranks."""

    def __init__(self, group: ThreadGroup, bulk: int, max_bytes: int, first: tuple[int, int] = (0, 0)) -> None:
        self.plan = SeedPlan(SEEDS, BATCH, bulk * group.size, 7).of_rank(group.size, group.size, group.rank)
        steps = self.plan.steps
        assert steps is not None
        rows = block_rows(GRAPH, RangeBook(np.array([0, *[20, 20, 45][: group.size - 1], V])), group.rank, group)
        job: Any = SimpleNamespace(group=group, device=DEVICE, ledger=Ledger(), minibatches_per_step=group.size)
        draws = own_draws(self.plan, BulkSpan.of_phase(self.plan, Phase(0, 0, EPOCHS), first), group.size)
        owners = OwnersOnDevice(rows, group, DEVICE)
        feed = OwnersFeedOnDevice(own_queue(self.plan), draws, SAMPLER, owners, max_bytes, job)
        self.late: list[tuple[int, int]] = []
        self.levels: list[dict[str, int]] = []
        digests: list[tuple[int, int, str]] = []
        for epoch in range(first[0], EPOCHS):
            for step in range(steps.step_of(first[1]) if epoch == first[0] else 0, len(steps)):
                span = steps.minibatches_of(step)
                due = feed._due
                if not span.start % self.plan.bulk_size and due is not None and due.first <= (epoch, span.start):
                    self.late.append((epoch, span.start // self.plan.bulk_size))
                feed.expect(epoch, span.stop - 1)
                mine = filter(steps.is_mine, span)
                digests += [(epoch, index, minibatch_digest(feed.get(epoch, index))) for index in mine]
                feed.release(epoch, span.stop - 1)
                self.levels.append(feed._queue.level)
        feed.close()
        want = [(e, m.index, minibatch_digest(m)) for e in range(EPOCHS) for m in serial(e) if steps.is_mine(m.index)]
        assert digests == [d for d in want if d[:2] >= first]


@pytest.mark.parametrize(("ranks", "first"), [(1, (0, 6)), (2, (0, 0)), (4, (0, 8))])
def test_bulks_are_there_when_they_are_due(ranks: int, first: tuple[int, int]) -> None:
    """All but the first one, also those of the next epoch; an epoch's last step has no minibatch for some ranks."""
    for found in run_threads(lambda group: Ahead(group, 7 if ranks == 2 else 2, 1 << 20, first), ranks):
        assert found.late == [(first[0], first[1] // found.plan.bulk_size)]


def test_they_take_as_many_bytes_as_they_may_on_the_rank_with_the_most() -> None:
    """Ranks that would decide by their own bulks would wait for each other."""
    alone = run_threads(lambda group: Ahead(group, 3, 1), 2)
    bulks = {(e, n) for e in range(EPOCHS) for n in range(alone[0].plan.num_bulks)}
    most = max(level["bytes"] for found in alone for level in found.levels)
    for found in alone:
        assert set(found.late) == bulks and max(level["bulks"] for level in found.levels) == 1
    ranks = run_threads(lambda group: Ahead(group, 3, 2 * most), 2)
    assert len({tuple(found.late) for found in ranks}) == 1
    for found in ranks:
        assert set(found.late) < bulks and max(level["bulks"] for level in found.levels) == 2
        assert max(level["bytes"] for level in found.levels) <= 2 * most


def test_no_rank_waits_for_another_ones_host(monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_pretended():
        pytest.skip("there is a GPU")
    plain = ThreadGroup.all_to_all

    def exchanged(self: ThreadGroup, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        assert into is not None and all(isinstance(x, OnDevice) for x in (*parts, *into))
        return plain(self, parts, kind, into)

    monkeypatch.setattr(ThreadGroup, "all_to_all", exchanged)
    monkeypatch.delattr(ThreadGroup, "all_reduce")
    monkeypatch.delattr(ThreadGroup, "any")
    run_threads(lambda group: Ahead(group, 2, 1 << 20), 2)


SIZES: Any = SimpleNamespace(batch_size=BATCH, bulk_size=3, seed=7)


def links() -> tuple[Graph, LinksByOwners, Pairs]:
    """A graph, whose edges are train pairs, and the policy that draws them without themselves."""
    ends = GRAPH.indices, np.repeat(np.arange(V), GRAPH.in_degree), np.zeros(GRAPH.num_edges)
    policy = LinksByOwners(WithoutOwnEdges(NeighborSampler((3, 2), edge_ids=True)), negatives=Negatives(count=2))
    return GRAPH, policy, Pairs(np.stack(ends, 1).astype(np.int64)[::7], {"train": SEEDS})


@pytest.mark.parametrize(("algorithm", "resident"), [("owners", True), ("1.5d", True), ("owners", False)])
@pytest.mark.parametrize("of_links", [False, True])
@pytest.mark.parametrize(("ranks", "columns"), [(1, 1), (2, 1), (4, 2)])
def test_ranks_fill_a_queue_on_disk_that_all_of_them_read(
    tmp_path: Path, ranks: int, columns: int, of_links: bool, algorithm: Any, resident: bool
) -> None:
    """Whole bulks, as one process draws them, from where another generation stopped; ranks without one draw for the
    others. The bytes that wait are bounded."""
    graph, policy, pairs = links() if of_links else (GRAPH, SampledByOwners(SAMPLER), None)
    policy = replace(policy, algorithm=algorithm, uses_queue=True, max_bytes=1)
    split = Split(SEEDS, SEEDS[:0], SEEDS[:0])
    whole = replace(block_rows(graph, RangeBook(np.array([0, V])), 0, None), split=split, pairs=pairs)
    plan = policy.plan_of_all(whole, SIZES)
    want = [policy.sampler.sample(graph, plan.request(e, n), cpu) for e in range(EPOCHS) for n in range(plan.num_bulks)]

    def create() -> ZarrQueue:
        meta = {"minibatches_per_epoch": plan.num_minibatches}
        return ZarrQueue.create(
            tmp_path / "queue", fingerprint={}, bulk_size=3, max_bytes=1 << 62, keep="all", meta=meta
        )

    create().put(want[1], 1.0)

    def on_rank(group: ThreadGroup) -> tuple[list[str], list[int]]:
        grid = Grid(group.size, columns)
        column, row = grid.subgroup(group, "column"), grid.across(group, "row")
        book = RangeBook(np.array([0, 25, V]) if grid.blocks == 2 else np.array([0, V]))
        rows = replace(block_rows(graph, book, grid.block(group.rank), column), row=row, split=split, pairs=pairs)
        job: Any = SimpleNamespace(
            **vars(SIZES), group=group, device=DEVICE, ledger=Ledger(), minibatches_per_step=group.size, queue=create(),
            produce=True, resident=resident, producer_alive=lambda: True,
        )  # fmt: skip
        feed = policy.feed(rows, Phase(0, 0, EPOCHS), job, (0, 0))
        assert type(feed) is (SharedFeedOnDevice if resident else SharedOwnersFeed)
        found, waiting = [], []
        for epoch in range(EPOCHS):
            for index in range(plan.num_minibatches):
                feed.expect(epoch, index)
                found.append(minibatch_digest(feed.get(epoch, index)))
                feed.release(epoch, index)
                waiting.append(len(feed._held))
        feed.close()
        job.queue.close()
        return found, waiting

    for found, waiting in run_threads(on_rank, ranks):
        assert found == [minibatch_digest(m) for bulk in want for m in bulk.minibatches]
        assert max(waiting) <= 1 + (not resident)
