"""Measures the peak memory of the tensors of a step."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .arena import Arena
from .lazy_rows import LazyRows


class TensorBytes(TorchDispatchMode):
    """Context that follows every tensor that an operation of this thread makes, until its memory is free. Costs about
    20 us per operation.

    Tensors in the arena are not counted, and neither are those made before or in other threads.
    """

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena
        self._seen: dict[int, Any] = {}
        self._bytes = 0
        self.peak_bytes = 0
        """Largest sum so far."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would load its compiler to make it skip the next method.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in pytree.tree_leaves(made):
            # A sparse tensor has no memory but that of its indices and values.
            if isinstance(x, Tensor) and not isinstance(x, LazyRows) and x.layout is torch.strided:
                self._follow(x, lent=func is torch.ops.aten.lift_fresh.default)
        return made

    def _follow(self, x: Tensor, lent: bool) -> None:
        storage = x.untyped_storage()
        # A NumPy array as a tensor takes no memory, and neither do views of it.
        key, size = storage._cdata, 0 if lent else storage.nbytes()
        if key in self._seen or self._arena.holds(storage.data_ptr()):
            return

        def gone(_: Any) -> None:
            if self._seen.pop(key, None) is not None:
                self._bytes -= size

        self._seen[key] = weakref.ref(storage, gone)
        self._bytes += size
        self.peak_bytes = max(self.peak_bytes, self._bytes)
