"""Edges of a folder of Parquet by RAPIDS cuDF 26.10: read, renumbered, counted and sorted by destination on the GPUs of
the named cluster, or of this machine.

Calls follow the signatures of the 26.10 wheels, which `tests/contracts/rapids.py` checks. This module has not run on a
GPU yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ....stages.rapids import TO_READ, count_gpus, gpu_cluster
from ....storage.errors import RunError
from ....storage.graph import index_dtype
from ..cleaning.options import ReadOptions
from ..cleaning.raw import AnyArray, Ordered

ORDER = ["dst", "src", "row"]


@dataclass(frozen=True)
class _Piece:
    """A row group of a file, read by one task."""

    file: str
    group: int
    first_row: int
    """Position of the group's first row among the rows of all files."""


def ordered_edges(files: Sequence[Path], num_nodes: int, ids: AnyArray | None, options: ReadOptions) -> Ordered | None:
    """Edges sorted as by `edges.clean_edges`, bit for bit. Each GPU is used by a process of its own
    (`rapids.gpu_cluster`).

    Args:
        files: files with columns ``src``, ``dst`` and optionally ``weight``, in order, which these processes see.
        num_nodes: V.
        ids: [V] ascending, the ids by which edges name their ends; None if these are 0 to V - 1.
        options: treatment of direction, loops and weights.

    Returns:
        None if anything is not clean, or there are no edges: the CPU reader then reports the defect.

    Raises:
        InputError: RAPIDS is not installed, or there is no GPU.
        RunError: cuDF failed, for example because edges do not fit into the GPUs' memory, or returned edges out of
            order.
    """
    gpus = count_gpus("edges_on=gpu", "edges_on=cpu", TO_READ)
    try:
        schemas, groups = [pq.read_schema(f) for f in files], [pq.read_metadata(f) for f in files]
    except (pa.ArrowException, OSError):
        return None
    weighted = "weight" in schemas[0].names and options.edge_weights == "use"
    columns = ["src", "dst", *(["weight"] if weighted else [])]
    if not all(_is_clean(s, columns) and ("weight" in s.names) == ("weight" in schemas[0].names) for s in schemas):
        return None
    pieces, first_row = [], 0
    for file, metadata in zip(files, groups):
        for group in range(metadata.num_row_groups):
            if rows := metadata.row_group(group).num_rows:
                pieces.append(_Piece(str(file.resolve()), group, first_row))
                first_row += rows
    if not pieces or (ids is not None and ids[-1] > np.iinfo(np.int64).max):
        return None
    try:
        with gpu_cluster(gpus) as client:
            if (found := _by_tasks(client, pieces, columns, num_nodes, ids, options, gpus=gpus)) is None:
                return None
            rows = first_row - (found[1] if options.self_loops == "drop" else 0)
            return _joined(*found, rows, num_nodes, weighted, "weight" in schemas[0].names)
    except RunError:
        raise
    except Exception as e:
        # The most common error: edges do not fit.
        raise RunError(f'reading edges by cuDF failed: {type(e).__name__}: {e}; use read.edges_on = "cpu"') from e


def _by_tasks(
    client: Any,
    pieces: list[_Piece],
    columns: list[str],
    num_nodes: int,
    ids: AnyArray | None,
    options: ReadOptions,
    gpus: int,
) -> tuple[list[Any], int] | None:
    """Futures of ranges of sorted edges as from `_on_host`, and the number of self loops; None if anything is not
    clean."""
    known = None if ids is None else client.scatter(ids.astype(np.int64), broadcast=True, hash=False)
    read = [client.submit(_read, p, columns, num_nodes, known, options, pure=False) for p in pieces]
    loops = client.gather([client.submit(_loops, r, pure=False) for r in read])
    if None in loops or (options.self_loops == "error" and sum(loops)):
        return None
    frames = [client.submit(itemgetter(0), r, pure=False) for r in read]
    del read
    if gpus == 1:
        stretches = [client.submit(_all_in_order, frames, num_nodes, pure=False)]
    else:
        stretches = _spread(client, frames, "weight" in columns, num_nodes)
    del frames
    return stretches, sum(loops)


def _is_clean(schema: pa.Schema, columns: list[str]) -> bool:
    """True if cuDF reads these columns as PyArrow does: integer ends, and numeric weights."""
    kinds = [schema.field(c).type if c in schema.names else pa.null() for c in columns]
    return all(pa.types.is_integer(k) for k in kinds[:2]) and all(
        pa.types.is_integer(k) or pa.types.is_floating(k) for k in kinds[2:]
    )


def _read(
    piece: _Piece, columns: list[str], num_nodes: int, ids: npt.NDArray[np.int64] | None, options: ReadOptions
) -> Any:
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


def _all_in_order(frames: list[Any], num_nodes: int) -> Any:
    import cudf

    return _on_host(_in_order(cudf.concat(frames, ignore_index=True)), num_nodes)


def _spread(client: Any, frames: list[Any], weighted: bool, num_nodes: int) -> list[Any]:
    """Ranges of destinations in ascending order, each sorted in the memory of one GPU."""
    # Imported after the cluster has started: these set up the first GPU for this process, which workers must not
    # inherit.
    import cudf
    import dask_cudf
    from dask.delayed import delayed

    empty = {"dst": np.empty(0, np.int64), "src": np.empty(0, np.int64)}
    if weighted:
        empty |= {"row": np.empty(0, np.int64), "weight": np.empty(0, np.float32)}
    edges = dask_cudf.from_delayed(frames, meta=cudf.DataFrame(empty), verify_meta=False)
    # Shuffled by tasks: p2p goes through Arrow in host memory. All edges of a destination meet in one partition.
    parts = edges.sort_values("dst", sort_function=_in_order, shuffle_method="tasks").to_delayed()
    return client.compute([delayed(_on_host)(p, num_nodes) for p in parts])


def _on_host(frame: Any, num_nodes: int) -> Any:
    """(first destination, edges of it and of each after it, sources, weights, True if an edge is repeated) of sorted
    edges; None if there are none."""
    import cupy

    if not len(frame):
        return None
    dst, src = (cupy.asarray(frame[c]) for c in ("dst", "src"))
    first = int(dst[0])
    again = bool(((dst[1:] == dst[:-1]) & (src[1:] == src[:-1])).any())
    weight = cupy.asarray(frame["weight"]).get() if "weight" in frame.columns else None
    return first, cupy.bincount(dst - first).get(), src.astype(index_dtype(num_nodes)).get(), weight, again


def _joined(stretches: list[Any], loops: int, rows: int, num_nodes: int, weighted: bool, has_weights: bool) -> Ordered:
    """Fill the arrays range by range: this process holds each edge once, and one range beside them."""
    in_degree, src, end, at, repeated = (
        np.zeros(num_nodes, np.int64),
        np.empty(rows, index_dtype(num_nodes)),
        0,
        0,
        False,
    )
    weight = np.empty(rows, np.float32) if weighted else None
    while stretches:
        if (found := stretches.pop(0).result()) is None:
            continue
        first, counts, sources, weights, again = found
        if first < end or counts.sum() != len(sources):
            raise RunError(
                'dask-cuDF returned edges that are not in the order of their destinations; use read.edges_on = "cpu"'
            )
        end = first + len(counts)
        in_degree[first:end], src[at : at + len(sources)], repeated = counts, sources, repeated or again
        if weight is not None:
            weight[at : at + len(sources)] = weights
        at += len(sources)
    if at < rows:
        raise RunError(f'dask-cuDF returned {at} of {rows} edges; use read.edges_on = "cpu"')
    return Ordered(in_degree, src, weight, loops, repeated, has_weights)
