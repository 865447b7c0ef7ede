"""What neighbourhoods share: calls check their arguments, and a subclass aggregates."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from ...storage.optional import moved, when_present
from ..kernels.aggregation.attention_args import AttentionRule
from .base import Message, Reduce
from .checks import (
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
)

Kind = Literal["each", "both", "shared"]
"""Attention: ``each``: rows of each head, and logits of destinations; ``both``: logits of both ends come from rows of
each head; ``shared``: all heads read the same rows."""


class UserMessage(NamedTuple):
    """A function of `Neighbourhood.apply`, with its other arguments but the rows."""

    function: Message
    params: Sequence[Tensor]
    reduce: Reduce
    edge: Tensor | None
    own: Tensor | None


class Factors(NamedTuple):
    """Arguments of `Neighbourhood.sum` beside the rows, in their dtype and on their device."""

    of_sources: Tensor | None = None
    """[num_src], constant."""
    own: Tensor | None = None
    """[num_dst]."""


BARE = Factors()
"""Rows are summed as they are."""


class CheckedNeighbourhood(ABC):
    """Base of neighbourhoods. See `Neighbourhood` for what each call computes; calls raise InputError for a wrong
    shape, dtype or device."""

    num_dst: int
    """Rows of the result."""
    num_src: int
    """Rows of `h`."""
    num_edges: int
    """Edges present."""
    spans_ranks: bool
    """See `EdgeCounts.spans_ranks`."""

    @abstractmethod
    def _sum(self, x: Tensor, factors: Factors) -> Tensor:
        """`sum` of [num_src, D]."""

    @abstractmethod
    def _mean(self, x: Tensor) -> Tensor:
        """`mean` of [num_src, D]."""

    @abstractmethod
    def _mean_beside(self, x: Tensor) -> Tensor:
        """`mean_beside`."""

    @abstractmethod
    def _max(self, x: Tensor) -> Tensor:
        """`max` of [num_src, D]."""

    @abstractmethod
    def _attend(self, kind: Kind, z: Tensor, a_src: Tensor, dst: Tensor, rule: AttentionRule) -> Tensor:
        """Attention of contiguous tensors; `dst` is `logit_dst`, or `a_dst`."""

    @abstractmethod
    def _applied(self, of: UserMessage, h: Tensor) -> Tensor:
        """A message of each edge, of its source's row of `h` and its destination's of `own`, else of `h`, reduced."""

    def sum(self, h: Tensor, factor: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        """[num_src, ...], [num_src], [num_dst] -> [num_dst, ...]."""
        x = as_matrix(h, self.num_src, "h")
        check_scale(factor, self.num_src, "factor")
        check_scale(own, self.num_dst, "own")
        factor = moved(when_present(Tensor.detach, factor), x.device, x.dtype)
        own = when_present(Tensor.contiguous, moved(own, x.device, x.dtype))
        return self._sum(x, Factors(factor, own)).reshape(self.num_dst, *h.shape[1:])

    def mean(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]."""
        return self._mean(as_matrix(h, self.num_src, "h")).reshape(self.num_dst, *h.shape[1:])

    def mean_beside(self, h: Tensor) -> Tensor:
        """[num_src, D] -> [num_dst, 2D]."""
        return self._mean_beside(as_matrix(h, self.num_src, "h"))

    def max(self, h: Tensor) -> Tensor:
        """[num_src, ...] -> [num_dst, ...]. Of equal values the first edge takes the gradient."""
        return self._max(as_matrix(h, self.num_src, "h")).reshape(self.num_dst, *h.shape[1:])

    def attend(self, z: Tensor, a_src: Tensor, logit_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """[num_src, H, D], [H, D], [num_dst, H] -> [num_dst, H, D].

        Dropout takes one key from torch's CPU generator, so `torch.manual_seed` governs it.
        """
        z, a_src, logit_dst = alike(z=z, a_src=a_src, logit_dst=logit_dst)
        check_attention(z, a_src, logit_dst, self.num_src, self.num_dst)
        return self._attend("each", z, a_src, logit_dst, attention_rule(slope, dropout))

    def attend_both(self, z: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0) -> Tensor:
        """[num_src, H, D], [H, D], [H, D] -> [num_dst, H, D]. Dropout as in `attend`."""
        z, a_src, a_dst = alike(z=z, a_src=a_src, a_dst=a_dst)
        check_both(z, a_src, a_dst, self.num_src)
        return self._attend("both", z, a_src, a_dst, attention_rule(slope, dropout))

    def attend_shared(
        self, h: Tensor, a_src: Tensor, a_dst: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        """[num_src, F], [H, F], [H, F] -> [num_dst, H, F]. Dropout as in `attend`."""
        h, a_src, a_dst = alike(h=h, a_src=a_src, a_dst=a_dst)
        check_shared(h, a_src, a_dst, self.num_src)
        return self._attend("shared", h, a_src, a_dst, attention_rule(slope, dropout))

    def apply(
        self,
        message: Message,
        h: Tensor,
        params: Sequence[Tensor] = (),
        reduce: Reduce = "sum",
        edge: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        """User-defined message function, reduced over in-edges: [num_src, ...] -> [num_dst, ...]."""
        check_reduce(reduce)
        check_edge(edge, self.num_edges)
        check_own(own, self.num_dst)
        as_matrix(h, self.num_src, "h")
        return self._applied(UserMessage(message, params, reduce, edge, own), h)
