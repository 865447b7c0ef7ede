"""`row_owners` on GPUs: ids go to the owners of rows, and drawn edges come back, from GPU to GPU.

The thread that trains begins everything, at steps that are the same on all ranks that draw together, on the
communicator by which feature rows travel too: so all ranks begin the same exchanges in the same order, and none waits
for one that another rank has put behind something else. The host knows sizes, and awaits them three times a hop
(`StagedOnDevice`: five): a coroutine stands still there, and whoever runs it decides when to go on. Sizes of other
ranks' messages come from device to device, so no host waits for another. A rank without minibatches asks for nothing
and answers the others, in as many stages.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import WordArray
from ..assignment import BulkRequest
from ..comm.base import Group
from ..kernels import sampling_backend
from ..kernels.runtime.device_memory import ToHost, to_device, wait_for_copies
from ..kernels.sampling.device_graph import DeviceGraph, RowsOnDevice
from ..kernels.sampling.device_samples import DeviceSample, Rows, prefix_sums
from ..kernels.sampling.draws import NeighborDraws
from .row_blocks import BlockRows, Grid

Keys = WordArray


class DrawsHere(Protocol):
    """Draws in the rows on this device."""

    fanout: tuple[int, ...]
    replace: bool
    expand: str
    """See `NodeWiseDraws.expand`."""
    has_values: bool
    """True if `values` gives any."""

    @property
    def own(self) -> RowsOnDevice:
        """The rows of this rank, with what the sampler reads of them."""

    def draw(self, block: RowsOnDevice, rows: Rows, keys: Tensor, hop: int) -> Any: ...

    def values(self, block: RowsOnDevice, rows: Rows, drawn: Any, num_edges: int) -> list[Tensor]:
        """Values that travel with the edges beside their sources, [num_edges] each; as many, of the same dtypes, on
        all ranks."""


class OwnersOnDevice:
    """The rows of this rank on its device, and messages to the ranks that hold the others. Counted under ``graph``;
    numbers of rows asked for, and bytes of bulks, under ``control``."""

    def __init__(self, rows: BlockRows, group: Group, device: torch.device, ranks: Sequence[int] | None = None) -> None:
        """
        Args:
            rows: rows of this rank.
            group: the ranks of its column, for the thread that trains.
            device: of this rank.
            ranks: the numbers of those of the group among all; None: it has all.
        """
        self.rows, self.group, self.device, self.kernels = rows, group, device, sampling_backend("cuda")
        self._workspace, self._ranks = self.kernels.Workspace(), ranks or range(group.size)
        self.minibatches: Sequence[int] = ()
        """Minibatches of each of all ranks in the bulk that is drawn next."""
        offsets = rows.book.offsets
        self._begins, self._ends = (to_device(x.copy(), device) for x in (offsets[:-1], offsets[1:-1]))
        like = torch.from_numpy(rows.graph.indices[:0])
        self._id_type = like.dtype
        self._local_type = torch.int32 if int(np.diff(offsets).max(initial=0)) < 2**31 else torch.int64
        wait_for_copies(device)

    async def sample(
        self, request: BulkRequest, keys: Keys, here: DrawsHere
    ) -> AsyncIterator[tuple[slice, DeviceSample, list[Tensor]]]:
        """Draw minibatches, with the same bits as in the whole graph. All ranks that draw together call this and
        consume all of it; they await the same number of times, and go on together.

        Args:
            request: k minibatches of this rank; there may be none.
            keys: uint64 [k, L], random stream of each minibatch and hop.
            here: draws in the rows of this rank; of the same sampler on all ranks.

        Yields: ranges of minibatches, with their samples and the values of all edges, as they came; where there are
            values, `DeviceList.positions` are places among these.
        """
        hops, kernels, sizes = len(here.fanout), self.kernels, [self.minibatches[r] for r in self._ranks]
        mine = to_device(np.ascontiguousarray(keys.reshape(len(request.seeds), hops)).view(np.int64), self.device)
        streams = self.exchange([mine] * self.group.size, sizes)
        # Ranks draw as many pieces as the one with the most minibatches.
        step, nodes = kernels.at_once(self.rows.num_nodes), kernels.AllNodes(self.rows.num_nodes, self.device)
        for at in range(0, max(self.minibatches), step):
            piece = slice(at, at + step)
            hop = _Hop(self, here, [s[piece] for s in streams])
            if own := request.seeds[piece]:
                asked = NeighborDraws(
                    own,
                    keys[piece],
                    here.fanout,
                    replace=here.replace,
                    expand=here.expand,
                    keep_positions=here.has_values,
                    workspace=self._workspace,
                )
                found = await kernels.neighbor_of_owners(nodes, asked, self._id_type, hop.ask)
                yield piece, found, [torch.cat(v) for v in zip(*hop.values)]
                continue
            none = torch.empty(0, dtype=self._id_type, device=self.device)
            for h in range(hops):
                await hop.ask(Rows(none, none.int()), h)
                # Here others await the number of new nodes.
                await ToHost(none)

    async def most(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        mine = to_device(np.array([number], np.int64), self.device)
        numbers = self.exchange([mine] * self.group.size, [1] * self.group.size, "control")
        return int((await ToHost(torch.cat(numbers))).max())

    def owner_of(self, ids: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
        """The rank of the group that answers for each of some int64 ids, what is subtracted from an id that it is asked
        for, and the dtype of the difference."""
        owner = torch.searchsorted(self._ends, ids, right=True)
        return owner, self._begins[owner], self._local_type

    async def rows_for(self, ids: Tensor, here: DrawsHere) -> tuple[RowsOnDevice, Tensor]:
        """Rows to draw in, and the number among them of each of those that this rank is asked for. All ranks await as
        often."""
        return here.own, ids

    def by_owner(self, rows: Rows, minibatches: int) -> tuple[Tensor, Tensor, Tensor]:
        """The order of rows by owner, the numbers by which owners know them in that order, and int64 [P, minibatches]:
        the rows of each owner and minibatch."""
        ids = rows.nodes.long()
        owner, begin, dtype = self.owner_of(ids)
        owner, order = torch.sort(owner, stable=True)
        local = (ids - begin)[order].to(dtype)
        each = torch.arange(self.group.size * minibatches + 1, device=self.device)
        ends = torch.searchsorted(owner * minibatches + rows.owner[order], each)
        return order, local, ends.diff().view(self.group.size, minibatches)

    def exchange(self, parts: Sequence[Tensor], sizes: Sequence[int], kind: str = "graph") -> list[Tensor]:
        """Send part r to rank r, and return `sizes[r]` numbers, or rows of them, from rank r."""
        theirs = [0 if r == self.group.rank else n for r, n in enumerate(sizes)]
        into = parts[0].new_empty((sum(theirs), *parts[0].shape[1:]))
        return self.group.all_to_all(list(parts), kind, list(into.split(theirs)))


class StagedOnDevice(OwnersOnDevice):
    """`staged_rows` on devices: rows travel along the columns of the grid, and are drawn in where they came.

    Ids and drawn edges travel along the grid row, as to owners and back; the group is this rank's grid row. For the
    distinct rows that a hop asks of it, a rank sends one message to each owner in its column, and gets their lengths,
    then their edges, with what the sampler reads of both. Its own block's rows come the same way, without leaving the
    device. Sizes are awaited twice more a hop.
    """

    def __init__(self, rows: BlockRows, column: Group, row: Group, device: torch.device, ranks: Sequence[int]) -> None:
        """
        Args:
            rows: rows of this rank.
            column: the ranks of its grid column, for the thread that trains.
            row: those of its grid row, likewise.
            device: of this rank.
            ranks: the numbers of those of its grid row among all.
        """
        super().__init__(rows, row, device, ranks)
        self._blocks = OwnersOnDevice(rows, column, device)
        grid = Grid(column.size * row.size, row.size)
        answers = np.repeat(np.arange(row.size), [len(grid.stages(j)) for j in range(row.size)])
        answers[rows.block] = row.rank
        self._answers = to_device(answers, device)

    def owner_of(self, ids: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
        """See `OwnersOnDevice.owner_of`: the rank whose column has the stage of an id's block. Ids stay global."""
        owner = self._answers[super().owner_of(ids)[0]]
        return owner, torch.zeros_like(owner), self._id_type

    async def most(self, number: int) -> int:
        """See `OwnersOnDevice.most`: of all ranks of the grid."""
        return await self._blocks.most(await super().most(number))

    async def rows_for(self, ids: Tensor, here: DrawsHere) -> tuple[RowsOnDevice, Tensor]:
        """See `OwnersOnDevice.rows_for`. All ranks of the grid column call this together."""
        blocks, own = self._blocks, here.own
        ids, order = torch.sort(ids.long())
        new = torch.ones(len(ids), dtype=torch.int64, device=self.device)
        new[1:] = (ids[1:] != ids[:-1]).long()
        number = torch.cumsum(new, 0) - 1
        block, begin, dtype = blocks.owner_of(ids)
        counts = torch.zeros(blocks.group.size, dtype=torch.int64, device=self.device).index_add_(0, block, new)
        each = torch.cat(blocks.exchange(list(counts.split(1)), [1] * blocks.group.size, "control"))
        wanted, asked = (await ToHost(torch.cat([counts, each]))).reshape(2, -1).tolist()

        # Repeats write the same number.
        rows, local = (torch.zeros(sum(wanted), dtype=torch.int64, device=self.device) for _ in range(2))
        rows.scatter_(0, number, ids)
        local.scatter_(0, number, ids - begin)
        theirs = torch.cat(blocks.exchange(local.to(dtype).split(wanted), asked))
        kept = own.lists.indptr[1:][theirs] - own.lists.indptr[theirs]
        got = torch.cat(blocks.exchange(kept.int().split(asked), wanted))
        ends, indptr = self.kernels.cumulated(kept), self.kernels.cumulated(got)
        longest = torch.cat([got.new_zeros(1), got]).max().long()[None]
        known = await ToHost(torch.cat([_ends_at(ends, asked), _ends_at(indptr, wanted), longest]))
        sent, came = np.diff(known[:-1].reshape(2, -1)).tolist()
        taken = self.kernels.rows_of(own.lists, theirs, sum(sent))

        def moved(values: Tensor, of: list[int], into: list[int]) -> Tensor:
            return torch.cat(blocks.exchange(values.split(of), into))

        lists = DeviceGraph(indptr, moved(taken.sources[: sum(sent)], sent, came), int(known[-1]))
        of_rows = {name: moved(x[theirs], asked, wanted) for name, x in own.of_rows.items()}
        of_edges = {name: moved(x[taken.positions[: sum(sent)]], sent, came) for name, x in own.of_edges.items()}
        place = torch.empty_like(number).scatter_(0, order, number)
        return RowsOnDevice(lists, rows, of_rows, of_edges), place


