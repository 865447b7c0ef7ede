"""Sampler protocol, and the base of samplers that draw row by row."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ...storage.array_kinds import Float32Array, Float64Array, IdArray, IntArray, WordArray
from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.minibatch import Block, Bulk, MiniBatch, nested_blocks
from ...storage.typed.graph_types import GraphTypes
from ..assignment import BulkRequest
from ..kernels.sampling.edge_weights import scaled

if TYPE_CHECKING:
    from ..kernels.row_block.draw import Drawn, HopRows
    from ..kernels.sampling.samples import Fanouts, NeighborSample
    from ..placement.row_owners import Owners, RowsHere


class Sampler(Protocol):
    """Frozen record of a sampler's options.

    Attributes that a sampler may leave out:

    * ``reads_times``: True if draws depend on the times of edges and seeds;
    * ``host_only``: True if it needs the whole graph in host memory;
    * ``rows_travel``: True if it is written as matrices (`matrix.MatrixSampler`), so that over block rows whole rows
      are sent to whoever draws from them;
    * ``needs_topology_there``: True if its GPU kernels read neighbour lists in the GPU's memory only;
    * ``draws_relations_on_device``: True if its GPU kernels draw within relations;
    * ``draws_by_owners_on_device``: True if its GPU kernels draw in blocks of rows: it has
      a coroutine ``sample_by_owners_on_device(owners, request)``, with `placement.row_owners_cuda.OwnersOnDevice`;
    * ``batch_dependency``: minibatches that share random numbers, 1 by default;
    * ``iterations``: of importance sampling, 0 by default.
    """

    name: ClassVar[str]
    """Its name in configuration and reports."""

    @property
    def num_layers(self) -> int:
        """L, the number of blocks."""

    @property
    def edge_ids(self) -> bool:
        """True if blocks keep the positions of their edges in the graph's edge arrays: a field, `Block.edge_id`."""

    def record(self) -> dict[str, Any]:
        """Everything that decides a sample besides graph, seeds and seed, as plain values: part of a store's
        fingerprint."""

    def check(self, graph: Graph) -> None:
        """Raises InputError if the graph lacks what this sampler needs."""

    def sample(self, graph: Graph, request: BulkRequest, kernel: Any, workspace: Any = None) -> Bulk:
        """Draw the minibatches of `request`. Their arrays are the caller's, who may overwrite them.

        Args:
            graph: in-neighbour lists.
            request: what to draw.
            kernel: the sampling backend, as `stages.kernels.sampling_backend` gives it; all draw the same bits.
            workspace: buffers to reuse from bulk to bulk; owned by one thread.
        """

    def sample_on_device(self, graph: Graph, request: BulkRequest, workspace: Any = None) -> Bulk:
        """Like `sample`, with the same bits, drawn by the kernels of a GPU and left there:
        `resident.ResidentMiniBatch`.

        Args:
            graph: in-neighbour lists.
            request: what to draw.
            workspace: see `sample`.

        Raises:
            InputError: there is no GPU.
            RunError: a minibatch has more edges than its lists can index.
        """

    def sample_by_owners(self, owners: "Owners", request: BulkRequest) -> Bulk:
        """Like `sample`, with the same bits, for rows that several ranks hold. All of them call this at the same time.

        Args:
            owners: this rank's rows, and access to the others.
            request: of this rank's minibatches; it may have none.
        """


def reads_times(sampler: object) -> bool:
    """True if a sampler's draws depend on the times of edges and seeds: it says so by an attribute `reads_times`."""
    return bool(getattr(sampler, "reads_times", False))


Weights = tuple[Float32Array | None, IdArray | None]
"""Weights of edges, and the positions of the drawn ones among them; without positions, they are those of the drawn."""


def check_fanout(fanout: tuple[int, ...], *, draws_none: bool) -> None:
    """Raises InputError unless it has a number for each hop; `draws_none`: 0 is one, for all hops."""
    if not fanout:
        raise InputError("fanout is empty; expected one number per layer, nearest the seeds first, such as 15,10,5")
    wanted = "expected 1 to 65536, or -1 for every in-neighbour" + "; 0 for all layers draws none" * draws_none
    for s in fanout:
        is_number = isinstance(s, int) and not isinstance(s, bool) and -1 <= s <= 1 << 16
        if not is_number or not (s or (draws_none and not any(fanout))):
            raise InputError(f"fanout {list(fanout)} holds {s}; {wanted}")


