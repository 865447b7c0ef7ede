"""Relations of a block whose lists lie on a device: `relations` and `stacked` without a copy on the host."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...storage.typed.graph_types import GraphTypes
from ..kernels import aggregation_backend
from ..kernels.aggregation.lists import DeviceLists
from .base import Reduce
from .checks import absent_rows, as_matrix
from .gradients import Pieces, Spmm
from .relations import NodeRows, Relation
from .stacked import OWN, TypeMeans, lists_of_types, side_by_side


class DeviceRelation(Relation):
    """`Relation` over lists on a device."""

    def _renumbered(self) -> tuple[Any, Any]:
        lists, count = self.lists, len(self.sources)
        indices = self._local[lists.indices.long()].to(lists.indices.dtype)
        lists = DeviceLists(lists.indptr, indices, count, lists.longest, lists.limit)
        return lists, torch.arange(count, device=indices.device)

    @property
    def kept(self) -> Tensor:
        return torch.diff(self.lists.indptr)

    def ends(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return self.lists.indices.long(), rows_of(self.lists)

    @cached_property
    def _edges(self) -> Any:
        every = torch.arange(self.num_edges, device=self.lists.indices.device)
        return replace(self.lists, indices=every, num_src=self.num_edges)

    @cached_property
    def weight(self) -> Tensor | None:
        return self._coefficient

    def _row_scale(self, reduce: Reduce, like: Tensor) -> Tensor | None:
        if self.weight is not None and reduce == "mean":
            return share(self.lists, self.weight, aggregation_backend("cuda")).to(like.dtype)
        return super()._row_scale(reduce, like)


def rows_of(lists: DeviceLists) -> Tensor:
    """int64 [e], the list of each edge."""
    each = torch.arange(lists.num_dst, device=lists.indptr.device)
    return torch.repeat_interleave(each, torch.diff(lists.indptr), output_size=lists.num_edges)


def share(lists: DeviceLists, weight: Tensor | None, kernels: Any) -> Tensor:
    """float64 [n], 1 over the sum of the weights of each list, 0 where that is 0."""
    if weight is None:
        total = torch.diff(lists.indptr).double()
    else:
        # Row by row, in the order of the edges: the same bits from run to run.
        ones = torch.ones(lists.num_src, 1, dtype=torch.float64, device=weight.device)
        total = kernels.spmm(lists, ones, weight)[:, 0]
    return torch.where(total > 0, 1 / total, 0.0)


class Groups:
    """Positions of equal numbers."""

    def __init__(self, values: Tensor, count: int) -> None:
        """
        Args:
            values: [n], integers from 0 up to `count`.
            count: how many there are.
        """
        ordered, self.order = torch.sort(values, stable=True)
        numbers = torch.arange(count + 1, device=values.device).to(values.dtype)
        self.ends_there = torch.searchsorted(ordered, numbers)
        self.ends: list[int] = []
        """Start of each number's positions in `order`, and their end, as `read` has copied them to the host."""

    @staticmethod
    def read(*groups: "Groups") -> None:
        """Copy the ends of some groups to the host, which waits for them once."""
        ends = iter(torch.cat([g.ends_there for g in groups]).tolist())
        for g in groups:
            g.ends = [next(ends) for _ in range(len(g.ends_there))]

    def positions(self, number: int) -> Tensor:
        """int64, positions of a number, ascending."""
        return self.order[self.ends[number] : self.ends[number + 1]]

    def size(self, number: int) -> int:
        """Number of positions that have the number."""
        return self.ends[number + 1] - self.ends[number]

    def ranks(self, values: Tensor) -> Tensor:
        """int64 [n], place of each position among those of its number."""
        out = torch.empty_like(self.order)
        out[self.order] = torch.arange(len(out), device=out.device) - self.ends_there[values.long()[self.order]]
        return out


