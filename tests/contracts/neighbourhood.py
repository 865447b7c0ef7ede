"""Contract of every neighbourhood: the same values and gradients as dense autograd over the edges, in float64."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from millrace.stages.neighbourhood.base import Neighbourhood, destinations
from millrace.storage.graph import Graph, from_edges
from millrace.storage.minibatch import Block

Tensors = Mapping[str, Tensor]
Call = Callable[[Neighbourhood, Tensors, Tensors], Tensor]
"""``call(neighbourhood, rows, params) -> [num_dst, ...]``; rows hold `num_src` rows each."""
TOLERANCE = 1e-10
# Several classes run one test: each example is drawn anew, so the executors cannot disagree.
CHECKED = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.differing_executors])


@dataclass(frozen=True)
class Edges:
    """Neighbour lists spelt out for the oracles: for each row its sources, and the weight of each in a sum."""

    sources: list[list[int]]
    coef: list[list[float]]

    @classmethod
    def of(cls, indptr: np.ndarray, indices: np.ndarray, weight: np.ndarray | None, degree: Sequence[float]) -> "Edges":
        sources, coef = [], []
        for v, (a, b) in enumerate(zip(indptr[:-1], indptr[1:])):
            sources.append([int(u) for u in indices[a:b]])
            coef.append(
                [
                    float(degree[v]) / (b - a) if weight is None else float(w)
                    for w in (indices if weight is None else weight)[a:b]
                ]
            )
        return cls(sources, coef)

    @classmethod
    def of_graph(cls, graph: Graph) -> "Edges":
        return cls.of(graph.indptr, graph.indices, graph.edge_weight, graph.in_degree.tolist())


def _stack(rows: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(rows) if rows else like.new_zeros(0, *like.shape[1:])


def dense_sum(edges: Edges, h: Tensor) -> Tensor:
    return _stack(
        [sum((c * h[u] for u, c in zip(us, cs)), torch.zeros_like(h[0])) for us, cs in zip(edges.sources, edges.coef)],
        h,
    )


def dense_mean(edges: Edges, h: Tensor) -> Tensor:
    total = torch.tensor([sum(c) for c in edges.coef], dtype=h.dtype)
    factor = torch.where(total > 0, 1 / total, 0.0)
    return dense_sum(edges, h) * factor.reshape(-1, *[1] * (h.ndim - 1))


def dense_max(edges: Edges, h: Tensor) -> Tensor:
    return _stack([h[us].amax(0) if us else torch.zeros_like(h[0]) for us in edges.sources], h)


def dense_attend(
    edges: Edges, z: Tensor, a_src: Tensor, logit_dst: Tensor, slope: float, factors: Tensor | None = None
) -> Tensor:
    """Each row's own edge takes the place of its self loops. `factors` [e + n, H]: dropout's factor for each
    coefficient, the rows' own edges last."""
    rows, first, count = [], 0, sum(map(len, edges.sources))
    for v, us in enumerate(edges.sources):
        others = [i for i, u in enumerate(us) if u != v]
        near = z[[*(us[i] for i in others), v]]
        a = torch.softmax(torch.nn.functional.leaky_relu((near * a_src).sum(-1) + logit_dst[v], slope), 0)
        if factors is not None:
            a = a * factors[[*(first + i for i in others), count + v]]
        rows.append((a[..., None] * near).sum(0))
        first += len(us)
    return _stack(rows, z)


