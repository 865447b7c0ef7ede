"""Tables of edges and nodes: ``edges*`` and ``nodes*`` of a folder, in the order of their names, or one file of edges.

=========  ==========================================================================================================
edges      ``src``, ``dst`` node ids, or an alias such as ``source``, ``target`` (see `tables.ALIASES`); optional
           ``weight``; times in the column that `edge_time` names; features of edges as `edge_feature_columns` names
           them, or in columns named as those of nodes
nodes      ``label`` class number or text (null, empty or -1: unlabelled), a list of 0 and 1, or targets (one number or
           a list, null is not known), or ``label_0, label_1, ...``, or columns that `label_columns` names; optional
           ``id``, integers or text (without it, row number); optional ``split``: "train", "val", "test" or null;
           features as `feature_columns` names them, or as one list column ``features`` or ``x``, or as numeric columns
           ``feature_0, feature_1, ...`` or ``x0, x1, ...``, in the order of their numbers; null is NaN
=========  ==========================================================================================================

Tables may be Parquet, or CSV with a header. Nodes whose ids are text keep the order of their rows, and classes whose
labels are text are numbered in the order of their names.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ....storage.dataset import SPLITS
from ....storage.errors import InputError, nearest
from ....storage.node_names import NodeNames
from ..cleaning.class_names import numbered
from ..cleaning.labels import GivenLabels
from ..cleaning.node_ids import Columns, as_one_kind, is_text, numbered_by_name, renumbered, signed, with_gaps
from ..cleaning.options import ReadOptions
from ..cleaning.raw import AnyArray, Raw
from .csv_file import is_csv
from .parquet_rapids import ordered_edges
from .tables import FEATURE, files_of, is_label, nodes_beside, read_table, reading, renamed

_LABEL = re.compile(r"label(?:_(\d+))?")
SHOWN_COLUMNS = 8
"""Most columns named in a note."""


def read_parquet_folder(folder: Path, options: ReadOptions, name: str | None = None) -> Raw:
    """Read the tables of a folder. See the module for their columns.

    Raises:
        InputError: a file or a column is missing, a column has the wrong type, or ids are unknown or have gaps
            (`missing_ids`).
    """
    if options.nodes_file is not None:
        raise InputError(f"nodes_file is given, but {folder} is a folder, whose nodes* are read; leave it out")
    return _read(files_of(folder, "edges"), files_of(folder, "nodes"), folder, options, name or folder.name)


def read_edge_file(path: Path, options: ReadOptions, name: str | None = None) -> Raw:
    """Read one file of edges, and the file of their nodes (see `tables.nodes_beside`). Raises InputError like
    `read_parquet_folder`."""
    nodes = nodes_beside(path, options)
    stem = path.name.partition(".")[0]
    raw = _read([path], [nodes], path, options, name or (path.resolve().parent.name if stem == "edges" else stem))
    return replace(raw, notes=(f"The nodes were read from {nodes}.", *raw.notes))


def _read(edge_files: Sequence[Path], node_files: Sequence[Path], source: Path, options: ReadOptions, name: str) -> Raw:
    nodes = read_table(node_files, "nodes", options)
    if not nodes.num_rows:
        raise InputError(f"{source}: there are no nodes; expected a row for each node in {node_files[0].name}")
    by_name = "id" in nodes.column_names and is_text(nodes["id"].type)
    edges = None if options.edges_on == "gpu" and not by_name else read_table(edge_files, "edges", options)
    notes: list[str] = []
    if edges is None and edge_columns(_empty(edge_files[0]), source, options, []):
        raise InputError(
            f"{source}: edges_on is gpu, but edges have features, which are read on the CPU; leave edges_on out"
        )
    if edges is None and options.edge_time is not None:
        raise InputError(f"{source}: edges_on is gpu, but edges have times, which are read on the CPU; leave it out")
    try:
        columns_of_labels = label_columns(nodes, source, options)
    except InputError as e:
        if edges is None or options.named_labels is not None or "label" not in edges.column_names:
            raise
        raise InputError(f"{e}. Edges have one: set labels_of=edges to predict it") from None
    of_nodes = labels_of(nodes, columns_of_labels)
    labels, class_names = of_nodes.values, of_nodes.class_names
    given: dict[str, Any] = {"nulls": of_nodes.nulls, "stripped": of_nodes.stripped}
    given["label_names"] = columns_of_labels if options.named_labels else None
    given["feature_columns"] = chosen_features(nodes, source, options, notes)
    features = feature_rows(nodes, given["feature_columns"])
    split = stored_split(nodes)
    node_time = times_of(nodes, options.node_time, "nodes", source)
    if edges is None:
        ids, order = _by_number(nodes["id"], options, notes) if "id" in nodes.column_names else (None, None)
        ordered = ordered_edges(edge_files, len(labels), ids, options)
        if ordered is not None:
            none = np.empty(0, np.int64)
            found = Raw(name, none, none, labels, features, split=split, ordered=ordered, node_time=node_time, **given)
            return _finished(found, order, None if ids is None else NodeNames.of_integers(ids), class_names, notes)
        # The CPU reader reports defects.
        edges, notes = read_table(edge_files, "edges", options), [n for n in notes if "were renumbered" not in n]
    given["edge_feature_columns"] = edge_columns(edges, source, options, notes)
    of_edges = feature_rows(edges, given["edge_feature_columns"], "edges")
    columns: Columns = {f"edges.{key}": column_of(edges, key, "edges", source) for key in ("src", "dst")}
    from_csv = set(columns) if is_csv(edge_files[0]) else set()
    if "id" in nodes.column_names:
        columns["nodes.id"] = nodes["id"]
        from_csv |= {"nodes.id"} if is_csv(node_files[0]) else set()
    columns = as_one_kind(columns, from_csv)
    ids, order, names = columns.pop("nodes.id", None), None, None
    if ids is not None and is_text(ids.type):
        names, ends = numbered_by_name(ids, columns)
    elif is_text(columns["edges.src"].type):
        raise text_without_ids(f"{source}: ")
    else:
        ends = {what: column.to_numpy() for what, column in columns.items()}
        if ids is not None:
            sorted_ids, order = _by_number(ids, options, notes)
            if sorted_ids is not None:
                names, ends = NodeNames.of_integers(sorted_ids), renumbered(sorted_ids, ends)
    weight = numbers_of(edges["weight"], "edges.weight") if "weight" in edges.column_names else None
    given |= {"edge_time": times_of(edges, options.edge_time, "edges", source), "node_time": node_time, "split": split}
    raw = Raw(name, ends["edges.src"], ends["edges.dst"], labels, features, weight, of_edges, **given)
    return _finished(raw, order, names, class_names, notes)


def text_without_ids(where: str = "", nodes: str = "nodes") -> InputError:
    """Error for edges that call nodes by text which their table, called `nodes`, does not have. Begins with `where`."""
    return InputError(
        f"{where}the ends of edges are text, but {nodes} has no column 'id'; give each node the id that edges call it "
        "by"
    )


def _empty(path: Path) -> pa.Table:
    """No rows of a Parquet file of edges, with Millrace's names."""
    with reading(path):
        return renamed(pq.read_schema(path).empty_table(), "edges")


