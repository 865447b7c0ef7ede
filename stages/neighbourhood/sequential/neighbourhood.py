"""A layer's neighbours on other ranks, visited one rank after the other (SAR; Mostafa, MLSys 2022).

The rows of a rank are fetched, aggregated and freed before those of the next come, so a layer takes memory for two
ranks' rows at a time however many there are. What the backward pass needs of them again depends on the call:

============================  =================================================  =======================================
call                          backward                                           rows of width D sent, for B remote rows
============================  =================================================  =======================================
sum, mean, mean_beside, max   gradients are sent back; no row is needed again    B D forward, B D back
attend, apply                 rows are fetched again, coefficients and messages  B D forward, 2 B D back
                              computed again; ``keep`` keeps the rows            (B D back)
============================  =================================================  =======================================

If the input needs no gradient, nothing is sent back.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..base import Message, Reduce
from ..checks import (
    alike,
    as_matrix,
    attention_rule,
    check_attention,
    check_both,
    check_edge,
    check_own,
    check_reduce,
    check_scale,
    check_shared,
    full_precision,
)
from .attention import Attend
from .layer import SequentialLayer
from .messages import Apply, Messages, parameters_used
from .sums import Maximum, Sum


class SequentialNeighbourhood(SequentialLayer):
    """Aggregation over the edges of one layer of a full batch. See `Neighbourhood` for what each call computes.

    Every rank makes the same calls in the same order, whatever rows it has. Sums are added up in the order in which
    ranks are visited, so results differ between numbers of ranks by rounding.
    """

    def sum(self, h: Tensor, factor: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        """[num_src, ...], [num_src], [num_dst] -> [num_dst, ...]. Raises InputError for a wrong shape, dtype or device,
        as do the other calls."""
        x = as_matrix(h, self.num_src, "h")
        check_scale(factor, self.num_src, "factor")
        check_scale(own, self.num_dst, "own")
        factor = None if factor is None else factor.detach().to(x.dtype).contiguous()
        own = None if own is None else own.to(x.dtype).contiguous()
        return Sum.apply(x, own, self, factor, None, False).reshape(self.num_dst, *h.shape[1:])

    def mean(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]."""
        x = as_matrix(h, self.num_src, "h")
        return Sum.apply(x, None, self, None, self.mean_scale(x.dtype), False).reshape(self.num_dst, *h.shape[1:])

    def mean_beside(self, h: Tensor) -> Tensor:
        """[num_src, D] -> [num_dst, 2D]."""
        x = as_matrix(h, self.num_src, "h")
        return Sum.apply(x, None, self, None, self.mean_scale(x.dtype), True)

    def max(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]. Of equal values the first edge in the order of the whole graph takes the
        gradient."""
        x = as_matrix(h, self.num_src, "h")
        return Maximum.apply(x, self).reshape(self.num_dst, *h.shape[1:])

    def attend(self, z: Tensor, a_src: Tensor, logit_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """[num_src, H, D], [H, D], [num_dst, H] -> [num_dst, H, D]: an online softmax over the ranks, of which only z
        travels."""
        z, a_src, logit_dst = full_precision(z), full_precision(a_src), full_precision(logit_dst)
        alike(z=z, a_src=a_src, logit_dst=logit_dst)
        check_attention(z, a_src, logit_dst, self.num_src, self.num_dst)
        rule = attention_rule(slope, dropout)
        return Attend.apply(z.contiguous(), a_src.contiguous(), logit_dst.contiguous(), self, rule, "each")

    def attend_both(self, z: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """[num_src, H, D], [H, D], [H, D] -> [num_dst, H, D]; travels as in `attend`."""
        z, a_src, a_dst = full_precision(z), full_precision(a_src), full_precision(a_dst)
        alike(z=z, a_src=a_src, a_dst=a_dst)
        check_both(z, a_src, a_dst, self.num_src)
        rule = attention_rule(slope, dropout)
        return Attend.apply(z.contiguous(), a_src.contiguous(), a_dst.contiguous(), self, rule, "both")

    def attend_shared(
        self, h: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        """[num_src, F], [H, F], [H, F] -> [num_dst, H, F]; h travels once for all heads."""
        h, a_src, a_dst = full_precision(h), full_precision(a_src), full_precision(a_dst)
        alike(h=h, a_src=a_src, a_dst=a_dst)
        check_shared(h, a_src, a_dst, self.num_src)
        logit_dst = h[: self.num_dst] @ a_dst.T
        rule = attention_rule(slope, dropout)
        return Attend.apply(h.contiguous(), a_src.contiguous(), logit_dst.contiguous(), self, rule, "shared")

    def apply(
        self,
        message: Message,
        h: Tensor,
        params: Sequence[Tensor] = (),
        reduce: Reduce = "sum",
        edge: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        """User-defined message function, reduced over in-edges: [num_src, ...] -> [num_dst, ...].

        Messages are computed for some edges at a time, and again in the backward pass, so a function may be called any
        number of times and must depend on its arguments only: parameters that it holds (a module's, or in a closure)
        are found and get their gradients; random numbers that it draws from torch's generator are drawn alike both
        times, but depend on the partitioning.

        Raises:
            InputError: it uses a tensor that was computed with gradients outside of it; pass that in `params`.
        """
        check_reduce(reduce)
        check_edge(edge, self.num_edges)
        check_own(own, self.num_dst)
        as_matrix(h, self.num_src, "h")
        h = h.contiguous()
        held = parameters_used(message, h, self.own.weight_on(h.device), params, edge, own)
        scale = self.mean_scale(h.dtype) if reduce == "mean" else None
        # Read but not consumed: the next layer's random numbers must not depend on how neighbours are read.
        state = torch.default_generator.get_state()
        key = int(torch.randint(2**62, ()).item())
        torch.default_generator.set_state(state)
        return Apply.apply(h, edge, own, self, Messages(message, scale, reduce, key, len(params)), *params, *held)
