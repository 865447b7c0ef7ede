"""Before a run: open the data, check that the parts of a job fit together, and say what decides its outcome."""

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...stages.feed.collective_feed import SampledByOwners
from ...stages.feed.local_feed import Local
from ...stages.feed.queue_feed import Sampled
from ...stages.fetch.exchange import ExchangeFetch
from ...stages.fetch.visit import VisitFetch
from ...stages.kernels import OTHER_BITS, sampling_backend
from ...stages.messages import Part, Placement
from ...stages.models import MODELS
from ...stages.models.base import as_model
from ...stages.models.pyg import PyGModel
from ...stages.partition.base import Partitioner
from ...stages.partition.contiguous import Contiguous
from ...stages.partition.given import Given
from ...stages.partition.registry import partitioner
from ...stages.placement.row_blocks import Blocks, Grid
from ...stages.random import Purpose, stream, torch_seed
from ...stages.reduce.federated import LocalSteps
from ...stages.sample import SAMPLERS
from ...stages.sample.neighbor import NeighborSampler
from ...stages.schedule.policies import LayerByLayer
from ...storage.dataset import SPLITS, Dataset
from ...storage.dataset_store import features_place
from ...storage.errors import InputError, StoreError
from ...storage.features import ConvertedFeatures, FeatureStore
from ...storage.fingerprint import digest_arrays, digest_record, graph_fingerprint
from ..config import systems
from ..config.aliases import with_options
from ..config.load import Job, build, resolve
from ..config.systems import System
from ..datasets import ReadOptions, is_name, open_dataset
from ..interop.model_argument import check_no_model_options, check_widths, taken
from ..telemetry.events import Emit, Note, StageEnded, StageStarted
from .device_policies import check_device
from .parts import Parts
from .warm_start import begun

TORCH_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Outline:
    """What is known of a dataset without its data."""

    name: str
    num_features: int
    num_classes: int
    task: Literal["multiclass", "multilabel"]
    splits: dict[str, int]
    """Nodes in each."""

    @classmethod
    def of(cls, dataset: Dataset) -> "Outline":
        """Of this dataset."""
        splits = {name: len(getattr(dataset.split, name)) for name in SPLITS}
        return cls(dataset.name, dataset.features.num_features, dataset.num_classes, dataset.task, splits)


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
        return isinstance(self.system.sample, Sampled)

    @property
    def frees_steps(self) -> bool:
        """Whether each step frees memory that the next one takes again."""
        return isinstance(self.system.sample, Sampled | SampledByOwners)


def features_digest(features: FeatureStore) -> str:
    """A digest of shape, dtype and up to 4096 evenly spaced rows: a changed matrix is noticed without reading all of
    it."""
    rows = np.unique(np.linspace(0, max(features.num_rows - 1, 0), num=min(4096, features.num_rows), dtype=np.int64))
    return digest_arrays(shape=np.array([features.num_rows, features.num_features]), rows=features.gather(rows))


def make_system(job: Job) -> System:
    """The system that a configuration names.

    Raises:
        InputError: an unknown sampler or partitioner.
    """
    if job.system == "sar":
        o = job.sar
        return systems.sar(
            o.mode, partitioner=_cut(job), memory_bytes=o.memory_bytes, prefetch_bytes=o.prefetch_bytes, prune=o.prune
        )
    if job.system == "retexo":
        return systems.retexo(partitioner=_cut(job), **job.retexo.model_dump())
    sampler = build("sampler", SAMPLERS, job.sampler)
    if job.system == "grappa":
        return systems.grappa(sampler, partitioner=_cut(job), **job.grappa.model_dump())
    features = "owned" if job.features == "owned" else "shared"
    system = systems.bulk(sampler, features=features, partitioner=_blocks(job), **job.bulk.model_dump())
    if isinstance(system.sample, SampledByOwners):
        system = replace(system, sample=replace(system.sample, max_bytes=job.queue.max_bytes))
    return system


def _blocks(job: Job) -> Partitioner | None:
    """What cuts a partitioned topology: contiguous, unless the configuration says otherwise, which is then refused."""
    if job.bulk.topology == "replicated" or (
        "method" not in job.partition.model_fields_set and job.partition.owners is None
    ):
        return None
    cut = _cut(job)
    if not isinstance(cut, Contiguous):
        raise InputError(
            f'partition.method is "{cut.name}", but blocks of rows under bulk.topology = "partitioned" are contiguous; use '
            'partition.method = "contiguous", or leave it out'
        )
    return cut


def placed(job: Job) -> Job:
    """The job where nothing is to be cut: a file of owners, which may be gone or out of reach, is not read."""
    return job.model_copy(update={"partition": job.partition.model_copy(update={"owners": None})})


