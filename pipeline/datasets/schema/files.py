"""Which files of a folder form which table, by their names.

A table is one file ``nodes.csv`` or ``edges.csv``, or parts of it that are numbered (``edges-0.csv``,
``edges.part.10.parquet``), in the order of their numbers. Types are in names: ``nodes-USER`` and
``edges-USER-BUYS-ITEM``, or with ``_`` in place of ``-``. Whatever else begins with ``nodes`` or ``edges`` is refused:
a copy of a table, a left-over, or one of several sets of edges.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....storage.errors import InputError, NoLabelsError
from ....storage.plural import are
from ....storage.typed.graph_types import RelationType
from . import words
from .columns import listed
from .source import Kind, SourceTable, quoted

MOST_MISSING = 4
"""Most files that are missing among numbered ones, more than there are."""
COMPRESSED = ("", ".gz", ".bz2", ".zst")
"""Suffixes of compressed text files."""
CSV = tuple(kind + how for kind in (".csv", ".tsv") for how in COMPRESSED)
JSON_LINES = tuple(kind + how for kind in (".jsonl", ".ndjson") for how in COMPRESSED)
ARROW = (".feather", ".arrow", ".ipc")
SUFFIXES = (".parquet", *CSV, *JSON_LINES, *ARROW, ".orc")
"""Ends of the names of files with tables."""
_OF_EDGES = (*SUFFIXES, ".npy")
_NAME = r"[^\W\d][^-.,]*"
_PART = r"(?:[-._ ]*(?:(?:part|shard|chunk)[-._ ]*)?\d+(?:-of-\d+)?)+"
_NUMBERED = re.compile(rf"(.*?)({_PART}(?:[-._](?:[0-9a-f]{{8}}-[0-9a-f-]+|c\d+|snappy|zstd|gz))*)?", re.IGNORECASE)
FORMS = "edges-SOURCE-RELATION-DESTINATION and nodes-TYPE, whose names begin with a letter and have no dash or dot"


def natural(name: str) -> list[tuple[int, int | str]]:
    """Key that sorts names by the numbers in them: part.2 before part.10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name)]


