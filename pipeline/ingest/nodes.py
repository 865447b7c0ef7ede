"""A table of nodes and the stages of an ingest on it: ids are numbered, names and features written."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ...storage.dataset import SPLITS
from ...storage.fingerprint import array_digest
from ...storage.optional import present_items, when_present
from ..datasets.cleaning import columns as columns_of
from ..datasets.cleaning.columns import Card
from ..datasets.cleaning.filling import Seen, Treatment
from ..datasets.cleaning.labels import settled_labels
from ..datasets.cleaning.options import ReadOptions
from ..datasets.cleaning.raw import GivenLabels
from ..datasets.cleaning.splits import make_split
from ..datasets.readers.parquet import labels_of, sets_of, split_bits, times_of
from ..datasets.schema.columns import Columns, is_list
from ..datasets.schema.source import Request
from . import features as feature_tasks
from .arrays import Matrix, Piece, Written
from .budget import Budget
from .features import FeatureRows, feature_width, treatment_of
from .names import NodeMap, file_of, name_ids, number_nodes
from .source import Table, spans_of
from .tasks import Stages
from .times import Times

SCAN_BYTES = 48
"""Bytes of a node's id, label and split in memory, about."""
SPAN_ROWS = 1 << 16
"""Fewest nodes of a task, unless there are no more."""
NAMES_PER_TASK = 1 << 20


