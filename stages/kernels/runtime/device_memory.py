"""Copies of host arrays in the memory of a GPU, or in page-locked host memory that its kernels read; and numbers on
their way back."""

from collections.abc import Coroutine, Generator
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from ....storage.array_kinds import AnyArray, IdArray, ValueArray

T = TypeVar("T")
MemoryKind = Literal["auto", "device", "pinned"]
"""Location of an array: the device's memory, page-locked host memory that kernels read, or the device if it fits."""
SHARE = 0.6
"""Share of the device's free memory that one array may take."""


def to_device(array: AnyArray, to: torch.device) -> Tensor:
    """Copy of the array on a device; the array itself if that is the host."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(to, non_blocking=True)


def fits(num_bytes: int, to: torch.device) -> bool:
    """True if so many bytes fit into the device's memory, leaving enough for work on it."""
    if to.type != "cuda":
        return True
    # Memory of freed tensors that the allocator keeps is free too.
    kept = torch.cuda.memory_reserved(to) - torch.cuda.memory_allocated(to)
    return num_bytes <= SHARE * (torch.cuda.mem_get_info(to)[0] + kept)


def goes_to_device(num_bytes: int, to: torch.device, where: MemoryKind) -> bool:
    """True if an array of so many bytes goes to the device's own memory; ``auto``: if it fits."""
    return where == "device" or (where == "auto" and fits(num_bytes, to))


def device_readable(array: ValueArray, to: torch.device, where: MemoryKind) -> Tensor:
    """The array in memory that kernels on the device can read: its own, or page-locked host memory.

    Args:
        array: of any shape.
        to: the device.
        where: see `goes_to_device`.
    """
    if goes_to_device(array.nbytes, to, where):
        return to_device(array, to)
    locked = torch.empty(
        array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype, pin_memory=to.type == "cuda"
    )
    locked.numpy()[...] = array
    return locked


class ToHost:
    """Numbers on their way from the device, which the current stream has been told to copy. Awaited, they are an array;
    whoever runs the coroutine may do something else before it goes on, and waits then."""

    def __init__(self, numbers: Tensor) -> None:
        """
        Args:
            numbers: on the device; their memory may be used again by the current stream.
        """
        self._here = numbers.to("cpu", non_blocking=True)
        self._arrived: torch.cuda.Event | None = None
        if numbers.device.type == "cuda":
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def __await__(self) -> Generator[None, None, IdArray]:
        yield
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._here.numpy()


def completed(work: Coroutine[None, None, T]) -> T:
    """Run a coroutine that awaits numbers of the device to its end, with nothing in between."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        return end.value


def wait_for_copies(to: torch.device) -> None:
    """Wait for copies to the device, and all else that it was told to do: other threads, whose streams do not wait for
    this one's, read the copies too."""
    if to.type == "cuda":
        torch.cuda.synchronize(to)