def assert_close(got: Tensor, want: Tensor, tolerance: float = TOLERANCE) -> None:
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Few nodes and many special cases: no edges, one node, self loops, multi-edges, isolated nodes, weights of
    zero."""
    n = draw(st.integers(1, 7))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=24))
    src, dst = np.array(pairs, np.int64).reshape(-1, 2).T
    weight = draw(
        st.none() | st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=len(pairs), max_size=len(pairs))
    )
    return from_edges(src, dst, n, edge_weight=weight)


def message(h_src: Tensor, h_dst: Tensor, weight: Tensor | None, p: Tensor) -> Tensor:
    """A message that is linear in none of its arguments."""
    m = torch.tanh(h_src * p) * (1 + h_dst)
    return m if weight is None else m * (1 + weight.reshape(-1, *[1] * (m.ndim - 1)))


class NeighbourhoodTests:
    """Subclass as ``TestX`` and define `run`."""

    def run(
        self, graph: Graph, call: Call, rows: Tensors, params: Tensors, grad: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Evaluate `call` over the whole graph, however it is split.

        Returns: [V, ...] results in the order of nodes; the gradients of ``(result * grad).sum()`` by the names in rows
        and params.
        """
        raise TypeError(f"{type(self).__name__} does not define run")

    def compare(
        self, graph: Graph, call: Call, oracle: Callable[[Edges, Tensors], Tensor], rows: Tensors, params: Tensors
    ) -> None:
        leaves = {k: v.clone().requires_grad_() for k, v in {**rows, **params}.items()}
        want = oracle(Edges.of_graph(graph), leaves)
        grad = torch.randn(want.shape, dtype=want.dtype)
        # `+ 0 * x` ties inputs that no edge uses into the graph.
        wanted = torch.autograd.grad(
            (want * grad).sum() + sum(0 * x.sum() for x in leaves.values()), list(leaves.values())
        )
        got, grads = self.run(graph, call, rows, params, grad)
        assert_close(got, want.detach())
        assert grads.keys() == leaves.keys()
        for name, x in zip(leaves, wanted):
            assert_close(grads[name], x)

    @pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
    @pytest.mark.parametrize(("name", "oracle"), [("sum", dense_sum), ("mean", dense_mean), ("max", dense_max)])
    @given(graph=graphs())
    @CHECKED
    def test_reductions(
        self, name: str, oracle: Callable[[Edges, Tensor], Tensor], shape: tuple[int, ...], graph: Graph
    ) -> None:
        rows = {"h": torch.randn(graph.num_nodes, *shape, dtype=torch.float64)}
        self.compare(
            graph,
            lambda neighbourhood, r, p: getattr(neighbourhood, name)(r["h"]),
            lambda e, x: oracle(e, x["h"]),
            rows,
            {},
        )

    @given(graph=graphs(), heads=st.integers(1, 3), size=st.sampled_from([0.5, 30.0]))
    @CHECKED
    def test_attend(self, graph: Graph, heads: int, size: float) -> None:
        n = graph.num_nodes
        rows = {
            "z": torch.randn(n, heads, 4, dtype=torch.float64),
            "l": size * torch.randn(n, heads, dtype=torch.float64),
        }
        params = {"a": size * torch.randn(heads, 4, dtype=torch.float64)}
        self.compare(
            graph,
            lambda neighbourhood, r, p: neighbourhood.attend(
                r["z"], p["a"], destinations(neighbourhood, r["l"]), slope=0.1
            ),
            lambda e, x: dense_attend(e, x["z"], x["a"], x["l"], 0.1),
            rows,
            params,
        )

    @given(graph=graphs(), heads=st.integers(1, 3))
    @CHECKED
    def test_attend_both(self, graph: Graph, heads: int) -> None:
        rows = {"z": torch.randn(graph.num_nodes, heads, 4, dtype=torch.float64)}
        params = {name: torch.randn(heads, 4, dtype=torch.float64) for name in ("a", "b")}

        def dense(edges: Edges, x: Tensors) -> Tensor:
            return dense_attend(edges, x["z"], x["a"], (x["z"] * x["b"]).sum(-1), 0.1)

        self.compare(
            graph,
            lambda neighbourhood, r, p: neighbourhood.attend_both(r["z"], p["a"], p["b"], slope=0.1),
            dense,
            rows,
            params,
        )

    @pytest.mark.parametrize(("reduce", "oracle"), [("sum", dense_sum), ("mean", dense_mean), ("max", dense_max)])
    @given(graph=graphs())
    @CHECKED
    def test_apply(self, reduce: str, oracle: Callable[[Edges, Tensor], Tensor], graph: Graph) -> None:
        def per_edge(edges: Edges, x: Tensors) -> Tensor:
            dst = [v for v, us in enumerate(edges.sources) for _ in us]
            src = [u for us in edges.sources for u in us]
            weight = None if graph.edge_weight is None else torch.from_numpy(graph.edge_weight).double()
            messages = message(x["h"][src], x["h"][dst], weight, x["p"])
            # Every edge becomes a source row of its own.
            ends = np.cumsum([0, *map(len, edges.sources)])
            if not len(messages):
                return torch.zeros(len(edges.sources), 3, dtype=torch.float64)
            return oracle(Edges([list(range(a, b)) for a, b in zip(ends, ends[1:])], edges.coef), messages)

        rows = {"h": torch.randn(graph.num_nodes, 3, dtype=torch.float64)}
        params = {"p": torch.randn(3, dtype=torch.float64)}
        self.compare(
            graph,
            lambda neighbourhood, r, p: neighbourhood.apply(message, r["h"], [p["p"]], reduce),
            per_edge,
            rows,
            params,
        )

    def test_degree_is_of_the_whole_graph(self) -> None:
        for weight in (None, [0.5, 2.0, 1.0]):
            graph = from_edges([0, 1, 2], [1, 2, 2], 4, edge_weight=weight)
            want = torch.tensor([0.0, 1, 2, 0] if weight is None else [0, 0.5, 3, 0], dtype=torch.float64)
            rows = {"h": torch.zeros(4, dtype=torch.float64)}
            got, _ = self.run(
                graph,
                lambda neighbourhood, r, p: destinations(neighbourhood, neighbourhood.degree + r["h"]),
                rows,
                {},
                torch.ones(4, dtype=torch.float64),
            )
            assert_close(got, want)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Block, Tensor]:
    """A sampled block with fewer destinations than sources, perhaps none, and degrees at least as large as the sampled
    ones."""
    n, extra = draw(st.integers(0, 5)), draw(st.integers(0, 4))
    S = n + extra
    kept = draw(st.lists(st.integers(0, 5 if S else 0), min_size=n, max_size=n))
    indptr = np.cumsum([0, *kept]).astype(draw(st.sampled_from([np.int32, np.int64])))
    e = int(indptr[-1])
    indices = np.array(draw(st.lists(st.integers(0, max(S - 1, 0)), min_size=e, max_size=e)), np.int32)
    weight = draw(st.none() | st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=e, max_size=e))
    more = np.array(draw(st.lists(st.integers(0, 3), min_size=S, max_size=S)), np.float64)
    more[:n] += kept
    block = Block(n, np.arange(S) + 100, indptr, indices, None if weight is None else np.array(weight, np.float32))
    return block.check(), torch.from_numpy(more)
