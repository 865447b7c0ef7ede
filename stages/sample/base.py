"""What a sampler is, and the plan that says which seeds make which minibatch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ...storage.errors import InputError
from ...storage.graph import Graph
from ...storage.minibatch import Bulk, MiniBatch
from ..random import Purpose, permutation, stream

if TYPE_CHECKING:
    from ..kernels.sampling.cpu.row_block import Drawn
    from ..kernels.sampling.samples import NeighborSample
    from ..placement.row_blocks import BlockRows
    from .row_owners import Owners


@dataclass(frozen=True, eq=False)
class BulkRequest:
    """k minibatches to be sampled together."""

    seed: int
    epoch: int
    number: int
    """Position among the bulks of the epoch."""
    first_index: int
    """Index of the first minibatch in the epoch."""
    seeds: tuple[npt.NDArray[np.int64], ...]
    """k vectors of distinct node ids."""
    indices: Sequence[int] = ()
    """Of the k minibatches in the epoch, ascending; by default they follow `first_index` without gaps."""

    def __post_init__(self) -> None:
        if not self.indices:
            object.__setattr__(self, "indices", range(self.first_index, self.first_index + len(self.seeds)))

    def keys(self, hops: int) -> npt.NDArray[np.uint64]:
        """uint64 [k, hops]: the random stream of each minibatch and hop. It knows nothing of bulks, ranks or
        threads."""
        return np.array(
            [[stream(self.seed, Purpose.SAMPLE, self.epoch, index, h) for h in range(hops)] for index in self.indices],
            np.uint64,
        ).reshape(len(self.seeds), hops)


class Sampler(Protocol):
    """A frozen record of how minibatches are drawn. Adding one is one file; nothing else changes."""

    name: ClassVar[str]
    """The word that configuration and reports use."""

    @property
    def num_layers(self) -> int:
        """L, the number of blocks."""
        ...

    def record(self) -> dict[str, Any]:
        """Everything that decides a sample besides graph, seeds and seed, as plain values: part of a store's
        fingerprint."""
        ...

    def check(self, graph: Graph) -> None:
        """Raises InputError if the graph lacks what this sampler needs."""
        ...

    def sample(self, graph: Graph, request: BulkRequest, kernel: Any, workspace: Any = None) -> Bulk:
        """Draw the minibatches of `request`.

        Args:
            graph: in-neighbour lists.
            request: what to draw.
            kernel: a module of `stages.kernels` (`cpu`, `reference`): same names, same bits.
            workspace: buffers to reuse from bulk to bulk; owned by one thread.
        """
        ...

    def sample_on_device(self, graph: Graph, request: BulkRequest, workspace: Any = None) -> Bulk:
        """What `sample` draws, bit by bit, drawn by the kernels of a GPU and left there: `resident.ResidentMiniBatch`.

        Args:
            graph: in-neighbour lists.
            request: what to draw.
            workspace: see `sample`.

        Raises:
            InputError: there is no GPU.
            RunError: a minibatch has more edges than its lists can index.
        """
        ...

    def sample_by_owners(self, owners: "Owners", request: BulkRequest) -> Bulk:
        """What `sample` draws, bit by bit, where rows lie with several ranks. All of them call this at the same time.

        Args:
            owners: this rank's rows, and the way to the others.
            request: of this rank's minibatches; it may have none.
        """
        ...


class NodeWise(Sampler, Protocol):
    """A sampler that draws for each row by itself, so that whoever owns the row can do it."""

    @property
    def fanout(self) -> tuple[int, ...]:
        """Edges of a row in each hop, at most; -1: all."""
        ...

    @property
    def expand(self) -> str:
        """``new``: only newly found nodes are rows of the next hop; ``all``: every node so far."""
        ...

    @property
    def edge_ids(self) -> bool:
        """Whether edges keep their place in the graph's edge arrays."""
        ...

    def streams(self, request: BulkRequest) -> npt.NDArray[np.uint64]:
        """uint64 [k, L], the random stream of each minibatch and hop."""
        ...

    def draw(
        self,
        block: "BlockRows",
        rows: npt.NDArray[np.int64],
        splits: npt.NDArray[np.int64],
        keys: npt.NDArray[np.uint64],
        fanout: int,
        ascending: bool,
    ) -> "Drawn":
        """One hop's edges of local rows, [n], which `splits` cuts by minibatch; see `kernels.owner_cpu.draw_rows`."""
        ...

    def sends_weights(self, graph: Graph) -> bool:
        """Whether `weigh` has something to say."""
        ...

    def weigh(
        self,
        graph: Graph,
        rows: npt.NDArray[np.integer],
        kept: npt.NDArray[np.integer],
        positions: npt.NDArray[np.int64] | None,
        fanout: npt.NDArray[np.int64] | int = 0,
    ) -> npt.NDArray[np.float32] | None:
        """`Block.weight` of the edges that were drawn for some rows, float32 [e].

        Args:
            graph: that the rows are of.
            rows: [n].
            kept: [n], edges of each.
            positions: int64 [e], where they lie in the graph's edge arrays; None where nothing asks.
            fanout: of all rows, or [n] of each.
        """
        ...

    def minibatch(
        self,
        request: BulkRequest,
        i: int,
        s: "NeighborSample",
        weight: Sequence[npt.NDArray[np.float32] | None],
        ids: Sequence[npt.NDArray[np.int64] | None],
    ) -> MiniBatch:
        """Minibatch `i` of the request from its sample, with weights and places of the edges of each of its lists."""
        ...


