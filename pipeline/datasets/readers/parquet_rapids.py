"""Edges of a folder of Parquet by RAPIDS cuDF 26.10: read, renumbered, counted and sorted by destination on the GPUs of
the named cluster, or of this machine.

Calls follow the signatures of the 26.10 wheels, which `tests/contracts/rapids.py` checks. This module has not run on a
GPU yet.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ....stages.rapids import TO_READ, count_gpus, gpu_cluster
from ....storage.array_kinds import IdArray, IntArray
from ....storage.errors import RunError
from ....storage.graph import index_dtype
from ..cleaning.options import ReadOptions
from ..cleaning.raw import AnyArray, RawEdges
from ..schema.columns import Columns

ORDER = ["dst", "src", "row"]
AT_ONCE = 1 << 22
"""Edges that come from a GPU at a time, into memory."""


@dataclass(frozen=True)
class _Piece:
    """A row group of a file, read by one task."""

    file: str
    group: int
    first_row: int
    """Position of the group's first row among the rows of all files."""


def gpus_to_read() -> int:
    """Number of GPUs that read. Raises InputError: RAPIDS is not installed, or there is no GPU."""
    return count_gpus("edges_on=gpu", "edges_on=cpu", TO_READ)


def is_read(columns: Columns, options: ReadOptions) -> bool:
    """True if these columns of edges are read on GPUs, so treated."""
    known = columns.ends == ("src", "dst") and columns.weight in (None, "weight")
    return known and options.dangling_edges == "error"


class EdgeRange(NamedTuple):
    """Edges in the order of `ORDER`, some of those between one destination and another."""

    first: int
    """First destination."""
    counts: IdArray
    """Edges of it, and of each after it."""
    src: IntArray
    weight: Any
    """float32; None without."""


@dataclass(frozen=True)
class SortedEdges:
    """E edges that GPUs have sorted, and still hold."""

    num_edges: int
    loops: int
    """Number of self loops found; dropped ones are not among the E."""
    weighted: bool
    has_weights: bool
    """True if the files have weights, read or not."""
    ranges: Iterator[EdgeRange]
    """All edges; each range is fetched when it is asked for. Raises RunError: cuDF failed, or edges are missing or out
    of order."""


@contextmanager
def sorted_edges(
    files: Sequence[Path], num_nodes: int, ids: AnyArray | None, options: ReadOptions, most: int
) -> Iterator[SortedEdges | None]:
    """Context with edges sorted as by `edges.clean_edges`, bit for bit. Each GPU is used by a process of its own
    (`rapids.gpu_cluster`), which sees the files, with columns ``src``, ``dst`` and optionally ``weight``.

    Edges name their ends by `ids` [V], ascending, or None: by 0 to V - 1. A range has at most `most` edges. None in
    place of edges if anything is not clean, or there are none: the CPU reader then reports the defect. Raises
    InputError: RAPIDS is not installed, or there is no GPU; RunError: cuDF failed, for example because edges do not fit
    into the GPUs' memory."""
    gpus = gpus_to_read()
    if (job := _pieces(files, options)) is None or (ids is not None and ids[-1] > np.iinfo(np.int64).max):
        yield None
        return
    pieces, columns, rows, has_weights = job
    with ExitStack() as stack:
        with _failures():
            client = stack.enter_context(gpu_cluster(gpus))
            found = _by_tasks(client, pieces, columns, num_nodes, ids, options, gpus=gpus)
        if found is None:
            yield None
            return
        parts, loops = found
        rows -= loops if options.self_loops == "drop" else 0
        ranges = _ranges(client, parts, rows, num_nodes, most)
        yield SortedEdges(rows, loops, "weight" in columns, has_weights, ranges)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except RunError:
        raise
    except Exception as e:
        # The most common error: edges do not fit.
        raise RunError(f'reading edges by cuDF failed: {type(e).__name__}: {e}; use read.edges_on = "cpu"') from e


