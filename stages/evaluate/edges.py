"""Outputs for labelled edges, from the rows of their ends."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...storage.dataset import IdArray
from ...storage.links.pairs import PairArray

CHUNK_BYTES = 64 << 20
"""Bytes of rows that are held at once."""


@dataclass(frozen=True, eq=False)
class RowsOfEnds:
    """Rows of the nodes that are ends of edges."""

    nodes: IdArray
    """int64 [m], ascending."""
    rows: Tensor
    """[m, D]."""

    def positions(self, pairs: PairArray) -> PairArray:
        """int64 [n, 2], the positions of the ends of `pairs` among the rows."""
        # For many edges a table of at most twice their bytes, which takes a thirtieth of the search's time.
        if not len(self.nodes) or self.nodes[-1] >= 2 * pairs.size:
            return np.searchsorted(self.nodes, pairs)
        table = np.empty(self.nodes[-1] + 1, np.int64)
        table[self.nodes] = np.arange(len(self.nodes))
        return table[pairs]


def edge_outputs(
    head: Any, rows: Tensor, positions: PairArray, features: npt.NDArray[np.floating] | None = None
) -> Tensor:
    """[n, C], outputs for edges, in pieces.

    Args:
        head: see `links.edge_head.EdgeHead`, on the device of the rows.
        rows: [m, D], of nodes.
        positions: int64 [n, 2], of the edges' ends among the rows.
        features: [n, K], of the edges; None: they have none.
    """
    step = max(1, CHUNK_BYTES // max(1, 4 * rows.shape[1] * rows.element_size()))
    found = []
    with torch.no_grad():
        for first in range(0, max(1, len(positions)), step):
            ends = torch.from_numpy(np.ascontiguousarray(positions[first : first + step])).to(rows.device)
            own = () if features is None else (torch.from_numpy(features[first : first + step]).to(rows),)
            found.append(head(rows[ends[:, 0]], rows[ends[:, 1]], *own))
    return torch.cat(found)