class NodeTable:
    """The nodes of a table, which are those of one type. Their files are in a folder of their own."""

    def __init__(
        self, table: Table, columns: Columns, number: int, labelled: bool, stages: Stages, budget: Budget
    ) -> None:
        """Labels and split are read if nodes are `labelled`. The `number` of the node type tells its stages from those
        of others, if there are several."""
        typed, self.table, self._stages, self._budget = table.source.type is not None, table, stages, budget
        self._of = (f"-{number}", f" of {table.source.type}") if typed else ("", "")
        self.folder = stages.folder / "types" / str(number) if typed else stages.folder
        self.columns, self.labelled, feature_columns = columns, labelled, columns.features
        self.folder.mkdir(parents=True, exist_ok=True)
        row = 4 * len(feature_columns) + 2 * table.row_bytes
        self._batch = budget.rows(row)
        self.spans = spans_of(table, max(budget.span(self._batch, table.num_rows), SPAN_ROWS))
        self.width = feature_width(table, feature_columns)
        """F; 0: there are no features."""

    def _run(self, stage: str, text: str, task: Any, items: Any) -> list[dict[str, Any]]:
        return self._stages.run(f"{stage}{self._of[0]}", f"{text}{self._of[1]}", task, items)

    @property
    def feature_values(self) -> int:
        """Numbers of all rows of features on disk at once; see `disk_bytes`."""
        return self.table.num_rows * self.width * (1 if self.columns.id is None else 2)

    def number(self, ids_are_text: bool, options: ReadOptions, notes: list[str]) -> None:
        """Number the nodes from their ids, which makes `map`; put times, labels and split as they are into files.
        Raises InputError: an id is null, belongs to two nodes, or is missing; or labels are no labels."""
        rows = max(1, min(self._budget.task_bytes // (4 * SCAN_BYTES), 1 << 20))
        found: dict[str, Any] = {"kind": "rows", "notes": []}
        if self.columns.id is not None:
            item = (self.folder, self.table, self.columns.id, ids_are_text, options, rows)
            (found,) = self._run("number", "numbering nodes", number_nodes, [item])
        notes += found["notes"]
        self.map = NodeMap(found["kind"], self.folder, self.table.num_rows)
        self.given = dict[str, Any]()
        if self.labelled or self.columns.time:
            item = (self.map, self.table, self.columns, self.labelled)
            (self.given,) = self._run("read", "reading labels and times", read_values, [item])

    @property
    def is_named(self) -> bool:
        """True if nodes are called by something else than their numbers."""
        return self.map.kind in ("text", "gaps")

    def names(self) -> tuple[list[Piece], list[Piece]]:
        """Text of the nodes' names, and the end of each name in it; numbers of nodes without others."""
        total, folder = self.map.num_nodes, self.folder
        if self.map.kind == "text":
            text, starts = folder / "names.text", folder / "starts.npy"
            offset = starts.stat().st_size - 8 * total
            return [Piece(text, text.stat().st_size)], [Piece(starts, total, 0, offset)]
        ranges = [(i, min(i + NAMES_PER_TASK, total)) for i in range(0, total, NAMES_PER_TASK)]
        items = [(self.map, k, *each) for k, each in enumerate(ranges)]
        named = self._run("name", "writing names", name_ids, items)
        before = np.cumsum([0, *(r["bytes"] for r in named)]).tolist()
        texts = [Piece(folder / f"names-{k:06d}.text", r["bytes"]) for k, r in enumerate(named)]
        return texts, [Piece(folder / f"names-{k:06d}.starts", r["rows"], before[k]) for k, r in enumerate(named)]

    def feature_rows(self, options: ReadOptions) -> FeatureRows:
        """The features as they are read."""
        return FeatureRows(self.table, self.columns.features, self.width, self._batch, options)

    def treatment(self, options: ReadOptions) -> Treatment:
        """Scales and fills of the features."""
        return treatment_of(self.feature_rows(options), self.spans, self._run)

    def write_features(
        self, matrix: Matrix, treatment: Treatment, notes: list[str], card: Card, of: str = "nodes"
    ) -> Written:
        """Write the features, cleaned. Returns what was written. Raises InputError: they are no numbers, NaN where that
        is an error, or lists of several lengths."""
        options = treatment.options
        work = feature_tasks.FeatureWork(self.folder, self.feature_rows(options), self.map, matrix, treatment)
        items: list[Any] = [(work, k, span) for k, span in enumerate(self.spans)]
        moved, task = self.map.moved is not None, feature_tasks.spill_features
        if not moved:
            task = feature_tasks.write_features
            ranges = [matrix.whole_chunks(span.first, span.first + span.rows) for span in self.spans]
            spans, stops = self.spans, [bisect_left(self.spans, end, key=lambda span: span.first) for _, end in ranges]
            items = [(work, spans[k : stops[k]], *rows) for k, rows in enumerate(ranges) if rows[0] < rows[1]]
        written = self._run("features", "features", task, items)
        seen = sum(map(Seen.of_record, written), Seen.none(self.width))
        names = work.rows.names
        seen.check(options, notes, names)
        columns_of.note_normalized(seen.magnitude, options, notes)
        card += treatment.columns_of(seen, names, of)
        if moved:
            most = max(1, self._budget.task_bytes // (3 * (8 + matrix.row_bytes)))
            written = feature_tasks.gathered(self._run, self.folder, matrix, len(self.spans), most)
        return Written.by_tasks(matrix, written)


def read_values(nodes: NodeMap, table: Table, columns: Columns, labelled: bool) -> dict[str, Any]:
    """Write the times of nodes, and if they are `labelled` labels and split, in the order of their numbers; return what
    else is to know of labels."""
    labels, title = columns.labels if labelled else (), columns.table
    wanted = [*filter(None, (columns.time,)), *labels, *(columns.of_split if labelled else ())]
    pieces = [*table.pieces(wanted)]
    if any(is_list(table.schema.field(name).type) for name in labels):  # pieces have lists of several types
        given = GivenLabels(np.concatenate([labels_of(piece, labels, title).values for piece in pieces]))
        pieces = [piece.drop_columns([*labels]) for piece in pieces]
    else:
        given = labels_of(pa.concat_tables(pieces), labels, title)
    rows = pa.concat_tables(pieces)
    found = {"time": times_of(rows, columns.time, title), "label": given.values if labelled else None}
    for what, values in present_items(found | {"split": split_bits(rows, columns) if labelled else None}).items():
        np.save(file_of(nodes.folder, what), nodes.ordered(values))
    return {"class_names": given.class_names, "nulls": given.nulls, "stripped": given.stripped}


def settle_labels(
    nodes: NodeMap, labels: Mapping[str, Any], request: Request, label_columns: tuple[str, ...], times: Times
) -> dict[str, Any]:
    """Clean the labels and make the split, as files; return what the manifest says of them."""
    options = request.options
    folder, notes, split_notes, is_link = nodes.folder, list[str](), list[str](), options.task == "link"
    if is_link:  # pairs take the place of labels and sets
        given, stored = GivenLabels(np.zeros(nodes.num_nodes, np.int64)), {"train": np.ones(nodes.num_nodes, bool)}
    else:
        given_sets = file_of(folder, "split")
        names = when_present(tuple, labels["class_names"]), label_columns if options.label_columns else None
        given = GivenLabels(np.load(file_of(folder, "label")), *names, labels["nulls"], labels["stripped"])
        stored = sets_of(np.load(given_sets) if given_sets.exists() else None)
    settled = settled_labels(given, options, notes)
    y = settled.labels
    del given
    known = np.fromfile(times.file, times.of_nodes, len(y)) if times.of_nodes else None
    drawn, of_times = (request.split, request.seed), {"times": known, "time_unit": times.unit}
    sets = make_split(y, stored, *drawn, options, split_notes, **of_times)
    y.tofile(folder / "labels")
    parts = {name: getattr(sets, name) for name in SPLITS}
    for name, ids in parts.items():
        ids.tofile(folder / name)
    return {
        "shape": list(y.shape),
        "dtype": str(y.dtype),
        **{key: value for key, value in settled._asdict().items() if key != "labels"},
        "has_unknown": bool(np.isnan(y).any()),
        "stored": bool(stored) and not is_link,
        "notes": notes,
        "split_notes": [] if is_link else split_notes,
        "sizes": {name: len(ids) for name, ids in parts.items()},
        "digests": {name: array_digest(ids) for name, ids in parts.items()},
    }
