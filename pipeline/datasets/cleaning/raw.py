"""Unchecked arrays that a reader passes to the cleaner."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from ....storage.dataset import Task
from ....storage.errors import InputError, UnsettledError
from ....storage.node_names import NodeNames
from ....storage.typed.graph_types import RelationType
from .options import Direction

AnyArray = npt.NDArray[Any]
Counts = Mapping[Any, int]
"""Numbers of nodes by type; None in a graph with one."""


GraphType = str | RelationType | None
"""A node type or a relation; None in a graph with one."""


def type_text(kind: GraphType) -> str:
    """A node type or relation in messages; empty in a graph with one type."""
    if kind is None:
        return ""
    return f"node type '{kind}'" if isinstance(kind, str) else f"relation {','.join(kind)}"


def noted(kind: GraphType, notes: Iterable[str]) -> list[str]:
    """Notes on a node type or relation, with its name."""
    what = type_text(kind)
    return [type(note)(f"{what[0].upper()}{what[1:]}: {note[0].lower()}{note[1:]}") if what else note for note in notes]


class UnequalListsError(InputError):
    """Lists of a column differ in length."""


@contextmanager
def about(what: str) -> Iterator[None]:
    """Context whose errors begin with `what`, once, unless it is empty; those of lists name their table themselves."""
    try:
        yield
    except UnequalListsError:
        raise
    except InputError as e:
        raise type(e)(f"{what}: {str(e).removeprefix(f'{what}: ')}" if what else str(e)) from e


class Faults(list[InputError]):
    """Refusals of the parts of an input, which one message names together."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Context whose refusal is added, but for that of lists, without which nothing else can be read."""
        try:
            yield
        except UnequalListsError:
            raise
        except InputError as e:
            self.append(e)


def refuse(faults: Sequence[InputError]) -> None:
    """Raise one InputError for all faults, if there are any: that of the last, the labels', if all are choices."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        kind = type(faults[-1]) if all(isinstance(e, UnsettledError) for e in faults) else InputError
        raise kind(f"{len(faults)} problems: {'; '.join(f'({i}) {e}' for i, e in enumerate(faults, 1))}")


@dataclass(frozen=True)
class Hint:
    """Direction of the edges according to the source."""

    direction: Direction
    reason: str
    """Clause for the notes, e.g. ``the file's meta says "stored once"``."""


@dataclass(frozen=True, eq=False)
class GivenLabels:
    """Labels as a source has them."""

    values: AnyArray
    """[V], [V, 1] or [V, C]: numbers, or text."""
    class_names: tuple[str, ...] | None = None
    """Names of classes that are text, where `values` are their numbers already."""
    label_names: tuple[str, ...] | None = None
    """Names of the columns of `values`; None if they are numbered."""
    nulls: int = 0
    """NaN among the values that stand for a missing value."""
    stripped: int = 0
    """Labels that had blanks around them."""
    task: Task | None = None
    """Task according to the source; None: it follows from the values."""


@dataclass(frozen=True, eq=False)
class RawNodes:
    """The nodes of a graph, or of one of its types."""

    features: Any = None
    """[V, F] numbers, dense or a SciPy sparse matrix, or None."""
    columns: tuple[str, ...] = ()
    """Columns of a table that features come from, see `filling.column_names`; empty: they have no names."""
    time: AnyArray | None = None
    """[V] numbers or dates, or None."""
    names: NodeNames | None = None
    """Names of nodes in the source; None if they are 0 to V - 1."""
    count: int | None = None
    """V; None: as many as there are labels or features."""


@dataclass(frozen=True, eq=False)
class RawEdges:
    """The edges of a graph, or of one of its relations."""

    ends: Any
    """Sources and destinations, [E] integers each, those of nodes within their types; messages flow from sources to
    destinations unless an option says otherwise."""
    weight: AnyArray | None = None
    """[E] or None."""
    features: AnyArray | None = None
    """[E, D] or [E] numbers, or None."""
    columns: tuple[str, ...] = ()
    """See `RawNodes.columns`."""
    time: AnyArray | None = None
    """[E] numbers or dates, or None."""


@dataclass(frozen=True, eq=False)
class Raw:
    """One graph as a source stores it."""

    name: str
    edges: Mapping[Any, RawEdges]
    """By relation; None in a graph with one type of nodes and edges."""
    labels: GivenLabels | None
    """Labels of the nodes, or of those of the type `target`; None: there are none."""
    nodes: Mapping[Any, RawNodes] = field(default_factory=lambda: {None: RawNodes()})
    """By type; None: as `edges`."""
    target: str | None = None
    """Node type that is predicted, of a graph with several."""
    split: Mapping[str, AnyArray] = field(default_factory=dict)
    """'train', 'val', 'test' to node ids [n] or masks [V]; empty when the source stores no split."""
    hint: Hint | None = None
    notes: tuple[str, ...] = ()
    add_reverse: bool = False
    """Add the relation ``rev_NAME`` with all edges reversed, for each relation."""
    read: Mapping[str, Any] = field(default_factory=dict)
    """What was read, for the data card: files, and roles of columns, as plain values."""
    faults: Sequence[InputError] = ()
    """Faults of the ends of edges, which are not cleaned if there are any."""

    @property
    def is_typed(self) -> bool:
        """True for a graph with several types of nodes or edges."""
        return None not in self.nodes
