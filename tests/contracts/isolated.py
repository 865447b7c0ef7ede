"""Chunks that are cut in memory, and the ranks of an isolated run as threads, or as processes without a cluster."""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from millrace.pipeline.assembly.update_part import UpdatePart
from millrace.pipeline.config.load import resolve
from millrace.pipeline.config.schema import Train
from millrace.pipeline.config.systems import System
from millrace.pipeline.setup.device_policies import on_device
from millrace.pipeline.setup.model import Outline
from millrace.pipeline.setup.open_queue import QueueEnd
from millrace.pipeline.setup.prepare import CutData, prepare, prepare_part
from millrace.pipeline.telemetry.control import Control
from millrace.pipeline.telemetry.timers import Clock
from millrace.pipeline.training.context import Member, TrainContext
from millrace.pipeline.training.loop import train_rank
from millrace.pipeline.training.progress import Progress
from millrace.pipeline.training.trainer import train_and_evaluate
from millrace.stages.kernels import sampling_backend
from millrace.stages.messages import Part, Phase, RankJob
from millrace.stages.partition.stage import partition_dataset
from millrace.stages.placement.chunks import Chunks, Isolated
from millrace.stages.self_loops import with_loops
from millrace.storage.dataset import Dataset
from millrace.storage.errors import Interrupted
from millrace.storage.features import ArrayFeatures
from millrace.tests.contracts.full_batch import Case, job
from millrace.tests.contracts.pretended_device import DEVICE
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.contracts.thread_ranks import ThreadGroup, run_threads
from millrace.tests.oracles.sampling import backend as reference

EPOCHS = 100
"""Epochs of a run whose phases take one epoch each."""


@dataclass(frozen=True)
class Seat:
    """The part of a `Group` that policies for chunks use."""

    rank: int
    size: int


def weighted_degree(case: Case) -> npt.NDArray[np.float64]:
    """[V], sum of the weights of each node's in-edges."""
    graph = case.graph
    weight = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight.astype(np.float64)
    return np.array([weight[a:b].sum() for a, b in zip(graph.indptr, graph.indptr[1:])])


@dataclass(frozen=True)
class CasePeers:
    """See `Peers`. Remembers which parts were opened."""

    case: Case
    opened: list[int] = field(default_factory=list)
    damaged: int | None = None
    """Number of a part that cannot be opened."""

    def part(self, number: int) -> Part:
        self.opened.append(number)
        if number == self.damaged:
            raise OSError(f"part {number} is damaged")
        return self.own(number)

    def own(self, number: int) -> Part:
        """The part that a rank opens first."""
        return replace(self.case.part(number), peers=self)

    def rows(self, number: int, loops: bool) -> tuple[ArrayFeatures, npt.NDArray[np.float64]]:
        owned = self.case.book.owned(number)
        degree = with_loops(self.case.graph) if loops else weighted_degree(self.case)
        return ArrayFeatures(self.case.x[owned]), degree[owned]


def placed(
    case: Case, policy: Chunks, rank: int, super_epoch: int = 0, before: Isolated | None = None, peers: Any = None
) -> Isolated:
    """The placement of a rank of the case."""
    peers = peers or CasePeers(case)
    of = replace(job(Seat(rank, case.parts // policy.per_rank), 1), epochs=EPOCHS)
    return policy.place(peers.own(rank * policy.per_rank), Phase(super_epoch, super_epoch, super_epoch + 1), of, before)


def names(case: Case, place: Isolated) -> list[int]:
    """The node of the case that each row is, recognised by its features."""
    known = {row.tobytes(): v for v, row in enumerate(case.x)}
    assert len(known) == len(case.x)
    return [known[row.tobytes()] for row in place.features.gather(np.arange(place.graph.num_nodes))]


def train_threads(
    case: Case,
    system: System,
    model: nn.Module,
    epochs: int,
    train: Train,
    *,
    seed: int = 7,
    bulk_size: int = 2,
    device: Mapping[str, Any] | None = None,
) -> list[tuple[Progress, nn.Module, ThreadGroup]]:
    """Model of each rank of the case after training. `model` is not changed; it must not use torch's generator, which
    threads share. `device` has the configuration of a run on the device, without a system."""
    there = None if device is None else resolve({"system": "grappa", "device": "cuda", **device})

    def rank(group: ThreadGroup) -> Any:
        torch.set_num_threads(1)
        mine: Any = copy.deepcopy(model)
        chosen = system
        of = job(group, mine.num_layers)
        of = replace(
            of,
            seed=seed,
            epochs=epochs,
            batch_size=train.batch_size,
            bulk_size=bulk_size,
            kernel=reference,
            ledger=group.ledger,
        )
        if there is not None:
            mine = mine.to(DEVICE)
            of = replace(of, device=DEVICE, kernel=sampling_backend(there.kernel))
            chosen, of = on_device(system, of, there)
        task = "multilabel" if case.labels.ndim == 2 else "multiclass"
        part = CasePeers(case).own(system.parts_before(group.rank))
        trainer = TrainContext(chosen, of, part, mine, UpdatePart(task, train, check=True))
        return train_rank(trainer), mine, group

    return run_threads(rank, case.parts // system.parts_before(1))


def train_processes(
    dataset: Dataset, out: Path, table: Mapping[str, Any], stop_after: int | None = None
) -> list[dict[str, Any]] | None:
    """Train as ``millrace run`` would, from the last checkpoint in `out` if there is one.

    Args:
        dataset: the training data.
        out: the folder of the run.
        table: the configuration.
        stop_after: number of steps after which ranks are asked to stop.

    Returns:
        The report of each rank; None if they were asked to stop.
    """
    table = {"system": "grappa", "threads": 1, **table}
    job = resolve(table)
    out.mkdir(parents=True, exist_ok=True)
    prepared = prepare(job, dataset)
    cut = prepared.system.partition.partitioner
    assert cut is not None
    partition_dataset(dataset, cut, prepared.system.parts_before(job.ranks), out / "parts", job.seed)
    reports = run_ranks(
        _rank, job.ranks, table, Outline.from_dataset(dataset), out, prepared.fingerprint, stop_after, timeout_s=240
    )
    assert all((r is None) == (stop_after is not None) for r in reports), "stopped, or not"
    return None if stop_after is not None else reports


def _rank(
    group: Any, table: dict[str, Any], outline: Outline, out: Path, fingerprint: dict[str, str], stop_after: int | None
) -> Any:
    prepared = prepare_part(resolve(table), CutData(outline, out / "parts", group.rank, fingerprint))
    asked = iter(range(1, 1 << 30))
    try:
        report = train_and_evaluate(
            prepared, out, QueueEnd(produce=False), Member(group, group._ledger, Clock()),
            Control(stop=lambda: next(asked) == stop_after),
        )  # fmt: skip
    except Interrupted:
        return None
    return asdict(report)


def as_job(group: ThreadGroup, **changes: Any) -> RankJob:
    """A rank's job with these values."""
    return replace(job(group, 1), ledger=group.ledger, **changes)
