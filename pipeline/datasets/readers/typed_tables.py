"""Tables of a graph with several types: ``edges-SOURCE-RELATION-DESTINATION*`` and ``nodes-TYPE*`` of a folder.

Columns are those of `parquet`, for each file. One node type has labels, and perhaps a split; each has features of its
own columns, or none, and ids of its own, integers or text.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from ..cleaning.node_ids import Columns, as_one_kind, is_text, numbered_by_name, renumbered, unknown, with_gaps
from ..cleaning.options import ReadOptions
from ..cleaning.raw import AnyArray
from ..cleaning.typed import OF_NODES, TypedRaw, check_followed, clean_typed
from .csv_file import is_csv
from .parquet import (
    chosen_features,
    column_of,
    edge_columns,
    feature_rows,
    label_columns,
    labels_of,
    numbers_as_names,
    numbers_of,
    split_codes,
)
from .tables import read_table
from .typed_names import edge_files, node_files

OF_TABLES = (*OF_NODES, "feature_columns", "edge_feature_columns", "label_columns", "missing_ids", "direction")
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
    try:
        check_followed(str(folder), options, OF_TABLES)
        if options.direction == "reverse":
            raise InputError(
                "direction is 'reverse', but the names of the files say where edges begin and end; leave it out, or "
                "rename the files"
            )
        raw = _read(folder, options)
        plain = replace(options, feature_columns=None, label_columns=None)
        return clean_typed(name, raw, plain, split, seed, add_reverse=options.direction == "undirected")
    except InputError as e:
        text = str(e).removeprefix(f"{name}: ")
        raise type(e)(f"{name}: {text}") from e


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
    of_nodes, of_edges, notes = node_files(folder), edge_files(folder), list[str]()
    nodes = {t: _nodes(folder, t, files, options) for t, files in of_nodes.items()}
    target = _target(nodes, options)
    tables = {key: read_table(files, "edges") for key, files in of_edges.items()}
    _check_named(
        options.named_edge_features, tables.values(), "edge_feature_columns", "edges-SOURCE-RELATION-DESTINATION"
    )
    weights, edge_features = {}, {}
    for key, table in tables.items():
        from_csv = is_csv(of_edges[key][0])
        weights[key], edge_features[key] = _edges(folder, key, table, from_csv, nodes, options, notes)
    edges: dict[RelationType, dict[str, AnyArray]] = {key: {} for key in of_edges}
    for t, own in nodes.items():
        with _about(f"node type '{t}'"):
            for (key, end), numbers in _numbered(t, own, options, notes).items():
                edges[key][end] = numbers
    _check_named(options.named_features, [own.table for own in nodes.values()], "feature_columns", "nodes-TYPE")
    features = {t: _features(folder, t, own, options, notes) for t, own in nodes.items()}
    own = nodes[target]
    columns = own.labels or ()
    with _about(f"node type '{target}'"):
        labels, class_names, nulls = labels_of(own.table, columns)
        codes = split_codes(own.table["split"]) if "split" in own.table.column_names else None
    if own.order is not None:
        labels, codes = labels[own.order], None if codes is None else codes[own.order]
    for t, other in nodes.items():
        unread = [*(other.labels or ()), *(c for c in ("split",) if c in other.table.column_names)]
        if t != target and unread:
            notes.append(f"Columns of nodes-{t} were not read: {', '.join(unread)} ('{target}' is predicted).")
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
        class_names,
        columns if options.named_labels else None,
        nulls,
        edge_features=edge_features,
    )


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Context whose errors begin with `what`."""
    try:
        yield
    except InputError as e:
        raise type(e)(f"{what}: {e}") from e


def _nodes(folder: Path, node_type: str, files: Sequence[Path], options: ReadOptions) -> _Nodes:
    table = read_table(files, "nodes")
    if not table.num_rows:
        raise InputError(f"node type '{node_type}' has no nodes; expected a row for each in {files[0].name}")
    try:
        labels = label_columns(table, folder, options)
    except InputError:
        labels = None
    return _Nodes(table, is_csv(files[0]), labels)