class _Hop:
    """Hops of one piece: asks for this rank's rows, and answers all ranks."""

    def __init__(self, owners: OwnersOnDevice, here: DrawsHere, streams: Sequence[Tensor]) -> None:
        """
        Args:
            owners: of this rank.
            here: draws in its rows.
            streams: int64 [k, L], keys of the minibatches of each rank.
        """
        self._owners, self._here = owners, here
        self._minibatches = [len(s) for s in streams]
        self._keys = torch.cat(list(streams)).T.contiguous()
        self.values: list[list[Tensor]] = []
        """Values of the edges, hop after hop; see `DrawsHere.values`."""

    async def ask(self, rows: Rows, h: int) -> Any:
        owners, own, here = self._owners, self._minibatches[self._owners.group.rank], self._here
        order, local, counts = owners.by_owner(rows, own)
        each = torch.cat(owners.exchange(list(counts), self._minibatches, "control"))
        known = await ToHost(torch.cat([counts.flatten(), each]))
        wanted = known[: counts.numel()].reshape(counts.shape).sum(1).tolist()
        of_rank = np.split(known[counts.numel() :], np.cumsum(self._minibatches)[:-1])
        asked = [int(c.sum()) for c in of_rank]

        ids = torch.cat(owners.exchange(local.split(wanted), asked))
        minibatch = torch.arange(len(each), dtype=torch.int32, device=ids.device)
        owner = torch.repeat_interleave(minibatch, each, output_size=len(ids))
        block, numbers = await owners.rows_for(ids, here)
        lists = Rows(numbers, owner)
        drawn = here.draw(block, lists, self._keys[h], h)
        kept = torch.cat(owners.exchange(drawn.ends.diff().int().split(asked), wanted))
        ends = owners.kernels.cumulated(kept)
        known = await ToHost(torch.cat([_ends_at(drawn.ends, asked), _ends_at(ends, wanted)]))
        edges, sizes = np.diff(known.reshape(2, -1)).tolist()

        sources = torch.cat(owners.exchange(drawn.sources[: sum(edges)].split(edges), sizes))
        values = here.values(block, lists, drawn, sum(edges))
        self.values.append([torch.cat(owners.exchange(v.split(edges), sizes)) for v in values])
        return owners.kernels.Answers(order, ends, sources)


def _ends_at(ends: Tensor, sizes: Sequence[int]) -> Tensor:
    """Elements of `ends` at the ends of ranges of these sizes, from 0 on."""
    return ends[to_device(prefix_sums(np.array(sizes)), ends.device)]
