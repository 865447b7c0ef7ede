"""A model with the data that it is to be applied to, whichever way a caller names them; and its GPU, where samples go
by time: draws there, over rows in its memory or in locked memory of the host."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...stages.evaluate import temporal
from ...stages.evaluate.layerwise import outputs
from ...stages.evaluate.limits import Limits
from ...stages.evaluate.temporal import Chunk, Draws, temporal_outputs
from ...stages.models.base import as_model, reads_edges, reads_loops
from ...stages.sample import SAMPLERS
from ...stages.sample.base import reads_times
from ...stages.sample.temporal import timed_graph
from ...stages.self_loops import degree_of
from ...storage.array_kinds import AnyArray
from ...storage.dataset import Dataset, IdArray, Task
from ...storage.errors import InputError
from ...storage.features import FeatureStore
from ...storage.lazy_dataset import LazyDataset
from ...storage.plural import counted
from ...storage.store.bytes_left import fits_in_memory
from ..config.load import Job, build, resolve
from ..config.systems import SYSTEMS
from ..datasets import ReadOptions, open_dataset
from ..datasets.cleaning.options import DEFAULT_OPTIONS, require_options
from ..setup.result import Result
from ..telemetry.events import Emit, Note, advancing
from .by_tasks import Workers, outputs_in_files
from .finished_run import TrainedRun, load


@dataclass(frozen=True, eq=False)
class Opened:
    """A model and data."""

    model: nn.Module
    data: Dataset
    scratch: Path | None
    """Folder for temporary files."""
    name: str
    """Name of the model."""
    task: Task
    class_names: Any
    job: Job
    workers: Workers | None
    """Who computes outputs; None: this process."""
    of_edges: bool = False
    """True if the model predicts labels of edges."""

    @property
    def of_pairs(self) -> bool:
        """True if the model predicts pairs of nodes."""
        return self.task == "link" or self.of_edges

    @property
    def temporal(self) -> Any:
        """The sampler of a run that reads times, by which nodes are predicted at theirs; None for other runs.

        Raises:
            InputError: several processes are asked for, or the data has no times.
        """
        job = self.job
        sampler: Any = build("sampler", SAMPLERS, job.sampler) if SYSTEMS.find(job.system).draws(job) else None
        if not reads_times(sampler):
            return None
        if self.workers is not None:
            raise InputError(
                f"{self.name} was trained by the sampler {job.sampler['name']}, whose draws at the times of nodes are "
                "not shared out; leave workers and scheduler out"
            )
        sampler.check(self.data.graph)
        return sampler

    def check_times(self) -> AnyArray:
        """The times of the data's nodes, or of its pairs. Raises InputError if there are none."""
        data, what = self.data, "pairs" if self.data.of_pairs else "nodes"
        if (times := data.pair_time if data.of_pairs else data.graph.node_time) is None:
            raise InputError(
                f"{self.name} was trained by the sampler {self.job.sampler['name']} to predict {what} at their times, "
                f"but those of {data.name} have none; give {'pairs with times' if data.of_pairs else 'node_time'}"
            )
        return times

    def chunk(self, seeds: int | None = None) -> Chunk | None:
        """Who computes outputs by time: see `device_chunks`."""
        return device_chunks(self.model, self.data, self.job, seeds)

    def outputs(
        self, model: nn.Module, nodes: IdArray, emit: Emit, stage: str = "predict", moments: AnyArray | None = None
    ) -> Tensor:
        """[n, D], the outputs of the model, or of another one, for `nodes`; progress is that of `stage`. Where samples
        go by time they are at the nodes' own times, or at `moments` [n]. Raises InputError: see `temporal`; or nodes
        have no times."""
        data, advance = self.data, advancing(stage, emit)
        if (sampler := self.temporal) is not None:
            if moments is None and self.of_pairs:
                use = "predict_links" if self.task == "link" else "predict_edges"
                raise InputError(
                    f"{self.name} predicts pairs of nodes at their times, and nodes alone have none; use {use}"
                )
            moments = self.check_times()[nodes] if moments is None else moments
            draws = Draws(sampler, self.job.seed_of("minibatches"), advance, self.chunk(len(nodes)))
            rows = temporal_outputs(model, data.graph, data.features, draws, nodes, moments)
        elif self.workers is not None or (isinstance(data, LazyDataset) and device_of(model).type == "cpu"):
            return outputs_in_files(model, self, nodes, emit, on_progress=advance)
        else:
            degree = torch.from_numpy(degree_of(data.graph, reads_loops(model)))
            limits = Limits(scratch=self.scratch, on_progress=advance, on_note=lambda text: emit(Note(text)))
            rows = outputs(model, data.graph, data.features, degree, nodes, limits)
        if self.of_pairs and rows.device.type != device_of(model).type:
            text = f"the rows of {counted(len(nodes), 'node')} do not fit on the GPU beside the layers"
            emit(Note(f"{text}; they are on the host, and so is what reads pairs of them"))
        return rows