def _by_number(column: pa.ChunkedArray, options: ReadOptions, notes: list[str]) -> tuple[AnyArray | None, AnyArray]:
    """The ascending ids if they have gaps, and the order of the rows by id."""
    if not pa.types.is_integer(column.type) or column.null_count:
        as_one_kind({"nodes.id": column}, set())
    ids = signed(column, "nodes.id").to_numpy()
    order = np.argsort(ids, kind="stable")
    return with_gaps(ids[order], options, notes), order


def _finished(
    raw: Raw, order: AnyArray | None, names: NodeNames | None, classes: tuple[str, ...] | None, notes: list[str]
) -> Raw:
    """The raw graph with its nodes' rows in `order`, their names, and the notes."""
    if order is not None:
        features = None if raw.features is None else raw.features[order]
        split = {part: mask[order] for part, mask in raw.split.items()}
        times = None if raw.node_time is None else raw.node_time[order]
        raw = replace(raw, labels=raw.labels[order], features=features, split=split, node_time=times)
    return replace(raw, node_names=names, class_names=classes, notes=tuple(notes))


def edge_columns(edges: pa.Table, source: Path | str, options: ReadOptions, notes: list[str]) -> tuple[str, ...]:
    """Names of the columns of edges that become features, in order; the table may be empty. Columns that are not read
    are noted."""
    taken = ("src", "dst", "weight", options.edge_time)
    if options.labels_of == "edges":
        taken += ("split", *(options.named_labels or ()), *(c for c in edges.column_names if _LABEL.fullmatch(c)))
    others = [c for c in edges.column_names if c and c not in taken]
    wanted = options.named_edge_features
    if wanted == ("*",):
        wanted = tuple(c for c in others if _is_feature(edges[c].type))
    for key in wanted or ():
        _ = column_of(edges, key, "edges", source)
    if wanted is None:
        wanted = _customary(edges, source, "edges")
    if left := [c for c in others if c not in wanted]:
        takable = [*wanted, *(c for c in left if _is_feature(edges[c].type))]
        value = ",".join(takable) if len(takable) <= SHOWN_COLUMNS else "*"
        how = f" (edge_feature_columns={value} takes them as features)" if len(takable) > len(wanted) else ""
        notes.append(f"Columns of edges were not read: {_listed(left)}{how}.")
    return wanted


