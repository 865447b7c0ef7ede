"""Means over all relations of a block, and the destinations' own rows beside them, in one aggregation."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import AnyArray, IdArray
from ...storage.minibatch import Block
from ...storage.optional import moved
from ...storage.typed.graph_types import GraphTypes
from ..kernels import aggregation_on
from ..kernels.aggregation.lists import InLists, WeightedLists
from .checks import as_matrix
from .gradients import Pieces, Spmm

OWN = -1
"""Stands for the destination itself among the numbers of relations."""


class TypeMeans(NamedTuple):
    """Input of the m destinations of one node type, in the order of `NodeRows.targets`."""

    rows: Tensor
    """[m, a D], for each of `of` the mean over the relation's in-edges, zeros without any; or the destination's own
    row."""
    of: list[int]
    """a numbers of relations, or `OWN`: those whose sources are of the chosen types."""
    present: Tensor
    """[m, b], 1 where the destination has an edge of that relation, else 0: the mean of a row of ones."""
    flagged: list[int]
    """b numbers of relations, or `OWN`."""


@dataclass(frozen=True, eq=False)
class Stacked:
    """Edges of a block as lists: for each destination one that holds itself, and one for each relation into its
    type."""

    lists: Any
    """`InLists`, or `DeviceLists`."""
    weight: Tensor | None
    """Weights of their edges, [e]; None: all are 1."""
    share: Tensor
    """[lists], 1 over the sum of the weights of each."""
    present: Tensor
    """One number for each destination and relation that is flagged, see `TypeMeans.present`."""
    numbers: tuple[list[list[int]], list[list[int]]]
    """By node type, the relations of the lists of each destination, and those that are flagged."""
    sizes: tuple[list[int], list[int]]
    """By node type, the number of lists, and that of flags."""

    def means(self, h: Tensor, kernels: ModuleType | None) -> list[TypeMeans]:
        """Input of each node type: [n, D] -> [m, a D].

        Args:
            h: rows of the sources of the chosen types, in the order of the block.
            kernels: the aggregation backend; by default that of the rows' device.
        """
        x = as_matrix(h, self.lists.num_src, "h")
        backend: Any = kernels or aggregation_on(x.device)
        weight = moved(self.weight, x.device)
        rows = Spmm.apply(x, None, backend, WeightedLists(self.lists, weight, self.share.to(x.device, x.dtype)))
        parts = Pieces.apply(rows, self.sizes[0])
        flags = self.present.to(x.device, x.dtype).split(self.sizes[1])
        return [
            TypeMeans(side_by_side(part, of), of, side_by_side(flag[:, None], flagged), flagged)
            for part, of, flag, flagged in zip(parts, self.numbers[0], flags, self.numbers[1])
        ]


def stacked(
    block: Block, types: GraphTypes, of_rows: IdArray, kinds: AnyArray, chosen: Sequence[bool], flagged: Sequence[bool]
) -> Stacked:
    """Stacked lists of a block in host memory.

    Args:
        block: one layer's edges.
        types: of the graph.
        of_rows: node type of each of its sources, [num_src].
        kinds: relation of each of its edges, [e].
        chosen: True for node types whose rows are read, [T].
        flagged: True for node types of whose nodes only the presence counts, [T].
    """
    from ..kernels.runtime.stacked import stack

    n, ends_of = block.num_dst, types.ends[:, 0]
    of, of_flags = (lists_of_types(types, some) for some in (chosen, flagged))
    rank = np.zeros((2, types.num_relations + 1), np.int64)
    for row, several in zip(rank, (of, of_flags)):
        for numbers in several:
            row[numbers] = np.arange(len(numbers))
    begin, sizes = _places(of, of_rows[:n])
    begin_flags, flag_sizes = _places(of_flags, of_rows[:n])
    read, flag = np.asarray(chosen, np.bool_), np.asarray(flagged, np.bool_)
    place = np.cumsum(read[of_rows], dtype=np.int32) - np.int32(1)
    e, lists, plain = block.num_edges, sum(sizes), block.weight is None
    weight = np.ones(e, np.float32) if block.weight is None else np.asarray(block.weight, np.float32)
    ends, total = np.zeros(lists + 1, np.int64), np.zeros(lists)
    sources, coef = np.empty(e + n, np.int32), np.empty(e + n, np.float32)
    flags = np.zeros(sum(flag_sizes), np.bool_)
    stack(
        np.asarray(block.indptr, np.int64), np.asarray(block.indices, np.int32), kinds, weight, place,
        read[ends_of], flag[ends_of], rank, begin, begin_flags, read[of_rows[:n]], flag[of_rows[:n]], ends, total,
        sources, coef, flags,
    )  # fmt: skip
    return Stacked(
        lists=InLists(ends, sources[: ends[-1]], int(place[-1]) + 1 if len(place) else 0),
        weight=None if plain else torch.from_numpy(coef[: ends[-1]]),
        share=torch.from_numpy(np.divide(1, total, out=total, where=total > 0)),
        present=torch.from_numpy(flags),
        numbers=(of, of_flags),
        sizes=(sizes, flag_sizes),
    )


def lists_of_types(types: GraphTypes, some: Sequence[bool]) -> list[list[int]]:
    """For each node type, `OWN` if it is one of some, and the relations into it from those."""
    ends = types.ends.tolist()
    return [[OWN] * some[t] + [r for r, (a, b) in enumerate(ends) if b == t and some[a]] for t in range(len(some))]


def _places(numbers: list[list[int]], of_rows: IdArray) -> tuple[IdArray, list[int]]:
    """First place of each destination, which has one for each number of its node type, and the places of each node
    type: they lie together, destination by destination."""
    steps = np.array([len(each) for each in numbers], np.int64)[of_rows]
    by_type, begin = np.argsort(of_rows, kind="stable"), np.empty(len(of_rows), np.int64)
    begin[by_type] = np.cumsum(steps[by_type]) - steps[by_type]
    return begin, np.bincount(of_rows, steps, minlength=len(numbers)).astype(np.int64).tolist()


def side_by_side(x: Tensor, numbers: list[int]) -> Tensor:
    """Rows of one destination side by side; without numbers, a matrix without columns."""
    return x.reshape(-1, len(numbers) * x.shape[1]) if numbers else x.new_empty(0, 0)
