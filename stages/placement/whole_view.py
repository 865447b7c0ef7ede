"""Views of isolated ranks as full batches: all nodes that a rank sees, with every in-edge that is present."""

from dataclasses import dataclass, field, replace
from typing import Any

from ..comm.solo import Solo
from ..messages import Part, Phase, Placement, RankJob
from ..self_loops import OTHERS
from .chunks import Chunks, Isolated
from .sharded import Sharded, Share


@dataclass(frozen=True, eq=False)
class WholeView(Share):
    """The nodes of a rank's view as the only part. Degrees are those of the whole graph."""

    seen: Isolated = field(kw_only=True)
    """The view, whose local ids are the share's names."""


@dataclass(frozen=True)
class WholeChunks(Chunks):
    """`Chunks` that are trained as full batches."""

    # Policies of full batches take shares.
    # pyrefly: ignore[bad-override]
    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: Any = None) -> WholeView:
        seen = super().place(data, phase, job, before and before.seen)
        if before and before.seen.graph is seen.graph:
            return replace(before, seen=seen)
        share = Sharded().place(seen, phase, replace(job, group=Solo()))
        degree = seen.degree.double().clone()
        if degree.ndim > 1:
            # No in-edge of a node around the chunks is here, nor its self loop.
            degree[seen.num_visible :, 0] = degree[seen.num_visible :, OTHERS]
        graph = replace(share.graph, degree_rows=degree[share.graph.order])
        return WholeView(graph, share.features, share.labels, share.splits, edge_rows=share.edge_rows, seen=seen)
