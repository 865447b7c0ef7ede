"""Learnt features of one rank: its table, the policies that use it, and evaluation with the rows of all ranks."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...stages.evaluate.measures import Scored
from ...stages.learned.beside import WithLearned
from ...stages.learned.fetch import LearnedFetch
from ...stages.learned.table import LearnedTable
from ...stages.messages import Part, RankJob
from ...stages.placement.row_blocks import BlockRows
from ...storage.features import ArrayFeatures, MappedFeatures
from ..config.systems import System
from ..setup.model import TORCH_DTYPES
from ..setup.prepare import Prepared
from ..setup.run_folder import LEARNED
from .evaluation import Score


def with_learned(
    prepared: Prepared, system: System, rank_job: RankJob, model: nn.Module
) -> tuple[Prepared, System, RankJob]:
    """The run of a rank with a table of learnt features, if the job has any, and a fetch policy that reads it.

    Args:
        prepared: the run; its features know their width alone.
        system: as this rank trains it.
        rank_job: the rank's job.
        model: that it trains.
    """
    job, features = prepared.job, prepared.data.features
    if not isinstance(features, WithLearned):
        return prepared, system, rank_job
    nodes = _nodes_of(prepared, system, rank_job, model)
    table = LearnedTable(
        nodes.total,
        features.width,
        TORCH_DTYPES[job.dtype],
        job.seed_of("initial"),
        rank_job.group,
        job.learned.optimizer,
        job.learned.lr or job.train.lr,
        nodes.bounds,
        nodes.names,
    )
    rows = ArrayFeatures(table.rows.detach().numpy()) if rank_job.group.size == 1 else None
    data = replace(prepared.data, features=features.with_rows(rows))
    prepared = replace(prepared, place_data=lambda: data)
    return prepared, replace(system, fetch=LearnedFetch(system.fetch)), replace(rank_job, learned=table)


@dataclass(frozen=True)
class _Nodes:
    """Nodes with learnt rows, and their owners."""

    total: int
    bounds: list[int] | None = None
    """See `LearnedTable`."""
    names: npt.NDArray[np.int64] | None = None
    """See `LearnedTable`."""


def _nodes_of(prepared: Prepared, system: System, rank_job: RankJob, model: nn.Module) -> _Nodes:
    """All nodes, in equal shares; or, where ranks have opened blocks of rows, those of a block on the ranks that hold
    it, with the numbers that minibatches have. All ranks call this at the same time."""
    data, group = prepared.data, rank_job.group
    if not isinstance(data, Part):
        return _Nodes(data.features.num_rows)
    placed = system.partition.place(data, system.schedule.phases(prepared.job.epochs, model)[0], rank_job)
    assert isinstance(placed, BlockRows)
    offsets, c = placed.book.offsets.tolist(), prepared.system.replication
    bounds = [a + j * (b - a) // c for a, b in pairwise(offsets) for j in range(c)] + offsets[-1:]
    own = data.owned[bounds[group.rank] - placed.first : bounds[group.rank + 1] - placed.first]
    renumbered = group.any(not np.array_equal(own, np.arange(*bounds[group.rank : group.rank + 2])))
    return _Nodes(placed.num_nodes, bounds, own if renumbered else None)


def with_all_rows(score: Score, prepared: Prepared, rank_job: RankJob, out: Path) -> Score:
    """`score`, on the present rows of all ranks. Those that evaluate the whole data read them from a file in the run's
    folder; those that evaluate a block of rows get its rows from the ranks that own them."""
    table, features = rank_job.learned, prepared.data.features
    if table is None or rank_job.group.size == 1:
        return score

    def scored(module: nn.Module, split: str) -> Scored | None:
        assert isinstance(features, WithLearned)
        if isinstance(prepared.data, Part):
            first = table.bounds[rank_job.group.rank - rank_job.group.rank % prepared.system.replication]
            ids = torch.arange(first, first + len(prepared.data.owned))
            with rank_job.group.counting("evaluation"):
                features.rows = ArrayFeatures(table.read(ids).numpy())
        else:
            table.write(out / LEARNED)
            features.rows = MappedFeatures(out / LEARNED)
        return score(module, split)

    return scored


def save_rows(path: Path, rows: Tensor) -> None:
    """Write learnt rows, whole or not at all, as `LearnedTable.write` does."""
    aside = path.with_name(f".writing-{path.name}")
    with aside.open("wb") as file:
        np.save(file, rows.numpy(), allow_pickle=False)
    aside.replace(path)
