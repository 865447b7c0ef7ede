"""Minibatches with rows and labels for a training loop of one's own, in one process or in each of several."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..stages.comm.solo import Solo
from ..stages.kernels import sampling_backend
from ..stages.messages import Phase, Placement, RankJob
from ..stages.models import MODELS
from ..stages.models.base import reads_edges
from ..stages.neighbourhood.base import Neighbourhood
from ..stages.policies import Fetcher
from ..storage.dataset import Dataset
from ..storage.errors import InputError
from ..storage.ledger import Ledger
from ..storage.minibatch import MiniBatch
from .config.load import Job
from .config.records import build, make_system
from .config.systems import System
from .setup.checks import check_available
from .setup.configure import configure
from .setup.model import TORCH_DTYPES, Outline, with_edges
from .setup.open_data import open_data, opened_from_python
from .setup.open_queue import check_samples, is_being_written, open_samples, own_queue
from .setup.prepare import placement_of
from .setup.sampling import Sampling, sampling_of
from .telemetry.events import Emit, silent


@dataclass(frozen=True, eq=False)
class Batch:
    """A minibatch, as a model reads it: ``model(batch.neighbourhoods, batch.h)`` gives rows for `y`."""

    epoch: int
    index: int
    """Position in the epoch, over all ranks."""
    step: int
    """Optimiser step of the epoch that it belongs to."""
    neighbourhoods: tuple[Neighbourhood, ...]
    """L, outermost first."""
    h: Tensor
    """[n, F], features of the nodes that the first layer reads. Rows in memory are gathered when they are used."""
    y: Tensor
    """Labels of the seeds, int64 [B] or floating [B, C]."""
    seeds: npt.NDArray[np.integer]
    """[B], nodes; the first rows of what a model gives."""
    nodes: npt.NDArray[np.integer]
    """[n], nodes of the rows of `h`."""
    minibatch: MiniBatch
    """The structure, as `millrace.to_pyg` and `to_dgl_blocks` take it."""
    pairs: Tensor | None = None
    """int64 [b, 1 + k, 2] in a link task: positive pairs, each with its k negatives, as rows of what a model gives. `y`
    is [b] zeros. [b, 2] of labelled edges, whose labels are `y`."""
    pair_features: Tensor | None = None
    """[b, K], features of the labelled edges; None: they have none."""
    pair_relations: Tensor | None = None
    """int64 [b], of each positive pair the place of its relation among those that are predicted (see
    `GraphTypes.predicted`); None: pairs are of one."""
    left_out: Tensor | None = None
    """bool [b, k], negatives that are to count nothing (`link.exclude_known`); None: all count."""


class _Seat(Solo):
    """A place among ranks that talk by other means."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.present = range(size)


class Minibatches:
    """Iterable of `Batch`: this rank's minibatches of all epochs, in order. Each iteration begins anew."""

    def __init__(
        self,
        sampling: Sampling,
        outline: Outline,
        placement: Placement,
        samples: str | Path | None,
        rank: int,
        ranks: int,
    ) -> None:
        """
        Args:
            sampling: the job, for one rank.
            outline: of its data.
            placement: of its data.
            samples: a store of sampled minibatches; None: sample here.
            rank: this rank.
            ranks: P.
        """
        self._sampling, self._placement, self._samples = sampling, placement, samples
        self.rank, self.ranks = rank, ranks
        job = sampling.job
        self.dataset: Dataset = sampling.dataset
        """The dataset."""
        self.num_features: int = outline.num_features
        """F."""
        self.num_classes: int = outline.num_classes
        """C."""
        layers = sampling.system.sample.num_layers
        assert layers is not None, "it has minibatches"
        self.num_layers: int = layers
        """L, layers that a model has."""
        self.epochs: int = job.epochs
        """Number of epochs."""
        self._job = RankJob(
            seed=job.seed_of("minibatches"),
            batch_size=job.train.batch_size,
            bulk_size=job.queue.bulk_size,
            epochs=job.epochs,
            dtype=TORCH_DTYPES[job.dtype],
            kernel=sampling_backend(job.kernel),
            group=_Seat(rank, ranks),
            ledger=Ledger(),
            produce=samples is None,
            minibatches_per_step=job.train.per_step(ranks),
            producer_alive=lambda: samples is None or is_being_written(samples),
        )
        total = sampling.system.sample.num_minibatches(placement, self._job)
        self._steps = self._job.steps(total)

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of an epoch; the same on all ranks."""
        return len(self._steps)

    def __len__(self) -> int:
        """This rank's minibatches, over all epochs."""
        steps = self._steps
        return self.epochs * sum(steps.is_mine(index) for index in range(steps.minibatches))

    def __iter__(self) -> Iterator[Batch]:
        return self._between(0, self.epochs)

    def epoch(self, number: int) -> Iterator[Batch]:
        """This rank's minibatches of one epoch, from 0.

        Raises:
            InputError: there is no such epoch.
        """
        if not 0 <= number < self.epochs:
            raise InputError(f"epoch is {number}; expected one from 0 to {self.epochs - 1}, or more epochs")
        return self._between(number, number + 1)

    def _between(self, first: int, last: int) -> Iterator[Batch]:
        sampling, placement, steps = self._sampling, self._placement, self._steps
        if self._samples is not None:
            queue = open_samples(sampling, self._samples)
        else:
            ranks_job = sampling.job.model_copy(update={"ranks": self.ranks})
            queue = own_queue(replace(sampling, job=ranks_job), Path())
        job = replace(self._job, queue=queue, packed=queue.packed, bulk_size=queue.bulk_size)
        fetch: Any = sampling.system.fetch
        fetcher: Fetcher = fetch.fetcher(placement, job)
        feed = sampling.system.sample.feed(placement, Phase(0, first, last), job, (first, 0))
        try:
            for epoch in range(first, last):
                for step in range(len(steps)):
                    for index in steps.rounds(step):
                        if index is None:
                            continue
                        work = feed.get(epoch, index)
                        got = fetcher.fetch(work)
                        links, inputs = got.links, (got.neighbourhoods, got.h, got.y)
                        of_pairs: tuple[Any, ...] = ()
                        if links is not None:
                            pairs = links.pairs[:, 0] if links.labelled else links.pairs
                            of_pairs = pairs, links.features, links.relation, links.left_out
                        yield Batch(epoch, index, step, *inputs, work.seeds, work.nodes, work, *of_pairs)
                    feed.release(epoch, steps.minibatches_of(step).stop - 1)
        finally:
            feed.close()
            queue.close()


