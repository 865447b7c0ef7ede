"""Models under `torch.compile`: code between the calls of neighbourhoods is compiled for the shapes that occur.

Aggregations are kernels already, over lists that the compiler cannot trace, and dropout is computed from a key. It does
not trace these, and its graph breaks there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..memory.lazy_rows import LazyRows
from ..neighbourhood.base import Loops, Neighbourhood
from ..nn.compile_boundary import hide, untraced
from .base import Stack, layered

GRAPHS = 16
"""Graphs of one function for each layer, at most: constants and parameters, results with and without activation, are
graphs of their own."""


class Compiled(nn.Module):
    """A model that is compiled when it is first called, for any sizes of minibatches. Shares the model's parameters."""

    def __init__(self, module: nn.Module) -> None:
        """Raises the number of versions that torch keeps of a function, for the whole process.

        Args:
            module: see `models.base.as_model`.
        """
        super().__init__()
        hide()
        import torch._dynamo.config as limits

        limits.recompile_limit = max(limits.recompile_limit, GRAPHS * layered(module).num_layers)
        self._names_rows = isinstance(module, Stack)
        # Random numbers of torch's own operations stay those of the uncompiled module.
        self._run = torch.compile(module, dynamic=True, options={"fallback_random": True})

    def forward(self, neighbourhoods: Sequence[Neighbourhood], h: Tensor) -> Tensor:
        h = h.gathered() if isinstance(h, LazyRows) and not self._names_rows else h
        return self._run([Seen(neighbourhood) for neighbourhood in neighbourhoods], h)


class Seen:
    """A `Neighbourhood` as the compiler sees it: dynamic sizes, and calls that it does not trace."""

    def __init__(self, neighbourhood: Neighbourhood) -> None:
        """
        Args:
            neighbourhood: the wrapped one.
        """
        self.inner, self.names = neighbourhood, neighbourhood.names
        self.num_dst, self.num_src, self.num_edges, self.spans_ranks = (
            neighbourhood.num_dst,
            neighbourhood.num_src,
            neighbourhood.num_edges,
            neighbourhood.spans_ranks,
        )

    @property
    def degree(self) -> Tensor:
        return untraced(getattr, self.inner, "degree")

    @property
    def loops(self) -> Loops | None:
        return untraced(getattr, self.inner, "loops")


def _call(name: str) -> Callable[..., Any]:
    def call(self: Seen, *args: Any, **kwargs: Any) -> Any:
        return untraced(_answer, self.inner, name, args, kwargs)

    return call


def _answer(neighbourhood: Neighbourhood, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return getattr(neighbourhood, name)(*args, **kwargs)


for _name in ("sum", "mean", "mean_beside", "max", "attend", "attend_both", "attend_shared", "apply", "is_loop"):
    setattr(Seen, _name, _call(_name))
