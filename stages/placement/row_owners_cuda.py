"""`row_owners` on GPUs: ids go to the owners of rows, and drawn edges come back, from GPU to GPU.

The thread that trains begins everything, at steps that are the same on all ranks of a grid column, on the communicator
by which feature rows travel too: so all ranks begin the same exchanges in the same order, and none waits for one that
another rank has put behind something else. The host knows sizes: it waits for the device three times a hop, and twice
for the hosts of other ranks. A rank without minibatches asks for nothing and answers the others.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..comm.base import Group
from ..kernels import sampling_backend
from ..kernels.runtime.device_memory import to_device, wait_for_copies
from ..kernels.sampling.device_samples import DeviceSample, Rows, prefix_sums
from ..random import NODE
from .row_blocks import BlockRows

Keys = npt.NDArray[np.uint64]


class DrawsHere(Protocol):
    """Draws in the rows on this device."""

    fanout: tuple[int, ...]
    replace: bool
    expand_all: bool
    """Draw for every node so far at each hop."""
    has_values: bool
    """True if `values` gives any."""

    def draw(self, rows: Rows, keys: Tensor, hop: int) -> Any:
        """See `kernels.sampling.cuda.block_rows.draw_rows`."""
        ...

    def values(self, rows: Rows, drawn: Any, num_edges: int) -> list[Tensor]:
        """Values that travel with the edges beside their sources, [num_edges] each; as many, of the same dtypes, on
        all ranks."""
        ...


class OwnersOnDevice:
    """The rows of this rank on its device, and messages to the ranks that hold the others. Counted under ``graph``;
    sizes under ``control``."""

    def __init__(self, rows: BlockRows, group: Group, device: torch.device) -> None:
        """
        Args:
            rows: rows of this rank.
            group: the ranks of its column, for the thread that trains.
            device: of this rank.
        """
        self.rows, self.group, self.device, self.kernels = rows, group, device, sampling_backend("cuda")
        self._workspace = self.kernels.Workspace()
        offsets = rows.book.offsets
        self._begins, self._ends = (to_device(x.copy(), device) for x in (offsets[:-1], offsets[1:-1]))
        like = torch.from_numpy(rows.graph.indices[:0])
        self._id_type = like.dtype
        self._local_type = torch.int32 if int(np.diff(offsets).max(initial=0)) < 2**31 else torch.int64
        wait_for_copies(device)

    def sample(
        self, seeds: Sequence[npt.NDArray[np.integer]], keys: Keys, here: DrawsHere
    ) -> Iterator[tuple[slice, DeviceSample, list[Tensor]]]:
        """Draw minibatches, with the same bits as in the whole graph. All ranks of the column call this together and
        consume all of it.

        Args:
            seeds: of each of k minibatches of this rank; there may be none.
            keys: uint64 [k, L], random stream of each minibatch and hop.
            here: draws in the rows of this rank; of the same sampler on all ranks.

        Yields: ranges of minibatches, with their samples and the values of all edges, as they came; where there are
            values, `DeviceList.positions` are places among these.
        """
        hops, kernels = len(here.fanout), self.kernels
        mine = torch.from_numpy(np.ascontiguousarray(keys.reshape(len(seeds), hops)).view(np.int64))
        streams = [t.numpy().view(np.uint64) for t in self.group.all_to_all([mine] * self.group.size, "graph")]
        # Ranks draw as many pieces as the one with the most minibatches.
        step, nodes = kernels.at_once(self.rows.num_nodes), kernels.AllNodes(self.rows.num_nodes, self.device)
        for at in range(0, max(map(len, streams)), step):
            piece = slice(at, at + step)
            hop = _Hop(self, here, [s[piece] for s in streams])
            if own := seeds[piece]:
                found = kernels.neighbor_of_owners(
                    nodes, own, self._id_type, here.fanout, hop.ask,
                    replace=here.replace, expand_all=here.expand_all, keep=here.has_values, workspace=self._workspace,
                )  # fmt: skip
                yield piece, found, [torch.cat(v) for v in zip(*hop.values)]
                continue
            none = torch.empty(0, dtype=self._id_type, device=self.device)
            for h in range(hops):
                hop.ask(Rows(none, none.int()), h)

    def by_owner(self, rows: Rows, minibatches: int) -> tuple[Tensor, Tensor, npt.NDArray[np.int64]]:
        """The order of rows by owner, their numbers in the owners' blocks in that order, and int64 [P, minibatches]:
        the rows of each owner and minibatch, on the host, which waits."""
        ids = rows.nodes.long()
        owner, order = torch.sort(torch.searchsorted(self._ends, ids, right=True), stable=True)
        local = (ids[order] - self._begins[owner]).to(self._local_type)
        each = torch.arange(self.group.size * minibatches, device=self.device)
        ends = torch.searchsorted(owner * minibatches + rows.owner[order], each, right=True)
        counts = np.diff(ends.cpu().numpy(), prepend=0)
        return order, local, counts.reshape(self.group.size, minibatches)

    def exchange(self, parts: Sequence[Tensor], sizes: Sequence[int], kind: str = "graph") -> list[Tensor]:
        """Send part r to rank r, and return `sizes[r]` numbers from rank r."""
        theirs = [0 if r == self.group.rank else n for r, n in enumerate(sizes)]
        return self.group.all_to_all(list(parts), kind, list(parts[0].new_empty(sum(theirs)).split(theirs)))


class _Hop:
    """Hops of one piece: asks for this rank's rows, and answers all ranks."""

    def __init__(self, owners: OwnersOnDevice, here: DrawsHere, streams: Sequence[Keys]) -> None:
        """
        Args:
            owners: of this rank.
            here: draws in its rows.
            streams: keys of the minibatches of each rank.
        """
        self._owners, self._here = owners, here
        self._minibatches = [len(s) for s in streams]
        # A draw is keyed by the node's global id; the kernels know its number in the block.
        with np.errstate(over="ignore"):
            keys = np.concatenate(streams) + np.uint64(owners.rows.first) * np.uint64(NODE)
        self._keys = to_device(np.ascontiguousarray(keys.T).view(np.int64), owners.device)
        self.values: list[list[Tensor]] = []
        """Values of the edges, hop after hop; see `DrawsHere.values`."""

    def ask(self, rows: Rows, h: int) -> Any:
        """See `kernels.sampling.cuda.block_rows.Ask`."""
        owners, rank = self._owners, self._owners.group.rank
        order, local, counts = owners.by_owner(rows, self._minibatches[rank])
        wanted = counts.sum(1).tolist()
        asked = owners.exchange([torch.from_numpy(c) for c in counts], self._minibatches, "control")
        num_asked = [int(c.sum()) for c in asked]
        ids = torch.cat(owners.exchange(local.split(wanted), num_asked))

        each = to_device(torch.cat(asked).numpy(), ids.device)
        minibatch = torch.arange(len(each), dtype=torch.int32, device=ids.device)
        here = Rows(ids, torch.repeat_interleave(minibatch, each, output_size=len(ids)))
        drawn = self._here.draw(here, self._keys[h], h)
        ends = drawn.ends[to_device(prefix_sums(np.array(num_asked)), ids.device)]
        edges = np.diff(ends.cpu().numpy()).tolist()

        kept = owners.exchange(drawn.ends.diff().int().split(num_asked), wanted)
        sources = owners.group.all_to_all(list(drawn.sources[: sum(edges)].split(edges)), "graph")
        sizes = [len(s) for s in sources]
        values = self._here.values(here, drawn, sum(edges))
        self.values.append([torch.cat(owners.exchange(v.split(edges), sizes)) for v in values])
        return owners.kernels.Answers(order, torch.cat(kept).long(), torch.cat(sources))
