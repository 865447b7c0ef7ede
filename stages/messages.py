"""Messages between the stages of a training system: frozen records of plain values and tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..storage.array_kinds import Float64Array, IdArray, IntArray, NumberArray
from ..storage.dataset import Split, Task
from ..storage.errors import InputError
from ..storage.features import FeatureStore
from ..storage.graph import Graph
from ..storage.ledger import Ledger
from ..storage.links.pairs import Pairs
from ..storage.partition.book import RangeBook
from ..storage.partition.edge_shards import EdgeShards
from ..storage.queue.packed_rows import PackedRows
from ..storage.store.scratch import Arrays
from ..storage.typed.graph_types import SINGLE, GraphTypes
from .assignment import Steps
from .comm.base import Group
from .neighbourhood.base import Neighbourhood
from .neighbourhood.block import types_of_edges
from .neighbourhood.relations import EdgeTypes

Loss = Callable[[Tensor, Tensor], Tensor]
"""A loss: outputs [B, W] and labels (int64 [B], or floating [B, C]) to one value for each seed, [B]."""


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one partitioning and one set of trained layers."""

    number: int
    first_epoch: int
    last_epoch: int
    """Exclusive. Epochs are counted over the whole run."""
    name: str = ""
    """Description of what it trains."""
    fresh_optimizer: bool = False
    """True if it has an optimiser and a best epoch of its own. The next phase then starts from the parameters of that
    epoch."""

    @property
    def epochs(self) -> int:
        """Epochs in this phase."""
        return self.last_epoch - self.first_epoch


class Seeded(Protocol):
    """Protocol of data that minibatches are drawn from: a graph and seeds."""

    @property
    def graph(self) -> Graph: ...

    @property
    def seeds(self) -> IdArray: ...

    @property
    def pairs(self) -> Pairs | None: ...

    @property
    def pair_time(self) -> NumberArray | None: ...


@dataclass(frozen=True, eq=False)
class GraphAndSeeds:
    """A `Seeded` without rows and labels."""

    graph: Graph
    seeds: IdArray
    pairs: Pairs | None = None
    pair_time: NumberArray | None = None


@dataclass(frozen=True, eq=False)
class Placement:
    """One rank's view of the data during a phase."""

    graph: Graph
    """Rows that this rank can sample from (all of them if the topology is replicated)."""
    features: FeatureStore
    labels: Tensor
    """int64 [V] or floating [V, C]."""
    degree: Tensor
    """[V] in-degree in the whole graph (weighted: sum of weights), in the dtype of the run; [V, 3] with self loops
    beside it (`stages.self_loops`), if the graph has any and the model reads them."""
    split: Split
    edge_features: FeatureStore | None = field(default=None, kw_only=True)
    """[E, D], row e is of the graph's edge at position e; None: there are none, or the model reads none."""
    pairs: Pairs | None = field(default=None, kw_only=True)
    """All pairs of a link task, or all labelled edges, of which `split` has the numbers of those to train on; None:
    nodes are labelled."""
    pair_time: NumberArray | None = field(default=None, kw_only=True)
    """[N], times of the pairs; None: they have none."""

    column: Group | None = field(default=None, kw_only=True)
    """Ranks that hold all rows between them, in their order; None: this one has all that it needs."""

    @property
    def owners(self) -> Group:
        """`column`, where rows lie with several ranks."""
        assert self.column is not None
        return self.column

    @property
    def seeds(self) -> IdArray:
        """Training nodes that the seed plan divides into minibatches."""
        return self.split.train

    def owners_of_rows(self, owners: int) -> tuple[RangeBook, bool]:
        """Blocks of feature rows that so many ranks own, and whether `features` has only the rows of this rank's."""
        return RangeBook.even(self.features.num_rows, owners), False

    def owners_of_edges(self, num_edges: int, owners: int) -> tuple[RangeBook, bool]:
        """Blocks of the edges' rows that so many ranks own, and whether `edge_features` has only this rank's."""
        return RangeBook.even(num_edges, owners), False

    def relations_on_device(self, edges: Tensor, all_edges: Callable[[], Tensor]) -> Tensor:
        """Relations of edges by their `Block.edge_id`, on the device; `all_edges` gives those of the graph's edges."""
        return all_edges()[edges]

    def labels_on_device(self, device: torch.device) -> Tensor | None:
        """Labels by node, in the memory of a device; None: the host looks them up."""
        return self.labels.to(device)

    def labels_of(self, seeds: IntArray) -> Tensor:
        """Labels of training nodes."""
        return self.labels[torch.from_numpy(seeds.astype(np.int64))]

    def types_of(self, positions: Any) -> EdgeTypes | None:
        """Types of edges by their `Block.edge_id`; None if there is one type of edges."""
        return types_of_edges(self.graph, positions)

    def weights_of(self, edges: Any) -> Tensor | None:
        """float32 [e], weights of edges by their `Block.edge_id`, on the host or a device; None: all are 1.

        Raises:
            InputError: this rank does not have them.
        """
        if not self.graph.is_weighted:
            return None
        if edges is None or (weight := self.graph.edge_weight) is None or self.column is not None:
            raise InputError(
                "a convolution reads edge weights and does not sum, but they are not with this rank's samples; use "
                "aggr='add', or topology = \"replicated\" and no samples drawn before"
            )
        if isinstance(edges, Tensor):
            from .kernels.sampling.device_graph import number_on_device

            return number_on_device(self.graph, "edge_weight")[edges]
        return torch.from_numpy(weight[edges])

    def with_own_weights(self, links: Any) -> Any:
        """The `TrainPairs` with the weights of their own edges, of which each rank knows those of its rows. All ranks
        call this at the same time."""
        return links

    def positions_of(self, edges: Any) -> Any:
        """Positions of edges in the whole graph by their `Block.edge_id`, integers [e] on the host or a device."""
        return edges


