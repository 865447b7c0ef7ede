"""Edges: cleaned and spilled by ranges of destinations, then sorted and merged range by range."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...storage.fingerprint import GRAPH_DIGESTS
from ...storage.graph import index_dtype
from ...storage.stored.edge_features import OF_EDGES
from ...storage.times.moments import unknown_times
from ...storage.typed.graph_types import edge_dtype
from ..datasets.cleaning import edges as mended
from ..datasets.cleaning.filling import AS_IT_IS, Seen, Treatment, taken_out
from ..datasets.cleaning.node_ids import given_ids
from ..datasets.cleaning.options import DEFAULT_OPTIONS, ReadOptions
from ..datasets.cleaning.raw import AnyArray, about
from ..datasets.readers.parquet import numbers_of, times_of
from ..datasets.readers.parquet_rapids import is_read, sorted_edges
from ..datasets.schema.columns import Columns
from .arrays import Output, Piece
from .budget import Budget
from .features import FeatureRows, feature_width, treatment_of
from .names import NodeMap
from .source import Span, Table, batches, spans_of
from .spill import Cells, Field, RunWriter, cell_sizes, groups_of, read_cells
from .tasks import Run, Stages
from .times import NO_TIMES, Times


@dataclass(frozen=True)
class EdgeWork:
    """Arguments that all tasks on edges share."""

    folder: Path
    options: ReadOptions
    offsets: tuple[int, ...]
    """First node of each node type, and V; without types (0, V)."""
    weighted: bool
    """True if edges have weights in the store."""
    width: int = 0
    """D, columns of their features in the store; 0: none."""
    relations: int = 0
    """R, of a graph with types, whose edges are sorted by (destination, relation, source); else 0."""
    times: Times = NO_TIMES
    has_ids: bool = False
    """True for edges of a store that has `Graph.edge_id`."""
    index: str = ""
    """Dtype of the sources there; empty: the narrowest."""

    @property
    def num_nodes(self) -> int:
        """V."""
        return self.offsets[-1]

    @property
    def cells(self) -> Cells:
        """Ranges of destinations."""
        return Cells(self.offsets)

    @property
    def both_ways(self) -> bool:
        """True if reverses of the edges are needed too: to add them, or to see whether they are there."""
        return self.options.direction in (None, "undirected")

    @property
    def values(self) -> dict[str, Field]:
        """Arrays of an edge that are spilled after its key, as `OfEdges` has them."""
        has = {"weight": self.weighted, "rows": self.width, "time": self.times.of_edges, "id": self.has_ids}
        fields = Field("float32"), Field("float32", (self.width,)), Field(self.times.of_edges), Field("int64")
        return {name: field for name, field in zip(has, fields) if has[name]}

    @property
    def fields(self) -> tuple[Field, ...]:
        """Arrays of an edge that are spilled."""
        return (Field("int64"), *self.values.values())

    @property
    def held(self) -> tuple[int, int]:
        """Values of an edge beside its key, and bytes of its features: see `Budget.edge_group`."""
        return len(self.values) - bool(self.width), 4 * self.width

    @property
    def ways(self) -> tuple[str, ...]:
        """Folders of the spilled edges."""
        return ("forward", "backward") if self.both_ways else ("forward",)


@dataclass(frozen=True)
class EdgeTable:
    """The edges of a table, which are those of one relation."""

    table: Table
    spans: tuple[Span, ...]
    """Its rows in pieces; none where a task has one of them."""
    batch_rows: int
    """Edges handled at a time."""
    columns: Columns
    weighted: bool
    """True if it has weights that are read. Without, an edge counts 1 in a graph with weights."""
    width: int = 0
    """Columns of features in the store, at most those of `EdgeWork`."""
    read_width: int = 0
    """Columns of features as they are read."""
    options: ReadOptions = DEFAULT_OPTIONS
    """Treatment of their missing values."""
    treatment: Treatment = AS_IT_IS
    maps: tuple[NodeMap, ...] = ()
    """Numbers of the nodes at both ends, within their types."""
    kinds: tuple[int, int] = (0, 0)
    """Node types of both ends."""
    number: int = 0
    """Number of the relation."""
    reverse: int | None = None
    """Number of the relation of the same edges reversed, if there is one."""

    @property
    def feature_rows(self) -> FeatureRows:
        """Their features as they are read."""
        options = replace(self.options, normalize_features="none")
        return FeatureRows(self.table, self.columns.features, self.read_width, self.batch_rows, options)

    def in_pieces(self, budget: Budget, row_bytes: int = 0) -> "EdgeTable":
        """The table with its rows in pieces, where the features of a row take `row_bytes` or more."""
        features = self.columns.features
        row = 4 * len(features) + 2 * self.table.row_bytes if features else 0
        values = self.weighted + bool(self.columns.time)
        batch = budget.edge_batch(values, max(row, row_bytes))
        spans = spans_of(self.table, budget.span(batch, self.table.num_rows))
        return replace(self, batch_rows=batch, spans=tuple(spans))


def edge_table(table: Table, columns: Columns, options: ReadOptions, budget: Budget, run: Run) -> EdgeTable:
    """The rows of a table of edges in pieces, and the width and treatment of their features, whose stages `run`
    runs. Raises InputError: a column holds no numbers."""
    with about(table.source.of_type):
        if columns.weight:
            numbers_of(table.empty[columns.weight], f"{table.called}.{columns.weight}")
        weighted, width = bool(columns.weight) and options.edge_weights == "use", feature_width(table, columns.features)
        own = EdgeTable(table, (), 0, columns, weighted, width=width, read_width=width, options=options)
        own = own.in_pieces(budget)
        if not columns.features or not table.num_rows:
            return own
        treatment = treatment_of(own.feature_rows, own.spans, run, f"-{table.called}")
        return replace(own, width=own.read_width + len(treatment.indicated), treatment=treatment)


STORED = {"weight": "edge_weight", "id": "edge_id", "time": "edge_time", "rows": OF_EDGES}
"""Names in a store of the arrays in `OfEdges`."""


def spill_edges(work: EdgeWork, own: EdgeTable, number: int, span: Span) -> dict[str, Any]:
    """Clean the edges of a span, and spill them by ranges of destinations. Returns the defects that were seen."""
    more = (own.columns.weight if own.weighted else None, own.columns.time)
    columns, cells = (*own.columns.ends, *filter(None, more), *own.columns.features), work.cells
    seen, first = [nothing_seen(own)], span.first
    with ExitStack() as stack:
        writers = [stack.enter_context(RunWriter(work.folder / w, number, work.fields, len(cells))) for w in work.ways]
        for batch in batches(own.table, span, columns, own.batch_rows):
            seen.append(nothing_seen(own) | {"edges": batch.num_rows})
            edges = _cleaned(batch, work, own, seen[-1], first)
            first += batch.num_rows
            if edges is None:
                continue
            src, dst, w = edges
            values = [getattr(w, name) for name in work.values]
            for at, a, b, kind, relation in _ways(work, own, src, dst):
                rows = b.astype(np.int64) * work.relations + relation if work.relations else b
                writers[at].add(cells.numbered(b, kind), mended.edge_keys(a, rows, work.num_nodes), *values)
            seen = [total_of(seen)]
    return total_of(seen)


def spill_from_gpus(work: EdgeWork, own: EdgeTable) -> dict[str, Any]:
    """`spill_edges` of a whole table, as GPUs have cleaned and sorted it; this process holds one range. Nothing
    if they are not clean, or the GPUs do not read such ends: `spill_edges` then reports the defect."""
    known, cells = own.maps[0], work.cells
    if known.kind == "text" or not is_read(own.columns, work.options):
        return {}
    with ExitStack() as stack:
        files = [Path(str(file)) for file in own.table.files]
        asked = sorted_edges(files, work.num_nodes, known.ids(), work.options, own.batch_rows)
        found = stack.enter_context(asked)
        if found is None:
            return {}
        writers = [stack.enter_context(RunWriter(work.folder / w, 0, work.fields, len(cells))) for w in work.ways]
        for each in found.ranges:
            dst = np.repeat(np.arange(each.first, each.first + len(each.counts)), each.counts)
            values = [each.weight] if work.weighted else []
            for at, a, b, kind, _ in _ways(work, own, each.src.astype(np.int64), dst):
                writers[at].add(cells.numbered(b, kind), mended.edge_keys(a, b, work.num_nodes), *values)
    within = {"least": (0, 0), "largest": (work.num_nodes - 1,) * 2}
    return nothing_seen(own) | within | {"edges": own.table.num_rows, "loops": found.loops}


def _ways(
    work: EdgeWork, own: EdgeTable, src: AnyArray, dst: AnyArray
) -> Iterator[tuple[int, AnyArray, AnyArray, int, int]]:
    """Edges as they are spilled: number of the folder, sources, destinations, their node type, and the relation."""
    yield 0, src, dst, own.kinds[1], own.number
    if work.both_ways:
        yield 1, dst, src, own.kinds[0], own.number
    if own.reverse is not None:
        yield 0, dst, src, own.kinds[0], own.reverse


LARGEST = (1 << 63) - 1
AS_THEY_ARE = ReadOptions(direction="directed", duplicates="keep")
"""Treatment of the edges of relations, but for those with an end that is no node, and of those of a store."""


def _first(values: Sequence[Any]) -> Any:
    return next((v for v in values if v is not None), None)


_TOTALS: dict[str, tuple[Any, Callable[[Sequence[Any]], Any]]] = {
    "edges": (0, sum), "nulls": ((0, 0), sum), "unknown": ((0, 0), sum), "first_unknown": ((None, None), _first),
    "least": ((LARGEST, LARGEST), min), "largest": ((-1, -1), max), "infinite": (0, sum), "negative": (0, sum),
    "least_weight": (0.0, min), "loops": (0, sum), "first_loop": (None, _first), "dropped": (0, sum),
    "missing_times": (0, sum), "first_missing_time": (None, _first), "infinite_times": (0, sum),
    "first_infinite_time": (None, _first),
}  # fmt: skip
"""Counts over edges, of both ends where there are two values: for no edges, and how those of two records add up."""


def nothing_seen(own: EdgeTable) -> dict[str, Any]:
    """The record of no edges."""
    return {key: nothing for key, (nothing, _) in _TOTALS.items()} | {"features": Seen.none(own.read_width).record()}


def total_of(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record of all edges of one or more records."""
    total: dict[str, Any] = {}
    for key, (_, rule) in _TOTALS.items():
        values = [record[key] for record in records]
        several = isinstance(values[0], tuple | list)
        total[key] = tuple(rule(side) for side in zip(*values)) if several else rule(values)
    every = [Seen.of_record(record["features"]) for record in records]
    return total | {"features": sum(every[1:], every[0]).record()}


