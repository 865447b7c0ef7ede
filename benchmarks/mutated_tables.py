"""Writes tables of a known graph as people have them, and opens them: each is read rightly, or refused in one message
that names the trouble, never read wrongly.

```sh
.venv/bin/python benchmarks/mutated_tables.py --tables 500
```

Each table has up to three changes of `CHANGES`. It is opened by `open_dataset` and converted by `convert`: both give
the names, edges, labels and split of the tables as they were, and the same features, weights and notes; or one refusal.
"""

import argparse
import csv
import io
import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

import millrace as mr
from millrace.pipeline.telemetry.events import silent
from millrace.storage.errors import InputError

SETS = ("train", "val", "test")
KEYS = {"id": "id", "src": "src", "dst": "dst", "label": "label_columns", "split": "split", "weight": "weight"}
"""Keys that name the column of a role."""
SYNONYMS = {
    "src": ("source", "from", "Source", "sourceNodeId", "start_id", "head", "u", "SRC", "sender_id", "node1", "id1"),
    "dst": ("target", "to", "Target", "targetNodeId", "end_id", "tail", "v", "DST", "receiver_id", "node2", "id2"),
    "id": ("node_id", "nodeId", "vertex", "NID", "accountId", "ID ", "Id", "user_id", "uuid", "index", ""),
    "label": ("y", "class", "Label", "labels", "node_label", "CLASS"),
    "split": ("set", "subset", "Split", "data_split", "mask"),
    "weight": ("w", "weights", "Weight", "edge_weight"),
}
CATEGORY = pa.dictionary(pa.int32(), pa.string())
NONSENSE = ("zq", "column7", "Spalte 3", "x_1y", "währung", "f", "0", "my col", "a.b", "q-1", "attr")
PLAIN = ("blue", "green", "red")
NOTHING = (None, "", "NA", "null", "nan")
Table = dict[str, list[Any]]
"""Columns by role."""


@dataclass
class Tables:
    """One graph as tables, with columns by role, and how they are written."""

    rng: np.random.Generator
    form: str
    nodes: dict[str, Table]
    """By node type; '' in a graph with one."""
    edges: dict[tuple[str, str, str], Table]
    label_type: str
    headers: dict[str, str] = field(default_factory=dict)
    """By role, where they differ."""
    kinds: dict[str, Any] = field(default_factory=dict)
    """Types of columns by role, for files that have types."""
    how: dict[str, Any] = field(default_factory=dict)
    """Settings by which the files of a table are written."""
    options: dict[str, Any] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)

    @property
    def every(self) -> list[Table]:
        """All tables."""
        return [*self.nodes.values(), *self.edges.values()]

    @property
    def labelled(self) -> Table:
        """The table with labels."""
        return self.nodes[self.label_type]

    def change(self, role: str, of: Callable[[Any], Any]) -> None:
        """Put other values into the columns of a role."""
        for table in self.every:
            if role in table:
                table[role] = [of(v) for v in table[role]]

    def one_of(self, values: Iterable[Any]) -> Any:
        """One of some values."""
        some = list(values)
        return some[int(self.rng.integers(len(some)))]


def made(rng: np.random.Generator, form: str, typed: bool) -> Tables:
    """A graph with names, classes, a split and weights."""
    types, as_text, nodes = ["user", "item"] if typed else [""], bool(rng.integers(2)), dict[str, Table]()
    for t in types:
        n = int(rng.integers(24, 40))
        own = (rng.permutation(n) if rng.integers(2) else rng.permutation(10**6)[:n]).tolist()
        nodes[t] = {"id": [f"{t}p{i}" for i in own] if as_text else own}
        nodes[t] |= {"feature_0": rng.normal(size=n).round(3).tolist(), "feature_1": rng.integers(0, 99, n).tolist()}
    first = nodes[types[0]]
    n = len(first["id"])
    first["label"] = [PLAIN[i % 3] for i in rng.permutation(n)]
    first["split"] = [SETS[int(i)] for i in rng.permutation(np.repeat([0, 1, 2], [n - 12, 6, 6]))]
    edges = dict[tuple[str, str, str], Table]()
    for key in [("user", "buys", "item"), ("user", "knows", "user")] if typed else [("", "", "")]:
        ends = nodes[key[0]]["id"], nodes[key[2]]["id"]
        at = np.unique(rng.integers(0, (len(ends[0]), len(ends[1])), (90, 2)), axis=0)
        at = at[rng.permutation(len(at))].tolist()
        weight = (rng.integers(1, 9, len(at)) / 2).tolist()
        edges[key] = {"src": [ends[0][s] for s, _ in at], "dst": [ends[1][d] for _, d in at], "weight": weight}
    options = {} if typed else {"direction": "directed"}
    return Tables(rng, form, nodes, edges, types[0], options=options | ({} if as_text else {"missing_ids": "compact"}))


