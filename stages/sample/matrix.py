"""Samplers as sparse matrices and three callbacks: select, norm, extract.

The skeleton of Tripathy, Yelick, Buluc, MLSys 2024; the minibatches of a bulk run side by side in threads, or together
on a GPU:

    Q = select(seeds)                                     a selector, or any small matrix with V columns
    for s in draws:
        P = norm(Q A)                                     compiled Gustavson; values are whole numbers
        S = up to s entries of each row of P              compiled; in proportion to the values
        Q = advance(all Q so far, S)                      by default S
    extract(all Q and S)                                  nodes, and edges between them

The backends ``cpu``, ``cuda`` and ``matrix`` draw the same bits: a sampler has no kernel of its own. On a GPU,
products, draws and extraction run there; callbacks, which are NumPy, on the host. Over block rows, the rows that
products need travel (`placement.row_products`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ...storage.array_kinds import IntArray, WordArray
from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.minibatch import Bulk, MiniBatch
from ..assignment import BulkRequest
from ..kernels import sampling_backend
from ..kernels.runtime.threads import parallel, spans_of_threads
from ..kernels.sampling.edge_weights import scaled
from ..kernels.sampling.numbering import DenseNumbering
from ..kernels.sampling.samples import EdgeList, NeighborSample, check_edges
from ..kernels.sampling.sparse import Sparse
from ..placement.row_owners import Owners
from ..placement.row_products import HashedNumbering, RowProducts
from ..random import branches
from .base import minibatch_of

Words = WordArray


@dataclass(frozen=True)
class Context:
    """Inputs of callbacks: the graph, its matrix, the products, and random numbers of one minibatch."""

    graph: Graph
    A: Sparse
    """[V, V], row v the in-neighbours of v; see `sparse.adjacency`."""
    kernel: Any
    """`cpu.matrix`, `cuda.matrix` or `matrix.products`: `multiply`, `choose`, `induced`."""
    keys: Words
    """uint64, one stream for each draw, and one more for `extract`."""
    known: DenseNumbering | HashedNumbering
    """Nodes of the minibatch in their order, at first the seeds. `add` appends those that are new, ascending, and
    returns them; `positions` says where nodes are."""
    keep_positions: bool = False
    """True if edges keep their positions in the graph's edge arrays."""

    def multiply(self, Q: Sparse, A: Sparse | None = None) -> Sparse:
        """Q A, or the product with another matrix of V columns."""
        return self.kernel.multiply(Q, self.A if A is None else A, self.graph.num_nodes)

    def choose(self, P: Sparse, s: int, words: Words, *, replace: bool = False) -> Sparse:
        """Up to s entries of each row; -1: all."""
        return self.kernel.choose(P, s, words, replace=replace)

    def induced(self, found: IntArray, layers: int) -> NeighborSample:
        """All edges between the seeds and found nodes, for each of so many layers."""
        seeds = len(self.known.nodes)
        self.known.add(found)
        nodes = self.known.nodes
        return NeighborSample(nodes, (seeds, *[len(nodes)] * layers), (self._edges(),))

    def _edges(self) -> EdgeList:
        """All edges between the known nodes."""
        return self.kernel.induced(self.graph, self.known, self.keep_positions)


@dataclass(frozen=True)
class RemoteContext(Context):
    """Inputs of callbacks over block rows: `graph` has the numbers of nodes and edges and in-degrees only, and `A`
    nothing but its products."""

    products: RowProducts = field(kw_only=True)

    def multiply(self, Q: Sparse, A: Sparse | None = None) -> Sparse:
        """See `Context.multiply`. Waits for the rows."""
        if A is None or A is self.A:
            return self.products.multiply(Q, self.kernel)
        return super().multiply(Q, A)

    def _edges(self) -> EdgeList:
        return self.products.edges(self.known.nodes)


