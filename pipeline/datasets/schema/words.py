"""Words that name the role of a column, in any case and spelling: ``sourceNodeId``, ``SOURCE_NODE_ID``, ``:START_ID``.

Ids of nodes are called by one of `IDS`; else they are the one column whose last word is ``id`` (``accountId``,
``new_id``); else a pandas index, or a first column without a name. Words for ends may have ``node`` or ``id`` behind.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import product

IDS = ("id", "node_id", "node", "vertex_id", "vertex", "nid", "vid")
"""Columns of ids by their whole names, the surest first."""
INDEXES = ("index_level_0", "index", "unnamed_0")
"""Columns that pandas makes of the index of a table."""
WEIGHTS = ("weight", "edge_weight", "weights", "w")
LABELS = ("label", "y", "class", "labels", "node_label", "class_label")
LIKE_LABELS = {"label", "labels", "class", "classes", "target", "category", "kind", "outcome"}
"""Words in names that labels may have: proposed, never taken by themselves."""
RELATIONS = ("relation", "rel", "rel_type", "relation_type", "edge_type", "type", "predicate", "etype")
"""Columns that may be the relations of edges: proposed, never taken by themselves."""
SPLIT_COLUMNS = ("split", "set", "subset", "data_split")
PARTS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev", "eval"),
    "test": ("test", "testing"),
}
"""Words for the sets of a split."""
FEATURE = re.compile(r"(?:feature_|x_?)(\d+)")
"""Names of columns of features."""
LISTS = ("features", "x")
"""Names of a column of lists of features."""
LAYOUT = ("x", "y", "z")
"""Names of the coordinates of a drawing."""
_NUMBERED_LABEL = re.compile(r"label_(\d+)")
FLAGS = {True: ("true", "t", "yes", "y", "1"), False: ("false", "f", "no", "n", "0", "")}
"""Words of masks that are text."""
_PART_OF = {word: part for part, words in PARTS.items() for word in words}
_SHORT = {"tr": "train", "trn": "train", "fit": "train", "va": "val", "vl": "val", "te": "test", "tst": "test"}
_SHORT |= {"holdout": "test", "hold_out": "test", "held_out": "test", "heldout": "test"}
_ENDS = (
    (("src", "source", "origin"), ("dst", "dest", "destination", "target", "tgt")),
    (("from",), ("to",)),
    (("start",), ("end",)),
    (("head",), ("tail",)),
    (("sender",), ("receiver", "recipient")),
    (("subject",), ("object",)),
    (("u",), ("v",)),
    (("node1", "node_1", "id1", "id_1"), ("node2", "node_2", "id2", "id_2")),
)
_KIND = re.compile(r"([a-z_]{3,}?)(?:_(?:id|idx|index))?")
_BEHIND = re.compile(r"(?:_(?:node|vertex))?(?:_(?:id|ids|idx|index|key|name))?")


def fold(name: str) -> str:
    """A name in lower case, its words joined by ``_``."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.strip())
    return re.sub(r"[\W_]+", "_", apart.lower()).strip("_")


def first_of(names: Sequence[str], words: Sequence[str]) -> str | None:
    """The column that is called by the first of `words` that any is called by; an exact name wins."""
    for word in words:
        if word in names:
            return word
        found = [n for n in names if fold(n) == word]
        if found:
            return found[0]
    return None


def looks_like_id(name: str) -> bool:
    """True for a name that ids or indices have, of these rows or of others: it is never a feature by itself."""
    words = fold(name).split("_")
    return words[-1] in ("id", "ids", "idx", "uuid") or fold(name) in (*IDS, *INDEXES) or not name.strip()


def id_columns(names: Sequence[str], node_type: str | None = None) -> list[str]:
    """Columns that may be the nodes' ids: one if words settle it, several if they don't."""
    if node_type is not None and (own := first_of(names, (f"{fold(node_type)}_id",))) is not None:
        return [first_of(names, ("id",)) or own]
    if (found := first_of(names, IDS)) is not None:
        return [found]
    if named := [n for n in names if fold(n).split("_")[-1] in ("id", "uuid")]:
        return named
    if (found := first_of(names, INDEXES)) is not None:
        return [found]
    return [n for n in names[:1] if not n.strip()]


