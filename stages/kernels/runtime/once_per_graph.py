"""Properties of graphs that are made once."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from ....storage.graph import Graph

T = TypeVar("T")


def once_per_graph(make: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """The function, whose results are kept as long as their graphs live. One that fails is called again."""
    known: WeakKeyDictionary[Graph, T] = WeakKeyDictionary()

    @wraps(make)
    def found(graph: Graph) -> T:
        if graph not in known:
            known[graph] = make(graph)
        return known[graph]

    return found
