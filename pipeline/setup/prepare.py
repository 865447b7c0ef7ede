"""Preparation of a run: open the data, check that the parts of a job fit together, and compute the run's
fingerprint."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...stages.feed.collective_feed import SampledByOwners
from ...stages.feed.queue_feed import Sampled
from ...stages.learned.beside import WithLearned
from ...stages.messages import Loss, Part, Placement
from ...stages.models import MODELS, RGCN
from ...stages.models.base import reads_edges
from ...stages.sample.base import check_kernel, reads_times
from ...storage.dataset import MATRIX_TASKS, Dataset, pairs_of
from ...storage.errors import InputError, RunError
from ...storage.features import ConvertedFeatures, FeatureStore
from ...storage.lazy_dataset import LazyDataset
from ...storage.store.scratch import Arrays, InFiles, in_memory
from ...storage.typed.graph_types import GraphTypes
from ..config.load import Job
from ..config.records import build, for_task, make_system, negatives_of, with_links, without_partitioner
from ..config.systems import SYSTEMS, System
from ..custom.own_code import OwnCode
from .checks import (
    check_available,
    check_edges,
    check_learned,
    check_links,
    check_losses,
    check_metrics,
    check_model,
    check_own_code,
    check_parts,
    check_times,
    check_topology,
    check_types,
    check_update,
)
from .fingerprint import fingerprint_of, sets_digest
from .model import TORCH_DTYPES, Outline, check_outputs, loss_of, model_of, with_edges
from .parts import Parts
from .warm_start import initial_learned


@dataclass(frozen=True, eq=False)
class Prepared:
    """A job with its data, ready for any executor."""

    job: Job
    outline: Outline
    system: System
    build_model: Callable[[], nn.Module]
    """Builds the model with its initial parameters: a pure function of the seed."""
    place_data: Callable[[], Placement | Part] = field(repr=False)
    """Makes `data` of the dataset, whose arrays are read then if it is lazy."""
    fingerprint: dict[str, str]
    """Digests of everything that affects the parameters, except the number of epochs."""
    model_name: str
    whole: Dataset | None
    """The whole data; None if a rank has opened only its own part."""
    code: OwnCode = field(default_factory=OwnCode)
    """The user's own code."""
    loss: Loss | None = None
    """The user's own loss, or the configuration's; None: the default of a multi-class or multi-label task."""
    reads_edges: bool = False
    """True if the model reads the features of edges."""

    @cached_property
    def data(self) -> Placement | Part:
        """Data that this process works on."""
        return self.place_data()

    @property
    def dataset(self) -> Dataset:
        """The whole dataset, if it is open."""
        assert self.whole is not None, "this rank has its own part only"
        return self.whole

    @property
    def placement(self) -> Placement:
        """The whole data, if they are open."""
        assert isinstance(self.data, Placement), "this rank has its own part only"
        return self.data

    @property
    def has_minibatches(self) -> bool:
        """True if the system trains on sampled minibatches, which a queue holds."""
        return self.system.sample.uses_queue

    @property
    def reads_times(self) -> bool:
        """True if minibatches are drawn, and models evaluated, at the times of seeds."""
        return reads_times(self.system.sample.sampler)

    @property
    def frees_steps(self) -> bool:
        """True if each step frees memory that the next one allocates again."""
        return self.system.sample.sampler is not None and not self.system.sample.is_isolated


def prepare(
    job: Job, dataset: Dataset, *, system: System | None = None, model: Any = None, code: OwnCode | None = None
) -> Prepared:
    """Check that the parts of a job fit together, and describe the run by its fingerprint.

    Args:
        job: a resolved configuration.
        dataset: the training data.
        system: overrides the configuration's system.
        model: a model record (``GraphSAGE(...)``) or a user's module; overrides the configuration's model.
        code: the user's own code.

    Raises:
        InputError: the parts of the job do not fit together, or this version cannot run it.
    """
    check_available(job)
    system, code = system or make_system(job), code or OwnCode()
    job = for_task(job, dataset, system.sample.sampler)
    if job.features == "owned":
        system = SYSTEMS.find(system.name).owning(system)
    job, system, model = with_edges(job, system, model, dataset)
    check_links(job, dataset)
    record = build("model", MODELS, job.model) if model is None else model
    check_types(job, system, dataset.graph.types, record, dataset.of_pairs)
    system = with_links(job, keeping_edges(system, dataset.graph.types), dataset)
    check_losses(job, system)
    check_times(job, system, dataset)
    check_learned(job, system)
    outline = Outline.of(dataset, job, balanced=job.train.loss.is_balanced)
    make, description, name = model_of(job, outline, system, model)
    built = make()
    check_model(job, system, built)
    if isinstance(record, nn.Module) and code.loss is None:
        check_outputs(built, job, outline)
    edges = reads_edges(built)
    if edges:
        check_edges(job, system)
    check_update(job, system, outline, built)
    loss = loss_of(job.train.loss, outline, code)
    check_metrics(job.train, outline, code)
    check_own_code(job, system, outline, built, code, loss)
    SYSTEMS.find(system.name).check(job, system, built)
    if system.sample.sampler is not None:
        check_kernel(system.sample.sampler, job.kernel)
        check_topology(job)
        system.sample.sampler.check(dataset.graph)
    check_parts(job, system, dataset.num_nodes)
    start = initial_learned(job, dataset.num_nodes)
    rows = None if start is None else start.rows
    fingerprint = fingerprint_of(job, dataset, system, description, make, edges, rows) | dict(code.digests)
    return Prepared(
        job,
        outline,
        system,
        make,
        lambda: _placement(job, dataset, edges),
        fingerprint,
        name,
        dataset,
        code,
        loss,
        edges,
    )


