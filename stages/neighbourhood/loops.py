"""Self loops of the whole graph, as a GCN reads them beside degrees."""

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import Float64Array
from ..comm.base import Group
from ..self_loops import LOOP, OTHERS, has_loops
from .base import Loops, Neighbourhood, destinations


def degrees_alone(rows: Tensor) -> Tensor:
    """[n], the degrees of rows that may have loops beside them."""
    return rows if rows.ndim == 1 else rows[:, 0].contiguous()


def loops_of_all(rows: Tensor, num_dst: int) -> Loops | None:
    """Loops of rows [n, 3], see `stages.self_loops`, all of whose edges are present; None of degrees alone."""
    if rows.ndim == 1:
        return None
    return Loops(rows[:, OTHERS], rows[:, LOOP], (rows[:, 0] - rows[:, OTHERS])[:num_dst])


def gcn_scale(loops: Loops) -> Tensor:
    """``D^-1/2`` of the graph with one self loop at each node, [num_src]; 0 where D is."""
    total = loops.others + loops.weight
    return torch.where(total > 0, total.rsqrt(), 0.0)


def gcn_norm(neighbourhood: Neighbourhood, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``D^-1/2`` of each row, [num_src], and the factor of a row's own share, [num_dst], in
    ``D^-1/2 (sum over in-edges + own h)``: the row's self loop, less those that the sum has already."""
    loops = neighbourhood.loops
    if loops is None:
        scale = (neighbourhood.degree.to(dtype) + 1).rsqrt()
        return scale, destinations(neighbourhood, scale)
    loops = Loops(*(t.to(dtype) for t in loops))
    scale = gcn_scale(loops)
    own = destinations(neighbourhood, loops.weight) - loops.present
    return scale, own * destinations(neighbourhood, scale)


def agreed(rows: Float64Array, group: Group) -> Tensor:
    """Rows [n, 3] if a node of any rank has a self loop, else their degrees alone, [n]. All ranks of the group call
    this at the same time."""
    return torch.from_numpy(rows if group.any(has_loops(rows)) else np.ascontiguousarray(rows[:, 0]))
