"""Arrow's functions, and errors of files that are read by it."""

import shlex
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute

from ....storage.errors import NOT_READABLE, InputError, MillraceError, first_line
from ....storage.store.full_disk import is_full

pc: Any = pyarrow.compute
"""Functions that pyarrow generates when it is imported, which type checkers cannot see."""
DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError, TypeError, RecursionError)
"""Errors of parsers at damaged files."""


@contextmanager
def reading(path: object, expected: str = "", seen: str = "cannot be read") -> Iterator[None]:
    """Context whose errors of parsers become one that names the file, what is `seen` and what was `expected`."""
    try:
        yield
    except DAMAGE as e:
        # A full disk is that of a table that is copied.
        if isinstance(e, MillraceError) or (isinstance(e, OSError) and is_full(e)):
            raise
        if isinstance(e, PermissionError):
            raise InputError(f"{path}: {NOT_READABLE}") from e
        remedy = in_utf8(path, e) or (f"expected {expected}" if expected else "write the file again")
        raise InputError(f"{path} {seen} ({first_line(e)[:200].rstrip('.')}); {remedy}") from e


def in_utf8(path: object, error: Exception) -> str:
    """A command that writes a file of text in UTF-8, if an error says that it is not; else empty."""
    is_text = isinstance(error, UnicodeDecodeError) or "UTF8" in str(error)
    if not (is_text and isinstance(path, Path) and path.suffix.lower() in (".csv", ".tsv", ".txt", ".edges", ".net")):
        return ""
    with path.open("rb") as file:
        begin, name = file.read(2), shlex.quote(str(path))
    code = "utf-16" if begin in (BOM_UTF16_LE, BOM_UTF16_BE) else ("utf-16be", "utf-16le", "latin1")[begin.find(b"\0")]
    command = f"iconv -f {code} -t utf-8 {name} > {name}.new && mv {name}.new {name}"
    return f"expected UTF-8: {command}" if "16" in code else f"expected UTF-8: if it is in Latin-1, {command}"


def with_columns(table: pa.Table, columns: dict[str, Any]) -> pa.Table:
    """The table with other values in some of its columns."""
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return table
