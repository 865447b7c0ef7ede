"""Arrow's functions, and errors of files that are read by it."""

from collections.abc import Iterator
from contextlib import contextmanager
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
        remedy = f"expected {expected}" if expected else "write the file again"
        raise InputError(f"{path} {seen} ({first_line(e)[:200].rstrip('.')}); {remedy}") from e


def with_columns(table: pa.Table, columns: dict[str, Any]) -> pa.Table:
    """The table with other values in some of its columns."""
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return table
