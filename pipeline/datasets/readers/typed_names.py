"""Names of the files of a typed graph's tables."""

import re
from collections.abc import Iterable

from ....storage.errors import InputError
from ....storage.typed.graph_types import RelationType

KINDS = ((".parquet",), (".csv", ".tsv", ".csv.gz", ".tsv.gz"), (".npy",))
"""Suffixes of files; where a table has files of several kinds, the first is read. Nodes have no ``.npy``."""
_NAME = r"([^\W\d][^-.,]*)"
_EDGES = re.compile(rf"edges-{_NAME}-{_NAME}-{_NAME}(?:[-.].*)?")
_NODES = re.compile(rf"nodes-{_NAME}(?:[-.].*)?")
FORMS = "edges-SOURCE-RELATION-DESTINATION and nodes-TYPE, whose names begin with a letter and have no dash or dot"


def are_typed(names: Iterable[str]) -> bool:
    """True if files with these names are tables of a typed graph: of edges and of nodes."""
    parts = [found[0] for name in names if (found := _parsed(name)) is not None]
    return {len(part) for part in parts} == {1, 3}


def _parsed(name: str) -> tuple[tuple[str, ...], int] | None:
    """Types in the name of a table, three of edges and one of nodes, and its kind among `KINDS`."""
    for kind, suffixes in enumerate(KINDS):
        end = next((s for s in reversed(suffixes) if name.lower().endswith(s)), None)
        if end is None:
            continue
        stem = name[: -len(end)]
        found = _EDGES.fullmatch(stem) or (_NODES.fullmatch(stem) if kind < 2 else None)
        return None if found is None else (found.groups(), kind)
    return None


def _files_by_types(names: Iterable[str], parts: int) -> dict[tuple[str, ...], list[str]]:
    """Files among those of a folder, by the types in their names: `parts` is 3 of edges, 1 of nodes.

    Raises:
        InputError: a table has a name of another form.
    """
    by_kind: dict[tuple[str, ...], dict[int, list[str]]] = {}
    for name in sorted(names):
        stem = name.partition("-")[0].partition(".")[0]
        if stem not in ("edges", "nodes") or not name.lower().endswith(sum(KINDS, ())):
            continue
        if (found := _parsed(name)) is None:
            raise InputError(f"there is {name} among tables of several types; expected {FORMS}")
        if len(found[0]) == parts:
            by_kind.setdefault(found[0], {}).setdefault(found[1], []).append(name)
    return {types: kinds[min(kinds)] for types, kinds in by_kind.items()}


def node_files(names: Iterable[str]) -> dict[str, list[str]]:
    """Files of each node type, in the order of their names. Raises InputError for a name of another form."""
    return {types[0]: files for types, files in _files_by_types(names, 1).items()}


def edge_files(names: Iterable[str]) -> dict[RelationType, list[str]]:
    """Files of each relation, likewise."""
    return {(types[0], types[1], types[2]): files for types, files in _files_by_types(names, 3).items()}
