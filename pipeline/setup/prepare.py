"""Before a run: open the data, check that the parts of a job fit together, and say what decides its outcome."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...stages.messages import Part, Placement
from ...storage.dataset import Dataset
from ...storage.features import ConvertedFeatures, FeatureStore
from ..config.load import Job
from ..config.records import make_system, placed
from ..config.systems import SYSTEMS, System
from .checks import check_available, check_losses, check_model, check_parts
from .fingerprint import fingerprint_of
from .model import TORCH_DTYPES, Outline, model_of
from .parts import Parts


@dataclass(frozen=True, eq=False)
class Prepared:
    """A job with its data, ready for any executor."""

    job: Job
    outline: Outline
    system: System
    build_model: Callable[[], nn.Module]
    """Makes the model with its initial parameters: a pure function of the seed."""
    data: Placement | Part
    fingerprint: dict[str, str]
    """Of everything that decides the parameters but the number of epochs."""
    model_name: str
    whole: Dataset | None
    """None where a rank has opened its own part only."""

    @property
    def dataset(self) -> Dataset:
        """The whole dataset, where it is open."""
        assert self.whole is not None, "this rank has its own part only"
        return self.whole

    @property
    def placement(self) -> Placement:
        """The whole data, where they are open."""
        assert isinstance(self.data, Placement), "this rank has its own part only"
        return self.data

    @property
    def has_minibatches(self) -> bool:
        """Whether the system trains on sampled minibatches, which a queue holds."""
        return self.system.sample.uses_queue

    @property
    def frees_steps(self) -> bool:
        """Whether each step frees memory that the next one takes again."""
        return self.system.sample.sampler is not None and not self.system.sample.is_isolated


def prepare(job: Job, dataset: Dataset, *, system: System | None = None, model: Any = None) -> Prepared:
    """Check that the parts of a job fit together, and describe the run by its fingerprint.

    Args:
        job: a resolved configuration.
        dataset: what to train on.
        system: overrides the configuration's.
        model: a model record (``GraphSAGE(...)``) or a module of the user's; overrides the configuration's.

    Raises:
        InputError: they do not fit, or this version cannot run them.
    """
    check_available(job)
    system = system or make_system(job)
    if job.features == "owned":
        system = SYSTEMS.find(system.name).owning(system)
    check_losses(job, system)
    outline = Outline.of(dataset)
    make, description, name = model_of(job, outline, system, model)
    built = make()
    check_model(job, system, built)
    SYSTEMS.find(system.name).check(job, system, built)
    if system.sample.sampler is not None:
        system.sample.sampler.check(dataset.graph)
    check_parts(job, system, dataset.num_nodes)
    dtype = TORCH_DTYPES[job.dtype]
    features: FeatureStore = dataset.features
    if features.dtype != np.dtype(job.dtype):
        features = ConvertedFeatures(features, job.dtype)
    labels = torch.from_numpy(dataset.labels)
    if dataset.task != "multiclass":
        labels = labels.to(dtype)
    degree = torch.from_numpy(dataset.graph.degree).to(dtype)
    data = Placement(dataset.graph, features, labels, degree, dataset.split)
    fingerprint = fingerprint_of(job, dataset, system, description, make)
    return Prepared(job, outline, system, make, data, fingerprint, name, dataset)


def prepare_part(
    job: Job, outline: Outline, folder: Path, rank: int, fingerprint: dict[str, str], *, model: Any = None
) -> Prepared:
    """`prepare` in a rank that opens its own part of what the driver has cut, and nothing else.

    Args:
        job: a resolved configuration.
        outline: of the dataset.
        folder: of the parts.
        rank: which one.
        fingerprint: of the run, from the driver.
        model: see `prepare`.

    Raises:
        StoreError: the part is damaged.
    """
    system = make_system(placed(job))
    make, _, name = model_of(job, outline, system, model)
    parts = Parts(folder, TORCH_DTYPES[job.dtype], outline.task == "multilabel", num_classes=outline.num_classes)
    return Prepared(job, outline, system, make, parts.part(system.parts_before(rank)), fingerprint, name, None)
