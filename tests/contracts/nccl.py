"""A stand-in for torch's `ProcessGroupNCCL` over gloo, which keeps NCCL's rules: on the pretended device, or on a GPU
that all ranks share.

Messages between two ranks are matched by the order in which both begin them; a group of sends and receives begins when
the one before has ended; empty messages, and sends and receives outside of a group, are refused.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar
from weakref import WeakSet

import torch
import torch.distributed as dist

from millrace.stages.comm.gloo import Contact, Gloo
from millrace.stages.comm.nccl import Nccl
from millrace.storage.ledger import Ledger
from millrace.tests.contracts import pretended_device
from millrace.tests.contracts.pretended_device import OnDevice

HERE = Contact("127.0.0.1", timeout_s=60.0)
WAIT_S = 60.0


def held(t: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor on the pretended device; a GPU's values, once its stream has made them."""
    assert t.is_cuda, "NCCL is given a tensor of the host"
    return t.held if isinstance(t, OnDevice) else t.cpu()


class Brought:
    """Messages under way, whose values go to a GPU when they are waited for."""

    def __init__(self, wait: Callable[[], Any], into: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._wait, self._into = wait, into

    def wait(self) -> None:
        self._wait()
        for there, here in self._into:
            if not isinstance(there, OnDevice):
                there.copy_(here)


class InPlaceOfNccl:
    """The part of torch's `ProcessGroupNCCL` that `Nccl` uses, over gloo, for tensors on the pretended device; counts
    its calls."""

    class Options:
        pass

    living: ClassVar[WeakSet[Any]] = WeakSet()
    """All of this process."""
    says = ""
    """Raised by the first sum, as NCCL raises what is wrong with its setting."""

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        backend: Any = dist.ProcessGroupGloo
        theirs = backend._Options()
        theirs._timeout, theirs._devices = options._timeout, [backend.create_device(hostname="127.0.0.1")]
        self.inner, self.asked, self.ended = backend(store, rank, size, theirs), [], ""
        self._stream = ThreadPoolExecutor(1)
        self.living.add(self)
        self._open: list[tuple[bool, torch.Tensor, int]] | None = None
        self._into: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._count: dict[tuple[bool, int], int] = {}

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        if self.says:
            raise RuntimeError(self.says)
        self.asked.append("allreduce")
        return self._ask(self.inner.allreduce, tensors)

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any:
        self.asked.append("broadcast")
        return self._ask(self.inner.broadcast, tensors, options)

    @staticmethod
    def _ask(what: Callable[..., Any], tensors: list[torch.Tensor], *options: Any) -> Brought:
        here = [held(t) for t in tensors]
        return Brought(what(here, *options).wait, list(zip(tensors, here)))

    def alltoall_base(
        self, heard: torch.Tensor, sent: torch.Tensor, heard_rows: list[int], sent_rows: list[int]
    ) -> Any:
        assert len(heard_rows) == len(sent_rows) > 0
        self.asked.append("alltoall_base")
        into = held(heard)
        return Brought(self.inner.alltoall_base(into, held(sent), heard_rows, sent_rows).wait, [(heard, into)])

    def _start_coalescing(self) -> None:
        assert self._open is None, "a group within a group"
        self._open, self._into = [], []

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> None:
        self._add(True, tensors, to)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> None:
        self._add(False, tensors, source)

    def _add(self, sends: bool, tensors: list[torch.Tensor], peer: int) -> None:
        (there,) = tensors
        t = held(there)
        assert self._open is not None, "a message outside of a group may wait for one that comes after it"
        assert t.numel() and there.is_contiguous(), "NCCL takes no empty message, and no strides"
        assert (sends, peer) not in [(s, p) for s, _, p in self._open]
        self._open.append((sends, t, peer))
        if not sends:
            self._into.append((there, t))

    def _end_coalescing(self) -> Brought:
        messages, self._open = self._open, None
        assert messages, "NCCL has no work for an empty group"
        self.asked.append("swap")
        return Brought(partial(self._stream.submit(self._travel, messages).result, WAIT_S), self._into)

    def _travel(self, messages: list[tuple[bool, torch.Tensor, int]]) -> None:
        """One group, on the stream: both sides say how much each message has before it comes."""
        work, sizes = [], []
        for sends, t, peer in messages:
            tag = 2 * self._count.get((sends, peer), 0)
            self._count[sends, peer] = tag // 2 + 1
            size = torch.tensor([t.nbytes if sends else -1])
            sizes.append((sends, t, peer, tag, size))
            work.append((self.inner.send if sends else self.inner.recv)([size], peer, tag))
        for w in work:
            w.wait()
        for _, t, peer, _, size in sizes:
            assert int(size) == t.nbytes, f"{int(size)} bytes of or to rank {peer}, where {t.nbytes} are due"
        work = [(self.inner.send if sends else self.inner.recv)([t], peer, tag + 1) for sends, t, peer, tag, _ in sizes]
        for w in work:
            w.wait()

    def shutdown(self) -> None:
        self.ended = "shutdown"

    def abort(self) -> None:
        self.ended = "abort"


def install_for_good() -> torch.device:
    """The pretended device and the stand-in, in this process until it ends: for ranks."""
    dist.ProcessGroupNCCL = InPlaceOfNccl
    return pretended_device.install_for_good()


def stood_in(group: Gloo) -> Nccl:
    """Such a group on the ranks of `group`, each with the pretended device."""
    to = install_for_good()
    store = dist.PrefixStore("gpus", group._store)
    return Nccl(store, group.rank, group.size, Ledger(), HERE, device=to)
