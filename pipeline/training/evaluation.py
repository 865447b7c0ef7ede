"""Evaluation of a model by the ranks of a run: validation after epochs, and the test split in the end."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ...stages.comm.base import Group
from ...stages.evaluate.layerwise import evaluating
from ...stages.evaluate.limits import Limits, Progress
from ...stages.evaluate.link_metrics import known_of
from ...stages.evaluate.measures import Scored
from ...stages.evaluate.scored import scored, split_rows, temporal_scored
from ...stages.evaluate.temporal import Chunk, Draws
from ...stages.fetch.visit import PREFETCH_BYTES, Visits
from ...stages.learned.beside import WithLearned
from ...stages.messages import Part, RankJob
from ...stages.models.base import Stack
from ...stages.neighbourhood.full_batch import WantedRows, arrange
from ...stages.placement.merged import merged
from ...stages.placement.row_blocks import BlockRows, Grid, numbered
from ...stages.placement.sharded import Share, share
from ...stages.policies import FetchPolicy
from ...storage.errors import Interrupted
from ...storage.features import CountedFeatures
from ...storage.links.pairs import Pairs
from ...storage.store.bytes_left import fits_in_memory
from ..config.systems import System
from ..setup.prepare import Prepared
from ..telemetry.events import Emit, StageAdvanced
from .evaluate_together import KnownOfSet, broadcast_score, evaluate_pairs_together, evaluate_together, fits_device
from .hosts import machine_number, ranks_by_host, threads_of

EVALUATION_EVENT_S = 2.0
"""Interval between progress events of a long evaluation."""
STOP_S = 1.0
"""Interval between questions of a long evaluation, whether to stop."""


class EvaluationStopped(Interrupted):
    """The user asked to stop while a model was evaluated."""


Score = Callable[[nn.Module, str], Scored | None]
"""Metrics of a split, None if it is empty. Collective: all ranks call it at once and get the same metrics."""


def scores(
    prepared: Prepared, system: System, model: nn.Module, job: RankJob, out: Path, progress: Callable[[], Progress]
) -> Score:
    """Choose how ranks evaluate: together, each its own rows, if they hold parts; else the first rank of each machine
    with the threads of all its ranks, or the first rank alone.

    Args:
        prepared: the run.
        system: as this rank trains it; its partition policy places each phase once (`trainer.PlacedOnce`).
        model: the model that will be evaluated.
        job: facts of this rank.
        out: the run's folder, for temporary files.
        progress: hears of an evaluation; see `EvaluationProgress`.
    """
    data = prepared.data
    if isinstance(data, Part):
        trains_on_it = system.partition.evaluates_on_shares
        if prepared.system.replication > 1:
            # Each grid column has all rows, and gets the same result.
            grid = Grid(job.group.size, prepared.system.replication)
            job = replace(job, group=grid.subgroup(job.group, "evaluation"))
        part = cache(lambda: _whole_of(data, system, job))
        held = cache(lambda: _share_of(system, data, model, job) if trains_on_it else _all_of(part(), job))
        return _together(prepared, held, lambda: numbered(part(), job.group, job.arrays.graph), job, model)
    return _by_leaders(prepared, system.fetch, model, job, out, progress)


class EvaluationProgress:
    """Hears of one evaluation: emits events, and ends it by `EvaluationStopped`. See `limits.Progress`."""

    def __init__(self, emit: Emit, stop: Callable[[], bool]) -> None:
        """
        Args:
            emit: called with this rank's events.
            stop: asked about each second whether to end the evaluation.
        """
        self._emit, self._stop = emit, stop
        self._said = self._asked = time.monotonic()

    def __call__(self, done: int, rows: int) -> None:
        now = time.monotonic()
        if now - self._said >= EVALUATION_EVENT_S:
            self._said = now
            self._emit(StageAdvanced("evaluate", done, rows))
        if done == rows or now - self._asked < STOP_S:
            return
        self._asked = now
        if self._stop():
            raise EvaluationStopped(
                "interrupted while evaluating: run the same command with --resume to go on from the last checkpoint"
            )


def _chunks_on_device(prepared: Prepared, policy: FetchPolicy, job: RankJob) -> Chunk:
    """Draws of the device that this rank trains on, for evaluation by time, over the rows that it trains on."""
    # Needs Triton.
    from ...stages.evaluate.temporal_cuda import DeviceChunks

    placed = prepared.placement
    stores = placed.features, placed.edge_features if prepared.model.reads_edges else None
    rows = [None if x is None else policy.device_rows(x, job, locked=True) for x in stores]
    return DeviceChunks(placed.graph, *rows)


@dataclass(frozen=True)
class Leaders:
    """Ranks that evaluate for all."""

    ranks: list[int]
    """Ascending, the first among them."""
    waiting: int
    """Number of ranks on this machine, whose threads are free for the leader."""
    group: Group | None
    """These ranks, if there are several."""


def _leaders(prepared: Prepared, model: nn.Module, group: Group, in_parts: bool) -> Leaders:
    """The first rank of each machine if its memory has room for the rows of two layers, else the first rank."""
    with group.counting("evaluation"):
        hosts = ranks_by_host(group, machine_number())
        own = next(ranks for ranks in hosts if group.rank in ranks)
        leaders = [ranks[0] for ranks in hosts]
        widest = max((p.shape[0] for p in model.parameters() if p.ndim > 1), default=1)
        rows = prepared.placement.graph.num_nodes * 3 * widest * np.dtype(prepared.job.dtype).itemsize
        if len(leaders) == 1 or not in_parts or group.any(not fits_in_memory(rows)):
            return Leaders(leaders[:1], len(hosts[0]), None)
        shared = group.sub("evaluation", leaders, same_thread=True) if group.rank in leaders else None
        return Leaders(leaders, len(own), shared)


def _by_leaders(
    prepared: Prepared, policy: FetchPolicy, model: nn.Module, job: RankJob, out: Path, progress: Callable[[], Progress]
) -> Score:
    """Leaders evaluate the whole data in bounded memory; the others wait for the result. Rows that `policy` keeps on
    the device are read there."""
    dataset, group = prepared.dataset, job.group
    # A user's module may work on blocks only, and ranks exchange rows on the host.
    on_host = all(p.device.type == "cpu" for p in model.parameters())
    in_parts = on_host and isinstance(model, Stack) and model.has_parts and not prepared.reads_times
    leaders = cache(lambda: _leaders(prepared, model, group, in_parts))
    learned = isinstance(prepared.data.features, WithLearned)
    features = prepared.data.features if learned else dataset.features
    graph, of_edges = dataset.graph, dataset.graph.edge_features if prepared.model.reads_edges else None
    if of_edges is not None:
        graph = replace(graph, edge_features=CountedFeatures(of_edges, job.ledger, "evaluation"))
    counted = replace(dataset, graph=graph, features=CountedFeatures(features, job.ledger, "evaluation"))
    known = known_of(dataset.graph, dataset.labels)

    def evaluated(module: nn.Module, split: str, among: Group | None, advance: Progress) -> Scored | None:
        if prepared.reads_times:
            sampler = prepared.system.sample.sampler
            chunk = _chunks_on_device(prepared, policy, job) if job.resident and job.produce else None
            # pyrefly: ignore[bad-argument-type]
            draws = Draws(sampler, job.seed, advance, chunk)
            return temporal_scored(job.measures, module, counted, draws, split, known)
        rows = policy.device_rows(prepared.placement.features, job)
        limits = Limits(scratch=out, on_progress=advance, base=rows, group=among)
        found = split_rows(module, counted, prepared.placement.degree, (split,), limits)
        if group.rank > 0:
            return None
        with evaluating(module):
            return scored(job.measures, module, counted, found, split, known)

    def score(module: nn.Module, split: str) -> Scored | None:
        if not len(getattr(dataset.split, split)):
            return None
        found = None
        if group.rank in (who := leaders()).ranks:
            with threads_of(who.waiting), nullcontext() if who.group is None else who.group.counting("evaluation"):
                found = evaluated(module, split, who.group, progress())
        return broadcast_score(found, job.measures.all_names, group)

    return score


def _together(
    prepared: Prepared, shared: Callable[[], Share], blocks: Callable[[], BlockRows], job: RankJob, model: nn.Module
) -> Score:
    """Each rank evaluates its own rows, on its device if the model is there and all ranks have room; of pairs, the
    first one scores all. Learnt features of its part change."""
    features = prepared.data.features

    @cache
    def visits() -> Visits:
        held, device = shared(), job.device
        if device is not None:
            there = all(p.device.type == device.type for p in model.parameters())
            with job.group.counting("evaluation"):
                if job.group.any(not (there and fits_device(held, model, device))):
                    device = None
        return Visits(held, (), PREFETCH_BYTES, job.group, device)

    @cache
    def block() -> BlockRows:
        with job.group.counting("evaluation"):
            return blocks()

    def pairs() -> Pairs:
        found = block().pairs
        assert found is not None
        return found

    @cache
    def known(split: str) -> KnownOfSet:
        with job.group.counting("evaluation"):
            return KnownOfSet.of_blocks(block(), split, job.group)

    def score(module: nn.Module, split: str) -> Scored | None:
        if not prepared.outline.splits[split]:
            return None
        if isinstance(features, WithLearned):
            assert features.rows is not None
            visits().share.renew(features.learned_columns, features.rows.gather(np.arange(features.num_rows)))
        if prepared.outline.of_pairs:
            left_out = known(split) if prepared.outline.task == "link" else None
            return evaluate_pairs_together(module, visits(), pairs(), left_out, split, job.measures)
        return evaluate_together(module, visits(), split, job.measures)

    return score


def _share_of(system: System, part: Part, model: nn.Module, job: RankJob) -> Share:
    """The share that this rank trains on."""
    placed = system.partition.place(part, system.schedule.phases(job.epochs, model)[0], job)
    assert isinstance(placed, Share)
    return placed


def _whole_of(part: Part, system: System, job: RankJob) -> Part:
    """The rank's own part, or all parts made for it as one. All ranks call this at the same time."""
    with job.group.counting("evaluation"):
        first, last = (system.parts_before(r) for r in (job.group.rank, job.group.rank + 1))
        if last - first > 1:
            parts = [part, *(part.others.part(p) for p in range(first + 1, last))]
            sizes = torch.zeros(system.parts_before(job.group.size), dtype=torch.float64)
            sizes[first:last] = torch.tensor([len(p.owned) for p in parts])
            job.group.all_reduce(sizes, "control")
            part = merged(parts, sizes.numpy().astype(np.int64))
    return part


def _all_of(part: Part, job: RankJob) -> Share:
    """The rows of a rank, where it trains on something else."""
    with job.group.counting("evaluation"):
        of = WantedRows(part.split.train, job.num_layers)
        batch = arrange(part.shards, part.owned, of, job.group, job.reads_loops, job.arrays.graph)
        return share(part, batch, job.arrays.features)
