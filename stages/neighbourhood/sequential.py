"""A layer's neighbours on other ranks, visited one rank after the other (SAR; Mostafa, MLSys 2022).

The rows of a rank are fetched, aggregated and freed before those of the next come, so a layer takes memory for two
ranks' rows at a time however many there are. What the backward pass needs of them again depends on the call:

============================  ===================================================  ==========================================
call                          backward                                             rows of width D that travel, for B remote rows
============================  ===================================================  ==========================================
sum, mean, mean_beside, max   gradients are handed back; no row is needed again    B D forward, B D back
attend, apply                 rows are fetched again, coefficients and messages    B D forward, 2 B D back
                              computed again; or kept (``keep``)                   (B D back)
============================  ===================================================
==========================================

Where the input needs no gradient, nothing is handed back.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...storage.errors import InputError
from ..kernels import aggregation_backend
from ..kernels.aggregation.attention_args import AttentionRule, EdgeNumbers
from ..kernels.aggregation.lists import InLists
from ..memory.arena import empty
from ..random import Purpose, draw_word, node_words, stream, torch_seed
from .base import Message, Reduce
from .checks import (
    alike,
    as_matrix,
    attention_rule,
    check_attention,
    check_both,
    check_reduce,
    check_scale,
    check_shared,
    full_precision,
)
from .full_batch import FullBatch, Shard, View
from .ring import Push, Ring

MESSAGE_BYTES = 64 << 20
"""Messages of `apply` are computed for as many edges at a time as their inputs take this much."""


class SequentialNeighbourhood:
    """Aggregation over the edges of one layer of a full batch. See `Neighbourhood` for what each call computes.

    Every rank makes the same calls in the same order, whatever rows it has. Sums are added up in the order in which
    ranks are visited, so results differ between numbers of ranks by rounding.
    """

    def __init__(
        self, batch: FullBatch, view: View, layer: int, ring: Ring, dtype: torch.dtype, keep: bool = False
    ) -> None:
        """
        Args:
            batch: this rank's share of the graph.
            view: what the layer needs of it.
            layer: its number, for messages.
            ring: the exchanges of this pass.
            dtype: of the features.
            keep: keep rows for the backward pass rather than fetching them again.
        """
        self.batch, self.view, self.layer, self.ring, self.keep = batch, view, layer, ring, keep
        self._dtype = dtype
        self.kernels = aggregation_backend("cpu")

    @property
    def num_dst(self) -> int:
        """Rows of the result."""
        return self.view.num_dst

    @property
    def num_src(self) -> int:
        """Rows of `h`: this rank's own."""
        return self.view.num_src

    @property
    def num_edges(self) -> int:
        """Edges present, from all ranks."""
        return self.view.num_edges

    @property
    def spans_ranks(self) -> bool:
        """See `Neighbourhood.spans_ranks`."""
        return True

    @property
    def degree(self) -> Tensor:
        """See `Neighbourhood.degree`."""
        return self.batch.degree[: self.num_src].to(self._dtype)

    @property
    def names(self) -> npt.NDArray[np.int64]:
        """See `Neighbourhood.names`."""
        return self.batch.names[: self.num_src]

    @property
    def own(self) -> Shard:
        """The edges between this rank's rows."""
        return self.view.shards[self.batch.rank]

    def mean_scale(self, dtype: torch.dtype) -> Tensor:
        """What makes a row's sum its mean, [num_dst]."""
        total = self.view.kept if self.view.weights is None else self.view.weights
        return torch.from_numpy(np.divide(1.0, total, out=np.zeros(len(total)), where=total > 0)).to(dtype)

    def numbers(self, shard: Shard) -> EdgeNumbers:
        """What dropout keys the shard's edges by: their places in the whole graph."""
        return EdgeNumbers(self.batch.numbers.first, self.batch.numbers.own, shard.edge)

    def sum(self, h: Tensor, factor: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        """[num_src, ...], [num_src], [num_dst] -> [num_dst, ...]. Raises InputError for a wrong shape, dtype or device,
        as do the other calls."""
        x = as_matrix(h, self.num_src, "h")
        check_scale(factor, self.num_src, "factor")
        check_scale(own, self.num_dst, "own")
        factor = None if factor is None else factor.detach().to(x.dtype).contiguous()
        own = None if own is None else own.to(x.dtype).contiguous()
        return _Sum.apply(x, own, self, factor, None, False).reshape(self.num_dst, *h.shape[1:])  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]

    def mean(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]."""
        x = as_matrix(h, self.num_src, "h")
        return _Sum.apply(x, None, self, None, self.mean_scale(x.dtype), False).reshape(self.num_dst, *h.shape[1:])  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]

    def mean_beside(self, h: Tensor) -> Tensor:
        """[num_src, D] -> [num_dst, 2D]."""
        x = as_matrix(h, self.num_src, "h")
        return _Sum.apply(x, None, self, None, self.mean_scale(x.dtype), True)  # pyright: ignore[reportReturnType]

    def max(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]. Of equal values the first edge in the order of the whole graph takes the
        gradient."""
        x = as_matrix(h, self.num_src, "h")
        return _Maximum.apply(x, self).reshape(self.num_dst, *h.shape[1:])  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]

    def attend(self, z: Tensor, a_src: Tensor, logit_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """[num_src, H, D], [H, D], [num_dst, H] -> [num_dst, H, D]: an online softmax over the ranks, of which only z
        travels."""
        z, a_src, logit_dst = full_precision(z), full_precision(a_src), full_precision(logit_dst)
        alike(z=z, a_src=a_src, logit_dst=logit_dst)
        check_attention(z, a_src, logit_dst, self.num_src, self.num_dst)
        rule = attention_rule(slope, dropout)
        return _Attend.apply(z.contiguous(), a_src.contiguous(), logit_dst.contiguous(), self, rule, 0, False)  # pyright: ignore[reportReturnType]

    def attend_both(self, z: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """[num_src, H, D], [H, D], [H, D] -> [num_dst, H, D]; travels as in `attend`."""
        z, a_src, a_dst = full_precision(z), full_precision(a_src), full_precision(a_dst)
        alike(z=z, a_src=a_src, a_dst=a_dst)
        check_both(z, a_src, a_dst, self.num_src)
        rule = attention_rule(slope, dropout)
        return _Attend.apply(z.contiguous(), a_src.contiguous(), a_dst.contiguous(), self, rule, 0, True)  # pyright: ignore[reportReturnType]

    def attend_shared(
        self, h: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        """[num_src, F], [H, F], [H, F] -> [num_dst, H, F]; h travels once for all heads."""
        h, a_src, a_dst = full_precision(h), full_precision(a_src), full_precision(a_dst)
        alike(h=h, a_src=a_src, a_dst=a_dst)
        check_shared(h, a_src, a_dst, self.num_src)
        logit_dst = h[: self.num_dst] @ a_dst.T
        rule = attention_rule(slope, dropout)
        return _Attend.apply(h.contiguous(), a_src.contiguous(), logit_dst.contiguous(), self, rule, len(a_src), False)  # pyright: ignore[reportReturnType]

    def apply(self, message: Message, h: Tensor, params: Sequence[Tensor] = (), reduce: Reduce = "sum") -> Tensor:
        """A user's own message function, reduced over in-edges: [num_src, ...] -> [num_dst, ...].

        Messages are computed for some edges at a time, and again in the backward pass, so a function may be called any
        number of times and must depend on its arguments only: parameters that it holds (a module's, or in a closure)
        are found and get their gradients; random numbers that it draws from torch's generator are drawn alike both
        times, but depend on the partitioning.

        Raises:
            InputError: it uses a tensor that was computed with gradients outside of it; pass that in `params`.
        """
        check_reduce(reduce)
        as_matrix(h, self.num_src, "h")
        h = h.contiguous()
        held = _held(message, h, self.own.weight, params)
        scale = self.mean_scale(h.dtype) if reduce == "mean" else None
        # Looked at and not taken: what a layer draws next must not depend on how its neighbours are seen.
        state = torch.default_generator.get_state()
        key = int(torch.randint(2**62, ()).item())
        torch.default_generator.set_state(state)
        return _Apply.apply(h, self, message, scale, reduce, key, len(params), *params, *held)  # pyright: ignore[reportReturnType]


class _Sum(torch.autograd.Function):
    """``apply(x, own, hood, factor, row_scale, beside)``: see `gradients.Spmm` and `gradients.SpmmBeside`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        own: Tensor | None,
        neighbourhood: SequentialNeighbourhood,
        factor: Tensor | None,
        scale: Tensor | None,
        beside: bool,
    ) -> Tensor:
        kernels, call = neighbourhood.kernels, neighbourhood.ring.call()
        ctx.rest = neighbourhood, factor, scale, beside, call
        ctx.save_for_backward(own, x if own is not None and own.requires_grad else None)
        here = neighbourhood.own
        coef = _coefficients(here, factor)
        out = (
            kernels.spmm_beside(here.lists, x, coef, scale) if beside else kernels.spmm(here.lists, x, coef, scale, own)
        )
        for q, rows in neighbourhood.ring.rows(neighbourhood.view, x, call, neighbourhood.layer, factor):
            shard = neighbourhood.view.shards[q]
            kernels.spmm_into(shard.lists, shard.rows, rows, out, shard.weight, scale)
            del rows  # before the next rank's come
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        neighbourhood, factor, scale, beside, call = ctx.rest
        kernels, here, grad = neighbourhood.kernels, neighbourhood.own, grads[0].contiguous()
        own, x = ctx.saved_tensors
        dx = None
        if ctx.needs_input_grad[0]:
            coef = _coefficients(here, factor)
            back = kernels.spmm_beside_backward if beside else kernels.spmm_backward
            dx = back(here.lists, grad, coef, scale) if beside else back(here.lists, grad, coef, scale, own)
            width = grad.shape[1] // 2 if beside else grad.shape[1]

            def of(q: int) -> Tensor:
                shard = neighbourhood.view.shards[q]
                return kernels.spmm_from(shard.lists, shard.rows, grad, width, shard.weight, scale)

            neighbourhood.ring.push_all(neighbourhood.view, of, dx, call, neighbourhood.layer, factor)
        down = kernels.dots(grad[:, None], x[: neighbourhood.num_dst, None])[:, 0] if ctx.needs_input_grad[1] else None
        return dx, down, None, None, None, None


def _coefficients(shard: Shard, factor: Tensor | None) -> Tensor | None:
    """What each edge between own rows counts, [e]."""
    if factor is None:
        return shard.weight
    of_edge = factor[torch.from_numpy(shard.lists.indices)]
    return of_edge if shard.weight is None else of_edge.mul_(shard.weight)


class _Maximum(torch.autograd.Function):
    """``apply(x, hood)``: keeps the place of the winning edge of each element, so that no row is fetched again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, neighbourhood: SequentialNeighbourhood) -> Tensor:
        kernels, call = neighbourhood.kernels, neighbourhood.ring.call()
        out = empty((neighbourhood.num_dst, x.shape[1]), x.dtype)
        arg = empty(out.shape, torch.int64).fill_(-1)
        here = neighbourhood.own
        kernels.maximum_into(here.lists, None, here.edge, x, out, arg)
        for q, rows in neighbourhood.ring.rows(neighbourhood.view, x, call, neighbourhood.layer):
            shard = neighbourhood.view.shards[q]
            kernels.maximum_into(shard.lists, shard.rows, shard.edge, rows, out, arg)
            del rows
        out[torch.from_numpy(neighbourhood.view.kept == 0)] = 0
        ctx.rest = neighbourhood, call
        ctx.save_for_backward(arg)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        neighbourhood, call = ctx.rest
        (arg,) = ctx.saved_tensors
        grad = grads[0].contiguous()

        def of(q: int) -> Tensor:
            shard = neighbourhood.view.shards[q]
            return neighbourhood.kernels.maximum_from(shard.lists, shard.rows, shard.edge, arg, grad)

        dx = of(neighbourhood.batch.rank)
        neighbourhood.ring.push_all(neighbourhood.view, of, dx, call, neighbourhood.layer)
        return dx, None


class _Attend(torch.autograd.Function):
    """``apply(z, a_src, dst, hood, rule, heads, both)``: keeps z of this rank, the result and two numbers per row and
    head. With `heads` above 0 z is [num_src, F] and all heads sum its rows. `dst` is logit_dst, or with `both`
    a_dst."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        a_src: Tensor,
        dst: Tensor,
        neighbourhood: SequentialNeighbourhood,
        rule: AttentionRule,
        heads: int,
        both: bool,
    ) -> Tensor:
        kernels, call, here = neighbourhood.kernels, neighbourhood.ring.call(), neighbourhood.own
        spread = _Spread(heads)
        logit_dst = kernels.dots(z[: neighbourhood.num_dst], dst[None]) if both else dst
        out = empty((neighbourhood.num_dst, *a_src.shape), z.dtype).zero_()
        log_sum = empty((neighbourhood.num_dst, len(a_src)), z.dtype).fill_(-torch.inf)
        kernels.attend_into(
            here.lists, None, neighbourhood.numbers(here), spread(z), a_src, logit_dst, rule, out, log_sum, True
        )
        kept = {}
        for q, rows in neighbourhood.ring.rows(neighbourhood.view, z, call, neighbourhood.layer):
            shard = neighbourhood.view.shards[q]
            kernels.attend_into(
                shard.lists,
                shard.rows,
                neighbourhood.numbers(shard),
                spread(rows),
                a_src,
                logit_dst,
                rule,
                out,
                log_sum,
                False,
            )
            if neighbourhood.keep:
                kept[q] = rows
            del rows
        ctx.rest = neighbourhood, rule, spread, call, kept
        ctx.save_for_backward(z, a_src, logit_dst, out, log_sum, dst if both else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        neighbourhood, rule, spread, call, kept = ctx.rest
        kernels, here, view = neighbourhood.kernels, neighbourhood.own, neighbourhood.view
        z, a_src, logit_dst, out, log_sum, a_dst = ctx.saved_tensors
        grad = grads[0].contiguous()
        delta = kernels.dots(grad, out)
        d_dst = empty(logit_dst.shape, z.dtype).zero_()
        d_src = torch.zeros_like(a_src)

        def of(shard: Shard, rows: Tensor, own: bool) -> Tensor:
            numbers = neighbourhood.numbers(shard)
            dz, da = kernels.attend_from(
                shard.lists, shard.rows, numbers, spread(rows), a_src, logit_dst, rule, log_sum, grad, delta, d_dst, own
            )
            d_src.add_(da)
            return spread.back(dz)

        dz = of(here, z, True)
        _rebuild(
            neighbourhood,
            z,
            call,
            kept,
            lambda q, rows: of(view.shards[q], rows, False),
            dz if ctx.needs_input_grad[0] else None,
        )
        if a_dst is not None:
            kernels.add_outer(dz, d_dst, a_dst)
            d_dst = kernels.weighted_sum(d_dst, z[: neighbourhood.num_dst])
        return dz if ctx.needs_input_grad[0] else None, d_src, d_dst, *[None] * 4


class _Spread:
    """Rows that all heads share, once for each head."""

    def __init__(self, heads: int) -> None:
        self._heads = heads

    def __call__(self, rows: Tensor) -> Tensor:
        if not self._heads:
            return rows
        return empty((len(rows), self._heads, rows.shape[1]), rows.dtype).copy_(rows[:, None])

    def back(self, grad: Tensor) -> Tensor:
        """The gradient of the rows themselves."""
        return grad.sum(1) if self._heads else grad


def _rebuild(
    neighbourhood: SequentialNeighbourhood,
    x: Tensor,
    call: int,
    kept: dict[int, Tensor],
    of: Callable[[int, Tensor], Tensor],
    onto: Tensor | None,
) -> None:
    """The backward pass of a call that needs the rows of every other rank again, and hands gradients back unless there
    is no `onto`."""
    ring, view = neighbourhood.ring, neighbourhood.view
    again = None if neighbourhood.keep else ring.rows(view, x, call, neighbourhood.layer, again=True)
    before: Push | None = None
    for r in ring.rounds(view):
        q = ring.source(r)
        rows = kept.pop(q, None) if again is None else next(again)[1]
        part = of(q, rows) if rows is not None and len(rows) else empty((0, *x.shape[1:]), x.dtype)
        del rows
        if before is not None:
            before.finish()
            before = None
        if onto is not None:
            before = ring.push(view, r, part, onto, call, neighbourhood.layer)
            if before.nbytes > ring.prefetch_bytes:
                before.finish()
                before = None
        del part
    if again is not None:
        # The last round's rows may still be on their way out.
        assert next(again, None) is None
    if before is not None:
        before.finish()


class _Apply(torch.autograd.Function):
    """``apply(h, hood, message, scale, reduce, key, num_params, *params, *held)``."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        neighbourhood: SequentialNeighbourhood,
        message: Message,
        scale: Tensor | None,
        reduce: Reduce,
        key: int,
        num_params: int,
        *inputs: Tensor,
    ) -> Tensor:
        kernels, call, batch = neighbourhood.kernels, neighbourhood.ring.call(), neighbourhood.batch
        key = stream(key, Purpose.DROPOUT, call)
        params = inputs[:num_params]
        dst = h[: neighbourhood.num_dst]
        out, arg, shape = None, None, None
        kept = {}

        def visit(q: int, rows: Tensor) -> None:
            nonlocal out, arg, shape
            shard = neighbourhood.view.shards[q]
            for a, b in _pieces(shard, rows):
                src, there, lists = _piece(shard, a, b)
                coef = None if shard.weight is None else shard.weight[src.start : src.stop]
                weight = None if coef is None else coef.to(h.dtype)
                with _drawn(key, batch.rank, q, a):
                    x = message(rows[src.indices], dst[there], weight, *params)
                shape = tuple(x.shape[1:])
                x = as_matrix(x, len(src.indices), "the message's result").detach()
                if out is None:
                    out = empty((neighbourhood.num_dst, x.shape[1]), x.dtype).zero_()
                    arg = empty(out.shape, torch.int64).fill_(-1) if reduce == "max" else None
                of_rows = _rows_of(shard, a, b)
                if reduce == "max":
                    kernels.maximum_into(lists, of_rows, shard.edge[src.start : src.stop], x, out, arg)
                else:
                    kernels.spmm_into(lists, of_rows, x, out, coef, scale)

        visit(batch.rank, h)
        for q, rows in neighbourhood.ring.rows(neighbourhood.view, h, call, neighbourhood.layer):
            if len(rows):
                visit(q, rows)
            if neighbourhood.keep:
                kept[q] = rows
            del rows
        assert out is not None
        ctx.rest = neighbourhood, message, scale, reduce, key, num_params, call, kept
        ctx.save_for_backward(h, arg, *inputs)
        return out.reshape(neighbourhood.num_dst, *(shape or ()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        neighbourhood, message, scale, reduce, key, num_params, call, kept = ctx.rest
        kernels, batch = neighbourhood.kernels, neighbourhood.batch
        h, arg, *inputs = ctx.saved_tensors
        grad = grads[0].reshape(neighbourhood.num_dst, grads[0].shape[1:].numel()).contiguous()
        wanted = [i for i, t in enumerate(inputs) if t.requires_grad]
        d_inputs = {i: torch.zeros_like(inputs[i]) for i in wanted}
        # Without its history: a parameter may have made the rows and be used by the messages too.
        h = h.detach()
        # Gradients of parameters that the function holds are with respect to those very tensors.
        given = [_cut(t) for t in inputs[:num_params]] + inputs[num_params:]
        dh = torch.zeros_like(h)

        def of(q: int, rows: Tensor) -> Tensor:
            shard = neighbourhood.view.shards[q]
            d_rows = torch.zeros_like(rows)
            for a, b in _pieces(shard, rows):
                src, there, lists = _piece(shard, a, b)
                coef = None if shard.weight is None else shard.weight[src.start : src.stop]
                weight = None if coef is None else coef.to(h.dtype)
                with torch.enable_grad(), _drawn(key, batch.rank, q, a):
                    x_src, x_dst = (
                        rows[src.indices].requires_grad_(),
                        h[: neighbourhood.num_dst][there].requires_grad_(),
                    )
                    x = message(x_src, x_dst, weight, *given[:num_params])
                of_rows = _rows_of(shard, a, b)
                width = grad.shape[1]
                if reduce == "max":
                    dx = kernels.maximum_from(lists, of_rows, shard.edge[src.start : src.stop], arg, grad)
                else:
                    dx = kernels.spmm_from(lists, of_rows, grad, width, coef, scale)
                if not x.requires_grad:
                    continue
                found = torch.autograd.grad(
                    x, [x_src, x_dst, *(given[i] for i in wanted)], dx.reshape(x.shape), allow_unused=True
                )
                if found[0] is not None:
                    d_rows.index_add_(0, src.indices, found[0])
                if found[1] is not None:
                    dh.index_add_(0, there, found[1])
                for i, g in zip(wanted, found[2:]):
                    if g is not None:
                        d_inputs[i].add_(g)
            return d_rows

        dh.add_(of(batch.rank, h))
        _rebuild(neighbourhood, h, call, kept, of, dh if ctx.needs_input_grad[0] else None)
        return dh if ctx.needs_input_grad[0] else None, *[None] * 6, *(d_inputs.get(i) for i in range(len(inputs)))


def _cut(param: Tensor) -> Tensor:
    """The tensor without its history; a parameter itself, so that a function may hold it besides."""
    return param if param.is_leaf else param.detach().requires_grad_(param.requires_grad)


class _Edges:
    """Edges [start, stop) of a shard: the source of each."""

    def __init__(self, start: int, stop: int, indices: npt.NDArray[np.integer]) -> None:
        self.start, self.stop = start, stop
        self.indices = torch.from_numpy(indices)


def _pieces(shard: Shard, rows: Tensor) -> Iterator[tuple[int, int]]:
    """Ranges of lists whose edges' inputs take `MESSAGE_BYTES` at most; one range at least, so that a message is
    seen."""
    per_edge = 2 * rows.itemsize * max(1, rows.shape[1:].numel())
    most = max(1, MESSAGE_BYTES // per_edge)
    indptr, n, a = shard.lists.indptr, shard.lists.num_dst, 0
    while True:
        b = max(a + 1, int(np.searchsorted(indptr, indptr[a] + most, side="right")) - 1) if a < n else n
        b = min(b, n)
        yield a, b
        a = b
        if a >= n:
            return


def _piece(shard: Shard, a: int, b: int) -> tuple[_Edges, Tensor, Any]:
    """Lists [a, b): their edges, the destination row of each, and lists in which every edge is a source of its own."""
    indptr = shard.lists.indptr[a : b + 1] - shard.lists.indptr[a]
    start, stop = int(shard.lists.indptr[a]), int(shard.lists.indptr[b])
    rows = np.arange(a, b) if shard.rows is None else shard.rows[a:b]
    there = np.repeat(rows.astype(np.int64), np.diff(indptr))
    own = InLists.of(indptr, np.arange(stop - start), stop - start)
    return _Edges(start, stop, shard.lists.indices[start:stop]), torch.from_numpy(there), own


def _rows_of(shard: Shard, a: int, b: int) -> npt.NDArray[np.int32]:
    """The row of each of lists [a, b)."""
    return np.arange(a, b, dtype=np.int32) if shard.rows is None else shard.rows[a:b]


@contextmanager
def _drawn(key: int, rank: int, source: int, piece: int) -> Iterator[None]:
    """Torch's generator as it is for one piece of one shard, both times that its messages are computed; afterwards as
    it was."""
    generator = torch.default_generator
    before = generator.get_state()
    seed = draw_word(node_words(key, np.array([rank << 32 | source])), piece)
    generator.manual_seed(torch_seed(int(seed[0])))
    try:
        yield
    finally:
        generator.set_state(before)


def _held(message: Message, h: Tensor, weight: Tensor | None, params: Sequence[Tensor]) -> list[Tensor]:
    """Parameters that a message function uses without having been handed them, found by calling it for no edge."""
    if not torch.is_grad_enabled():
        return []
    known = {id(p) for p in params}
    inputs = [h[:0].detach().requires_grad_() for _ in range(2)]
    given = [_cut(p) for p in params]
    known |= {id(p) for p in given} | {id(i) for i in inputs}
    marker = torch.zeros((), requires_grad=True) * 1
    assert marker.grad_fn is not None
    first = marker.grad_fn._sequence_nr()  # pyright: ignore[reportAttributeAccessIssue]
    state = torch.default_generator.get_state()
    x = message(*inputs, None if weight is None else weight[:0].to(h.dtype), *given)
    torch.default_generator.set_state(state)
    found: dict[int, Tensor] = {}
    if isinstance(message, nn.Module):
        found = {id(p): p for p in message.parameters() if p.requires_grad and id(p) not in known}
    seen, todo = set(), [x.grad_fn] if isinstance(x, Tensor) and x.grad_fn is not None else []
    while todo:
        node: Any = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            if id(variable) not in known:
                found[id(variable)] = variable
        elif node._sequence_nr() < first:
            raise InputError(
                "the message function uses a tensor that was computed, with gradients, outside of it; expected only its arguments and "
                "parameters: pass that tensor in `params`"
            )
        todo += [n for n, _ in node.next_functions if n is not None]
    return list(found.values())
