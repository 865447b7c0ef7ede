"""Outputs of a model by Dask tasks, or in little memory: each layer's rows lie in files, which all processes see."""

import copy
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...stages.evaluate.in_files import FileLayers, Layout, ModelReads, lay_out
from ...stages.evaluate.layerwise import evaluating
from ...stages.models.base import check_initialised, layered, reads_edges, reads_loops
from ...stages.neighbourhood.checks import no_edge_features
from ...storage.dataset import IdArray
from ...storage.errors import InputError, whole_number
from ...storage.store.bytes_left import require_memory
from ...storage.store.committed_folder import folder_aside, sweep_leftovers
from ..config.held_cluster import cluster_table
from ..config.load import resolve
from ..custom.user_code import pickled, unpickled
from ..ingest.budget import TASKS_PER_SLOT
from ..ingest.convert import executing
from ..setup.resume import CONNECTING
from ..telemetry.events import Emit

LEAST_BYTES, NODE_BYTES = 128 << 20, 40
"""Memory of one process that computes outputs in files, and for each node."""


@dataclass(frozen=True)
class Workers:
    """Dask workers that share a prediction."""

    count: int
    """Processes to start here, unless there is a scheduler."""
    scheduler: str | None
    """Address of a scheduler whose workers do the work."""
    settings: Mapping[str, Any]
    """Keys of the section ``cluster``, in place of the run's."""

    @classmethod
    def from_arguments(
        cls, count: object, scheduler: object, settings: object, client: object = None
    ) -> "Workers | None":
        """From the arguments of a call; None: this process does the work alone.

        Raises:
            InputError: `count` is no number of processes.
        """
        count = whole_number("workers", count, 1)
        keys = cluster_table(scheduler, settings, client)
        address = keys.pop("scheduler", None)
        return None if count == 1 and address is None else cls(count, address, keys)


def outputs_in_files(
    model: nn.Module, found: Any, nodes: IdArray, emit: Emit, on_progress: Callable[[int, int], None]
) -> Tensor:
    """[n, C], as `stages.evaluate.layerwise.outputs` gives them for `nodes`. They lie in a file that has no name any
    more, unless nodes repeat or are not in ascending order.

    Args:
        model: on any device; the work is done on processors.
        found: an `Opened`: data, the section of the cluster, who works, and a folder that all workers see.
        nodes: int64 [n].
        emit: called with the cluster's events.
        on_progress: called with (rows done, rows in all), over all layers.

    Raises:
        InputError: workers of another machine and no folder; or the model has lazy parameters, or reads features of
            edges that are not there.
        RunError: the disk is full, or workers were lost again and again.
    """
    data, job, scratch, workers = found.data, found.job, found.scratch, found.workers
    check_initialised(model)
    edges = data.graph.edge_features if reads_edges(model) else None
    if reads_edges(model) and edges is None:
        raise no_edge_features()
    by, alone = workers or Workers(1, None, {}), workers is None
    if scratch is None and by.scheduler is not None:
        raise InputError(
            "scheduler is given with a model that belongs to no run, so that there is no folder which its workers see; "
            "give the folder of a run, or workers"
        )
    if alone:
        more = "give this process more, or name fewer nodes"
        require_memory(LEAST_BYTES + NODE_BYTES * data.num_nodes, "evaluating a model over files", more)
    if any(t.device.type != "cpu" for t in (*model.parameters(), *model.buffers())):
        model = copy.deepcopy(model).to("cpu")
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    ascend = bool(np.all(nodes[1:] > nodes[:-1]))
    wanted, order = (nodes, None) if ascend else np.unique(nodes, return_inverse=True)
    # Nobody looks at the pages of so short a cluster, and the port may be taken.
    # Who can connect is asked of the caller, never of a run's folder.
    own = job.cluster.model_dump(mode="json", exclude={*CONNECTING})
    cluster = own | dict(by.settings) | {"scheduler": by.scheduler}
    job = job.model_copy(update={"cluster": resolve({"cluster": {**cluster, "dashboard_port": 0}}).cluster})
    threads = max(1, (os.cpu_count() or 1) // by.count) if by.scheduler is None else None
    with (
        evaluating(model),
        _folder(scratch) as folder,
        executing(job, by.count, alone, emit, 0, (folder,)) as (execute, slots),
    ):
        reads = ModelReads(int(layered(model).num_layers), dtype, edges, reads_loops(model))
        layout = lay_out(folder, data.graph, data.features, wanted, reads)
        layout = replace(layout, processes=slots)
        layers, text = FileLayers(layout, model), pickled(model)
        done, total = 0, sum(layers.num_rows(k) for k in layers.stages)
        for k in layers.stages:
            ranges = layers.begin(k, 1 if alone else TASKS_PER_SLOT * slots)
            calls = [(_compute, layout, text, k, *span, threads) for span in ranges]
            by_tasks = (rows["rows"] for _, rows in ([] if alone else execute(f"layer-{k}", calls)))
            here = (rows for span in (ranges if alone else ()) for rows in layers.compute(k, *span))
            for rows in chain(by_tasks, here):
                done += rows
                on_progress(done, total)
        rows = torch.from_numpy(layers.result())
    return rows if order is None else rows[torch.from_numpy(order)]


def _compute(layout: Layout, model: str, k: int, first: int, stop: int, threads: int | None) -> dict[str, Any]:
    """A task: rows ``[first, stop)`` of a stage."""
    if threads is not None:
        torch.set_num_threads(threads)
    module: nn.Module = unpickled(model)
    with evaluating(module):
        return {"rows": sum(FileLayers(layout, module).compute(k, first, stop))}


@contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    """Context with an empty folder, which is removed at the end. Those that killed processes left are removed too."""
    where = Path(tempfile.gettempdir()) if parent is None or not os.access(parent, os.W_OK) else parent
    sweep_leftovers(where, "layers")
    with folder_aside(where / "layers") as folder:
        yield folder.resolve()
