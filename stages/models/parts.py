"""Convolutions and stacks in parts, for exact evaluation.

A convolution over the whole graph is done row by row but for its aggregate. Taken apart, what comes after the aggregate
of one layer and what comes before that of the next are computed together, for a block of rows that is still in the
processor's cache: hidden rows need no memory where a narrower product of theirs is all that is read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn
from torch.nn.modules import module as of_all

from ...storage.optional import when_present
from ..neighbourhood.base import EdgeCounts
from ..neighbourhood.destinations import Aggregate, Destinations


@dataclass(frozen=True)
class LayerCounts:
    """Sizes of one layer over the whole graph, or over the part of it that some nodes depend on."""

    num_src: int
    num_dst: int
    num_edges: int
    spans_ranks: bool = False


@dataclass(frozen=True)
class ConvParts:
    """One convolution: ``combine(aggregate(project(h)), activation)``."""

    aggregate: Callable[[Destinations], Aggregate]
    """[n, A] for n destinations."""
    combine: Callable[[Tensor, str], Tensor]
    """[n, A], activation -> [n, width_out]."""
    project: Callable[[Tensor], Tensor] | None = None
    """[m, width_in] -> [m, P], the rows that are aggregated; None: those of the layer before, as they are."""
    logits: Callable[[Tensor], Tensor] | None = None
    """[m, width_in] -> [m, 2H], see `LayerRows.logits`."""

    @property
    def reads_rows(self) -> bool:
        """True if the rows of the layer before are aggregated as they are, and have no logits."""
        return self.project is None and self.logits is None

    def entered(self, h: Tensor) -> tuple[Tensor, Tensor | None]:
        """The rows that are aggregated, and their logits if they have any."""
        return h if self.project is None else self.project(h), when_present(lambda logits: logits(h), self.logits)


_TOGETHER = ("parts", "forward", "aggregate", "combine", "weight")
"""Names that belong together: a change of one of the others is also a change of the first."""


@runtime_checkable
class InParts(Protocol):
    """A convolution that can be taken apart."""

    def parts(self, counts: EdgeCounts, degree: Tensor) -> ConvParts:
        """The parts, in the order of product and aggregate that is cheaper.

        Args:
            counts: sizes of this layer.
            degree: [V], see `Destinations.degree`.
        """


def can_be_taken_apart(conv: nn.Module) -> bool:
    """True if `conv` has parts, and no subclass, nor this object, has changed what they are parts of."""
    # pyrefly: ignore[unsafe-overlap]
    if not isinstance(conv, InParts):
        return False
    definitions = [vars(conv), *(vars(c) for c in type(conv).__mro__)]
    places = {name: [place for place, d in enumerate(definitions) if name in d] for name in _TOGETHER}
    return all(places["parts"][0] <= found[0] for found in places.values() if found)


def has_hooks(module: nn.Module) -> bool:
    """True if calls of the module, or of one below it, are watched or changed by hooks."""
    if of_all._global_forward_hooks or of_all._global_forward_pre_hooks:
        return True
    return any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