def minibatches(
    dataset: Dataset | str | Path | object | None = None,
    *,
    system: System | str | None = None,
    samples: str | Path | None = None,
    rank: int | None = None,
    ranks: int | None = None,
    emit: Emit = silent,
    config: Job | Mapping[str, Any] | None = None,
    **options: Any,
) -> Minibatches:
    """The minibatches that `run` would train on, with rows and labels, for your own training loop.

    A thread samples beside the loop. With several processes, each gets the minibatches that its rank would have in a
    run; the processes exchange nothing.

    Args:
        dataset: as for `run`; or a resolved `Job`.
        system: with minibatches of the whole graph, by default ``bulk``.
        samples: a store of sampled minibatches that `millrace sample` has filled, or is filling.
        rank: this process; by default that of torch.distributed, or of the variables ``RANK`` and ``WORLD_SIZE`` that
            torchrun sets, else the only one.
        ranks: P.
        emit: called with every event.
        config: as for `run`.
        options: as for `run`: fanout, batch_size, epochs, seed, ... Options of models and optimisers have no effect.

    Raises:
        InputError: arguments do not go together.
    """
    rank, ranks = _rank_and_ranks(rank, ranks)
    if isinstance(dataset, Job):
        config, dataset = dataset, None
    job = config if isinstance(config, Job) else configure(config or {}, system=system, **options)
    if isinstance(config, Job) and options:
        raise InputError(f"options {sorted(options)} were given beside a resolved configuration; pass one or the other")
    if job.ranks != 1:
        raise InputError(f"ranks is {job.ranks} in the configuration; expected the processes to say so: ranks=, rank=")
    given = opened_from_python(job, dataset, emit)
    data = given if isinstance(given, Dataset) else open_data(job, given, emit)
    check_available(job)
    own = make_system(job) if isinstance(system, str) or system is None else system
    edges = data.graph.types.is_single and reads_edges(build("model", MODELS, job.model))
    if edges:
        job, own, _ = with_edges(job, own, None, data)
    sampling = sampling_of(job, data, own, stored=samples is not None)
    check_samples(sampling, samples)
    _check(sampling)
    placement = placement_of(sampling.job, data, edges, loops=True)
    return Minibatches(sampling, Outline.from_dataset(data, job), placement, samples, rank, ranks)


def _check(sampling: Sampling) -> None:
    job, system = sampling.job, sampling.system
    if not (system.sample.uses_queue and system.fetch.gathers_alone):
        raise InputError(
            f"system '{system.name}' as configured has no minibatches of rows that one process can gather alone; leave "
            "system, features and topology out"
        )
    if job.learned.width:
        raise InputError("learned.width is set, but only a run trains learnt features; leave it out")
    if job.device != "cpu":
        raise InputError(
            f"device is '{job.device}', but minibatches come in the host's memory; leave it out, or use "
            "mr.NeighborLoader"
        )
    if job.queue.kind != "memory":
        raise InputError(f"queue.kind is '{job.queue.kind}'; expected \"memory\": give a store of samples as samples=")
    if not sampling.num_train:
        raise InputError("the train split is empty: there is nothing to train on; choose another split")


def _rank_and_ranks(rank: int | None, ranks: int | None) -> tuple[int, int]:
    if (rank is None) != (ranks is None):
        raise InputError("rank and ranks go together; give both, or neither under torchrun")
    if rank is None or ranks is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        elif "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        else:
            rank, ranks = 0, 1
    if type(rank) is not int or type(ranks) is not int or not 0 <= rank < ranks:
        raise InputError(f"rank is {rank!r} of ranks {ranks!r}; expected whole numbers, 0 <= rank < ranks")
    return rank, ranks
