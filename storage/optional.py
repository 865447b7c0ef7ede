"""Values that may be absent: what is made of None is None."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")


class _Rows(Protocol):
    def __getitem__(self, at: Any, /) -> Any: ...


A = TypeVar("A", bound=_Rows)


def present(values: Iterable[T | None]) -> list[T]:
    """Those that are not None, in order."""
    return [value for value in values if value is not None]


def present_items(values: Mapping[K, T | None]) -> dict[K, T]:
    """Those that are not None, by their keys, in order."""
    return {key: value for key, value in values.items() if value is not None}


def when_present(change: Callable[[T], R], value: T | None) -> R | None:
    """``change(value)``; None if the value is absent."""
    return None if value is None else change(value)


def taken(rows: A | None, at: object) -> A | None:
    """``rows[at]`` of an array or a tensor; None if it is absent."""
    return None if rows is None else rows[at]


def moved(tensor: "Tensor | None", *to: Any) -> "Tensor | None":
    """``tensor.to(*to)``; None if it is absent."""
    return None if tensor is None else tensor.to(*to)
