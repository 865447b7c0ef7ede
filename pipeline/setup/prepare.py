"""Preparation of a run: open the data, check that the parts of a job fit together, and compute the run's
fingerprint."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...stages.learned.beside import WithLearned
from ...stages.messages import Part, Placement
from ...stages.models.base import reads_loops
from ...stages.self_loops import degree_of
from ...storage.dataset import MATRIX_TASKS, Dataset, pairs_of
from ...storage.errors import InputError, RunError
from ...storage.features import ConvertedFeatures, FeatureStore, MappedFeatures, ReorderedFeatures
from ...storage.lazy_dataset import LazyDataset
from ...storage.optional import when_present
from ...storage.queue.seed_data import SampledDataset
from ..assembly.parts import Parts, arrays_at
from ..assembly.update_part import UpdatePart
from ..config.load import Job
from ..config.records import make_system, negatives_of, without_partitioner
from ..config.systems import SYSTEMS, System
from ..custom.own_code import OwnCode
from . import checks
from .fingerprint import fingerprint_of, sets_digest
from .model import TORCH_DTYPES, ModelPart, Outline, check_outputs, loss_of, model_of, record_of, with_edges
from .sampling import Sampling, from_queue, keeping_edges, sampling_of
from .warm_start import initial_learned


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared(Sampling):
    """A job with its data, ready for any executor."""

    outline: Outline
    place_data: Callable[[], Placement | Part] = field(repr=False)
    """Makes `data` of the dataset, whose arrays are read then if it is lazy."""
    model: ModelPart
    update: UpdatePart
    fingerprint: dict[str, str]
    """Digests of everything that affects the parameters, except the number of epochs."""

    @cached_property
    def data(self) -> Placement | Part:
        """Data that this process works on."""
        return self.place_data()

    @property
    def placement(self) -> Placement:
        """The whole data, if they are open."""
        assert isinstance(self.data, Placement), "this rank has its own part only"
        return self.data

    @property
    def samples_fingerprint(self) -> dict[str, str]:
        own = {k: self.fingerprint[k] for k in ("graph", "sampler", "seeds", "seed", "batch_size")}
        return own | self._numbering(self.outline.graph_types)

    @property
    def reads_edges(self) -> bool:
        return self.model.reads_edges

    @property
    def features_digest(self) -> str:
        return self.fingerprint["features"]

    @property
    def num_train(self) -> int:
        return self.outline.splits["train"]


def prepare(
    job: Job,
    dataset: Dataset,
    *,
    system: System | None = None,
    model: Any = None,
    code: OwnCode | None = None,
    stored: bool = False,
) -> Prepared:
    """Check that the parts of a job fit together, and describe the run by its fingerprint.

    Args:
        job: a resolved configuration.
        dataset: the training data.
        system: overrides the configuration's system.
        model: a model record (``GraphSAGE(...)``) or a user's module; overrides the configuration's model.
        code: the user's own code.
        stored: minibatches come from a store.

    Raises:
        InputError: the parts of the job do not fit together, or this version cannot run it.
    """
    checks.check_available(job)
    code = code or OwnCode()
    job, system, model = with_edges(job, system or make_system(job), model, dataset)
    record = record_of(job, model)
    checks.check_model_of_types(job, dataset.graph.types, record)
    sampling = sampling_of(job, dataset, system, stored=stored)
    job, system = sampling.job, sampling.system
    checks.check_losses(job, system)
    checks.check_learned(job, system)
    outline = Outline.from_dataset(dataset, job, balanced=job.train.loss.is_balanced)
    part = model_of(job, outline, system, model)
    built = part.build()
    part = replace(part, reads_loops=reads_loops(built))
    checks.check_model(job, system, built)
    if isinstance(record, nn.Module):
        check_outputs(built, job, outline, own_loss=code.loss is not None)
    if part.reads_edges:
        checks.check_edges(job, system)
    checks.check_update(job, system, outline, built)
    update = update_part(job, outline, code)
    checks.check_metrics(job.train, outline, code)
    checks.check_own_code(job, system, outline, built, code, update.loss)
    SYSTEMS.find(system.name).check(job, system, built)
    checks.check_parts(job, system, dataset.num_nodes)
    start = initial_learned(job, dataset)
    if isinstance(start, ReorderedFeatures) and system.partition.partitioner is not None:
        raise InputError(
            f"start_from: {dataset.name} has its nodes in another order than the data of {job.start_from}, which parts "
            "do not know; give them in that order"
        )
    mapped = isinstance(start, MappedFeatures)
    rows = start.rows if mapped else when_present(lambda start: start.gather(np.arange(start.num_rows)), start)
    fingerprint = fingerprint_of(job, dataset, system, part, rows) | dict(code.digests)
    return Prepared(
        job=job,
        system=system,
        whole=dataset,
        order=sampling.order,
        outline=outline,
        place_data=lambda: placement_of(job, dataset, part.reads_edges, part.reads_loops),
        model=part,
        update=update,
        fingerprint=fingerprint,
    )


def update_part(job: Job, outline: Outline, code: OwnCode) -> UpdatePart:
    """The part of a job that updates parameters. Raises InputError if the loss does not go with the task."""
    loss = loss_of(job.train.loss, outline, code)
    both = job.link.ranked == "both"
    return UpdatePart(outline.task, job.train, job.checkpoint, code, loss, check=job.check, ranks_sources=both)


def placement_of(job: Job, dataset: Dataset, edges: bool, loops: bool) -> Placement:
    """The whole dataset, in the types of the job, with what the model reads: features of edges, self loops."""
    dtype = TORCH_DTYPES[job.dtype]
    features: FeatureStore = dataset.features
    if features.dtype != np.dtype(job.dtype):
        features = ConvertedFeatures(features, job.dtype)
    features = with_learned_width(job, features, typed=not dataset.graph.types.is_single)
    pairs = pairs_of(dataset, job.dtype)
    labels = torch.from_numpy(dataset.labels) if pairs is None else torch.zeros(dataset.num_nodes, dtype=torch.int64)
    if pairs is None and dataset.task in MATRIX_TASKS:
        labels = labels.to(dtype)
    degree = torch.from_numpy(degree_of(dataset.graph, loops)).to(dtype)
    of_edges = dataset.graph.edge_features if edges else None
    if of_edges is not None and of_edges.dtype != np.dtype(job.dtype):
        of_edges = ConvertedFeatures(of_edges, job.dtype)
    return Placement(
        dataset.graph,
        features,
        labels,
        degree,
        dataset.split,
        edge_features=of_edges,
        pairs=pairs,
        pair_time=dataset.pair_time,
    )


def with_learned_width(job: Job, features: FeatureStore, *, typed: bool) -> FeatureStore:
    """Features with the columns of the job's learnt rows, which are not known yet; `features` if it learns none."""
    if not job.learned.width:
        return features
    given = features if job.learned.beside else None
    return WithLearned(given, features.num_rows, job.learned.width, job.dtype, None, typed=typed)


