"""One CSV file with a header as an Arrow table: ``.csv`` or ``.tsv``, optionally compressed by gzip."""

import csv
import gzip
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import csv as arrow_csv

from ....storage.errors import InputError

pc: Any = pyarrow.compute
"""Functions that pyarrow generates when it is imported, which type checkers cannot see."""
SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def is_csv(path: Path) -> bool:
    """True if the path has a CSV file's suffix."""
    return path.name.lower().endswith(SUFFIXES)


def read_csv(path: Path, as_text: Collection[str], example: str) -> pa.Table:
    """Read the file. Columns are named after the header, stripped; empty fields (and NA, null, ... unless quoted) are
    null.

    Args:
        path: the file, in UTF-8, with or without a byte order mark.
        as_text: lower-case names of columns that are read as text, stripped, whatever they contain.
        example: a header for error messages.

    Raises:
        InputError: the file is empty or not CSV, a row is longer or shorter than the header, or the header is missing
            or names a column twice.
    """
    delimiter = "\t" if ".tsv" in path.name.lower() else ","
    names = _header(path, delimiter, example)
    try:
        table = arrow_csv.read_csv(
            path,
            # pyarrow reads the header's row too, and removes a byte order mark.
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types={n: pa.string() for n in names if n.strip().lower() in as_text},
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowException, OSError) as e:
        raise InputError(
            f"{path}: {str(e).splitlines()[0]}; expected a CSV file in UTF-8 with the same columns in every row"
        ) from e
    table = table.rename_columns([n.strip() for n in table.column_names])
    for at, name in enumerate(table.column_names):
        if name.lower() in as_text:
            table = table.set_column(at, name, pc.utf8_trim_whitespace(table[name]))
    return table


def _header(path: Path, delimiter: str, example: str) -> list[str]:
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as f:
            names = next(csv.reader(f, delimiter=delimiter), [])
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as e:
        raise InputError(
            f"{path} cannot be read as CSV in UTF-8 ({e}); expected a header such as {example} in its first line"
        ) from e
    stripped = [n.strip() for n in names]
    if not any(stripped):
        raise InputError(
            f"{path} is empty, or its first line is; expected a header such as {example} in its first line"
        )
    if all(_is_number(n) for n in stripped):
        raise InputError(
            f"{path} has no header: its first line is '{delimiter.join(names)}'; put one such as {example} above it"
        )
    if again := sorted({n for n in stripped if n and stripped.count(n) > 1}):
        raise InputError(f"{path}: the header names '{again[0]}' more than once; give every column its own name")
    if len(names) == 1 and (other := next((c for c in ";\t|, " if c != delimiter and c in stripped[0]), None)):
        right = "tabs" if delimiter == "\t" else "commas"
        raise InputError(
            f"{path}: the header '{names[0]}' is one column; separate columns by {right}, not by {other!r}"
        )
    return names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
