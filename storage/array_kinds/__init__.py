"""Kinds of NumPy arrays, by what their numbers are."""

from typing import Any

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]
FloatArray = npt.NDArray[np.floating]
FileArray = np.memmap[Any, Any]
"""A map of a file."""
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
IdArray = npt.NDArray[np.int64]
"""Ids, positions, counts."""
Int32Array = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.integer]
Mask = npt.NDArray[np.bool_]
NumberArray = npt.NDArray[np.number]
ValueArray = npt.NDArray[np.generic]
WordArray = npt.NDArray[np.uint64]
"""Random words and keys."""
