"""Cleaning of labels: class numbers, multi-label matrices, and targets of a regression."""

import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ....storage.array_kinds import Float32Array, IdArray, Mask
from ....storage.dataset import MATRIX_TASKS, Dataset, Task, counted_outputs, is_labelled
from ....storage.errors import InputError, NoLabelsError
from ....storage.plural import are, counted, were
from .class_names import Numbered, numbered_text, without_ignored
from .options import ReadOptions
from .raw import AnyArray, GivenLabels

FEWEST_NAMES, NAMES_SHARE = 10, 0.9
"""Labels from which on they are taken for names, if so large a share of them are different."""
FEW_CLASSES = 1000
"""Number of classes up to which empty ones are not worth an error."""
LARGE_TARGET = 100
"""Target beyond which there is a note: outputs begin near 0."""


class CleanLabels(NamedTuple):
    """Labels, classes and task of a dataset."""

    labels: AnyArray
    num_classes: int
    task: Task
    class_names: tuple[str, ...] | None


def settled_labels(given: GivenLabels, options: ReadOptions, notes: list[str], unit: str = "node") -> CleanLabels:
    """Labels, classes and their names, and task. See `clean_labels`."""
    values, names, stripped = given.values, given.class_names, given.stripped
    if values.dtype.kind in "USO" and values.size == len(values):
        values, names, stripped = numbered_text(values)
    as_numbers = options
    if (options.task or given.task) is None and _is_one_hot(values):
        notes.append(
            f"Each row of the {values.shape[1]} columns of labels has a single 1, so they were read as one class of "
            f"{values.shape[1]} (task=multilabel reads them as several labels)."
        )
        values, names = values.argmax(axis=1), given.label_names
    elif names is not None and options.task not in ("multilabel", "regression", "link"):
        if names and options.task is None and all(re.fullmatch(r"[-+]?\d+,\d+", name) for name in names):
            said = f"labels are text such as '{names[0]}'; expected numbers such as 1.5, or a column of 0 and 1 for"
            raise InputError(f"{said} each of several labels (label_columns), or task=multiclass for classes")
        ignored = tuple(map(str, options.ignored))
        values, names, _ = without_ignored(Numbered(values, names, stripped), ignored, notes, unit)
        as_numbers = replace(options, ignored_labels=None)
    y, num_classes, task = clean_labels(replace(given, values=values, class_names=names), as_numbers, notes, unit)
    if task in MATRIX_TASKS:
        names = given.label_names
    elif options.label_gaps == "compact" and names is None:
        names = names_of_classes(values, y, num_classes)
    return CleanLabels(y, num_classes, task, names)


def _is_one_hot(labels: AnyArray) -> bool:
    """True for a matrix of 0 and 1 with a single 1 in each row."""
    if labels.ndim != 2 or labels.shape[1] < 2 or labels.dtype.kind not in "biuf" or not len(labels):
        return False
    return bool(((labels == 0) | (labels == 1)).all() and ((labels == 1).sum(axis=1) == 1).all())


def names_of_classes(labels: AnyArray, y: AnyArray, num_classes: int) -> tuple[str, ...] | None:
    """Names of classes that have been renumbered from `labels` to `y`; None if none have."""
    used = np.unique(labels.reshape(-1)[y >= 0]).astype(np.int64)
    return tuple(map(str, used.tolist())) if len(used) == num_classes and used[-1] >= num_classes else None


def clean_labels(
    given: GivenLabels, options: ReadOptions, notes: list[str], unit: str = "node"
) -> tuple[AnyArray, int, Task]:
    """Labels, number of classes or targets, and task: int64 [V], C, "multiclass" or "binary"; or float32 [V, C], C,
    "multilabel" or "regression".

    They are given as class numbers [V] or [V, 1], -1 for unlabelled; 0 and 1 [V, C > 1], several of which may be set;
    or targets [V] or [V, C]. Where classes have names, -1 cannot be one of them. `unit` is the word for one of what is
    labelled. Raises InputError: names the defect and, where there is one, the option that resolves it.
    """
    labels, named = given.values, given.class_names is not None
    if labels.ndim not in (1, 2):
        raise InputError(f"labels have shape {list(labels.shape)}; expected [V] class numbers or [V, C] of 0 and 1")
    if labels.dtype == np.bool_:
        labels = labels.astype(np.int64)
    if labels.dtype.kind == "u" and labels.size and labels.max() > np.iinfo(np.int64).max:
        raise InputError(f"labels hold {labels.max()}; expected class numbers 0, 1, ...: number the classes")
    if labels.dtype.kind not in "biuf":
        raise InputError(f"labels are {labels.dtype}; expected class numbers 0, 1, ...: number the classes")
    if labels.ndim == 2 and labels.shape[1] == 0:
        raise InputError("labels have shape [V, 0]; expected at least one column")
    if options.task == "link":
        return labels, 1, "multiclass"
    task = options.task or given.task or _task_of(labels)
    if named and task in ("multilabel", "regression"):
        raise InputError(f"labels are text; expected numbers for task={task}")
    if options.ignored and task in ("multilabel", "regression"):
        raise InputError(f"ignored_labels is {list(options.ignored)}, but labels are no class numbers; leave it out")
    if task == "multilabel":
        return _multilabel(labels, notes, unit), labels.reshape(len(labels), -1).shape[1], task
    if task == "regression":
        y = _targets(labels, notes, unit)
        return y, y.shape[1], task
    if labels.ndim == 2 and labels.shape[1] != 1:
        raise InputError(
            f"labels have {labels.shape[1]} columns; expected one column of class numbers for task={task}: use "
            "task=multilabel, or choose a column"
        )
    y, num_classes = _classes(labels.reshape(-1), options, notes, named, given.nulls, unit)
    _check_classes(y, options, notes, unit)
    if task == "binary":
        if num_classes > 2:
            raise InputError(f"there are {num_classes} classes; expected 0 and 1 for task=binary: leave task out")
        num_classes = 2
    return y, num_classes, task


