"""One CSV file as an Arrow table: ``.csv`` or ``.tsv``, perhaps compressed. Columns are separated by commas (``.tsv``:
tabs), or by what else separates its header; a list of edges by number needs no header."""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import csv as arrow_csv

from ....storage.errors import InputError
from ..cleaning.arrow import in_utf8, pc, reading, with_columns
from ..cleaning.node_ids import given_ids
from ..schema.files import CSV
from ..schema.source import SourceTable
from ..schema.words import end_words, id_columns, label_columns
from .foreign.kinds import check_no_matrix

EDGES = "src,dst"
"""Header of a table of edges; one of numbers alone may lack it."""
HEAD_LINES = 100
"""Lines by which a header is told from rows."""
BLOCK_BYTES = 1 << 20
"""Bytes of a file that are parsed at a time; no row may be longer."""
AsText = Callable[[str], bool]
_KINDS = (
    pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s"), pa.timestamp("s"), pa.timestamp("ns"), pa.float64(),
    pa.string(), pa.binary(),
)  # fmt: skip
LOOSER = dict(zip(_KINDS, _KINDS[1:]))
"""The type that pyarrow tries next for a column whose values are not all of a type."""
LABEL_KINDS = {"int64": pa.int64(), "bool": pa.bool_(), "double": pa.float64()}
"""Types of a column of labels, the first that fits all values; else text."""


class Named(Protocol):
    """A path, or a file elsewhere."""

    @property
    def name(self) -> str:
        """Its name in its folder."""


def is_csv(path: Named) -> bool:
    """True if the path has a CSV file's suffix."""
    return path.name.lower().endswith(CSV)


def is_text_read(table: SourceTable, column: str | None) -> bool:
    """True if numbers are text in a column of ids: of CSV, or one that names of folders are."""
    return column in table.folders or (bool(table.files) and is_csv(table.files[0]))


def never(name: str) -> bool:
    """False."""
    return False


def read_csv(path: Path, as_text: AsText, example: str, as_label: AsText = never) -> pa.Table:
    """Read the file, in UTF-8, with or without a byte order mark. Columns are named after the header, stripped; empty
    fields (and NA, null, ... unless quoted) are null. Columns whose stripped names are `as_text` are read as text,
    stripped, whatever they contain, and those of labels, `as_label`, are text too: see `typed_label`. `example` is a
    header for messages. Raises InputError: the file is empty or not CSV, a row is longer or shorter than the header, or
    the header is missing or names a column twice."""
    layout = _Layout(path, as_text, example, as_label)
    with layout.reading():
        reading = arrow_csv.ReadOptions(column_names=layout.own_names, skip_rows=layout.skipped)
        table = arrow_csv.read_csv(path, reading, layout.parsing, layout.converting({}))
    return layout.named(table)


class RetypedError(Exception):
    """A block of a file shows that a column is of another type than those before."""


def read_blocks(
    path: Path, as_text: AsText, example: str, types: dict[str, pa.DataType], as_label: AsText = never
) -> Iterator[pa.Table]:
    """`read_csv` in blocks, so that they are never all in memory, behind one without rows; columns get the same types.
    Raises RetypedError: `types`, at first empty, have another type of a column now, by which the file is to be read
    again."""
    layout, columns = _Layout(path, as_text, example, as_label), [*types]
    try:
        with layout.opened(types) as reader:
            columns = reader.schema.names
            types |= zip(columns, reader.schema.types)
            yield layout.named(reader.schema.empty_table())
            for batch in reader:
                yield layout.named(pa.Table.from_batches([batch]))
    except (pa.ArrowException, OSError) as e:
        if not types:  # either no rows, or an error in the first block, which is the same here
            yield read_csv(path, as_text, example, as_label)
            return
        column = re.search(r"CSV column #(\d+)", str(e))
        name = columns[int(column[1])] if column else ""
        if column is None or layout.is_text(name.strip()) or types[name] not in LOOSER:
            with layout.reading():
                raise
        types[name] = LOOSER[types[name]]
        raise RetypedError from e


class _Layout:
    """Format of a CSV file, by its name and header."""

    def __init__(self, path: Path, as_text: AsText, example: str, as_label: AsText) -> None:
        self.path, self.as_text, self.as_label = path, as_text, as_label
        usual = "\t" if ".tsv" in path.name.lower() else ","
        self._names, delimiter, has_header, self.skipped = _header(path, usual, example)
        # pyarrow reads the header's row too, and removes a byte order mark.
        self.own_names = None if has_header else self._names
        self.parsing = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)

    def is_text(self, name: str) -> bool:
        """True for the stripped name of a column that is read as text."""
        return self.as_text(name) or self.as_label(name)

    def converting(self, types: dict[str, pa.DataType]) -> arrow_csv.ConvertOptions:
        """Treatment of values, with the types of some columns."""
        text = {n: pa.string() for n in self._names if self.is_text(n.strip())}
        nulls = [*arrow_csv.ConvertOptions().null_values, r"\N"]
        return arrow_csv.ConvertOptions(
            column_types=types | text, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=nulls
        )

    def opened(self, types: dict[str, pa.DataType]) -> arrow_csv.CSVStreamingReader:
        """Reader of blocks, with the types of some columns."""
        rows: Any = {"column_names": self.own_names, "skip_rows": self.skipped}
        blocks = arrow_csv.ReadOptions(block_size=BLOCK_BYTES, **rows)
        return arrow_csv.open_csv(self.path, blocks, self.parsing, self.converting(types))

    def reading(self) -> Any:
        """Context whose errors name the file."""
        return reading(self.path, "a CSV file in UTF-8 with the same columns in every row")

    def named(self, table: pa.Table) -> pa.Table:
        """The table with stripped names, and stripped text, in which what is empty is null, quoted or not."""
        table = table.rename_columns([n.strip() for n in table.column_names])
        texts = filter(self.as_text, table.column_names)
        return with_columns(table, {name: given_ids(pc.utf8_trim_whitespace(table[name])) for name in texts})


