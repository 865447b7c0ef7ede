"""Buffers for the edges of one minibatch, whose number is only known once they are found."""

import numpy.typing as npt

from .....storage.array_kinds import AnyArray
from ..samples import LIMIT, check_edges
from .workspace import Workspace


def edge_buffer(space: Workspace, name: str, size: int, dtype: npt.DTypeLike, keep: int = 0) -> AnyArray:
    """The vector `name` of the workspace, with at least `size` entries, of which the first `keep` survive.

    Raises:
        RunError: `size` exceeds the maximum of a minibatch.
    """
    check_edges(size)
    return space.rows(name, (1, size), dtype, keep)[0]


def doubled(have: int, need: int) -> int:
    """The next size of a vector of `have` entries that needs `need`."""
    return max(need, min(2 * have, LIMIT - 1))
