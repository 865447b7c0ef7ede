"""A sweep: many runs over shared samples, as tasks of a Dask cluster, and their table."""

import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...stages.models.base import reads_edges
from ...stages.models.pyg.weights import needs_own_weights
from ...stages.random import Purpose, stream, torch_seed
from ...storage.dataset import Dataset
from ...storage.dataset_store import write_dataset
from ...storage.errors import InputError, StoreError, first_line, whole_number
from ...storage.fingerprint import digest_record
from ...storage.optional import present
from ...storage.store.paths import local_folder
from ...storage.store.regular import file_bytes
from ..config.load import Job
from ..config.records import is_record, make_system, negatives_of, table_of
from ..config.systems import SYSTEMS, System
from ..custom.model_argument import as_record_or_module
from ..custom.own_code import check_beside, split_code
from ..custom.user_module import module_named
from ..not_read import idle_sections
from ..precompute import precompute
from ..ready import draws_initial, dry_run
from ..setup.configure import check_cut_in_file, check_used, sections_of, with_sections
from ..setup.fingerprint import digests_of
from ..setup.open_data import absolute_source
from ..setup.result import read_result, write_json
from ..setup.run_folder import locked
from ..telemetry.console import console_events
from ..telemetry.events import Emit, Note, StageAdvanced, StageEnded, StageStarted
from ..telemetry.main_metric import main_metric_of
from ..telemetry.quantities import decimal
from .grid import Point, points
from .task import end_runs, run_as_task, run_one, several_runs

RECORD, SAMPLES, DATASET = "sweep.json", "samples", "dataset"


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """A sweep that has ended."""

    out: Path
    """Its folder, with a run's folder for each."""
    rows: list[dict[str, Any]]
    """For each setting, the best first: ``setting``, ``runs``, ``failed``, mean and standard deviation over seeds of
    ``val_accuracy``, ``test_accuracy`` (pairs; None if there are none; of a regression ``val_rmse``, ``test_rmse``, of
    links ``val_mrr``, ``test_mrr``), ``metric`` (which of these), mean ``epochs`` and ``seconds``, and the ``folders``
    of its runs."""
    failures: dict[str, str]
    """Messages of the runs that failed, by folder."""
    sampled_s: float
    """Seconds of drawing samples that runs have shared."""

    def __repr__(self) -> str:
        return table_text(self.rows)


