"""Millrace through `millrace.run`; and, with the option `pairs`, compared with the same stages in a plain loop.

Options: set (configuration overrides such as "queue.bulk_size=16"), store (a dataset's store to train from), ranks
(more than one: on a local cluster, the 1024 seeds of a step dealt out to them), pairs, halves (the plain loop alone,
for 1024 seeds at once beside two minibatches of 512), steps (a file: nothing is measured here, the run has no end, and
the number of steps done is kept in that file).

The queue is bounded so that sampling is one bulk ahead: with the default bound it would run through all epochs during
the warm-up, and the measured ones would have none. For the same reason an epoch follows that does not count. `val` and
`test` are empty, so nothing is evaluated.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from train_task import BATCH, CLASSES, FANOUT, HEADS, HIDDEN, LR, Parts, Task, memory, read, reset_peak, settle

import millrace as mr
from millrace.pipeline.config.aliases import merged
from millrace.pipeline.config.load import parse_override
from millrace.pipeline.config.records import make_system
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.prepare import prepare
from millrace.pipeline.telemetry.events import EpochDone, StepDone
from millrace.stages.assignment import SeedPlan
from millrace.stages.comm.solo import Solo
from millrace.stages.forward_backward import forward_backward
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.memory.arena import Arena, reusing
from millrace.stages.messages import RankJob
from millrace.storage.features import ArrayFeatures
from millrace.storage.ledger import Ledger

STAGES = ("sample", "queue_wait", "fetch", "fetch_wait", "exchange", "forward_backward", "reduce")
FIRST = 2
"""Minibatches of the run that comes first, which loads compiled code."""


def configured(task: Task, own: dict[str, Any]) -> dict[str, Any]:
    """The job, but for its epochs: the common settings, a task's `own`, and the options of this engine."""
    table: dict[str, Any] = {
        "sampler": {"name": "neighbor", "fanout": list(FANOUT)},
        "train": {"batch_size": BATCH, "optimizer": "adam", "lr": LR, "evaluate_every": 0},
        # One bulk ahead: see above.
        "queue": {"max_bytes": 1},
        "threads": task.threads,
    }
    for key, value in own.items():
        table[key] = {**table[key], **value} if isinstance(table.get(key), dict) else value
    for text in task.options.get("set", []):
        table = merged(table, *parse_override(text))
    return table


