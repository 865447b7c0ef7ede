"""The schema of a source: the files of each table, and one role for every column."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ....storage.errors import InputError, NoLabelsError, one_of
from ..cleaning.raw import noted
from . import words
from .columns import NONE, ONE_OF_A_TABLE, Assignment, Columns, no_column
from .source import GraphTables, Kind, Problems, Role, SourceTable

if TYPE_CHECKING:
    import pyarrow as pa

    from ..cleaning.options import ReadOptions
    from .unread import Rows

    Heads = Sequence[pa.Schema]
Assigned = Mapping[int, tuple[Columns, Assignment]]
"""Columns of the tables of a source, by their numbers."""
SHOWN_FEATURES = 8
"""Most columns of features that a note names one by one."""
NO_SETS = (".py", ".sh", ".md", ".ipynb", ".log", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".png", ".pdf")
"""Ends of the names of files that hold no sets: code, its settings, and what it says and draws."""
_OF_NODES = ("id", "node_time", "feature_columns")
_OF_EDGES = ("src", "dst", "weight", "relation_column", "edge_time", "edge_feature_columns")


class ColumnRole(NamedTuple):
    """The role of one column, and the reason."""

    table: str
    column: str
    role: Role
    why: str


@dataclass(frozen=True, eq=False)
class Schema:
    """The tables of a source and the roles of all their columns."""

    source: GraphTables
    of_tables: tuple[Columns, ...]
    """One for each table of the source, in order."""
    target: str | None = None
    """Node type that is predicted, of a graph with several."""
    notes: tuple[str, ...] = ()
    """What was chosen, and what is not read."""

    @property
    def nodes(self) -> tuple[Columns, ...]:
        """The columns of each table of nodes."""
        return tuple(own for t, own in zip(self.source.tables, self.of_tables) if t.kind == "nodes")

    @property
    def edges(self) -> tuple[Columns, ...]:
        """The columns of each table of edges."""
        return tuple(own for t, own in zip(self.source.tables, self.of_tables) if t.kind == "edges")

    @property
    def roles(self) -> tuple[ColumnRole, ...]:
        """The role of every column."""
        return tuple(ColumnRole(c.table, name, *of) for c in self.of_tables for name, of in c.roles.items())

    def show(self) -> dict[str, str]:
        """Lines for people: files of each table, files left out, and each column with its role and the reason."""
        shown = {f"files of {t.title}": files_text(t) for t in self.source.tables if t.files}
        shown |= {f"left out: {name}": why for name, why in self.source.left_out}
        return shown | {
            f"{table}.{column or '(no name)'}": f"{role} ({why})" for table, column, role, why in self.roles
        }

    def record(self) -> dict[str, Any]:
        """Plain values of the same, for JSON. Files are named without their folder: a store is the same wherever they
        lie."""
        return {
            "files": {t.title: [f.name for f in t.files] for t in self.source.tables},
            "left_out": dict(self.source.left_out),
            "columns": [role._asdict() for role in self.roles],
        }


def files_text(table: SourceTable) -> str:
    """The files of a table: by name, or the first and the last."""
    names = [f.name for f in table.files]
    return ", ".join(names) if len(names) < 3 else f"{len(names)} files, {names[0]} to {names[-1]}"


def read_note(table: SourceTable, columns: Columns) -> str:
    """Note on what is read of a table, and from where."""
    of_role: dict[Role, list[str]] = {}
    for name, (role, _) in columns.roles.items():
        of_role.setdefault(role, []).append(name or "(no name)")
    features = of_role.get("feature", [])
    if len(features) > SHOWN_FEATURES:
        of_role["feature"] = [f"{features[0]} to {features[-1]} ({len(features)})"]
    read = [f"{role} {' '.join(names)}" for role, names in of_role.items() if role != "not read"]
    files = f" ({files_text(table)})" if table.files else ""
    return f"Read of {table.title}{files}: {', '.join(read) or 'its rows'}."


def schema_of(
    source: GraphTables, heads: "Heads", options: "ReadOptions", rows: "Sequence[Rows]" = (), draws_split: bool = True
) -> Schema:
    """The schema of a source by the names and types of its columns, `heads`, one for each table.

    `rows` of each table, if they are at hand, are looked at for ids, and if `draws_split` for sets, in columns without
    a role, and for what a message proposes. Raises InputError: names every column that is missing, unclear or not to be
    left unread, and the keys that settle them."""
    labelled = options.task != "link" and options.labels_of == "nodes"
    why_not = "the labels are those of edges" if options.labels_of == "edges" else "the task is link"
    typed = source.is_typed
    found: dict[int, tuple[Columns, Assignment]] = {}

    def assign(i: int, labelled: bool, why_not: str) -> None:
        table = source.tables[i]
        given = Assignment(table, heads[i], options, source.path, () if source.has_one(table.kind) else EVERY)
        if table.kind == "nodes":
            found[i] = given.nodes(labelled=labelled, why_not=why_not), given
        else:
            found[i] = given.edges(labelled=options.labels_of == "edges" and options.pairs is None), given

    for i, table in enumerate(source.tables):
        assign(i, labelled or (typed and options.target is not None and table.kind == "nodes"), why_not)
    target, notes, unlabelled = None, list[str](), False
    nodes = [i for i, t in enumerate(source.tables) if t.kind == "nodes"]
    problems = Problems()
    for c in options.names("one_hot") or ():
        if not any(c in head.names for head in heads):
            problems.add(f"{source.path}: no table has the column '{c}' that one_hot names")
    for key in (*_OF_NODES, *_OF_EDGES):
        _check_named(key, source, heads, options, problems)
    if typed and (labelled or options.target is not None) and nodes:
        try:
            target = target_of({str(source.tables[i].type): found[i][0].labels for i in nodes}, options)
        except InputError as e:
            problems.add(str(e))
            unlabelled = isinstance(e, NoLabelsError)
        for i in nodes:
            if (t := str(source.tables[i].type)) != target:
                assign(i, False, f"'{target}' is predicted")
                unread = [n for n, (_, why) in found[i][0].roles.items() if why == f"'{target}' is predicted"]
                if unread:
                    notes.append(f"Columns of nodes-{t} were not read: {', '.join(unread)} ('{target}' is predicted).")
    else:
        unlabelled = bool(labelled and nodes and not found[nodes[0]][0].labels and options.label_columns is None)
    for _, given in found.values():  # of a type that is not predicted, those that it has without labels
        for text in given.problems.texts:
            problems.add(text)
        problems.keys |= given.problems.keys
    if rows:
        _add_unread(source, found, problems, rows, draws_split and labelled)
    if unlabelled and not typed:
        _add_missing_label(source, found[nodes[0]][0], heads, problems, rows[nodes[0]] if rows else None)
    if problems.texts:
        error = NoLabelsError if unlabelled and len(problems.texts) == 1 else InputError
        raise error(problems.message(source.path, options.given))
    told = [read_note(t, found[i][0]) for i, t in enumerate(source.tables)]
    told += [f"{name} was left out: {why}." for name, why in source.left_out]
    for i, table in enumerate(source.tables):
        told += noted(table.type, found[i][1].notes)
    return Schema(source, tuple(found[i][0] for i in range(len(source.tables))), target, tuple(told + notes))


EVERY = (*ONE_OF_A_TABLE, "feature_columns", "edge_feature_columns", "label_columns")
"""Keys that may name columns of another table of a typed graph."""


def columns_of_pairs(head: "pa.Schema", path: object, options: "ReadOptions", *, labelled: bool) -> Columns:
    """The columns of a table of pairs of nodes, a file of its own, whose ends need not be called as the graph's."""
    given = Assignment(SourceTable("edges"), head, options, path, ONE_OF_A_TABLE)
    found = given.edges(labelled=labelled)
    if labelled and not found.labels:
        given.problems.add(no_column(path, "edges", "label", head.names))
    if given.problems.texts:
        raise InputError(given.problems.message(path, options.given))
    return found