def end_columns(names: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of columns that may be the ends of edges: one if words settle it, several if they don't."""
    if "src" in names and "dst" in names:
        return [("src", "dst")]
    for sources, targets in _ENDS:
        found = list(product(_called(names, sources), _called(names, targets)))
        alike = [(s, t) for (s, behind), (t, other) in found if behind == other]
        if alike or found:
            return alike or [(s, t) for (s, _), (t, _) in found]
    every = tuple(zip(*_ENDS))
    mixed = [list(_called(names, [word for words in side for word in words])) for side in every]
    return [(s, t) for (s, _), (t, _) in product(*mixed)]


def end_words(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Columns with a word for the source of edges, and those with one for the target."""
    first, second = ([name for name, _ in _called(names, sum(side, ()))] for side in zip(*_ENDS))
    return first, second


def likely_ends(names: Sequence[str]) -> list[str]:
    """Columns that may be the two ends of edges, the likeliest first: ``x_id`` and ``y_id``, else ``source_x`` and
    ``target_x`` or ``x1`` and ``x2``, else ids, else any."""
    ids = [n for n in names if looks_like_id(n) or fold(n).endswith("_index")]
    for some, word in ((ids, "[^_]+"), (names, "|".join(sum((one for pair in _ENDS for one in pair), ())))):
        kinds = [re.sub(rf"^(?:{word})_|[12]$", "#", fold(n)) for n in some]
        for kind in kinds:
            if "#" in kind and kinds.count(kind) == 2:
                return [n for n, own in zip(some, kinds) if own == kind]
    return [*ids, *(n for n in names if n not in ids)]


def kinds_of_ends(ends: Sequence[str]) -> list[str]:
    """Two kinds of nodes that the names of two columns of ends tell, such as ``user`` and ``movie``; else none, as for
    ``from_user`` and ``to_user``, which share a word."""
    found = [_KIND.fullmatch(fold(n)) for n in ends if end_words([n]) == ([], [])]
    kinds = [m[1] for m in found if m]
    return kinds if len(kinds) == 2 and {*kinds[0].split("_")}.isdisjoint(kinds[1].split("_")) else []


def _called(names: Sequence[str], words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Columns that are called by one of `words`, and what stands behind it in their names."""
    for name in names:
        folded = fold(name)
        for word in words:
            if folded.startswith(word) and _BEHIND.fullmatch(behind := folded[len(word) :]):
                yield name, behind
                break


def label_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Columns of labels; none if no word names one."""
    numbered = {int(m[1]): n for n in names if (m := _NUMBERED_LABEL.fullmatch(fold(n)))}
    if (found := first_of(names, LABELS)) is not None and not (numbered and fold(found) != "label"):
        return (found,)
    return tuple(numbered[i] for i in sorted(numbered))


def part_of(word: str) -> str | None:
    """train, val or test by a word for it; None: it is none."""
    return _PART_OF.get(fold(word))


def set_of(value: str) -> str | None:
    """train, val or test by a value of a column of sets, where shorter words are common than in names; None: none."""
    return part_of(value) or _SHORT.get(fold(value))


def are_sets(values: Collection[str]) -> bool:
    """True for values in each of which is a word of a set, as in ``PublicTest``, and in one a word of the train set."""
    found = [next(filter(None, map(part_of, fold(value).split("_"))), None) for value in values]
    return None not in found and "train" in found


def is_split(name: str) -> bool:
    """True for a name that says that its column divides the rows into sets or folds: ``dataset_split``, ``fold``."""
    return not {"split", "splits", "fold", "folds"}.isdisjoint(fold(name).split("_")) or fold(name) in SPLIT_COLUMNS


def mask_of(name: str) -> str | None:
    """Set whose members a column by this name flags; None: it is no mask."""
    return part_of(re.sub(r"^(?:is|in|mask)_|_(?:mask|set|flag|split|idx|index|ids|nodes)(?:_?\d+)?$", "", fold(name)))


def numbered_features(names: Collection[str]) -> tuple[str, ...]:
    """Columns ``feature_0, feature_1, ...`` or ``x0, x1, ...``, in the order of their numbers."""
    of_number = {int(m[1]): n for n in names if (m := FEATURE.fullmatch(n.strip().lower()))}
    return tuple(of_number[i] for i in sorted(of_number))


def is_text_first(name: str, kind: str) -> bool:
    """True for a column of CSV that is read as text: 007 is not a number there, and one name among numbers makes all
    of them names."""
    if kind == "edges":
        return any(name in side for side in end_words([name])) or fold(name) in ("id", "relation")
    return looks_like_id(name) or fold(name) in SPLIT_COLUMNS
