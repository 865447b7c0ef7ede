"""In-edges in the order of time, so that those until a moment are a prefix of their row."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...storage.errors import InputError
from ...storage.graph import Graph
from ..kernels.row_block.segments import draw_segments, ends_until
from ..random import NODE, mix

STRATEGIES = ("uniform", "last")
IdArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TimedGraph:
    """A graph whose edges have times."""

    graph: Graph
    """Its in-edges ascend by time within each row; at equal times they keep their order."""
    time: npt.NDArray[np.number]
    """int64 or float64 [E], time of each edge."""

    @classmethod
    def of(cls, graph: Graph, time: npt.NDArray[np.number]) -> "TimedGraph":
        """The graph with its rows in the order of time.

        Args:
            graph: in-neighbour lists.
            time: numbers [E], time of each edge of `graph`.

        Raises:
            InputError: a time is NaN.
        """
        if np.issubdtype(time.dtype, np.floating):
            time = time.astype(np.float64, copy=False)
            if np.isnan(time).any():
                raise InputError("times hold NaN; expected numbers")
        else:
            time = time.astype(np.int64, copy=False)
        order = np.lexsort((time, np.repeat(np.arange(graph.num_nodes), graph.in_degree)))
        weight, ids = graph.edge_weight, graph.edge_id
        rows = replace(
            graph,
            indices=graph.indices[order],
            edge_weight=None if weight is None else weight[order],
            edge_id=None if ids is None else ids[order],
        )
        return cls(rows, time[order])

    def draw(
        self,
        rows: IdArray,
        moments: npt.NDArray[np.number],
        keys: npt.NDArray[np.uint64],
        fanout: int,
        *,
        last: bool = False,
        replace: bool = False,
    ) -> tuple[IdArray, IdArray]:
        """Draw in-edges, none later than its row's moment: the number kept, int64 [n], and their positions, int64 [e].

        Args:
            rows: int64 [n], node ids.
            moments: [n], the moment of each.
            keys: uint64 [n], the random stream of each.
            fanout: most edges of a row; -1: all.
            last: the latest ones in place of a uniform choice.
            replace: draw independently; with `last`, of the latest ones.
        """
        begin = self.graph.indptr[rows]
        end = ends_until(self.graph.indptr, self.time, rows, self.as_time(moments))
        if last and fanout >= 0:
            begin = np.maximum(begin, end - fanout)
        with np.errstate(over="ignore"):
            words = mix(keys + rows.astype(np.uint64) * NODE)
        return draw_segments(begin, end, words, fanout, replace)

    def as_time(self, moments: npt.NDArray[np.number]) -> npt.NDArray[np.number]:
        """Moments in the dtype of `time`. Between whole numbers counts as the one before."""
        if np.issubdtype(self.time.dtype, np.integer) and np.issubdtype(moments.dtype, np.floating):
            limit = np.iinfo(np.int64)
            inside = np.clip(np.floor(moments), limit.min, np.nextafter(float(limit.max), 0))
            return np.where(moments >= float(limit.max), limit.max, inside.astype(np.int64))
        return np.ascontiguousarray(moments, self.time.dtype)