def length(table: Table) -> int:
    """Number of rows."""
    return len(next(iter(table.values())))


# -- changes, each of tables that others may have changed


def synonyms(t: Tables) -> None:
    """Headers that mean the same."""
    at = int(t.rng.integers(len(SYNONYMS["src"])))
    t.headers |= {role: words[at] if role in ("src", "dst") else t.one_of(words) for role, words in SYNONYMS.items()}


def nonsense(t: Tables) -> None:
    """Headers that mean nothing, which keys name or not."""
    for role, name in zip(t.rng.permutation(list(KEYS))[:3].tolist(), t.rng.permutation(NONSENSE).tolist()):
        t.headers[role] = name
        if t.rng.integers(2):
            t.options[KEYS[role]] = name


def feature_words(t: Tables) -> None:
    """Features by names that say nothing, which a key names."""
    t.headers |= {"feature_0": "age", "feature_1": "income"}
    t.options["feature_columns"] = t.one_of(["age,income", "*"])


def rows(t: Tables) -> None:
    """Rows in another order."""
    for table in t.every:
        order = t.rng.permutation(length(table)).tolist()
        table |= {role: [values[i] for i in order] for role, values in table.items()}


def shards(t: Tables) -> None:
    """Twelve numbered files for each table."""
    t.how["shards"] = t.one_of(["-{}", ".part.{}", "_{:03d}", "-part-{:05d}", "/part-{}", "-{}-of-12"])


def masks(t: Tables) -> None:
    """A split as three columns of flags."""
    three = [("train_mask", "val_mask", "test_mask"), ("train", "valid", "test"), ("is_train", "is_val", "is_test")]
    kind = t.one_of([bool, int, float])
    for name, part in zip(t.one_of(three), SETS):
        t.labelled[name] = [kind(v == part) for v in t.labelled["split"]]
    del t.labelled["split"]


def words(t: Tables) -> None:
    """Other words for the sets."""
    other = {
        "train": ["Train", "TRAIN", "training"],
        "val": ["valid", "validation", "Dev"],
        "test": ["TEST", "Testing"],
    }
    to = {part: t.one_of(some) for part, some in other.items()}
    t.change("split", lambda v: to.get(v, v))


def numbers(t: Tables) -> None:
    """Classes as numbers of some type, text of digits, flags, or categories."""
    kind = t.one_of(["int8", "float64", "uint16", "digits", "zeros", "flags", "bool", "category"])
    as_text: dict[str, Callable[[int], str]] = {
        "digits": str, "zeros": lambda i: ("01", "1", "2")[i], "flags": lambda i: str(bool(i))
    }  # fmt: skip
    code = {"red": 0 if kind in ("flags", "bool") else 2, "green": 1, "blue": 0}
    t.change("label", lambda v: as_text[kind](code[v]) if kind in as_text else v if kind == "category" else code[v])
    of_kind = {
        "int8": pa.int8(),
        "float64": pa.float64(),
        "uint16": pa.uint16(),
        "bool": pa.bool_(),
        "category": CATEGORY,
    }
    t.kinds |= {"label": of_kind[kind]} if kind in of_kind else {}


def blanks(t: Tables) -> None:
    """Blanks around some values."""
    role = t.one_of(["label", "split", "id", "src"])
    t.change(role, lambda v: f"{v} " if isinstance(v, str) and t.rng.integers(2) else v)


def nulls(t: Tables) -> None:
    """Nodes without a label or a set, as nulls or a word for one."""
    nothing = t.one_of(NOTHING if t.form == "csv" else [None])
    for role in ("label", "split"):
        if role in t.labelled:  # nobody is in a set without a label
            t.labelled[role][:3] = [nothing if role == "label" else None] * 3


