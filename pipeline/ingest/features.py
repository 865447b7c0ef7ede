"""Features: read in slices of rows, cleaned, and written where their nodes' numbers say."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...storage.errors import InputError
from ..datasets.cleaning.columns import degree_rows, largest_value, normalized_rows, zero_unusable
from ..datasets.cleaning.moments import Moments, Scaling
from ..datasets.cleaning.options import ReadOptions
from ..datasets.readers.parquet import feature_rows, is_list
from .arrays import Matrix
from .edges import sorted_file
from .names import NodeMap
from .scan import UnequalListsError
from .source import Span, Table, batches
from .spill import Field, RunWriter, cells_of, read_cells, shift_of


@dataclass(frozen=True)
class FeatureWork:
    """Arguments that all tasks on features share."""

    folder: Path
    options: ReadOptions
    nodes: NodeMap
    matrix: Matrix
    columns: tuple[str, ...]
    batch_rows: int
    scaling: Scaling | None = None
    """Scaling of each column, known once all rows have been measured; None: columns are not standardised."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """Arrays of a row that is spilled: its node's number, and its features."""
        return (Field("int64"), Field("float32", (self.matrix.shape[1],)))


def feature_width(table: Table, spans: Sequence[Span], columns: tuple[str, ...]) -> int:
    """F, from the first row. Raises InputError if its lists are null."""
    for batch in batches(table, spans[0], columns, 1):
        if any(batch[c].null_count for c in columns if is_list(batch[c].type)):
            raise UnequalListsError
        rows = feature_rows(batch, columns, table.called)
        return 0 if rows is None else rows.shape[1]
    raise AssertionError("a span has rows")


def measure_features(work: FeatureWork, table: Table, number: int, span: Span) -> dict[str, Any]:
    """The moments of the features of a span of nodes, with zeros for what cleaning sets to zero."""
    found = Moments.none(work.matrix.shape[1])
    for _, x in _parts(work, table, span):
        zero_unusable(x)
        found += Moments.of(x)
    return found.record()


def write_features(work: FeatureWork, table: Table, number: int, span: Span) -> dict[str, Any]:
    """Write the features of a span of nodes whose numbers are those of their rows."""
    seen = _Seen()
    parts = (seen.cleaned(x, work, first) for first, x in _parts(work, table, span))
    seams = work.folder / "seams" / f"{number:06d}"
    seams.parent.mkdir(exist_ok=True)
    return work.matrix.put_stream(seams, span.first, span.first + span.rows, parts) | seen.record()


def spill_features(work: FeatureWork, table: Table, number: int, span: Span) -> dict[str, Any]:
    """Spill the features of a span of nodes that have numbers of their own."""
    seen, at = _Seen(), work.nodes.positions(number, span.first, span.rows)
    assert not isinstance(at, slice) or at.start == span.first
    numbers = np.arange(at.start, at.stop) if isinstance(at, slice) else at
    shift = shift_of(work.nodes.num_nodes)
    with RunWriter(work.folder / "features", number, work.fields, cells_of(work.nodes.num_nodes)) as writer:
        for first, x in _parts(work, table, span):
            of_rows = numbers[first - span.first : first - span.first + len(x)]
            writer.add((of_rows >> shift).astype(np.int16), of_rows, seen.cleaned(x, work, of_rows))
    return seen.record()


def gather_features(work: FeatureWork, tasks: int, number: int, first: int, stop: int) -> dict[str, Any]:
    """Write the features of the nodes in the cells ``[first, stop)``."""
    numbers, x = read_cells(work.folder / "features", tasks, work.fields, first, stop)
    shift, seams = shift_of(work.nodes.num_nodes), work.folder / "seams" / f"{number:06d}"
    seams.parent.mkdir(exist_ok=True)
    begin, end = first << shift, min(stop << shift, work.nodes.num_nodes)
    return work.matrix.put_stream(seams, begin, end, iter([x[np.argsort(numbers)]]))


def write_degrees(work: FeatureWork, number: int, first: int, rows: int) -> dict[str, Any]:
    """Write features that are made of the in-degrees, of the rows that were sorted by one task."""
    ends = np.fromfile(sorted_file(work.folder, "indptr", number), np.int64)
    x, seams = degree_rows(np.diff(ends, prepend=0)), work.folder / "seams" / f"{number:06d}"
    seams.parent.mkdir(exist_ok=True)
    return work.matrix.put_stream(seams, first, first + rows, iter([x]))


def _parts(work: FeatureWork, table: Table, span: Span) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    first = span.first
    for batch in batches(table, span, work.columns, work.batch_rows):
        try:
            rows = feature_rows(batch, work.columns)
        except InputError as e:
            raise (UnequalListsError() if "lists" in str(e) or "nulls" in str(e) else e) from e
        if rows is None or rows.shape[1] != work.matrix.shape[1]:
            raise UnequalListsError
        with np.errstate(over="ignore"):
            yield first, np.array(rows, np.float32, order="C")
        first += len(rows)


class _Seen:
    """Counts of what cleaning changes in the features of a span."""

    def __init__(self) -> None:
        self.unusable, self.first, self.largest = 0, -1, 0.0

    def cleaned(
        self, x: npt.NDArray[np.float32], work: FeatureWork, first: int | npt.NDArray[np.integer]
    ) -> npt.NDArray[np.float32]:
        """Rows after cleaning; `first` is the number of the first row's node, or the numbers of all."""
        before = None if isinstance(first, int) else ~np.isfinite(x).all(axis=1)
        count, row = zero_unusable(x)
        if count:
            node = int(first) + row if isinstance(first, int) else int(first[before].min())
            self.first = node if self.first < 0 else min(node, self.first)
        self.unusable += count
        if work.options.normalize_features == "none":
            self.largest = max(self.largest, largest_value(x))
        return normalized_rows(x, work.options) if work.scaling is None else work.scaling.of(x)

    def record(self) -> dict[str, Any]:
        """Plain values."""
        return {"unusable": self.unusable, "first_unusable": self.first, "largest": self.largest}


def explain_lists(table: Table, spans: Sequence[Span], columns: Sequence[str], rows: int) -> InputError | None:
    """The error for lists that are null or of several lengths, None if there are none; reads the columns again."""
    lists = [c for c in columns if c in table.empty.column_names and is_list(table.empty.schema.field(c).type)]
    for name in lists:
        nulls, width, ragged = 0, None, None
        for span in spans:
            first = span.first
            for batch in batches(table, span, (name,), rows):
                nulls += batch[name].null_count
                for row, length in enumerate(batch[name].to_pylist()):
                    if length is not None and ragged is None:
                        width = len(length) if width is None else width
                        ragged = (first + row, len(length)) if len(length) != width else None
                first += batch.num_rows
        if nulls:
            return InputError(f"column {table.called}.{name} holds {nulls} nulls; expected a list in every row")
        if ragged is not None:
            return InputError(
                f"column {table.called}.{name} has lists of {width} and of {ragged[1]} values (row {ragged[0]}); "
                "expected one length"
            )
    return None
