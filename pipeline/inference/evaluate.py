"""Evaluation of a finished run's model on every split."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...stages.evaluate.layerwise import evaluating
from ...stages.evaluate.link_metrics import known_of
from ...stages.evaluate.measures import ALWAYS, METRICS, Measures
from ...stages.evaluate.scored import nodes_to_evaluate, rows_of, scored, temporal_scored
from ...stages.evaluate.temporal import Draws
from ...storage.dataset import SPLITS, WITHOUT_ACCURACY, Dataset, counted_outputs
from ...storage.errors import InputError
from ...storage.optional import when_present
from ..custom.own_code import OwnCode
from ..datasets import ReadOptions
from ..setup.fingerprint import changed_since
from ..setup.model import Outline, loss_of, train_counts
from ..setup.result import Result
from ..telemetry.events import Emit, StageEnded, StageStarted, cautioning
from ..telemetry.metrics_file import finite
from .by_tasks import Workers
from .finished_run import TrainedRun, load
from .opened import Call, opened


def evaluate(
    run: TrainedRun | Result | str | Path,
    dataset: object = None,
    *,
    options: ReadOptions | None = None,
    model: object = None,
    workers: int = 1,
    scheduler: object = None,
    cluster: object = None,
    client: object = None,
    emit: Emit = cautioning,
) -> dict[str, Any]:
    """Accuracy, or errors of a regression, of a run's best parameters on each split, over full neighbourhoods, layer
    by layer; of a run by the sampler temporal over samples of what lies before each node or pair.

    Args:
        run: a finished run: its folder, or the result of `millrace.run` or of `load`.
        dataset: anything that `open_dataset` takes, with labels, the same features and classes; by default the run's
            own. The sets that it stores are evaluated. If it stores none, it has the run's where it is what the run
            was trained on, and else all that is labelled is its test set.
        options: see `predict`.
        model: for a run of your own module: see `load`.
        workers: see `predict`.
        scheduler: see `predict`.
        cluster: see `predict`.
        client: see `predict`.
        emit: called with every event.

    Returns:
        ``accuracy`` and ``metrics`` by split (None, or {}, of a split without nodes), ``run``, ``model``, ``dataset``,
        ``seconds``.

    Raises:
        InputError: the run is not finished, or the dataset cannot be opened.
        StoreError: the model is damaged, or does not fit the dataset.
    """
    trained = run if isinstance(run, TrainedRun) else load(run, model=model, emit=emit)
    call = Call(dataset, options, Workers.from_arguments(workers, scheduler, cluster, client), emit)
    found = opened(trained, call, "evaluate", model if trained is run else None)
    result, data = trained.result, in_classes_of(trained, found.data)
    classes = result.num_classes if result.task != "link" else 1
    of_edges = data.has_edge_labels
    if (data.num_classes, data.task, of_edges) != (classes, result.task, result.labels_of == "edges"):
        seen, wanted = (
            f"{counted_outputs(d.task, d.num_classes, edges)} ({d.task})"
            for d, edges in ((data, of_edges), (result, result.labels_of == "edges"))
        )
        raise InputError(f"{data.name} has {seen}, but {trained.folder} predicts {wanted}; give data with the same")
    start = time.perf_counter()
    emit(StageStarted("evaluate", f"evaluating {result.model} on {data.name}"))
    known = known_of(data.graph, data.labels)
    measures = _measures(trained, data)
    if (sampler := found.temporal) is not None:
        found.check_times()
        draws = Draws(sampler, trained.config.seed_of("minibatches"), chunk=found.chunk())
        values_of = {s: temporal_scored(measures, trained.model, data, draws, s, known) for s in SPLITS}
    else:
        outputs = found.outputs(found.model, nodes_to_evaluate(data), emit, "evaluate")
        rows = rows_of(outputs, data)
        with evaluating(trained.model):
            values_of = {split: scored(measures, trained.model, data, rows, split, known) for split in SPLITS}
    seconds = time.perf_counter() - start
    emit(StageEnded("evaluate", seconds))
    report: dict[str, Any] = {"run": str(trained.folder), "model": result.model, "dataset": data.name}
    if result.task not in WITHOUT_ACCURACY:
        report["accuracy"] = {split: None if s is None else s.accuracy for split, s in values_of.items()}
    if measures.names:
        of = {split: s.by_relation if s else {} for split, s in values_of.items()}
        if any(of.values()):
            report["per_relation"] = {split: {r: finite(dict(v)) for r, v in by.items()} for split, by in of.items()}
        report["metrics"] = {split: finite(dict(s.values)) if s else {} for split, s in values_of.items()}
    return {**report, "seconds": seconds}


def in_classes_of(trained: TrainedRun, data: Dataset) -> Dataset:
    """A dataset whose classes are numbered as those of a run, by their names. Raises InputError if the run does not
    know some."""
    result, y, names = trained.result, data.labels, when_present(tuple, trained.result.class_names)
    given, own = ([*(of.class_names or map(str, range(of.num_classes)))] for of in (data, result))
    numbered = data.class_names is result.class_names and len(given) > len(own)
    if data.task != result.task or data.task in ("regression", "link") or given == own or numbered:
        return data
    used = given if data.task == "multilabel" else [given[c] for c in np.unique(y[y >= 0])]
    if unknown := [name for name in used if name not in own]:
        raise InputError(
            f"{data.name} has the classes {', '.join(unknown)}, but {trained.folder} knows {', '.join(own)}; call them "
            f"as the run does, or leave theirs out: read.ignored_labels={','.join(unknown)}"
        )
    if data.task == "multilabel":
        return replace(data, labels=y[:, [given.index(name) for name in own if name in given]], class_names=names)
    number = np.array([own.index(name) if name in own else -1 for name in given] + [-1])
    return replace(data, labels=number[y], num_classes=len(own), class_names=names)


def _measures(trained: TrainedRun, data: Dataset) -> Measures:
    """The built-in metrics of a run; its own loss and metrics are not kept."""
    task, train = data.task, trained.config.train
    outline = Outline.from_dataset(data, balanced=train.loss.is_balanced)
    own_loss = "loss" in trained.result.fingerprint
    wanted = {*train.metrics, *ALWAYS.get(task, ())} - {"accuracy", *(["loss"] if own_loss else [])}
    is_weighted = "loss" in wanted and outline.train_counts is not None
    if is_weighted and {"labels", "train nodes"} & {*changed_since(trained.result.fingerprint, data)}:
        outline = replace(outline, train_counts=train_counts(trained.open_dataset()))  # weights are the run's
    loss = None if own_loss else loss_of(train.loss, outline, OwnCode())
    both = trained.config.link.ranked == "both"
    return Measures(task, [name for name in METRICS[task] if name in wanted], loss=loss, ranks_sources=both)