def _cut(job: Job) -> Partitioner:
    return (
        partitioner(str(job.partition.method))
        if job.partition.owners is None
        else Given.read(Path(job.partition.owners))
    )


def has_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16 (elsewhere torch imitates it, slowly)."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]


def check_matmul_precision(job: Job) -> None:
    """Refuse to train on this processor what it would only imitate. Sampling and evaluating do not need it.

    Raises:
        InputError: it has no products in bfloat16, and the job wants them.
    """
    if job.train.matmul_precision == "bfloat16" and job.device == "cpu" and not has_bfloat16():
        raise InputError(
            "train.matmul_precision is 'bfloat16', but this processor does not multiply in bfloat16; use \"float32\""
        )


def check_available(job: Job) -> None:
    """Refuse a job that this version cannot run, before anything slow is done for it.

    Raises:
        InputError: it asks for a device, kernels or an executor that are not there.
    """
    if job.device == "cuda":
        check_device(job)
    if job.executor != "dask" or job.cluster.scheduler is None:
        # Ranks and samplers of a cluster that runs elsewhere look for themselves.
        _ = sampling_backend(job.kernel)
    if job.train.matmul_precision == "bfloat16" and job.dtype != "float32":
        raise InputError(
            f"train.matmul_precision is 'bfloat16' and dtype is '{job.dtype}'; expected dtype = \"float32\" with it"
        )
    if job.train.compile and job.system in ("sar", "retexo"):
        raise InputError(
            f"train.compile is true, but system '{job.system}' trains on full batches, whose layers talk to other ranks or lie still; "
            "use bulk or grappa, or leave train.compile out"
        )
    if job.executor == "inline" and job.ranks > 1:
        raise InputError(
            f"executor is 'inline' with {job.ranks} ranks, but one process holds one rank; use executor = \"dask\" or ranks = 1"
        )


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
        if not isinstance(system.sample, Sampled | SampledByOwners):
            raise InputError(
                f"features is 'owned', but system '{system.name}' keeps each row where its node is trained; leave it out"
            )
        if not isinstance(system.fetch, ExchangeFetch):
            known = {f.name for f in fields(ExchangeFetch)}
            system = replace(system, fetch=ExchangeFetch(**{k: v for k, v in system.options.items() if k in known}))
    if job.cluster.on_rank_loss == "continue":
        _check_on_rank_loss(job, system)
    outline = Outline.of(dataset)
    make, description, name = model_of(job, outline, system, model)
    layers = make().num_layers
    if job.train.compile and isinstance(model, PyGModel):
        raise InputError(
            "train.compile is true, but the model is a PyGModel, whose convolutions read the lists; leave train.compile out"
        )
    if system.sample.num_layers not in (None, layers):
        raise InputError(
            f"the model has {layers} layers but the sampler makes {system.sample.num_layers} blocks; give the sampler one number per layer"
        )
    if isinstance(system.fetch, VisitFetch):
        modes = system.fetch.for_layers(int(layers))  # pyright: ignore[reportArgumentType]
        if job.ranks > 1 and isinstance(model, PyGModel) and (one := set(modes) - {"auto", "halo"}):
            raise InputError(
                f'sar.mode is "{min(one)}", but a PyG convolution reads the rows of all ranks in one block; use "halo", or "auto"'
            )
    normed = any(isinstance(m, _BatchNorm) for m in make().modules())
    if isinstance(system.sample, Local) and normed and job.ranks > 1:
        raise InputError(
            f"the model normalises batches, but under system '{system.name}' a rank may have none in a step of the others; use another norm"
        )
    if isinstance(system.reduce, LocalSteps) and normed:
        raise InputError(
            "retexo.local_steps is given, but clients that train by themselves share no batch normalisation; use another norm"
        )
    dtype = TORCH_DTYPES[job.dtype]
    graph = dataset.graph
    if isinstance(system.sample, Sampled | Local | SampledByOwners):
        system.sample.sampler.check(graph)
    if isinstance(system.partition, Blocks) or isinstance(system.fetch, ExchangeFetch):
        _ = Grid(job.ranks, system.options.get("replication", 1))
    if system.name == "bulk":
        _check_bulk_options(job, system)
    features: FeatureStore = dataset.features
    if features.dtype != np.dtype(job.dtype):
        features = ConvertedFeatures(features, job.dtype)
    labels = (
        torch.from_numpy(dataset.labels) if dataset.task == "multiclass" else torch.from_numpy(dataset.labels).to(dtype)
    )
    data = Placement(graph, features, labels, torch.from_numpy(graph.degree).to(dtype), dataset.split)
    # Runs of versions that could not compile can be gone on with.
    left_out = {"patience", "matmul_precision"} | (set() if job.train.compile else {"compile"})
    # `matmul_precision` by its first name, so that older checkpoints fit.
    train = {**job.train.model_dump(exclude=left_out), "products": job.train.matmul_precision}
    fingerprint = {
        **sample_fingerprint(job, dataset, system),
        "features": features_digest(dataset.features),
        "labels": digest_arrays(labels=dataset.labels, val=dataset.split.val),
        "model": digest_record(description),
        "train": digest_record({**train, "dtype": job.dtype, "system": system.name}),
    }
    if job.start_from is not None:
        fingerprint["start"] = digest_arrays(**{k: v.numpy() for k, v in make().state_dict().items()})
    if decides := system.schedule.record(job.epochs):
        policies = {
            "reduce": repr(system.reduce),
            "neighbourhood": repr(system.fetch),
            "partition": repr(system.partition),
        }
        # Inductive training leaves the test nodes out of the graph, so which they are decides too.
        absent = (
            {"test": digest_arrays(test=dataset.split.test)} if getattr(system.partition, "inductive", False) else {}
        )
        fingerprint["phases"] = digest_record({**decides, **policies, **absent, "clients": system.clients})
    if system.partition.partitioner is not None:
        _check_parts(job, system, graph.num_nodes)
        # Sums are taken part by part, and a run goes on from the parts and the ledgers that it began with.
        fingerprint["parts"] = f"{system.parts_before(job.ranks)} by {system.partition.partitioner!r}"
    return Prepared(job, outline, system, make, data, fingerprint, name, dataset)