def _pieces(files: Sequence[Path], options: ReadOptions) -> tuple[list[_Piece], list[str], int, bool] | None:
    """Row groups of the files, the columns to read, the number of rows and whether they have weights; None if there are
    none, or cuDF would not read them as PyArrow does."""
    try:
        schemas, groups = [pq.read_schema(f) for f in files], [pq.read_metadata(f) for f in files]
    except (pa.ArrowException, OSError):
        return None
    has_weights = "weight" in schemas[0].names
    columns = ["src", "dst", *(["weight"] if has_weights and options.edge_weights == "use" else [])]
    if not all(_is_clean(s, columns) and ("weight" in s.names) == has_weights for s in schemas):
        return None
    pieces, first_row = [], 0
    for file, metadata in zip(files, groups):
        for group in range(metadata.num_row_groups):
            if rows := metadata.row_group(group).num_rows:
                pieces.append(_Piece(str(file.resolve()), group, first_row))
                first_row += rows
    return (pieces, columns, first_row, has_weights) if pieces else None


def edges_in_order(
    files: Sequence[Path], num_nodes: int, ids: AnyArray | None, options: ReadOptions
) -> RawEdges | None:
    """The edges of `sorted_edges` in this process, with the loops. Raises MillraceError: see there."""
    kept = options if options.self_loops == "error" else replace(options, self_loops="keep")
    with sorted_edges(files, num_nodes, ids, kept, AT_ONCE) as found:
        if found is None:
            return None
        ends, at = np.empty((2, found.num_edges), index_dtype(num_nodes)), 0
        weight = np.empty(found.num_edges, np.float32) if found.weighted else None
        for each in found.ranges:
            part = slice(at, at := at + len(each.src))
            ends[0, part] = each.src
            ends[1, part] = np.repeat(np.arange(each.first, each.first + len(each.counts)), each.counts)
            if weight is not None:
                weight[part] = each.weight
        if found.has_weights and weight is None:  # cleaning says that it ignores them
            weight = np.broadcast_to(np.float32(1), found.num_edges)
        return RawEdges(ends[::-1] if options.direction == "reverse" else ends, weight)


def _by_tasks(
    client: Any,
    pieces: list[_Piece],
    columns: list[str],
    num_nodes: int,
    ids: AnyArray | None,
    options: ReadOptions,
    gpus: int,
) -> tuple[list[Any], int] | None:
    """Futures of sorted frames, each of destinations after those of the one before, and the number of self loops; None
    if anything is not clean."""
    known = None if ids is None else client.scatter(ids.astype(np.int64), broadcast=True, hash=False)
    read = [client.submit(_read, p, columns, num_nodes, known, options, pure=False) for p in pieces]
    loops = client.gather([client.submit(_loops, r, pure=False) for r in read])
    if None in loops or (options.self_loops == "error" and sum(loops)):
        return None
    frames = [client.submit(itemgetter(0), r, pure=False) for r in read]
    del read
    if gpus == 1:
        return [client.submit(_all_in_order, frames, pure=False)], sum(loops)
    return _spread(client, frames, "weight" in columns), sum(loops)


def _is_clean(schema: pa.Schema, columns: list[str]) -> bool:
    """True if cuDF reads these columns as PyArrow does: integer ends, and numeric weights."""
    kinds = [schema.field(c).type if c in schema.names else pa.null() for c in columns]
    return all(pa.types.is_integer(k) for k in kinds[:2]) and all(
        pa.types.is_integer(k) or pa.types.is_floating(k) for k in kinds[2:]
    )


