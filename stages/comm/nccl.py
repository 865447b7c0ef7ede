"""Ranks with a GPU each: tensors in GPU memory go over NCCL, everything else over gloo."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from ...storage.errors import InputError, PeerLostError
from ...storage.ledger import Ledger
from .base import Swap
from .gloo import Contact, Gloo


class Nccl(Gloo):
    """A `Gloo` group whose sums, broadcasts, all-to-alls and swaps of tensors on the rank's GPU go over NCCL.

    They run on the communicator's own stream, which waits for what the current stream has been given before; the
    current stream waits for sums, broadcasts and all-to-alls at once, and for a swap where `Swap.received` or
    `Swap.sent` is called. The host does not wait for the GPU. Lost ranks show
    in what goes over gloo: the sums at the end of every epoch fail at once when a peer is gone. Before that the driver
    sees that a process has ended, and ends the others. An operation that a GPU waits for in vain is ended by NCCL's
    watchdog, together with the process, after `timeout_s`.

    Over gloo go, as in a `Gloo` group:

    * tensors on the host, so that words about control wait for no GPU;
    * groups for other threads (`sub`): kernels of two communicators that wait for each other's peers, begun in one
      order here and in another one there, can stand still for ever. Where one thread uses both, in one order on all
      ranks, the other is such a group too.

    Swaps are matched by order: NCCL has no tags, its stream does one thing after the other, and both sides must begin
    the same messages in the same order. What a swap sends and receives goes together (``ncclGroupStart``), so that a
    ring of ranks that all send first does not stand still. They share the communicator of the sums, since kernels of
    two can stand still as said above.

    NCCL does not report its algorithm. The ledger counts a ring: 2 (P-1)/P n for a sum, n for a broadcast on every rank
    but the last one after the source, and the bytes of the parts for other ranks, with as many waits as there are hops:
    2 (P-1), P-1, and 1; a swap counts as over gloo.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        ledger: Ledger,
        contact: Contact,
        *,
        device: torch.device,
    ) -> None:
        """Meet the other ranks and connect to each of them, over gloo and over NCCL. See `Gloo` for the rest.

        Args:
            store: as for `Gloo`.
            rank: this process, in [0, size).
            size: P.
            ledger: where bytes are counted.
            contact: as for `Gloo`; what takes longer than its `timeout_s` on the GPU ends the process.
            device: this rank's GPU, which no other rank has. NCCL finds its own way between machines;
                ``NCCL_SOCKET_IFNAME`` helps it.

        Raises:
            InputError: torch has no NCCL, two ranks are on one GPU, or `host` is not an address of this machine.
            PeerLostError: the others did not come in time, or NCCL could not connect them.
        """
        check_nccl()
        super().__init__(store, rank, size, ledger, contact)
        self._device = device
        self._is_broken = False
        backend: Any = dist.ProcessGroupNCCL
        options = backend.Options()
        options._timeout = timedelta(seconds=contact.timeout_s)
        with self._naming_lost_peer("the first meeting on GPUs"):
            self._on_gpus: Any = backend(PrefixStore("nccl", store), rank, size, options)
            # NCCL connects when it is first used. Faults are to show here, not in the middle of a step.
            first = torch.ones(1, device=device)
            self._on_gpus.allreduce([first]).wait()
            assert first.item() == size

    def close(self) -> None:
        """Close the connections; ranks that still talk to this one get an error. May be called twice."""
        if self._on_gpus is not None:
            # An operation under way with a lost peer never ends: do not wait for it.
            if self._is_broken or sys.exception() is not None:
                self._on_gpus.abort()
            else:
                self._on_gpus.shutdown()
            self._on_gpus = None
        super().close()

    def _alike(self, store: Store, rank: int, size: int, same_thread: bool) -> Gloo:
        if not same_thread:
            return super()._alike(store, rank, size, same_thread)
        return Nccl(store, rank, size, self._ledger, replace(self._contact, on_wait=None), device=self._device)

    def _is_on_device(self, t: Tensor) -> bool:
        return t.device.type == self._device.type

    def matches_by_order(self, device: torch.device) -> bool:
        """See `Group.matches_by_order`: on the rank's GPU."""
        return device.type == self._device.type

    def swap(self, part: Tensor, to: int, into: Tensor, source: int, tag: int, kind: str) -> Swap:
        if not self._is_on_device(part):
            return super().swap(part, to, into, source, tag, kind)
        assert part.is_contiguous() and into.is_contiguous() and self._is_on_device(into)
        work: Any = None
        # NCCL takes no empty message.
        if part.numel() or into.numel():
            with self._naming_lost_peer(f"sending to rank {to}"):
                self._on_gpus._start_coalescing()
                if part.numel():
                    self._on_gpus.send([part], to, tag)
                if into.numel():
                    self._on_gpus.recv([into], source, tag)
                work = self._on_gpus._end_coalescing()
        self._count_swap(part, to, into, kind)
        return _DeviceSwap(self, work, part, into)

    def _begin_sum(self, flat: Tensor, kind: str) -> Tensor:
        if not self._is_on_device(flat):
            return super()._begin_sum(flat, kind)
        self._under_way = self._on_gpus.allreduce([flat])
        return flat

    def _finish_sum(self, there: Tensor, flat: Tensor, kind: str) -> tuple[int, int]:
        if not self._is_on_device(flat):
            return super()._finish_sum(there, flat, kind)
        self._under_way.wait()
        self._under_way = None
        return even_ring_bytes(flat.numel(), flat.itemsize, self.rank, self.size), 2 * (self.size - 1)

    def _spread(self, flat: Tensor, source: int) -> tuple[int, int]:
        if not self._is_on_device(flat):
            return super()._spread(flat, source)
        options = dist.BroadcastOptions()
        options.rootRank = source
        self._on_gpus.broadcast([flat], options).wait()
        return flat.nbytes * ((self.rank - source) % self.size < self.size - 1), self.size - 1

    def _exchange(self, heard: Tensor, sent: Tensor, heard_rows: list[int], sent_rows: list[int]) -> None:
        if not self._is_on_device(sent):
            super()._exchange(heard, sent, heard_rows, sent_rows)
        else:
            self._on_gpus.alltoall_base(heard, sent, heard_rows, sent_rows).wait()

    @contextmanager
    def _naming_lost_peer(self, name: str) -> Iterator[None]:
        try:
            with super()._naming_lost_peer(name):
                yield
        except PeerLostError as e:
            self._is_broken = True
            if "Duplicate GPU" in str(e):
                raise InputError(
                    f"rank {self.rank} of {self.size} has its GPU together with another rank, and NCCL wants one for "
                    "each; use fewer "
                    'ranks, or cluster.backend = "gloo"'
                ) from e
            raise


