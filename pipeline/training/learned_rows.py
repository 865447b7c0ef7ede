"""Learnt features of one rank: its table, the policies that use it, and evaluation with the rows of all ranks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from ...stages.evaluate.measures import Scored
from ...stages.learned.beside import WithLearned
from ...stages.learned.fetch import LearnedFetch
from ...stages.learned.table import LearnedTable
from ...stages.messages import RankJob
from ...storage.features import ArrayFeatures, MappedFeatures
from ..config.systems import System
from ..setup.model import TORCH_DTYPES
from ..setup.prepare import Prepared
from ..setup.run_folder import LEARNED
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
    table = LearnedTable(
        features.num_rows,
        features.width,
        TORCH_DTYPES[job.dtype],
        job.seed_of("initial"),
        rank_job.group,
        job.learned.optimizer,
        job.learned.lr or job.train.lr,
    )
    rows = ArrayFeatures(table.rows.detach().numpy()) if rank_job.group.size == 1 else None
    data = replace(prepared.data, features=features.with_rows(rows))
    prepared = replace(prepared, place_data=lambda: data)
    return prepared, replace(system, fetch=LearnedFetch(system.fetch)), replace(rank_job, learned=table)


def with_all_rows(score: Score, prepared: Prepared, rank_job: RankJob, out: Path) -> Score:
    """`score`, on the present rows of all ranks: those that evaluate read them from a file in the run's folder."""
    table, features = rank_job.learned, prepared.data.features
    if table is None or rank_job.group.size == 1:
        return score

    def scored(module: nn.Module, split: str) -> Scored | None:
        assert isinstance(features, WithLearned)
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