def config(task: Task) -> dict[str, Any]:
    """The job, but for its epochs."""
    ranks = task.options.get("ranks", 1)
    heads = {"heads": HEADS} if task.model == "gat" else {}
    own = {
        "model": {"name": task.model, "hidden": HIDDEN, "layers": len(FANOUT), "dropout": task.dropout, **heads},
        "train": {"batch_size": BATCH // ranks},
        "ranks": ranks,
        "cluster": {"dashboard_port": 0} if ranks > 1 else {},
    }
    return configured(task, own)


def dataset(task: Task) -> mr.Dataset:
    """In memory; all seeds in the train split."""
    features, labels = task.data()
    none = np.empty(0, np.int64)
    return mr.Dataset(
        "epoch", mr.Graph(*task.graph()), ArrayFeatures(features), labels, mr.Split(task.seeds(), none, none), CLASSES
    )


class Watch:
    """Seconds of each epoch of a run, from the end of the one before: whatever happens in between counts."""

    def __init__(self, epochs: int) -> None:
        self._last = epochs
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.losses: list[float] = []
        self.peak_bytes = 0

    def __call__(self, event: Any) -> None:
        """See `millrace.run`, `emit`."""
        if isinstance(event, EpochDone):
            if event.epoch == 0:
                reset_peak()
            if event.epoch == self._last:
                self.peak_bytes = memory("VmHWM")
            self.wall.append(time.perf_counter())
            self.cpu.append(time.process_time())
            self.losses.append(event.train_loss)

    def ms(self, minibatches: int, clock: str = "wall") -> float:
        """Milliseconds a minibatch over the measured epochs."""
        marks = getattr(self, clock)
        return 1000 * (marks[self._last] - marks[0]) / self._last / minibatches


def run(task: Task, data: mr.Dataset | str) -> tuple[mr.Result, Watch]:
    """One epoch to warm up, those that are measured, and one that does not count."""
    watch = Watch(task.epochs)
    with tempfile.TemporaryDirectory() as folder:
        return mr.run(data, config=config(task), epochs=task.epochs + 2, out=Path(folder) / "run", emit=watch), watch


def run_on(task: Task) -> None:
    """Train from the store until somebody kills this process."""
    target = Path(task.options["steps"])

    def count(event: Any) -> None:
        if isinstance(event, StepDone):
            partial = target.with_suffix(".partial")
            partial.write_text(str(event.epoch * event.steps_per_epoch + event.step + 1))
            partial.rename(target)

    with tempfile.TemporaryDirectory() as folder:
        mr.run(task.options["store"], config=config(task), epochs=1_000_000, out=Path(folder) / "run", emit=count)


def warm_up(task: Task, data: mr.Dataset, table: dict[str, Any] | None = None, out: Path | None = None) -> None:
    """A short run, on FIRST minibatches."""
    table = table or config(task)
    count = FIRST * table["train"]["batch_size"] * task.options.get("ranks", 1)
    few = replace(data, split=replace(data.split, train=data.split.train[:count]))
    with tempfile.TemporaryDirectory() as folder:
        mr.run(few, config=table, epochs=1, out=out or Path(folder) / "run")


def sizes(task: Task) -> dict[str, float]:
    """See `sizes_of`, for BATCH seeds."""
    job: Any = configure(config(task))
    plan = SeedPlan(task.seeds(), job.train.batch_size, job.queue.bulk_size, job.seed)
    system: Any = make_system(job)
    found = sizes_of(system.sample.sampler, mr.Graph(*task.graph()), plan)
    return {name: job.ranks * size for name, size in found.items()}


def sizes_of(sampler: Any, graph: mr.Graph, plan: SeedPlan) -> dict[str, float]:
    """Edges that the layers read, rows that they compute and nodes whose features they read, for a minibatch: means
    over a bulk."""
    drawn = sampler.sample(graph, plan.request(0, 0), cpu).minibatches
    return {
        "aggregated": float(np.mean([sum(b.num_edges for b in m.blocks) for m in drawn])),
        "rows": float(np.mean([sum(b.num_dst for b in m.blocks) for m in drawn])),
        "nodes": float(np.mean([len(m.nodes) for m in drawn])),
    }


def measure(task: Task) -> dict[str, Any]:
    """See `train_task.train` for what is answered; `steps_ms` is the run's own account of its epochs.

    With a store that account is `ms` too, since the events of ranks come late: the driver looks for them 20 times a
    second. The peak of ranks is the sum over them.
    """
    store = task.options.get("store")
    data = store or dataset(task)
    loaded = settle()
    if isinstance(data, mr.Dataset):
        warm_up(task, data)
    result, watch = run(task, data)
    steps_ms = 1000 * float(np.mean(result.seconds["per_epoch"][1:-1])) / task.minibatches
    found = {**measures(task, result, watch), "loaded_bytes": loaded, "steps_ms": steps_ms, **sizes(task)}
    found |= {"ms": steps_ms} if store else {}
    return found | ({"cpu_ms": None, "peak_bytes": sum(result.peak_rss_bytes)} if result.ranks > 1 else {})


def measures(task: Task, result: mr.Result, watch: Watch) -> dict[str, Any]:
    """Time, memory and work of a run of one process."""
    # A step of several ranks is as many minibatches as one rank's: BATCH seeds.
    count = task.minibatches * result.epochs
    return {
        "ms": watch.ms(task.minibatches),
        "cpu_ms": watch.ms(task.minibatches, "cpu"),
        "parts_ms": {name: 1000 * result.seconds[name] / count for name in STAGES if result.seconds[name]},
        "edges": result.sampled_edges / count,
        "loss": result.train_loss,
        "losses": watch.losses,
        "peak_bytes": watch.peak_bytes,
    }


def measured(
    task: Task, data: mr.Dataset, table: dict[str, Any], started: Callable[[Path], None] | None = None
) -> dict[str, Any]:
    """Train on a dataset in memory, by a job but for its epochs, and answer; see `train_task.train`.

    Args:
        task: the driver's request.
        data: whose train split is N minibatches.
        table: the job, as `configured` makes it.
        started: called with the folder of the short run that comes first; what it leaves there as the run's
            parameters, the measured run begins with. None: it draws its own.
    """
    watch, loaded = Watch(task.epochs), settle()
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first"
        warm_up(task, data, table, first)
        if started is not None:
            started(first)
            table = {**table, "start_from": str(first)}
        result = mr.run(data, config=table, epochs=task.epochs + 2, out=Path(folder) / "run", emit=watch)
    return {**measures(task, result, watch), "loaded_bytes": loaded}


class Bare:
    """The stages of a run without its loop, queue, events and checkpoints: the same minibatches one after the other."""

    def __init__(self, task: Task, data: mr.Dataset) -> None:
        self.job = configure(config(task), epochs=task.epochs + 2)
        prepared = prepare(self.job, data)
        self.task, self.graph = task, data.graph
        rank_job = RankJob(
            seed=self.job.seed,
            batch_size=self.job.train.batch_size,
            bulk_size=self.job.queue.bulk_size,
            epochs=self.job.epochs,
            dtype=torch.float32,
            kernel=cpu,
            group=Solo(),
            ledger=Ledger(),
        )
        system: Any = prepared.system
        self.sampler, self.plan = system.sample.sampler, system.sample.plan(prepared.data, rank_job)
        self.model = prepared.model.build().train()
        self.fetcher = system.fetch.fetcher(prepared.data, rank_job, self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LR)
        self.workspace, self.arena = cpu.Workspace(), Arena()

    def ms(self, parts: Parts) -> float:
        """Train on the minibatches of the run's measured epochs; milliseconds a minibatch."""
        start = time.perf_counter()
        for epoch in range(1, self.task.epochs + 1):
            for number in range(self.plan.num_bulks):
                with parts.measure("sample"):
                    bulk = self.sampler.sample(self.graph, self.plan.request(epoch, number), cpu, self.workspace)
                for minibatch in bulk.minibatches:
                    with reusing(self.arena):
                        self._step(minibatch, parts)
                    self.arena.step()
        return 1000 * (time.perf_counter() - start) / self.task.epochs / self.task.minibatches

    def _step(self, minibatch: mr.MiniBatch, parts: Parts) -> None:
        with parts.measure("fetch"):
            fetched = self.fetcher.fetch(minibatch)
        with parts.measure("forward_backward"):
            self.optimizer.zero_grad(set_to_none=True)
            forward_backward(self.model, fetched, self.job.seed, "multiclass", 1 / len(fetched.y))
        with parts.measure("optimizer"):
            self.optimizer.step()


def compare(task: Task) -> dict[str, Any]:
    """`run` and the bare stages in turns, in this process: milliseconds a minibatch of each pair."""
    torch.set_num_threads(task.threads)
    data = dataset(task)
    warm_up(task, data)
    bare = Bare(task, data)
    bare.ms(Parts())
    parts = Parts()
    pairs = taken_in_turns(
        {"run": lambda: run(task, data)[1].ms(task.minibatches), "bare": lambda: bare.ms(parts)}, task.options["pairs"]
    )
    count = len(pairs) * task.epochs * task.minibatches
    return {"pairs": pairs, "bare_parts_ms": {name: 1000 * s / count for name, s in parts.seconds.items()}}


def compare_halves(task: Task) -> dict[str, Any]:
    """The bare stages for BATCH seeds at once, and for two minibatches of half of them, as two ranks have them, one
    after the other: what the halves cost of themselves, whoever trains on them. Milliseconds for BATCH seeds of each
    pair, and their `sizes`."""
    torch.set_num_threads(task.threads)
    data = dataset(task)
    warm_up(task, data)
    set_num_threads(task.threads)
    bare = {
        name: Bare(replace(task, options={**task.options, "ranks": n}), data)
        for name, n in (("halves", 2), ("whole", 1))
    }
    parts = {name: Parts() for name in bare}
    for b in bare.values():
        b.ms(Parts())
    pairs = taken_in_turns({name: partial(b.ms, parts[name]) for name, b in bare.items()}, task.options["pairs"])
    count = len(pairs) * task.epochs * task.minibatches
    parts_ms = {name: {k: 1000 * s / count for k, s in p.seconds.items()} for name, p in parts.items()}
    return {"pairs": pairs, "parts_ms": parts_ms, "sizes": {name: sizes(b.task) for name, b in bare.items()}}


def taken_in_turns(measured: dict[str, Callable[[], float]], pairs: int) -> list[dict[str, float]]:
    """Milliseconds of each; every other pair runs backwards."""
    names = list(measured)
    return [{name: measured[name]() for name in names[:: 1 if n % 2 == 0 else -1]} for n in range(pairs)]


if __name__ == "__main__":
    given, answer = read()
    if "steps" in given.options:
        run_on(given)
    else:
        answer(
            (compare_halves if "halves" in given.options else compare if "pairs" in given.options else measure)(given)
        )