def _cleaned(
    batch: Any, work: EdgeWork, own: EdgeTable, seen: dict[str, Any], first: int
) -> tuple[AnyArray, AnyArray, mended.OfEdges] | None:
    """Ends and values of the edges of a batch, whose first has the number `first`; None if they have defects that no
    option mends."""
    seen["nulls"] = tuple(given_ids(batch[end]).null_count for end in own.columns.ends)
    if any(seen["nulls"]) or not batch.num_rows:
        return None
    found = [known.numbers(batch[end], f"{own.table.called}.{end}") for end, known in zip(own.columns.ends, own.maps)]
    outside = [(numbers < 0) | (numbers >= known.num_nodes) for numbers, known in zip(found, own.maps)]
    if work.options.dangling_edges == "drop" and (dangling := outside[0] | outside[1]).any():
        seen["dropped"] = int(dangling.sum())
        batch, found = batch.filter(pa.array(~dangling)), [numbers[~dangling] for numbers in found]
        if not batch.num_rows:
            return None
        outside = [np.zeros(batch.num_rows, bool)] * 2
    seen["unknown"] = tuple(int(o.sum()) for o in outside)
    seen["least"], seen["largest"] = (tuple(int(f(n)) for n in found) for f in (np.min, np.max))
    if any(seen["unknown"]):
        quotes = ["'" if known.kind == "text" else "" for known in own.maps]
        firsts = [batch[end][int(np.argmax(o))] if o.any() else None for end, o in zip(own.columns.ends, outside)]
        seen["first_unknown"] = tuple(None if v is None else f"{q}{v}{q}" for v, q in zip(firsts, quotes))
        return None
    ends = [n.astype(np.int64) + work.offsets[kind] if kind else n for n, kind in zip(found, own.kinds)]
    w, rows, time = None, np.zeros((batch.num_rows, 0), np.float32), None
    if own.width:
        rows, given = own.feature_rows.of_batch(batch)
        bad = taken_out(rows)
        seen["features"] = Seen.from_rows(rows, bad, first, given).record()
        rows = own.treatment.apply(rows, bad)
    if own.width < work.width:
        rows = np.pad(rows, ((0, 0), (0, work.width - own.width)))
    if own.weighted:
        w, faults = mended.as_weights(numbers_of(batch[own.columns.weight], f"{own.table.called}.{own.columns.weight}"))
        seen["infinite"], seen["negative"], seen["least_weight"] = faults.infinite, faults.negative, faults.least
    elif work.weighted:
        w = np.ones(batch.num_rows, np.float32)
    if own.columns.time:
        given = np.asarray(work.times.converted(times_of(batch, own.columns.time, own.columns.table)))
        for what, (count, at) in zip(("missing_time", "infinite_time"), unknown_times(given)):
            seen |= {f"{what}s": count, f"first_{what}": first + at if count else None}
        if seen["missing_times"] or seen["infinite_times"]:
            return None
        time = given.astype(work.times.of_edges)
    elif work.times.of_edges:
        time = np.zeros(batch.num_rows, work.times.of_edges)
    of_edges = mended.OfEdges(w, rows if work.width else None, time)
    src, dst, w, (loops, first_loop) = mended.without_loops(ends[0], ends[1], of_edges, work.options)
    seen["loops"], seen["first_loop"] = loops, first_loop if loops else None
    return (dst, src, w) if work.options.direction == "reverse" else (src, dst, w)


