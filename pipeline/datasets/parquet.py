"""A folder of Parquet files: ``edges*.parquet`` and ``nodes*.parquet``, read in the order of their names.

=========  ==========================================================================================================
edges      ``src``, ``dst`` integer node ids; optional ``weight``
nodes      ``label`` class number (null or -1: unlabelled) or a list of 0 and 1; optional ``id`` integer (without it, row number);
           optional ``split``: "train", "val", "test" or null; features as one list column ``features`` or ``x``, or as numeric
           columns ``feature_0, feature_1, ...`` or ``x0, x1, ...``, in the order of their numbers; null is NaN
=========  ==========================================================================================================
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ...storage.dataset import SPLITS
from ...storage.errors import InputError, nearest
from .options import ReadOptions
from .parquet_rapids import ordered_edges
from .raw import AnyArray, Raw

_FEATURE = re.compile(r"(?:feature_|x_?)(\d+)")


def read_parquet_folder(folder: Path, options: ReadOptions, name: str | None = None) -> Raw:
    """Read the folder. See the module for its columns.

    Raises:
        InputError: a file or a column is missing, a column has the wrong type, or ids have gaps (`missing_ids`).
    """
    edges = None if options.edges_on == "gpu" else _table(folder, "edges")
    nodes = _table(folder, "nodes")
    notes: list[str] = []
    ids: AnyArray | None = None
    labels = _labels(_column(nodes, "label", "nodes", folder))
    features = _features(nodes, folder)
    split = _split(nodes)
    if "id" in nodes.column_names:
        ids = _ids(nodes["id"], "nodes.id")
        order = np.argsort(ids, kind="stable")
        ids = _with_gaps(ids[order], options, notes)
        labels, features = labels[order], None if features is None else features[order]
        split = {part: mask[order] for part, mask in split.items()}
    named = name or folder.name
    if edges is None:
        ordered = ordered_edges(_files(folder, "edges"), len(labels), ids, options)
        if ordered is not None:
            none = np.empty(0, np.int64)
            return Raw(named, none, none, labels, features, split=split, notes=tuple(notes), ordered=ordered)
        # The processor's way says what is not clean.
        edges = _table(folder, "edges")
    src, dst = (_ids(_column(edges, key, "edges", folder), f"edges.{key}") for key in ("src", "dst"))
    if ids is not None:
        src, dst = _renumbered(ids, src, dst)
    weight = _numbers(edges["weight"], "edges.weight") if "weight" in edges.column_names else None
    return Raw(named, src, dst, labels, features, weight, split, notes=tuple(notes))


def _files(folder: Path, stem: str) -> list[Path]:
    files = sorted(folder.glob(f"{stem}*.parquet"))
    if not files:
        raise InputError(f"{folder} holds no {stem}*.parquet; expected edges*.parquet (src, dst) and nodes*.parquet (label, features)")
    return files


def _table(folder: Path, stem: str) -> pa.Table:
    try:
        return pa.concat_tables([pq.read_table(f) for f in _files(folder, stem)], promote_options="default")
    except (pa.ArrowException, OSError) as e:
        raise InputError(f"{folder}: {stem}*.parquet cannot be read ({e}); write the files again with one schema") from e


def _column(table: pa.Table, key: str, stem: str, folder: Path) -> pa.ChunkedArray:
    if key not in table.column_names:
        raise InputError(
            f"{folder}: {stem} has no column '{key}'; it holds {', '.join(table.column_names) or 'nothing'}"
            f"{nearest(key, table.column_names)}"
        )
    return table[key]


def _ids(column: pa.ChunkedArray, what: str) -> AnyArray:
    if not pa.types.is_integer(column.type):
        raise InputError(f"column {what} is {column.type}; expected integer ids: number the nodes")
    if column.null_count:
        raise InputError(f"column {what} holds {column.null_count} nulls; expected an id in every row: drop those rows")
    return column.to_numpy()


def _numbers(column: pa.ChunkedArray, what: str) -> AnyArray:
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise InputError(f"column {what} is {column.type}; expected numbers")
    # Nulls become NaN through float64; the cleaner decides about NaN.
    return column.cast(pa.float64()).to_numpy() if column.null_count or pa.types.is_boolean(column.type) else column.to_numpy()


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _matrix(column: pa.ChunkedArray, what: str) -> AnyArray:
    """[V, F] of a list column whose lists have one length."""
    if column.null_count:
        raise InputError(f"column {what} holds {column.null_count} nulls; expected a list in every row")
    # `flatten` alone would hide ragged rows, so lengths are compared first.
    lengths = np.concatenate([_lengths(chunk) for chunk in column.chunks] or [np.empty(0, np.int64)])
    if len(lengths) and (lengths != lengths[0]).any():
        bad = int(np.flatnonzero(lengths != lengths[0])[0])
        raise InputError(f"column {what} has lists of {lengths[0]} and of {lengths[bad]} values (row {bad}); expected one length")
    flat = pa.chunked_array([c.flatten() for c in column.chunks], column.type.value_type)
    return _numbers(flat, what).reshape(len(column), -1 if len(flat) else 0)


def _lengths(lists: Any) -> npt.NDArray[np.integer]:
    return np.full(len(lists), lists.type.list_size) if pa.types.is_fixed_size_list(lists.type) else np.diff(lists.offsets.to_numpy())


def _labels(column: pa.ChunkedArray) -> AnyArray:
    if _is_list(column.type):
        return _matrix(column, "nodes.label")
    if column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        column = column.cast(pa.int64()).fill_null(-1)
    elif column.null_count and pa.types.is_floating(column.type):
        column = column.fill_null(-1.0)
    if column.type == pa.string() or column.type == pa.large_string():
        raise InputError("column nodes.label is text; expected class numbers 0, 1, ...: number the classes")
    return _numbers(column, "nodes.label")


def _features(nodes: pa.Table, folder: Path) -> AnyArray | None:
    for key in ("features", "x"):
        if key in nodes.column_names:
            if not _is_list(nodes[key].type):
                raise InputError(f"{folder}: column nodes.{key} is {nodes[key].type}; expected a list of numbers in every row")
            return _matrix(nodes[key], f"nodes.{key}")
    numbered = {int(m[1]): key for key in nodes.column_names if (m := _FEATURE.fullmatch(key))}
    if not numbered:
        return None
    return np.stack([_numbers(nodes[numbered[i]], f"nodes.{numbered[i]}").astype(np.float32) for i in sorted(numbered)], axis=1)


def _split(nodes: pa.Table) -> dict[str, npt.NDArray[np.bool_]]:
    if "split" not in nodes.column_names:
        return {}
    values: list[Any] = nodes["split"].to_pylist()
    strange = sorted({str(v) for v in values if v is not None} - set(SPLITS))
    if strange:
        raise InputError(f"column nodes.split holds '{strange[0]}'; expected train, val, test or null{nearest(strange[0], SPLITS)}")
    column = np.array([v or "" for v in values])
    return {part: column == part for part in SPLITS}


def _with_gaps(ids: AnyArray, options: ReadOptions, notes: list[str]) -> AnyArray | None:
    """The ascending `ids` if edges must be renumbered; None if they are 0 to V - 1."""
    if (ids[1:] == ids[:-1]).any():
        again = ids[1:][ids[1:] == ids[:-1]][0]
        raise InputError(f"column nodes.id holds {again} more than once; expected one row for each node")
    if not len(ids) or (ids[0] == 0 and ids[-1] == len(ids) - 1):
        return None
    if options.missing_ids == "error":
        raise InputError(
            f"column nodes.id has gaps: {len(ids)} ids between {ids[0]} and {ids[-1]}; expected 0 to {len(ids) - 1}: "
            "set missing_ids=compact to renumber the nodes"
        )
    notes.append(f"Node ids had gaps: {len(ids)} nodes were renumbered from 0 in ascending order of id.")
    return ids


def _renumbered(ids: AnyArray, src: AnyArray, dst: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Edge ends as positions in the ascending `ids`."""
    ends = []
    for what, column in (("src", src), ("dst", dst)):
        at = np.minimum(np.searchsorted(ids, column), len(ids) - 1)
        unknown = ids[at] != column
        if unknown.any():
            raise InputError(
                f"{unknown.sum()} values of edges.{what} (first: {column[unknown][0]}) are no node's id; "
                "give those nodes a row, or drop the edges"
            )
        ends.append(at)
    return ends[0], ends[1]