@dataclass(frozen=True, eq=False)
class Part:
    """Data of a partition, as one rank opens it. Rows are local ids."""

    shards: EdgeShards
    owned: IdArray
    """[N] global ids."""
    features: FeatureStore
    """[N, F]."""
    labels: Tensor
    """int64 [N] or floating [N, C]."""
    split: Split
    """Local ids."""
    peers: "Peers | None" = None
    """The other parts, for policies that read them."""
    edge_features: FeatureStore | None = None
    """[e, D], row i is of the part's edge at position i; None: there are none, or the model reads none."""
    types: GraphTypes = SINGLE
    """Types of the whole graph; None: there is one type of nodes and edges."""
    pairs: Pairs | None = None
    """All pairs of a link task, or all labelled edges, by global ids; None: nodes are labelled."""

    @property
    def others(self) -> "Peers":
        """`peers`, for policies whose ranks read other parts."""
        assert self.peers is not None
        return self.peers


class Peers(Protocol):
    """Parts of all ranks, in stores that all of them can read."""

    def part(self, number: int) -> Part:
        """A whole part."""

    def rows(self, number: int, loops: bool) -> tuple[FeatureStore, Float64Array]:
        """[N, F] features of a part's nodes, and [N], the sum of their in-edges' weights in the whole graph; with
        `loops` [N, 3], see `stages.self_loops`."""


class PlacedData(Protocol):
    """Result of a partition policy. Policies of one system know its other attributes."""

    @property
    def graph(self) -> "Sized":
        """The structure."""

    @property
    def features(self) -> FeatureStore:
        """The rows that this rank reads."""


class Sized(Protocol):
    """Protocol of objects whose size in memory is known."""

    @property
    def nbytes(self) -> int:
        """Bytes."""


@dataclass(frozen=True, eq=False)
class Fetched:
    """One piece of work with everything that forward and backward need."""

    epoch: int
    index: int
    neighbourhoods: tuple[Neighbourhood, ...]
    """L, outermost first."""
    h: Tensor
    """[num_src of neighbourhoods[0], F]; may lie in a buffer that the next fetch reuses."""
    y: Tensor
    """Labels of the seeds, int64 [B] or floating [B, C]; they are the first B rows of the model's result. Of labelled
    edges, those of the b pairs."""
    weight: Tensor | None = None
    """float64 [B], weight of each seed, on the host or the device; None: all alike."""
    begun: "Begun | None" = None
    """Part of the forward pass that was computed before the parameters were ready: see `forward_backward.begin`."""
    clients: "tuple[Fetched, ...]" = ()
    """The same work divided among simulated clients."""
    links: "PairsToScore | None" = None
    """Pairs whose scores are the outputs; None: the first B rows of the model's result are."""