def fits(column: pa.ChunkedArray) -> list[str]:
    """Types among `LABEL_KINDS` that all values of a column of text fit; none for numbers with zeros before them, which
    are names."""
    seen = pc.utf8_trim_whitespace(column.unique().drop_null())
    if pc.any(pc.match_substring_regex(seen, r"^[-+]?0\d")).as_py():
        return []
    return [name for name, kind in LABEL_KINDS.items() if _is_cast(seen, kind)]


def _is_cast(values: Any, kind: pa.DataType) -> bool:
    try:
        values.cast(kind)
    except pa.ArrowException:
        return False
    return True


def typed_label(column: pa.ChunkedArray, kinds: Collection[str]) -> pa.ChunkedArray:
    """A column of labels that is text as the first type of `kinds`, see `fits`; text without any."""
    found = next((kind for name, kind in LABEL_KINDS.items() if name in kinds), None)
    return column if found is None else pc.utf8_trim_whitespace(column).cast(found)


def typed_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of text as `typed_label` has it, or as dates where all are."""
    found = typed_label(column, fits(column))
    return found.cast(pa.date32()) if found.type == pa.string() and _is_cast(found, pa.date32()) else found


def _header(path: Path, usual: str, example: str) -> tuple[list[str], str, bool, int]:
    """Names of the columns, what separates them, whether the first line names them, and lines above it: comments, and
    ``sep=;`` of spreadsheets."""
    try:
        with pa.input_stream(str(path), compression="detect") as raw:
            text = io.TextIOWrapper(raw, "utf-8-sig", newline="")
            lines = [*islice(text, HEAD_LINES)]
            if any("\0" in line for line in lines[:1]):
                raise ValueError("it is UTF-16, not UTF8")
            above = _lines_above(lines)
            names = next(csv.reader(chain(lines[above:], text), delimiter=usual), [])
    except (OSError, EOFError, ValueError, csv.Error, pa.ArrowException) as e:
        remedy = in_utf8(path, e) or f"save it in UTF-8, with a header such as {example}"
        raise InputError(f"{path} cannot be read as CSV in UTF-8 ({e}); {remedy}") from e
    delimiter = usual
    if len(names) == 1 and (other := next((c for c in ";\t|," if c != usual and c in names[0]), None)):
        names, delimiter = next(csv.reader(names, delimiter=other)), other
    stripped = [n.strip() for n in names]
    if not any(stripped):
        raise InputError(f"{path} is empty, or its first line is; expected a header such as {example} there")
    _check_begin(path, lines, stripped, delimiter, example)
    if all(map(_is_number, stripped)):
        if example != EDGES or len(names) < 2:
            said = f"{path} has no header: its first line is '{delimiter.join(names)[:80]}'"
            raise InputError(f"{said}; put one such as {example} above it")
        return [*EDGES.split(","), *(f"column_{i}" for i in range(3, len(names) + 1))], delimiter, False, above
    if again := sorted({n for n in stripped if n and stripped.count(n) > 1}):
        raise InputError(f"{path}: the header names '{again[0][:80]}' more than once; give every column its own name")
    if len(names) == 1 and " " in stripped[0]:
        said = f"{path}: the header '{names[0][:80]}' is one column; separate columns by commas, not by ' '"
        raise InputError(f"{said}, or call a list of edges .txt")
    return names, delimiter, True, above


def _lines_above(lines: Sequence[str]) -> int:
    """Number of the lines above a header: ``sep=;``, and comments with fewer columns than the line below them."""
    above = int(bool(lines) and re.fullmatch(r'"?sep=.?"?', lines[0].strip()) is not None)
    cells = [max(line.count(c) for c in ",;\t|") for line in lines]
    first = next((k for k, line in enumerate(lines) if k >= above and not line.startswith("#")), above)
    return next((k for k in range(above, first) if cells[k] >= cells[first]), first)


def _check_begin(path: Path, lines: Sequence[str], names: Sequence[str], delimiter: str, example: str) -> None:
    """Raise InputError for a header without any word that is known, if the rows below say that it is one of them, or
    that they are those of a matrix."""
    is_edges, above = example == EDGES, _lines_above(lines)
    if any(end_words(names)) if is_edges else id_columns(names) or label_columns(names):
        return
    rows = list[list[str]]()
    with suppress(csv.Error):  # a row that Python does not parse, Arrow may
        rows += ([cell.strip() for cell in row] for row in csv.reader(lines[above + 1 :], delimiter=delimiter))
    if is_edges:
        check_no_matrix(path, rows, delimiter, () if all(map(_is_number, names)) else names, above)
    for i, name in enumerate(names):
        if not _is_number(name or "0") and any(name in (*row[i : i + 1], *row[: 2 * is_edges]) for row in rows):
            said = f"{path} has no header: its first line '{delimiter.join(names)[:80]}' has the value '{name}'"
            raise InputError(f"{said}, as rows below have; put one such as {example} above it")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
