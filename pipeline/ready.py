"""Everything of a run before its first write: the configuration, the machine, the data, and how they go together. Dry
runs end there."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from ..stages.partition.clustered import Clustered
from ..storage.dataset import Dataset
from ..storage.errors import InputError
from ..storage.queue.base import MinibatchQueue
from ..storage.queue.seed_data import SampledDataset
from ..storage.store.paths import expanded, local_folder
from .config.load import Job, check_no_secrets, read_run_table
from .config.model_table import with_model
from .config.systems import System
from .custom.model_argument import as_record_or_module
from .custom.own_code import OwnCode, own_code, split_code
from .machine.compilers import check_compiler
from .not_read import idle_keys, idle_patience, not_read, one_step
from .opening import open_with_cluster
from .setup import python_inputs
from .setup.checks import check_available, check_matmul_precision, check_schedule
from .setup.configure import check_used, configure, sections_of
from .setup.open_data import absolute_source, opened_from_python
from .setup.open_queue import PACKED, check_samples, cut_as, holds_seeds, open_samples, own_queue, with_packed
from .setup.prepare import Prepared, prepare
from .setup.resume import check_connections, elsewhere, resumable, without_executor
from .setup.run_folder import JOB, check_resumable, check_run_folder
from .setup.simulated_clients import check_owners
from .setup.warm_start import notes_on_columns, start_of
from .telemetry.events import Emit, Note, silent
from .trackers.base import check_trackers


@dataclass(frozen=True)
class Ready:
    """A run that may begin: nothing is written so far."""

    job: Job
    folder: Path
    prepared: Prepared
    queue: MinibatchQueue | None
    """The queue that exists by now, if there is one."""
    module: nn.Module | None
    in_memory: Dataset | None
    notes: Sequence[str]
    """Notes of a dataset that was opened before, and on the parameters that the run starts from."""


@dataclass(frozen=True, eq=False)
class RunCall:
    """Arguments of `run`, with code of the user's own in one place."""

    dataset: Dataset | str | Path | object | None = None
    system: System | str | None = None
    model: Any = None
    code: OwnCode = field(default_factory=OwnCode)
    out: str | Path | None = None
    resume: bool = False
    samples: str | Path | None = None
    config: Job | Mapping[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def with_code(self, own: Mapping[str, Any], callbacks: Any) -> "RunCall":
        """The call with code of the user's own, by the names of the arguments of `run`, and from its options."""
        found, options = split_code(own, self.options, self.config)
        return replace(self, code=own_code(**found, callbacks=callbacks), options=options)


def ready_to_run(call: RunCall, emit: Emit) -> Ready:
    """Open the data, and refuse impossible jobs before anything is written."""
    out, resume, samples, code, dataset = call.out, call.resume, call.samples, call.code, call.dataset
    job, model = configured(call)
    folder = local_folder(out) if out is not None else Path("runs") / f"{job.system}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    _check_machine(job)
    if not resume:  # a run of an earlier version goes on as it began
        check_schedule(job.train.schedule)
        if not isinstance(call.config, Job):  # systems of a sweep share keys
            check_used([job], trains=True)
    check_run_folder(folder, resume)
    for text in elsewhere(job, folder, is_given=dataset is not None) if resume else ():
        emit(Note(text))
    if resume and not isinstance(dataset, str | Path | Dataset | None):
        # The folder's job names the clean copy, which is read as it is.
        before = python_inputs.reading_before(folder, python_inputs.with_kept_dataset(job, folder).dataset)
        job = job.model_copy(update={"read": job.read.over(before)})
    source, dataset = dataset, opened_from_python(job, dataset, emit)
    untold = dataset.notes if isinstance(dataset, Dataset) and dataset is source else ()
    module = model if isinstance(model, nn.Module) else None
    if resume and module is None:
        python_inputs.check_module_importable(folder, f'mr.run(..., out="{folder}", resume=True, model=...)')
    if resume:
        python_inputs.check_code_given(folder, code)
    in_memory = dataset if isinstance(dataset, Dataset) else None
    if dataset is None and "dataset" not in job.model_fields_set and holds_seeds(samples):
        dataset = samples
    job, dataset = _opened(job, dataset, folder, resume, emit)
    # A name is in the job.
    own = None if isinstance(call.system, str) else call.system
    prepared = prepare(job, dataset, system=own, model=model, code=code, stored=samples is not None)
    prepared = with_packed(prepared, samples)
    notes: list[str] = []
    queue = _checked(prepared, samples, folder, resume, notes.append)
    if prepared.job.executor == "inline":  # on a cluster, rank 0 says it of its machine
        untold = (*untold, *notes)
    if resume:
        check_resumable(folder, prepared.job, prepared.fingerprint, prepared.dataset)
    untold = (*untold, *not_read(prepared), *one_step(prepared), *idle_patience(prepared), *idle_keys(prepared))
    if isinstance(dataset, SampledDataset):
        text = f"training reads {dataset.samples} alone, which holds no graph and no labels but those of its seeds"
        untold = (*untold, f"{text}: nothing is validated or tested; name the dataset for that")
    elif PACKED in prepared.fingerprint:
        form = prepared.fingerprint[PACKED]
        untold = (*untold, f"training reads features as {form} from {samples}; validation and tests the dataset's own.")
    if prepared.job.start_from is not None and not resume:
        untold = (*untold, *notes_on_columns(Path(prepared.job.start_from), prepared.dataset.card or {}))
        start = start_of(prepared.model.build(), prepared.job, prepared.outline)
        untold = (*untold, f"{start}.")
    return Ready(prepared.job, folder, prepared, queue, module, in_memory, notes=untold)


def configured(call: RunCall) -> tuple[Job, Any]:
    """The resolved configuration, and a model that it cannot name."""
    system, model, config, options, out = call.system, call.model, call.config, call.options, call.out
    if started := call.resume and config is None:
        objects = sections_of(system, None if isinstance(model, Mapping | str) else as_record_or_module(model))
        config = {k: v for k, v in _started_config(out, call.dataset).items() if k not in objects}
    if isinstance(model, Mapping | str) and not isinstance(config, Job):
        config = {**(config or {}), "model": with_model((config or {}).get("model"), model)}
        model = None
    model = as_record_or_module(model)
    if call.resume and isinstance(config, Mapping) and "executor" not in options:
        config = without_executor({**config, **{k: v for k, v in options.items() if k == "ranks"}})
    job = config if isinstance(config, Job) else configure(config or {}, system=system, model=model, **options)
    if started and out is not None:
        check_connections(job, local_folder(out))
    if isinstance(model, nn.Module) and not isinstance(config, Job) and not call.resume:
        _check_seed(job, model)
    given = [*sorted(options), *(["system"] if isinstance(system, str) else [])]
    if isinstance(config, Job) and given:
        raise InputError(f"options {given} were given beside a resolved configuration; pass one or the other")
    return job, model


def _check_seed(job: Job, model: nn.Module) -> None:
    """Refuse a seed of initial parameters beside a module that has its own, where nothing else is drawn by it."""
    if job.seeds.initial is not None and not draws_initial(job, model):
        raise InputError(
            f"seeds.initial is {job.seeds.initial}, but the model, a {type(model).__name__}, has its initial "
            "parameters; leave it out, and call torch.manual_seed before you make the module"
        )


def draws_initial(job: Job, model: nn.Module) -> bool:
    """True if some initial parameters of a run of a module are drawn by its seed."""
    of_pairs = job.read.task == "link" or job.read.labels_of == "edges"
    return of_pairs or bool(job.learned.width) or any(map(is_lazy, model.parameters()))


def _check_machine(job: Job) -> None:
    """Check that this machine, or the cluster, has what the job asks for; trackers live in this process."""
    check_available(job)
    check_trackers(job.track)
    if job.executor == "dask":
        from .cluster.dask_cluster import check_reachable
        from .machine.gpus import check_cluster

        # Checked in the driver only: ranks and workers prepare the same job, but may lack the driver's certificate and
        # see other GPUs.
        check_cluster(job)
        check_reachable(job.cluster)
    else:
        # On a cluster, ranks check their own processors and machines.
        check_matmul_precision(job)
        check_compiler(job)


def _opened(
    job: Job, dataset: Dataset | str | Path | None, folder: Path, resume: bool, emit: Emit
) -> tuple[Job, Dataset]:
    """The dataset, and the job with paths that are found from any working folder."""
    if isinstance(dataset, Dataset):
        job = python_inputs.job_for_dataset(job, dataset, folder)
    else:
        kept = python_inputs.with_kept_dataset(job, folder) if resume else job
        job = job.model_copy(update={"dataset": absolute_source(dataset or kept.dataset)})
    check_no_secrets({"dataset": dataset.name if isinstance(dataset, Dataset) else job.dataset})
    if job.start_from is not None:
        job = job.model_copy(update={"start_from": str(expanded(job.start_from).resolve())})
    if (owners := job.partition.owners) is not None:
        absolute = {"owners": str(expanded(owners).resolve())}
        job = job.model_copy(update={"partition": job.partition.model_copy(update=absolute)})
    if (pairs := job.read.pairs) is not None:
        job = job.model_copy(update={"read": replace(job.read, pairs=str(expanded(pairs).resolve()))})
    if not isinstance(dataset, Dataset):
        try:
            # Ranks on a cluster open their own data, and check them: the driver needs the manifest only.
            dataset = open_with_cluster(job, dataset, emit, lazy=job.executor == "dask")
        except InputError:
            if resume:
                python_inputs.check_same_data(folder, job.dataset, None)
            raise
    dataset.check()
    return job, dataset


def _checked(
    prepared: Prepared, samples: str | Path | None, folder: Path, resume: bool, tell: Callable[[str], None]
) -> MinibatchQueue | None:
    """Refuse impossible jobs before anything is written. Returns the queue that exists by now, if there is one; `tell`
    is called as `own_queue` does."""
    check_samples(prepared, samples)
    check_owners(prepared)
    if not resume and isinstance(cut := prepared.system.partition.partitioner, Clustered):
        from .cluster.dask_cluster import check_gpus_of_cut

        check_gpus_of_cut(prepared.job, cut)
    if not prepared.outline.splits["train"]:
        raise InputError("the train split is empty: there is nothing to train on; choose another split")
    in_memory = prepared.job.queue.kind == "memory" and prepared.has_minibatches
    if (in_memory or samples is not None) and prepared.job.queue.location is not None and not resume:
        why = "the queue is in memory; set queue.kind=zarr, or" if samples is None else "stored samples are read;"
        raise InputError(f"queue.location is set, but {why} leave it out")
    if samples is not None:
        return open_samples(cut_as(prepared, samples), samples, to_read=prepared.job.executor != "dask")
    if prepared.job.queue.reuse == "cycle" and not resume:
        raise InputError("queue.reuse is cycle, but no stored samples are given; give them as samples, or leave it out")
    return own_queue(prepared, folder, tell) if in_memory else None


def _started_config(out: str | Path | None, dataset: object) -> dict[str, object]:
    """The configuration that a run was started with, for resuming it."""
    if out is None:
        raise InputError("resume needs the folder of the run to go on with: mr.run(..., out=FOLDER, resume=True)")
    folder = local_folder(out)
    check_run_folder(folder, resume=True)
    table = resumable(read_run_table(folder / JOB))
    # Data given from Python is in memory now; the folder's store of it is not read.
    in_memory = not isinstance(dataset, str | Path | None) and table.get("features") != "owned"
    return {k: v for k, v in table.items() if not (k in ("features", "graph") and in_memory)}


def dry_run(
    dataset: Dataset | str | Path | object | None = None,
    *,
    system: System | str | None = None,
    model: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    metrics: Any = None,
    callbacks: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    samples: str | Path | None = None,
    emit: Emit = silent,
    config: Job | Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Check everything that `run` with the same arguments checks before its first step, and write nothing.

    It opens the data, builds the model, and calls your own code once. On a cluster it starts nothing, but a scheduler's
    address must answer.

    Returns:
        What would be run, as plain values: dataset, task, system, model, its parameters, the nodes of each split, steps
        of an epoch, ranks, executor, device, and the folder.

    Raises:
        InputError: as `run` does.
        StoreError: the run cannot be resumed.
    """
    own = {"loss": loss, "optimizer": optimizer, "scheduler": scheduler, "metrics": metrics}
    call = RunCall(dataset, system, model, out=out, resume=resume, samples=samples, config=config, options=options)
    ready = ready_to_run(call.with_code(own, callbacks), emit)
    for text in ready.notes:
        emit(Note(text))
    job, prepared = ready.job, ready.prepared
    minibatches = math.ceil(prepared.outline.splits["train"] / job.train.batch_size)
    sampled = prepared.system.sample.sampler is not None
    parameters = sum(p.numel() for p in prepared.model.build().parameters())
    return {
        "dataset": prepared.dataset.name,
        "nodes": prepared.dataset.num_nodes,
        "edges": prepared.dataset.graph.num_edges,
        "task": prepared.outline.task,
        "splits": dict(prepared.outline.splits),
        "unit": prepared.outline.unit,
        "system": prepared.system.name,
        "model": prepared.model.name,
        "parameters": parameters,
        "epochs": job.epochs,
        "steps_per_epoch": math.ceil(minibatches / job.train.per_step(job.ranks)) if sampled else 1,
        "ranks": job.ranks,
        "executor": job.executor,
        "device": job.device,
        "out": str(ready.folder),
    }