def sorted_file(folder: Path, what: str, number: int) -> Path:
    """File with an array of the sorted edges of one range of cells."""
    return folder / "sorted" / f"{what}-{number:06d}"


def sort_spilled(
    stages: Stages, work: EdgeWork, tasks: int, budget: Budget, stage: str = "sort"
) -> list[dict[str, Any]]:
    """Sort the edges that so many tasks have spilled. Ranges of cells that one task sorts each are kept: the spilled
    files are gone when edges are sorted."""
    ways, most = [work.folder / way for way in work.ways], budget.edge_group(*work.held)
    found = stages.run_here("groups", lambda: {"groups": groups_of(cell_sizes(ways, tasks, len(work.cells)), most)})
    items = [(work, tasks, k, *cells) for k, cells in enumerate(found["groups"])]
    return stages.run(stage, "sorting edges", sort_edges, items)


def sorted_outputs(work: EdgeWork, found: Sequence[dict[str, Any]], graph: str, rows: str = "zarr") -> list[Output]:
    """The arrays of a graph and its edges with their pieces, in the files of `found` tasks that have sorted them; the
    formats of its arrays, and of rows of features."""
    dtypes = {"indptr": "int64", "indices": work.index or str(index_dtype(work.num_nodes))}
    dtypes |= {STORED[name]: field.dtype for name, field in work.values.items()}
    dtypes |= {"edge_type": str(edge_dtype(work.relations))} if work.relations else {}
    starts, made = np.cumsum([0, *(r["edges"] for r in found)]).tolist(), []
    for name, dtype in dtypes.items():
        count = "rows" if name == "indptr" else "edges"
        pieces = [Piece(sorted_file(work.folder, name, k), r[count]) for k, r in enumerate(found)]
        if name == "indptr":
            pieces = [Piece(None, 1), *(piece._replace(base=start) for piece, start in zip(pieces, starts))]
        form, entry = (rows, (work.width,)) if name == OF_EDGES else (graph if name in GRAPH_DIGESTS else "zarr", ())
        made.append(Output(name, dtype, tuple(pieces), GRAPH_DIGESTS.get(name, dtype), entry, form == "npy"))
    return made


