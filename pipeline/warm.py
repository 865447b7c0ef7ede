"""Compilation of all CPU kernels for this machine: tiny jobs, run side by side, that need them."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..stages.kernels.runtime.threads import own_cores
from .machine.deadline import temporary_folder

GRAPH = "sbm:nodes=200,classes=3,degree=6,features=8"
TYPED = "hsbm:nodes=60,classes=2,degree=3,features=8"
TIMED = "tsbm:nodes=100,days=20,degree=3,features=8"
TINY: dict[str, Any] = {"epochs": 1, "hidden": 8, "layers": 2, "threads": 1, "dropout": 0.5}


@dataclass(frozen=True)
class Trial:
    """A tiny job."""

    name: str
    config: dict[str, Any]
    weighted: bool = False
    """True if its graph has edge weights."""
    edge_features: bool = False
    """True if its edges have features."""
    typed: bool = False
    """On a graph with several types of nodes and edges."""
    timed: bool = False
    """On a graph with times."""


@dataclass(frozen=True)
class Warmed:
    """A tiny job that has run: its kernels are in the cache."""

    name: str
    compiled: int
    """Kernels that were compiled for it and not found in the cache."""
    seconds: float


def trials(dtype: str) -> list[Trial]:
    """Jobs that together need every kernel which jobs of this dtype on one rank need: each model, sampler and
    system."""
    from ..stages.learned.optimizers import OPTIMIZERS
    from ..stages.models import MODELS
    from ..stages.sample import SAMPLERS
    from ..stages.sample.base import reads_times
    from .config.systems import SYSTEMS

    first, default = next(iter(SAMPLERS)), next(iter(SYSTEMS))
    found = [
        Trial(name, {"model": {"name": name}}, edge_features=model.reads_edges, typed=model.reads_relations)
        for name, model in MODELS.items()
        if name != "identity"  # has no kernels
    ]
    found += [
        Trial(f"{name} sampling", {"sampler": {"name": name}}, timed=reads_times(SAMPLERS.find(name)))
        for name in SAMPLERS
        if name != first
    ]
    found.append(Trial("weighted sampling", {"sampler": {"name": first, "weighted": True}}, weighted=True))
    found.append(Trial("whole neighbourhoods", {"sampler": {"name": first, "fanout": [-1, -1]}}))
    found += [Trial(name, {"system": name}) for name in SYSTEMS if name != default]
    found += [Trial(f"learnt features, {name}", {"learned": {"width": 4, "optimizer": name}}) for name in OPTIMIZERS]
    return [replace(t, config={"dtype": dtype, **t.config}) for t in found]


def warm_up(dtype: str, processes: int | None = None) -> Iterator[Warmed]:
    """Run the trials in processes of their own, `processes` or one for each core.

    Raises:
        Exception: a trial failed.
    """
    from ..stages.kernels.runtime import precompile

    jobs = trials(dtype)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes or own_cores(), len(jobs)), mp_context=context) as pool:
        try:
            for done in as_completed([pool.submit(run_trial, trial) for trial in jobs]):
                yield done.result()
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.kill()  # it may be long in a compiler, and kernels are saved one by one
            raise
    if dtype == "float32":
        # Writes the marker by which a run knows that nothing is left to do.
        precompile.compile_all()


def run_trial(trial: Trial) -> Warmed:
    """Run one trial here."""
    import numpy as np
    from numba.core import event

    from ..stages.kernels.runtime import precompile
    from ..storage.features import ArrayFeatures
    from .datasets import open_dataset
    from .run import run

    class Count(event.Listener):
        count = 0

        def on_start(self, event: Any) -> None:
            self.count += event.data["dispatcher"].__module__.startswith(f"{precompile.PACKAGE}.")

        def on_end(self, event: object) -> None:
            pass

    start, compiled = time.perf_counter(), Count()
    dataset = open_dataset(TYPED if trial.typed else TIMED if trial.timed else GRAPH)
    if trial.weighted:
        weight = np.ones(dataset.graph.num_edges, np.float32)
        dataset = replace(dataset, graph=replace(dataset.graph, edge_weight=weight))
    if trial.edge_features:
        rows = ArrayFeatures(np.ones((dataset.graph.num_edges, 2), np.float32))
        dataset = replace(dataset, graph=replace(dataset.graph, edge_features=rows))
    with (
        temporary_folder("millrace-warm-") as folder,
        event.install_listener("numba:compile", compiled),
    ):
        run(dataset, out=Path(folder, "run"), verbose=False, **{**TINY, **trial.config})
    return Warmed(trial.name, compiled.count, time.perf_counter() - start)


def cache_folder() -> Path:
    """The folder below which compiled kernels are kept."""
    from ..stages.kernels.runtime.transpose import transpose

    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(given).resolve()
    kept = Path(transpose._cache.cache_path)
    # Beside the sources, where that can be written: a __pycache__ in each of their folders.
    return kept.parents[1] if kept.name == "__pycache__" else kept.parent
