"""A sampled block, or a whole graph as one block, as a neighbourhood in the memory of this process."""

from collections.abc import Callable, Sequence
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
from ..rows import NamedRows
from .base import Message, Reduce
from .gradients import Attend, AttendShared, Maximum, Spmm, SpmmBeside


class BlockNeighbourhood:
    """Aggregation over the edges of one block. See `Neighbourhood` for what each call computes.

    Everything stays on the CPU, in float32 or float64; the block's arrays are shared, not copied, where their layout allows.
    """

    def __init__(self, block: Block, degree: Tensor | Callable[[], Tensor], kernels: ModuleType | None = None) -> None:
        """
        Args:
            block: one layer's edges.
            degree: [num_src], in-degree in the whole graph of each source (weighted: the sum of its in-edges' weights); or what
                gives it, called when a layer first asks.
            kernels: the aggregation backend, by default ``aggregation("cpu")``.

        Raises:
            InputError: degree has another shape.
        """
        if isinstance(degree, Tensor) and degree.shape != (block.num_src,):
            raise InputError(f"degree has shape {list(degree.shape)}; the block has {block.num_src} sources: pass one degree for each")
        self.block = block
        self._degree = degree
        self._kernels = kernels or aggregation("cpu")

    @property
    def degree(self) -> Tensor:
        """See `Neighbourhood.degree`."""
        if not isinstance(self._degree, Tensor):
            self._degree = self._degree()
        return self._degree

    @property
    def num_dst(self) -> int:
        """Rows of the result."""
        return self.block.num_dst

    @property
    def num_src(self) -> int:
        """Rows of `h`."""
        return self.block.num_src

    @property
    def num_edges(self) -> int:
        """Edges present."""
        return self.block.num_edges

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
        h = _full(h)
        _check(h, name)
        if h.ndim < 1 or len(h) != rows:
            raise InputError(f"{name} has shape {list(h.shape)}; expected {rows} rows, one for each source")
        # Rows that are only named stay so.
        return h if isinstance(h, NamedRows) else h.reshape(rows, _product(h.shape[1:])).contiguous()

    def _reduce(self, lists: InLists, x: Tensor, reduce: Reduce, factor: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        if reduce == "max":
            return Maximum.apply(x, self._kernels, lists)  # pyright: ignore[reportReturnType]
        coef = self.weight
        if factor is not None:
            of_edge = factor.detach().to(x.dtype)[torch.from_numpy(lists.indices)]
            coef = of_edge if coef is None else of_edge.mul_(coef)
        return Spmm.apply(x, own, self._kernels, lists, coef, self._row_scale(reduce, x.dtype))  # pyright: ignore[reportReturnType]

    def sum(self, h: Tensor, factor: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        """[num_src, ...], [num_src], [num_dst] -> [num_dst, ...]. Raises InputError for a wrong shape, dtype or device, as do the
        other calls."""
        x = self._matrix(h, self.num_src, "h")
        for name, values, rows in (("factor", factor, self.num_src), ("own", own, self.num_dst)):
            if values is not None and values.shape != (rows,):
                raise InputError(f"{name} has shape {list(values.shape)}; expected [{rows}]")
        own = None if own is None else own.to(x.dtype).contiguous()
        return self._reduce(self.lists, x, "sum", factor, own).reshape(self.num_dst, *h.shape[1:])

    def mean(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]."""
        return self._reduce(self.lists, self._matrix(h, self.num_src, "h"), "mean").reshape(self.num_dst, *h.shape[1:])

    def mean_beside(self, h: Tensor) -> Tensor:
        """[num_src, D] -> [num_dst, 2D]."""
        x = self._matrix(h, self.num_src, "h")
        return SpmmBeside.apply(x, self._kernels, self.lists, self.weight, self._row_scale("mean", x.dtype))  # pyright: ignore[reportReturnType]

    def max(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]."""
        return self._reduce(self.lists, self._matrix(h, self.num_src, "h"), "max").reshape(self.num_dst, *h.shape[1:])

    def attend(self, z: Tensor, a_src: Tensor, logit_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """[num_src, H, D], [H, D], [num_dst, H] -> [num_dst, H, D].

        Dropout takes one key from torch's CPU generator, so `torch.manual_seed` governs it.
        """
        z, a_src, logit_dst = _full(z), _full(a_src), _full(logit_dst)
        _alike(z=z, a_src=a_src, logit_dst=logit_dst)
        shapes = z.ndim == 3 and len(z) == self.num_src and a_src.shape == z.shape[1:] and logit_dst.shape == (self.num_dst, z.shape[1])
        if not shapes:
            raise InputError(
                f"attend got z {list(z.shape)}, a_src {list(a_src.shape)}, logit_dst {list(logit_dst.shape)}; "
                f"expected [{self.num_src}, H, D], [H, D], [{self.num_dst}, H]"
            )
        rule = _attention_rule(slope, dropout)
        out = Attend.apply(z.contiguous(), a_src.contiguous(), logit_dst.contiguous(), self._kernels, self.lists, rule)
        return out  # pyright: ignore[reportReturnType]

    def attend_shared(self, h: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """[num_src, F], [H, F], [H, F] -> [num_dst, H, F]. Dropout as in `attend`."""
        h, a_src, a_dst = _full(h), _full(a_src), _full(a_dst)
        _alike(h=h, a_src=a_src, a_dst=a_dst)
        if h.ndim != 2 or len(h) != self.num_src or a_src.ndim != 2 or a_src.shape != a_dst.shape or a_src.shape[1] != h.shape[1]:
            raise InputError(
                f"attend_shared got h {list(h.shape)}, a_src {list(a_src.shape)}, a_dst {list(a_dst.shape)}; "
                f"expected [{self.num_src}, F], [H, F], [H, F]"
            )
        rule = _attention_rule(slope, dropout)
        out = AttendShared.apply(h.contiguous(), a_src.contiguous(), a_dst.contiguous(), self._kernels, self.lists, rule)
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


def _full(x: Tensor) -> Tensor:
    """Under autocast a product of the user's comes in bfloat16; aggregations are in float32."""
    return x.float() if x.dtype == torch.bfloat16 and torch.is_autocast_enabled("cpu") else x


def _alike(**given: Tensor) -> None:
    """Refuse tensors of different types."""
    first = next(iter(given))
    for name, x in given.items():
        _check(x, name)
        if x.dtype != given[first].dtype:
            raise InputError(f"{name} is {x.dtype} and {first} is {given[first].dtype}; expected one dtype")


def _attention_rule(slope: float, dropout: float) -> AttentionRule:
    if not 0 <= dropout < 1:
        raise InputError(f"attention dropout is {dropout}; expected at least 0 and below 1")
    return AttentionRule(slope, dropout, int(torch.randint(2**62, ()).item()) if dropout else 0)
