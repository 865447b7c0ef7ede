"""Relations of a block whose lists lie on a device: `relations` and `stacked` without a copy on the host."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ...storage.optional import taken
from ...storage.typed.graph_types import GraphTypes
from ..kernels import aggregation_backend
from ..kernels.aggregation.lists import DeviceLists
from .base import Neighbourhood
from .checked import share
from .relations import NodeRows, Relation, TypedEdges
from .stacked import OWN, Stacked, lists_of_types


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


class DeviceTypedRows(TypedEdges):
    """`TypedRows` of lists on a device. The host waits once, for the numbers of nodes and edges of each type."""

    def __init__(
        self,
        of: Neighbourhood,
        types: GraphTypes,
        of_rows: Tensor,
        kinds: Tensor,
        lists: DeviceLists,
        weight: Tensor | None,
    ) -> None:
        """
        Args:
            of: see `TypedEdges`.
            types: of the graph.
            of_rows: int64 [num_src], node type of each source.
            kinds: [e], relation of each edge.
            lists: the block's edges.
            weight: float32 [e], see `Block.weight`; None: there are none.
        """
        names, self._lists, self._of_rows, self._weight = types.node_types, lists, of_rows, weight
        self._kinds = kinds.int()
        self._sources, self._targets = (Groups(x, len(names)) for x in (of_rows, of_rows[: lists.num_dst]))
        self._edges = Groups(self._kinds, types.num_relations)
        Groups.read(self._sources, self._targets, self._edges)
        ends = self._sources, self._targets
        nodes = (NodeRows(name, *(each.positions(t) for each in ends)) for t, name in enumerate(names))
        super().__init__(of, types, nodes)

    @property
    def _kept(self) -> Tensor:
        return self._lists.kept

    @cached_property
    def relations(self) -> tuple[Relation, ...]:
        places, lists, found = self._sources.ranks(self._of_rows), self._lists, []
        # A destination is a source of the same number, so its place among the destinations of its type is that among
        # the sources.
        rows = places[lists.rows_on(places.device)]
        for r, (_, dst) in enumerate(self.types.ends.tolist()):
            at, count = self._edges.positions(r), len(self.nodes[dst].targets)
            begin = torch.searchsorted(rows[at], torch.arange(count + 1, device=at.device))
            own = DeviceLists(begin, lists.indices[at], lists.num_src, min(lists.longest, len(at)), lists.limit)
            found.append(self._relation(r, own, at, taken(self._weight, at), places))
        return tuple(found)

    def _stack(self, chosen: tuple[bool, ...], flagged: tuple[bool, ...]) -> Stacked:
        lists, device, into = self._lists, self._kinds.device, self.types.ends[:, 1].tolist()
        rows, own, kernels = lists.rows_on(device), self._of_rows[: lists.num_dst], aggregation_backend("cuda")

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
        into_types = DeviceLists(ends, sources.int(), num_src, max(lists.longest, 1), lists.limit)
        weight = self._weight
        if weight is not None:
            weight = torch.cat([weight.new_ones(len(alone)), weight[edges]])[order]
        flagged_edges, to, _, to_own, flag_sizes = places(flags, flagged)
        present = torch.zeros(sum(flag_sizes) + 1, dtype=torch.float64, device=device)
        if self._weight is not None:
            # Edges of weight 0 do not count: they set the last number, which is cut off.
            to = torch.where(self._weight[flagged_edges] > 0, to, sum(flag_sizes))
        present[torch.cat([to_own, to])] = 1.0
        return Stacked(
            lists=into_types,
            weight=weight,
            share=share(into_types, weight, kernels),
            present=present[:-1],
            numbers=(numbers, flags),
            sizes=(sizes, flag_sizes),
        )
