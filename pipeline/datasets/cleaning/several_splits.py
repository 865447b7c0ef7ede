"""One of several splits that a file stores, as benchmarks publish them."""

from collections.abc import Mapping

from ....storage.errors import InputError
from .raw import AnyArray

Which = str | tuple[str, ...] | None
"""``read.split``: the number of a split from 0, or none; None: the first."""


def one_split(
    stored: Mapping[str, AnyArray], num_nodes: int, which: Which, what: object
) -> tuple[dict[str, AnyArray], tuple[str, ...]]:
    """The sets of one split, and notes.

    Args:
        stored: ids, or masks [V], or masks [K, V] or [V, K] of K splits, by set.
        num_nodes: V.
        which: of them.
        what: the input, for messages.

    Raises:
        InputError: there is no such split.
    """
    if which == "none":
        return {}, ()
    masks = {
        part: m if m.shape[1:] == (num_nodes,) else m.T for part, m in stored.items() if m.ndim == 2 and m.dtype == bool
    }
    several = max(map(len, masks.values()), default=0)
    if which is not None and not (isinstance(which, str) and which.isdecimal() and int(which) < several):
        expected = f"0 to {several - 1}" if several else "none, as it has no several splits"
        raise InputError(f"{what}: read.split is '{which}'; expected {expected}")
    at = int(str(which or 0))
    if short := next((part for part, m in masks.items() if at >= len(m)), None):
        raise InputError(
            f"{what}: the {short} masks are {len(masks[short])}, and others {several}; save as many of each"
        )
    note = f"Of {several} splits that are stored, number {at} is read (read.split=1 would read the second)."
    return {**stored, **{part: m[at] for part, m in masks.items()}}, ((note,) if several > 1 else ())
