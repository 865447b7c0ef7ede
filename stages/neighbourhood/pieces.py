"""Divides a block into blocks of fewer edges, for computations that keep a row for each edge."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ...storage.graph import row_ranges
from ...storage.minibatch import Block
from ...storage.optional import taken
from .block import BlockNeighbourhood


def pieces(neighbourhood: BlockNeighbourhood, most_edges: int) -> Iterator[tuple[BlockNeighbourhood, Tensor]]:
    """Successive destinations of a block with all their edges.

    Args:
        neighbourhood: the block.
        most_edges: maximum edges of a piece; a destination with more is a piece of its own.

    Yields: The piece, and int64 [its num_src]: the rows of the block's sources that it reads, its destinations first.
    """
    block, indptr, indices = neighbourhood.block, neighbourhood.lists.indptr, neighbourhood.lists.indices
    for start, stop in [*row_ranges(indptr, most_edges, len(indptr))] or [(0, 0)]:
        edges = slice(int(indptr[start]), int(indptr[stop]))
        read = indices[edges]
        others = np.unique(read)
        others = others[(others < start) | (others >= stop)]
        count = stop - start
        own = (read >= start) & (read < stop)
        local = np.where(own, read - start, count + np.searchsorted(others, read)).astype(np.int32)
        src = np.concatenate([np.arange(start, stop), others]).astype(np.int64)
        rows, weight = torch.from_numpy(src), taken(block.weight, edges)
        piece = Block(count, src, (indptr[start : stop + 1] - indptr[start]).astype(np.int64), local, weight)
        of_edges = None
        if neighbourhood.has_edge_features:
            of_edges = lambda edges=edges: neighbourhood.edge_features[edges]  # noqa: E731
        made = BlockNeighbourhood(piece, lambda rows=rows: neighbourhood.degree_rows[rows], edges=of_edges)
        made.given_weight = lambda edges=edges: taken(neighbourhood.own_weight(), edges)
        yield made, rows
