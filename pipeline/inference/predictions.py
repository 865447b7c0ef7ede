"""Predictions for nodes or edges: probabilities and classes, or values, and files with a row for each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...storage.array_kinds import AnyArray, FloatArray, ValueArray
from ...storage.dataset import SPLITS, Dataset, IdArray, Task, is_labelled
from ...storage.errors import InputError
from ...storage.optional import when_present
from .files import PIECE_ROWS, FileRows, check_suffix, row_columns, write_rows

if TYPE_CHECKING:
    import pyarrow as pa

SEPARATOR = ";"
"""Separator between the classes of a node in a .csv file, where nodes can have several."""


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(FileRows):
    """Predictions of a model for n nodes."""

    nodes: IdArray
    """int64 [n], ids in the order of the request."""
    logits: FloatArray
    """[n, W], the model's outputs."""
    task: Task = "multiclass"
    """``multiclass``: one class for each node; ``multilabel``: any number of them; ``binary``: one of two, by one
    output; ``regression``: values in place of classes."""
    node_names: Sequence[str] | IdArray | None = None
    """Names of these nodes, where their dataset has names; int64 [n] where these are integers."""
    class_names: Sequence[str] | None = None
    """Names of the C classes or targets, where the training dataset has names."""
    given: "pa.Table | None" = None
    """Columns of a dataset for these nodes: see `beside`."""
    BY_ROW = ("nodes", "logits", "node_names", "given")

    def as_array(self) -> FloatArray:
        """`probabilities`, or `values` of a regression."""
        return self.values if self.task == "regression" else self.probabilities

    def beside(self, dataset: Dataset) -> "Predictions":
        """These predictions with columns of what `dataset` has for the same nodes, which files then hold too.

        Columns: ``label``, a class's number or name or a target's value, null where there is none (multi-label:
        ``labels``, a list; several targets: ``label_TARGET``); and ``split``: train, val, test or null.

        Raises:
            InputError: its labels are not of nodes.
        """
        if dataset.of_pairs:
            raise InputError(f"{dataset.name} has no labels of nodes; leave --labels out")
        import pyarrow as pa

        labels, columns, split = dataset.labels[self.nodes], {}, np.full(dataset.num_targets, "", "U5")
        named = [*(dataset.class_names or ())]
        names, kind = named or range(dataset.num_classes), pa.string() if named else pa.int64()
        for name in SPLITS:
            split[getattr(dataset.split, name)] = name
        split = split[self.nodes]
        if labels.ndim == 1:
            columns["label"] = pa.array([names[c] for c in labels.tolist()], kind, mask=~is_labelled(labels))
        elif dataset.task == "multilabel":
            rows = [[names[c] for c in np.flatnonzero(row > 0).tolist()] for row in labels]
            columns["labels"] = pa.array(rows, pa.list_(kind), mask=~is_labelled(labels))
        else:
            for c, name in enumerate(names):
                columns[f"label_{name}" if named or len(names) > 1 else "label"] = pa.array(
                    labels[:, c], mask=np.isnan(labels[:, c])
                )
        columns["split"] = pa.array(split, pa.string(), mask=split == "")
        return replace(self, given=pa.table(columns))

    @cached_property
    def probabilities(self) -> FloatArray:
        """[n, C]: softmax of the logits (multi-class) or sigmoid (multi-label: each class by itself; binary: of both
        classes).

        Raises:
            InputError: the model predicts values.
        """
        self._require(classes=True)
        logits = torch.from_numpy(self.logits)
        if self.task == "binary":
            logits = torch.cat([-logits, logits], 1)
        return (logits.softmax(1) if self.task == "multiclass" else logits.sigmoid()).numpy()

    @cached_property
    def classes(self) -> AnyArray:
        """Multi-class and binary: int64 [n], the most probable class. Multi-label: bool [n, C], True where the logit is
        above 0.

        Raises:
            InputError: the model predicts values.
        """
        self._require(classes=True)
        if self.task == "multiclass":
            return torch.from_numpy(self.logits).argmax(1).numpy()
        return self.logits > 0 if self.task == "multilabel" else (self.logits[:, 0] > 0).astype(np.int64)

    @property
    def values(self) -> FloatArray:
        """[n, C], the predicted values of a regression.

        Raises:
            InputError: the model predicts classes.
        """
        self._require(classes=False)
        return self.logits

    def _require(self, *, classes: bool) -> None:
        if classes == (self.task == "regression"):
            want, there = "classes and probabilities", "values"
            want, there = (want, there) if classes else (there, want)
            raise InputError(f"the task is {self.task}, which has no {want}; use {there}")

    def to_parquet(self, path: str | Path, *, all_probabilities: bool = False) -> None:
        """Write a table with a row for each node, as a whole or not at all; an existing file is replaced.

        Columns: ``node`` (id or name); ``class`` (number or name) and ``probability``; or, if multi-label, ``classes``
        and ``probabilities``, lists of the classes that the node has; or, of a regression, ``value``, or
        ``value_TARGET`` for each of several targets.

        Args:
            path: the file.
            all_probabilities: add a column ``probability_CLASS`` for each class.

        Raises:
            InputError: the file cannot be written.
        """
        self._write(path, ".parquet", all_probabilities)

    def to_csv(self, path: str | Path, *, all_probabilities: bool = False) -> None:
        """Write the table of `to_parquet` as CSV with a header; multi-label lists are joined by semicolons."""
        self._write(path, ".csv", all_probabilities)

    def to_npy(self, path: str | Path) -> None:
        """Write `probabilities` (or `values`) [n, C] alone, in the order of `nodes`, for `numpy.load`."""
        self._write(path, ".npy", False)

    def to_zarr(self, path: str | Path) -> None:
        """Write a Zarr group with the arrays ``node`` (ids or names), ``class`` (numbers; multi-label: bool [n, C]) and
        ``probability`` [n, C], or ``value`` [n, C], and those of `given`, where "", -1 or NaN stand for null; its
        attribute ``class_names`` has the names, if there are any."""
        self._write(path, ".zarr", False)

    def write(self, path: str | Path, *, all_probabilities: bool = False) -> None:
        """Write a file by its suffix: `to_parquet`, `to_csv`, `to_npy` or `to_zarr`.

        Raises:
            InputError: another suffix, or the file cannot be written.
        """
        self._write(path, check_suffix(Path(path)), all_probabilities)

    def _write(self, path: str | Path, kind: str, all_probabilities: bool) -> None:
        def table(piece: Predictions) -> "pa.Table":
            return piece.table(all_probabilities, joined=kind == ".csv")

        write_rows(path, kind, len(self), self.pieces(PIECE_ROWS), table)

    def columns(self) -> dict[str, Any]:
        found = row_columns(self.nodes, self.node_names)
        found |= {"value": self.values} if self.task == "regression" else {"class": self.classes}
        found |= {} if self.task == "regression" else {"probability": self.probabilities}
        return found | {name: _without_nulls(c) for name, c in self._given(joined=True).items()}

    @property
    def attributes(self) -> dict[str, Any]:
        return {"class_names": when_present(list, self.class_names)}

    def table(self, all_probabilities: bool = False, joined: bool = False) -> Any:
        import pyarrow as pa

        named = self.class_names
        columns = row_columns(self.nodes, self.node_names)
        if self.task == "regression":
            self._require(classes=all_probabilities)
            several = self.values.shape[1] > 1 or named is not None
            for c in range(self.values.shape[1]):
                columns[f"value_{c if named is None else named[c]}" if several else "value"] = self.values[:, c]
            return pa.table(columns | self._given(joined))
        if self.task != "multilabel":
            columns["class"] = self.classes if named is None else [named[c] for c in self.classes.tolist()]
            columns["probability"] = self.probabilities[np.arange(len(self)), self.classes]
        else:
            rows = [np.flatnonzero(said) for said in self.classes]
            texts = [row.tolist() if named is None else [named[c] for c in row.tolist()] for row in rows]
            shares = [p[row].tolist() for p, row in zip(self.probabilities, rows)]
            of_class = pa.list_(pa.int64() if named is None else pa.string())
            columns["classes"] = [SEPARATOR.join(map(str, t)) for t in texts] if joined else pa.array(texts, of_class)
            of_share = pa.list_(pa.from_numpy_dtype(self.probabilities.dtype))
            columns["probabilities"] = (
                [SEPARATOR.join(map(str, s)) for s in shares] if joined else pa.array(shares, of_share)
            )
        if all_probabilities:
            for c in range(self.probabilities.shape[1]):
                columns[f"probability_{c if named is None else named[c]}"] = self.probabilities[:, c]
        return pa.table(columns | self._given(joined))

    def _given(self, joined: bool) -> "dict[str, pa.Array]":
        """The columns of `given`; lists as text if they are to be `joined`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        given = {} if self.given is None else dict(zip(self.given.column_names, self.given.columns))
        if joined and "labels" in given:
            # pyrefly: ignore[missing-attribute]
            given["labels"] = pc.binary_join(given["labels"].cast(pa.list_(pa.string())), SEPARATOR)
        return given

    def __repr__(self) -> str:
        width = 2 if self.task == "binary" else self.logits.shape[1]
        labels = f"{width} targets" if self.task == "regression" else f"{width} classes"
        return f"Predictions({len(self):,} nodes, {labels}, {self.task})"


def _without_nulls(column: "pa.Array") -> ValueArray:
    """A column as an array, with "", -1 or NaN in place of null."""
    import pyarrow as pa

    if pa.types.is_string(column.type):
        return np.asarray(column.fill_null("").to_pylist(), np.str_)
    return column.fill_null(-1 if pa.types.is_integer(column.type) else np.nan).to_numpy(zero_copy_only=False)


@dataclass(frozen=True, eq=False, repr=False)
class EdgePredictions(Predictions):
    """Predictions of a model for n edges. Files have columns ``src`` and ``dst`` in place of ``node``."""

    nodes: IdArray
    """int64 [n, 2], source and destination of each edge, in the order of the request; ids within the types of the
    relation's ends, where the graph has several."""
    node_names: Any = None
    """[n, 2], names of these nodes, where their dataset has names."""

    @property
    def pairs(self) -> IdArray:
        """int64 [n, 2], `nodes`."""
        return self.nodes

    def __repr__(self) -> str:
        return super().__repr__().replace("nodes", "edges").replace("Predictions", "EdgePredictions", 1)