def prepare_samples(job: Job, dataset: Dataset, *, system: System | None = None) -> Prepared:
    """`prepare` for minibatches that any model may be trained on. A graph with types gets a model that reads them."""
    model = None if dataset.graph.types is None else RGCN(layers=int(job.model["layers"]))
    return prepare(job, dataset, system=system, model=model)


def keeping_edges(system: System, types: Any) -> System:
    """The system with a sampler that keeps the positions of edges, by which a graph with types knows relations."""
    if types is None or not isinstance(system.sample, Sampled | SampledByOwners):
        return system
    sampler: Any = system.sample.sampler
    if "edge_ids" not in {f.name for f in fields(sampler)}:
        raise InputError(
            f"the graph has several relations, but the sampler {sampler.name} does not keep which edges it drew; "
            "use another sampler"
        )
    return replace(system, sample=replace(system.sample, sampler=replace(sampler, edge_ids=True)))


def _placement(job: Job, dataset: Dataset, edges: bool) -> Placement:
    """The whole dataset, in the types of the job."""
    dtype = TORCH_DTYPES[job.dtype]
    features: FeatureStore = dataset.features
    if features.dtype != np.dtype(job.dtype):
        features = ConvertedFeatures(features, job.dtype)
    features = with_learned_width(job, features, typed=dataset.graph.types is not None)
    pairs = pairs_of(dataset, job.dtype)
    labels = torch.from_numpy(dataset.labels) if pairs is None else torch.zeros(dataset.num_nodes, dtype=torch.int64)
    if pairs is None and dataset.task in MATRIX_TASKS:
        labels = labels.to(dtype)
    degree = torch.from_numpy(dataset.graph.degree).to(dtype)
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
    assert isinstance(prepared.whole, LazyDataset)
    edges = prepared.reads_edges
    whole = prepared.whole.as_read(edges)
    return replace(prepared, whole=whole, place_data=lambda: _placement(prepared.job, whole, edges))


def arrays_of(job: Job, folder: Path) -> Arrays:
    """Makers of the large arrays of a rank's part, in files in `folder` if the job maps them."""
    if job.graph == "memory":
        return Arrays()
    in_files = InFiles(folder)
    return Arrays(in_files, in_files if job.features == "mapped" else in_memory)


def prepare_part(
    job: Job,
    outline: Outline,
    folder: Path,
    rank: int,
    fingerprint: dict[str, str],
    *,
    model: Any = None,
    code: OwnCode | None = None,
    dataset: Dataset | None = None,
) -> Prepared:
    """`prepare` in a rank that opens only its own part of the data that the driver has cut.

    Args:
        job: a resolved configuration.
        outline: outline of the dataset.
        folder: folder of the parts.
        rank: the rank.
        fingerprint: the run's fingerprint, from the driver.
        model: see `prepare`.
        code: see `prepare`.
        dataset: the whole dataset where pairs are labelled, of which only these are read.

    Raises:
        StoreError: the part is damaged.
        RunError: the pairs are not those that the driver sees.
    """
    system = keeping_edges(make_system(without_partitioner(job)), outline.types)
    pairs = None
    if outline.of_pairs:
        assert dataset is not None
        if sets_digest(dataset) != fingerprint["seeds"]:
            raise RunError(f"rank {rank} sees other pairs than the driver; give all the same files")
        pairs = pairs_of(dataset, job.dtype)
        negatives = negatives_of(job) if outline.task == "link" else None
        hidden = outline.task == "link" or dataset.hides_pairs
        system = SYSTEMS.find(system.name).with_links(system, negatives, hidden)
    make, _, name = model_of(job, outline, system, model)
    edges = reads_edges(model if model is not None else build("model", MODELS, job.model))
    classes = outline.num_classes
    matrix = outline.task in MATRIX_TASKS and not outline.of_pairs
    types = None if outline.types is None else GraphTypes.of_record(outline.types)
    parts = Parts(
        folder,
        TORCH_DTYPES[job.dtype],
        matrix,
        num_classes=classes,
        edges=edges,
        types=types,
        empty=arrays_of(job, folder).graph,
    )
    part = parts.part(system.parts_before(rank))
    features = with_learned_width(job, part.features, typed=types is not None)
    part = replace(part, features=features, pairs=pairs)
    code = code or OwnCode()
    loss = loss_of(job.train.loss, outline, code)
    return Prepared(job, outline, system, make, lambda: part, fingerprint, name, None, code, loss, edges)
