"""Tables of a graph with several types: ``edges-SOURCE-RELATION-DESTINATION*`` and ``nodes-TYPE*`` of a folder.

Columns are those of `parquet`, for each file. One node type has labels, and perhaps a split; each has features of its
own columns, or none, and ids of its own, integers or text.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ....storage.dataset import SPLITS, Dataset
from ....storage.errors import InputError, nearest
from ....storage.node_names import NodeNames
from ....storage.typed.graph_types import RelationType
from ..cleaning.labels import GivenLabels
from ..cleaning.node_ids import Columns, as_one_kind, is_text, numbered_by_name, renumbered, unknown, with_gaps
from ..cleaning.options import ReadOptions
from ..cleaning.raw import AnyArray
from ..cleaning.typed import OF_NODES, TypedRaw, check_followed, clean_typed, noted
from .csv_file import is_csv
from .parquet import (
    chosen_features,
    column_of,
    edge_columns,
    feature_rows,
    label_columns,
    labels_of,
    numbers_of,
    split_codes,
    text_without_ids,
    times_of,
)
from .tables import read_table
from .typed_names import edge_files, node_files

OF_TABLES = (
    *OF_NODES, "feature_columns", "edge_feature_columns", "label_columns", "missing_ids", "direction", "edge_time",
    "node_time",
)  # fmt: skip
"""Options that are followed."""


def read_typed_folder(
    folder: Path, options: ReadOptions, name: str | None = None, split: str | None = None, seed: int = 0
) -> Dataset:
    """Read the tables of a folder. Without a direction, and if edges are directed, messages flow from sources to
    destinations; undirected adds the relation ``rev_NAME`` for each.

    Raises:
        InputError: begins with the name of the input, and says what to change.
    """
    name = name or folder.resolve().name
    with about(name):
        check_options(folder, options)
        raw = _read(folder, options)
        plain = replace(options, feature_columns=None, label_columns=None, edge_time=None, node_time=None)
        return clean_typed(name, raw, plain, split, seed, add_reverse=options.direction == "undirected")


def check_options(source: Path | str, options: ReadOptions) -> None:
    """Raise InputError for an option that tables of several types do not follow."""
    check_followed(str(source), options, OF_TABLES)
    if options.direction == "reverse":
        raise InputError(
            "direction is 'reverse', but the names of the files say where edges begin and end; leave it out, or rename "
            "the files"
        )


@dataclass(eq=False)
class _Nodes:
    """Table of one node type, and the ends of edges there, to be numbered together."""

    table: pa.Table
    from_csv: bool
    labels: tuple[str, ...] | None
    """Its columns of labels; None: it has none."""
    ends: dict[tuple[RelationType, str], pa.ChunkedArray] = field(default_factory=dict)
    csv_ends: set[tuple[RelationType, str]] = field(default_factory=set)
    order: AnyArray | None = None
    """Order of the rows by id; None: as they are."""
    names: NodeNames | None = None


def _read(folder: Path, options: ReadOptions) -> TypedRaw:
    names, notes = [path.name for path in folder.iterdir()], list[str]()
    of_nodes = {t: [folder / name for name in files] for t, files in node_files(names).items()}
    of_edges = {key: [folder / name for name in files] for key, files in edge_files(names).items()}
    nodes = {t: _nodes(folder, t, files, options) for t, files in of_nodes.items()}
    label_columns = {t: own.labels for t, own in nodes.items()}
    links = options.task == "link" and options.target is None
    target = None if links else target_of(label_columns, options)
    tables = {key: read_table(files, "edges", options) for key, files in of_edges.items()}
    check_named_of_edges(options, tables.values())
    weights, edge_features, of_relation = {}, {}, {}
    for key, table in tables.items():
        from_csv = is_csv(of_edges[key][0])
        found = _edges(folder, key, table, from_csv, nodes, options, notes)
        weights[key], edge_features[key], of_relation[key] = found
    edges: dict[RelationType, dict[str, AnyArray]] = {key: {} for key in of_edges}
    for t, own in nodes.items():
        with about(f"node type '{t}'"):
            for (key, end), numbers in _numbered(t, own, options, notes).items():
                edges[key][end] = numbers
    check_named_of_nodes(options, [own.table for own in nodes.values()])
    edge_times = _times("edge_time", options.edge_time, {key: (tables[key], title_of(key)) for key in tables})
    node_times = _times("node_time", options.node_time, {t: (own.table, f"nodes-{t}") for t, own in nodes.items()})
    node_times = {t: times if (order := nodes[t].order) is None else times[order] for t, times in node_times.items()}
    chosen = {t: _features(folder, t, own, options, notes) for t, own in nodes.items()}
    features = {t: rows for t, (rows, _) in chosen.items()}
    columns, found, labels, codes = (), GivenLabels(np.empty(0)), None, None
    if target is not None:
        own = nodes[target]
        columns = own.labels or ()
        with about(f"node type '{target}'"):
            found = labels_of(own.table, columns)
            labels = found.values
            codes = split_codes(own.table["split"]) if "split" in own.table.column_names else None
        if own.order is not None:
            labels, codes = labels[own.order], None if codes is None else codes[own.order]
        tell_unread(target, label_columns, {t: own.table for t, own in nodes.items()}, notes)
    return TypedRaw(
        {key: (ends["src"], ends["dst"]) for key, ends in edges.items()},
        labels,
        target,
        {t: own.table.num_rows for t, own in nodes.items()},
        features,
        weights,
        {} if codes is None else {part: codes == number for number, part in enumerate(SPLITS, 1)},
        tuple(notes),
        {t: own.names for t, own in nodes.items()},
        found.class_names,
        columns if options.named_labels else None,
        found.nulls,
        found.stripped,
        edge_times=edge_times,
        node_times=node_times,
        edge_features=edge_features,
        feature_columns={t: columns for t, (_, columns) in chosen.items()},
        edge_feature_columns=of_relation,
    )


def _times(option: str, column: str | None, tables: Mapping[Any, tuple[pa.Table, str]]) -> dict[Any, AnyArray]:
    """The column of times of the tables that have it, by their types; `tables` have names for messages.

    Raises:
        InputError: no table has it, or it holds no times.
    """
    found = {}
    for key, (table, title) in tables.items():
        if column in table.column_names:
            times = times_of(table, column, title, title)
            assert times is not None
            found[key] = times
    if column is not None and not found:
        what = "edges-SOURCE-RELATION-DESTINATION" if option == "edge_time" else "nodes-TYPE"
        _check_named((column,), [table for table, _ in tables.values()], option, what)
    return found


@contextmanager
def about(what: str) -> Iterator[None]:
    """Context whose errors begin with `what`, once."""
    try:
        yield
    except InputError as e:
        text = str(e).removeprefix(f"{what}: ")
        raise type(e)(f"{what}: {text}") from e


def _nodes(folder: Path, node_type: str, files: Sequence[Path], options: ReadOptions) -> _Nodes:
    table = read_table(files, "nodes", options)
    if not table.num_rows:
        raise no_nodes(node_type, files[0].name)
    return _Nodes(table, is_csv(files[0]), labels_of_type(table, folder, options))


def no_nodes(node_type: str, file: str) -> InputError:
    """Error for a node type without nodes."""
    return InputError(f"node type '{node_type}' has no nodes; expected a row for each in {file}")


def labels_of_type(table: pa.Table, source: Path | str, options: ReadOptions) -> tuple[str, ...] | None:
    """Columns with labels of a table of nodes, which may be empty; None if there are none."""
    try:
        return label_columns(table, source, options)
    except InputError:
        return None


def target_of(label_columns: Mapping[str, tuple[str, ...] | None], options: ReadOptions) -> str:
    """The node type that is predicted, by the columns of labels of each type.

    Raises:
        InputError: none has labels, or several do and the options choose none of them.
    """
    labelled = [t for t, columns in label_columns.items() if columns is not None]
    if (wanted := options.target) is not None:
        if wanted not in label_columns:
            raise InputError(
                f"target is '{wanted}', which is no node type; expected one of {', '.join(label_columns)}"
                f"{nearest(wanted, list(label_columns))}"
            )
        if wanted not in labelled:
            columns = ", ".join(options.named_labels or ("label",))
            raise InputError(f"target is '{wanted}', but nodes-{wanted} has no column {columns}; add the labels")
        return wanted
    if not labelled:
        columns = ", ".join(options.named_labels or ("label",))
        raise InputError(f"no nodes-TYPE has the column {columns}; give the labels of the node type to predict")
    if len(labelled) > 1:
        raise InputError(f"the node types {', '.join(labelled)} have labels; set target={labelled[0]}, or another")
    return labelled[0]


def check_ends(key: RelationType, node_types: Collection[str]) -> None:
    """Raise InputError if a relation begins or ends at a type that has no table."""
    for t in (key[0], key[2]):
        if t not in node_types:
            raise InputError(
                f"the relation {','.join(key)} has ends of type '{t}', but there is no nodes-{t}; expected one of "
                f"{', '.join(node_types)}{nearest(t, list(node_types))}"
            )


def title_of(key: RelationType) -> str:
    """Name of a relation's table in messages."""
    return f"edges-{'-'.join(key)}"


