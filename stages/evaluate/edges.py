"""Outputs for labelled edges, from the rows of their ends."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import FloatArray
from ...storage.dataset import IdArray
from ...storage.links.pairs import PairArray

CHUNK_BYTES = 64 << 20
"""Bytes of rows that are held at once."""


@dataclass(frozen=True, eq=False)
class NodeRows:
    """Rows of some nodes."""

    nodes: IdArray
    """int64 [m], ascending."""
    rows: Tensor
    """[m, D]."""

    def positions(self, ids: IdArray) -> IdArray:
        """The positions of nodes, [n], or ends of pairs, [n, 2], among the rows."""
        # For many a table of at most twice their bytes, which takes a thirtieth of the search's time.
        if not len(self.nodes) or self.nodes[-1] >= 2 * ids.size:
            return np.searchsorted(self.nodes, ids)
        table = np.empty(self.nodes[-1] + 1, np.int64)
        table[self.nodes] = np.arange(len(self.nodes))
        return table[ids]


def edge_outputs(head: Any, rows: Tensor, positions: PairArray, features: FloatArray | None = None) -> Tensor:
    """[n, C], outputs of a head (see `links.edge_head.EdgeHead`) for edges, in pieces, from the positions of their ends
    among the rows, [n, 2], and their features if they have any."""
    step = max(1, CHUNK_BYTES // max(1, 4 * rows.shape[1] * rows.element_size()))
    found = []
    with torch.no_grad():
        for first in range(0, max(1, len(positions)), step):
            ends = torch.from_numpy(np.ascontiguousarray(positions[first : first + step])).to(rows.device)
            own = () if features is None else (torch.from_numpy(features[first : first + step]).to(rows),)
            found.append(head(rows[ends[:, 0]], rows[ends[:, 1]], *own))
    return torch.cat(found)
