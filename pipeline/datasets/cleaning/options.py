"""Options for reading input that is not clean: one for each common defect of real data."""

from dataclasses import dataclass, fields
from typing import Literal, get_args

from ....storage.errors import InputError, nearest

FREE = ("nodes_file", "feature_columns")
"""Options with values other than a choice of words."""
Direction = Literal["directed", "undirected", "reverse"]


@dataclass(frozen=True)
class ReadOptions:
    """Treatment of each defect of an input. Repairs are noted in `Dataset.notes`.

    Raises:
        InputError: a value is not one of those listed.
    """

    direction: Direction | None = None
    """directed: messages flow src -> dst as stored; reverse: dst -> src; undirected: both ways (the union of the edges
    and their reverses; where both are stored, the larger weight). None: symmetric input is used as it is, otherwise a
    hint of the file decides, and without a hint it is an error."""
    duplicates: Literal["error", "merge", "keep"] = "merge"
    """Edges stored more than once. merge: one edge, weights summed (an unweighted graph stays unweighted)."""
    self_loops: Literal["error", "drop", "keep"] = "keep"
    """Edges from a node to itself."""
    edges_on: Literal["cpu", "gpu"] = "cpu"
    """Device on which the edges of a folder of Parquet are read, renumbered, counted and sorted. gpu: by RAPIDS cuDF,
    with the same result."""
    components: Literal["all", "largest"] = "all"
    """largest: only the largest connected component (edges taken both ways), its nodes renumbered in order."""
    edge_weights: Literal["use", "ignore"] = "use"
    """ignore: read the graph as unweighted."""
    missing_ids: Literal["error", "compact"] = "error"
    """Gaps in a column of node ids. compact: renumber the nodes from 0 in ascending order of their ids."""
    nodes_file: str | None = None
    """File of the nodes of a single file of edges, as a path from its folder; None: nodes.csv or nodes.parquet
    there."""
    feature_columns: str | tuple[str, ...] | None = None
    """Columns of a table of nodes to use as features, in this order: names, or a text such as "age,income"; "*": all
    numeric columns. None: features, x, or feature_0, feature_1, ..."""
    missing_features: Literal["error", "degree"] = "degree"
    """An input without features. degree: two columns, 1 and log(1 + in-degree)."""
    nan_features: Literal["error", "zero"] = "error"
    """NaN and infinite features."""
    normalize_features: Literal["none", "row", "standard", "binary"] = "none"
    """row: each row divided by the sum of its absolute values (zero rows stay zero); standard: each column less its
    mean, divided by its standard deviation; binary: 1 where not zero."""
    nan_labels: Literal["error", "unlabelled"] = "error"
    """NaN among class numbers. unlabelled: read them as -1."""
    label_gaps: Literal["error", "keep", "compact"] = "keep"
    """Class numbers without nodes. keep: the class exists and stays empty; compact: renumber the classes that occur."""
    overlapping_splits: Literal["error", "first"] = "error"
    """Nodes in several sets of the stored split. first: such a node stays in the first of train, val, test."""
    unlabelled_in_split: Literal["error", "drop"] = "error"
    """Nodes of the stored split without a label."""

    @property
    def named_features(self) -> tuple[str, ...] | None:
        """The names in `feature_columns`."""
        given = self.feature_columns
        return tuple(c.strip() for c in given.split(",")) if isinstance(given, str) else given

    def __post_init__(self) -> None:
        columns = self.feature_columns
        if isinstance(columns, list):
            object.__setattr__(self, "feature_columns", tuple(columns))
        elif not (columns is None or isinstance(columns, str | tuple)):
            raise InputError(f"feature_columns is {columns!r}; expected names of columns such as ('age', 'income')")
        if not all(isinstance(c, str) and c for c in self.named_features or ()):
            raise InputError(f"feature_columns is {columns!r}; expected names of columns such as ('age', 'income')")
        for f in fields(self):
            if f.name in FREE:
                continue
            value = getattr(self, f.name)
            allowed = get_args(Direction) if f.name == "direction" else get_args(f.type)
            if value not in allowed and not (f.name == "direction" and value is None):
                raise InputError(
                    f"{f.name} is {value!r}; expected one of {', '.join(allowed)}{nearest(str(value), allowed)}"
                )


DEFAULT_OPTIONS = ReadOptions()