class NodeWise(Sampler, Protocol):
    """Base of samplers that draw for each row independently, so that the row's owner can do it."""

    @property
    def fanout(self) -> tuple[int, ...]:
        """Edges of a row in each hop, at most; -1: all."""

    @property
    def expand(self) -> str:
        """``new``: only newly found nodes are rows of the next hop; ``all``: every node so far."""

    @property
    def weighted(self) -> bool:
        """True if edges are drawn in proportion to their weights."""

    @property
    def poisson(self) -> bool:
        """True if rows keep `fanout` edges in expectation."""
        return False

    relations: dict[str, int | tuple[int, ...]]
    """Fanout of single relations, in place of `fanout`."""

    @property
    def batch_dependency(self) -> int:
        """Minibatches that share random numbers."""

    def streams(self, request: BulkRequest) -> WordArray:
        """uint64 [k, L], random stream of each minibatch and hop."""

    def draw(self, block: "RowsHere", hop: "HopRows") -> "Drawn":
        """One hop's edges of local rows; see `kernels.row_block.draw.draw_rows`."""

    def sends_weights(self, graph: Graph) -> bool:
        """True if `weigh` returns weights."""
        return graph.is_weighted or not graph.types.is_single

    def weigh(
        self, graph: Graph, rows: IntArray, kept: IntArray, edges: Weights, fanout: IdArray | int = 0
    ) -> Float32Array:
        """`Block.weight` of the edges that were drawn for some rows, float32 [e].

        Args:
            graph: the graph of the rows.
            rows: [n].
            kept: [n], edges of each.
            edges: their weights in the graph.
            fanout: of all rows, or [n] of each.
        """
        scale, (weight, positions) = self.scale(graph, rows, kept, fanout), edges
        if self.weighted or weight is None:
            return np.repeat(scale.astype(np.float32), kept)
        return scaled(weight, positions, kept, scale)

    def scale(self, graph: Graph, rows: IntArray, kept: IntArray, fanout: IdArray | int) -> Float64Array:
        """float64 [n], the share of its row's neighbourhood that a kept edge stands for, degree / kept
        (Horvitz-Thompson); arguments of `weigh`."""
        weighted = self.weighted and graph.is_weighted
        return (graph.degree[rows] if weighted else graph.in_degree_at(rows)) / np.maximum(kept, 1)

    def check_options(self) -> None:
        """Raises InputError for options that are none."""
        check_fanout(self.fanout, draws_none=True)
        for name, given in self.relations.items():
            numbers = tuple(given) if isinstance(given, list | tuple) else (given,) * len(self.fanout)
            if len(numbers) != len(self.fanout):
                raise InputError(
                    f"the fanout of relation '{name}' is {list(numbers)}; expected {len(self.fanout)} numbers, as "
                    f"fanout {list(self.fanout)} has, or one"
                )
            for s in numbers:
                if isinstance(s, bool) or not isinstance(s, int) or not -1 <= s <= 1 << 16:
                    raise InputError(
                        f"the fanout of relation '{name}' holds {s}; expected 0 to 65536, or -1 for every in-neighbour"
                    )
        number: object = self.batch_dependency
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InputError(f"batch_dependency is {number!r}; expected a whole number of minibatches, 1 or more")
        if self.expand not in ("new", "all"):
            raise InputError(
                f"expand is '{self.expand}'; expected new (only newly found nodes) or all (the whole frontier again)"
            )

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.fanout)

    @property
    def relations_record(self) -> dict[str, object]:
        """`relations` as plain values."""
        return {k: list(v) if isinstance(v, list | tuple) else v for k, v in self.relations.items()}

    def check(self, graph: Graph) -> None:
        """Raises InputError if the sampler is `weighted` and the graph has no edge weights, or has a fanout for a
        relation that is not there."""
        if graph.types.is_single and self.relations:
            raise InputError(
                f"the sampler has a fanout for relation '{next(iter(self.relations))}', but the graph has one type of "
                "edges; leave relations out"
            )
        if not graph.types.is_single:
            self.by_relation(graph.types)
            if self.weighted:
                raise InputError(
                    "the sampler is weighted, but the graph has several relations, within which edges are drawn "
                    "uniformly; set weighted = false"
                )
        if self.weighted and not graph.is_weighted:
            raise InputError(
                "the sampler is weighted but the graph has no edge weights; give the edges weights or set weighted = "
                "false"
            )

    def by_relation(self, types: GraphTypes) -> IdArray:
        """int64 [L, R], fanout of each hop and relation. Raises InputError for a relation that is not there, or is
        given twice."""
        found = np.repeat(np.array(self.fanout, np.int64)[:, None], types.num_relations, axis=1)
        seen: dict[int, str] = {}
        for name, numbers in self.relations.items():
            try:
                r = types.relation(name)
            except InputError as e:
                raise InputError(f"the sampler has a fanout for relation '{name}', but {e}") from None
            if r in seen:
                raise InputError(f"the sampler's relations give '{name}' and '{seen[r]}', which are one; leave one out")
            seen[r], found[:, r] = name, numbers
        return found

    def fanouts(self, graph: Graph) -> "Fanouts":
        """`fanout`, or of a graph with types `by_relation`."""
        return self.fanout if graph.types.is_single else self.by_relation(graph.types)

    def bound(self, graph: Graph) -> int | None:
        """Most in-edges that are drawn of a row; None: there is no bound."""
        fanouts = np.array(self.fanouts(graph))
        if graph.types.is_single:
            return None if self.poisson or min(self.fanout) < 0 else max(self.fanout)
        most = np.bincount(graph.types.ends[:, 1], fanouts.max(0)).max(initial=0)
        return None if self.poisson or fanouts.min(initial=0) < 0 else int(most)


