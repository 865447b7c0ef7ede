"""Ranks that communicate over TCP, through the gloo backend of torch.distributed."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from ...storage.errors import InputError, PeerLostError
from ...storage.ledger import Ledger
from .base import TAGS, Overlap, Swap, nothing
from .watch import Watch

SEGMENT_BYTES = 1 << 20
"""Segments of a vector, at most this large, let gloo overlap sending with summing."""


@dataclass(frozen=True)
class Contact:
    """How other ranks reach this one, and how long it waits for them."""

    host: str | None = None
    """A name or an address of this machine that the other ranks can reach. None: the address of the machine's own name,
    or loopback if it has none."""
    on_wait: Callable[[str], None] | None = None
    """Called with a sentence when this rank waits long for a `swap`, from another thread."""
    slow_peer_warning_s: float = 10.0
    """Seconds that are long."""
    timeout_s: float = 1800.0
    """Seconds to wait for the other ranks at the first meeting, and in every collective."""


class Gloo:
    """A `Group` of P processes in a process group of its own: torch's default group is neither used nor needed.

    The ledger counts payload. Gloo adds up to three headers of 48 bytes to each message, two from who sends it and one
    from who receives it. What this rank sends:

    ============  =====================================================================================================
    all_reduce    `ring_bytes`: 2 (P-1)/P n for a vector of n bytes, up to rounding; 2 (P-1) n over all ranks, exactly
    any           P-1: a byte to each other rank
    broadcast     n for each of `broadcast_sends`; (P-1) n over all ranks
    all_to_all    the bytes of the parts for other ranks, and 8 (P-1) of ``control`` if sizes travel
    swap          the bytes of the part
    ============  =====================================================================================================

    Waits are counted in round trips: gloo sends once the receiver has said that it is ready. These are `sum_waits` for
    all_reduce, log2 P for broadcast, one for the others and one more for sizes.

    Tensors in a device's memory go through host memory, which waits for the device. Ranks may thus share a GPU.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        ledger: Ledger,
        contact: Contact = Contact(),
    ) -> None:
        """Meet the other ranks and connect to each of them.

        Args:
            store: where ranks exchange addresses; unused by any other group, so wrap it in a ``PrefixStore``.
            rank: this process, in [0, size).
            size: P.
            ledger: counts the bytes.
            contact: how it is reached.

        Raises:
            InputError: the host is not an address of this machine.
            PeerLostError: the others did not come in time.
        """
        assert 0 <= rank < size
        self.rank, self.size = rank, size
        self.present = range(size)
        self._store, self._contact, host = store, contact, contact.host
        self._names: Sequence[int] = range(size)
        """Ranks as the ledger names them: those of the whole group, which has `_world`."""
        self._world = size
        self._subs: list[Gloo] = []
        self._times: Counter[str] = Counter()
        self._ledger = ledger
        self._channel = "network"
        self._posted: dict[tuple[int, torch.dtype], _PostedReceive] = {}
        self._under_way: Any = None
        """The sum under way. Held here and in no variable: connections stay open while anything refers to them, even
        the frames of an error, and peers learn of a loss when they close."""
        self._watch = None if contact.on_wait is None else Watch(contact.on_wait, contact.slow_peer_warning_s)
        backend: Any = dist.ProcessGroupGloo
        options = backend._Options()
        options._timeout = timedelta(seconds=contact.timeout_s)
        try:
            options._devices = [backend.create_device(hostname=host) if host else backend.create_default_device()]
        except RuntimeError as e:
            raise InputError(
                f"host {host!r} is not an address of this machine ({_gist(e)}); name one that other ranks can reach"
            ) from e
        with self._naming_lost_peer("the first meeting"):
            self._group: Any = backend(store, rank, size, options)
            # Connected to all is not yet connected by all: a rank that ends at once must not disturb the meeting of the
            # others.
            try:
                self._group.barrier().wait()
            except RuntimeError:
                self._group.shutdown()  # the frames of the error would keep the connections
                raise

    def sub(self, name: str, ranks: Sequence[int], same_thread: bool = False) -> "Gloo":
        # Remove what an earlier group of that name left in the store.
        place = "/".join([name, *map(str, ranks)])
        self._times[place] += 1
        store = PrefixStore(f"sub/{place}/{self._times[place]}", self._store)
        own = self._alike(store, list(ranks).index(self.rank), len(ranks), same_thread)
        own._names = [self._names[r] for r in ranks]
        own._world = self._world
        self._subs.append(own)
        return own

    def _alike(self, store: Store, rank: int, size: int, same_thread: bool) -> "Gloo":
        return Gloo(store, rank, size, self._ledger, replace(self._contact, on_wait=None))

    @contextmanager
    def counting(self, channel: str) -> Iterator[None]:
        before, self._channel = self._channel, channel
        try:
            yield
        finally:
            self._channel = before

    def all_reduce(self, flat: Tensor, kind: str, overlap: Overlap = nothing) -> None:
        """See `Group.all_reduce`. A ring: each chunk is summed once, on its way round, and then handed on. Two ranks
        send each other their gradients, whose size is that of every step, without a handshake (`_PostedReceive`)."""
        assert flat.is_contiguous()
        if not flat.numel():
            return
        with self._naming_lost_peer("all_reduce"):
            there = self._begin_sum(flat, kind)
        # A failure in the callback is not a peer's fault.
        overlap()
        with self._naming_lost_peer("all_reduce"):
            sent, waits = self._finish_sum(there, flat, kind)
        self._ledger.add(self._channel, kind, sent, waits)

    def any(self, flag: bool) -> bool:
        """See `Group.any`. One round to all others: faster than a ring of 2 (P-1) hops."""
        return bool(self._swap(torch.full((self.size,), flag, dtype=torch.uint8), "any").any())

    def broadcast(self, flat: Tensor, source: int, kind: str) -> None:
        """See `Group.broadcast`. A binomial tree."""
        assert flat.is_contiguous() and 0 <= source < self.size
        if not flat.numel():
            return
        with self._naming_lost_peer("broadcast"):
            sent, waits = self._spread(flat, source)
        self._ledger.add(self._channel, kind, sent, waits)

    def all_to_all(self, parts: list[Tensor], kind: str, into: list[Tensor] | None = None) -> list[Tensor]:
        """See `Group.all_to_all`. Adjacent parts, such as those of ``Tensor.split``, are not copied first."""
        assert len(parts) == self.size
        # This rank's own part would only be copied.
        sent = [p[:0] if r == self.rank else p for r, p in enumerate(parts)]
        if into is None:
            counts = self._swap(torch.tensor([len(p) for p in sent]), "all_to_all").tolist()
            into = list(parts[0].new_empty((sum(counts), *parts[0].shape[1:])).split(counts))
        heard = _adjoining(into)
        assert heard is not None and not len(into[self.rank]), (
            "`into` must be cut from one tensor, with nothing for this rank"
        )
        together = _adjoining(sent)
        with self._naming_lost_peer("all_to_all"):
            self._exchange(
                heard, torch.cat(sent) if together is None else together, [len(p) for p in into], [len(p) for p in sent]
            )
        self._count(kind, [p.nbytes for p in sent])
        return [parts[r] if r == self.rank else into[r] for r in range(self.size)]

    def matches_by_order(self, device: torch.device) -> bool:
        return False

    def swap(self, part: Tensor, to: int, into: Tensor, source: int, tag: int, kind: str) -> Swap:
        assert part.is_contiguous() and into.is_contiguous() and 0 <= tag < TAGS
        with self._naming_lost_peer(f"sending to rank {to}"):
            mine, theirs = on_host(part), host_buffer(into)
            # Offer to receive first: the offer would otherwise queue behind what this rank sends, and two ranks that
            # swap would take turns.
            received = self._group.recv([theirs], source, tag) if into.numel() else None
            sent = self._group.send([mine], to, tag) if part.numel() else None
        self._count_swap(part, to, into, kind)
        return _Swap(self, sent, received, mine, theirs, into)

    def wait(self, work: Any, what: str) -> None:
        """Wait until `work` is done; `what` describes it."""
        with (
            self._naming_lost_peer(what),
            self._watch.waiting(f"rank {self.rank}, {what}") if self._watch else nullcontext(),
        ):
            work.wait()

    def close(self) -> None:
        """Close the connections; ranks that still talk to this one get an error. May be called twice."""
        for sub in self._subs:
            sub.close()
        if self._watch is not None:
            self._watch.close()
        if self._group is not None:
            self._group.shutdown()
            self._group = None
        self._under_way = None
        self._posted.clear()

    def _begin_sum(self, flat: Tensor, kind: str) -> Tensor:
        """Begin to sum over the ranks. Returns the tensor that is summed: the given one, or a copy."""
        there = on_host(flat)
        if self.size == 2 and kind == "gradients":
            self._pair(there).send(there)
        else:
            self._under_way = self._group.allreduce([there])
        return there

    def _finish_sum(self, there: Tensor, flat: Tensor, kind: str) -> tuple[int, int]:
        """Finish a sum and store it in `flat`. Returns bytes that this rank has sent, and waits."""
        if self.size == 2 and kind == "gradients":
            mine, theirs = self._pair(there).receive()
            # In the order of ranks: not even a NaN may differ.
            torch.add(*((mine, theirs) if self.rank == 0 else (theirs, mine)), out=there)
            self._pair(there).listen()
        else:
            self._under_way.wait()
            self._under_way = None
        _hand_over(there, flat)
        return ring_bytes(flat.numel(), flat.itemsize, self.rank, self.size), sum_waits(flat.numel(), self.size, kind)

    def _pair(self, flat: Tensor) -> "_PostedReceive":
        """Exchanges vectors like this one with the only other rank, on the host."""
        sort = flat.numel(), flat.dtype
        if sort not in self._posted:
            self._posted[sort] = _PostedReceive(self._group, 1 - self.rank, flat, TAGS + len(self._posted))
        return self._posted[sort]

    def _spread(self, flat: Tensor, source: int) -> tuple[int, int]:
        """Overwrite with the tensor of rank `source`. Returns bytes that this rank has sent, and waits."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        there = on_host(flat)
        self._group.broadcast([there], options).wait()
        _hand_over(there, flat)
        return flat.nbytes * broadcast_sends(self.rank, self.size, source), (self.size - 1).bit_length()

    def _exchange(self, heard: Tensor, sent: Tensor, heard_rows: list[int], sent_rows: list[int]) -> None:
        """Exchange rows with every rank; received rows are in the order of ranks."""
        there = host_buffer(heard)
        self._group.alltoall_base(there, on_host(sent), heard_rows, sent_rows).wait()
        _hand_over(there, heard)

    def _swap(self, sent: Tensor, name: str) -> Tensor:
        """Exchange element r with rank r."""
        heard = torch.empty_like(sent)
        with self._naming_lost_peer(name):
            self._group.alltoall_base(heard, sent, [], []).wait()
        self._ledger.add(self._channel, "control", sent.itemsize * (self.size - 1), min(1, self.size - 1))
        return heard

    def _count(self, kind: str, sent: Sequence[int], waits: int = 1) -> None:
        """Bytes of messages to other ranks, counted."""
        to = [0] * self._world
        for name, num_bytes in zip(self._names, sent):
            to[name] = num_bytes
        self._ledger.add(self._channel, kind, sum(sent), min(waits, self.size - 1), to)

    def _count_swap(self, part: Tensor, to: int, into: Tensor, kind: str) -> None:
        self._count(kind, [part.nbytes if r == to else 0 for r in range(self.size)], min(1, into.numel()))

    @contextmanager
    def _naming_lost_peer(self, name: str) -> Iterator[None]:
        try:
            yield
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise  # a fault of this rank's own device is not a peer's fault
        except RuntimeError as e:
            line = _gist(e)
            late = "timed out" in line.lower() or "timeout" in line.lower()
            why = f"a peer did not answer within {self._contact.timeout_s:g} s" if late else "a peer is gone"
            raise PeerLostError(
                f"rank {self.rank} of {self.size} could not finish {name}: {why} ({line}); the run can be resumed"
            ) from e


class _Swap:
    """See `stages.comm.base.Swap`. Holds the tensors until gloo is done with their memory."""

    def __init__(self, group: Gloo, sent: Any, received: Any, mine: Tensor, theirs: Tensor, into: Tensor) -> None:
        self._group = group
        self._sent, self._received = sent, received
        self._mine: Tensor | None = mine
        self._arriving: tuple[Tensor, Tensor] | None = theirs, into

    def received(self, what: str) -> None:
        if self._received is not None:
            self._group.wait(self._received, what)
            if self._arriving is not None:
                _hand_over(*self._arriving)
        self._received = self._arriving = None

    def sent(self, what: str) -> None:
        if self._sent is not None:
            self._group.wait(self._sent, what)
        self._sent = self._mine = None


class _PostedReceive:
    """Vectors of one size between two ranks. Room for the next one is offered as soon as the last one has been read.

    So the peer sends without a handshake, and its vector arrives while this rank computes: the slower of the two never
    waits. In a ring it waits for several answers of the other, whose threads compete for cores.
    """

    def __init__(self, group: Any, peer: int, like: Tensor, tag: int) -> None:
        self._group, self._peer, self._tag = group, peer, tag
        self._mine, self._theirs = torch.empty_like(like), torch.empty_like(like)
        self._sent: Any = None
        self._lost: RuntimeError | None = None
        self.listen()

    def listen(self) -> None:
        """Offer room for the next vector, which overwrites the last one."""
        try:
            self._received = self._group.recv([self._theirs], self._peer, self._tag)
        except RuntimeError as e:
            # The peer is gone, as it may be after the last vector: a failure only if another one is due.
            self._lost = e

    def send(self, flat: Tensor) -> None:
        """Start to send a copy of `flat`."""
        if self._sent is not None:
            self._sent.wait()
        self._mine.copy_(flat)
        self._sent = self._group.send([self._mine], self._peer, self._tag)

    def receive(self) -> tuple[Tensor, Tensor]:
        """The vector sent and the vector received, valid until `listen`."""
        if self._lost is not None:
            raise self._lost
        self._received.wait()
        return self._mine, self._theirs


def on_host(t: Tensor) -> Tensor:
    """The tensor, or a copy in host memory if it lies on a device."""
    return t.cpu()


def host_buffer(t: Tensor) -> Tensor:
    """The tensor, or uninitialised host memory of its shape if it lies on a device."""
    return t if t.device.type == "cpu" else torch.empty_like(t, device="cpu")


def _hand_over(there: Tensor, t: Tensor) -> None:
    """Copy the host tensor to `t`, unless it is `t` itself."""
    if there is not t:
        t.copy_(there)


def ring_bytes(numel: int, itemsize: int, rank: int, size: int) -> int:
    """Payload bytes that `rank` sends in gloo's all-reduce of `numel` elements over `size` ranks.

    The vector is cut into P chunks of whole segments. A rank passes on every chunk but its own while sums are
    collected, and every chunk but its left neighbour's while they are handed round (gloo/allreduce.cc, ``ring``).
    """
    num_bytes = numel * itemsize
    per_chunk = max(2, -(-num_bytes // (SEGMENT_BYTES // itemsize * itemsize * size)))
    chunk = per_chunk * itemsize * -(-numel // (per_chunk * size))
    first, last = (max(0, min(chunk, num_bytes - c * chunk)) for c in (rank, (rank - 1) % size))
    return 2 * num_bytes - first - last


def ring_waits(numel: int, size: int) -> int:
    """Round trips in gloo's all-reduce of `numel` elements over `size` ranks: 2 (P-1), fewer for very few elements.

    A chunk has two pieces, of one element each if there are few. If chunks are empty, receivers are ready early for the
    full ones, which then take a one-way trip for each hop; measured with 1 to 4,000 elements over 4 ranks that are 20
    ms apart.
    """
    return size - 2 + min(size, -(-numel // 2)) if size > 1 else 0


def sum_waits(numel: int, size: int, kind: str) -> int:
    """Round trips that `Gloo.all_reduce` waits for. Gradients of two ranks take a one-way trip, which also counts as
    one."""
    return 1 if size == 2 and kind == "gradients" else ring_waits(numel, size)


def broadcast_sends(rank: int, size: int, source: int) -> int:
    """Number of times that `rank` sends the vector in gloo's broadcast over `size` ranks.

    In round i the first 2^i ranks, counted from the source, hand it to the next 2^i (gloo/broadcast.cc).
    """
    place = (rank - source) % size
    return sum(1 for i in range(size.bit_length()) if place < 1 << i and place + (1 << i) < size)


def _adjoining(parts: list[Tensor]) -> Tensor | None:
    """The parts as one tensor, if they lie in memory one after the other."""
    filled = [p for p in parts if p.numel()] or parts[:1]
    start = at = filled[0].storage_offset()
    for p in filled:
        if (
            not p.is_contiguous()
            or p.storage_offset() != at
            or p.untyped_storage().data_ptr() != filled[0].untyped_storage().data_ptr()
        ):
            return None
        at += p.numel()
    return filled[0].as_strided((at - start,), (1,), start).view(sum(len(p) for p in parts), *parts[0].shape[1:])


def _gist(e: Exception) -> str:
    """A backend's message without the place in its source and without its advice; NCCL names the cause in the last
    line."""
    lines = str(e).strip().splitlines() or [type(e).__name__]
    return (
        re.sub(r"\[/\S+:\d+\] ?", "", lines[-1 if "Last error:" in str(e) else 0])
        .split(". This is typically", 1)[0]
        .strip()
    )