@dataclass(frozen=True, eq=False)
class SeedPlan:
    """Which seeds make minibatch j of epoch e: a pure function, the same on every rank and producer.

    Each epoch is a permutation of the seeds cut into minibatches; the last one may be smaller and is kept.
    """

    seeds: npt.NDArray[np.int64]
    """[N] distinct node ids."""
    batch_size: int
    bulk_size: int
    seed: int
    shuffle: bool = True
    takes: Callable[[int], bool] | None = None
    """Which minibatches of an epoch are wanted, by index; by default all. The others are left out of their bulks."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "bulk_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected 1 or more")

    @property
    def num_minibatches(self) -> int:
        """Minibatches in an epoch."""
        return -(-len(self.seeds) // self.batch_size)

    @property
    def num_bulks(self) -> int:
        """Bulks in an epoch."""
        return -(-self.num_minibatches // self.bulk_size)

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """The epoch's permutation of the seeds."""
        if not self.shuffle:
            return self.seeds
        return _order(self, epoch)

    def request(self, epoch: int, number: int) -> BulkRequest:
        """Bulk `number` of `epoch`; it may be empty if not all minibatches are wanted."""
        order = self.order(epoch)
        first = number * self.bulk_size
        last = min(first + self.bulk_size, self.num_minibatches)
        assert 0 <= first < last
        indices = tuple(j for j in range(first, last) if self.takes is None or self.takes(j))
        cuts = tuple(order[j * self.batch_size : (j + 1) * self.batch_size] for j in indices)
        return BulkRequest(self.seed, epoch, number, first, cuts, indices)


@lru_cache(maxsize=2)
def _order(plan: SeedPlan, epoch: int) -> npt.NDArray[np.int64]:
    return permutation(stream(plan.seed, Purpose.SHUFFLE, epoch), plan.seeds)


def per_layer(sampler: object, field: str, given: Any, second: Any) -> Any:
    """One number for each layer; a number by itself is that of one layer.

    Args:
        sampler: whose they are.
        field: what the sampler calls them.
        given: numbers, or one.
        second: the sampler's next argument, which is no number.

    Raises:
        InputError: numbers were given one by one, so that the second one fell on that argument.
    """
    if type(given) is not int:
        return given
    if type(second) is int:
        name = type(sampler).__name__
        raise InputError(
            f"{name} got {given} and {second} as two arguments; give {field} as one: {name}(({given}, {second}))"
        )
    return (given,)
