"""Files of predictions and embeddings: .parquet, .csv, .npy and .zarr, each whole or not there at all."""

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.node_names import NodeNames
from ...storage.store.committed_folder import folder_aside, sweep_leftovers
from ...storage.store.full_disk import is_full, new_npy
from ...storage.store.paths import expanded

PIECE_ROWS = 1 << 16
"""Rows of a file that are made at a time: a table takes little memory beside the logits."""
SUFFIXES = (".parquet", ".csv", ".npy", ".zarr")


class AsArray:
    """What `numpy.asarray` makes an array of."""

    def as_array(self) -> npt.NDArray[np.generic]:
        """The numbers, [n] or [n, D]."""
        raise NotImplementedError

    def __array__(self, *dtype: npt.DTypeLike, **copy: bool) -> npt.NDArray[np.generic]:
        # pyrefly: ignore[no-matching-overload]
        return np.array(self.as_array(), *dtype, **copy)


def names_of(nodes: npt.NDArray[np.integer], data: Dataset) -> list[str] | npt.NDArray[np.int64] | None:
    """Names of nodes as the input had them, text or integers; None where nodes have no names."""
    if data.node_names is None:
        return None
    types = data.graph.types
    return NodeNames.from_values(data.node_names).called(nodes, types.offsets)


def as_column(values: list[str] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Names as an array of text, or of integers where all objects are integers."""
    if isinstance(values, list):
        return np.asarray(values, np.str_)
    return np.asarray(values.tolist()) if values.dtype == object and len(values) else values


def check_suffix(path: Path, suffixes: tuple[str, ...] = SUFFIXES) -> str:
    """The suffix of a path, in lower case.

    Raises:
        InputError: it is none of `suffixes`.
    """
    if path.suffix.lower() not in suffixes:
        known = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise InputError(f"{path} ends in '{path.suffix}'; expected a file that ends in {known}")
    return path.suffix.lower()


def write_npy(path: str | Path, array: object) -> None:
    """Write one array, for `numpy.load`."""

    def write(aside: Path) -> None:
        with aside.open("wb") as f:
            np.save(f, np.asarray(array), allow_pickle=False)

    written(Path(path), write)


def write_npy_pieces(path: str | Path, num_rows: int, pieces: Iterable[Any]) -> None:
    """Write the rows of at least one array as one array, for `numpy.load`."""

    def write(aside: Path) -> None:
        file, at = None, 0
        for piece in pieces:
            if file is None:
                file = new_npy(aside, piece.dtype, (num_rows, *piece.shape[1:]))
            file[at : at + len(piece)] = piece
            at += len(piece)
        assert file is not None and at == num_rows
        file.flush()

    written(Path(path), write)


def write_tables(path: str | Path, open_writer: Callable[..., Any], tables: Iterable[Any]) -> None:
    """Write at least one `pyarrow.Table`, one below the other, by a writer of pyarrow."""

    def write(aside: Path) -> None:
        pieces = iter(tables)
        first = next(pieces)
        with open_writer(aside, first.schema) as writer:
            writer.write_table(first)
            for table in pieces:
                writer.write_table(table)

    written(Path(path), write)


def write_zarr(
    path: str | Path, num_rows: int, pieces: Iterable[Mapping[str, Any]], attributes: Mapping[str, Any]
) -> None:
    """Write a Zarr group of arrays with one row for each node, from at least one piece of them all, of `PIECE_ROWS`
    rows but for the last."""
    import zarr

    def write(aside: Path) -> None:
        group, at, made = zarr.open_group(str(aside), mode="w", zarr_format=3), 0, {}
        group.attrs.update(attributes)
        for piece in pieces:
            arrays = {name: np.asarray(array) for name, array in piece.items()}
            for name, array in arrays.items():
                kind = np.dtypes.StringDType() if array.dtype.kind == "U" else array.dtype
                if name not in made:
                    rows = 1 << max(0, int(np.log2((4 << 20) // max(1, array[:1].nbytes))))
                    shape, rows = (num_rows, *array.shape[1:]), max(1, min(rows, PIECE_ROWS, num_rows))
                    made[name] = group.create_array(name, shape=shape, dtype=kind, chunks=(rows, *shape[1:]))
                made[name][at : at + len(array)] = array.astype(kind, copy=False)
            at += len(next(iter(arrays.values())))

    written(Path(path), write)


def put_new(aside: Path, path: Path) -> None:
    """Put a file or a folder in its place, unless something was made there meanwhile.

    Raises:
        InputError: something was.
    """
    try:
        if aside.is_dir():
            os.rename(aside, path)
        else:
            os.link(aside, path)  # unlike a rename, never in place of a file
    except OSError as e:
        if e.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS) and not os.path.lexists(path):
            os.rename(aside, path)  # a file system without hard links
            return
        made = os.path.lexists(path)
        why = "was made by somebody else meanwhile" if made else f"cannot be written ({e.strerror})"
        raise InputError(f"{path} {why}; choose another --out") from None


def written(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file or a folder as a whole or not at all. It is made in a folder beside it; one that a killed process
    left is removed first.

    Raises:
        InputError: it cannot be written.
    """
    path = expanded(path)
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: {path.parent} is not a folder; make it, or choose another")
    sweep_leftovers(path.parent, path.name)
    try:
        with folder_aside(path) as folder:
            write(aside := folder / path.name)
            if aside.is_dir() and path.is_dir():
                os.rename(path, folder / "before")
            os.replace(aside, path)
    except OSError as e:
        number = e.errno or (errno.ENOSPC if is_full(e) else None)
        why = os.strerror(number) if number else e
        raise InputError(f"{path} cannot be written: {why}; choose another place, or free some space") from None
