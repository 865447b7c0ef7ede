"""Features: read in slices of rows, cleaned, and written where their nodes' numbers say."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...storage.array_kinds import Float32Array, IntArray
from ..datasets.cleaning import filling
from ..datasets.cleaning.columns import degree_rows
from ..datasets.cleaning.moments import Moments
from ..datasets.cleaning.options import ReadOptions
from ..datasets.cleaning.raw import AnyArray
from ..datasets.readers.parquet import feature_names, feature_rows
from .arrays import Matrix, Output, read_pieces
from .names import NodeMap
from .source import Span, Table, batches
from .spill import RunWriter, cells_of, groups_of, read_cells, shift_of
from .tasks import Run

Part = tuple[int, Float32Array, AnyArray]


class FeatureRows(NamedTuple):
    """Columns of a table that are features, in batches."""

    table: Table
    columns: tuple[str, ...]
    width: int
    """F, as they are read."""
    batch_rows: int
    options: ReadOptions

    @property
    def names(self) -> Sequence[str]:
        """Names of the F columns."""
        return feature_names(self.table.empty, self.columns, self.width)

    def of_batch(self, batch: pa.Table) -> tuple[Float32Array, AnyArray]:
        """float32 [n, F], and the numbers as they were."""
        rows = feature_rows(batch, self.columns, self.table.source.title)
        assert rows is not None and rows.shape[1] == self.width, "lists have the length that was seen before"
        with np.errstate(over="ignore"):
            return np.array(rows, np.float32, order="C"), rows

    def parts(self, *spans: Span, begin: int = 0, end: int = sys.maxsize) -> Iterator[Part]:
        """First row of each batch, and its features, see `of_batch`: of the rows ``[begin, end)`` of some spans."""
        for span in spans:
            first = span.first
            for batch in batches(self.table, span, self.columns, self.batch_rows):
                low, high = max(begin, first), min(end, first + batch.num_rows)
                if low < high:
                    yield low, *self.of_batch(batch.slice(low - first, high - low))
                first += batch.num_rows
                if first >= end:
                    return


def treatment_of(rows: FeatureRows, spans: Sequence[Span], run: Run, behind: str = "") -> filling.Treatment:
    """The treatment of features, by as many passes over their rows as it needs. `behind` ends the names of stages."""

    def moments() -> Moments:
        seen = run(f"moments{behind}", "means of features", measure, [(rows, span) for span in spans])
        return sum(map(Moments.of_record, seen), Moments.none(rows.width))

    def counts(stage: str, bins: filling.Bins) -> Sequence[filling.Counts]:
        return run(f"{stage}{behind}", "medians of features", count_values, [(rows, bins, span) for span in spans])

    of = rows.table.source.features_of
    return filling.treatment_by(rows.options, moments, counts).chosen(rows.names, rows.width, of)


def measure(rows: FeatureRows, span: Span) -> dict[str, Any]:
    """The moments of the known values of a span."""
    found = Moments.none(rows.width)
    for _, x, _ in rows.parts(span):
        bad = filling.taken_out(x)
        found += Moments.from_rows(filling.normalized_rows(x, rows.options), bad)
    return found.record()


def count_values(rows: FeatureRows, bins: filling.Bins, span: Span) -> dict[str, Any]:
    """See `value_counts`, of a span."""
    found: list[filling.Counts] = [{str(c): [[], []] for c in bins}]
    for _, x, _ in rows.parts(span):
        bad = filling.taken_out(x)
        found.append(filling.value_counts(filling.normalized_rows(x, rows.options), bad, bins))
    return {**filling.joined_counts(found)}


def feature_width(table: Table, columns: Sequence[str]) -> int:
    """F. Raises InputError if a column holds no numbers."""
    rows = feature_rows(table.empty, columns, table.source.title)
    return 0 if rows is None else rows.shape[1]


@dataclass(frozen=True)
class FeatureWork:
    """Arguments that all tasks on features share."""

    folder: Path
    rows: FeatureRows
    nodes: NodeMap
    matrix: Matrix
    treatment: filling.Treatment

    def cleaned(
        self, x: Float32Array, given: AnyArray, numbers: int | IntArray, seen: list[filling.Seen]
    ) -> Float32Array:
        """Rows after cleaning, and what they held, which is added to `seen`; `numbers` is that of the first row's node,
        or those of all."""
        bad = filling.taken_out(x)
        seen[0] += filling.Seen.from_rows(x, bad, numbers, given)
        return self.treatment.apply(x, bad)


def write_features(work: FeatureWork, spans: Sequence[Span], begin: int, end: int) -> dict[str, Any]:
    """Write the features of the nodes ``[begin, end)``, whose numbers are those of their rows in some spans."""
    seen = [filling.Seen.none(work.rows.width)]
    parts = work.rows.parts(*spans, begin=begin, end=end)
    cleaned = (work.cleaned(x, given, first, seen) for first, x, given in parts)
    return work.matrix.put_stream(begin, end, cleaned) | seen[0].record()


def spill_features(work: FeatureWork, number: int, span: Span) -> dict[str, Any]:
    """Spill the features of a span of nodes that have numbers of their own."""
    seen, numbers, shift = [filling.Seen.none(work.rows.width)], work.nodes.moved, shift_of(work.nodes.num_nodes)
    assert numbers is not None, "features of other nodes are not spilled"
    with RunWriter(work.folder / "features", number, work.matrix.fields, cells_of(work.nodes.num_nodes)) as writer:
        for first, x, given in work.rows.parts(span):
            of_rows = np.array(numbers[first : first + len(x)])
            writer.add((of_rows >> shift).astype(np.int16), of_rows, work.cleaned(x, given, of_rows, seen))
    return seen[0].record()


def gathered(run: Run, folder: Path, matrix: Matrix, tasks: int, most: int) -> list[dict[str, Any]]:
    """Write the features that so many tasks have spilled, in the order of their nodes' numbers, about `most` rows at a
    time."""
    count, shift = matrix.shape[0], shift_of(matrix.shape[0])
    groups = groups_of(np.full(cells_of(count), 1 << shift), most)
    ranges = [matrix.whole_chunks(first << shift, stop << shift) for first, stop in groups]
    items = [(folder, matrix, tasks, begin, end) for begin, end in ranges if begin < end]
    written = run("gather", "features in order", gather_features, items)
    shutil.rmtree(folder / "features", ignore_errors=True)
    return written


def gather_features(folder: Path, matrix: Matrix, tasks: int, begin: int, end: int) -> dict[str, Any]:
    """Write the features of the nodes ``[begin, end)``."""
    shift = shift_of(matrix.shape[0])
    first, stop = begin >> shift, (end - 1 >> shift) + 1
    numbers, x = read_cells(folder / "features", tasks, matrix.fields, first, stop)
    return matrix.put_stream(begin, end, [x[np.argsort(numbers)[begin - (first << shift) :][: end - begin]]])


def write_degrees(matrix: Matrix, indptr: Output, begin: int, end: int) -> dict[str, Any]:
    """Write features that are made of the in-degrees of the nodes ``[begin, end)``."""
    return matrix.put_stream(begin, end, [degree_rows(np.diff(read_pieces(indptr, begin, end + 1)))])
