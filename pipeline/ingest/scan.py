"""One pass over the nodes' ids, labels and split, which leaves them in files of arrays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.node_names import NodeNames
from ..datasets.cleaning.class_names import by_value
from ..datasets.cleaning.node_ids import as_ids, given_ids, is_text
from ..datasets.cleaning.raw import AnyArray
from ..datasets.readers.parquet import labels_of, split_bits, times_of
from ..datasets.schema.columns import Columns
from .source import Span, Table, batches


def file_of(folder: Path, what: str, number: int) -> Path:
    """File with an array of one task."""
    return folder / "nodes" / f"{what}-{number:06d}.npy"


def scan_nodes(
    folder: Path, table: Table, number: int, span: Span, rows: int, ids_are_text: bool, columns: Columns, labelled: bool
) -> dict[str, Any]:
    """Write ids (unless they are the rows' numbers) and times of a span, and if they are `labelled` labels and split;
    return what else is to know."""
    (folder / "nodes").mkdir(exist_ok=True)
    found: dict[str, list[AnyArray]] = {"label": [], "split": [], "id": [], "time": []}
    classes: list[tuple[str, ...]] = []
    nulls, null_labels, stripped, names = 0, 0, 0, []
    wanted = [c for c in (columns.id, columns.time) if c is not None]
    wanted += columns.labels + columns.of_split if labelled else ()
    for batch in batches(table, span, wanted, rows):
        if columns.id is not None:
            column = given_ids(batch[columns.id])
            nulls += column.null_count
            if column.null_count:
                continue
            if ids_are_text:
                names.append(NodeNames.of_arrow(column))
            else:
                found["id"].append(as_ids(column, text=False).to_numpy())
        if columns.time:
            found["time"].append(np.asarray(times_of(batch, columns.time, columns.table)))
        if not labelled:
            continue
        labels = labels_of(batch, columns.labels, columns.table)
        null_labels += labels.nulls
        stripped += labels.stripped
        found["label"].append(labels.values)
        classes.append(labels.class_names or ())
        if (bits := split_bits(batch, columns)) is not None:
            found["split"].append(bits)
    record: dict[str, Any] = {"nulls": nulls, "rows": span.rows, "null_labels": null_labels, "stripped": stripped}
    if nulls:
        return record
    if labelled and len(columns.labels) == 1 and is_text(table.empty.schema.field(columns.labels[0]).type):
        record["classes"] = _save_named(folder, number, found.pop("label"), classes)
    if found["id"]:
        ids = np.concatenate(found.pop("id"))
        record["ascending"] = bool((ids[1:] > ids[:-1]).all())
        record["ends"] = [int(ids[0]), int(ids[-1])]
        if np.array_equal(ids, np.arange(span.first, span.first + len(ids))):
            record["are_rows"] = True
        else:
            np.save(file_of(folder, "id", number), ids)
    if names:
        _save_names(folder, number, names)
    for what, arrays in found.items():
        if arrays:
            np.save(file_of(folder, what, number), np.concatenate(arrays))
    return record


def ascend(records: Sequence[dict[str, Any]]) -> bool:
    """True if integer ids rise from row to row, so that nodes have the numbers of their rows."""
    ends = [record["ends"] for record in records]
    return all(record["ascending"] for record in records) and all(a[1] < b[0] for a, b in zip(ends, ends[1:]))


def _save_named(
    folder: Path, number: int, codes: Sequence[AnyArray], classes: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    """Write class numbers among the classes of this span; return their names."""
    names = sorted({name for some in classes for name in some})
    at = {name: i for i, name in enumerate(names)}
    of_span = [np.array([*(at[name] for name in some), -1], np.int64)[code] for code, some in zip(codes, classes)]
    np.save(file_of(folder, "label", number), np.concatenate(of_span))
    return tuple(names)


def _save_names(folder: Path, number: int, names: Sequence[NodeNames]) -> None:
    np.save(file_of(folder, "text", number), np.concatenate([n.text for n in names]))
    np.save(file_of(folder, "length", number), np.concatenate([np.diff(n.starts) for n in names]))


def class_codes(records: Sequence[dict[str, Any]]) -> tuple[tuple[str, ...] | None, list[AnyArray]]:
    """Names of classes of all spans, if labels are text, and their numbers by those within each span, -1 behind."""
    if "classes" not in records[0]:
        return None, []
    ordered = tuple(sorted({name for record in records for name in record["classes"]}, key=by_value))
    code_of = {name: code for code, name in enumerate(ordered)}
    return ordered, [np.array([*(code_of[n] for n in record["classes"]), -1], np.int64) for record in records]