def _read(piece: _Piece, columns: list[str], num_nodes: int, ids: IdArray | None, options: ReadOptions) -> Any:
    """(frame of ``dst`` and ``src`` as numbers of nodes, with weights also ``weight`` and ``row``; number of self loops
    in it), or None if it is not clean."""
    import cudf
    import cupy

    # By its default an index that pandas has stored is no column.
    table = cudf.read_parquet(piece.file, columns=columns, row_groups=[[piece.group]], use_pandas_metadata=False)
    if any(table[c].null_count for c in columns):
        return None
    src, dst = (cupy.asarray(table[c]).astype("int64") for c in ("src", "dst"))
    if ids is None:
        if not all(bool((x >= 0).all()) and bool((x < num_nodes).all()) for x in (src, dst)):
            return None
    else:
        on_device = cupy.asarray(ids)
        ends = [(cupy.searchsorted(on_device, x), cupy.searchsorted(on_device, x, side="right")) for x in (src, dst)]
        if not all(bool((after > at).all()) for at, after in ends):
            return None
        src, dst = (at for at, _ in ends)
    if options.direction == "reverse":
        src, dst = dst, src
    made = {"dst": dst, "src": src}
    if "weight" in columns:
        weight = cupy.asarray(table["weight"]).astype("float32")
        if not bool(((weight >= 0) & (weight < np.inf)).all()):
            return None
        # Equal edges keep the order of the files, as after a stable sort.
        made |= {"row": cupy.arange(piece.first_row, piece.first_row + len(src), dtype="int64"), "weight": weight}
    loops = src == dst
    count = int(loops.sum())
    if count and options.self_loops == "drop":
        made = {name: column[~loops] for name, column in made.items()}
    return cudf.DataFrame(made), count


def _loops(read: Any) -> int | None:
    return None if read is None else read[1]


def _in_order(frame: Any, **_: Any) -> Any:
    return frame.sort_values([c for c in ORDER if c in frame.columns], ignore_index=True)


def _all_in_order(frames: list[Any]) -> Any:
    import cudf

    return _in_order(cudf.concat(frames, ignore_index=True))


def _spread(client: Any, frames: list[Any], weighted: bool) -> list[Any]:
    """Ranges of destinations in ascending order, each sorted in the memory of one GPU."""
    # Imported after the cluster has started: these set up the first GPU for this process, which workers must not
    # inherit.
    import cudf
    import dask_cudf

    empty = {"dst": np.empty(0, np.int64), "src": np.empty(0, np.int64)}
    if weighted:
        empty |= {"row": np.empty(0, np.int64), "weight": np.empty(0, np.float32)}
    edges = dask_cudf.from_delayed(frames, meta=cudf.DataFrame(empty), verify_meta=False)
    # Shuffled by tasks: p2p goes through Arrow in host memory. All edges of a destination meet in one partition.
    parts = edges.sort_values("dst", sort_function=_in_order, shuffle_method="tasks").to_delayed()
    return client.compute(list(parts))


def _on_host(frame: Any, num_nodes: int, first: int, stop: int) -> EdgeRange:
    """Some rows of a sorted frame."""
    import cupy

    rows = frame.iloc[first:stop]
    dst, src = (cupy.asarray(rows[c]) for c in ("dst", "src"))
    least = int(dst[0])
    weight = cupy.asarray(rows["weight"]).get() if "weight" in rows.columns else None
    return EdgeRange(least, cupy.bincount(dst - least).get(), src.astype(index_dtype(num_nodes)).get(), weight)


def _ranges(client: Any, parts: list[Any], num_edges: int, num_nodes: int, most: int) -> Iterator[EdgeRange]:
    """Fetch the rows of sorted frames, at most so many at a time."""
    end, left = 0, num_edges
    with _failures():
        while parts:
            part = parts.pop(0)
            for first in range(0, client.submit(len, part, pure=False).result(), most):
                task = client.submit(_on_host, part, num_nodes, first, first + most, pure=False)
                # Only within a frame does a range go on with the destination of the one before.
                if (found := task.result()).first < end - (first > 0) or found.counts.sum() != len(found.src):
                    said = "dask-cuDF returned edges that are not in the order of their destinations"
                    raise RunError(f'{said}; use read.edges_on = "cpu"')
                end, left = found.first + len(found.counts), left - len(found.src)
                yield found
        if left:
            raise RunError(f'dask-cuDF returned {num_edges - left} of {num_edges} edges; use read.edges_on = "cpu"')
