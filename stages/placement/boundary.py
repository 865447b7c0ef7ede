"""Each rank holds the nodes of one part, and knows the nodes of other parts with edges to them: its boundary."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import IdArray, IntArray, Mask
from ...storage.graph import edges_of_rows, starts_of
from ...storage.minibatch import Block
from ...storage.optional import taken, when_present
from ..comm.base import Group
from ..kernels.aggregation.attention_args import EdgeNumbers
from ..kernels.aggregation.lists import InLists
from ..messages import Part, Phase, Placement, RankJob
from ..neighbourhood.block import BlockNeighbourhood
from ..neighbourhood.halo import together
from ..self_loops import degree_rows
from .base import PartTraffic
from .sharded import Sharded, Share

ABSENT = {"train": ("val", "test"), "val": ("test",)}
"""Splits whose edges are left out of the graphs of inductive training."""


@dataclass(frozen=True, eq=False)
class BoundaryShare(Share):
    """A share with its boundary."""

    boundary: "Boundary"


@dataclass(frozen=True)
class WithBoundary(Sharded):
    """`Sharded`, all rows of it, with the boundary of each part."""

    prune: bool = False
    inductive: bool = False
    """Train without validation and test nodes, and validate without test nodes, in the graph."""

    def count(self, traffic: PartTraffic) -> None:
        traffic.boundaries()

    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: Share | None = None) -> BoundaryShare:
        """The rank's share with its boundary; see `PartitionPolicy.place`."""
        share = super().place(data, phase, job)
        return BoundaryShare(**vars(share), boundary=Boundary(share, job, self.inductive))


class Boundary:
    """In-edges of one rank's N rows over those rows, and over B rows of other ranks that follow them.

    The ids and degrees of the others' rows are exchanged once; counted under ``graph``.
    """

    def __init__(self, share: Share, job: RankJob, inductive: bool) -> None:
        """
        Args:
            share: of this rank.
            job: of this rank.
            inductive: make a graph for training and one for validation, without the nodes that `ABSENT` names.
        """
        self.batch, self.view, self.group, self.dtype = share.graph, share.graph.whole, job.group, job.dtype
        view, batch = self.view, self.batch
        self.counts, self.whole = view.counts, together(view)
        self.names = np.concatenate([batch.names, self.ask(torch.from_numpy(batch.names), "graph", job.group).numpy()])
        self.graphs: dict[str, Edges] = {}
        """``whole``; or ``train`` and ``val`` for inductive training."""
        if not inductive:
            self.graphs["whole"] = self._edges(None)
            return
        for name, absent in ABSENT.items():
            present = torch.ones(view.num_src, dtype=torch.uint8)
            for split in absent:
                present[share.splits[split]] = 0
            self.graphs[name] = self._edges(
                np.concatenate([present.numpy(), self.ask(present, "graph", job.group).numpy()]).astype(bool)
            )

    def ask(self, own: Tensor, kind: str, group: Group) -> Tensor:
        """Values of other ranks for their rows, [B, ...], in exchange for this rank's values, [N, ...], on the device
        of those. All ranks call this at the same time."""
        lengths = [len(w) for w in self.view.wanted]
        into = own.new_empty((sum(self.counts), *own.shape[1:]))
        rows = own[torch.from_numpy(np.concatenate(self.view.wanted)).to(own.device, torch.int64)]
        group.all_to_all(list(rows.split(lengths)), kind, list(into.split(self.counts)))
        return into

    def _edges(self, present: Mask | None) -> "Edges":
        lists, edge, weight = self.whole.lists, self.whole.edge, self.whole.weight
        degree = self.batch.degree_rows[: self.view.num_dst]
        if present is not None:
            kept = np.flatnonzero(present[lists.indices] & present[lists.rows])
            counts = np.bincount(lists.rows[kept], minlength=lists.num_dst)
            weight = taken(weight, torch.from_numpy(kept))
            sums = counts if weight is None else np.bincount(lists.rows[kept], weight.numpy(), lists.num_dst)
            lists, edge = InLists.from_arrays(starts_of(counts), lists.indices[kept], lists.num_src), edge[kept]
            if degree.ndim > 1:
                at = np.flatnonzero(lists.indices == lists.rows)
                sums = degree_rows(sums, lists.rows[at], when_present(lambda of: of.numpy()[at], weight))
            degree = torch.from_numpy(sums)
        degree = degree.to(torch.float64)
        # Over all nodes, on any rank: coefficients must not depend on the owners.
        degree = torch.cat([degree, self.ask(degree, "graph", self.group)]).to(self.dtype)
        return Edges(lists, edge, weight, degree, self.names, self.batch.numbers)


@dataclass(frozen=True, eq=False)
class Edges:
    """In-edges of N rows over N + B rows."""

    lists: InLists
    edge: IntArray
    weight: Tensor | None
    degree: Tensor
    """[N + B], or [N + B, 3] with self loops beside it."""
    names: IdArray
    """int64 [N + B], global ids."""
    numbers: EdgeNumbers

    def around(
        self, dst: IdArray, passes_messages: bool = True, device: torch.device | None = None
    ) -> tuple[BlockNeighbourhood, IdArray]:
        """Neighbourhood of distinct rows `dst`, and the rows that it reads, `dst` first.

        Args:
            dst: ids of this rank's rows.
            passes_messages: false leaves all edges out.
            device: of the rows that it will aggregate; None: the host.
        """
        lists = self.lists
        counts = lists.kept[dst] if passes_messages else np.zeros(len(dst), np.int64)
        indptr, edges = edges_of_rows(lists.indptr[dst], counts)
        sources = lists.indices[edges]
        seen = np.zeros(lists.num_src, bool)
        seen[sources] = True
        seen[dst] = False
        src = np.concatenate([dst, np.flatnonzero(seen)])
        place = np.empty(lists.num_src, np.int32)
        place[src] = np.arange(len(src), dtype=np.int32)
        weight = None if self.weight is None else self.weight[torch.from_numpy(edges)].numpy()
        block = Block(len(dst), self.names[src], indptr, place[sources], weight)
        degree = self.degree[torch.from_numpy(src)].to(device)
        made = BlockNeighbourhood(block, degree)
        made.names = self.names[src]
        made.numbers = EdgeNumbers(self.numbers.first[dst], self.numbers.own[dst], self.edge[edges])
        return made, src