def tell_unread(
    target: str, labels: Mapping[str, tuple[str, ...] | None], tables: Mapping[str, pa.Table], notes: list[str]
) -> None:
    """Note columns of labels and splits of types that are not predicted."""
    for t, table in tables.items():
        unread = [*(labels[t] or ()), *(c for c in ("split",) if c in table.column_names)]
        if t != target and unread:
            notes.append(f"Columns of nodes-{t} were not read: {', '.join(unread)} ('{target}' is predicted).")


def _edges(
    folder: Path,
    key: RelationType,
    table: pa.Table,
    from_csv: bool,
    nodes: Mapping[str, _Nodes],
    options: ReadOptions,
    notes: list[str],
) -> tuple[AnyArray | None, AnyArray | None, tuple[str, ...]]:
    """Weights and features of a relation's edges, where it has any, and their columns; leaves ends with the nodes."""
    check_ends(key, nodes)
    stem = title_of(key)
    for end, t in (("src", key[0]), ("dst", key[2])):
        nodes[t].ends[key, end] = column_of(table, end, stem, folder)
        if from_csv:
            nodes[t].csv_ends.add((key, end))
    with about(f"relation {','.join(key)}"):
        columns = columns_of_edges(folder, key, table, options, notes)
        features = feature_rows(table, columns, stem)
    if features is not None and not features.shape[1]:  # lists of no numbers
        features = None
    weight = numbers_of(table["weight"], f"{stem}.weight") if "weight" in table.column_names else None
    return weight, features, columns


