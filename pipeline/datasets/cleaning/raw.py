"""Unchecked arrays that a reader passes to the cleaner."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ....storage.dataset import Task
from ....storage.node_names import NodeNames
from .options import Direction

AnyArray = npt.NDArray[Any]


@dataclass(frozen=True)
class Hint:
    """Direction of the edges according to the source."""

    direction: Direction
    reason: str
    """Clause for the notes, e.g. ``the file's meta says "stored once"``."""


@dataclass(frozen=True, eq=False)
class Ordered:
    """E edges that a reader has already checked, oriented and sorted like `edges.clean_edges`: by (dst, src), equal
    ones in input order."""

    in_degree: npt.NDArray[np.int64]
    """int64 [V]."""
    src: npt.NDArray[np.integer]
    """int32 or int64 [E]."""
    weight: npt.NDArray[np.float32] | None
    """float32 [E], or None."""
    loops: int
    """Number of self loops found; dropped ones are not among the E."""
    repeated: bool
    """True if an edge occurs more than once."""
    has_weights: bool
    """True if the source has weights, read or not."""


@dataclass(frozen=True, eq=False)
class Raw:
    """One graph as a source stores it."""

    name: str
    src: AnyArray
    """[E] integers; messages flow src -> dst unless an option says otherwise."""
    dst: AnyArray
    labels: AnyArray
    """[V], [V, 1] or [V, C]. Its length decides V."""
    features: Any = None
    """[V, F] numbers, dense or a SciPy sparse matrix, or None."""
    edge_weight: AnyArray | None = None
    """[E] or None."""
    edge_features: AnyArray | None = None
    """[E, D] or [E] numbers, or None."""
    edge_time: AnyArray | None = None
    """[E] numbers or dates, or None."""
    node_time: AnyArray | None = None
    """[V] numbers or dates, or None."""
    split: Mapping[str, AnyArray] = field(default_factory=dict)
    """'train', 'val', 'test' to node ids [n] or masks [V]; empty when the source stores no split."""
    hint: Hint | None = None
    notes: tuple[str, ...] = ()
    ordered: Ordered | None = None
    """Sorted edges in place of `src`, `dst` and `edge_weight`, which are then empty."""
    node_names: NodeNames | None = None
    """Names of nodes in the source; None if they are 0 to V - 1."""
    class_names: tuple[str, ...] | None = None
    """Names of classes in the source; None if they are 0 to C - 1."""
    label_names: tuple[str, ...] | None = None
    """Names of the columns of `labels` in the source; None if they are numbered."""
    nulls: int = 0
    """NaN among `labels` that stand for a missing value."""
    stripped: int = 0
    """Labels that had blanks around them."""
    feature_columns: tuple[str, ...] = ()
    """Columns of a table that `features` come from, see `filling.column_names`; empty: they have no names."""
    edge_feature_columns: tuple[str, ...] = ()
    """Likewise of `edge_features`."""
    read: Mapping[str, Any] = field(default_factory=dict)
    """What was read, for the data card: files, and roles of columns, as plain values."""
    task: Task | None = None
    """Task according to the source; None: it follows from `labels`."""