def _check_classes(y: IdArray, options: ReadOptions, notes: list[str], unit: str) -> None:
    """Note that all labels are of one class. Raises InputError for labels of which nearly each is another:
    NoLabelsError for those of nodes."""
    used, found = np.count_nonzero(np.bincount(y[y >= 0])), int((y >= 0).sum())
    if options.task is None and found >= FEWEST_NAMES and used >= NAMES_SHARE * found:
        kind, link = (NoLabelsError, "task=link to predict edges, ") if unit == "node" else (InputError, "")
        raise kind(
            f"the labels of {found} {unit}s are {used} classes, so they are names or ids, and nothing could be learnt; "
            f"set label_columns=COLUMN for that of the class, {link}task=regression if they are targets, or "
            "task=multiclass to read them all the same"
        )
    if used == 1:
        notes.append(f"All labelled {unit}s are of one class, so every prediction is right, and nothing is learnt.")


def _task_of(labels: AnyArray) -> Task:
    """Task that labels have by themselves. Raises InputError for whole numbers beyond int64."""
    several = labels.ndim == 2 and labels.shape[1] != 1
    if labels.dtype.kind != "f":
        return "multilabel" if several else "multiclass"
    if several:
        return "multilabel" if ((labels == 0) | (labels == 1) | np.isnan(labels)).all() else "regression"
    known = labels[~np.isnan(labels)]
    whole, most = (known == np.floor(known)).all(), np.abs(known).max(initial=0)
    if whole and 2**63 <= most < np.inf:  # such as 2**64 - 1 for no label, which a table has made a float
        raise InputError(f"labels are whole numbers to {most:.6g}; number classes 0, 1, ..., or set task=regression")
    return "multiclass" if whole and most <= 2**53 else "regression"


def as_task(dataset: Dataset, task: Task) -> tuple[AnyArray, int]:
    """Labels of a clean dataset for another task, and the number of classes or targets. Raises InputError: its labels
    do not fit the task."""
    labels, number = dataset.labels, dataset.num_classes
    if (dataset.task, task) in (("binary", "multiclass"), ("multilabel", "regression"), (task, task)):
        return labels, number
    if task == "binary" and dataset.task == "multiclass" and number <= 2:
        return labels, 2
    if task == "regression" and labels.ndim == 1 and dataset.class_names is None:
        return np.where(is_labelled(labels), labels, np.nan).astype(np.float32)[:, None], 1
    seen = counted_outputs(dataset.task, number)
    raise InputError(f"the labels of {dataset.name} are {seen} ({dataset.task}), which do not fit task={task}")


def _multilabel(labels: AnyArray, notes: list[str], unit: str) -> Float32Array:
    labels = labels.reshape(len(labels), -1)
    unknown = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(labels.shape, bool)
    if not (np.isin(labels, (0, 1)) | unknown).all():
        raise InputError(
            f"labels have {labels.shape[1]} columns with values other than 0 and 1; expected a multi-label matrix of 0 "
            "and 1, or one column of class numbers, or task=regression"
        )
    _note_unknown(unknown, "label", notes, unit)
    return labels.astype(np.float32)


def _targets(labels: AnyArray, notes: list[str], unit: str) -> Float32Array:
    with np.errstate(over="ignore"):
        y = labels.reshape(len(labels), -1).astype(np.float32)
    if (bad := np.isinf(y)).any():
        raise InputError(
            f"{counted(int(bad.sum()), 'target')} {are(int(bad.sum()))} infinite, or beyond float32 (first: {unit} "
            f"{int(np.argmax(bad.any(axis=1)))}); correct them, or make them NaN, which is read as not known"
        )
    unknown = np.isnan(y)
    if (empty := unknown.all(axis=0)).any():
        where = f" in column {int(np.argmax(empty))}" if y.shape[1] > 1 else ""
        raise InputError(f"no {unit} has a target{where} (all are NaN); expected numbers: give targets")
    _note_unknown(unknown, "target", notes, unit)
    largest = float(np.nanmax(np.abs(y)))
    if largest > LARGE_TARGET:
        notes.append(f"Targets reach {largest:,.0f}, and outputs begin near 0: scale the targets.")
    return y