def entries_in(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Files of a folder by the name of what they are part of: their own, or that of a folder of parts, as Spark, Dask
    and pandas write them (``nodes.parquet/part-0.parquet``, also with a folder for each value of a column). Raises
    InputError: a folder of parts holds files of several kinds, or is beside a file of its name."""
    paths = sorted(folder.iterdir(), key=lambda p: natural(p.name))
    found: dict[str, tuple[Path, ...]] = {path.name: (path,) for path in paths if path.is_file()}
    for path in paths:
        if path.is_dir() and path.name.lower().startswith(("nodes", "edges")) and (parts := _parts_in(path)):
            ends = {max((s for s in SUFFIXES if part.name.lower().endswith(s)), key=len) for part in parts}
            if len(ends) > 1:
                raise InputError(f"{path} holds files of several kinds ({', '.join(sorted(ends))}); move one kind away")
            name = path.name if path.name.lower().endswith(SUFFIXES) else path.name + ends.pop()
            if name in found:
                raise InputError(f"{path}/ and {name} are both the same table; move one of the two away")
            found[name] = tuple(parts)
    return found


def _parts_in(folder: Path) -> list[Path]:
    """Files of tables below a folder, in the order of the numbers in their paths, but for ``_SUCCESS`` and the like."""
    below = (path.relative_to(folder) for path in folder.rglob("*") if path.name.lower().endswith(SUFFIXES))
    shown = [path for path in below if not any(part.startswith(("_", ".")) for part in path.parts)]
    return [folder / path for path in sorted(shown, key=lambda p: natural(p.as_posix())) if (folder / path).is_file()]


@dataclass(frozen=True)
class _Named:
    """One file of a table by its name."""

    kind: Kind
    of: str
    """What stands behind ``nodes`` or ``edges``, without the number of a part."""
    part: str
    """Number of the part; empty: the file is the whole table."""
    suffix: str
    name: str


def _named(name: str) -> _Named | None:
    """The parts of a name; None for a file of something else."""
    kind: Kind = "nodes" if name.lower().startswith("nodes") else "edges"
    suffixes = SUFFIXES if kind == "nodes" else _OF_EDGES
    end = next((s for s in sorted(suffixes, key=len, reverse=True) if name.lower().endswith(s)), None)
    if end is None or not name.lower().startswith(kind):
        return None
    found = _NUMBERED.fullmatch(name[len(kind) : -len(end)])
    assert found is not None, "the pattern matches all texts"
    return _Named(kind, found[1], found[2] or "", end, name)


Found = dict[Kind, dict[Any, list[str]]]
"""Names of the files of each table of a kind, in order, by types of nodes, or relations."""


def find(names: Iterable[str], folder: object) -> Found:
    """The tables that files with these names form. Raises InputError: some are two versions of a table, or it is not
    clear what they are."""
    groups: dict[Kind, dict[str, list[_Named]]] = {"nodes": {}, "edges": {}}
    files = [file for name in sorted(names, key=natural) if (file := _named(name)) is not None]
    for file in files:
        groups[file.kind].setdefault(file.of, []).append(file)
    every = dict.fromkeys((file.kind, file.of) for file in files)
    faults = [fault for kind, of in every if (fault := _versions(kind + of, groups[kind][of])) is not None]
    types, found, other = _types([*groups["nodes"]], [*groups["edges"]]), Found(), list[str]()
    for kind, tables in groups.items():
        by_name = {of: [file.name for file in own] for of, own in tables.items()}
        found[kind] = {t: by_name[of] for of, t in types[kind].items()}
        left = [of for of in tables if of not in types[kind]]
        if any(types.values()):
            other += [name for of in left for name in by_name[of]]
        elif left == [""]:
            found[kind] = {None: by_name[""]}
        elif left:
            faults.append(_unclear(kind, [file for of in left for file in tables[of]], folder))
    if other:
        faults.append(f"there is {listed(other)} among tables of several types; expected {FORMS}")
    if faults:
        raise InputError(f"{folder}: {'; '.join(faults)}")
    return found


def _versions(stem: str, files: Sequence[_Named]) -> str | None:
    """Fault of files that are versions of one table."""
    whole, parts = [f for f in files if not f.part], [f for f in files if f.part]
    if len(whole) > 1:
        return (
            f"{' and '.join(f.name for f in whole)} are both the table {stem}, a copy or another version; move all but "
            "one of the two files away"
        )
    if whole and parts:
        return (
            f"{whole[0].name} is beside the numbered {listed([f.name for f in parts])}, and would count twice if it is "
            "the whole table; move one or the other away"
        )
    kinds = sorted({f.suffix for f in parts})
    if len(kinds) > 1:
        return f"parts of {stem} are files of several kinds ({', '.join(kinds)}), two versions of it; move one away"
    return None


def _unclear(kind: Kind, files: Sequence[_Named], folder: object) -> str:
    """Fault of files of which it is not clear what they are."""
    shown = listed([f.name for f in files])
    plain = next((f.name for f in files if not f.of and not f.part), None)
    if {words.part_of(f.of.strip("-._ ")) for f in files} - {None}:
        return (
            f"{shown} look like the sets of a split, which would be lost if they were joined; give one table of {kind} "
            "with a column split, or for links one file of edges, and pairs=FILE, a table outside the folder with the "
            "columns src, dst and split"
        )
    if plain is not None:
        take = f"move the others away, or read that file alone: millrace inspect {quoted(f'{folder}/{plain}')}"
        return f"there are several tables of {kind}: {shown}. If {plain} is the one, {take}"
    if len(files) == 1 and kind == "edges":
        return f"{shown} is the only table of edges; call it edges{files[0].suffix}, or give that file, not the folder"
    return (
        f"it is not clear how {shown} form the table of {kind}: call parts of one table {kind}-0, {kind}-1, ..., and "
        f"tables of several types {FORMS}"
    )


def _types(nodes: Sequence[str], edges: Sequence[str]) -> dict[Kind, dict[str, Any]]:
    """Types in what stands behind ``nodes`` and ``edges`` in names; none unless both have some."""
    of_nodes = {of: m[1] for of in nodes if (m := re.fullmatch(rf"-({_NAME})", of))}
    of_edges = {of: m.groups() for of in edges if (m := re.fullmatch(rf"-({_NAME})-({_NAME})-({_NAME})", of))}
    if of_edges and (of_nodes or not nodes):
        return {"nodes": of_nodes, "edges": of_edges}
    by_word = {of: m[1] for of in nodes if (m := re.fullmatch(rf"[_.-]({_NAME})", of)) and words.part_of(m[1]) is None}
    relations = {of: r[0] for of in edges if len(r := _relations(of, by_word.values())) == 1}
    return {"nodes": by_word, "edges": relations} if by_word and relations else {"nodes": {}, "edges": {}}


def _relations(of: str, types: Iterable[str]) -> list[RelationType]:
    """Relations that a name may have whose words are joined by ``_``, for node types whose names may have one too."""
    found: list[RelationType] = []
    body = of[1:] if of[:1] in ("_", ".", "-") else ""
    for source in types:
        for target in types:
            for sign in "_.-":
                begin, end = source + sign, sign + target
                if body.startswith(begin) and body.endswith(end) and len(body) > len(begin) + len(end):
                    relation = body[len(begin) : -len(end)]
                    if re.fullmatch(_NAME, relation):
                        found.append((source, relation, target))
    return found


def are_tables(names: Iterable[str]) -> bool:
    """True if one of the files with these names is a table by its name and suffix."""
    return any(_named(name) is not None for name in names)


def tables_of(entries: Mapping[str, tuple[Any, ...]], folder: object, needs_nodes: bool = True) -> list[SourceTable]:
    """The tables that the files of a folder form, which are `entries` as from `entries_in`. Raises InputError: see
    `find`; or there is no table of edges, or none of nodes where one is needed."""
    found = find(entries, folder)
    expected = "expected edges* (columns src, dst) and nodes* (columns id, label, features)"
    if not found["edges"]:
        others = [name for name in entries if "edges" in name.lower() and name.lower().endswith(SUFFIXES)]
        which = ""
        if others:
            which = f"; if {others[0]} is the one, give it: millrace inspect {quoted(f'{folder}/{others[0]}')}"
        raise InputError(f"{folder} holds no edges*.parquet or edges*.csv or edges*.npy; {expected}{which}")
    if not found["nodes"] and needs_nodes:
        raise NoLabelsError(
            f"{folder} holds no nodes*.parquet or nodes*.csv; {expected}, or task=link, which predicts edges and takes "
            "their ends as nodes"
        )
    every = [(kind, t, names) for kind, own in found.items() for t, names in own.items()]
    return [SourceTable(kind, tuple(file for name in names for file in entries[name]), t) for kind, t, names in every]


def note_missing_parts(tables: Iterable[SourceTable], folder: object) -> tuple[str, ...]:
    """Notes on parts that are missing among numbered files. Raises InputError where their names say how many there
    are."""
    notes = []
    for table in tables:
        cells = [re.split(r"(\d+)", file.name) for file in table.files]
        at = [i for i, several in enumerate(zip(*cells)) if len(set(several)) > 1]
        at = at or [i - 1 for i, c in enumerate(cells[0]) if c.lower() == "-of-"]
        if len(at) != 1 or at[0] % 2 == 0 or len(set(map(len, cells))) > 1:
            continue
        (i,), first, numbers = at, cells[0], {int(own[at[0]]) for own in cells}
        total = int(first[i + 2]) if first[i + 1].lower() == "-of-" else 0
        begin = int(0 not in numbers and total in numbers) if total else min(numbers)
        end = begin + total if total else max(numbers) + 1
        missing = sorted({*range(begin, min(end, begin + 2 * len(cells) + MOST_MISSING))} - numbers)
        if not missing or (not total and len(missing) >= len(cells) + MOST_MISSING):  # numbers of another kind
            continue
        width = len(first[i]) if len({len(own[i]) for own in cells}) == 1 else 0
        names = ["".join((*first[:i], str(n).zfill(width), *first[i + 1 :])) for n in missing]
        gone = f"{listed(names)} {are(len(names))} missing"
        if total:
            raise InputError(f"{folder}: of the {total} parts of {table.title} {gone}; put the parts there")
        notes.append(f"Files of {table.title} are numbered, and {gone}.")
    return tuple(notes)
