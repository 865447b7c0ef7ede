"""Copies of host arrays in the memory of a GPU, or in page-locked host memory that its kernels read."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ArrayPlace = Literal["auto", "device", "pinned"]
"""In the device's memory, in the host's (locked, so that kernels read it there), or there if it fits."""
SHARE = 0.6
"""Of the device's free memory, at most, that one array may take to fit."""


def to_device(array: npt.NDArray[Any], to: torch.device) -> Tensor:
    """The array on a device; a copy, unless that is the host."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(to, non_blocking=True)


def fits(num_bytes: int, to: torch.device) -> bool:
    """Whether so much more leaves the device enough for work on it."""
    if to.type != "cuda":
        return True
    # What the allocator keeps of tensors that are gone is free too.
    kept = torch.cuda.memory_reserved(to) - torch.cuda.memory_allocated(to)
    return num_bytes <= SHARE * (torch.cuda.mem_get_info(to)[0] + kept)


def goes_to_device(num_bytes: int, to: torch.device, where: ArrayPlace) -> bool:
    """Whether an array of so many bytes goes to the device's own memory; ``auto``: if it fits."""
    return where == "device" or (where == "auto" and fits(num_bytes, to))


def device_readable(array: npt.NDArray[Any], to: torch.device, where: ArrayPlace) -> Tensor:
    """The array where kernels on the device can read it: there, or in locked memory of the host.

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


def wait_for_copies(to: torch.device) -> None:
    """Wait for copies to the device: other threads, whose streams do not wait for this one's, read them too."""
    if to.type == "cuda":
        torch.cuda.synchronize(to)