def _check_named(key: str, source: GraphTables, heads: "Heads", options: "ReadOptions", problems: Problems) -> None:
    """Add the columns that a key names and none of several tables has."""
    kind: Kind = "nodes" if key in _OF_NODES else "edges"
    named = options.names(key)
    if named is None or named == ("*",) or NONE in named or source.has_one(kind):
        return
    every = sorted({name for t, head in zip(source.tables, heads) if t.kind == kind for name in head.names})
    what = "nodes-TYPE" if kind == "nodes" else "edges-SOURCE-RELATION-DESTINATION"
    for c in named:
        if c not in every:
            problems.add(f"{key} has '{c}', which no {what} has; {one_of(c, every)}")


def _add_missing_label(
    source: GraphTables, columns: Columns, heads: "Heads", problems: Problems, rows: "Rows | None"
) -> None:
    """Add that nodes have no labels, with a column that may hold them."""
    import pyarrow as pa

    i = next(i for i, t in enumerate(source.tables) if t.kind == "nodes")
    taken = ("", *problems.keys.values())
    kinds = {f.name: f.type for f in heads[i] if f.name not in taken and not pa.types.is_nested(f.type)}
    spare = [n for n in columns.unread if n in kinds and not pa.types.is_floating(kinds[n])]
    spare = [n for n in spare if not (words.looks_like_id(n) or words.is_split(n) or words.mask_of(n))]
    if rows is not None:
        from .unread import few_values

        spare = few_values(spare, rows)
    named = [n for n in spare if not words.LIKE_LABELS.isdisjoint(words.fold(n).split("_"))]
    likely = (named or (spare if rows is not None else []))[:2]
    shown = [n for n in columns.roles if source.tables[i].roles.get(n) != "not read"]
    text = no_column(source.path, columns.table, "label", shown)
    text += ": set read.label_columns to the column of the classes or targets, or read.task=link to predict edges"
    if any("label" in head.names for t, head in zip(source.tables, heads) if t.kind == "edges"):
        text += ". Edges have one: set read.labels_of=edges to predict it"
    # Where two are as likely, it is the user who knows.
    problems.add(text, label_columns=likely[0] if named or len(likely) == 1 else None)


