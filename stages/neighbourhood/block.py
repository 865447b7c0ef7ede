"""A sampled block, or a whole graph as one block, as a neighbourhood in the memory of this process."""

from collections.abc import Sequence
from functools import cached_property
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.minibatch import Block
from ..kernels import aggregation
from ..kernels.lists import InLists
from ..kernels.rules import AttentionRule
from .base import Message, Reduce
from .gradients import Attend, Maximum, Spmm


class BlockNeighbourhood:
    """Aggregation over the edges of one block. See `Neighbourhood` for what each call computes.

    Everything stays on the CPU, in float32 or float64; the block's arrays are shared, not copied, where their layout allows.
    """

    def __init__(self, block: Block, degree: Tensor, kernels: ModuleType | None = None) -> None:
        """
        Args:
            block: one layer's edges.
            degree: [num_src], in-degree in the whole graph of each source (weighted: the sum of its in-edges' weights).
            kernels: the aggregation backend, by default ``aggregation("cpu")``.

        Raises:
            InputError: degree has another shape.
        """
        if degree.shape != (block.num_src,):
            raise InputError(f"degree has shape {list(degree.shape)}; the block has {block.num_src} sources: pass one degree for each")
        self.block = block
        self.degree = degree
        self._kernels = kernels or aggregation("cpu")

    @property
    def num_dst(self) -> int:
        """Rows of the result."""
        return self.block.num_dst

    @property
    def num_src(self) -> int:
        """Rows of `h`."""
        return self.block.num_src

    @cached_property
    def lists(self) -> InLists:
        """The block's edges as the kernels read them."""
        return InLists.of(self.block.indptr, self.block.indices, self.num_src)

    @cached_property
    def _edge_lists(self) -> InLists:
        """Lists in which every edge is a source of its own."""
        positions = np.arange(self.block.num_edges, dtype=self.block.indices.dtype)
        return InLists.of(self.block.indptr, positions, self.block.num_edges)

    @cached_property
    def weight(self) -> Tensor | None:
        """`Block.weight` as a tensor, float32 [e]."""
        weight = self.block.weight
        return None if weight is None else torch.from_numpy(np.require(weight, np.float32, ["C", "A", "W"]))

    def _row_scale(self, reduce: Reduce, dtype: torch.dtype) -> Tensor | None:
        """What a row's weighted sum is multiplied by, [num_dst]; None where that is 1."""
        kept = torch.from_numpy(self.lists.kept)
        if self.weight is None:
            scale = self.degree[: self.num_dst].to(dtype) if reduce == "sum" else torch.ones(self.num_dst, dtype=dtype)
            return scale / kept.clamp(min=1).to(dtype)
        if reduce == "sum":
            return None
        total = torch.from_numpy(np.bincount(self.lists.rows, self.weight.numpy().astype(np.float64), minlength=self.num_dst))
        return torch.where(total > 0, 1 / total, 0.0).to(dtype)

    def coefficients(self, dtype: torch.dtype) -> Tensor:
        """What each edge counts in `sum`, [e]."""
        scale = self._row_scale("sum", dtype)
        weight = torch.ones(self.block.num_edges, dtype=dtype) if self.weight is None else self.weight.to(dtype)
        return weight if scale is None else weight * scale[torch.from_numpy(self.lists.rows)]

    def _matrix(self, h: Tensor, rows: int, name: str) -> Tensor:
        """`h` as contiguous [rows, D]."""
        _check(h, name)
        if h.ndim < 1 or len(h) != rows:
            raise InputError(f"{name} has shape {list(h.shape)}; expected {rows} rows, one for each source")
        return h.reshape(rows, _product(h.shape[1:])).contiguous()

    def _reduce(self, lists: InLists, x: Tensor, reduce: Reduce) -> Tensor:
        if reduce == "max":
            return Maximum.apply(x, self._kernels, lists)  # pyright: ignore[reportReturnType]
        return Spmm.apply(x, self._kernels, lists, self.weight, self._row_scale(reduce, x.dtype))  # pyright: ignore[reportReturnType]

    def _aggregate(self, h: Tensor, reduce: Reduce) -> Tensor:
        x = self._matrix(h, self.num_src, "h")
        return self._reduce(self.lists, x, reduce).reshape(self.num_dst, *h.shape[1:])

    def sum(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]. Raises InputError for a wrong shape, dtype or device, as do the other calls."""
        return self._aggregate(h, "sum")

    def mean(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]."""
        return self._aggregate(h, "mean")

    def max(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]."""
        return self._aggregate(h, "max")

    def attend(self, z: Tensor, a_src: Tensor, logit_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """[num_src, H, D], [H, D], [num_dst, H] -> [num_dst, H, D].

        Dropout takes one key from torch's CPU generator, so `torch.manual_seed` governs it.
        """
        for name, x in (("z", z), ("a_src", a_src), ("logit_dst", logit_dst)):
            _check(x, name)
            if x.dtype != z.dtype:
                raise InputError(f"{name} is {x.dtype} and z is {z.dtype}; expected one dtype")
        shapes = z.ndim == 3 and len(z) == self.num_src and a_src.shape == z.shape[1:] and logit_dst.shape == (self.num_dst, z.shape[1])
        if not shapes:
            raise InputError(
                f"attend got z {list(z.shape)}, a_src {list(a_src.shape)}, logit_dst {list(logit_dst.shape)}; "
                f"expected [{self.num_src}, H, D], [H, D], [{self.num_dst}, H]"
            )
        if not 0 <= dropout < 1:
            raise InputError(f"attention dropout is {dropout}; expected at least 0 and below 1")
        rule = AttentionRule(slope, dropout, int(torch.randint(2**62, ()).item()) if dropout else 0)
        out = Attend.apply(z.contiguous(), a_src.contiguous(), logit_dst.contiguous(), self._kernels, self.lists, rule)
        return out  # pyright: ignore[reportReturnType]

    def apply(self, message: Message, h: Tensor, params: Sequence[Tensor] = (), reduce: Reduce = "sum") -> Tensor:
        """A user's own message function, reduced over in-edges: [num_src, ...] -> [num_dst, ...].

        `message` sees each edge's `Block.weight`, if there is one; the coefficients of `sum` and `mean` are applied to what it returns.
        """
        if reduce not in ("sum", "mean", "max"):
            raise InputError(f"apply cannot reduce by '{reduce}'; expected 'sum', 'mean' or 'max'")
        self._matrix(h, self.num_src, "h")
        src = torch.from_numpy(self.lists.indices)
        weight = None if self.weight is None else self.weight.to(h.dtype)
        messages = message(h[src], h[torch.from_numpy(self.lists.rows)], weight, *params)
        x = self._matrix(messages, self.block.num_edges, "the message's result")
        return self._reduce(self._edge_lists, x, reduce).reshape(self.num_dst, *messages.shape[1:])


def whole_graph(graph: Graph, dtype: torch.dtype = torch.float32, kernels: ModuleType | None = None) -> BlockNeighbourhood:
    """The graph as one block: every node is a destination with all its in-edges."""
    nodes = np.arange(graph.num_nodes, dtype=graph.indices.dtype)
    block = Block(graph.num_nodes, nodes, graph.indptr, graph.indices, graph.edge_weight)
    degree = graph.in_degree
    if graph.edge_weight is not None:
        rows = np.repeat(np.arange(graph.num_nodes), degree)
        degree = np.bincount(rows, graph.edge_weight.astype(np.float64), minlength=graph.num_nodes)
    return BlockNeighbourhood(block, torch.from_numpy(degree).to(dtype), kernels)


def _product(shape: Sequence[int]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def _check(x: Tensor, name: str) -> None:
    if x.dtype not in (torch.float32, torch.float64) or x.device.type != "cpu":
        raise InputError(f"{name} is {x.dtype} on {x.device}; expected float32 or float64 on the cpu")