def sort_edges(work: EdgeWork, tasks: int, number: int, first: int, stop: int) -> dict[str, Any]:
    """Sort the edges in the cells ``[first, stop)`` into rows, merge duplicates and add reverses."""
    num_nodes, cells = work.num_nodes, work.cells
    (work.folder / "sorted").mkdir(exist_ok=True)
    keys, w = _sorted_way(work, "forward", tasks, first, stop)
    keys, w, repeats = mended.merge(keys, w, work.options)
    record: dict[str, Any] = {"repeats": repeats, "before": len(keys), "symmetric": False}
    if work.both_ways:
        back, back_w = _sorted_way(work, "backward", tasks, first, stop)
        back, back_w, _ = mended.merge(back, back_w, work.options)
        if work.options.direction is None:
            record["symmetric"] = bool(mended.is_symmetric(keys, w, back, back_w))
        else:
            keys, w = mended.with_reverses(keys, w, back, back_w)
        del back, back_w
    begin, end = cells.begin(first), cells.begin(stop)
    keys -= begin * num_nodes * max(1, work.relations)
    kinds: AnyArray = np.broadcast_to(np.int64(0), len(keys))
    if work.relations:
        dst = keys // num_nodes
        kinds = (dst % work.relations).astype(edge_dtype(work.relations))
        record["of_relations"] = np.bincount(kinds, minlength=work.relations).tolist()
        # Without the relation they are keys of (destination, source), which need not ascend here.
        keys -= (dst - dst // work.relations) * num_nodes
        del dst
    indptr, indices = mended.rows_of_keys(keys, num_nodes, end - begin)
    arrays = {STORED[name]: getattr(w, name) for name in work.values}
    if "time" in work.values:
        arrays["edge_time"] = work.times.on_edges(arrays["edge_time"], indices, kinds)
    sources = indices.astype(work.index or indices.dtype, copy=False)
    arrays |= {"indptr": indptr[1:], "indices": sources, **({"edge_type": kinds} if work.relations else {})}
    for name, array in arrays.items():
        array.tofile(sorted_file(work.folder, name, number))
    degrees, counts = np.unique(np.diff(indptr), return_counts=True)
    return record | {"rows": end - begin, "edges": len(indices), "degrees": degrees.tolist(), "counts": counts.tolist()}


def _sorted_way(work: EdgeWork, way: str, tasks: int, first: int, stop: int) -> tuple[AnyArray, mended.OfEdges]:
    keys, *others = read_cells(work.folder / way, tasks, work.fields, first, stop)
    return mended.sort_keys(keys, mended.OfEdges(**dict(zip(work.values, others))), by_time=not work.relations)


def edge_bytes(work: EdgeWork, turned: bool) -> tuple[int, int]:
    """Bytes on disk of an edge that is spilled, and of one that is sorted; twice that if relations are `turned`."""
    record = sum(field.nbytes for field in work.fields)
    widest = 1 if work.options.direction in ("directed", "reverse") else 2
    placed = index_dtype(work.num_nodes).itemsize + 4 * work.weighted + 4 * work.width
    placed += 8 * bool(work.times.of_edges)
    placed += edge_dtype(work.relations).itemsize if work.relations else 0
    return (1 + turned) * len(work.ways) * record, (1 + turned) * widest * placed