def _add_unread(
    source: GraphTables, found: Assigned, problems: Problems, rows: "Sequence[Rows]", draws_split: bool
) -> None:
    """Add the columns of nodes without a role that have the ids of edges or the sets of a split, and files beside the
    tables that by their names have a split."""
    from .unread import unread_ids, unread_sets

    guess = problems.keys.get("src"), problems.keys.get("dst")
    edges = [(k, t) for k, t in enumerate(source.tables) if t.kind == "edges"]
    for i, table in enumerate(source.tables):
        nodes, given = found[i]
        if table.kind == "edges":
            continue
        names = [(k, found[k][0].ends[side] or guess[side]) for k, t in edges for side in t.sides_at(table)]
        ends = [(rows[k], name) for k, name in dict.fromkeys(names) if name and name in found[k][1].names]
        by_key = given.options.id is not None or "id" in problems.keys
        if (ids := None if by_key else unread_ids(nodes, given.head, rows[i], ends)) is not None:
            problems.add(f"{source.path}: {ids[1]}", id=ids[0])
        if draws_split and "split" not in problems.keys and (nodes.labels or not table.type) and not nodes.of_split:
            if (sets := unread_sets(nodes, given.head, rows[i])) is not None:
                problems.add(f"{source.path}: {sets[1]}", split=sets[0])
            stems = {name.partition(".")[0]: name for name, _ in source.left_out if not name.endswith(NO_SETS)}
            for name in [n for stem, n in stems.items() if words.is_split(stem) or words.mask_of(stem) == "train"][:1]:
                said = f"{source.path}: {name} is not read, and by its name says which nodes train; add a column split"
                problems.add(f"{said} (train, val, test) to the nodes, or set read.split=none to draw one", split=NONE)


def target_of(labels: Mapping[str, Sequence[str]], options: "ReadOptions") -> str:
    """The node type that is predicted, by the columns of labels of each type. Raises NoLabelsError: none has labels, or
    several do and the options choose none of them; InputError: the options choose one that is not there, or has
    none."""
    labelled = [t for t, columns in labels.items() if columns]
    if (wanted := options.target) is not None:
        if wanted not in labels:
            raise InputError(f"target is '{wanted}', which is no node type; {one_of(wanted, labels)}")
        if wanted not in labelled and options.task != "link":
            columns = ", ".join(options.names("label_columns") or ("label",))
            raise InputError(f"target is '{wanted}', but nodes-{wanted} has no column {columns}; add the labels")
        return wanted
    if not labelled:
        columns = ", ".join(options.names("label_columns") or ("label",))
        raise NoLabelsError(f"no nodes-TYPE has the column {columns}; set label_columns=COLUMN and target=TYPE")
    if len(labelled) > 1:
        raise NoLabelsError(f"the node types {', '.join(labelled)} have labels; set target={labelled[0]}, or another")
    return labelled[0]
