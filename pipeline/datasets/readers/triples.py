"""Knowledge graphs as triples (head, relation, tail): a folder with ``train.txt``, ``valid.txt`` and ``test.txt``, as
FB15k-237, WN18RR and YAGO3-10 are published, or arrays."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....storage.dataset import Dataset, Split
from ....storage.errors import InputError
from ....storage.features import ArrayFeatures
from ....storage.optional import present_items
from ....storage.plural import are, counted
from ....storage.store.paths import expanded
from ....storage.typed.features import TypedFeatures
from ....storage.typed.graph_types import MOST_RELATIONS, GraphTypes
from ..cleaning.relations import graph_of_relations
from ..cleaning.typed import reversed_relations
from .reader import Request
from .typed import host

ENTITY = "entity"
"""The node type."""
STEMS = {"train": ("train",), "val": ("valid", "val", "dev"), "test": ("test",)}
"""Names of the files of each set, without suffix."""
SUFFIXES = (".txt", ".tsv")
FEW_ENTITIES, PER_TRIPLE = 10_000_000, 100
"""Entities by number that any triples may have, and more of them for each triple."""
FORM = "three columns between tabs: head, relation, tail"
PLACES = ("head", "relation", "tail")
"""The columns of a triple, in the order in which arrays have them."""
WORDS = {
    "head": "head h head_id head_entity subject subj s source src from start entity1 entity_1 e1 node1",
    "relation": "relation rel r relation_id relation_type predicate pred p property edge edge_type type link",
    "tail": "tail t tail_id tail_entity object obj o target dst to end entity2 entity_2 e2 node2",
}
"""Words of a header, in upper or lower case."""
FEWER = 4
"""Relations are fewer than tails; a third column with so many times fewer names than the second has the relations."""


def files_of(folder: Path) -> dict[str, Path]:
    """The file of each set in a folder of triples; empty without one to train on."""
    found = {
        name: path
        for name, stems in STEMS.items()
        for stem in stems
        for suffix in SUFFIXES
        if (path := folder / f"{stem}{suffix}").is_file()
    }
    return found if "train" in found else {}


@dataclass(frozen=True, eq=False)
class Triples:
    """A graph of train triples, and the triples of each set."""

    plain: Dataset
    """Graph, features and names; its types predict each relation. Without labels."""
    sets: dict[str, npt.NDArray[np.int64]]
    """[n, 3] by train, val and test: heads, tails and relations, by their numbers; [n, 2] where there is one relation.
    Empty ones are left out."""


def read_triples(source: Any, request: Request) -> Triples:
    """The triples of a folder. Raises InputError: a file has other columns, or columns in another order; see also
    `as_triples`."""
    folder, options, notes = expanded(source), request.options, list[str]()
    order = None if options.triples is None else options.triples.replace(" ", "").split(",")
    files = files_of(folder)
    cells = {name: _stripped(_rows(path)) for name, path in files.items()}
    if blanks := sum(count for _, count in cells.values()):
        notes.append(f"Blanks around {counted(blanks, 'field')} of the triples were stripped.")
    rows = {name: found for name, (found, _) in cells.items()}
    uses = Counter(cell for found in rows.values() for cell in found.ravel().tolist())
    for name, found in rows.items():
        first = found[0].tolist() if len(found) else []
        titles = [next((k for k, words in WORDS.items() if str(c).lower() in words.split()), "") for c in first]
        alone = len(found) > 1 and all(uses[cell] <= len(rows) for cell in first)
        if alone and sorted(titles) == sorted(PLACES):
            rows[name], order = found[1:], order or titles
            notes.append(f"The first row of {files[name].name} is its header: {', '.join(first)}.")
        elif order is None and alone and len(set(first)) == 3 and len(uses) > 3 and _is_apart(found):
            raise InputError(
                f"{files[name]} begins with {', '.join(map(repr, first))}, of which no other row has a name; remove "
                "this row if it is a header, or set triples=head,relation,tail if it is a triple"
            )
    if order is None and (seen := _looks_turned(rows["train"])):
        raise InputError(
            f"{files['train']} has {seen}, so the order seems to be head, tail, relation; set "
            "triples=head,tail,relation, or triples=head,relation,tail if that is the order"
        )
    at = [(order or PLACES).index(place) for place in PLACES]
    return as_triples({name: found[:, at] for name, found in rows.items()}, request.name or folder.name, notes)


def _is_apart(rows: npt.NDArray[np.object_]) -> bool:
    """True if the names of the first triple are in no other one, and those of most others are."""
    uses = Counter(rows[1:].ravel().tolist())
    once = sum(all(uses[cell] == 1 for cell in row) for row in rows[1:].tolist())
    return not any(cell in uses for cell in rows[0].tolist()) and 10 * once <= len(rows)


def _looks_turned(rows: npt.NDArray[Any]) -> str:
    """A clause that says why the second column seems to hold tails and the third one relations; empty if they do not.
    Numbers of entities and relations may be equal, names may not."""
    heads, second, third = (set(column.tolist()) for column in rows.T)
    named = not all(str(cell).isdecimal() for cell in (*list(second)[:100], *list(third)[:100]))
    shared = len(second & heads) > len(second) // 2 and not third & (heads | second)
    if len(third) >= len(second) or not ((named and shared) or FEWER * len(third) <= len(second)):
        return ""
    also = ", which heads have too," if named and shared else ""
    return f"{counted(len(second), 'name')} in its second column{also} and {len(third):,} in its third"


def _stripped(cells: npt.NDArray[np.object_]) -> tuple[npt.NDArray[np.object_], int]:
    """Text without blanks around it, and how many of the cells had some."""
    found = np.array([cell.strip() if isinstance(cell, str) else cell for cell in cells.ravel().tolist()], object)
    return found.reshape(cells.shape), int((found != cells.ravel()).sum())


def _rows(path: Path) -> npt.NDArray[np.object_]:
    """[n, 3], the text of a file."""
    # Arrow starts a thread when it is imported, which the server of ranks must not have.
    import pyarrow as pa
    from pyarrow import csv

    from ..cleaning.arrow import reading

    columns = ["head", "relation", "tail"]
    if not path.stat().st_size:
        return np.empty((0, 3), object)
    with reading(path, FORM):
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(column_names=columns),
            parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string())),
        )
    return np.stack([table[name].to_numpy(zero_copy_only=False) for name in columns], axis=1)


def as_triples(sets: Mapping[str, Any], name: str, notes: Sequence[str] = (), add_reverse: bool = True) -> Triples:
    """The graph and the sets of triples by train, val and test: see `pipeline.datasets.triples.from_triples`. `notes`
    are those of a file."""
    rows = {key: _checked(key, array) for key, array in present_items(sets).items()}
    if not len(rows.get("train", ())):
        raise InputError(f"the train set of {name} has no triples; there is nothing to learn from")
    if len({a.dtype.kind for a in rows.values() if len(a)}) > 1:
        raise InputError("some triples are of names and others of numbers; expected one of them")
    every, relations, entities, count = _numbered(rows)
    _check_relations(name, relations, add_reverse)
    bounds = np.cumsum([0, *map(len, rows.values())])
    parts = {key: every[a:b] for key, a, b in zip(rows, bounds[:-1], bounds[1:])}
    found = {key: own[np.argsort(own[:, 2], kind="stable")] for key, own in parts.items()}  # relation by relation
    first = found["train"]
    ends = np.searchsorted(first[:, 2], np.arange(len(relations) + 1))
    edges = {
        (ENTITY, text, ENTITY): (first[a:b, 0], first[a:b, 1]) for text, a, b in zip(relations, ends[:-1], ends[1:])
    }
    if add_reverse:
        turned = reversed_relations(name, tuple(edges))
        edges |= dict(zip(turned, [(tails, heads) for heads, tails in edges.values()]))
    groups = tuple((r, len(relations) + r) if add_reverse else (r,) for r in range(len(relations)))
    graph = graph_of_relations(edges, GraphTypes((ENTITY,), (0, count), tuple(edges), pair_relations=groups))
    none = np.empty(0, np.int64)
    what = (
        f"Triples: {counted(count, 'entity', 'entities')} and {counted(len(relations), 'relation')}. Entities have "
        "no features; with learned=64 each learns a row of its own."
    )
    more: Any = {"notes": (what, *notes, *_unlearnt(first, relations, count, entities)), "node_names": entities}
    features = TypedFeatures((ArrayFeatures(np.zeros((count, 0), np.float32)),), (0, count))
    plain = Dataset(name, graph, features, np.zeros(count, np.int64), Split(none, none, none), num_classes=1, **more)
    width = 2 + (len(relations) > 1)
    return Triples(plain, {key: pairs[:, :width] for key, pairs in found.items() if len(pairs)})


def _unlearnt(train: npt.NDArray[np.int64], relations: Sequence[str], count: int, entities: Any) -> list[str]:
    """Notes on entities and relations that no train triple has."""
    notes = []
    for what, several, every, there, names in (
        ("entity", "entities", count, train[:, :2], entities),
        ("relation", "relations", len(relations), train[:, 2], relations),
    ):
        absent = np.setdiff1d(np.arange(every), there)
        if len(absent):
            first = absent[0] if names is None else f"'{names[absent[0]]}'"
            notes.append(
                f"{counted(len(absent), what, several)} (first: {first}) {are(len(absent))} in no train triple: "
                "nothing is learnt of them."
            )
    return notes


def _check_relations(name: str, relations: Sequence[str], add_reverse: bool) -> None:
    most = MOST_RELATIONS // (1 + add_reverse)
    if len(relations) > most:
        what = " beside their reverses" if add_reverse else ""
        raise InputError(f"{name} has {counted(len(relations), 'relation')}; expected at most {most:,}{what}")
    if wrong := [text for text in relations if not text.isprintable()]:
        raise InputError(f"a relation of {name} is called {wrong[0]!r}; expected a printable name")


def _checked(key: str, array: Any) -> npt.NDArray[Any]:
    """[n, 3], whole numbers or text."""
    try:
        found = host(array)
    except ValueError:
        raise InputError(f"the triples of {key} differ in length; expected [n, 3]: head, relation, tail") from None
    if not found.size:
        return np.empty((0, 3), object)
    if found.ndim != 2 or found.shape[1] != 3:
        raise InputError(f"the triples of {key} have shape {list(found.shape)}; expected [n, 3]: head, relation, tail")
    if found.dtype.kind in "iu":
        if found.min() < 0:
            raise InputError(f"the triples of {key} hold {found.min()}; expected whole numbers from 0")
        entity, relation = int(found[:, [0, 2]].max()), int(found[:, 1].max())
        most = max(FEW_ENTITIES, PER_TRIPLE * len(found))
        for what, number, bound in (("entity", entity, most), ("relation", relation, MOST_RELATIONS)):
            if number >= bound:
                raise InputError(
                    f"the triples of {key} have the {what} {number:,}, and numbers from 0 on each take "
                    f"memory; expected numbers below {bound:,}: renumber them, or give names"
                )
        return found.astype(np.int64)
    if found.dtype.kind not in "UO":
        raise InputError(f"the triples of {key} are {found.dtype}; expected names, or whole numbers from 0")
    texts, _ = _stripped(found.astype(object))
    empty = [i for i, row in enumerate(texts.tolist()) if not all(isinstance(cell, str) and cell for cell in row)]
    if empty:
        raise InputError(f"triple {empty[0]} of {key} is {texts[empty[0]].tolist()}; expected a name in each place")
    return texts


def _numbered(rows: Mapping[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[np.int64], list[str], Any, int]:
    """Numbers of the heads, tails and relations of all sets [n, 3], one set after the other; names of relations, those
    of entities or None, and the number of entities. Names are numbered in ascending order."""
    every = np.concatenate([own for own in rows.values() if len(own)])
    if every.dtype.kind == "i":
        number = int(every[:, 1].max()) + 1
        return every[:, [0, 2, 1]], [str(r) for r in range(number)], None, int(every[:, [0, 2]].max()) + 1
    # Text as wide as the longest name in every place would be many times the size of the names.
    entities, ends = _places(every[:, [0, 2]].ravel())
    relations, relation = _places(every[:, 1])
    return np.column_stack([ends.reshape(-1, 2), relation]), relations, np.array(entities), len(entities)


def _places(texts: npt.NDArray[np.object_]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The distinct texts in ascending order, and the place of each text among them."""
    distinct = sorted(set(texts.tolist()))
    place = {text: i for i, text in enumerate(distinct)}
    return distinct, np.fromiter(map(place.__getitem__, texts), np.int64, len(texts))
