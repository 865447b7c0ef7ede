"""Text columns as lists of 0 and 1, with a place for each value (`ReadOptions.one_hot`)."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ....storage.errors import InputError
from .class_names import numbered

MOST_VALUES = 1000
"""Most values of a column, each of which takes a feature of its own."""
VALUES = b"one_hot"
"""Key of the values in the metadata of a field."""


def with_one_hot(table: pa.Table, named: Sequence[str], title: str) -> pa.Table:
    """The table with lists of 0 and 1 in the columns among `named` that it has; all 0 for a null or empty text. Values
    are in the order of class names, and in the metadata of the field.

    Raises:
        InputError: a column holds lists, or too many values.
    """
    for name in named:
        if name not in table.column_names:
            continue
        column, at = table[name], table.column_names.index(name)
        if pa.types.is_nested(column.type):
            raise InputError(f"column {title}.{name} is {column.type}; expected text or numbers for read.one_hot")
        codes, values, *_ = numbered(column)
        if len(values) > MOST_VALUES:
            raise InputError(
                f"column {title}.{name} has {len(values):,} values, each a feature with read.one_hot; expected at most "
                f"{MOST_VALUES:,}: join rare ones, or leave it out"
            )
        rows = (codes[:, None] == np.arange(max(1, len(values)))).astype(np.float32)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
        field = pa.field(name, lists.type, metadata={VALUES: ", ".join(values).encode()})
        table = table.set_column(at, field, lists)
    return table