class _DeviceSwap:
    """A `Swap` on the GPU. Holds the tensors until the current stream waits for it: then their memory may be given to
    what that stream does next."""

    def __init__(self, group: Nccl, work: Any, part: Tensor, into: Tensor) -> None:
        self._group, self._work = group, work
        self._held: tuple[Tensor, Tensor] | None = part, into

    def received(self, what: str) -> None:
        """See `Swap.received`. Both messages end together."""
        if self._work is not None:
            with self._group._naming_lost_peer(what):
                self._work.wait()
        self._work = self._held = None

    def sent(self, what: str) -> None:
        self.received(what)


def check_nccl() -> None:
    """Raises InputError if torch was built without NCCL."""
    if not hasattr(dist, "ProcessGroupNCCL"):
        raise InputError(
            f"ranks on GPUs talk over NCCL, but this torch ({torch.__version__}) is built without it; install torch "
            "with CUDA for Linux, "
            'or use cluster.backend = "gloo"'
        )


def even_ring_bytes(numel: int, itemsize: int, rank: int, size: int) -> int:
    """Payload bytes that `rank` sends in a ring that sums `numel` elements in `size` chunks as even as can be: 2 (P-1)
    n over all ranks.

    As in gloo's (`ring_bytes`), a rank passes on every chunk but its own, and then every chunk but its left
    neighbour's.
    """
    mine, left = (numel * (c + 1) // size - numel * c // size for c in (rank, (rank - 1) % size))
    return (2 * numel - mine - left) * itemsize
