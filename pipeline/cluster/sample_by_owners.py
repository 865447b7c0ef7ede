"""A rank's share in sampling a store of minibatches where each rank holds a block of rows: its own bulks, with the
help of the rows' owners. It builds no model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...stages.comm.base import Group
from ...stages.feed.draws import dealt_draws, lacking_rounds
from ...stages.kernels import sampling_backend
from ...stages.messages import Phase, RankJob
from ...stages.partition.contiguous import Contiguous
from ...stages.placement.row_blocks import Blocks
from ...storage.dataset import pairs_of
from ...storage.errors import Interrupted
from ...storage.ledger import Ledger
from ...storage.queue.object_store import queue_at
from ...storage.typed.graph_types import GraphTypes
from ..assembly.data_part import DataPart
from ..assembly.parts import Parts, arrays_at
from ..assembly.sample_part import SamplePart
from ..telemetry.control import Control
from ..telemetry.events import Note, StageAdvanced
from ..telemetry.timers import Clock

if TYPE_CHECKING:
    from ..setup.sampling import Sampling

PUT_S = 60.0
"""Longest wait of a put: the store has no bound, so only the disk can delay it."""


@dataclass(frozen=True)
class FillOrder:
    """What the ranks are to draw, and from what."""

    sample: SamplePart
    blocks: Blocks
    epochs: int
    queue: str
    """Folder or URL of the store."""
    store: Mapping[str, Any]
    """Arguments of `ZarrQueue.create`."""
    types: GraphTypes
    """Types of the graph's nodes and edges."""
    of_pairs: bool
    """Seeds are the ends of pairs, which every rank reads."""
    graph: str
    """Place of the large arrays of a part: see `Job.graph`."""
    slow_peer_warning_s: float
    threads: int

    @classmethod
    def from_sampling(cls, sampling: "Sampling", queue: str, store: Mapping[str, object], threads: int) -> "FillOrder":
        """
        Args:
            sampling: a job whose ranks hold blocks.
            queue: folder or URL of the store.
            store: see above.
            threads: of each rank.
        """
        job, blocks, types = sampling.job, sampling.system.partition, sampling.dataset.graph.types
        assert isinstance(blocks, Blocks)
        return cls(
            sampling.sample,
            replace(blocks, partitioner=Contiguous()),  # it has done its work, and may hold owners of all nodes
            job.epochs,
            queue,
            store,
            types,
            of_pairs=sampling.dataset.of_pairs,
            graph=job.graph,
            slow_peer_warning_s=job.cluster.slow_peer_warning_s,
            threads=threads,
        )


@dataclass(frozen=True)
class Filled:
    """Report of a rank that has drawn its share. Its values are plain, since they come from another process."""

    rank: int
    minibatches: int
    sampled_edges: int
    seconds: dict[str, float]


def sample_by_owners(
    order: FillOrder, data: DataPart, parts: Path, *, group: Group, control: Control, clock: Clock
) -> Filled:
    """Sample the bulks that a store lacks, in each round one on each rank. All ranks call this at the same time.

    Args:
        order: what to draw.
        data: the dataset.
        parts: folder of the parts.
        group: the ranks.
        control: called with events, and asked between rounds; a request to stop on any rank ends all.
        clock: counts this rank's seconds.

    Raises:
        Interrupted: it was asked to stop; bulks that are there stay.
    """
    sample = order.sample
    queue = queue_at(order.queue).create(order.queue, **order.store, sweep=False)
    job = RankJob(
        seed=sample.seed,
        batch_size=sample.batch_size,
        bulk_size=sample.bulk_size,
        epochs=order.epochs,
        dtype=torch.float32,
        kernel=sampling_backend(sample.kernel),
        group=group,
        ledger=Ledger(),
        tell=lambda text: control.emit(Note(text)),
        arrays=arrays_at(order.graph, "memory", parts),
    )
    opened = Parts(parts, torch.float32, False, types=order.types, empty=job.arrays.graph)
    part = opened.part(group.rank // order.blocks.replication)
    if order.of_pairs:
        part = replace(part, pairs=pairs_of(data.open()))
    placement = order.blocks.place(part, Phase(0, 0, order.epochs), job)
    owners = sample.policy.meet(placement, job, placement.owners, placement.row)
    plan = sample.policy.plan_of_all(placement, sample)
    rounds = lacking_rounds(plan, queue, group, (0, 0), order.epochs)
    total, lacking = order.epochs * plan.num_bulks, sum(map(len, rounds))
    done, minibatches, edges = total - lacking, 0, 0
    for round_, draw in zip(rounds, dealt_draws(plan, rounds, group)):
        with clock.measure("sample"):
            bulk = sample.policy.sampler.sample_by_owners(owners, draw.request)
        if bulk.minibatches:
            queue.put(bulk, PUT_S)
            minibatches += len(bulk.minibatches)
            edges += sum(m.num_edges for m in bulk.minibatches)
        del bulk
        done += len(round_)
        control.emit(StageAdvanced("sample", done, total))
        if group.any(control.stop()):
            raise Interrupted(
                f"interrupted with {done} of {total} bulks committed; the same command goes on from there"
            )
    queue.close()
    return Filled(group.rank, minibatches, edges, clock.snapshot())
