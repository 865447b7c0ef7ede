"""Features of a table as they are read, and what is done to all of them, by passes over their rows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...storage.errors import InputError
from ..datasets.cleaning.filling import (
    Treatment,
    is_measured,
    medians_of,
    middle_bins,
    normalized_rows,
    taken_out,
    value_counts,
)
from ..datasets.cleaning.moments import Moments
from ..datasets.cleaning.options import ReadOptions
from ..datasets.readers.parquet import OR_NAN, UnequalListsError, feature_rows
from ..datasets.schema.columns import is_list
from .scan import DIFFER
from .source import Span, Table, batches


class FeatureRows(NamedTuple):
    """Columns of a table that are features, in batches."""

    table: Table
    columns: tuple[str, ...]
    width: int
    """F, as they are read."""
    batch_rows: int
    options: ReadOptions

    def of_batch(self, batch: pa.Table) -> npt.NDArray[np.float32]:
        """float32 [n, F]. Raises UnequalListsError for lists that are null or of several lengths."""
        rows = feature_rows(batch, self.columns, self.table.called)
        if rows is None or rows.shape[1] != self.width:
            raise UnequalListsError(DIFFER)
        with np.errstate(over="ignore"):
            return np.array(rows, np.float32, order="C")

    def parts(self, span: Span) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """First row and features of each batch."""
        first = span.first
        for batch in batches(self.table, span, self.columns, self.batch_rows):
            yield first, self.of_batch(batch)
            first += batch.num_rows


Run = Callable[[str, str, Any, list[tuple[Any, ...]]], list[dict[str, Any]]]
"""Runs a stage of tasks: its name, what it does, the task, arguments of each."""


def treatment_of(rows: FeatureRows, spans: Sequence[Span], run: Run) -> Treatment:
    """The treatment of features, by as many passes over their rows as it needs."""
    options = rows.options
    if not is_measured(options):
        return Treatment(options)

    def each(*more: Any) -> list[tuple[Any, ...]]:
        return [(rows, *more, span) for span in spans]

    seen = run("moments", "means of features", measure, each())
    moments, medians = sum(map(Moments.of_record, seen), Moments.none(rows.width)), None
    gaps = [c for c, known in enumerate(moments.known) if known < moments.rows]
    if options.nan_features == "median" and gaps:
        found = middle_bins(run("bins", "medians of features", count_values, each(dict.fromkeys(gaps))))
        wanted = {c: bins for c, (bins, _) in found.items()}
        medians = medians_of(run("medians", "medians", count_values, each(wanted)), found, moments.known)
    return Treatment.by(options, moments, medians)


def measure(rows: FeatureRows, span: Span) -> dict[str, Any]:
    """The moments of the known values of a span."""
    found = Moments.none(rows.width)
    for _, x in rows.parts(span):
        bad = taken_out(x)
        found += Moments.of(normalized_rows(x, rows.options), bad)
    return found.record()


def count_values(rows: FeatureRows, bins: dict[int, Any], span: Span) -> dict[str, Any]:
    """See `value_counts`, of a span."""
    found: dict[str, Any] = {str(c): [[], []] for c in bins}
    for _, x in rows.parts(span):
        bad = taken_out(x)
        for c, pair in value_counts(normalized_rows(x, rows.options), bad, bins).items():
            for so_far, more in zip(found[c], pair):
                so_far += more
    return {c: _joined(*pair) for c, pair in found.items()}


def _joined(keys: list[int], counts: list[int]) -> list[list[int]]:
    distinct, at = np.unique(np.array(keys, np.int64), return_inverse=True)
    return [distinct.tolist(), np.bincount(at, counts, len(distinct)).astype(np.int64).tolist()]


def feature_width(table: Table, spans: Sequence[Span], columns: tuple[str, ...]) -> int:
    """F, from the first row. Raises UnequalListsError if its lists are null."""
    for batch in batches(table, spans[0], columns, 1):
        rows = feature_rows(batch, columns, table.called)
        return 0 if rows is None else rows.shape[1]
    raise AssertionError("a span has rows")


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
            return InputError(f"column {table.called}.{name} holds {nulls} nulls; expected a list in every row{OR_NAN}")
        if ragged is not None:
            return InputError(
                f"column {table.called}.{name} has lists of {width} and of {ragged[1]} values (row {ragged[0]}); "
                "expected one length"
            )
    return None