def _check_parts(job: Job, system: System, num_nodes: int) -> None:
    """Raises InputError for more parts than nodes."""
    parts = system.parts_before(job.ranks)
    if parts > num_nodes:
        made = (
            f"{job.ranks} ranks" if parts == job.ranks else f"{job.ranks} ranks with {parts // job.ranks} chunks each"
        )
        raise InputError(
            f"{made} make {parts} parts, but the graph has {num_nodes} nodes; expected at most a part for each node"
        )


def _check_on_rank_loss(job: Job, system: System) -> None:
    """Raises InputError where no rank could go on without another."""
    message = 'cluster.on_rank_loss is "continue"'
    if not isinstance(system.sample, Local):
        raise InputError(
            f"{message}, but under system '{system.name}' ranks need each other's rows or minibatches; use \"restart\""
        )
    if job.executor == "inline":
        raise InputError(
            f'{message}, but executor is "inline", with one rank; use executor = "dask" and more ranks, or "restart"'
        )


def _check_bulk_options(job: Job, system: System) -> None:
    """Raises InputError for options that do not go with who holds what."""
    partitioned = 'bulk.topology is "partitioned"'
    if isinstance(system.sample, SampledByOwners):
        if job.kernel != "cpu":
            raise InputError(
                f'kernel is "{job.kernel}", which samples from a whole graph, but {partitioned}; leave kernel out'
            )
        if job.queue.kind == "zarr":
            raise InputError(
                f'queue.kind is "zarr", but {partitioned}: ranks sample together, in memory; leave queue.kind out'
            )
    elif not isinstance(system.fetch, ExchangeFetch):
        for name in ("replication", "cache_fraction"):
            if system.options.get(name) != systems.bulk().options[name]:
                message = f"bulk.{name} is {system.options[name]}, but every rank has all features"
                raise InputError(f'{message}; use features = "owned" or bulk.topology = "partitioned" with it')


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


def model_of(
    job: Job, outline: Outline, system: System, model: Any
) -> tuple[Callable[[], nn.Module], dict[str, Any], str]:
    """What makes the model, what describes it, and its name. `model` as in `prepare`."""
    dtype = TORCH_DTYPES[job.dtype]
    record = model if model is not None else build("model", MODELS, job.model)
    if isinstance(record, nn.Module):
        if isinstance(system.schedule, LayerByLayer):
            raise InputError(
                f"the model is a module of your own, {type(record).__name__}, and system '{system.name}' must give each layer a head; "
                "expected one of Millrace's models, such as GraphSAGE(...)"
            )
        module = as_model(record)
        check_widths(
            module, outline.num_features, outline.num_classes, outline.task, torch_seed(stream(job.seed, Purpose.INIT))
        )
        initial = {k: v.detach().clone() for k, v in module.state_dict().items()}

        def again() -> nn.Module:
            module.load_state_dict(initial)
            return begun(module.to(dtype), job)

        name = type(record).__name__
        return again, {"module": name, **{k: list(v.shape) for k, v in initial.items()}}, name

    def make() -> nn.Module:
        torch.manual_seed(torch_seed(stream(job.seed, Purpose.INIT)))
        return begun(system.schedule.build(record, outline.num_features, outline.num_classes).to(dtype), job)

    return make, {"name": record.name, **vars(record)}, record.name