def ids_as(t: Tables) -> None:
    """Ids of another type: decimals, floats, categories, text, unsigned; in all tables, or those of nodes."""
    as_text = isinstance(t.labelled["id"][0], str)
    kind = t.one_of([CATEGORY] if as_text else [pa.float64(), pa.string(), pa.uint64(), pa.decimal128(20, 0)])
    roles = t.one_of([("id", "src", "dst"), ("id",), ("src", "dst")])
    t.kinds |= dict.fromkeys(roles, kind)
    for role in roles:
        t.change(role, str if kind == pa.string() else float if kind == pa.float64() else lambda v: v)


def leading_zeros(t: Tables) -> None:
    """Ids as text of digits with zeros before."""
    for role in ("id", "src", "dst"):
        t.change(role, lambda v: f"{int(v):09d}" if isinstance(v, int) else v)


def hole(t: Tables) -> None:
    """An id, an end or a feature that is missing."""
    role = t.one_of(["id", "src", "feature_0"])
    table = next(table for table in t.every if role in table)
    table[role][5] = None


def dangling(t: Tables) -> None:
    """An edge to a node that is not there."""
    table = next(iter(t.edges.values()))
    table["dst"][0] = "nobody" if isinstance(table["dst"][0], str) else 10**7
    if t.rng.integers(2):
        t.options["dangling_edges"] = "drop"


def repeated(t: Tables) -> None:
    """A node twice."""
    for values in t.labelled.values():
        values.append(values[3])


def lists(t: Tables) -> None:
    """Features as a list in each row, of which one may be null."""
    if t.form == "csv":
        return
    for own in t.nodes.values():
        own["features"] = [
            [0.0 if v is None else v for v in row] for row in zip(own.pop("feature_0"), own.pop("feature_1"))
        ]
        if t.rng.integers(3) == 0:
            own["features"][4] = None


def other_columns(t: Tables) -> None:
    """Columns without a meaning: a serial number, dates."""
    for table in t.every:
        table[t.one_of(["rank", "row", "nr"])] = t.rng.permutation(length(table)).tolist()
        table[t.one_of(["city", "comment", "created"])] = [f"2024-01-{i % 28 + 1:02d}" for i in range(length(table))]


def columns(t: Tables) -> None:
    """Columns in another order."""
    for of in (t.nodes, t.edges):
        for key, table in list(of.items()):
            of[key] = {role: table[role] for role in t.rng.permutation(list(table)).tolist()}


def stale(t: Tables) -> None:
    """A copy of some rows of a table beside it; or names with _ in place of -."""
    names = ["edges_old", "edges (copy)", "edges.bak", "nodes_backup", "edges-1", "nodes_new", "copy of edges", ""]
    t.how["stale"] = t.one_of(names)


def index(t: Tables) -> None:
    """The index of pandas as a column."""
    t.how["index"] = True


def twice(t: Tables) -> None:
    """A header twice."""
    t.how["twice"] = t.one_of(["id", "src", "label", "feature_0"])


def encoding(t: Tables) -> None:
    """A byte order mark, or another encoding; other ends of lines."""
    t.how |= {"encoding": t.one_of(["utf-8-sig", "utf-16", "latin-1"]), "lineterminator": t.one_of(["\n", "\r\n"])}
    t.change("label", lambda v: "grün" if v == "green" else v)


def delimiter(t: Tables) -> None:
    """Another separator of columns."""
    t.how["sep"] = t.one_of([";", "\t", "|", " "])


def quoted(t: Tables) -> None:
    """All values in quotes."""
    t.how["quoting"] = 1


def compressed(t: Tables) -> None:
    """Compressed files."""
    t.how["end"] = t.one_of([".gz", ".bz2", ".zst"])


def bare(t: Tables) -> None:
    """No header."""
    t.how["header"] = False


CHANGES = (
    synonyms, nonsense, feature_words, rows, masks, words, numbers, blanks, nulls, ids_as, leading_zeros, hole,
    dangling, repeated, lists, other_columns, columns, shards, stale, index, twice, encoding, delimiter, quoted,
    compressed, bare,
)  # fmt: skip
"""In the order in which they are made."""


# -- writing