def _listed(columns: Sequence[str]) -> str:
    more = len(columns) - SHOWN_COLUMNS
    return ", ".join(columns[:SHOWN_COLUMNS]) + (f" and {more} more" if more > 0 else "")


def column_of(table: pa.Table, key: str, stem: str, source: Path | str) -> pa.ChunkedArray:
    """The column `key`. Raises InputError if there is none."""
    if key not in table.column_names:
        raise InputError(
            f"{source}: {stem} has no column '{key}'; it holds "
            f"{', '.join(table.column_names) or 'nothing'}{nearest(key, table.column_names)}"
        )
    return table[key]


def numbers_of(column: pa.ChunkedArray, what: str) -> AnyArray:
    """Numbers [V], nulls as NaN. Raises InputError for a column of anything else."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise InputError(f"column {what} is {column.type}; expected numbers")
    # Nulls become NaN through float64; the cleaner decides about NaN.
    return (
        column.cast(pa.float64()).to_numpy()
        if column.null_count or pa.types.is_boolean(column.type)
        else column.to_numpy()
    )


def times_of(table: pa.Table, key: str | None, stem: str, source: Path | str) -> AnyArray | None:
    """Numbers of the column `key` of nodes or edges, nulls as NaN, or dates in the unit of the column; None without a
    key."""
    if key is None:
        return None
    column = column_of(table, key, stem, source)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return column.to_numpy()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        raise InputError(f"column {stem}.{key} is {column.type}; expected numbers, or dates in UTC without an offset")
    return numbers_of(column, f"{stem}.{key}")


def is_list(kind: pa.DataType) -> bool:
    """True for the type of a column of lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def matrix_of(column: pa.ChunkedArray, what: str) -> AnyArray:
    """[V, F] from a list column whose lists have one length."""
    if column.null_count:
        raise InputError(f"column {what} holds {column.null_count} nulls; expected a list in every row")
    # `flatten` alone would hide ragged rows, so lengths are compared first.
    lengths = np.concatenate([_lengths(chunk) for chunk in column.chunks] or [np.empty(0, np.int64)])
    if len(lengths) and (lengths != lengths[0]).any():
        bad = int(np.flatnonzero(lengths != lengths[0])[0])
        raise InputError(
            f"column {what} has lists of {lengths[0]} and of {lengths[bad]} values (row {bad}); expected one length"
        )
    flat = pa.chunked_array([c.flatten() for c in column.chunks], column.type.value_type)
    return numbers_of(flat, what).reshape(len(column), -1 if len(flat) else 0)


def _lengths(lists: Any) -> npt.NDArray[np.integer]:
    return (
        np.full(len(lists), lists.type.list_size)
        if pa.types.is_fixed_size_list(lists.type)
        else np.diff(lists.offsets.to_numpy())
    )


def label_columns(table: pa.Table, source: Path | str, options: ReadOptions, stem: str = "nodes") -> tuple[str, ...]:
    """Names of the columns that hold labels, in order; the table may be empty. It is one of nodes, or with `stem` one
    of edges; nodes have none where edges are labelled.

    Raises:
        InputError: there is no such column.
    """
    if stem == "nodes" and options.labels_of == "edges":
        return ()
    wanted = options.named_labels
    if wanted is None:
        of_number = {int(m[1]): key for key in table.column_names if (m := _LABEL.fullmatch(key)) and m[1]}
        wanted = ("label",) if "label" in table.column_names or not of_number else _by_value(of_number)
        if stem == "nodes" and options.task == "link" and wanted == ("label",) and "label" not in table.column_names:
            return ()
    elif stem == "nodes" and options.task == "link":  # not wanted, but no features either
        wanted = tuple(c for c in wanted if c in table.column_names or (is_label(c) and "label" in table.column_names))
    # A column with another name for labels has been renamed.
    wanted = tuple("label" if c not in table.column_names and is_label(c) else c for c in wanted)
    for key in wanted:
        _ = column_of(table, key, stem, source)
    return wanted


