"""Digests of everything that affects the outcome of a run."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from ...stages.kernels import OTHER_BITS
from ...stages.sample.neighbor import NeighborSampler
from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.features import FeatureStore
from ...storage.fingerprint import digest_arrays, digest_record, graph_fingerprint
from ..config.load import Job
from ..config.schema import Train
from ..config.systems import SYSTEMS, System

LATER = ("optimizer_options", "schedule", "groups", "clip_norm", "ema", "monitor")
"""Keys of `train` that versions before did not have."""


def features_digest(features: FeatureStore) -> str:
    """Digest of shape, dtype and up to 4096 evenly spaced rows, which notices a changed matrix without reading all of
    it."""
    rows = np.unique(np.linspace(0, max(features.num_rows - 1, 0), num=min(4096, features.num_rows), dtype=np.int64))
    return digest_arrays(shape=np.array([features.num_rows, features.num_features]), rows=features.gather(rows))


def fingerprint_of(
    job: Job, dataset: Dataset, system: System, model: Mapping[str, Any], make: Callable[[], nn.Module]
) -> dict[str, str]:
    """Digests of everything that affects the parameters of a run, except the number of epochs.

    Args:
        job: a resolved configuration.
        dataset: the training data.
        system: the training system.
        model: a description of the model, as plain values.
        make: builds the model with its initial parameters.
    """
    # Left out if unset, so that runs of versions without compilation can be resumed.
    left_out = {"patience", "matmul_precision", "metrics"} | (set() if job.train.compile else {"compile"})
    # `matmul_precision` by its first name, and later keys only where they are set, so that older checkpoints fit.
    left_out |= {
        key
        for key in LATER
        if getattr(job.train, key) == Train.model_fields[key].get_default(call_default_factory=True)
    }
    train = {**job.train.model_dump(exclude=left_out), "products": job.train.matmul_precision}
    if job.train.schedule.needs_epochs:
        train["epochs"] = job.epochs
    fingerprint = {
        **sample_fingerprint(job, dataset, system),
        "features": features_digest(dataset.features),
        "labels": digest_arrays(labels=dataset.labels, val=dataset.split.val),
        "model": digest_record(model),
        "train": digest_record({**train, "dtype": job.dtype, "system": system.name}),
    }
    if job.seed_of("initial") != job.seed_of("minibatches"):
        fingerprint["initial"] = str(job.seed_of("initial"))
    if job.start_from is not None:
        fingerprint["start"] = digest_arrays(**{k: v.numpy() for k, v in make().state_dict().items()})
    entry = SYSTEMS.find(system.name)
    if entry.options_decide:
        fingerprint["phases"] = _system_digest(job, dataset, system)
    if system.partition.partitioner is not None:
        # Sums are taken part by part, and a run continues with the parts and ledgers that it began with.
        fingerprint["parts"] = f"{system.parts_before(job.ranks)} by {system.partition.partitioner!r}"
    return fingerprint


def _system_digest(job: Job, dataset: Dataset, system: System) -> str:
    """Digest of a system's options that affect parameters, and of the nodes absent from its graph."""
    entry = SYSTEMS.find(system.name)
    options = {k: v for k, v in system.options.items() if k not in entry.free_options}
    absent = {name: digest_arrays(**{name: getattr(dataset.split, name)}) for name in entry.absent_nodes(system)}
    return digest_record({**system.schedule.record(job.epochs), "options": options, **absent})


def sample_fingerprint(job: Job, dataset: Dataset, system: System) -> dict[str, str]:
    """Digests of everything that affects sampled minibatches, and nothing else: such a store can serve any model.

    Raises:
        InputError: the job's kernel does not support its sampler.
    """
    return {
        "graph": graph_fingerprint(dataset.graph),
        "sampler": json.dumps(system.sample.record() | _drawn_by(job, system), sort_keys=True),
        "seeds": digest_arrays(train=dataset.split.train),
        "seed": str(job.seed_of("minibatches")),
        "batch_size": str(job.train.batch_size),
    }


def _drawn_by(job: Job, system: System) -> dict[str, str]:
    """Entry of the fingerprint for a kernel that draws other bits than the others."""
    if job.kernel not in OTHER_BITS:
        return {}
    sampler = system.sample.sampler
    if not isinstance(sampler, NeighborSampler):
        seen = f"system '{system.name}' samples nothing" if sampler is None else f"the sampler is '{sampler.name}'"
        raise InputError(
            f"kernel is \"{job.kernel}\", which supports only the sampler 'neighbor', but {seen}; leave kernel out"
        )
    return {"kernel": job.kernel}
