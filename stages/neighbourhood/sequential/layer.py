"""One layer of a full batch whose in-neighbours lie on several ranks."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ...kernels import aggregation_on
from ...kernels.aggregation.attention_args import AttentionEdges, AttentionRule
from ...kernels.runtime.device_memory import to_device
from ...memory.arena import empty
from ..base import Loops
from ..checked import CheckedNeighbourhood
from ..checks import no_edge_features
from ..full_batch import FullBatch, GivenRows, Shard, View
from ..loops import degrees_alone, loops_of_all
from ..ring import Aggregation, Push, Ring


class SequentialLayer(CheckedNeighbourhood):
    """One layer of a full batch: this rank's shards, and the ring on which rows of other ranks travel."""

    spans_ranks = True

    def __init__(
        self, batch: FullBatch, view: View, layer: int, ring: Ring, given: GivenRows, keep: bool = False
    ) -> None:
        """
        Args:
            batch: this rank's share of the graph.
            view: the part that the layer needs.
            layer: its number, for messages.
            ring: the exchanges of this pass.
            given: the features.
            keep: keep rows for the backward pass rather than fetching them again.
        """
        self.batch, self.view, self.layer, self.ring, self.keep = batch, view, layer, ring, keep
        self.num_dst, self.num_src, self.num_edges = view.num_dst, view.num_src, view.num_edges
        self.names, self.own = batch.names[: view.num_src], view.shards[batch.rank]
        """See `Neighbourhood.names`; and the edges between this rank's rows."""
        self._edge_rows, self._dtype, self.device = given.edges, given.dtype, given.device or torch.device("cpu")
        self.kernels = aggregation_on(self.device)

    @property
    def degree(self) -> Tensor:
        return degrees_alone(self._degree_rows)

    @property
    def loops(self) -> Loops | None:
        return loops_of_all(self._degree_rows, self.num_dst)

    def is_loop(self, device: torch.device) -> Tensor:
        lists = [(s is self.own, s.lists) for s in self.view.shards]
        found = [x.indices == x.rows if own else np.zeros(x.num_edges, bool) for own, x in lists]
        return torch.from_numpy(np.concatenate(found)).to(device)

    @property
    def _degree_rows(self) -> Tensor:
        return self.batch.degree_rows[: self.num_src].to(self.device, self._dtype)

    @property
    def edge_features(self) -> Tensor:
        """See `Neighbourhood.edge_features`: shard after shard; made anew each time, so that nothing is kept."""
        if self._edge_rows is None:
            raise no_edge_features()
        return self._edge_rows[to_device(np.concatenate([s.edge for s in self.view.shards]), self._edge_rows.device)]

    def begin(self, factor: Tensor | None = None) -> Aggregation:
        """A new aggregation of this layer, whose rows travel multiplied by `factor`, [num_src]."""
        return self.ring.begin(self.layer, factor)

    def mean_scale(self, dtype: torch.dtype) -> Tensor:
        """Factor that turns a row's sum into its mean, [num_dst]."""
        total = self.view.kept if self.view.weights is None else self.view.weights
        scale = np.divide(1.0, total, out=np.zeros(len(total)), where=total > 0)
        return torch.from_numpy(scale).to(self.device, dtype)

    def attention_edges(self, shard: Shard, rule: AttentionRule) -> AttentionEdges:
        """The shard's edges for attention; keys for dropout are their positions in the whole graph."""
        return AttentionEdges(shard.lists, rule, shard.numbers(self.batch.numbers), shard.rows, shard is self.own)


def rebuild(
    neighbourhood: SequentialLayer,
    x: Tensor,
    call: Aggregation,
    kept: dict[int, Tensor],
    of: Callable[[int, Tensor], Tensor],
    onto: Tensor | None,
) -> None:
    """Backward pass of a call that needs the rows of every other rank again; sends gradients back unless `onto` is
    None."""
    ring, view = neighbourhood.ring, neighbourhood.view
    again = None if neighbourhood.keep else ring.rows(view, x, call, again=True)
    before: Push | None = None
    for r in ring.rounds(view):
        q = ring.source(r)
        rows = kept.pop(q, None) if again is None else next(again)[1]
        part = of(q, rows) if rows is not None and len(rows) else empty((0, *x.shape[1:]), x.dtype, x.device)
        del rows
        if before is not None:
            before.finish()
            before = None
        if onto is not None:
            before = ring.push(view, r, part, onto, call)
            if before.nbytes > ring.prefetch_bytes:
                before.finish()
                before = None
        del part
    if again is not None:
        # The last round's rows may still be under way.
        assert next(again, None) is None
    if before is not None:
        before.finish()
