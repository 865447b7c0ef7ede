"""Exchange of full-batch rows between ranks, one pair of ranks after the other.

In round r of P-1 every rank sends to the rank r places ahead and receives from the rank r places behind (SAR; Mostafa,
MLSys 2022). Every message has a tag of its own, so there are no barriers: rounds of different ranks may drift apart.
Pairs without rows are skipped.

Between GPUs messages are matched by their order instead. There ranks begin the same rounds in the same order: how far
ahead one is begun depends on the rows of the rank that has most in it, which ranks tell each other once for a run. In
each round every rank sends to one and receives from one, so the first round that has not ended can always end.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..comm.base import TAGS, Group, Swap
from ..kernels import aggregation_on
from ..memory.arena import empty
from .full_batch import RowIds, View

KIND = "activations"
_FETCH, _FETCH_AGAIN, _PUSH = range(3)
_NAMES = ("forward", "backward", "backward")
_most: "WeakKeyDictionary[View, list[int]]" = WeakKeyDictionary()
"""For rounds in a common order: the rows of each round, both ways, of the rank that has most."""


@dataclass(frozen=True, eq=False)
class Aggregation:
    """One aggregation, as its messages need to know it."""

    number: int
    """Distinguishes its messages; the same on all ranks."""
    layer: int
    """Number of the layer, for messages."""
    factor: Tensor | None = None
    """[num_src], rows travel multiplied by it."""


class Ring:
    """Exchanges of one pass over a model's layers. All ranks make the same calls in the same order."""

    def __init__(self, group: Group, prefetch_bytes: int, device: torch.device | None = None) -> None:
        """
        Args:
            group: the ranks.
            prefetch_bytes: rows of later rounds are exchanged ahead of time while at most this much is under way, both
                ways.
            device: of the rows; None: the host.
        """
        self.group = group
        self._in_order = device is not None and group.matches_by_order(device)
        self.prefetch_bytes = prefetch_bytes
        self.waited_s = 0.0
        """Seconds in which this rank only waited for others."""
        self._calls = 0

    def wait(self, until: Callable[[str], object], label: str) -> None:
        """Call ``until(label)`` and add its duration to `waited_s`."""
        start = time.perf_counter()
        until(label)
        self.waited_s += time.perf_counter() - start

    def begin(self, layer: int, factor: Tensor | None = None) -> Aggregation:
        """A new aggregation."""
        self._calls += 1
        return Aggregation(self._calls, layer, factor)

    def rows(self, view: View, x: Tensor, call: Aggregation, again: bool = False) -> Iterator[tuple[int, Tensor]]:
        """Rows that `view` reads of every other rank's x, one rank after the other.

        Args:
            view: the part of the batch that reads.
            x: [num_src, ...] of this rank, contiguous.
            call: whose rows they are.
            again: true for the backward pass.

        Yields: (rank, its rows in the order of the shard's sources) for each of `rounds`: empty if this rank receives
        none. The caller owns them.
        """
        kind = _FETCH_AGAIN if again else _FETCH

        kernels = aggregation_on(x.device)

        def start(r: int) -> tuple[Swap, Tensor]:
            to, source = self._peers(r)
            into = empty((view.shards[source].lists.num_src, *x.shape[1:]), x.dtype, x.device)
            part = kernels.take_rows(x, view.wanted_on(x.device, to), call.factor)
            return self._start(part, into, call, kind, r), into

        row_bytes = x.shape[1:].numel() * x.itemsize
        rounds = self.rounds(view)
        waiting = deque(rounds)
        under_way: deque[tuple[int, Swap, Tensor]] = deque()
        in_flight = 0
        for r in rounds:
            while waiting and (
                waiting[0] == r or in_flight + self._size(view, waiting[0]) * row_bytes <= self.prefetch_bytes
            ):
                ahead = waiting.popleft()
                in_flight += self._size(view, ahead) * row_bytes
                under_way.append((ahead, *start(ahead)))
            _, swap, into = under_way.popleft()
            to, source = self._peers(r)
            label = self._label(call, kind, r)
            self.wait(swap.received, f"{label}: rows of rank {source}")
            yield source, into
            del into
            self.wait(swap.sent, f"{label}: sending rows to rank {to}")
            in_flight -= self._size(view, r) * row_bytes

    def push(self, view: View, r: int, part: Tensor, onto: Tensor, call: Aggregation) -> "Push":
        """Start round r of sending gradients back: `part` goes to the owner of the rows that were read. `Push.finish`
        adds the gradients that come in for this rank's rows to `onto` [num_src, ...] (times the factor)."""
        # Against the direction of `rows`: gradients go to the owners of the rows.
        source, to = self._peers(r)
        into = empty((len(view.wanted[source]), *onto.shape[1:]), onto.dtype, onto.device)
        swap, ids = self._start(part, into, call, _PUSH, r), view.wanted_on(onto.device, source)
        label = f"{self._label(call, _PUSH, r)}: gradients from rank {source}, to rank {to}"
        return Push(self, swap, into, ids, onto, call.factor, label=label, nbytes=part.nbytes + into.nbytes)

    def push_all(self, view: View, make: Callable[[int], Tensor], onto: Tensor, call: Aggregation) -> None:
        """All rounds of `push`; ``make(q)`` returns the gradients of the rows of rank q. While one round travels, the
        next is computed."""
        before: Push | None = None
        for r in self.rounds(view):
            part = make(self.source(r))
            if before is not None:
                before.finish()
            before = self.push(view, r, part, onto, call)
            del part
            if before.nbytes > self.prefetch_bytes:
                before.finish()
                before = None
        if before is not None:
            before.finish()

    def rounds(self, view: View) -> list[int]:
        """Rounds in which something travels from or to this rank; in a common order, from or to any rank."""
        return [r for r in range(1, self.group.size) if self._size(view, r)]

    def source(self, r: int) -> int:
        """Rank that sends rows in round r."""
        return self._peers(r)[1]

    def _peers(self, r: int) -> tuple[int, int]:
        """Ranks that this one sends rows to and receives rows from in round r."""
        rank, size = self.group.rank, self.group.size
        return (rank + r) % size, (rank - r) % size

    def _size(self, view: View, r: int) -> int:
        """Rows that travel in round r, both ways (the same rows come back as gradients); in a common order, those of
        the rank that has most."""
        if self._in_order:
            if view not in _most:
                _most[view] = self._agreed([0, *(self._own_size(view, k) for k in range(1, self.group.size))])
            return _most[view][r]
        return self._own_size(view, r)

    def _own_size(self, view: View, r: int) -> int:
        to, source = self._peers(r)
        return len(view.wanted[to]) + view.shards[source].lists.num_src

    def _agreed(self, sizes: list[int]) -> list[int]:
        """The largest of each number over the ranks."""
        table = torch.zeros((self.group.size, len(sizes)), dtype=torch.int64)
        table[self.group.rank] = torch.tensor(sizes)
        self.group.all_reduce(table.view(-1), "control")
        return table.amax(0).tolist()

    def _start(self, part: Tensor, into: Tensor, call: Aggregation, kind: int, r: int) -> Swap:
        ahead, behind = self._peers(r)
        to, source = (behind, ahead) if kind == _PUSH else (ahead, behind)
        return self.group.swap(part, to, into, source, ((call.number * 3 + kind) * self.group.size + r) % TAGS, KIND)

    def _label(self, call: Aggregation, kind: int, r: int) -> str:
        return f"layer {call.layer}, {_NAMES[kind]}, round {r} of {self.group.size - 1}"


@dataclass(frozen=True, eq=False)
class Push:
    """Gradients under way, both ways."""

    ring: Ring
    swap: Swap
    into: Tensor
    """Rows that come in."""
    ids: RowIds
    """Rows of `onto` to which they are added, times `factor`."""
    onto: Tensor
    factor: Tensor | None
    label: str
    nbytes: int
    """Bytes of both ways."""

    def finish(self) -> None:
        """Wait for both, and add the gradients received."""
        self.ring.wait(self.swap.received, self.label)
        if self.factor is not None:
            scale = self.factor[torch.as_tensor(self.ids)]
            self.into.mul_(scale.view(-1, *[1] * (self.into.ndim - 1)))
        aggregation_on(self.onto.device).add_rows(self.onto, self.ids, self.into)
        self.ring.wait(self.swap.sent, self.label)
