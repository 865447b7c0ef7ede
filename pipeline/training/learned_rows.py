"""Learnt features of one rank: its table, the policies that use it, and evaluation with the rows of all ranks."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...stages.comm.base import Group
from ...stages.evaluate.measures import Scored
from ...stages.kernels.runtime.device_memory import goes_to_device
from ...stages.learned.beside import WithLearned
from ...stages.learned.optimizers import OPTIMIZERS
from ...stages.learned.table import LearnedTable
from ...stages.messages import Part, Placement, RankJob
from ...storage.array_kinds import IdArray
from ...storage.features import ArrayFeatures, MappedFeatures
from ...storage.store.full_disk import whole_file
from ..config.systems import System
from ..setup.model import TORCH_DTYPES
from ..setup.prepare import Prepared
from ..setup.run_folder import LEARNED
from ..setup.warm_start import initial_learned, learned_in_order
from .evaluation import Score


def with_learned(prepared: Prepared, system: System, rank_job: RankJob) -> tuple[Prepared, System, RankJob]:
    """The run of a rank with a table of learnt features, if the job has any, and a fetch policy that reads it.

    Args:
        prepared: the run; its features know their width alone.
        system: as this rank trains it.
        rank_job: the rank's job.
    """
    job, features = prepared.job, prepared.data.features
    if not isinstance(features, WithLearned):
        return prepared, system, rank_job
    group, nodes = rank_job.group, _nodes_of(prepared.data, prepared.system.replication, rank_job)
    table = LearnedTable(
        nodes.total,
        features.width,
        TORCH_DTYPES[job.dtype],
        job.seed_of("initial"),
        group,
        job.learned.optimizer,
        lr=job.learned.lr or job.train.lr,
        bounds=nodes.bounds,
        names=nodes.names,
        own_only=system.fetch.takes_own_learned,
        start=learned_in_order(job) if prepared.whole is None else initial_learned(job, prepared.whole),
        device=_place_of(prepared, nodes, rank_job),
        weight_decay=job.learned.weight_decay,
    )
    # On the host the same memory, whose numbers change as rows are trained.
    rows = ArrayFeatures(table.rows.cpu().numpy()) if _owns_what_it_evaluates(prepared, group) else None
    features = replace(features, rows=rows)
    data = replace(prepared.data, features=features)
    prepared = replace(prepared, place_data=lambda: data)
    fetch: Any = system.fetch
    return prepared, replace(system, fetch=replace(fetch, learned=features)), replace(rank_job, learned=table)


@dataclass(frozen=True)
class _Nodes:
    """Nodes with learnt rows, and their owners."""

    total: int
    bounds: list[int] | None = None
    """See `LearnedTable`."""
    names: IdArray | None = None
    """See `LearnedTable`."""


def _nodes_of(data: Placement | Part, replication: int, rank_job: RankJob) -> _Nodes:
    """All nodes, in equal shares; or, where ranks have opened parts, those of a part on the ranks that hold it, by
    numbers that go through the parts one after the other. All ranks call this at the same time."""
    if not isinstance(data, Part):
        return _Nodes(data.features.num_rows)
    group, c = rank_job.group, replication
    sizes = torch.zeros(group.size, dtype=torch.int64)
    sizes[group.rank] = len(data.owned)
    group.all_reduce(sizes, "control")
    offsets = [0, *sizes[::c].cumsum(0).tolist()]
    bounds = [a + j * (b - a) // c for a, b in pairwise(offsets) for j in range(c)] + offsets[-1:]
    first, last = (bounds[r] - offsets[group.rank // c] for r in (group.rank, group.rank + 1))
    own = data.owned[first:last]
    renumbered = group.any(not np.array_equal(own, np.arange(*bounds[group.rank : group.rank + 2])))
    return _Nodes(offsets[-1], bounds, own if renumbered else None)


def _place_of(prepared: Prepared, nodes: _Nodes, rank_job: RankJob) -> torch.device | None:
    """The device of the rank if its rows, their optimiser's state and the best epoch's rows fit there on all ranks, or
    ``gpu.features`` says so; None: the host. All ranks call this at the same time."""
    job, device, group = prepared.job, rank_job.device, rank_job.group
    if device is None:
        return None
    bounds = nodes.bounds or [0, -(-nodes.total // group.size)]
    most = max(b - a for a, b in pairwise(bounds))
    row = job.learned.width * TORCH_DTYPES[job.dtype].itemsize
    size = most * row * (2 + len(OPTIMIZERS[job.learned.optimizer].moments))
    return None if group.any(not goes_to_device(size, device, job.gpu.features)) else device


def _owns_what_it_evaluates(prepared: Prepared, group: Group) -> bool:
    """True if a rank has the learnt rows of all nodes that it evaluates, its own part's or the dataset's."""
    return group.size == 1 or (isinstance(prepared.data, Part) and prepared.system.replication == 1)


def with_all_rows(score: Score, prepared: Prepared, rank_job: RankJob, out: Path) -> Score:
    """`score`, on the present rows of all ranks. Those that evaluate the whole data read them from a file in the run's
    folder; those that evaluate a part get its rows from the ranks that own them."""
    table, features = rank_job.learned, prepared.data.features
    if not isinstance(features, WithLearned):
        return score
    group, data, owns = rank_job.group, prepared.data, _owns_what_it_evaluates(prepared, rank_job.group)
    if owns and table.rows.device.type == "cpu":
        return score

    def scored(module: nn.Module, split: str) -> Scored | None:
        if owns:
            features.rows = ArrayFeatures(table.rows.cpu().numpy())
        elif isinstance(data, Part):
            first = table.bounds[group.rank - group.rank % prepared.system.replication]
            with group.counting("evaluation"):
                rows = table.read(torch.arange(first, first + len(data.owned), device=table.rows.device))
            features.rows = ArrayFeatures(rows.cpu().numpy())
        else:
            table.write(out / LEARNED)
            features.rows = MappedFeatures(out / LEARNED)
        return score(module, split)

    return scored


def save_rows(path: Path, rows: Tensor) -> None:
    """Write learnt rows, whole or not at all, as `LearnedTable.write` does."""
    with whole_file(path) as aside, aside.open("wb") as file:
        np.save(file, rows.numpy(), allow_pickle=False)