@dataclass(frozen=True)
class MatrixSampler(ABC):
    """Base of samplers written as products of sparse matrices. Subclasses are frozen dataclasses with a `name`."""

    edge_ids: bool = field(default=False, kw_only=True)
    """Keep the positions of each block's edges in the graph's edge arrays."""
    name: ClassVar[str]
    needs_topology_there: ClassVar[bool] = True
    rows_travel: ClassVar[bool] = True
    """Over block rows, the rank that draws fetches the rows; their owners draw nothing."""
    replace: ClassVar[bool] = False
    """Draw independently."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if callable(getattr(cls, "words", None)):
            # Nobody calls it, and the samples would be others.
            raise InputError(f"{cls.__name__} overrides words, which is row_streams now; rename the method")

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """L."""

    @property
    @abstractmethod
    def draws(self) -> Sequence[int]:
        """Number of entries to draw from each row of P, for each product; -1 takes the whole P, with its values."""

    def select(self, seeds: IntArray, c: Context) -> Sparse:
        """Q of the first product: by default one row for each seed, with a single 1."""
        return Sparse.select(seeds)

    def norm(self, P: Sparse, c: Context) -> Sparse:
        """P with the weights by which entries are drawn; by default P itself."""
        return P

    def row_streams(self, Q: Sparse, key: int, c: Context) -> Words:
        """uint64, the random stream of each row; by default the row's number chooses it."""
        return branches(key, np.arange(Q.num_rows))

    def advance(self, selectors: Sequence[Sparse], S: Sparse, c: Context) -> Sparse:
        """Q of the next product, made from all earlier Q and the drawn matrix S; by default S."""
        return S

    @abstractmethod
    def extract(
        self, seeds: IntArray, selectors: Sequence[Sparse], drawn: Sequence[Sparse], c: Context
    ) -> NeighborSample:
        """Nodes and edges of the minibatch, from the Q and S of all products."""

    def record(self) -> dict[str, Any]:
        # At its default, `edge_ids` is left out, as other samplers do.
        options = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items() if k != "edge_ids" or v}
        return {"sampler": self.name, **options}

    def check(self, graph: Graph) -> None:  # noqa: B027
        """See `Sampler.check`. Any graph is accepted."""

    def sample(self, graph: Graph, request: BulkRequest, kernel: Any, workspace: Any = None) -> Bulk:
        made = self._each(graph, request, kernel, lambda q, s: self._minibatch(request, q, s, graph))
        return Bulk(request.epoch, request.number, tuple(made))

    def _each(
        self, graph: Graph, request: BulkRequest, kernel: Any, make: Callable[[int, NeighborSample], Any]
    ) -> list[Any]:
        """Draw all minibatches, and `make` something of the number and the sample of each."""
        A, k = kernel.matrix.adjacency(graph), len(request.seeds)
        keys = request.keys(len(self.draws) + 1)
        seeds = [s.astype(graph.indices.dtype) for s in request.seeds]
        if kernel.matrix.TOGETHER:
            known = map(HashedNumbering, seeds)
            cs = [Context(graph, A, kernel.matrix, key, n, self.edge_ids) for key, n in zip(keys, known)]
            return [make(q, s) for q, s in enumerate(self._draw(seeds, cs))]
        made: list[Any] = [None] * k

        def span(first: int, last: int) -> None:
            known = DenseNumbering(graph.num_nodes)
            for q in range(first, last):
                known.begin(seeds[q])
                (s,) = self._draw(seeds[q : q + 1], [Context(graph, A, kernel.matrix, keys[q], known, self.edge_ids)])
                made[q] = make(q, s)

        parallel(span, spans_of_threads(k))
        return made

    def _draw(self, seeds: Sequence[IntArray], cs: Sequence[Context]) -> list[NeighborSample]:
        """The skeleton, for some minibatches. Raises RunError if one has more edges than lists can index."""

        def products(Q: list[Sparse]) -> list[Sparse]:
            if not cs[0].kernel.TOGETHER:
                return [c.multiply(q) for c, q in zip(cs, Q)]
            return cs[0].kernel.multiply_all(Q, cs[0].A, cs[0].graph.num_nodes)

        def draws(P: list[Sparse], s: int, words: list[Words]) -> list[Sparse]:
            if not cs[0].kernel.TOGETHER:
                return [c.choose(p, s, w, replace=self.replace) for c, p, w in zip(cs, P, words)]
            return cs[0].kernel.choose_all(P, s, words, replace=self.replace)

        Q = [self.select(s, c) for s, c in zip(seeds, cs)]
        selectors: list[list[Sparse]] = [[] for _ in cs]
        drawn: list[list[Sparse]] = [[] for _ in cs]
        for h, most in enumerate(self.draws):
            P = [self.norm(p, c) for p, c in zip(products(Q), cs)]
            words = [self.row_streams(q, int(c.keys[h]), c) for q, c in zip(Q, cs)]
            S = draws(P, most, words)
            for i in range(len(cs)):
                selectors[i].append(Q[i])
                drawn[i].append(S[i])
            Q = [self.advance(own, s, c) for own, s, c in zip(selectors, S, cs)]
        found = [self.extract(s, [*own, q], of, c) for s, own, q, of, c in zip(seeds, selectors, Q, drawn, cs)]
        check_edges(max((s.lists[0].num_edges for s in found), default=0), "batch_size")
        return found

    def _minibatch(self, request: BulkRequest, q: int, s: NeighborSample, graph: Graph) -> MiniBatch:
        """The minibatch; a kept edge stands for in-degree / kept edges of its row."""
        edges: EdgeList = s.lists[0]
        weight = None
        if edges.weight is not None:
            kept = np.diff(edges.indptr)
            rows = s.nodes[: len(kept)]
            weight = scaled(edges.weight, None, kept, graph.in_degree[rows] / np.maximum(kept, 1))
        return minibatch_of(request, q, s, [weight], [edges.positions], nested=True)

    def sample_on_device(self, graph: Graph, request: BulkRequest, workspace: Any = None) -> Bulk:
        """See `Sampler.sample_on_device`. Raises InputError, too, if the topology is not in the GPU's memory."""
        from .resident import one_by_one

        kernel = sampling_backend("cuda")
        samples = self._each(graph, request, kernel, lambda q, s: s)
        return one_by_one(graph, request, samples, kernel.device(), self.edge_ids)

    def sample_by_owners(self, owners: Owners, request: BulkRequest) -> Bulk:
        """See `Sampler.sample_by_owners`. Ranks send the rows that products need, by any algorithm."""
        products, k = RowProducts(owners, self.edge_ids), len(request.seeds)
        keys, kernel = request.keys(len(self.draws) + 1), sampling_backend("cpu").matrix
        graph: Any = products.graph
        A: Any = products.A
        made: list[Any] = [None] * k

        def draw(q: int) -> None:
            seeds = request.seeds[q].astype(owners.dtype)
            c = RemoteContext(graph, A, kernel, keys[q], HashedNumbering(seeds), self.edge_ids, products=products)
            (s,) = self._draw([seeds], [c])
            made[q] = self._minibatch(request, q, s, graph)

        products.run([partial(draw, q) for q in range(k)])
        return Bulk(request.epoch, request.number, tuple(made))


@dataclass(frozen=True)
class SubgraphSampler(MatrixSampler):
    """Base of samplers whose minibatch has all edges between chosen nodes, the same edges in every layer."""

    layers: int = 3
    """L, the number of the model's layers; by default as many as the model has."""

    @property
    def num_layers(self) -> int:
        """L."""
        return self.layers


def whole_numbers(sampler: str, **given: tuple[object, int, int]) -> None:
    """Check options. Raises InputError if one is not a whole number between its bounds.

    Args:
        sampler: name of the sampler.
        given: by name, the value and the bounds.
    """
    for name, (value, least, most) in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError(f"{name} of the sampler {sampler} is {value!r}; expected {least} to {most}")
