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

import torch
from torch import Tensor

from ....storage.optional import when_present
from ...kernels.aggregation.attention_args import AttentionRule
from ..checked import BARE, Factors, Kind, Reduction, UserMessage
from .attention import Attend
from .layer import SequentialLayer
from .messages import Apply, Messages, parameters_used
from .sums import Maximum, Sum, Sums


class SequentialNeighbourhood(SequentialLayer):
    """Aggregation over the edges of one layer of a full batch. See `Neighbourhood` for what each call computes.

    Every rank makes the same calls in the same order, whatever rows it has. Sums are added up in the order in which
    ranks are visited, so results differ between numbers of ranks by rounding.
    """

    def _reduced(self, kind: Reduction, x: Tensor, factors: Factors = BARE) -> Tensor:
        if kind == "max":
            return Maximum.apply(x, self)
        scale = None if kind == "sum" else self.mean_scale(x.dtype)
        of_sources = when_present(Tensor.contiguous, factors.of_sources)
        return Sum.apply(x, factors.own, Sums(self, of_sources, scale, kind == "beside"))

    def _attend(self, kind: Kind, z: Tensor, a_src: Tensor, dst: Tensor, rule: AttentionRule) -> Tensor:
        """An online softmax over the ranks, of which only z travels, once for all heads."""
        return Attend.apply(z, a_src, z[: self.num_dst] @ dst.T if kind == "shared" else dst, (self, rule), kind)

    def _applied(self, of: UserMessage, h: Tensor) -> Tensor:
        """Messages are computed for some edges at a time, and again in the backward pass, so a function may be called
        any number of times and must depend on its arguments only: parameters that it holds (a module's, or in a
        closure) are found and get their gradients; random numbers that it draws from torch's generator are drawn alike
        both times, but depend on the partitioning.

        Raises:
            InputError: it uses a tensor that was computed with gradients outside of it; pass that in `params`.
        """
        h = h.contiguous()
        held = parameters_used(of, h, self.own.weight_on(h.device))
        scale = self.mean_scale(h.dtype) if of.reduce == "mean" else None
        # Read but not consumed: the next layer's random numbers must not depend on how neighbours are read.
        state = torch.default_generator.get_state()
        key = int(torch.randint(2**62, ()).item())
        torch.default_generator.set_state(state)
        messages = Messages(self, of.function, scale, of.reduce, key, len(of.params))
        return Apply.apply(h, of.edge, of.own, messages, *of.params, *held)
