"""Plans: memory, bytes and time of each system for a job, and the system to choose.

Every system has a trial of a few steps on this machine (`trial_setup`, `trial`). Formulas extrapolate from it to a
whole run on the cluster (`traffic`, `forecast`).
"""

import math
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...stages.models.base import ModelConfig
from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.plural import counted
from ..config.aliases import with_options
from ..config.systems import SYSTEMS
from ..telemetry.console import console_events
from ..telemetry.events import Emit, StageAdvanced, StageEnded, StageStarted
from ..telemetry.quantities import amount
from .choice import choice
from .forecast import Forecast
from .grids import GridForecast, grid_forecasts
from .inputs import Cluster, Numbers, candidates
from .trial_setup import Trials


@dataclass(frozen=True)
class Plan:
    """Predictions for a job under every system."""

    dataset: str
    numbers: Numbers
    ranks: int
    epochs: int
    """Epochs that were asked for."""
    cluster: Cluster
    memory_bytes: int
    """Memory for a rank."""
    device_bytes: int
    """Memory for a rank on its GPU; 0: ranks train on CPUs."""
    systems: tuple[Forecast, ...]
    recommended: str | None
    """Label of the system that takes least time for the epochs, by `choice`; None if nothing fits."""
    why: str
    goals: Mapping[str, str]
    """Label of the best system for each other goal."""
    stands_in: bool
    """True if a generated graph stood in for the real one."""
    notes: tuple[str, ...]
    """Limits of the comparison."""
    seconds: float
    """Seconds of planning."""
    grids: tuple[GridForecast, ...] = ()
    """Cost of sampling over block rows, by replication and algorithm."""
    trials: Mapping[str, Any] = field(default_factory=dict)
    """Measurements of each trial, by label."""

    def to_record(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {"schema_version": 1, **asdict(self)}


def plan(
    dataset: Dataset | str | Path | object | None = None,
    *,
    numbers: Numbers | None = None,
    cluster: Cluster | None = None,
    verbose: bool = True,
    emit: Emit | None = None,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Plan:
    """Predict memory, bytes and time of a job under every system that runs it; `Plan.notes` say why others do not.

    Args:
        dataset: anything that `run` takes.
        numbers: in place of a dataset: a generated graph of the same density stands in for it.
        cluster: cluster that the job is to run on; by default this machine.
        verbose: print progress, as the command line does.
        emit: called with every event; nothing is printed then.
        config: tables of the configuration.
        options: configuration keys and their shorthands, as for `run`, including ``model`` (a name or a record such as
            ``GraphSAGE(hidden=128)``); ``system`` and ``executor`` are ignored.

    Raises:
        InputError: the data and the configuration do not go together, or there is no such cluster.
        RunError: a trial failed.
    """
    started = time.perf_counter()
    table = dict(config or {})
    if isinstance(model := options.pop("model", None), ModelConfig):
        table["model"] = {"name": model.name, **vars(model)}
    elif model is not None and not isinstance(model, str | Mapping):
        raise InputError(
            f"model is a {type(model).__name__}: plan knows Millrace's own models; give one of these, of like width"
        )
    elif model is not None:
        options["model"] = model
    jobs = candidates(with_options(table, options))
    first = next(iter(jobs.values()))
    where = (cluster or Cluster()).check(first.ranks)
    fitted, forecasts, seen, left_out = {}, [], {}, []
    with ExitStack() as exits:
        tell = exits.enter_context(console_events(emit, verbose))
        scratch = exits.enter_context(tempfile.TemporaryDirectory(prefix="millrace-plan-"))
        trials = Trials(first, dataset, numbers, where, Path(scratch), tell, exits=exits)
        at = trials.at
        if first.ranks > at.numbers.nodes:
            raise InputError(
                f"ranks is {first.ranks:,}, but the graph has {at.numbers.nodes:,} nodes; expected at most one for each"
            )
        for label, job in jobs.items():
            try:
                fitted[label] = trials.fitted(job)
            except InputError as e:
                if job is first:
                    raise
                left_out.append(f"{label} is left out: {e}.")
        tell(StageStarted("plan", f"trying {at.dataset.name}", len(fitted)))
        for label, (job, system) in fitted.items():
            forecast, result = trials.forecast(label, job, system)
            forecasts.append(forecast)
            seen |= {} if result is None else {label: asdict(result)}
            tell(StageAdvanced("plan", len(forecasts), len(fitted)))
        tell(StageEnded("plan", seconds := time.perf_counter() - started))
    entries = [SYSTEMS.find(name) for name in dict.fromkeys(f.system for f in forecasts)]
    notes = [*left_out, *(entry.plan_note for entry in entries if entry.plan_note), "Accuracy is not predicted."]
    notes += [f"A rank of {f.label} sees {f.share_seen:.0%} of the nodes at a time." for f in forecasts if f.share_seen]
    if any(job.graph == "mapped" for job, _ in fitted.values()):
        notes.append("Memory of jobs that map the graph is without the pages of files, which the system can take back.")
    for label, (job, _) in fitted.items():
        if job.graph != first.graph:
            why = SYSTEMS.find(job.system).unmapped(job)
            notes.append(f'{label} is planned with graph = "memory": it {why}.')
    for f in forecasts:
        if (disk := f.disk) is None:
            continue
        each, count = seen[f.label]["nodes"][0] * at.numbers.features * 4, math.ceil(at.train / first.train.batch_size)
        shared = counted(disk.together, "minibatch", "minibatches")
        notes.append(
            f"{f.label} reads {amount(disk.bytes_per_epoch)} of features in an epoch, {shared} together: "
            f"{disk.seconds_per_epoch:.3g} s by their disk's rate now. Packed beside samples (sample "
            f"--features=float32), features of {f.epochs:,} epochs take {amount(each * count * f.epochs)} of disk; a "
            f"minibatch reads {amount(each)} in order, in {disk.packed_seconds:.3g} s."
        )
    if at.gpus:
        notes.append("On a GPU it is memory of tensors: an allocator's gaps come on top.")
    if at.stands_in:
        notes.append(f"An estimate: trials ran on {at.dataset.name}, which stands in for the graph.")
    asked = trials.name, at.numbers, first.ranks, first.epochs, where
    found = tuple(forecasts), *choice(forecasts, first.epochs, bool(where.link)), at.stands_in, tuple(notes)
    return Plan(*asked, trials.room, at.device_room, *found, seconds, grids=grid_forecasts(at, first), trials=seen)