def columns_of_edges(
    source: Path | str, key: RelationType, table: pa.Table, options: ReadOptions, notes: list[str]
) -> tuple[str, ...]:
    """Columns that become features of a relation's edges; its table may be empty. See `parquet.edge_columns`."""
    own: list[str] = []
    if (named := options.named_edge_features) is not None and named != ("*",):
        options = replace(options, edge_feature_columns=tuple(c for c in named if c in table.column_names))
    found = edge_columns(table, source, options, own)
    notes += [f"Relation {','.join(key)}: {note[0].lower()}{note[1:]}" for note in own]
    return found


def _numbered(
    node_type: str, own: _Nodes, options: ReadOptions, notes: list[str]
) -> dict[tuple[RelationType, str], AnyArray]:
    """Numbers of the ends of edges of this type; leaves the order and the names of its nodes."""
    by_text = {f"edges-{'-'.join(key)}.{end}": (key, end) for key, end in own.ends}
    columns: Columns = {text: own.ends[which] for text, which in by_text.items()}
    from_csv = {text for text, which in by_text.items() if which in own.csv_ends}
    if "id" in own.table.column_names:
        columns["nodes.id"] = own.table["id"]
        from_csv |= {"nodes.id"} if own.from_csv else set()
    columns = as_one_kind(columns, from_csv)
    ids = columns.pop("nodes.id", None)
    if ids is not None and is_text(ids.type):
        own.names, ends = numbered_by_name(ids, columns)
    elif any(is_text(column.type) for column in columns.values()):
        raise text_without_ids(nodes=f"nodes-{node_type}")
    else:
        ends, count = {text: column.to_numpy() for text, column in columns.items()}, own.table.num_rows
        gaps = None
        if ids is not None:
            numbers = ids.to_numpy()
            own.order = np.argsort(numbers, kind="stable")
            of_type: list[str] = []
            gaps = with_gaps(numbers[own.order], options, of_type)
            notes += noted(node_type, of_type)
        if gaps is not None:
            own.names, ends = NodeNames.of_integers(gaps), renumbered(gaps, ends)
        for text, found in ends.items():
            if (outside := (found < 0) | (found >= count)).any():
                raise unknown(int(outside.sum()), text, str(found[outside][0]))
    return {by_text[text]: numbers for text, numbers in ends.items()}


def check_named_of_edges(options: ReadOptions, tables: Iterable[pa.Table]) -> None:
    """Raise InputError for a column of features of edges that the options name and no table has."""
    what = "edges-SOURCE-RELATION-DESTINATION"
    _check_named(options.named_edge_features, tables, "edge_feature_columns", what)


def check_named_of_nodes(options: ReadOptions, tables: Iterable[pa.Table]) -> None:
    """Raise InputError for a column of features of nodes that the options name and no table has."""
    _check_named(options.named_features, tables, "feature_columns", "nodes-TYPE")


def _check_named(named: tuple[str, ...] | None, tables: Iterable[pa.Table], option: str, what: str) -> None:
    """Raise InputError for a column that an option names and none of the tables has."""
    every = {c for table in tables for c in table.column_names}
    if named is not None and named != ("*",) and (absent := [c for c in named if c not in every]):
        raise InputError(
            f"{option} has '{absent[0]}', which no {what} has; expected one of {_listed(every)}"
            f"{nearest(absent[0], sorted(every))}"
        )


def _features(
    folder: Path, node_type: str, own: _Nodes, options: ReadOptions, notes: list[str]
) -> tuple[AnyArray | None, tuple[str, ...]]:
    """[n, F] of a node type, None without any, and their columns."""
    with about(f"node type '{node_type}'"):
        columns = columns_of_nodes(folder, node_type, own.table, own.labels, options, notes)
        found: Any = feature_rows(own.table, columns)
    return found if found is None or own.order is None else found[own.order], columns


def columns_of_nodes(
    source: Path | str,
    node_type: str,
    table: pa.Table,
    labels: tuple[str, ...] | None,
    options: ReadOptions,
    notes: list[str],
) -> tuple[str, ...]:
    """Columns that become features of a node type; its table may be empty. See `parquet.chosen_features`."""
    named, own = options.named_features, list[str]()
    if named is not None and named != ("*",):
        options = replace(options, feature_columns=tuple(c for c in named if c in table.column_names))
    found = chosen_features(table, source, options, own, labels or ())
    notes += noted(node_type, own)
    return found


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(sorted(columns))
