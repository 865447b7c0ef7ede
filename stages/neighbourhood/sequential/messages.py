"""A user's message function over ranks, computed for some edges at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ....storage.errors import InputError
from ....storage.graph import row_ranges
from ....storage.optional import moved, present, taken, when_present
from ...autograd import once_differentiable
from ...kernels.aggregation.lists import InLists, WeightedLists
from ...memory.arena import empty
from ...random import Purpose, draw_word, node_words, stream, torch_seed
from ..base import Message, Reduce
from ..checked import UserMessage
from ..checks import as_matrix
from ..full_batch import Shard
from .layer import SequentialLayer, rebuild

MESSAGE_BYTES = 64 << 20
"""Inputs of the messages of `apply` that are computed at a time."""


class Messages(NamedTuple):
    """What is computed of each edge, and how that is reduced."""

    neighbourhood: SequentialLayer
    message: Message
    scale: Tensor | None
    """[num_dst], factor of each row's sum."""
    reduce: Reduce
    key: int
    """Stream of the random numbers that `message` draws."""
    num_params: int
    """Inputs that are handed to `message`; the others are those that it holds."""


class Apply(torch.autograd.Function):
    """``apply(h, edge, own, messages, *params, *held)``."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, edge: Tensor | None, own: Tensor | None, of: Messages, *inputs: Tensor) -> Tensor:
        neighbourhood, message = of.neighbourhood, of.message
        kernels, call, batch = neighbourhood.kernels, neighbourhood.begin(), neighbourhood.batch
        of = of._replace(key=stream(of.key, Purpose.DROPOUT, call.number))
        params = inputs[: of.num_params]
        dst = h[: neighbourhood.num_dst] if own is None else own
        out, arg, shape = None, None, None
        kept, of_edges = {}, _EdgeValues(neighbourhood, edge)

        def visit(q: int, rows: Tensor) -> None:
            nonlocal out, arg, shape
            shard = neighbourhood.view.shards[q]
            for a, b in _pieces(shard, rows):
                src, there, weight, lists = _piece(of, shard, a, b, h)
                with _seeded(of.key, batch.rank, q, a, h.device):
                    x = message(rows[src.indices], dst[there], weight, *of_edges.values(q, src), *params)
                shape = tuple(x.shape[1:])
                x = as_matrix(x, len(src.indices), "the message's result").detach()
                if out is None:
                    out = empty((neighbourhood.num_dst, x.shape[1]), x.dtype, x.device).zero_()
                    arg = empty(out.shape, torch.int64, x.device).fill_(-1) if of.reduce == "max" else None
                if of.reduce == "max":
                    kernels.maximum_into(lists, x, out, arg)
                else:
                    kernels.spmm_into(lists, x, out)

        visit(batch.rank, h)
        for q, rows in neighbourhood.ring.rows(neighbourhood.view, h, call):
            if len(rows):
                visit(q, rows)
            if neighbourhood.keep:
                kept[q] = rows
            del rows
        assert out is not None
        ctx.rest = of, call, kept
        ctx.save_for_backward(h, edge, own, arg, *inputs)
        return out.reshape(neighbourhood.num_dst, *(shape or ()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        of, call, kept = ctx.rest
        neighbourhood, num_params = of.neighbourhood, of.num_params
        kernels, batch = neighbourhood.kernels, neighbourhood.batch
        h, edge, own, arg, *inputs = ctx.saved_tensors
        grad = grads[0].reshape(neighbourhood.num_dst, grads[0].shape[1:].numel()).contiguous()
        wanted = [i for i, t in enumerate(inputs) if t.requires_grad]
        d_inputs = {i: torch.zeros_like(inputs[i]) for i in wanted}
        # Without its history: a parameter may have made the rows and be used by the messages too.
        h = h.detach()
        # Gradients of parameters that the function captures are with respect to those very tensors.
        given = [_cut(t) for t in inputs[:num_params]] + inputs[num_params:]
        dh = torch.zeros_like(h)
        dst = h[: neighbourhood.num_dst] if own is None else own.detach()
        d_dst = dh if own is None else torch.zeros_like(own)
        of_edges = _EdgeValues(neighbourhood, when_present(Tensor.detach, edge))
        d_edge = torch.zeros_like(edge) if edge is not None and ctx.needs_input_grad[1] else None

        def gradient_of(q: int, rows: Tensor) -> Tensor:
            shard = neighbourhood.view.shards[q]
            d_rows = torch.zeros_like(rows)
            for a, b in _pieces(shard, rows):
                src, there, weight, lists = _piece(of, shard, a, b, h)
                with torch.enable_grad(), _seeded(of.key, batch.rank, q, a, h.device):
                    x_src, x_dst = rows[src.indices].requires_grad_(), dst[there].requires_grad_()
                    x_edge = [t.requires_grad_(d_edge is not None) for t in of_edges.values(q, src)]
                    x = of.message(x_src, x_dst, weight, *x_edge, *given[:num_params])
                if of.reduce == "max":
                    dx = kernels.maximum_from(lists, arg, grad)
                else:
                    dx = kernels.spmm_from(lists, grad, grad.shape[1])
                if not x.requires_grad:
                    continue
                asked = [x_src, x_dst, *(given[i] for i in wanted), *(x_edge if d_edge is not None else ())]
                found = torch.autograd.grad(x, asked, dx.reshape(x.shape), allow_unused=True)
                if d_edge is not None and found[-1] is not None:
                    d_edge[of_edges.positions(q, src)] = found[-1]
                if found[0] is not None:
                    d_rows.index_add_(0, src.indices, found[0])
                if found[1] is not None:
                    d_dst.index_add_(0, there, found[1])
                for i, g in zip(wanted, found[2:]):
                    if g is not None:
                        d_inputs[i].add_(g)
            return d_rows

        dh.add_(gradient_of(batch.rank, h))
        rebuild(neighbourhood, h, call, kept, gradient_of, dh if ctx.needs_input_grad[0] else None)
        of_inputs = (d_inputs.get(i) for i in range(len(inputs)))
        d_own = None if own is None else d_dst
        return dh if ctx.needs_input_grad[0] else None, d_edge, d_own, None, *of_inputs


def _cut(param: Tensor) -> Tensor:
    """The tensor without its history; a parameter itself, since the function may also capture it."""
    return param if param.is_leaf else param.detach().requires_grad_(param.requires_grad)


class _Edges:
    """Edges [start, stop) of a shard, with the source of each."""

    def __init__(self, start: int, stop: int, indices: Tensor) -> None:
        self.start, self.stop, self.indices = start, stop, indices


class _EdgeValues:
    """Values of the edges of a layer, shard after shard."""

    def __init__(self, neighbourhood: SequentialLayer, values: Tensor | None) -> None:
        self._values = values
        self._first = np.cumsum([0, *(s.lists.num_edges for s in neighbourhood.view.shards)]).tolist()

    def positions(self, q: int, edges: _Edges) -> slice:
        """Positions of edges of shard q."""
        return slice(self._first[q] + edges.start, self._first[q] + edges.stop)

    def values(self, q: int, edges: _Edges) -> tuple[Tensor, ...]:
        """Their values, if there are any."""
        return () if self._values is None else (self._values[self.positions(q, edges)],)


def _pieces(shard: Shard, rows: Tensor) -> list[tuple[int, int]]:
    """Ranges of lists whose edges' inputs take at most `MESSAGE_BYTES`; at least one range, so that the message
    function is called."""
    per_edge = 2 * rows.itemsize * max(1, rows.shape[1:].numel())
    most = max(1, MESSAGE_BYTES // per_edge)
    return [*row_ranges(shard.lists.indptr, most, len(shard.lists.indptr))] or [(0, 0)]


def _piece(
    of: Messages, shard: Shard, a: int, b: int, like: Tensor
) -> tuple[_Edges, Tensor, Tensor | None, WeightedLists]:
    """Lists [a, b): their edges, the destination row of each and its weight in the dtype of `like`, and lists in which
    every edge is a source of its own. Tensors lie where `like` does."""
    indptr = shard.lists.indptr[a : b + 1] - shard.lists.indptr[a]
    start, stop = int(shard.lists.indptr[a]), int(shard.lists.indptr[b])
    rows, coef = shard.rows_of(a, b), taken(shard.weight_on(like.device), slice(start, stop))
    there = torch.from_numpy(np.repeat(rows.astype(np.int64), np.diff(indptr)))
    own = InLists.from_arrays(indptr, np.arange(stop - start), stop - start)
    lists = WeightedLists(own, None if of.reduce == "plain" else coef, of.scale, rows, edge=shard.edge[start:stop])
    sources = torch.from_numpy(shard.lists.indices[start:stop]).to(like.device)
    return _Edges(start, stop, sources), there.to(like.device), moved(coef, like.dtype), lists


@contextmanager
def _seeded(key: int, rank: int, source: int, piece: int, device: torch.device) -> Iterator[None]:
    """Context that seeds torch's generators, also that of the device, for one piece of one shard, alike both times that
    its messages are computed, and restores them."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index])
    before = [generator.get_state() for generator in generators]
    seed = torch_seed(int(draw_word(node_words(key, np.array([rank << 32 | source])), piece)[0]))
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, before):
            generator.set_state(state)


def parameters_used(of: UserMessage, h: Tensor, weight: Tensor | None) -> list[Tensor]:
    """Parameters that a message function uses without getting them as arguments, found by calling it for no edge."""
    if not torch.is_grad_enabled():
        return []
    message, known = of.function, {id(p) for p in of.params}
    inputs = [t[:0].detach().requires_grad_() for t in (h, h if of.own is None else of.own)]
    of_edges = [of_edge[:0].detach().requires_grad_(of_edge.requires_grad) for of_edge in present([of.edge])]
    given = [_cut(p) for p in of.params]
    known |= {id(p) for p in given} | {id(i) for i in (*inputs, *of_edges)}
    marker = torch.zeros((), requires_grad=True) * 1
    assert marker.grad_fn is not None
    first = marker.grad_fn._sequence_nr()
    state = torch.default_generator.get_state()
    x = message(*inputs, moved(taken(weight, slice(0)), h.dtype), *of_edges, *given)
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
                "the message function uses a tensor that was computed, with gradients, outside of it; expected only "
                "its arguments and "
                "parameters: pass that tensor in `params`"
            )
        todo += present(n for n, _ in node.next_functions)
    return list(found.values())