def sample_fingerprint(job: Job, dataset: Dataset, system: System) -> dict[str, str]:
    """What decides sampled minibatches, and nothing else: such a store can serve any model.

    Raises:
        InputError: the job's kernel does not know its sampler.
    """
    return {
        "graph": graph_fingerprint(dataset.graph),
        "sampler": json.dumps(system.sample.record() | _drawn_by(job, system), sort_keys=True),
        "seeds": digest_arrays(train=dataset.split.train),
        "seed": str(job.seed),
        "batch_size": str(job.train.batch_size),
    }


def _drawn_by(job: Job, system: System) -> dict[str, str]:
    """What a record of samples says of a kernel that draws other bits than the others do."""
    if job.kernel not in OTHER_BITS:
        return {}
    sampler = getattr(system.sample, "sampler", None)
    if not isinstance(sampler, NeighborSampler):
        seen = f"system '{system.name}' samples nothing" if sampler is None else f"the sampler is '{sampler.name}'"
        raise InputError(
            f"kernel is \"{job.kernel}\", which knows the sampler 'neighbor' alone, but {seen}; leave kernel out"
        )
    return {"kernel": job.kernel}


def located(source: str | Path) -> str:
    """A dataset's name, or its path as it can be opened from any folder."""
    name, path = str(source), Path(source).expanduser()
    return name if not path.exists() or is_name(source) else str(path.resolve())


def open_data(job: Job, source: str | Path | object | None, emit: Emit) -> Dataset:
    """Open the job's dataset, or `source` in its place, and tell what was found."""
    spec = source if source is not None else job.dataset
    emit(StageStarted("open", f"opening {spec if isinstance(spec, str | Path) else f'a {type(spec).__name__}'}"))
    start = time.perf_counter()
    try:
        # The driver reads all features only once, to hand them on; ranks then hold their own.
        place = _place_of(spec) if job.features == "owned" else job.features
        dataset = open_dataset(spec, options=job.read, split=job.split, seed=job.seed, features=place)
    except InputError as e:
        raise type(e)(_with_keys(str(e))) from e
    sizes = f"{dataset.num_nodes:,} nodes, {dataset.graph.num_edges:,} edges, {dataset.features.num_features} features"
    emit(StageEnded("open", time.perf_counter() - start, f"{dataset.name}: {sizes}, {dataset.num_classes} classes"))
    for note in dataset.notes:
        emit(Note(_with_keys(note)))
    return dataset


def _place_of(spec: str | Path | object) -> Literal["memory", "mapped", "zarr"]:
    """Where the features of a store can stay while it is open; whatever is no store is read into memory."""
    if not isinstance(spec, str | Path):
        return "memory"
    try:
        return features_place(Path(spec))
    except StoreError:
        return "memory"


def _with_keys(text: str) -> str:
    """Readers name their options; to the user of a job those are configuration keys."""
    options = "|".join(f.name for f in fields(ReadOptions))
    return re.sub(rf"(?<![\w.])({options})=", r"read.\1=", text)


def configure(
    config: Mapping[str, Any], *, system: System | str | None = None, model: Any = None, **options: Any
) -> Job:
    """A resolved configuration from tables, shorthands, and the records that a Python caller passes."""
    table = with_options(config, options)
    layers = None
    model = taken(model)
    if model is not None:
        check_no_model_options(model, options)
        layers = as_model(model).num_layers if isinstance(model, nn.Module) else model.layers
        table["model"] = {"name": model.name, **vars(model)} if not isinstance(model, nn.Module) else {"layers": layers}
    if system is not None:
        table["system"] = system if isinstance(system, str) else system.name
    if isinstance(system, System):
        if isinstance(system.sample, Sampled | Local | SampledByOwners):
            table["sampler"] = {
                "name": system.sample.sampler.name,
                **vars(system.sample.sampler),
            }
        if system.partition.partitioner is not None and not isinstance(system.partition.partitioner, Given):
            table["partition"] = {"method": system.partition.partitioner.name}
        if isinstance(system.fetch, ExchangeFetch) and isinstance(system.sample, Sampled):
            table["features"] = "owned"
        if system.options:
            table[system.name] = dict(system.options)
    return resolve(table)