class DeviceTypedRows:
    """`TypedRows` of lists on a device. The host waits once, for the numbers of nodes and edges of each type."""

    def __init__(
        self,
        types: GraphTypes,
        lists: DeviceLists,
        of_rows: Tensor,
        kinds: Tensor,
        weight: Tensor | None,
        degree: Callable[[], Tensor],
        rows: Callable[[], Tensor] = absent_rows,
    ) -> None:
        """
        Args:
            types: of the graph.
            lists: the block's edges.
            of_rows: int64 [num_src], node type of each source.
            kinds: [e], relation of each edge.
            weight: float32 [e], see `Block.weight`; None: there are none.
            degree: returns the in-degrees of the sources, [num_src].
            rows: see `TypedRows`.
        """
        self.types, self._lists, self._of_rows, self._weight = types, lists, of_rows, weight
        self._kinds, self._degree, self._rows = kinds.int(), degree, rows
        names = types.node_types
        self._sources, self._targets = (Groups(x, len(names)) for x in (of_rows, of_rows[: lists.num_dst]))
        self._edges = Groups(self._kinds, types.num_relations)
        Groups.read(self._sources, self._targets, self._edges)
        self._stacked: dict[Any, DeviceStacked] = {}
        self.nodes: tuple[NodeRows, ...] = tuple(
            NodeRows(name, self._sources.positions(t), self._targets.positions(t)) for t, name in enumerate(names)
        )
        """Rows of each node type, in their order."""

    @cached_property
    def relations(self) -> tuple[DeviceRelation, ...]:
        places, rows = self._sources.ranks(self._of_rows), rows_of(self._lists)
        # A destination is a source of the same number, so its place among the destinations of its type is that among
        # the sources.
        return tuple(self._relation(r, places, places[rows]) for r in range(self.types.num_relations))

    def _relation(self, r: int, places: Tensor, rows: Tensor) -> DeviceRelation:
        (src, dst), at, lists = self.types.ends[r].tolist(), self._edges.positions(r), self._lists
        targets = self.nodes[dst].targets
        begin = torch.searchsorted(rows[at], torch.arange(len(targets) + 1, device=at.device))
        own = DeviceLists(begin, lists.indices[at], lists.num_src, min(lists.longest, len(at)), lists.limit)

        def scale() -> Tensor:
            kept = torch.diff(lists.indptr).clamp(min=1)
            return (self._degree()[: lists.num_dst].double() / kept)[targets]

        def features() -> Tensor:
            return self._rows()[at, : self.types.edge_widths[r]]

        weight = None if self._weight is None else self._weight[at]
        relation = DeviceRelation(
            self.types.relations[r], own, self.nodes[src].sources, targets, weight, scale,
            local=places, kernels=None, edges=features,
        )  # fmt: skip
        relation.positions = at
        return relation

    def means(self, h: Tensor, chosen: tuple[bool, ...], flagged: tuple[bool, ...]) -> list[TypeMeans]:
        if (chosen, flagged) not in self._stacked:
            self._stacked[chosen, flagged] = self._stack(chosen, flagged)
        return self._stacked[chosen, flagged].means(h)

    def _stack(self, chosen: Sequence[bool], flagged: Sequence[bool]) -> "DeviceStacked":
        lists, device, into = self._lists, self._kinds.device, self.types.ends[:, 1].tolist()
        rows, own, kernels = rows_of(lists), self._of_rows[: lists.num_dst], aggregation_backend("cuda")

        def places(numbers: list[list[int]], some: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor, Tensor, list[int]]:
            """Edges of the relations that count and destinations that do themselves, with the place of each, and the
            places of each node type: see `stacked`."""
            sizes = [len(each) * self._targets.size(t) for t, each in enumerate(numbers)]
            before = [sum(sizes[:t]) for t in range(len(sizes))]
            per = torch.tensor([[len(each), b] for each, b in zip(numbers, before)], device=device)[own]
            begin = per[:, 1] + self._targets.ranks(own) * per[:, 0]
            found = [
                (self._edges.positions(r), numbers[into[r]].index(r)) for each in numbers for r in each if r != OWN
            ]
            nothing = self._edges.order[:0]
            edges = torch.cat([nothing, *(at for at, _ in found)])
            to = torch.cat([nothing, *(begin[rows[at]] + place for at, place in found)])
            alone = torch.cat([nothing, *(self._targets.positions(t) for t, read in enumerate(some) if read)])
            return edges, to, alone, begin[alone], sizes

        numbers, flags = (lists_of_types(self.types, some) for some in (chosen, flagged))
        edges, to, alone, to_own, sizes = places(numbers, chosen)
        read = torch.tensor(list(chosen), device=device)[self._of_rows]
        place = torch.cumsum(read, 0) - 1
        ordered, order = torch.sort(torch.cat([to_own, to]), stable=True)
        sources = place[torch.cat([alone, lists.indices[edges].long()])][order]
        ends = torch.searchsorted(ordered, torch.arange(sum(sizes) + 1, device=device))
        num_src = sum(self._sources.size(t) for t, some in enumerate(chosen) if some)
        stacked = DeviceLists(ends, sources.int(), num_src, max(lists.longest, 1), lists.limit)
        weight = self._weight
        if weight is not None:
            weight = torch.cat([weight.new_ones(len(alone)), weight[edges]])[order]
        flagged_edges, to, _, to_own, flag_sizes = places(flags, flagged)
        present = torch.zeros(sum(flag_sizes) + 1, dtype=torch.float64, device=device)
        if self._weight is not None:
            # Edges of weight 0 do not count: they set the last number, which is cut off.
            to = torch.where(self._weight[flagged_edges] > 0, to, sum(flag_sizes))
        present[torch.cat([to_own, to])] = 1.0
        present = present[:-1]
        return DeviceStacked(
            stacked,
            weight,
            share(stacked, weight, kernels),
            present,
            numbers,
            sizes,
            flags=flags,
            flag_sizes=flag_sizes,
        )


class DeviceStacked:
    """`StackedRelations` on a device."""

    def __init__(
        self,
        lists: DeviceLists,
        weight: Tensor | None,
        scale: Tensor,
        present: Tensor,
        numbers: list[list[int]],
        sizes: list[int],
        flags: list[list[int]],
        flag_sizes: list[int],
    ) -> None:
        """
        Args:
            lists: see `StackedRelations`.
            weight: of their edges; None: all are 1.
            scale: [lists], 1 over the sum of the weights of each.
            present: one number for each destination and relation that is flagged, see `TypeMeans.present`.
            numbers: relations of the lists of each destination, by node type.
            sizes: lists of each node type.
            flags: relations that are flagged, likewise.
            flag_sizes: their flags.
        """
        self.lists, self._weight, self._share, self._present = lists, weight, scale, present
        self._numbers, self._sizes, self._flags, self._flag_sizes = numbers, sizes, flags, flag_sizes

    def means(self, h: Tensor) -> list[TypeMeans]:
        x, kernels = as_matrix(h, self.lists.num_src, "h"), aggregation_backend("cuda")
        lists: Any = self.lists
        rows = Spmm.apply(x, None, kernels, lists, self._weight, self._share.to(x.dtype))
        parts, flags = Pieces.apply(rows, self._sizes), self._present.to(x.dtype).split(self._flag_sizes)
        return [
            TypeMeans(side_by_side(part, of), of, side_by_side(flag[:, None], flagged), flagged)
            for part, of, flag, flagged in zip(parts, self._numbers, flags, self._flags)
        ]
