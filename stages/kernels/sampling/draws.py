"""Requests to sampling kernels: minibatches of a bulk, and how their hops are drawn."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ....storage.array_kinds import Float32Array, IntArray, WordArray
from .alias import AliasTable
from .samples import Fanouts


@dataclass(frozen=True, eq=False)
class BulkDraws:
    """k minibatches with L hops each."""

    seeds: Sequence[IntArray]
    """k vectors of distinct node ids."""
    keys: WordArray
    """uint64 [k, L], the stream of each minibatch and hop."""
    _: KW_ONLY
    keep_positions: bool = False
    """Also return each edge's position in the graph's edge arrays."""
    workspace: Any = None
    """Buffers to reuse, a `Workspace` of the kernels; new ones when absent."""


@dataclass(frozen=True, eq=False)
class NodeWiseDraws(BulkDraws):
    """For each row of a hop's frontier some of its in-edges."""

    fanout: Fanouts
    """L numbers, nearest the seeds first; -1 takes every in-edge. Of a graph with types int64 [L, R], of each hop and
    relation."""
    _: KW_ONLY
    expand: str = "new"
    """"new": only newly found nodes are expanded in the next hop; "all": every node so far, again."""


@dataclass(frozen=True, eq=False)
class NeighborDraws(NodeWiseDraws):
    """Rows are drawn independently. Of a graph with types, each relation of a row is drawn for itself, by a stream of
    its own. Positions are kept then, and the weight of an edge is the number of its row's edges in its relation divided
    by the number kept."""

    _: KW_ONLY
    replace: bool = False
    """Draw independently (an edge may come twice; rows without in-edges stay empty)."""
    table: AliasTable | None = None
    """Draw in proportion to the weights that it is made of, and never an edge of weight 0; None draws uniformly.
    Without replacement: successive sampling, see `sampling.alias`."""
    keep_weights: bool = False
    """Also return each edge's weight in the graph."""


@dataclass(frozen=True, eq=False)
class LaborDraws(NodeWiseDraws):
    """Rows share one random number for each source node of a minibatch: keys are uint64 [k], for all hops. Of a graph
    with types, each relation of a row is a row of its own, with the same numbers, and `EdgeList.weight` has
    1 / chance."""

    _: KW_ONLY
    keep_positions: bool = True
    poisson: bool = False
    """Keep an edge into v iff its source's number is below fanout / degree(v); else keep the min(fanout, degree) edges
    whose sources have the smallest numbers (of parallel edges, the first)."""
    weight: Float32Array | None = None
    """float32 [E], with rows of exact size only: a source's number u becomes the time -log2(u) / weight of each of its
    edges, and a row keeps its first edges (an exponential race that rows share); never an edge of weight 0."""
    iterations: int = 0
    """With `poisson` and without `weight` only: how often a hop's importance is computed anew. A row v then keeps the
    edge of a source t with chance min(1, c_v pi_t), and says 1 / chance in `EdgeList.weight`."""


@dataclass(frozen=True, eq=False)
class LayerDraws(BulkDraws):
    """Nodes for all rows of a hop together, in proportion to the squared weights that the minibatch's own rows give
    them."""

    sizes: Sequence[int]
    """L numbers, nearest the seeds first: nodes drawn per hop; fewer if the rows have fewer neighbours."""
    _: KW_ONLY
    debias: str = "ratio"
    """See `LadiesSampler`; all but "with_replacement" give the same structure."""
    every_row: bool = False
    """Nodes are drawn in proportion to the squared weights that all V rows give them, whatever the minibatch."""
