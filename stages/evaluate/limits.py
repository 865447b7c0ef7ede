"""What one exact evaluation may take, and who hears of its progress."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..comm.base import Group
from .chunks import MAX_BYTES
from .cuda import DeviceBudget

Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all), over all layers."""


def silent(*_: object) -> None:
    """Progress and notes that nobody hears of."""


@dataclass(frozen=True)
class Limits:
    """Memory, scratch space and ranks of one evaluation. See `layerwise.infer`."""

    max_bytes: int = MAX_BYTES
    """Bytes of chunks or blocks under way, in all threads."""
    scratch: Path | None = None
    """Folder for rows that do not fit in memory; None: they stay in memory."""
    on_progress: Progress = silent
    on_note: Callable[[str], None] = silent
    """Called with a sentence about what takes long, and what to do."""
    base: Tensor | None = None
    """[V, F], the features, if they lie on the model's device already."""
    budget: DeviceBudget | None = None
    """Device and memory for the computation; by default those of the parameters' device."""
    half: bool = False
    """Keep the rows between layers in bfloat16; they are summed in float32."""
    group: Group | None = None
    """Ranks that call with the same arguments, each in memory of its own: every one computes a part of each layer's
    blocks and tells the others, in memory alone. For a stack that `has_parts`, on the host."""
    processes: int = 1
    """Processes that evaluate on this machine at the same time."""


DEFAULTS = Limits()