@dataclass(frozen=True, eq=False)
class Call:
    """What a caller wants a model applied to, and who computes it."""

    dataset: Any
    """Anything that `open_dataset` takes; None: the run's own."""
    options: ReadOptions | None
    """How `dataset` is read, where that is not as the run's own was."""
    workers: Workers | None
    """Who computes outputs; None: this process."""
    emit: Emit
    """Called with every event."""


def opened(
    run: TrainedRun | Result | str | Path | nn.Module,
    call: Call,
    function: str,
    model: Any = None,
    labelled: bool = True,
) -> Opened:
    """Open what the arguments of `predict` and `embed` name.

    Args:
        run: a finished run, or a model.
        call: the data, and who computes.
        function: name of the caller, for messages.
        model: see `load`.
        labelled: see `TrainedRun.open_dataset`.

    Raises:
        InputError: the arguments do not go together, or the run is not finished.
        StoreError: something in the run's folder is damaged.
    """
    if model is not None and isinstance(run, nn.Module | TrainedRun):
        raise InputError(
            f"model was given beside a {type(run).__name__}, which has one; give it with the folder of a run only"
        )
    require_options(call.options)
    dataset, by, emit = call.dataset, call.workers, call.emit
    if isinstance(run, nn.Module):
        if dataset is None:
            raise InputError(
                f"dataset is missing; expected {function}(model, dataset), or the folder of a run, which has its own"
            )
        own = isinstance(dataset, Dataset) and call.options is None
        data = dataset if own else open_dataset(dataset, options=call.options or DEFAULT_OPTIONS)
        _note_device(run, by, emit)
        return Opened(
            as_model(run), data, None, type(run).__name__, data.task, data.class_names, job=resolve({}), workers=by
        )
    trained = run if isinstance(run, TrainedRun) else load(run, model=model, emit=emit)
    _note_device(trained.model, by, emit)
    how: dict[str, Any] = {"lazy": by is not None, "labelled": labelled, "options": call.options}
    result, data = trained.result, trained.open_dataset(dataset, emit=emit, **how)
    names, of_edges = result.class_names, result.labels_of == "edges"
    return Opened(
        trained.model,
        data,
        trained.folder,
        result.model,
        result.task,
        names,
        job=trained.config,
        workers=by,
        of_edges=of_edges,
    )


def _note_device(model: nn.Module, workers: Workers | None, emit: Emit) -> None:
    """Tell a user whose model is on a GPU that workers leave it alone."""
    if workers is not None and device_of(model).type == "cuda":
        emit(Note("workers compute on processors; without them (workers, scheduler) this process would use the GPU"))


def device_of(model: nn.Module) -> torch.device:
    """The device that computes a model's outputs: its parameters'."""
    return next((p.device for p in model.parameters() if p.is_floating_point()), torch.device("cpu"))


def device_chunks(model: nn.Module, data: Dataset, job: Job, seeds: int | None) -> Chunk | None:
    """Outputs over draws of the model's GPU; None if the host draws: it has the model, or the run's ``kernel`` says so.

    Args:
        model: on any device.
        data: with times of edges.
        job: of the run.
        seeds: nodes that are asked for; None: many.
    """
    device = device_of(model)
    # A queue on disk has samples of the host, whoever predicts.
    by_host = job.device == "cuda" and job.kernel != "cuda" and job.queue.kind == "memory"
    if device.type != "cuda" or by_host:
        return None
    # Needs Triton.
    from ...stages.evaluate.temporal_cuda import DeviceChunks

    timed_graph(data.graph).on_device(job.gpu.topology)
    stores = data.features, data.graph.edge_features if reads_edges(model) else None
    # One minibatch reads the rows of its own nodes; others share rows.
    several = seeds is None or seeds > temporal.CHUNK
    rows = [_device_rows(x, device, job) if x is not None and several else None for x in stores]
    return DeviceChunks(data.graph, *rows)


def _device_rows(features: FeatureStore, device: torch.device, job: Job) -> Tensor | None:
    """All rows where kernels of the device read them, as ``gpu.features`` says; None if neither the device nor the host
    has room for a copy."""
    from ...stages.fetch.gather_cuda import upload
    from ...stages.kernels.runtime.device_memory import goes_to_device

    num_bytes = features.num_rows * features.num_features * features.dtype.itemsize
    there = goes_to_device(num_bytes, device, job.gpu.features)
    if not there and not fits_in_memory(num_bytes):
        return None
    return upload(features, device, "device" if there else "pinned").rows
