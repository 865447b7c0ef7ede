"""Feature rows that are named but not gathered yet, in the memory of the host or of a device.

The first layer of a minibatch often needs no matrix of its sources' features: an aggregation can read them in place.
Such a layer never pays for the gather; any other operation gathers first, and sees an ordinary tensor.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...storage.array_kinds import AnyArray, FloatArray, IntArray
from .arena import empty


def torch_dtype(dtype: npt.DTypeLike) -> torch.dtype:
    """The torch dtype of that name."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


class LazyRows(Tensor):
    """``base[ids]``, [n, F], as a tensor without memory. Constant: no gradient reaches the features.

    `torch` functions and methods see the gathered rows, which are kept from the first use on. The neighbourhoods of
    this package read `base` through `ids`.
    """

    base: FloatArray | Tensor | None
    """[V, F], contiguous; a tensor if it lies on a device. None: see `LazyTypedRows`."""
    ids: IntArray | Tensor
    """[n] rows of `base`; on the same device."""

    @staticmethod
    def __new__(cls: type["LazyRows"], base: FloatArray | Tensor, ids: IntArray | Tensor) -> "LazyRows":
        """`ids` must be in range."""
        make: Any = Tensor._make_wrapper_subclass
        dtype, device = (base.dtype, base.device) if isinstance(base, Tensor) else (torch_dtype(base.dtype), None)
        self = make(cls, (len(ids), base.shape[1]), dtype=dtype, device=device)
        self.base, self.ids, self._rows = base, ids, None
        return self

    def head(self, n: int) -> Tensor:
        """The first n rows, gathered."""
        if self._rows is not None:
            return self._rows[:n]
        if isinstance(self.base, Tensor):
            assert isinstance(self.ids, Tensor)
            if not self.ids.is_cuda:
                return self.base.index_select(0, self.ids[:n])
            # Needs Triton. `benchmarks/gpu.py --only gather` sets it beside torch's selection.
            from ..kernels.minibatch_cuda.rows import gather_rows

            return gather_rows(self.base, self.ids[:n])
        out = empty((n, self.shape[1]), self.dtype)
        # In range, so nothing is clipped: mode="raise" would need a buffer beside `out`.
        np.take(np.asarray(self.base), self.ids[:n], axis=0, out=out.numpy(), mode="clip")
        return out

    def gathered(self) -> Tensor:
        """All rows."""
        if self._rows is None:
            self._rows = self.head(len(self.ids))
        return self._rows

    @classmethod
    # pyrefly: ignore[bad-override]
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(LazyRows, LazyRows.gathered, (args, kwargs or {}))
        return func(*args, **kwargs)

    def numpy(self, *, force: bool = False) -> AnyArray:
        """The gathered rows."""
        return self.gathered().numpy(force=force)

    def tolist(self) -> list[Any]:
        """The gathered rows."""
        return self.gathered().tolist()

    def data_ptr(self) -> int:
        """Address of the gathered rows."""
        return self.gathered().data_ptr()

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        return self.gathered().clone()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"LazyRows({list(self.shape)}, {self.dtype})"


class LazyTypedRows(LazyRows):
    """Rows of a graph with types, whose features lie in one matrix for each node type."""

    bases: Sequence[FloatArray]
    """Features of each node type, [., F] with F at most the width of this tensor."""
    offsets: Sequence[int]
    """See `GraphTypes.offsets`."""

    @staticmethod
    def __new__(
        cls: type["LazyTypedRows"], bases: Sequence[FloatArray], offsets: Sequence[int], ids: Any
    ) -> "LazyTypedRows":
        """`bases` have one dtype; `ids` are [n] global ids, in range."""
        make: Any = Tensor._make_wrapper_subclass
        width = max(1, *(base.shape[1] for base in bases))
        self = make(cls, (len(ids), width), dtype=torch_dtype(bases[0].dtype))
        self.base, self.ids, self._rows = None, ids, None
        self.bases, self.offsets = bases, offsets
        return self

    def of_type(self, t: int, at: Tensor) -> LazyRows:
        """[m, F] features of the rows `at`, all of node type t."""
        return LazyRows(self.bases[t], self.ids[at.numpy()] - self.offsets[t])

    def head(self, n: int) -> Tensor:
        if self._rows is not None:
            return self._rows[:n]
        out = empty((n, self.shape[1]), self.dtype).zero_()
        kinds = np.searchsorted(np.asarray(self.offsets[1:]), self.ids[:n], side="right")
        for t, base in enumerate(self.bases):
            at = torch.from_numpy(np.flatnonzero(kinds == t))
            if base.shape[1] and len(at):
                out[at, : base.shape[1]] = self.of_type(t, at).gathered()
        return out


def base_and_ids(x: Tensor) -> tuple[FloatArray, IntArray | None]:
    """Arrays for a kernel: row u of `x` is ``base[ids[u]]``, or ``base[u]`` without ids."""
    if isinstance(x, LazyRows) and x._rows is None and x.base is not None:
        return np.asarray(x.base), np.asarray(x.ids)
    return x.numpy(), None


def device_base_and_ids(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """`base_and_ids` in the memory of x's device."""
    if isinstance(x, LazyRows):
        if x._rows is None and isinstance(x.base, Tensor) and isinstance(x.ids, Tensor):
            return x.base, x.ids
        return x.gathered(), None
    return x, None


def head(x: Tensor, n: int) -> Tensor:
    """The first n rows of x; of lazy rows, no others are gathered."""
    if isinstance(x, LazyRows):
        return x.head(n)
    # The gradient of a slice is a matrix of zeros with the slice's in it.
    return x if n == x.shape[0] else torch.narrow(x, 0, 0, n)
