"""Numbering of classes whose names are text."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ....storage.errors import InputError


def numbered(labels: Any) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Class numbers int64 [V], -1 where the text is empty or null, and the name of each class.

    Names are sorted; whole numbers come first, by value.

    Args:
        labels: [V] text: a pyarrow array or chunked array, or a sequence of strings and None.
    """
    import pyarrow as pa
    import pyarrow.compute

    # pyarrow generates these functions when it is imported: type checkers cannot see them.
    compute: Any = pyarrow.compute
    column: Any = (
        labels if isinstance(labels, pa.Array | pa.ChunkedArray) else pa.array(list(labels), pa.large_string())
    )
    column = column.cast(pa.large_string())
    seen = (name.as_py() for name in compute.unique(column))
    names = sorted((n for n in seen if n), key=lambda n: (not n.isdecimal(), int(n) if n.isdecimal() else 0, n))
    at = compute.index_in(column, value_set=pa.array(names, pa.large_string()))
    return at.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64), tuple(names)


def numbered_text(labels: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """`numbered` for a NumPy array of text, or of objects that are all text or None. Raises InputError otherwise."""
    if labels.dtype.kind == "O" and not any(isinstance(v, str | bytes) for v in labels.flat):
        raise InputError("labels are Python objects; expected class numbers, or text for every class")
    values = labels.reshape(-1).tolist()
    values = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]
    other = next((v for v in values if not (v is None or isinstance(v, str))), None)
    if other is not None:
        raise InputError(f"labels mix text and {type(other).__name__}; expected class numbers, or text for every class")
    return numbered(values)