@dataclass(frozen=True, eq=False)
class PairsToScore:
    """Pairs whose scores are the outputs: of a link task, or of labelled edges."""

    pairs: Tensor
    """int64 [b, 1 + k, 2], positions among the rows of the model's result: a positive pair, and its negatives; [b, 1,
    2] of labelled edges. On the host."""
    decoder: Callable[..., Tensor] | None
    """See `links.decoders.Decoder.forward`, or `links.edge_head.EdgeHead.forward` of labelled edges; None where nothing
    is trained."""
    there: Tensor | None = None
    """`pairs` on the device of the rows; None: that is the host."""
    labelled: bool = False
    features: Tensor | None = None
    """[b, K], of labelled edges, on the device of the rows; None: they have none."""
    relation: Tensor | None = None
    """int64 [b], of each pair the place of its relation among those predicted, on the device of the rows; None: all are
    of one."""
    all_rows: Callable[[Tensor], Tensor] | None = None
    """Adds rows of other ranks to those of the model's result; None: all ends are among these."""
    shared: int | None = None
    """All positive pairs have the same drawn ends: the destinations of so many negatives, the first ones, and the
    sources of the others, and the decoder is a `links.decoders.Decoder`; None: each has ends of its own."""
    left_out: Tensor | None = None
    """bool [b, k], negatives that count nothing, on the device of the rows; None: all count."""

    def scores(self, rows: Tensor) -> Tensor:
        """[b, 1 + k], from the rows of the nodes [B, D]; [b, C] of labelled edges."""
        assert self.decoder is not None
        rows = rows if self.all_rows is None else self.all_rows(rows)
        pairs = self.pairs if self.there is None else self.there
        if not self.labelled:
            found = self._scored(rows, pairs)
            if self.left_out is not None:
                # The loss of a negative this low is 0, and so is its gradient.
                found = torch.cat([found[:, :1], found[:, 1:].masked_fill(self.left_out, float("-inf"))], 1)
            return found
        source, destination = pairs[:, 0].unbind(1)
        found = self.decoder(rows[source], rows[destination], *(() if self.features is None else (self.features,)))
        if found.ndim != 2 or len(found) != len(source):
            raise InputError(
                f"the decoder gives {list(found.shape)} for {len(source)} edges; expected [{len(source)}, C], a row of "
                "outputs for each"
            )
        return found

    def _scored(self, rows: Tensor, pairs: Tensor) -> Tensor:
        """[b, 1 + k], of positive pairs and their negatives."""
        decoder: Any = self.decoder
        of = () if self.relation is None else (self.relation,)
        if self.shared is None:
            return decoder(rows[pairs[..., 0]], rows[pairs[..., 1]], *of)
        source, destination = (rows[ends] for ends in pairs[:, 0].unbind(1))
        scores, until = [decoder(source, destination, *of)[:, None]], 1 + self.shared
        if self.shared:
            scores.append(decoder.against(source, rows[pairs[0, 1:until, 1]], self.relation))
        if until < pairs.shape[1]:
            scores.append(decoder.against_sources(destination, rows[pairs[0, until:, 0]], self.relation))
        return torch.cat(scores, 1)


@dataclass(frozen=True, eq=False)
class Begun:
    """Start of a forward pass, up to its first parameter."""

    entered: Any
    """Result of the model's `enter`."""
    generator: Tensor
    """State of torch's CPU generator afterwards."""


@dataclass(frozen=True, eq=False)
class RankJob:
    """Facts of the run and handles on this rank, for policies to use."""

    seed: int
    batch_size: int
    bulk_size: int
    epochs: int
    dtype: torch.dtype
    kernel: Any
    """The sampling backend: see `stages.kernels.sampling_backend`."""
    group: Group
    ledger: Ledger
    queue: Any = None
    """Open MinibatchQueue, for systems that use one."""
    packed: PackedRows | None = None
    """Rows beside the minibatches of the queue; None: there are none."""
    produce: bool = True
    """Fill the queue from this process. False if it was filled beforehand, or is filled elsewhere."""
    minibatches_per_step: int = 1
    """M, over all ranks."""
    producer_alive: Callable[[], bool] = lambda: True
    """True while a producer elsewhere may still add to the queue; called while waiting."""

    tell: Callable[[str], None] = lambda text: None
    """Called with a sentence for the user."""
    num_layers: int = 1
    """L of the model."""
    folder: Path | None = None
    """Folder of the run, visible to all ranks."""
    generation: int = 0
    """Number of earlier starts of the run's ranks."""
    fingerprint: str = ""
    """Digest of everything that decides the parameters of this run."""
    device: torch.device | None = None
    """Device of a step's tensors and of the model; None: the CPU."""
    learned: Any = None
    """Learnt features, `learned.table.LearnedTable`; None: there are none."""
    measures: Any = None
    """Metrics of a validation, `evaluate.measures.Measures`; None: those of the labels, without further ones."""
    reads_loops: bool = False
    """True if the model reads self loops, which degrees of a part then have beside them."""
    resident: bool = False
    """True if minibatches are sampled on `device` and stay there."""
    arrays: Arrays = field(default_factory=Arrays)
    """Makers of the large arrays of a part."""
    needs_all_rows: bool = False
    """True if training depends on nodes that no seed's result depends on, as with batch normalisation over all
    nodes."""

    @property
    def on_host(self) -> bool:
        """True if steps are computed on the CPU."""
        return self.device is None

    def steps(self, minibatches: int) -> Steps:
        """Steps of an epoch with this many minibatches over all ranks, and this rank's minibatches in them."""
        return Steps(minibatches, self.minibatches_per_step, self.group.size, self.group.rank)


@dataclass(frozen=True)
class Validation:
    """Validation result of a module."""

    accuracy: float | None
    """None for a regression."""
    merit: float
    """Value that the best epoch maximises."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Further metrics by name."""


@dataclass(frozen=True)
class WorkDone:
    """Result of training on a piece of work."""

    loss_sum: float | Tensor
    """Loss summed over its seeds, unweighted. A scalar on the device if training runs there, so that the host need not
    wait for it."""
    seeds: int
    weight: float | None = None
    """Total weight of its seeds; None: each counts one."""


@dataclass(frozen=True)
class StepRules:
    """Settings for training on a piece of work, the same for all of a run."""

    seed: int
    task: Task
    matmul_precision: Literal["float32", "bfloat16"]
    group: Group
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    """Makes a fresh optimiser, as configured."""
    loss: Loss | None = None
    """A user's loss, or a named one; None: the default of a multi-class or multi-label task."""
