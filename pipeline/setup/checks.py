"""Checks that refuse jobs whose parts do not fit together, or that this machine cannot run."""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...stages.capabilities import Cannot, Need
from ...stages.evaluate.measures import METRICS, is_small, main_metric
from ...stages.forward_backward import of_each_seed
from ...stages.kernels import sampling_backend
from ...stages.messages import Loss
from ...stages.models import MODELS
from ...stages.models.base import Stack
from ...stages.models.pyg.model import PyGModel
from ...stages.sample.base import reads_times
from ...storage.dataset import MATRIX_TASKS, SPLITS, Dataset
from ...storage.errors import InputError, first_line, nearest
from ...storage.typed.graph_types import GraphTypes
from ..config.capabilities import RefusedError, counted_types, needs_of
from ..config.load import Job
from ..config.optimizer import check_optimizer
from ..config.records import device_topology_only
from ..config.refusals import refuse
from ..config.schema import Learned, Schedule, Train
from ..config.systems import SYSTEMS, System
from ..custom.made import made_optimizer, made_scheduler
from ..custom.own_code import OwnCode
from .device_policies import check_device, check_types_on_device
from .model import Outline


def has_bfloat16() -> bool:
    """True if this processor multiplies in bfloat16 (elsewhere torch emulates it, slowly)."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def check_matmul_precision(job: Job) -> None:
    """Refuse to train in a precision that this processor only emulates. Raises InputError."""
    if job.train.matmul_precision == "bfloat16" and job.device == "cpu" and not has_bfloat16():
        raise InputError(
            "train.matmul_precision is 'bfloat16', but this processor does not multiply in bfloat16; use \"float32\""
        )


def check_available(job: Job) -> None:
    """Refuse a job that this version or machine cannot run, before any slow work.

    Raises:
        InputError: the job asks for a device, kernels or an executor that are not available.
    """
    if job.device == "cuda":
        check_device(job)
    if job.executor != "dask" or job.cluster.starts_here:
        # Ranks and samplers of a cluster elsewhere check for themselves.
        _ = sampling_backend(job.kernel)
    if job.train.matmul_precision == "bfloat16" and job.dtype != "float32":
        raise InputError(
            f"train.matmul_precision is 'bfloat16' and dtype is '{job.dtype}'; expected dtype = \"float32\" with it"
        )
    refuse(Need.COMPILE, needs_of(job), job)
    check_executor(job)


def check_executor(job: Job) -> None:
    """Refuse several ranks in one process. Raises InputError."""
    if job.executor == "inline" and job.ranks > 1:
        raise InputError(
            f"executor is 'inline' with {job.ranks} ranks, but one process holds one rank; use executor = \"dask\" or "
            "ranks = 1"
        )


def check_model_of_types(job: Job, types: GraphTypes, record: Any) -> None:
    """Refuse a model, a record or a user's module, that knows no relations, for a graph with several types.

    Raises:
        InputError: names the models that do.
    """
    if types.is_single:
        return
    graph = counted_types(types)
    if isinstance(record, PyGModel):
        raise InputError(
            f"the model is a PyGModel, whose convolutions read one list of edges, but {graph}; use HeteroPyGModel, a "
            "model over relations such as rgcn, or a layer of your own over neighbourhood.relations()"
        )
    if not isinstance(record, nn.Module) and not record.reads_relations:
        able = ", ".join(name for name, model in MODELS.items() if model.reads_relations)
        raise RefusedError(
            f"the model is '{record.name}', which knows no relations, but {graph}; expected one of {able}, or a module "
            "of your own over neighbourhood.relations()",
            Cannot(f"the model '{record.name}'", Need.TYPES, "knows no relations", False),
        )
    if job.train.compile:
        raise InputError(f"{graph}, but train.compile is true; relations are not compiled: leave it out")


def check_types(job: Job, system: System, dataset: Dataset) -> None:
    """Refuse jobs on graphs with several types of nodes or edges that this version cannot run, whatever the model.

    Raises:
        InputError: names the key to change.
    """
    if dataset.graph.types.is_single:
        return
    graph = counted_types(dataset.graph.types)
    refuse(Need.TYPES, needs_of(job, dataset, sampler=system.sample.sampler), job)
    sampler: Any = system.sample.sampler
    if system.sample.by_owners and not hasattr(sampler, "by_relation"):
        raise InputError(
            f"{graph}, but the sampler {sampler.name} does not draw relation by relation, as owners of a partitioned "
            "topology do; use neighbor or labor"
        )
    check_types_on_device(job, system, graph)


def check_model(job: Job, system: System, model: nn.Module) -> None:
    """Refuse a model that the system or the compiler cannot train.

    Raises:
        InputError: its layers do not match the sampler's, ranks cannot share its norms, or it has convolutions of PyG.
    """
    layers = model.num_layers
    if job.train.compile and isinstance(model, PyGModel):
        raise InputError(
            "train.compile is true, but the model is a PyGModel, whose convolutions read the lists; leave "
            "train.compile out"
        )
    if system.sample.num_layers not in (None, layers):
        raise InputError(
            f"the model has {layers} layers but the sampler makes {system.sample.num_layers} blocks; give the sampler "
            "one number per layer"
        )
    if not any(isinstance(m, _BatchNorm) for m in model.modules()):
        return
    if system.sample.is_isolated and job.ranks > 1:
        raise InputError(
            f"the model normalises batches, but under system '{system.name}' a rank may have none in a step of the "
            "others; use another norm"
        )
    if not system.reduce.shares_batch_norm:
        raise InputError(
            f"the model normalises batches, but clients that train by themselves under system '{system.name}' do not "
            "share batch normalisation; use another norm"
        )


def check_update(job: Job, system: System, outline: Outline, model: nn.Module) -> None:
    """Refuse what cannot follow a step's gradient in this job.

    Raises:
        InputError: names the key of `train` to change.
    """
    train = job.train
    check_optimizer(train, model)
    if not (train.evaluate_every and outline.splits["val"]):
        why = "the dataset has no validation nodes" if train.evaluate_every else "train.evaluate_every is 0"
        if train.monitor is not None:
            raise InputError(f"train.monitor is '{train.monitor}', a metric of validations, but {why}; leave it out")
        if train.patience is not None:
            raise InputError(f"train.patience is {train.patience} validations, but {why}; leave it out")
        if train.schedule.name == "plateau":
            raise InputError(f"train.schedule is 'plateau', which follows validations, but {why}; use another")
    if train.schedule.needs_epochs and train.schedule.warmup >= job.epochs:
        raise InputError(
            f"train.schedule.warmup is {train.schedule.warmup:g} epochs of {job.epochs}, which leaves none for "
            f"'{train.schedule.name}'; lower it"
        )
    for key in ("clip_norm", "ema", "schedule"):
        if getattr(train, key) != Train.model_fields[key].get_default():
            _check_one_optimizer(system, f"train.{key} is set")


def _check_one_optimizer(system: System, given: str) -> None:
    """Refuse what is given for an optimiser that takes all steps, where clients have their own."""
    if system.reduce.has_local_optimizers:
        raise InputError(
            f"{given}, but clients under system '{system.name}' step with optimisers of their own, which are made anew "
            "in every round; leave it out"
        )


def check_metrics(train: Train, outline: Outline, code: OwnCode) -> None:
    """Refuse metrics, and a monitor, that the task does not have.

    Raises:
        InputError: names the key to change.
    """
    known = METRICS[outline.task]
    if outline.task == "link" and code.metrics:
        raise InputError(
            f"the metric '{next(iter(code.metrics))}' is your own, a function of outputs and labels of nodes, but the "
            "task is link; leave it out"
        )
    for name in train.metrics:
        if name not in known and name not in code.metrics:
            raise InputError(
                f"train.metrics has '{name}', but the task is {outline.task}; expected one of {', '.join(known)}"
            )
    if train.monitor is None:
        return
    known, name = (*known, *code.metrics), train.monitor.removeprefix("-")
    if name not in known:
        raise InputError(
            f"train.monitor is '{train.monitor}'; expected one of {', '.join(known)} (the task is {outline.task})"
            f"{nearest(name, known)}"
        )


def check_own_code(
    job: Job, system: System, outline: Outline, model: nn.Module, code: OwnCode, loss: Loss | None = None
) -> None:
    """Refuse code of the user's own, and a loss, that do not go with the job.

    Raises:
        InputError: names the argument to change.
    """
    train = job.train
    distill = getattr(job.options, "distill", 0)
    if distill and (code.loss is not None or loss is not None):
        raise InputError(
            f"{system.name}.distill is {distill}, which needs the default loss of classes without options; drop one"
        )
    if code.loss is not None and isinstance(model, Stack) and not isinstance(model, PyGModel):
        matrix, width = outline.task in MATRIX_TASKS, outline.num_scores
        y = torch.zeros(2, width) if matrix else torch.zeros(2, dtype=torch.int64)
        try:
            of_each_seed(code.loss, torch.zeros(2, width, requires_grad=True), y)
        except InputError:
            raise
        except Exception as e:
            raise InputError(
                f"the loss fails on logits [2, {width}] and labels {list(y.shape)} "
                f"({type(e).__name__}: {first_line(e)}); correct it"
            ) from e
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = made_optimizer(code, parameters)
    if code.scheduler is not None:
        _check_one_optimizer(system, "a scheduler is given")
        made = made_scheduler(code, optimizer or torch.optim.SGD(parameters, lr=train.lr))
        if made.follow_metric:
            _check_plateau(job, system, outline, made.by_epoch[0].mode)


def _check_plateau(job: Job, system: System, outline: Outline, mode: str) -> None:
    """Refuse a ReduceLROnPlateau that would wait for the wrong direction, or for nothing."""
    train = job.train
    if not (train.evaluate_every and outline.splits["val"]):
        raise InputError("scheduler is a ReduceLROnPlateau, which follows validations, but there are none; use another")
    by_loss = getattr(system.fetch, "select_by", "") == "val_loss"
    followed = train.monitor or ("loss" if by_loss else main_metric(outline.task))
    small = is_small(followed)
    if small != (mode == "min"):
        raise InputError(
            f"scheduler is a ReduceLROnPlateau(mode='{mode}'), but it follows the metric '{followed}'; make it "
            f"mode='{'min' if small else 'max'}', or set train.monitor, such as 'loss'"
        )


def check_schedule(schedule: Schedule) -> None:
    """Refuse keys that a schedule does not read, which runs of earlier versions may have.

    Raises:
        InputError: names the key.
    """
    by = {"final": ("cosine", "linear"), "every": ("step",), "factor": ("step", "plateau"), "patience": ("plateau",)}
    for key, names in by.items():
        if schedule.name not in names and getattr(schedule, key) != getattr(Schedule(), key):
            unread = f"schedule '{schedule.name}' does not read '{key}'"
            raise InputError(f"{unread}; leave it out, or set name to {' or '.join(names)}")


def check_topology(job: Job) -> None:
    """Refuse a topology in the host's memory where a sampler draws on the GPU and reads its memory only.

    Raises:
        InputError: names the keys to change.
    """
    if job.kernel == "cuda" and device_topology_only(job):
        raise InputError(
            f"kernel is 'cuda' and gpu.topology is 'pinned', but the sampler {job.sampler['name']} reads neighbour "
            "lists in the GPU's memory only; leave one of them out"
        )


def check_learned(job: Job, system: System) -> None:
    """Refuse learnt features where ranks could not train or read them.

    Raises:
        InputError: names the key to change.
    """
    learned, train = job.learned, job.train
    if not learned.width:
        if learned != Learned():
            raise InputError(
                "the section 'learned' has keys, but learned.width is 0, so nothing is learnt; set learned.width, such "
                "as 64"
            )
        return
    needs = needs_of(job)
    seen = f"{needs[Need.LEARNED].seen}, but"
    if job.features == "owned" and not learned.beside:
        raise InputError(
            f"{seen} learned.beside is false, so that no features of the dataset are read, and features is 'owned'; "
            "leave features out"
        )
    refuse(Need.LEARNED, needs, job)
    if system.reduce.has_local_optimizers:
        raise InputError(
            f"{seen} system '{system.name}' does not train one set of rows in steps of all ranks together; use "
            f'system = "{next(iter(SYSTEMS))}"'
        )
    if train.ema is not None:
        raise InputError(f"{seen} train.ema averages the parameters of the model and no learnt rows; leave it out")


def check_links(job: Job, dataset: Dataset) -> None:
    """Refuse keys of links for another task, and pairs where this version does not train them.

    Raises:
        InputError: names the key to change.
    """
    if dataset.task != "link":
        given = job.link.model_dump(exclude_defaults=True)
        if wrong := [f"link.{key}" for key in given if key != "width" or not dataset.of_pairs]:
            of = " of edges" if dataset.of_pairs else ""
            raise InputError(
                f'{", ".join(wrong)} is set, but the task is {dataset.task}{of}; leave it out, or set task = "link"'
            )
    if dataset.of_pairs and job.kernel == "cugraph":
        raise InputError("kernel is 'cugraph', which draws no samples of pairs in this version; leave kernel out")


def check_times(job: Job, system: System, dataset: Dataset) -> None:
    """Refuse samples by time where seeds have no times, the future trains the past, or this version does not draw them.

    Raises:
        InputError: names what to change.
    """
    sampler = system.sample.sampler
    if sampler is None or not reads_times(sampler):
        if dataset.has_pair_times and dataset.task == "link":
            raise InputError(
                f"the pairs of {dataset.name} have times, and its graph holds edges that are later; use the sampler "
                'temporal under system "bulk"'
            )
        return
    needs = needs_of(job, dataset, sampler=sampler)
    seen = f"{needs[Need.TIMES].seen}, but"
    refuse(Need.TIMES, needs, job)
    sampler.check(dataset.graph)
    if dataset.hides_pairs:
        raise InputError(
            f"{seen} edges of {dataset.name} are left out of its graph (labelled_edges=hidden); samples by time see no "
            "edge before its time anyway: leave it out"
        )
    times = dataset.pair_time if dataset.of_pairs else dataset.graph.node_time
    if times is None and dataset.of_pairs:
        what = "pairs" if dataset.task == "link" else "labelled edges"
        how = 'use split = "time:0.7,0.15", or give pairs with times' if dataset.task == "link" else "give their times"
        raise InputError(f"{seen} the {what} of {dataset.name} have none; {how}")
    if times is None:
        raise InputError(
            f"{seen} the nodes of {dataset.name}, which are seeds, have none; give node_time (PyG, .npz, "
            "read.node_time), or use the sampler neighbor"
        )
    sets = {name: times[ids] for name in SPLITS if len(ids := getattr(dataset.split, name))}
    for before, after in (("train", "val"), ("train", "test"), ("val", "test")):
        if before in sets and after in sets and sets[before].max() > sets[after].min():
            raise InputError(
                f"{seen} the {before} set reaches to {sets[before].max()} and the {after} set begins at "
                f'{sets[after].min()}, so that the future trains the past; use split = "time:0.7,0.15" or '
                "until:...,..."
            )


def check_edges(job: Job, system: System) -> None:
    """Refuse a model that reads features of edges where they do not get to it.

    Raises:
        InputError: names the key to change.
    """
    seen = "the model reads features of edges, but"
    optional = job.model.get("edge_width", 0) and not MODELS.find(job.model["name"]).reads_edges
    none = ", or model.edge_width = 0 to read none" if optional else ""
    refuse(Need.EDGE_FEATURES, needs_of(job, reads_edges=True), job)
    if job.device != "cpu" and not system.fetch.reads_edges_on_device:
        raise InputError(
            f"{seen} device is '{job.device}', and the fetch of system '{system.name}' does not take them there; use "
            f'device = "cpu"{none}'
        )
    if job.train.compile:
        raise InputError(
            f"{seen} train.compile is true, and layers that read them are not compiled; leave it out{none}"
        )


def check_losses(job: Job, system: System) -> None:
    """Refuse ``cluster.on_rank_loss = "continue"`` if ranks cannot continue.

    Raises:
        InputError: ranks need each other's rows or minibatches.
    """
    if job.cluster.on_rank_loss == "continue" and not system.sample.is_isolated:
        raise InputError(
            f"cluster.on_rank_loss is \"continue\", but under system '{system.name}' ranks need each other's rows or "
            'minibatches; use "restart"'
        )


def check_parts(job: Job, system: System, num_nodes: int) -> None:
    """Refuse parts that cannot be: more than nodes, or mapped where ranks arrange them in memory.

    Raises:
        InputError: there are more parts than nodes, or the graph is to be mapped and cannot.
    """
    parts = system.parts_before(job.ranks)
    cut = system.partition.partitioner
    if cut is not None:
        refuse(Need.MAPPED, needs_of(job), job)
    if cut is None or parts <= num_nodes:
        return
    made = f"{job.ranks} ranks" if parts == job.ranks else f"{job.ranks} ranks with {parts // job.ranks} chunks each"
    raise InputError(f"{made} make {parts} parts, but the graph has {num_nodes} nodes; expected at most one per node")