def _target(nodes: Mapping[str, _Nodes], options: ReadOptions) -> str:
    """The node type that is predicted."""
    labelled = [t for t, own in nodes.items() if own.labels is not None]
    if (wanted := options.target) is not None:
        if wanted not in nodes:
            raise InputError(
                f"target is '{wanted}', which is no node type; expected one of {', '.join(nodes)}"
                f"{nearest(wanted, list(nodes))}"
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


def _edges(
    folder: Path,
    key: RelationType,
    table: pa.Table,
    from_csv: bool,
    nodes: Mapping[str, _Nodes],
    options: ReadOptions,
    notes: list[str],
) -> tuple[AnyArray | None, AnyArray | None]:
    """Weights and features of the edges of a relation, where they have any; leaves their ends with the node types."""
    for t in (key[0], key[2]):
        if t not in nodes:
            raise InputError(
                f"the relation {','.join(key)} has ends of type '{t}', but there is no nodes-{t}; expected one of "
                f"{', '.join(nodes)}{nearest(t, list(nodes))}"
            )
    stem = f"edges-{'-'.join(key)}"
    for end, t in (("src", key[0]), ("dst", key[2])):
        nodes[t].ends[key, end] = column_of(table, end, stem, folder)
        if from_csv:
            nodes[t].csv_ends.add((key, end))
    own: list[str] = []
    if (named := options.named_edge_features) is not None and named != ("*",):
        options = replace(options, edge_feature_columns=tuple(c for c in named if c in table.column_names))
    with _about(f"relation {','.join(key)}"):
        features = feature_rows(table, edge_columns(table, folder, options, own), stem)
    notes += [f"Relation {','.join(key)}: {note[0].lower()}{note[1:]}" for note in own]
    return numbers_of(table["weight"], f"{stem}.weight") if "weight" in table.column_names else None, features


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
        raise InputError(
            f"the ends of edges are text, but nodes-{node_type} has no column 'id'; give each node the id that edges "
            "call it by"
        )
    else:
        ends, count = {text: column.to_numpy() for text, column in columns.items()}, own.table.num_rows
        gaps = None
        if ids is not None:
            numbers = ids.to_numpy()
            own.order = np.argsort(numbers, kind="stable")
            of_type: list[str] = []
            gaps = with_gaps(numbers[own.order], options, of_type)
            notes += [f"Node type '{node_type}': {note[0].lower()}{note[1:]}" for note in of_type]
        if gaps is not None:
            own.names, ends = numbers_as_names(gaps), renumbered(gaps, ends)
        for text, found in ends.items():
            if (outside := (found < 0) | (found >= count)).any():
                raise unknown(int(outside.sum()), text, str(found[outside][0]))
    return {by_text[text]: numbers for text, numbers in ends.items()}


def _check_named(named: tuple[str, ...] | None, tables: Iterable[pa.Table], option: str, what: str) -> None:
    """Raise InputError for a column that an option names and none of the tables has."""
    every = {c for table in tables for c in table.column_names}
    if named is not None and named != ("*",) and (absent := [c for c in named if c not in every]):
        raise InputError(
            f"{option} has '{absent[0]}', which no {what} has; expected of {_listed(every)}"
            f"{nearest(absent[0], sorted(every))}"
        )


def _features(folder: Path, node_type: str, own: _Nodes, options: ReadOptions, notes: list[str]) -> AnyArray | None:
    """[n, F] of a node type; None without columns of features."""
    named, columns = options.named_features, own.table.column_names
    if named is not None and named != ("*",):
        options = replace(options, feature_columns=tuple(c for c in named if c in columns))
    of_type: list[str] = []
    with _about(f"node type '{node_type}'"):
        wanted = chosen_features(own.table, folder, options, of_type, own.labels or ())
        found: Any = feature_rows(own.table, wanted)
    notes += [f"Node type '{node_type}': {note[0].lower()}{note[1:]}" for note in of_type]
    return found if found is None or own.order is None else found[own.order]


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(sorted(columns))
