"""Requests to readers, and the tables of named columns that they yield. No column has a meaning yet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote as quoted
from typing import TYPE_CHECKING, Any, Literal

from ....storage.dataset_store import FeaturesAccess, GraphAccess
from ....storage.optional import present_items
from ..cleaning.options import DEFAULT_OPTIONS, ReadOptions
from ..cleaning.raw import GraphType, Hint, type_text

if TYPE_CHECKING:
    # Arrow starts threads when it is imported, which the server of ranks must not have.
    import pyarrow as pa

Kind = Literal["nodes", "edges"]
Role = Literal[
    "id", "source", "target", "relation", "weight", "time", "label", "split", "mask", "feature", "not read"
]  # fmt: skip
"""Meaning of a column; each column has exactly one."""


@dataclass(frozen=True, eq=False)
class SourceTable:
    """One table of a source, with the column names that its user gave."""

    kind: Kind
    files: tuple[Any, ...] = ()
    """Paths, or files below a URL, in the order of their rows."""
    type: GraphType = None
    """Node type, or relation; None in a graph with one of them."""
    rows: "pa.Table | None" = None
    """Rows that a reader has in memory; None: they are in `files`."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """Roles that the format itself gives to columns. They win over words and lose to the user's keys."""
    folders: "Mapping[str, pa.Array]" = field(default_factory=dict)
    """Columns that names of folders are (``kind=x``), with a value for each file."""

    @property
    def title(self) -> str:
        """Name in messages: nodes, nodes-TYPE or edges-SOURCE-RELATION-DESTINATION."""
        if self.type is None:
            return self.kind
        return "-".join((self.kind, *((self.type,) if isinstance(self.type, str) else self.type)))

    @property
    def features_of(self) -> str:
        """The owner of its features in a data card: nodes, edges, a node type or a relation."""
        kind = self.type or self.kind
        return kind if isinstance(kind, str) else ",".join(kind)

    @property
    def of_type(self) -> str:
        """Its type in messages; empty in a graph with one type."""
        return type_text(self.type)

    @property
    def ends(self) -> tuple[str | None, str | None]:
        """Node types where edges begin and end."""
        return (self.type[0], self.type[2]) if isinstance(self.type, tuple) else (None, None)

    def sides_at(self, nodes: "SourceTable") -> list[int]:
        """0 if the edges begin at these nodes, 1 if they end there, or both."""
        return [side for side, t in enumerate(self.ends) if t == nodes.type]


@dataclass(frozen=True, eq=False)
class GraphTables:
    """All tables of one graph. Without a table of nodes, the nodes are the ends of edges."""

    name: str
    path: Path | str
    """Source, for messages."""
    tables: tuple[SourceTable, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    """Names of files beside these that are not read, each with the reason."""
    hint: Hint | None = None
    """Direction of the edges according to the source."""
    notes: tuple[str, ...] = ()
    adds_nodes: bool = False
    """Nodes of a type without a table are the ends of edges, whatever is predicted."""

    @property
    def is_typed(self) -> bool:
        """True for a graph with several types of nodes or edges."""
        return any(t.type is not None for t in self.tables)

    def has_one(self, kind: Kind) -> bool:
        """True if there is one table of a kind."""
        return [t.kind for t in self.tables].count(kind) == 1

    @property
    def nodes(self) -> tuple[SourceTable, ...]:
        """Tables of nodes, one for each node type."""
        return tuple(t for t in self.tables if t.kind == "nodes")

    @property
    def edges(self) -> tuple[SourceTable, ...]:
        """Tables of edges, one for each relation."""
        return tuple(t for t in self.tables if t.kind == "edges")


@dataclass
class Problems:
    """Faults of a source's columns, which one message names together."""

    texts: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    """Keys of `ReadOptions` that settle them, with plausible values."""

    def add(self, text: str, **keys: str | None) -> None:
        """Add a fault, and the keys that would settle it; None: there is no plausible value."""
        self.texts.append(text)
        self.keys |= present_items(keys)

    def message(self, source: object, given: Mapping[str, Any]) -> str:
        """One message for all faults, with a command to paste, which keeps the options that are `given`."""
        count = len(self.texts)
        text = self.texts[0] if count == 1 else f"{source}: {count} problems: " + "; ".join(
            f"({i}) {t.removeprefix(f'{source}: ')}" for i, t in enumerate(self.texts, 1)
        )  # fmt: skip
        if not self.keys:
            return text
        every = {k: ",".join(map(str, v)) if isinstance(v, tuple) else v for k, v in {**given, **self.keys}.items()}
        sets = " ".join(f"--set {quoted(f'read.{key}={value}')}" for key, value in every.items())
        return f"{text}. Try: millrace inspect {quoted(str(source))} {sets}"


@dataclass(frozen=True)
class Request:
    """Arguments of `open_dataset` besides the source."""

    name: str | None = None
    """Name of the dataset; None: taken from the source."""
    options: ReadOptions = DEFAULT_OPTIONS
    """Treatment of defects."""
    split: str | None = None
    seed: int = 0
    features: FeaturesAccess = "memory"
    """Place of a Millrace store's features."""
    graph: GraphAccess = "memory"
    """Place of its graph."""
    pairs: str | None = None
    """File of pairs, which is no table of the graph."""
    is_divided: bool = False
    """Links are divided by a file of pairs or a split that is named, so by no column of the edges."""

    @property
    def is_of_pairs(self) -> bool:
        """True if pairs of nodes are predicted: links, or labels of edges."""
        return self.options.task == "link" or self.options.labels_of == "edges"

    def called(self, path: Path) -> str:
        """Name of the dataset at a path: by default that of the folder, or of the file up to its first dot."""
        return self.name or (path.resolve().name if path.is_dir() else path.name.partition(".")[0])
