"""Features: read in slices of rows, cleaned, and written where their nodes' numbers say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..datasets.cleaning.columns import degree_rows
from ..datasets.cleaning.filling import Seen, Treatment, taken_out
from .arrays import Matrix
from .edges import sorted_file
from .feature_rows import FeatureRows
from .names import NodeMap
from .source import Span
from .spill import Field, RunWriter, cells_of, read_cells, shift_of


@dataclass(frozen=True)
class FeatureWork:
    """Arguments that all tasks on features share."""

    folder: Path
    rows: FeatureRows
    nodes: NodeMap
    matrix: Matrix
    treatment: Treatment

    @property
    def fields(self) -> tuple[Field, ...]:
        """Arrays of a row that is spilled: its node's number, and its features."""
        return (Field("int64"), Field("float32", (self.matrix.shape[1],)))


def write_features(work: FeatureWork, number: int, span: Span) -> dict[str, Any]:
    """Write the features of a span of nodes whose numbers are those of their rows."""
    seen = _Cleaning(work)
    parts = (seen.cleaned(x, first) for first, x in work.rows.parts(span))
    seams = work.folder / "seams" / f"{number:06d}"
    seams.parent.mkdir(exist_ok=True)
    return work.matrix.put_stream(seams, span.first, span.first + span.rows, parts) | seen.seen.record()


def spill_features(work: FeatureWork, number: int, span: Span) -> dict[str, Any]:
    """Spill the features of a span of nodes that have numbers of their own."""
    seen, at = _Cleaning(work), work.nodes.positions(number, span.first, span.rows)
    assert not isinstance(at, slice) or at.start == span.first
    numbers = np.arange(at.start, at.stop) if isinstance(at, slice) else at
    shift = shift_of(work.nodes.num_nodes)
    with RunWriter(work.folder / "features", number, work.fields, cells_of(work.nodes.num_nodes)) as writer:
        for first, x in work.rows.parts(span):
            of_rows = numbers[first - span.first : first - span.first + len(x)]
            writer.add((of_rows >> shift).astype(np.int16), of_rows, seen.cleaned(x, of_rows))
    return seen.seen.record()


def gather_features(work: FeatureWork, tasks: int, number: int, first: int, stop: int) -> dict[str, Any]:
    """Write the features of the nodes in the cells ``[first, stop)``."""
    numbers, x = read_cells(work.folder / "features", tasks, work.fields, first, stop)
    shift, seams = shift_of(work.nodes.num_nodes), work.folder / "seams" / f"{number:06d}"
    seams.parent.mkdir(exist_ok=True)
    begin, end = first << shift, min(stop << shift, work.nodes.num_nodes)
    return work.matrix.put_stream(seams, begin, end, iter([x[np.argsort(numbers)]]))


def write_degrees(folder: Path, matrix: Matrix, number: int, first: int, rows: int) -> dict[str, Any]:
    """Write features that are made of the in-degrees, of the rows that were sorted by one task."""
    ends = np.fromfile(sorted_file(folder, "indptr", number), np.int64)
    x, seams = degree_rows(np.diff(ends, prepend=0)), folder / "seams" / f"{number:06d}"
    seams.parent.mkdir(exist_ok=True)
    return matrix.put_stream(seams, first, first + rows, iter([x]))


class _Cleaning:
    """Cleans the features of a span, and says what they held."""

    def __init__(self, work: FeatureWork) -> None:
        self._treatment, self.seen = work.treatment, Seen.none(work.rows.width)

    def cleaned(self, x: npt.NDArray[np.float32], numbers: int | npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """Rows after cleaning; `numbers` is that of the first row's node, or those of all."""
        bad = taken_out(x)
        self.seen += Seen.of(x, bad, numbers)
        return self._treatment.of(x, bad)
