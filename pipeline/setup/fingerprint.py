"""Digests of everything that affects the outcome of a run."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...stages.kernels import OTHER_BITS
from ...stages.sample.neighbor import NeighborSampler
from ...storage.array_kinds import FloatArray, ValueArray
from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.fingerprint import (
    DatasetDigests,
    digest_arrays,
    digest_record,
    flat_digest,
    flat_graph_digest,
    sampled_rows,
)
from ..config.load import Job
from ..config.schema import Train
from ..config.systems import SYSTEMS, System

LATER = ("optimizer_options", "schedule", "groups", "clip_norm", "ema", "monitor", "loss")
"""Keys of `train` that versions before did not have."""
LATER_OF_LOSS = {"margin": 1.0, "temperature": 1.0}
"""Keys of `train.loss` that versions before did not have, with their defaults."""


def fingerprint_of(
    job: Job, dataset: Dataset, system: System, model: Any, start: FloatArray | None = None
) -> dict[str, str]:
    """Digests of everything that affects the parameters of a run, except the number of epochs.

    Args:
        job: a resolved configuration.
        dataset: the training data.
        system: the training system.
        model: the `ModelPart`.
        start: [V, D], learnt rows to begin with, of another run.
    """
    # Left out if unset, so that runs of versions without compilation can be resumed.
    left_out = {"patience", "matmul_precision", "metrics"} | (set() if job.train.compile else {"compile"})
    # `matmul_precision` by its first name, and later keys only where they are set, so that older checkpoints fit.
    usual = Train()
    left_out |= {key for key in LATER if getattr(job.train, key) == getattr(usual, key)}
    train = {**job.train.model_dump(exclude=left_out), "products": job.train.matmul_precision}
    if "loss" in train:
        # pyrefly: ignore[missing-attribute]
        train["loss"] = {k: v for k, v in train["loss"].items() if k not in LATER_OF_LOSS or v != LATER_OF_LOSS[k]}
    if job.train.schedule.needs_epochs:
        train["epochs"] = job.epochs
    digests = DatasetDigests(dataset)
    fingerprint = {
        **sample_fingerprint(job, dataset, system),
        "features": digests["feature_sample"],
        "labels": digests.combined("labels", "val"),
        "model": digest_record(model.description),
        "train": digest_record({**train, "dtype": job.dtype, "system": system.name}),
    }
    if model.reads_edges:
        fingerprint["edge_features"] = digests["edge_feature_sample"]
    if job.seed_of("initial") != job.seed_of("minibatches"):
        fingerprint["initial"] = str(job.seed_of("initial"))
    if job.learned.width:
        # Left out at its default, so that older checkpoints fit.
        left_out = None if job.learned.weight_decay else {"weight_decay"}
        fingerprint["learned"] = digest_record(job.learned.model_dump(exclude=left_out))
    if job.start_from is not None:
        arrays = {k: v.numpy() for k, v in model.build().state_dict().items()}
        fingerprint["start"] = digest_arrays(**arrays, **({} if start is None else {"learned rows": start}))
    entry = SYSTEMS.find(system.name)
    if entry.options_decide:
        fingerprint["phases"] = _system_digest(job, digests, system)
    if system.partition.partitioner is not None:
        # Sums are taken part by part, and a run continues with the parts and ledgers that it began with.
        fingerprint["parts"] = f"{system.parts_before(job.ranks)} by {system.partition.partitioner!r}"
    return fingerprint


def _system_digest(job: Job, digests: DatasetDigests, system: System) -> str:
    """Digest of a system's options that affect parameters, and of the nodes absent from its graph."""
    entry = SYSTEMS.find(system.name)
    options = {k: v for k, v in system.options.items() if k not in entry.free_options}
    absent = {name: digests.combined(name) for name in entry.absent_nodes(system)}
    return digest_record({**system.schedule.record(job.epochs), "options": options, **absent})


def sample_fingerprint(job: Job, dataset: Dataset, system: System) -> dict[str, str]:
    """Digests of everything that affects sampled minibatches, and nothing else: such a store can serve any model.

    Raises:
        InputError: the job's kernel does not support its sampler.
    """
    digests = DatasetDigests(dataset)
    return {
        "graph": digests["graph"],
        "sampler": json.dumps(system.sample.record() | _drawn_by(job, system), sort_keys=True),
        "seeds": sets_digest(dataset, digests),
        "seed": str(job.seed_of("minibatches")),
        "batch_size": str(job.train.batch_size),
    }


def digests_of(dataset: Dataset) -> dict[str, str]:
    """Digests of a dataset's graph, features, labels and train set, as the fingerprint of a run has them."""
    digests = DatasetDigests(dataset)
    own = {"graph": digests["graph"], "features": digests["feature_sample"]}
    return own | {"labels": digests.combined("labels", "val"), "seeds": sets_digest(dataset, digests)}


def changed_since(fingerprint: Mapping[str, str], dataset: Dataset) -> list[str]:
    """Names of what a dataset has otherwise than the data of a run with this fingerprint: edges, features (of the rows
    that `feature_sample_digest` reads), labels, train nodes."""
    found = digests_of(dataset)
    if dataset.num_edge_features and "edge_features" in fingerprint:  # else no model reads them
        found["edge_features"] = DatasetDigests(dataset)["edge_feature_sample"]
    differing = [key for key, value in found.items() if fingerprint.get(key, value) != value]
    if differing:
        # A run of an earlier version has other digests of the same arrays.
        earlier = of_version_1({}, dataset)
        differing = [key for key in differing if earlier.get(key) != fingerprint[key]]
    called = {"graph": "edges", "seeds": "train nodes", "edge_features": "features of edges"}
    return [called.get(key, key) for key in differing]


def of_version_1(fingerprint: Mapping[str, str], dataset: Dataset) -> dict[str, str]:
    """The same fingerprint as checkpoints of schema version 1 have it: with other digests of arrays."""
    x, split = dataset.features.gather(sampled_rows(dataset.num_nodes)), dataset.split
    return {
        **fingerprint,
        "seeds": _flat(train=split.train),
        "labels": _flat(labels=dataset.labels, val=split.val),
        "graph": flat_graph_digest(dataset.graph),
        "features": _flat(shape=np.array([dataset.num_nodes, x.shape[1]]), rows=x),
    }


def _flat(**arrays: ValueArray) -> str:
    return digest_record({name: flat_digest(a) for name, a in arrays.items()})


def sets_digest(dataset: Dataset, digests: DatasetDigests | None = None) -> str:
    """Digest of the train set: of its nodes, or of its pairs."""
    return (digests or DatasetDigests(dataset)).combined("train", *(["labels"] if dataset.of_pairs else []))


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