def with_data_read(prepared: Prepared) -> Prepared:
    """The same job once the arrays of its lazy dataset are read, and checked. Raises StoreError if they are damaged."""
    assert isinstance(prepared.whole, LazyDataset | SampledDataset)
    edges, loops = prepared.model.reads_edges, prepared.model.reads_loops
    whole = prepared.whole.as_read(edges)
    return replace(prepared, whole=whole, place_data=lambda: placement_of(prepared.job, whole, edges, loops))


@dataclass(frozen=True)
class CutData:
    """Data that the driver has prepared and cut, as the rank sees it that opens a part."""

    outline: Outline
    folder: Path
    """Of the parts."""
    rank: int
    fingerprint: dict[str, str]
    """Of the run, from the driver."""
    order: str = ""
    """See `Sampling.order`."""


def prepare_part(
    job: Job,
    cut: CutData,
    *,
    model: Any = None,
    code: OwnCode | None = None,
    dataset: Dataset | None = None,
    stored: bool = False,
) -> Prepared:
    """`prepare` in a rank that opens only its own part of the data that the driver has cut.

    Args:
        job: a resolved configuration.
        cut: the data.
        model: see `prepare`.
        code: see `prepare`.
        dataset: the whole dataset where pairs are labelled, of which only these are read.
        stored: minibatches come from a store.

    Raises:
        StoreError: the part is damaged.
        RunError: the pairs are not those that the driver sees.
    """
    outline, folder, rank, fingerprint = cut.outline, cut.folder, cut.rank, cut.fingerprint
    types = outline.graph_types
    system = keeping_edges(from_queue(job, make_system(without_partitioner(job)), stored), types)
    pairs = None
    if outline.of_pairs:
        assert dataset is not None
        if sets_digest(dataset) != fingerprint["seeds"]:
            raise RunError(f"rank {rank} sees other pairs than the driver; give all the same files")
        pairs = pairs_of(dataset, job.dtype)
        negatives = negatives_of(job) if outline.task == "link" else None
        hidden = outline.task == "link" or dataset.hides_pairs
        system = SYSTEMS.find(system.name).with_links(system, negatives, hidden)
    built = model_of(job, outline, system, model)
    classes = outline.num_classes
    matrix = outline.task in MATRIX_TASKS and not outline.of_pairs
    parts = Parts(
        folder,
        TORCH_DTYPES[job.dtype],
        matrix,
        num_classes=classes,
        edges=built.reads_edges,
        types=types,
        empty=arrays_at(job.graph, job.features, folder).graph,
    )
    part = parts.part(system.parts_before(rank))
    features = with_learned_width(job, part.features, typed=not types.is_single)
    part = replace(part, features=features, pairs=pairs)
    return Prepared(
        job=job,
        system=system,
        whole=None,
        order=cut.order,
        outline=outline,
        place_data=lambda: part,
        model=built,
        update=update_part(job, outline, code or OwnCode()),
        fingerprint=fingerprint,
    )