def labels_of(table: pa.Table, columns: Sequence[str], stem: str = "nodes") -> GivenLabels:
    """Class numbers or targets [V] of one column, or [V, C] of several or of one of lists. Zeros if there are no
    columns."""
    if not columns:
        return GivenLabels(np.zeros(table.num_rows, np.int64))
    if len(columns) > 1:
        return GivenLabels(np.stack([numbers_of(table[c], f"{stem}.{c}") for c in columns], axis=1))
    (key,) = columns
    column = table[key]
    if is_list(column.type):
        return GivenLabels(matrix_of(column, f"{stem}.{key}"))
    if is_text(column.type):
        found = numbered(column)
        return GivenLabels(found.labels, found.class_names, stripped=found.stripped)
    if pa.types.is_null(column.type) or (column.null_count and pa.types.is_integer(column.type)):
        column = column.cast(pa.float64(), safe=False)
    return GivenLabels(numbers_of(column, f"{stem}.{key}"), nulls=column.null_count)


def chosen_features(
    nodes: pa.Table, source: Path | str, options: ReadOptions, notes: list[str], labels: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Names of the columns that become features, in order; the table may be empty. Columns that are not read are
    noted. `labels` are the columns of labels; None: see `label_columns`."""
    taken = (
        "id",
        "split",
        "label",
        options.node_time,
        *(label_columns(nodes, source, options) if labels is None else labels),
    )
    others = [c for c in nodes.column_names if c and c not in taken]
    wanted = options.named_features
    if wanted == ("*",):
        wanted = tuple(c for c in others if _is_feature(nodes[c].type))
    for key in wanted or ():
        _ = column_of(nodes, key, "nodes", source)
    if wanted is None:
        wanted = _customary(nodes, source, "nodes")
        takable = [c for c in others if c not in wanted and _is_feature(nodes[c].type)]
        if takable:
            both = [*wanted, *takable]
            value = ",".join(both) if len(both) <= SHOWN_COLUMNS else "*"
            notes.append(
                f"Columns of nodes were not read: {_listed(takable)} (feature_columns={value} takes them as features)."
            )
    if text := [c for c in others if c not in wanted and not _is_feature(nodes[c].type)]:
        notes.append(f"Columns of nodes that are not numeric were not read: {_listed(text)}.")
    return wanted


def feature_rows(table: pa.Table, wanted: Sequence[str], stem: str = "nodes") -> AnyArray | None:
    """[V, F] numbers from the columns `wanted` of nodes, or of edges; None without any."""
    if not wanted:
        return None
    if len(wanted) == 1 and is_list(table[wanted[0]].type):
        return matrix_of(table[wanted[0]], f"{stem}.{wanted[0]}")
    parts = [
        (matrix_of if is_list(table[c].type) else numbers_of)(table[c], f"{stem}.{c}").astype(np.float32)
        for c in wanted
    ]
    return np.concatenate([p if p.ndim == 2 else p[:, None] for p in parts], axis=1)


def _is_feature(kind: pa.DataType) -> bool:
    kind = kind.value_type if is_list(kind) else kind
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _customary(table: pa.Table, source: Path | str, stem: str) -> tuple[str, ...]:
    """Columns that are features by their names: one of lists, or numbered ones."""
    for key in ("features", "x"):
        if key in table.column_names:
            if not is_list(table[key].type):
                raise InputError(
                    f"{source}: column {stem}.{key} is {table[key].type}; expected a list of numbers in every row"
                )
            return (key,)
    of_number = {int(m[1]): key for key in table.column_names if (m := FEATURE.fullmatch(key))}
    return _by_value(of_number)


def _by_value(of_number: dict[int, str]) -> tuple[str, ...]:
    return tuple(of_number[i] for i in sorted(of_number))


def stored_split(table: pa.Table, stem: str = "nodes") -> dict[str, npt.NDArray[np.bool_]]:
    """Masks of the sets in the column split of a table, by their names; empty without one."""
    if "split" not in table.column_names:
        return {}
    codes = split_codes(table["split"], stem)
    return {part: codes == number for number, part in enumerate(SPLITS, 1)}


def split_codes(column: pa.ChunkedArray, stem: str = "nodes") -> npt.NDArray[np.uint8]:
    """uint8 [V], 1 for train, 2 for val, 3 for test, else 0."""
    values: list[Any] = column.to_pylist()
    strange = sorted({str(v) for v in values if v is not None} - set(SPLITS))
    if strange:
        raise InputError(
            f"column {stem}.split holds '{strange[0]}'; expected train, val, test or null{nearest(strange[0], SPLITS)}"
        )
    number = {part: number for number, part in enumerate(SPLITS, 1)}
    return np.array([number.get(v, 0) for v in values], np.uint8)