def _note_unknown(unknown: Mask, what: str, notes: list[str], unit: str) -> None:
    bare = int(unknown.all(axis=1).sum())
    partly = int(unknown.sum()) - bare * unknown.shape[1]
    if bare:
        notes.append(f"{counted(bare, unit)} {are(bare)} unlabelled (NaN).")
    if partly:
        notes.append(f"{counted(partly, what)} of other {unit}s {are(partly)} NaN, which loss and metrics leave out.")


def _classes(
    labels: AnyArray, options: ReadOptions, notes: list[str], named: bool, nulls: int, unit: str
) -> tuple[IdArray, int]:
    """Class numbers, and how many classes there are."""
    y = _class_numbers(labels, options, notes, nulls)
    if options.ignored:
        if words := [c for c in options.ignored if not isinstance(c, int)]:
            raise InputError(f"ignored_labels names '{words[0]}', but labels are numbers; give numbers or leave it out")
        ignored = np.isin(y, options.ignored)
        notes.append(f"{counted(int(ignored.sum()), 'label')} {were(int(ignored.sum()))} ignored (ignored_labels).")
        y = np.where(ignored, -1, y)
    if len(y) and y.min() < -1:
        raise InputError(
            f"labels go down to {y.min()}; expected class numbers from 0, or -1 for an unlabelled {unit}: correct the "
            "labels"
        )
    labelled = y >= 0
    if not labelled.any():
        raise InputError(f"no {unit} has a label (all are -1); expected at least one class number: give labels")
    if bare := int((~labelled).sum()):
        notes.append(f"{counted(bare, unit)} {are(bare)} unlabelled (-1).")
        if len(only := np.unique(y[labelled])) == 1 and not named:
            notes.append(
                f"Besides -1 (unlabelled), all labels are {only[0]}, so that one class is left: if -1 is a class, "
                "number the classes 0 and 1."
            )
    return _label_gaps(y, labelled, options, notes, unit)


def _class_numbers(y: AnyArray, options: ReadOptions, notes: list[str], nulls: int) -> IdArray:
    if np.issubdtype(y.dtype, np.integer):
        return y.astype(np.int64)
    missing = np.isnan(y)
    if count := int(missing.sum()) - nulls:
        if options.nan_labels == "error":
            raise InputError(
                f"{counted(count, 'label')} {are(count)} NaN; set nan_labels=unlabelled to read them as -1, or correct "
                "them"
            )
        notes.append(f"{counted(count, 'NaN label')} {were(count)} read as unlabelled.")
    y = np.where(missing, -1, y)
    if (np.abs(y) > 2**53).any() or (y != np.floor(y)).any():
        bad = y[(np.abs(y) > 2**53) | (y != np.floor(y))][0]
        raise InputError(
            f"labels are non-integer (first: {bad}); expected class numbers, or task=regression for targets"
        )
    return y.astype(np.int64)


def _label_gaps(y: IdArray, labelled: Mask, options: ReadOptions, notes: list[str], unit: str) -> tuple[IdArray, int]:
    known = y[labelled]
    num_classes = int(known.max()) + 1
    # Counts take less time and memory than the sort in `unique`, unless the numbers are far larger than their count.
    used = np.flatnonzero(np.bincount(known)) if num_classes <= len(known) else np.unique(known)
    empty = num_classes - len(used)
    if not empty:
        return y, num_classes
    seen = (
        f"labels go up to {used[-1]:,}, but {counted(empty, 'class', 'classes')} of {num_classes:,} "
        f"{'has' if empty == 1 else 'have'} no labelled {unit}"
    )
    if options.label_gaps == "compact":
        y = y.copy()
        y[labelled] = np.searchsorted(used, known)
        notes.append(f"The {seen}; the classes were renumbered (label_gaps=compact).")
        return y, len(used)
    if options.label_gaps == "error" or num_classes > max(FEW_CLASSES, 2 * len(used)):
        keep = " or label_gaps=keep" if num_classes <= FEW_CLASSES else ""
        raise InputError(
            f"{seen}; set label_gaps=compact to renumber the classes{keep}, or correct the "
            "labels (numbers to predict need task=regression)"
        )
    no_label = f"; if {used[-1]} means no label, set ignored_labels={used[-1]}" if used[-1] > 2 * len(used) else ""
    notes.append(f"The {seen} (label_gaps=compact renumbers them{no_label}).")
    return y, num_classes
