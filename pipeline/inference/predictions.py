"""Predictions for nodes: logits, probabilities and classes, and files with a row for each node."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...storage.dataset import IdArray, Task
from .files import check_suffix, write_npy, write_zarr, written

FloatArray = npt.NDArray[np.floating]
SEPARATOR = ";"
"""Separator between the classes of a node in a .csv file, where nodes can have several."""


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """Predictions of a model for n nodes."""

    nodes: IdArray
    """int64 [n], ids in the order of the request."""
    logits: FloatArray
    """[n, C], the model's outputs."""
    task: Task = "multiclass"
    """``multiclass``: one class for each node; ``multilabel``: any number of them."""
    node_names: Sequence[str] | None = None
    """Names of these nodes, where their dataset has names."""
    class_names: Sequence[str] | None = None
    """Names of the C classes, where the training dataset has names."""

    @cached_property
    def probabilities(self) -> FloatArray:
        """[n, C]: softmax of the logits (multi-class: rows sum to 1) or sigmoid (multi-label: each class by itself)."""
        logits = torch.from_numpy(self.logits)
        return (logits.softmax(1) if self.task == "multiclass" else logits.sigmoid()).numpy()

    @cached_property
    def classes(self) -> npt.NDArray[Any]:
        """Multi-class: int64 [n], the class with the largest logit. Multi-label: bool [n, C], True where the logit is
        above 0."""
        return torch.from_numpy(self.logits).argmax(1).numpy() if self.task == "multiclass" else self.logits > 0

    def to_parquet(self, path: str | Path, *, all_probabilities: bool = False) -> None:
        """Write a table with a row for each node, as a whole or not at all; an existing file is replaced.

        Columns: ``node`` (id or name); ``class`` (number or name) and ``probability``; or, if multi-label, ``classes``
        and ``probabilities``, lists of the classes that the node has.

        Args:
            path: the file.
            all_probabilities: add a column ``probability_CLASS`` for each class.

        Raises:
            InputError: the file cannot be written.
        """
        import pyarrow.parquet

        table = self._table(all_probabilities, joined=False)
        written(Path(path), lambda aside: pyarrow.parquet.write_table(table, aside))

    def to_csv(self, path: str | Path, *, all_probabilities: bool = False) -> None:
        """Write the table of `to_parquet` as CSV with a header; multi-label lists are joined by semicolons."""
        import pyarrow.csv

        table = self._table(all_probabilities, joined=True)
        written(Path(path), lambda aside: pyarrow.csv.write_csv(table, aside))

    def to_npy(self, path: str | Path) -> None:
        """Write `probabilities` [n, C] alone, in the order of `nodes`, for `numpy.load`."""
        write_npy(path, self.probabilities)

    def to_zarr(self, path: str | Path) -> None:
        """Write a Zarr group with the arrays ``node`` (ids or names), ``class`` (numbers; multi-label: bool [n, C]) and
        ``probability`` [n, C]; its attribute ``class_names`` has the names, where there are any."""
        named = self.nodes if self.node_names is None else list(self.node_names)
        arrays = {"node": named, "class": self.classes, "probability": self.probabilities}
        write_zarr(path, arrays, {"class_names": None if self.class_names is None else list(self.class_names)})

    def write(self, path: str | Path, *, all_probabilities: bool = False) -> None:
        """Write a file by its suffix: `to_parquet`, `to_csv`, `to_npy` or `to_zarr`.

        Raises:
            InputError: another suffix, or the file cannot be written.
        """
        kind = check_suffix(Path(path))
        if kind in (".npy", ".zarr"):
            self.to_npy(path) if kind == ".npy" else self.to_zarr(path)
        elif kind == ".csv":
            self.to_csv(path, all_probabilities=all_probabilities)
        else:
            self.to_parquet(path, all_probabilities=all_probabilities)

    def _table(self, all_probabilities: bool, *, joined: bool) -> Any:
        import pyarrow as pa

        named = self.class_names
        columns: dict[str, Any] = {"node": self.nodes if self.node_names is None else list(self.node_names)}
        if self.task == "multiclass":
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
            for c in range(self.logits.shape[1]):
                columns[f"probability_{c if named is None else named[c]}"] = self.probabilities[:, c]
        return pa.table(columns)

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"Predictions({len(self):,} nodes, {self.logits.shape[1]} classes, {self.task})"