def one_file(t: Tables, table: Table, path: Path) -> None:
    """Write rows as one file, with their headers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = [(t.headers.get(role, role), values, t.kinds.get(role)) for role, values in table.items()]
    if (again := t.how.get("twice")) in table:
        found.append(found[list(table).index(str(again))])
    if t.how.get("index"):
        found.insert(0, ("" if t.form == "csv" else "__index_level_0__", list(range(length(table))), None))
    names, values, kinds = map(list, zip(*found))
    if t.form in ("csv", "jsonl"):
        compression = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}.get(path.suffix)
        with pa.output_stream(str(path), compression=compression) as raw:
            raw.write(text_of(t, names, values).encode(t.how.get("encoding", "utf-8")))
        return
    arrays = [pa.array(of).cast(kind) if kind else pa.array(of) for of, kind in zip(values, kinds)]
    rows = pa.Table.from_arrays(arrays, names=names)
    (pq.write_table if t.form == "parquet" else pyarrow.feather.write_feather)(rows, path)


def text_of(t: Tables, names: list[str], values: list[list[Any]]) -> str:
    """Rows as CSV, or as JSON lines."""
    if t.form == "jsonl":
        return "".join(json.dumps(dict(zip(names, row)), ensure_ascii=False) + "\n" for row in zip(*values))
    out = io.StringIO()
    ends = {"delimiter": t.how.get("sep", ","), "lineterminator": t.how.get("lineterminator", "\n")}
    writer = csv.writer(out, quoting=t.how.get("quoting", csv.QUOTE_MINIMAL), **ends)
    writer.writerows([names] if t.how.get("header", True) else [])
    writer.writerows(["" if v is None else v for v in row] for row in zip(*values))
    return out.getvalue()


def taken(table: Table, rows: Iterable[int]) -> Table:
    """Some rows of a table."""
    return {role: [values[i] for i in rows] for role, values in table.items()}


def written(t: Tables, folder: Path) -> Path:
    """Write all tables into a folder."""
    end = f".{t.form}" + (t.how.get("end", "") if t.form in ("csv", "jsonl") else "")
    sign, copied = "_" if t.how.get("stale") == "" else "-", t.how.get("stale")
    stems = {sign.join(["nodes", *([k] if k else [])]): own for k, own in t.nodes.items()}
    stems |= {sign.join(["edges", *(k if k[0] else ())]): own for k, own in t.edges.items()}
    for stem, table in stems.items():
        if (form := t.how.get("shards")) is None:
            one_file(t, table, folder / f"{stem}{end}")
            continue
        for i, part in enumerate(np.array_split(np.arange(length(table)), 12)):
            name = f"{stem}{end}/part-{i}{end}" if "/" in form else stem + form.format(i) + end
            one_file(t, taken(table, part.tolist()), folder / name)
    if copied:
        table = next(own for stem, own in stems.items() if stem[:5] in copied)
        one_file(t, taken(table, range(length(table) // 2)), folder / f"{copied}{end}")
    return folder


def as_npz(t: Tables, folder: Path) -> Path:
    """The graph in one file of arrays, by words that people use."""
    own, table = t.nodes[""], t.edges["", "", ""]
    number = {v: i for i, v in enumerate(own["id"])}
    ends = np.array([[number[v] for v in table[end]] for end in ("src", "dst")])
    arrays: dict[str, Any] = dict([t.one_of([("edge_index", ends), ("edges", ends.T)])])
    arrays[t.one_of(["y", "labels", "label", "node_labels"])] = np.array([PLAIN.index(v) for v in own["label"]])
    arrays[t.one_of(["x", "features", "node_features"])] = np.array([own["feature_0"], own["feature_1"]], np.float32).T
    how, second = int(t.rng.integers(3)), t.one_of(["val", "valid"])
    for part in SETS:
        flags, name = np.array(own["split"]) == part, second if part == "val" else part
        word = f"{name}_mask" if how < 2 else f"{name}_{t.one_of(['idx', 'index'])}"
        arrays[word] = (flags, flags.astype(int), np.flatnonzero(flags))[how]
    if t.rng.integers(2):
        arrays[t.one_of(["edge_weight", "edge_weights", "weights"])] = np.array(table["weight"])
    if t.rng.integers(3) == 0:
        arrays[t.one_of(["num_nodes", "splits_n", "meta"])] = np.array(len(number))
    t.options = {"direction": "directed"}
    np.savez(folder / "graph.npz", **arrays)
    return folder / "graph.npz"


# -- what is right


@dataclass(frozen=True)
class Graph:
    """Names, edges, labels and split of a graph, which are compared by the names of its nodes."""

    edges: list[Any]
    labels: list[Any]
    split: list[Any]

    def differs(self, want: "Graph") -> str:
        """Describe the first difference; empty if there is none."""
        for what in ("edges", "labels", "split"):
            if (mine := getattr(self, what)) != (right := getattr(want, what)):
                odd, missing = sorted(set(mine) - set(right)), sorted(set(right) - set(mine))
                return f"{what}: {odd[:2]}, not {missing[:2]}; {len(mine)}, not {len(right)}"
        return ""


def right(t: Tables, name: Callable[[Any], str]) -> Graph:
    """The graph of some tables, whose nodes are called by `name`."""
    own = t.labelled
    edges = [
        (key[0], name(s), key[1], key[2], name(d))
        for key, table in t.edges.items()
        for s, d in zip(table["src"], table["dst"])
    ]
    labels = [(name(v), str(y)) for v, y in zip(own["id"], own["label"])]
    return Graph(sorted(edges), sorted(labels), sorted((name(v), s) for v, s in zip(own["id"], own["split"])))


def after(t: Tables, want: Graph) -> Graph:
    """Return `want` after changes of labels and ids: with the labels in the tables, and names with zeros."""
    zeros = "leading_zeros" in t.changes

    def name(v: Any) -> str:
        return f"{int(v):09d}" if zeros and str(v).isdigit() else str(v)

    given = {}
    for v, y in zip(t.labelled["id"], t.labelled["label"]):
        if v is not None and y == y and y not in NOTHING:
            key = str(v).strip().removesuffix(".0")
            text = y.strip() if isinstance(y, str) else str(int(y))
            # Flags are the classes 0 and 1.
            given[name(key)] = str(int(text == "True")) if t.form == "csv" and text in ("True", "False") else text
    edges = sorted((a, name(s), r, b, name(d)) for a, s, r, b, d in want.edges)
    if t.options.get("dangling_edges") == "drop":
        (key, table), *_ = t.edges.items()
        lost = [e for e in edges if (e[0], e[2], e[3]) == key]
        ends = Counter((name(str(s).strip()), name(str(d))) for s, d in zip(table["src"], table["dst"]))
        for e in lost:
            if (ends[e[1], e[4]]) == 0 and len(edges) == len(want.edges):
                edges.remove(e)
    split = [(name(v), s) for v, s in want.split if name(v) in given]
    return Graph(edges, sorted(given.items()), sorted(split))


def seen(data: Any, label_type: str) -> Graph:
    """The graph of a dataset."""
    graph, types = data.graph, data.graph.types
    starts = (0, *types.offsets)
    numbers = [str(v - max(s for s in starts if s <= v)) for v in range(data.num_nodes)]
    names = numbers if data.node_names is None else [str(n).removesuffix(".0") for n in data.node_names]
    dst = np.repeat(np.arange(data.num_nodes), np.diff(np.asarray(graph.indptr))).tolist()
    ends, first, last = zip(np.asarray(graph.indices).tolist(), dst), 0, data.num_nodes
    edges = [("", names[s], "", "", names[d]) for s, d in ends]
    if not types.is_single:
        of_type = dict(zip(types.node_types, types.offsets))
        i = types.node_types.index(label_type)
        first, last, edges = types.offsets[i], types.offsets[i + 1], []
        for (a, r, b), store in data.to_pyg().edge_items():
            src, to = store["edge_index"].numpy()
            edges += [(a, names[of_type[a] + s], r, b, names[of_type[b] + d]) for s, d in zip(src, to)]
    words, y = data.class_names, np.asarray(data.labels)[first:last]
    labels = (
        [] if y.ndim > 1 else [(names[first + v], words[c] if words else str(c)) for v, c in enumerate(y) if c >= 0]
    )
    split = [(names[v], part) for part in SETS for v in np.asarray(getattr(data.split, part)).tolist()]
    return Graph(sorted(edges), sorted(labels), sorted(split))


def opened(path: Path, options: Any) -> Any:
    """A dataset, or what was refused."""
    try:
        return mr.open_dataset(path, options=options)
    except InputError as e:
        return e


def converted(path: Path, options: Any, out: Path) -> Any:
    """The dataset of a store, or what was refused."""
    try:
        mr.convert(path, out, options=options, emit=silent)
        return mr.open_dataset(out)
    except InputError as e:
        return e


def fault(t: Tables, path: Path, out: Path, want: Graph) -> str:
    """Describe the fault in how tables are read; empty if there is none, and `refused ...` for a refusal that helps."""
    options = mr.ReadOptions(**t.options)
    first, second = opened(path, options), converted(path, options, out)
    texts = [str(r).replace(str(path.parent), "") for r in (first, second) if isinstance(r, InputError)]
    if len(texts) == 1:
        return f"only {'convert' if isinstance(second, InputError) else 'open_dataset'} refuses: {texts[0]}"
    if texts:
        return refusal(t, texts)
    if found := seen(first, t.label_type).differs(want):
        return f"{found}. Notes: {first.notes}"
    if found := seen(second, t.label_type).differs(want):
        return f"after convert: {found}"
    if odd := [n for n in (*first.notes, *second.notes) if (n in first.notes) != (n in second.notes)]:
        return f"other notes: {odd[:2]}"
    for what in ("indptr", "indices", "edge_weight"):
        one, two = getattr(first.graph, what), getattr(second.graph, what)
        if (one is None) != (two is None) or (one is not None and not np.array_equal(one, two)):
            return f"other {what} after convert"
    rows = np.arange(first.num_nodes)
    if first.graph.types.is_single and not np.array_equal(first.features.gather(rows), second.features.gather(rows)):
        return "other features after convert"
    return ""


def refusal(t: Tables, texts: list[str]) -> str:
    """A refusal, and what is wrong with it."""
    first, second = (text.replace("read.", "") for text in texts)
    if first != second:
        return f"two refusals: {texts}"
    every = {*t.headers.values(), *(c for table in t.every for c in table), "nodes", "edges", "edge_index"}
    if len(first.splitlines()) > 3 or not any(word and word in first for word in every):
        return f"a refusal that names nothing: {first}"
    return f"refused: {texts[0]}"


def one_table(seed: int, folder: Path) -> tuple[list[str], str]:
    """Changes of a table, and what is wrong."""
    rng = np.random.default_rng(seed)
    forms = ["csv", "csv", "csv", "parquet", "parquet", "feather", "jsonl", "npz"]
    form, typed, data = forms[int(rng.integers(len(forms)))], bool(rng.integers(3) == 0), folder / "data"
    t = made(rng, form, typed and form != "npz")
    data.mkdir()
    if form == "npz":
        number = {v: str(i) for i, v in enumerate(t.nodes[""]["id"])}
        want = right(t, lambda v: number[v])
        want = Graph(want.edges, sorted((v, str(PLAIN.index(y))) for v, y in want.labels), want.split)
        return ["npz"], fault(t, as_npz(t, data), folder / "store", want)
    want = right(t, str)
    chosen = [CHANGES[i] for i in rng.permutation(len(CHANGES))[: int(rng.integers(1, 4))]]
    for change in sorted(chosen, key=CHANGES.index):
        change(t)
        t.changes.append(change.__name__)
    path = written(t, data)
    return [form, *(["typed"] if typed else []), *t.changes], fault(t, path, folder / "store", after(t, want))


def checked(seeds: Iterable[int], until: float = float("inf"), show: bool = False) -> tuple[Counter[str], list[str]]:
    """Counts of verdicts, and a line for each table that is not read as it should be; all lines if `show`."""
    counts: Counter[str] = Counter()
    lines = []
    for seed in seeds:
        if perf_counter() > until:
            break
        with TemporaryDirectory() as aside:
            try:
                changes, found = one_table(seed, Path(aside))
            except Exception as e:  # what is not refused is shown, and the next is opened
                changes, found = [], f"{type(e).__name__}: {e} at {traceback.format_exc().splitlines()[-3].strip()}"
        verdict = "right" if not found else "refused" if found.startswith("refused") else "WRONG"
        counts[verdict] += 1
        if show or verdict == "WRONG":
            lines.append(f"{seed} {verdict} {' '.join(changes)}: {found}")
    return counts, lines


def main() -> None:
    """Print the counts, and each table that is read wrongly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="seed of the first table")
    parser.add_argument("--all", action="store_true", help="print what is right or refused too")
    args = parser.parse_args()
    counts, lines = checked(range(args.first, args.first + args.tables), show=args.all)
    print("\n".join(lines))
    print(", ".join(f"{counts[k]} {k}" for k in ("right", "refused", "WRONG")))
    sys.exit(counts["WRONG"] > 0)


if __name__ == "__main__":
    main()