def sweep(
    dataset: Any = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 1,
    out: str | Path,
    jobs: int | None = None,
    share: bool = True,
    verbose: bool = True,
    emit: Emit | None = None,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Sweep:
    """Run all combinations of some settings, each with several seeds.

    Runs with the same minibatches train from one store of samples, drawn once. Repeating the call continues an
    interrupted sweep: it keeps finished runs and resumes the others.

    Args:
        dataset: as in `run`.
        grid: values by configuration key or shorthand, such as ``{"lr": [0.01, 0.003], "model": ["sage", "gat"]}``.
        seeds: runs of each setting, which differ in their initial parameters.
        out: the sweep's folder.
        jobs: runs at a time, each in a process of its own with its share of the cores; by default one for each core. 1:
            one after the other in this process. Runs of several ranks always go one after the other.
        share: draw samples once for all runs that can share them.
        verbose: print notes and progress.
        emit: called with events; nothing is printed then.
        config: a configuration that the grid varies.
        options: configuration keys, shorthands and code, as `run` takes them.

    Raises:
        InputError: the settings do not go together, or `out` holds another sweep.
    """
    from ..config.aliases import full_key, with_options

    grid, out = grid or {}, local_folder(out)
    given = {key: options.pop(key, None) for key in ("loss", "optimizer", "scheduler", "metrics")}
    found, options = split_code(given, options)
    code = {"callbacks": options.pop("callbacks")} if "callbacks" in options else {}
    code |= {k: v for k, v in found.items() if k == "loss" or v}
    # Neither a name of Millrace's own nor a table of its options.
    if not isinstance(options.get("model", ""), str | Mapping) or ":" in options.get("model", ""):
        code["model"] = options.pop("model")
    base = with_options(dict(config or {}), {k: table_of(v) if is_record(v) else v for k, v in options.items()})
    if isinstance(system := base.get("system"), System):
        check_cut_in_file(system, "a sweep takes")
        base = with_sections(base, sections_of(system, None))
    if (model := code.get("model")) is not None:
        net = as_record_or_module(module_named(model) if isinstance(model, str) else model)
        base = with_sections(base, sections_of(None, net))
        if not isinstance(net, nn.Module):
            del code["model"]
        else:  # samples of the configuration alone do not keep which edges were drawn
            share = share and not (reads_edges(net) or needs_own_weights(net))
    if isinstance(dataset, str | Path):
        base["dataset"] = str(dataset)
    train, varied = base.get("train"), [full_key(key.split("."), None) for key in grid]
    keys = {path[-1] for path in varied if path[0] == "train"} | set(train if isinstance(train, Mapping) else ())
    check_beside(keys, code)
    planned = points(base, grid, seeds)
    check_used([p.job for p in planned], trains=True)
    own = None if isinstance(code.get("model"), str) else as_record_or_module(code.get("model"))
    if seeds > 1 and own is not None and not draws_initial(planned[0].job, own):
        raise InputError(
            f"seeds is {seeds}, but the model, a {type(own).__name__}, has its initial parameters, which all runs "
            "would share; give it by its name, model='MODULE:NAME', by which each run makes its own"
        )
    if jobs is not None:
        jobs = whole_number("jobs", jobs, 1)
    in_memory = dataset if dataset is not None and not isinstance(dataset, str | Path) else None
    with console_events(emit, verbose) as tell, locked(out):
        planned = [_with_data(p, in_memory, out) for p in planned]
        _begin(out, planned)
        if in_memory is not None:
            _keep(in_memory, out, tell)
        with several_runs():
            _check_done(planned, out, code)
            stores, sampled_s = _shared_samples(planned, out, tell) if share else ({}, 0.0)
            done = _run_all(planned, out, stores, jobs, code, tell)
        rows, failures = _rows(planned, out, done)
        write_json(out / RECORD, {**_record(planned), "rows": rows, "failures": failures, "sampled_s": sampled_s})
    return Sweep(out, rows, failures, sampled_s)


def _with_data(point: Point, in_memory: object, out: Path) -> Point:
    source = str((out / DATASET).resolve()) if in_memory is not None else absolute_source(point.job.dataset)
    return Point(point.name, point.setting, point.seed, point.job.model_copy(update={"dataset": source}))


def _keep(dataset: Any, out: Path, emit: Emit) -> None:
    """Write a dataset from Python where all runs read it."""
    from ..datasets import open_dataset

    opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    if not (out / DATASET).exists():
        write_dataset(out / DATASET, opened)
        emit(Note(f"the dataset is written to {out / DATASET}, where all runs read it"))
    elif digests_of(opened) != digests_of(open_dataset(out / DATASET)):
        raise InputError(f"{out} holds a sweep over other data; give the same data to go on, or choose another --out")


def _record(planned: Sequence[Point]) -> dict[str, object]:
    runs = [{"name": p.name, "setting": p.setting, "seed": p.seed} for p in planned]
    return {"runs": runs, "jobs": digest_record({p.name: p.job.model_dump(mode="json") for p in planned})}


def _begin(out: Path, planned: Sequence[Point]) -> None:
    """Write what is to be run, or check that the folder's sweep is the same."""
    record, path = _record(planned), out / RECORD
    if os.path.lexists(path):
        try:
            before = str(json.loads(file_bytes(path))["jobs"])
        except (ValueError, KeyError, TypeError, OSError, RecursionError) as e:
            raise StoreError(
                f"{path} is damaged ({type(e).__name__}: {first_line(e)}); copy it again, or choose another --out"
            ) from None
        if before == record["jobs"]:
            return
        samples = out / SAMPLES
        if any(p not in (path, samples, out / ".lock") for p in out.iterdir()) or any(samples.glob("*")):
            raise InputError(f"{out} holds another sweep; give the same settings to go on, or choose another --out")
    elif any(p.name != ".lock" for p in out.iterdir()):
        raise InputError(f"{out} is not empty and holds no sweep; choose another --out")
    write_json(path, record)


def _check_done(planned: Sequence[Point], out: Path, code: Mapping[str, Any]) -> None:
    """Refuse to go on where a run that is done has other data or code, as a resumed run does."""
    done = next((p for p in planned if _is_done(out / p.name)), None)
    if done is None:
        return
    if isinstance(name := code.get("model"), str):
        # As `run_one` makes it.
        torch.manual_seed(torch_seed(stream(done.job.seed_of("initial"), Purpose.INIT)))
        code = {**code, "model": module_named(name)}
    try:
        dry_run(config=done.job, out=out / done.name, resume=True, **code)
    except InputError as e:
        raise type(e)(f"{out} holds runs that are done, and cannot go on: {e}") from None


def _shared_samples(planned: Sequence[Point], out: Path, emit: Emit) -> tuple[dict[str, str], float]:
    """Stores of samples by the name of a run that trains from one, and the seconds of drawing them now."""
    groups: dict[str, list[Point]] = {}
    for point in planned:
        if _can_share(point.job):
            groups.setdefault(_sample_key(point.job), []).append(point)
    found, seconds = {}, 0.0
    for number, group in enumerate(g for g in groups.values() if len(g) > 1):
        path = out / SAMPLES / str(number)
        if all(_is_done(out / p.name) for p in group):
            continue
        job = max((p.job for p in group), key=lambda j: j.epochs)
        path.parent.mkdir(exist_ok=True)
        seconds += precompute(job, path, emit=emit, stop=lambda: False)["seconds"]
        found |= {p.name: str(path.resolve()) for p in group}
    return found, seconds


def _can_share(job: Job) -> bool:
    sample = make_system(job).sample if SYSTEMS.find(job.system).draws(job) else None
    return sample is not None and sample.uses_queue and job.queue.kind == "memory"


def _sample_key(job: Job) -> str:
    """Key of all settings that minibatches of a job may depend on."""
    keys = {"dataset", "split", "read", "sampler", "kernel", "queue", "features", "graph"}
    record = job.model_dump(mode="json", include=keys)
    record["negatives"] = negatives_of(job).record()
    seeds = {part: job.seed_of(part) for part in ("split", "minibatches")}
    return digest_record({**record, **seeds, "system": job.system, "batch_size": job.train.batch_size})


def _is_done(folder: Path) -> bool:
    try:
        result = read_result(folder)
    except Exception:
        return False
    return result is not None and result.get("status") == "done"


def _run_all(
    planned: Sequence[Point],
    out: Path,
    stores: Mapping[str, str],
    jobs: int | None,
    code: dict[str, object],
    emit: Emit,
) -> dict[str, dict[str, object]]:
    """Outcome of each run that was not done before."""
    left = [p for p in planned if not _is_done(out / p.name)]
    alone = any(p.job.ranks > 1 or p.job.executor == "dask" or p.job.device == "cuda" for p in left)
    cores = os.cpu_count() or 1
    jobs = 1 if alone else min(jobs or cores, max(1, len(left)))
    for text in idle_sections([p.job for p in planned]):
        if jobs == 1 or not text.startswith("cluster."):  # others are tasks of a cluster
            emit(Note(text))
    emit(StageStarted("sweep", f"{len(left)} runs, {jobs} at a time", len(planned)))

    def arguments(point: Point) -> tuple[Any, ...]:
        threads = None if jobs == 1 else max(1, cores // jobs)
        folder = str((out / point.name).resolve())
        return point.job.model_dump(mode="json"), folder, stores.get(point.name), threads, code

    outcomes: dict[str, dict[str, Any]] = {}
    in_turn = ((point.name, run_one(*arguments(point))) for point in left)
    for name, outcome in in_turn if jobs == 1 else _as_tasks(left, arguments, jobs, emit):
        outcomes[name] = outcome
        if "failed" in outcome:
            emit(Note(f"run {name} failed: {outcome['failed']}"))
        emit(StageAdvanced("sweep", len(planned) - len(left) + len(outcomes), len(planned)))
    emit(StageEnded("sweep", 0.0))
    return outcomes


def _as_tasks(
    left: Sequence[Point], arguments: Callable[[Point], tuple[Any, ...]], jobs: int, emit: Emit
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs as tasks of a cluster; one that is lost with its worker is resumed elsewhere."""
    from distributed import as_completed

    from ..cluster.dask_cluster import check_reachable, opened

    check_reachable(left[0].job.cluster)
    with opened(left[0].job, emit, jobs) as client:
        futures = {
            client.submit(run_as_task, *arguments(p), key=f"sweep-{p.name}-{id(left)}", pure=False): p for p in left
        }
        for future in as_completed(futures, loop=client.loop):
            point = futures[future]
            try:
                yield point.name, future.result()
            except Exception as e:
                yield point.name, {"failed": f"{type(e).__name__}: {e}"}
        if not left[0].job.cluster.starts_here:
            client.run(end_runs)


def _rows(
    planned: Sequence[Point], out: Path, outcomes: Mapping[str, Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The table of settings, the best first by the main metric of the validation, and the failures."""
    groups: dict[str, list[Point]] = {}
    for point in planned:
        groups.setdefault(json.dumps(point.setting, sort_keys=True), []).append(point)
    rows, failures = [], {p.name: str(o["failed"]) for p in planned if "failed" in (o := outcomes.get(p.name, {}))}
    metric = "accuracy"
    for group in groups.values():
        results = [r for p in group if _is_done(out / p.name) and (r := read_result(out / p.name)) is not None]
        scores = {split: [main_metric_of(r, split) for r in results] for split in ("val", "test")}
        metric = next((name for name, _ in scores["val"]), metric)
        rows.append(
            {
                "setting": group[0].setting,
                "runs": len(results),
                "failed": sum(p.name in failures for p in group),
                "metric": metric,
                **{f"{split}_{metric}": _spread([v for _, v in found]) for split, found in scores.items()},
                "epochs": statistics.mean(r["epochs"] for r in results) if results else None,
                "seconds": statistics.mean(r["seconds"]["total"] for r in results) if results else None,
                "folders": [p.name for p in group],
            }
        )
    return sorted(rows, key=_order_key), failures


def _order_key(row: Mapping[str, object]) -> float:
    """Key of a setting, the smaller the better; settings without a validation come last."""
    name, spread = _score(row, "val")
    return math.inf if spread is None else spread[0] if name == "rmse" else -spread[0]


def _score(row: Mapping[str, Any], split: str) -> tuple[str, list[float] | None]:
    """The main metric of a setting, and its spread."""
    name = row["metric"]
    return name, row.get(f"{split}_{name}")


def _spread(values: Sequence[float | None]) -> list[float] | None:
    """Mean and standard deviation."""
    known = present(values)
    if not known:
        return None
    return [statistics.mean(known), statistics.stdev(known) if len(known) > 1 else 0.0]


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of settings for people."""
    keys = list(rows[0]["setting"]) if rows else []
    metrics = {name for row in rows if (name := _score(row, "val")[0]) != "accuracy"}
    called = f" {metrics.pop()}" if len(metrics) == 1 else ""
    lines = [[*keys, "runs", f"validation{called}", f"test{called}", "epochs", "seconds"]]
    for row in rows:
        shares = [
            "none" if s is None else f"{s[0]:.4f} ± {s[1]:.4f}" for s in (_score(row, k)[1] for k in ("val", "test"))
        ]
        runs = f"{row['runs']}" + (f" ({row['failed']} failed)" if row["failed"] else "")
        means = [decimal(row[k], d) for k, d in (("epochs", 0), ("seconds", 1))]
        lines.append([*(json.dumps(row["setting"][k]) for k in keys), runs, *shares, *means])
    widths = [max(len(line[c]) for line in lines) for c in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines)
