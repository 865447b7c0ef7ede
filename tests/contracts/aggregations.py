"""Every call that a layer may make to its neighbourhood, with its result by dense autograd and the width of its
rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from millrace.stages.neighbourhood.base import Neighbourhood, destinations
from millrace.storage.graph import Graph
from millrace.tests.contracts.neighbourhood import (
    Edges,
    Tensors,
    dense_attend,
    dense_max,
    dense_mean,
    dense_sum,
    message,
)
from millrace.tests.contracts.whole_graph import whole_graph

H, D = 2, 3
DENSE = {"sum": dense_sum, "mean": dense_mean, "max": dense_max}
F64 = torch.float64


@dataclass(frozen=True)
class Aggregation:
    """A call of a neighbourhood."""

    call: Callable[[Neighbourhood, Tensors], Tensor]
    """``call(neighbourhood, x)``; x holds `num_src` rows each of `rows`, and all of `params`."""
    dense: Callable[[Graph, Tensors], Tensor]
    """The same result for all nodes of a graph, from all their rows."""
    rows: dict[str, tuple[int, ...]]
    """Shapes of a row."""
    params: dict[str, tuple[int, ...]] = field(default_factory=dict)
    width: int = D
    """Numbers sent for a row."""
    again: bool = False
    """True if the backward pass needs the rows of other ranks."""
    unread: bool = False
    """True if the result depends on no row: then autograd runs a backward pass only in sequential modes."""
    ties: bool = False
    """Draw small integers, so that values tie."""
    constants: tuple[str, ...] = ()
    """Names of rows without gradients."""

    def inputs(self, num_nodes: int, seed: int) -> dict[str, Tensor]:
        """Leaves for all nodes."""
        g = torch.Generator().manual_seed(seed)

        def draw(shape: tuple[int, ...]) -> Tensor:
            drawn = (
                torch.randint(-1, 2, shape, generator=g).double()
                if self.ties
                else torch.randn(shape, dtype=F64, generator=g)
            )
            return drawn

        rows = {name: draw((num_nodes, *shape)) for name, shape in self.rows.items()}
        return {**rows, **{name: draw(shape) for name, shape in self.params.items()}}

    def leaves(self, inputs: Tensors) -> dict[str, Tensor]:
        """Copies that take gradients, except the constants."""
        return {name: x.detach().clone().requires_grad_(name not in self.constants) for name, x in inputs.items()}


def first_max(graph: Graph, h: Tensor) -> Tensor:
    """Maxima whose gradients go to the first edge that attains them."""
    rows = []
    for v in range(graph.num_nodes):
        near = h[torch.from_numpy(graph.indices[graph.indptr[v] : graph.indptr[v + 1]].astype(np.int64))].reshape(
            -1, h[0].numel()
        )
        # NumPy's argmax is the first; torch's is any.
        at = np.argmax(near.detach().numpy(), axis=0) if len(near) else []
        rows.append(
            torch.stack([near[r, k] for k, r in enumerate(at)]).view(h.shape[1:])
            if len(near)
            else torch.zeros_like(h[0])
        )
    return torch.stack(rows)


def per_edge(graph: Graph, reduce: str, make: Callable[[Tensor, Tensor, Tensor | None], Tensor], h: Tensor) -> Tensor:
    """Messages of all edges, reduced: every edge becomes a source row of its own."""
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    weight = None if graph.edge_weight is None else torch.from_numpy(graph.edge_weight).double()
    messages = make(h[torch.from_numpy(graph.indices.astype(np.int64))], h[torch.from_numpy(dst)], weight)
    if not len(messages):
        return torch.zeros(graph.num_nodes, *messages.shape[1:], dtype=h.dtype)
    own = [list(range(a, b)) for a, b in zip(graph.indptr, graph.indptr[1:])]
    if reduce == "max":
        return first_max(Graph(graph.indptr, np.arange(graph.num_edges)), messages)
    return DENSE[reduce](Edges(own, Edges.of_graph(graph).coef), messages)


def _dense(name: str) -> Callable[[Graph, Tensors], Tensor]:
    return lambda graph, x: DENSE[name](Edges.of_graph(graph), x["h"])


def _reduction(name: str, shape: tuple[int, ...]) -> Aggregation:
    return Aggregation(
        lambda neighbourhood, x: getattr(neighbourhood, name)(x["h"]),
        _dense(name),
        {"h": shape},
        width=int(np.prod(shape)),
    )


def _scaled(graph: Graph, x: Tensors) -> Tensor:
    return dense_sum(Edges.of_graph(graph), x["h"] * x["factor"][:, None]) + x["own"][:, None] * x["h"]


def _attention(dropout: float) -> Aggregation:
    def dense(graph: Graph, x: Tensors) -> Tensor:
        if dropout:
            # The same coefficients are dropped as on the uncut graph, which other tests compare with the definition.
            return whole_graph(graph, F64).attend(x["z"], x["a"], x["l"], 0.1, dropout)
        return dense_attend(Edges.of_graph(graph), x["z"], x["a"], x["l"], 0.1)

    return Aggregation(
        lambda neighbourhood, x: neighbourhood.attend(
            x["z"], x["a"], destinations(neighbourhood, x["l"]), 0.1, dropout
        ),
        dense,
        {"z": (H, D), "l": (H,)},
        {"a": (H, D)},
        width=H * D,
        again=True,
    )


def _both(dropout: float) -> Aggregation:
    def dense(graph: Graph, x: Tensors) -> Tensor:
        return _attention(dropout).dense(graph, {"z": x["z"], "a": x["a"], "l": (x["z"] * x["b"]).sum(-1)})

    return Aggregation(
        lambda neighbourhood, x: neighbourhood.attend_both(x["z"], x["a"], x["b"], 0.1, dropout),
        dense,
        {"z": (H, D)},
        {"a": (H, D), "b": (H, D)},
        width=H * D,
        again=True,
    )


def _shared(dropout: float, constants: tuple[str, ...] = ()) -> Aggregation:
    def dense(graph: Graph, x: Tensors) -> Tensor:
        z = x["h"][:, None].expand(-1, H, -1)
        return _attention(dropout).dense(graph, {"z": z, "a": x["a"], "l": x["h"] @ x["b"].T})

    return Aggregation(
        lambda neighbourhood, x: neighbourhood.attend_shared(x["h"], x["a"], x["b"], 0.1, dropout),
        dense,
        {"h": (D,)},
        {"a": (H, D), "b": (H, D)},
        again=True,
        constants=constants,
    )


def _message(
    reduce: Literal["sum", "mean", "max"], make: Callable[..., Tensor], passed: bool, **kwargs: object
) -> Aggregation:
    """``make(h_src, h_dst, weight, p)``, with p passed in `params` or captured."""

    def call(neighbourhood: Neighbourhood, x: Tensors) -> Tensor:
        if passed:
            return neighbourhood.apply(make, x["h"], [x["p"]], reduce)
        return neighbourhood.apply(lambda s, d, w: make(s, d, w, x["p"]), x["h"], (), reduce)

    def dense(graph: Graph, x: Tensors) -> Tensor:
        return per_edge(graph, reduce, lambda s, d, w: make(s, d, w, x["p"]), x["h"])

    return Aggregation(call, dense, **{"rows": {"h": (D,)}, "params": {"p": (D,)}, "again": True, **kwargs})


class Edgewise(nn.Module):
    """A message that is a module, with a parameter that it does not use."""

    def __init__(self, p: Tensor) -> None:
        super().__init__()
        # Not copies: the gradients are those of the test's own tensors.
        self._parameters["p"], self._parameters["idle"] = p, nn.Parameter(torch.ones(2, dtype=F64))

    def forward(self, h_src: Tensor, h_dst: Tensor, weight: Tensor | None) -> Tensor:
        return message(h_src, h_dst, weight, self._parameters["p"])


def _tied_dense(graph: Graph, x: Tensors) -> Tensor:
    return per_edge(graph, "sum", lambda s, d, w: message(s, d, w, x["p"]), x["h"] * x["p"])


CALLS: dict[str, Aggregation] = {
    "sum": _reduction("sum", (D,)),
    "sum of numbers": _reduction("sum", ()),
    "sum of matrices": _reduction("sum", (2, 2)),
    "mean": _reduction("mean", (D,)),
    "max": _reduction("max", (D,)),
    "max with ties": Aggregation(
        lambda neighbourhood, x: neighbourhood.max(x["h"]),
        lambda graph, x: first_max(graph, x["h"]),
        {"h": (D,)},
        ties=True,
    ),
    "mean_beside": Aggregation(
        lambda neighbourhood, x: neighbourhood.mean_beside(x["h"]),
        lambda graph, x: torch.cat([_dense("mean")(graph, x), x["h"]], 1),
        {"h": (D,)},
    ),
    "sum with factor and own": Aggregation(
        lambda neighbourhood, x: neighbourhood.sum(
            x["h"], factor=x["factor"], own=destinations(neighbourhood, x["own"])
        ),
        _scaled,
        {"h": (D,), "factor": (), "own": ()},
        constants=("factor",),
    ),
    "sum of constants, with factor and own": Aggregation(
        lambda neighbourhood, x: neighbourhood.sum(
            x["h"], factor=x["factor"], own=destinations(neighbourhood, x["own"])
        ),
        _scaled,
        {"h": (D,), "factor": (), "own": ()},
        constants=("factor", "h"),
    ),
    "attend": _attention(0.0),
    "attend with dropout": _attention(0.4),
    "attend_both": _both(0.0),
    "attend_both with dropout": _both(0.4),
    "attend_shared": _shared(0.0),
    "attend_shared with dropout": _shared(0.4),
    "attend_shared of constants": _shared(0.3, ("h",)),
    "apply, sum": _message("sum", message, passed=True),
    "apply, mean": _message("mean", message, passed=True),
    "apply, max": _message("max", message, passed=True),
    "apply, max with ties": _message("max", lambda s, d, w, p: s * p + d, passed=True, ties=True),
    "apply, a captured leaf": _message("sum", message, passed=False),
    "apply, a parameter that was computed": Aggregation(
        lambda neighbourhood, x: neighbourhood.apply(message, x["h"], [x["p"].exp()], "mean"),
        lambda graph, x: per_edge(graph, "mean", lambda s, d, w: message(s, d, w, x["p"].exp()), x["h"]),
        {"h": (D,)},
        {"p": (D,)},
        again=True,
    ),
    "apply, a module": Aggregation(
        lambda neighbourhood, x: neighbourhood.apply(Edgewise(x["p"]), x["h"]),
        lambda graph, x: per_edge(graph, "sum", lambda s, d, w: message(s, d, w, x["p"]), x["h"]),
        {"h": (D,)},
        {"p": (D,)},
        again=True,
    ),
    "apply, a parameter passed and captured": Aggregation(
        lambda neighbourhood, x: neighbourhood.apply(lambda s, d, w, p: message(s, d, w, p) * x["p"], x["h"], [x["p"]]),
        lambda graph, x: per_edge(graph, "sum", lambda s, d, w: message(s, d, w, x["p"]) * x["p"], x["h"]),
        {"h": (D,)},
        {"p": (D,)},
        again=True,
    ),
    "apply, a parameter that made the rows too": Aggregation(
        lambda neighbourhood, x: neighbourhood.apply(lambda s, d, w: message(s, d, w, x["p"]), x["h"] * x["p"]),
        _tied_dense,
        {"h": (D,)},
        {"p": (D,)},
        again=True,
    ),
    "apply, not its source": _message("mean", lambda s, d, w, p: d * p, passed=True),
    "apply, not its destination": _message("sum", lambda s, d, w, p: s.sin(), passed=True),
    "apply, only its parameter": _message("sum", lambda s, d, w, p: p.expand(len(s), -1), passed=False, unread=True),
    "apply, nothing at all": _message("sum", lambda s, d, w, p: s.new_ones(len(s), 2), passed=True, unread=True),
    "apply, numbers": _message("sum", lambda s, d, w, p: (s * d * p).sum(1), passed=True),
    "apply, matrices of constants": _message(
        "sum", lambda s, d, w, p: s * d[:, :1] * p, passed=True, rows={"h": (2, D)}, width=2 * D, constants=("h",)
    ),
}
