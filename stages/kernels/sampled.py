"""What every sampling kernel returns."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class NeighborSample:
    """One minibatch of node-wise sampling in which only newly found nodes were expanded: one edge list, by destination."""

    nodes: npt.NDArray[np.integer]
    """[n] global ids: the seeds in their order, then each hop's new nodes ascending."""
    node_ends: tuple[int, ...]
    """L+1 numbers: nodes[:node_ends[h]] are known after h hops."""
    indptr: npt.NDArray[np.int32]
    """int32 [node_ends[L-1] + 1], rows in the order of `nodes`."""
    indices: npt.NDArray[np.int32]
    """int32 [e], positions in `nodes`, in the order of the draws."""
    positions: npt.NDArray[np.int64] | None
    """int64 [e], positions in the graph's edge arrays, when asked for."""