def check_kernel(sampler: object, kernel: str, *, partitioned: bool = False) -> None:
    """Refuse kernels and placements that a sampler is not made for: one that says so by an attribute `host_only` needs
    the whole graph in host memory.

    Args:
        sampler: a sampler.
        kernel: name of a backend of sampling.
        partitioned: ranks have blocks of rows.

    Raises:
        InputError: the sampler cannot be drawn there.
    """
    dependency = getattr(sampler, "batch_dependency", 1)
    if kernel == "cugraph" and dependency > 1:
        raise InputError(
            f'sampler.batch_dependency is {dependency}, but kernel is "cugraph", whose random numbers are its own; '
            "leave one of them out"
        )
    name = getattr(sampler, "name", type(sampler).__name__)
    if kernel == "matrix" and not getattr(sampler, "rows_travel", False):
        raise InputError(
            f'kernel is "matrix", which draws samplers that are written as matrices, but the sampler {name} has '
            "kernels of its own; leave kernel out, which draws the same minibatches"
        )
    if kernel == "cugraph" and (getattr(sampler, "rows_travel", False) or reads_times(sampler)):
        what = "draws edges by their times" if reads_times(sampler) else "is written as matrices"
        raise InputError(
            f'the sampler {name} {what}, but kernel is "cugraph", which has the sampler neighbor only; leave kernel out'
        )
    if not getattr(sampler, "host_only", False):
        return
    option = bool(getattr(sampler, "iterations", 0))
    which = f"the sampler {name}{' with importance iterations' * option} draws from a whole graph in host memory"
    if partitioned:
        remedy = "leave iterations out, or have it replicated" if option else "have it replicated"
        raise InputError(f"{which}, but the topology is partitioned; {remedy}")
    if kernel != "cpu":
        remedy = ", or leave iterations out" * option
        raise InputError(f'{which}, but kernel is "{kernel}"; set kernel = "cpu"{remedy}')


def minibatch_of(
    request: BulkRequest,
    i: int,
    s: "NeighborSample",
    weight: Sequence[Float32Array | None],
    ids: Sequence[IdArray | None],
    *,
    nested: bool,
) -> MiniBatch:
    """Minibatch `i` of the request from its sample, with weights and positions of the edges of each of its lists; with
    `nested`, it has one list for all blocks."""
    if nested:
        blocks = nested_blocks(s.nodes, s.node_ends, s.indptr, s.indices, weight[0], ids[0])
    else:
        blocks = tuple(
            Block(
                s.node_ends[h], s.nodes[: s.node_ends[h + 1]], s.lists[h].indptr, s.lists[h].indices, weight[h], ids[h]
            )
            for h in reversed(range(len(s.lists)))
        )
    return MiniBatch(request.epoch, request.indices[i], blocks, nested=nested)


def per_layer(sampler: object, field: str, given: object, second: object) -> object:
    """One number for each layer; a single number means one layer.

    Args:
        sampler: name of the sampler.
        field: name of the option.
        given: numbers, or one.
        second: the sampler's next argument, which is not a number.

    Raises:
        InputError: it is no list, or numbers were given one by one, so that the second one fell on that argument.
    """
    if type(given) is not int:
        if not isinstance(given, Sequence | np.ndarray):
            raise InputError(f"{field} is {given!r}; expected one number per layer, nearest the seeds first")
        return given
    if type(second) is int:
        name = type(sampler).__name__
        raise InputError(
            f"{name} got {given} and {second} as two arguments; give {field} as one: {name}(({given}, {second}))"
        )
    return (given,)
