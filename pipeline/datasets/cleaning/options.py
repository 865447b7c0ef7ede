"""Options for reading input that is not clean: one for each common defect of real data."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from ....storage.dataset import TASKS, Task
from ....storage.errors import InputError, one_of

ONE_COLUMN = ("id", "src", "dst", "weight", "relation_column", "edge_time", "node_time")
COLUMNS = ("one_hot", "feature_columns", "edge_feature_columns", "label_columns", "split", *ONE_COLUMN)
"""Options that name columns of tables."""
OF_TABLES = ("nodes_file", *COLUMNS, "target")
"""Options that choose among tables and their columns."""
FREE = (*OF_TABLES, "ignored_labels", "pairs", "relation", "triples", "indicators")
"""Options with values other than a choice of words."""
Direction = Literal["directed", "undirected", "reverse"]
Overlaps = Literal["error", "first"]


@dataclass(frozen=True)
class ReadOptions:
    """Treatment of each defect of an input. `Dataset.notes` lists the repairs.

    Raises:
        InputError: a value is not one of those listed.
    """

    direction: Direction | None = None
    """directed: messages flow src -> dst as stored; reverse: dst -> src; undirected: both ways. undirected takes the
    union of the edges and their reverses: if both are stored, each has its own features and the larger weight; if not,
    a reverse has the features and weight of its edge. None: symmetric input is used as it is; for other input a hint in
    the file decides, and without a hint Millrace refuses the input."""
    duplicates: Literal["error", "merge", "keep"] = "merge"
    """Edges stored more than once. merge: one edge with the sum of the weights (an unweighted graph stays unweighted)
    and the features of the first."""
    self_loops: Literal["error", "drop", "keep"] = "keep"
    """Edges from a node to itself."""
    edges_on: Literal["cpu", "gpu"] = "cpu"
    """Device that reads, renumbers, counts and sorts the edges of a folder of Parquet. gpu: by RAPIDS cuDF, with the
    same result."""
    components: Literal["all", "largest"] = "all"
    """largest: keep only the largest connected component (edges count both ways), and renumber its nodes in order."""
    edge_weights: Literal["use", "ignore"] = "use"
    """ignore: read the graph as unweighted."""
    missing_ids: Literal["error", "compact"] = "error"
    """Gaps in a column of node ids. compact: renumber the nodes from 0 in ascending order of their ids."""
    nodes_file: str | None = None
    """File of nodes that belongs to a single file of edges, as a path from the folder of the edges. None: nodes.csv or
    nodes.parquet there."""
    id: str | None = None
    """Column of a table of nodes with the ids that edges use; none: rows number the nodes. None: the column's name
    decides."""
    src: str | None = None
    """Column of a table of edges with the source of each."""
    dst: str | None = None
    """Column of a table of edges with the destination of each."""
    weight: str | None = None
    """Column of a table of edges with their weights; none: edges have none."""
    relation_column: str | None = None
    """Column of a table of edges with the relation of each: the graph then has one node type and these relations."""
    dangling_edges: Literal["error", "drop", "add"] = "error"
    """Edges with an end that is no node. drop: leave out these edges; add: add these nodes, without labels."""
    split: str | tuple[str, ...] | None = None
    """Column of a table with the set of each row (train, val or test), or columns that flag the sets, such as
    "train_mask,val_mask,test_mask"; none: the table has no split."""
    feature_columns: str | tuple[str, ...] | None = None
    """Columns of a table of nodes to use as features, in this order: names, or a text such as "age,income"; "*": all
    numeric columns. None: features, x, or feature_0, feature_1, ..."""
    one_hot: str | tuple[str, ...] | None = None
    """Columns of nodes or edges, such as "city,job". Each of their values becomes a feature of 0 and 1, beside the
    features that `feature_columns` names."""
    edge_feature_columns: str | tuple[str, ...] | None = None
    """Columns of a table of edges to use as edge features, in this order; same form as `feature_columns`."""
    edge_time: str | None = None
    """Column of a table of edges, or attribute of a PyG `Data`, with their times: numbers or dates; none: edges have
    none. Edges with times are not merged."""
    node_time: str | None = None
    """Column of a table of nodes, or attribute of a PyG `Data`, with their times; none: nodes have none."""
    missing_features: Literal["error", "degree"] = "degree"
    """An input without features. degree: make two columns, 1 and log(1 + in-degree)."""
    nan_features: Literal["error", "zero", "mean", "median", "indicator"] = "error"
    """Missing features of nodes and edges (NaN or infinite). Known values scale the columns; then 0 (the mean, under
    normalize_features=standard), or the mean or median of the known values, fills the gaps. indicator: fill by 0, and
    for each column with gaps add a column at the end, 1 at the gaps and 0 elsewhere."""
    indicators: tuple[str, ...] | None = None
    """Columns such as nodes.age that get an indicator column under nan_features=indicator, with gaps or without. None:
    the columns with gaps; other data that a run predicts for have the run's indicator columns."""
    normalize_features: Literal["none", "row", "standard", "binary"] = "none"
    """row: each row divided by the sum of its absolute values (zero rows stay zero); standard: each column less its
    mean, divided by its standard deviation; binary: 1 where not zero."""
    task: Task | None = None
    """Task of the labels: multiclass, binary, multilabel or regression; link: pairs of nodes, whatever the labels.
    None: text, flags and whole numbers are classes (multiclass), a matrix of 0 and 1 is multilabel, and other numbers
    are targets (regression)."""
    labels_of: Literal["nodes", "edges"] = "nodes"
    """edges: labels belong to edges. They come from the column label of the edges' table (or `label_columns`), from
    ``edge_label`` of an ``.npz`` file or of PyG's data, or from the file `pairs`. Nodes then need no labels."""
    labelled_edges: Literal["seen", "hidden"] = "seen"
    """hidden: the model predicts a labelled edge without seeing it: the graph lacks the edges of val and test, and a
    minibatch's samples lack its own. seen: all edges stay; only labels are unknown."""
    pairs: str | None = None
    """File of the pairs of a link task: a table with the columns src, dst, split (train, val or test) and perhaps label
    (1, or 0 for a negative), or a ``.npz`` with [n, 2] arrays train, val, test, train_negatives, val_negatives,
    test_negatives. For several relations, a table with a column relation too. None: edges of the graph, divided
    by the job's split. With `labels_of`: a table with the columns
    src, dst, label, and perhaps split, time and features; or an ``.npz`` with edge_label_index [2, N] and
    edge_label."""
    relation: str | tuple[str, ...] | None = None
    """Relation whose edges are the pairs of a link task, or are labelled, in a graph with several types: its name, or
    ``source type,name,destination type``. Ends of pairs are then ids within these types. Links may be of several: a
    list, or a text in which semicolons separate them; ``all``: each but those that have the edges of an earlier one
    reversed."""
    label_columns: str | tuple[str, ...] | None = None
    """Columns of a table of nodes, or with `labels_of` of edges, to use as labels, in this order: names, or a text such
    as "age,income". None: label, or label_0, label_1, ..."""
    triples: str | None = None
    """Order of the columns of files of triples, such as ``head,tail,relation``. None: that of their header, or head,
    relation, tail, unless these seem to be in another order."""
    target: str | None = None
    """Node type of a typed graph whose labels are predicted. None: the one that has labels."""
    ignored_labels: int | str | tuple[int | str, ...] | None = None
    """Classes to read as unlabelled: numbers such as 255 or -100, or names such as "unknown,N/A". The stored split
    leaves out nodes of these classes."""
    nan_labels: Literal["error", "unlabelled"] = "error"
    """NaN among class numbers. unlabelled: read NaN as -1. A target that is NaN is always unknown."""
    label_gaps: Literal["error", "keep", "compact"] = "keep"
    """Class numbers without nodes. keep: the class exists and stays empty; compact: renumber the classes that occur."""
    overlapping_splits: Overlaps = "error"
    """Nodes, or pairs, in several sets of the stored split. first: each stays in the first of train, val, test."""
    unlabelled_in_split: Literal["error", "drop"] = "error"
    """Nodes of the stored split without a label."""

    def names(self, key: str) -> tuple[str, ...] | None:
        """Names of columns that a key has; None if it has none."""
        return _names(getattr(self, key))

    @property
    def ignored(self) -> tuple[int | str, ...]:
        """The numbers and names in `ignored_labels`; text that is a number is one."""
        given = self.ignored_labels
        if given is None or isinstance(given, int):
            return () if given is None else (given,)
        each = (_names(given) or ()) if isinstance(given, str) else given
        return tuple(int(c) if isinstance(c, str) and re.fullmatch("0|-?[1-9][0-9]*", c) else c for c in each)

    @property
    def given(self) -> dict[str, Any]:
        """Options by name whose values are not the defaults: JSON values, and tuples in place of lists."""
        return {f.name: value for f in fields(ReadOptions) if (value := getattr(self, f.name)) != f.default}

    def of_tables(self, followed: tuple[str, ...]) -> list[str]:
        """Options that are given for tables, but for those `followed`."""
        return [key for key in self.given if key in OF_TABLES and key not in followed]

    def without(self, keys: Iterable[str]) -> "ReadOptions":
        """These options with the defaults of `keys`."""
        defaults: dict[str, Any] = {f.name: f.default for f in fields(ReadOptions)}
        return replace(self, **{key: defaults[key] for key in keys})

    def check_no_tables(self, source: object, followed: tuple[str, ...]) -> None:
        """Raise InputError for options of tables other than `followed`, of a source without tables."""
        if given := self.of_tables(followed):
            keys, them = ", ".join(f"read.{key}" for key in given), "them" if given[1:] else "it"
            raise InputError(f"{source} has no tables, which {keys} would choose from; leave {them} out")

    def over(self, before: Mapping[str, Any]) -> "ReadOptions":
        """These options where they are not the defaults, and those of `before`, as `given` has them, elsewhere."""
        # A treatment without indicator columns takes those of `before` away.
        fills = self.nan_features in ("error", "indicator")
        return ReadOptions(**{k: v for k, v in before.items() if k != "indicators" or fills} | self.given)

    def __post_init__(self) -> None:
        for key in (*COLUMNS, "ignored_labels", "relation", "indicators"):
            if isinstance(given := getattr(self, key), list):
                object.__setattr__(self, key, tuple(given))
        if type(self.split) is int:  # the first of several splits is 0
            object.__setattr__(self, "split", str(self.split))
        for key in COLUMNS:
            given = getattr(self, key)
            if not (given is None or isinstance(given, str | tuple)) or not all(
                isinstance(c, str) and c for c in _names(given) or ()
            ):
                raise InputError(f"{key} is {given!r}; expected names of columns such as ('age', 'income')")
            if key in ONE_COLUMN and len(_names(given) or ()) > 1:
                raise InputError(f"read.{key} is {given!r}; expected one column")
        given = self.ignored_labels
        if not isinstance(given, int | str | tuple | None) or not all(
            (c and type(c) in (int, str)) or c == 0 for c in self.ignored
        ):
            raise InputError(f"ignored_labels is {given!r}; expected class numbers such as (255, -100), or names")
        order = ["head", "relation", "tail"]
        if self.triples is not None and sorted(self.triples.replace(" ", "").split(",")) != order:
            raise InputError(f"triples is {self.triples!r}; expected an order such as head,tail,relation")
        if self.relation_column in (self.names("one_hot") or ()):
            raise InputError(f"one_hot names {self.relation_column}, which is relation_column; leave it out of one_hot")
        if (own := self.indicators) is not None:
            if not isinstance(own, tuple) or not all(isinstance(c, str) for c in own):
                raise InputError(f"indicators is {own!r}; expected a list of columns such as ['nodes.age']")
            if self.nan_features != "indicator":
                raise InputError(f"indicators is given, but nan_features is '{self.nan_features}'; leave one out")
        for f in fields(ReadOptions):
            if f.name in FREE:
                continue
            value = getattr(self, f.name)
            allowed = {"direction": get_args(Direction), "task": TASKS}.get(f.name) or get_args(f.type)
            if value not in allowed and not (f.name in ("direction", "task") and value is None):
                raise InputError(f"{f.name} is {value!r}; {one_of(str(value), allowed)}")


def _names(given: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    return tuple(c.strip() for c in given.split(",")) if isinstance(given, str) else given


def require_options(options: object) -> None:
    """Raise InputError unless `options` are `ReadOptions`, or None."""
    if not isinstance(options, ReadOptions | None):
        example = 'mr.ReadOptions(direction="directed")'
        raise InputError(f"options is a {type(options).__name__}; expected mr.ReadOptions, such as {example}")


DEFAULT_OPTIONS = ReadOptions()
