"""Names of nodes in the input, as one array of UTF-8. Everything else refers to nodes by number."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from .array_checks import proving
from .errors import InputError, StoreError
from .graph import edges_of_rows
from .plural import are, counted
from .store.store import Store


@dataclass(frozen=True, eq=False)
class NodeNames(Sequence[str]):
    """V names, in the order of the nodes. An index gives a name, a slice a list of names; see `take` and `find` for
    many at once."""

    text: npt.NDArray[np.uint8]
    """uint8 [N], all names end to end, in UTF-8."""
    starts: npt.NDArray[np.int64]
    """int64 [V+1]; name v is ``text[starts[v]:starts[v + 1]]``."""

    @classmethod
    def of(cls, names: Iterable[str]) -> "NodeNames":
        """Build from strings, one for each node."""
        if isinstance(names, NodeNames):
            return names
        encoded = [str(name).encode("utf-8", "replace") for name in names]
        starts = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(name) for name in encoded], out=starts[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), starts)

    @classmethod
    def of_numbers(cls, count: int) -> "NodeNames":
        """The numbers 0 to `count` - 1 as names."""
        return cls.of_integers(np.arange(count))

    @classmethod
    def of_integers(cls, numbers: npt.NDArray[np.integer]) -> "NodeNames":
        """Numbers as names, one for each node."""
        import pyarrow as pa

        return cls.of_arrow(pa.array(numbers).cast(pa.large_string()))

    def check(self) -> "NodeNames":
        """Check that the names lie within the text. Raises InputError otherwise."""
        starts = self.starts
        sound = (
            self.text.dtype == np.uint8
            and self.text.ndim == 1
            and starts.dtype == np.int64
            and starts.ndim == 1
            and len(starts) > 0
        )
        if not (sound and starts[0] == 0 and starts[-1] == len(self.text) and (np.diff(starts) >= 0).all()):
            raise InputError("node names are no ascending offsets into one text")
        return self

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> list[str]: ...

    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return self.take(np.arange(len(self))[at])
        node = int(at)
        if not -len(self) <= node < len(self):
            raise IndexError(f"node {node} of {len(self)} named ones")
        return self.take(np.array([node % len(self)]))[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), 4096):
            yield from self[start : start + 4096]

    def take(self, nodes: npt.NDArray[np.integer]) -> list[str]:
        """Names of `nodes`, in their order."""
        first, stop = self.starts[nodes].tolist(), self.starts[np.asarray(nodes) + 1].tolist()
        return [self.text[a:b].tobytes().decode("utf-8", "replace") for a, b in zip(first, stop)]

    def between(self, nodes: range) -> "NodeNames":
        """Names of consecutive nodes."""
        starts = self.starts[nodes.start : nodes.stop + 1]
        return NodeNames(self.text[starts[0] : starts[-1]], starts - starts[0])

    def kept(self, keep: npt.NDArray[np.bool_]) -> "NodeNames":
        """Names of the nodes in the mask `keep`."""
        lengths = np.diff(self.starts)
        starts = np.concatenate([[0], np.cumsum(lengths[keep])]).astype(np.int64)
        return NodeNames(self.text[np.repeat(keep, lengths)], starts)

    def reordered(self, order: npt.NDArray[np.integer]) -> "NodeNames":
        """Names of the nodes `order`, each of which may be there once, never, or many times."""
        starts, letters = edges_of_rows(self.starts[order], np.diff(self.starts)[order])
        return NodeNames(self.text[letters], starts)

    def find(self, names: Iterable[str]) -> npt.NDArray[np.int64]:
        """Nodes with these names, int64, in the order of `names`.

        Raises:
            InputError: no node has one of the names.
        """
        import pyarrow as pa
        import pyarrow.compute

        wanted = pa.array([str(name) for name in names], pa.large_string())
        # pyarrow generates these functions when it is imported: type checkers cannot see them.
        compute: Any = pyarrow.compute
        found = compute.index_in(wanted, value_set=self.as_arrow())
        if found.null_count:
            unknown = wanted.filter(found.is_null())
            count = found.null_count
            raise InputError(
                f"{counted(count, 'name')} (first: '{unknown[0]}') {are(count)} no node's; expected names such as "
                f"'{self[0]}'"
            )
        return found.to_numpy(zero_copy_only=False).astype(np.int64)

    def repeated(self, names: Iterable[str]) -> str | None:
        """One of `names` that several nodes have; None if there is none."""
        import pyarrow as pa
        import pyarrow.compute

        compute: Any = pyarrow.compute
        own = self.as_arrow()
        found = own.filter(compute.is_in(own, value_set=pa.array([str(name) for name in names], pa.large_string())))
        return next((str(one["values"]) for one in found.value_counts() if one["counts"].as_py() > 1), None)

    def as_arrow(self) -> Any:
        """The names as a `pyarrow.LargeStringArray`, without a copy."""
        import pyarrow as pa

        return pa.LargeStringArray.from_buffers(len(self), pa.py_buffer(self.starts), pa.py_buffer(self.text))

    @classmethod
    def of_arrow(cls, column: Any) -> "NodeNames":
        """Build from a pyarrow array or chunked array of text without nulls."""
        import pyarrow as pa

        whole = column.cast(pa.large_string())
        whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
        if isinstance(whole, pa.ChunkedArray):
            whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], pa.large_string())
        _, starts, text = whole.buffers()
        if not len(whole):
            return cls.of([])
        offsets = np.frombuffer(starts, np.int64)[whole.offset : whole.offset + len(whole) + 1]
        letters = np.frombuffer(text, np.uint8) if text is not None else np.empty(0, np.uint8)
        return cls(letters[offsets[0] : offsets[-1]], offsets - offsets[0])


def open_names(store: Store) -> NodeNames | None:
    """Names of the nodes of a dataset store. Raises StoreError if they are damaged."""
    if "node_name_text" not in store:
        return None
    names = NodeNames(store.read("node_name_text"), store.read("node_name_starts"))
    try:
        return names.check()
    except InputError as e:
        raise StoreError(f"{store.path}: {e}; write the dataset again") from e


def first_names(store: Store, most: int) -> list[str] | None:
    """Names of the first nodes of a stored dataset, at most so many; None if nodes are called by their numbers.

    Raises:
        StoreError: the store is damaged.
    """
    if "node_name_text" not in store:
        return None
    starts = store.piece("node_name_starts", slice(0, most + 1))
    with proving(store.path):
        names = NodeNames(store.piece("node_name_text", slice(0, int(starts[-1]))), starts).check()
    return names[:most]
