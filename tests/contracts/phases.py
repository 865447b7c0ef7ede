"""Layer-by-layer training by ranks that are threads: the loop itself, and the files it leaves."""

import copy
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from millrace.pipeline.assembly.update_part import UpdatePart
from millrace.pipeline.config.schema import Train
from millrace.pipeline.config.systems import System
from millrace.pipeline.training.context import TrainContext
from millrace.pipeline.training.loop import train_rank
from millrace.pipeline.training.progress import Progress
from millrace.stages.fetch.phase_store import PHASES
from millrace.stages.memory.quantize import rounded
from millrace.stages.messages import Fetched, RankJob, StepRules, WorkDone
from millrace.stages.messages import Phase as Stretch
from millrace.stages.models.base import ModelConfig
from millrace.stages.models.phased import PhasedModel
from millrace.stages.placement.boundary import BoundaryShare, Edges, WithBoundary
from millrace.stages.reduce.federated import LocalSteps
from millrace.stages.reduce.seed_weighted import AllSeedsMean
from millrace.storage.partition.phase_rows import KIND
from millrace.storage.store.store import open_store
from millrace.tests.contracts.full_batch import C, Case, job
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads

MEMORY = Path("/dev/shm")
"""Folder in memory, on systems that have it, where files do not wait for a disk."""
RUN_SEED = 7
_TORCH = threading.Lock()


class _OneAtATime:
    """Takes a lock around steps: threads share torch's generator, which processes do not."""

    def contribute(self, module: nn.Module, fetched: Fetched, rules: StepRules) -> WorkDone:
        if any(isinstance(m, nn.BatchNorm1d) for m in module.modules()):  # these wait for each other
            return super().contribute(module, fetched, rules)  # type: ignore[misc]
        with _TORCH:
            return super().contribute(module, fetched, rules)  # type: ignore[misc]


class _Mean(_OneAtATime, AllSeedsMean):
    pass


class _Local(_OneAtATime, LocalSteps):
    pass


@dataclass(frozen=True)
class _Kept(WithBoundary):
    """Records what it has placed."""

    shares: list[BoundaryShare] = field(default_factory=list)

    def place(self, data: Any, phase: Stretch, job: RankJob, before: Any = None) -> BoundaryShare:
        self.shares.append(super().place(data, phase, job, before))
        return self.shares[-1]


@dataclass(frozen=True, eq=False)
class Trained:
    """One rank of a finished run."""

    progress: Progress
    model: PhasedModel
    """The model with the best parameters."""
    share: BoundaryShare
    ledger: dict[str, dict[str, int]]
    folder: Path
    rank: int

    def edges(self, graph: str = "whole") -> Edges:
        return self.share.boundary.graphs[graph]

    def rows(self, phase: int, graph: str = "whole") -> Tensor:
        """Rows read by a phase that passes messages, [N + B, D]."""
        store = open_store(self.folder / PHASES / f"phase-{phase}" / f"rank-{self.rank:04d}", KIND)
        if phase == 0:
            return torch.cat(
                [rounded(self.share.x, self.model.phases.rounding), torch.from_numpy(store.read("remote"))]
            )
        return torch.cat([torch.from_numpy(store.read(graph)), torch.from_numpy(store.read(f"{graph}-remote"))])

    def logits(self, graph: str = "whole") -> Tensor:
        """Logits of the last phase from the rows it has read, [N, C]."""
        last = self.model.phase(len(self.model) - 1).eval()
        neighbourhood, src = self.edges(graph).around(np.arange(len(self.share.graph.names)))
        with torch.no_grad():
            return last.logits(last.frozen_inputs(neighbourhood, self.rows(last.number, graph)[torch.from_numpy(src)]))


def initial(config: ModelConfig, system: System, num_features: int, seed: int = 5) -> PhasedModel:
    """A model all of whose parameters matter, including those that begin as zeros or ones."""
    torch.manual_seed(seed)
    model = system.schedule.build(config, num_features, C).double()
    assert isinstance(model, PhasedModel)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model


def system_for_threads(system: System) -> System:
    """The same system for ranks that are threads."""
    own, reduce = system.partition, system.reduce
    assert isinstance(own, WithBoundary)
    kept = _Kept(own.partitioner, own.prune, own.inductive)
    return replace(system, partition=kept, reduce=_Local(reduce.steps) if isinstance(reduce, LocalSteps) else _Mean())


def train_ranks(
    case: Case,
    system: System,
    model: PhasedModel,
    epochs: int,
    train: Train,
    look: Callable[[Trained], Any] = lambda t: t,
    folder: Path | None = None,
    change: Callable[[RankJob], RankJob] = lambda job: job,
) -> list[Any]:
    """Results of ``look(trained)`` on each rank, while the run's folder still exists.

    Args:
        case: a part for each rank.
        system: RETEXO, in any variant.
        model: the initial parameters; it is not changed.
        epochs: epochs of each phase.
        train: training options.
        look: function of a rank of the finished run.
        folder: the run's folder; by default one that is removed afterwards.
        change: changes each rank's job.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as made:
            return train_ranks(case, system, model, epochs, train, look, Path(made), change)
    task = "multilabel" if case.labels.ndim == 2 else "multiclass"

    def rank(group: ThreadGroup) -> Any:
        torch.set_num_threads(1)  # of this thread: there is little to compute, and there are many of them
        mine, own = copy.deepcopy(model), system_for_threads(system)
        of = change(
            replace(job(group, mine.num_layers), seed=RUN_SEED, epochs=epochs, folder=folder, ledger=group.ledger)
        )
        trainer = TrainContext(
            own,
            of,
            case.part(group.rank),
            mine,
            UpdatePart(task, train),
            validate=(lambda _: 0.0) if len(case.split.val) else None,
        )
        progress = train_rank(trainer)
        if progress.best_state:
            mine.load_state_dict(progress.best_state)
        assert isinstance(own.partition, _Kept)
        return look(
            Trained(progress, mine.eval(), own.partition.shares[0], group.ledger.as_record(), folder, group.rank)
        )

    return run_threads(rank, case.parts)
