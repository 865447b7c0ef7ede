"""Names of nodes in the input, as one array of UTF-8. Everything else refers to nodes by number."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from .array_checks import proving
from .array_kinds import AnyArray, IdArray, IntArray, Mask, ValueArray
from .errors import InputError, StoreError
from .graph import edges_of_rows, starts_of
from .plural import are, counted
from .store.store import Store

INTEGER_NAMES = "integer_names"
"""Key of a manifest that says if names are integers; absent: see `NodeNames.are_integers`."""


def noted_kind(kinds: Iterable[bool | None]) -> bool | None:
    """`NodeNames.integers` of the names of several node types."""
    (first, *others) = {*kinds} or {None}
    return None if others else first


@dataclass(frozen=True, eq=False)
class NodeNames(Sequence[str]):
    """V names, in the order of the nodes. An index gives a name, a slice a list of names; see `take` and `find` for
    many at once."""

    text: npt.NDArray[np.uint8]
    """uint8 [N], all names end to end, in UTF-8."""
    starts: IdArray
    """int64 [V+1]; name v is ``text[starts[v]:starts[v + 1]]``."""
    integers: bool | None = None
    """True if the names are whole numbers in the input, False if they are text there; None: see `are_integers`."""

    @classmethod
    def from_values(cls, names: Iterable[Any]) -> "NodeNames":
        """Build from strings, or whole numbers, one for each node."""
        if isinstance(names, NodeNames):
            return names
        names = list(names)
        integers = bool(names) and all(isinstance(name, Integral) and not isinstance(name, bool) for name in names)
        encoded = [str(name).encode("utf-8", "replace") for name in names]
        return cls(np.frombuffer(b"".join(encoded), np.uint8), starts_of([len(name) for name in encoded]), integers)

    @classmethod
    def of_numbers(cls, count: int) -> "NodeNames":
        """The numbers 0 to `count` - 1 as names."""
        return cls.of_integers(np.arange(count))

    @classmethod
    def of_integers(cls, numbers: IntArray) -> "NodeNames":
        """Numbers as names, one for each node."""
        import pyarrow as pa

        return replace(cls.of_arrow(pa.array(numbers).cast(pa.large_string())), integers=True)

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

    def take(self, nodes: IntArray) -> list[str]:
        """Names of `nodes`, in their order."""
        first, stop = self.starts[nodes].tolist(), self.starts[np.asarray(nodes) + 1].tolist()
        return [self.text[a:b].tobytes().decode("utf-8", "replace") for a, b in zip(first, stop)]

    def between(self, nodes: range) -> "NodeNames":
        """Names of consecutive nodes."""
        starts = self.starts[nodes.start : nodes.stop + 1]
        return NodeNames(self.text[starts[0] : starts[-1]], starts - starts[0], self.integers)

    def kept(self, keep: Mask) -> "NodeNames":
        """Names of the nodes in the mask `keep`."""
        lengths = np.diff(self.starts)
        starts = np.concatenate([[0], np.cumsum(lengths[keep])]).astype(np.int64)
        return NodeNames(self.text[np.repeat(keep, lengths)], starts, self.integers)

    def reordered(self, order: IntArray) -> "NodeNames":
        """Names of the nodes `order`, each of which may be there once, never, or many times."""
        starts, letters = edges_of_rows(self.starts[order], np.diff(self.starts)[order])
        return NodeNames(self.text[letters], starts, self.integers)

    @cached_property
    def are_integers(self) -> bool:
        """True if integers mean names. Stores written by versions that did not note it: if all names are written as
        whole numbers are."""
        if self.integers is not None:
            return self.integers
        pa, compute = _arrow()
        try:
            as_numbers = self.as_arrow().cast(pa.int64())
        except pa.ArrowInvalid:
            return False
        return bool(len(self)) and bool(compute.all(compute.equal(as_numbers.cast(pa.large_string()), self.as_arrow())))

    def called(self, nodes: IntArray, offsets: Sequence[int] = ()) -> list[str] | IdArray:
        """Names of `nodes` as the input has them: text, or int64 where names are integers.

        Args:
            nodes: [n].
            offsets: first nodes of the node types, and V: types of these nodes may have integers, and others text.
        """
        import pyarrow as pa

        whole = self.are_integers
        if not whole and offsets:
            kinds = np.unique(np.searchsorted(offsets, nodes, "right")).tolist()
            whole = all(self.between(range(offsets[k - 1], offsets[k])).are_integers for k in kinds)
        if not whole:
            return self.take(nodes)
        return self.as_arrow().take(pa.array(nodes)).cast(pa.int64()).to_numpy(zero_copy_only=False)

    def meant(self, given: AnyArray) -> IdArray:
        """Nodes that a caller names, int64 [n]: by names, or by integers, which are names where names are integers, and
        else numbers of nodes, in which case nothing says that there are such nodes.

        Raises:
            InputError: no node has a name, or an integer is the number of a node and the name of another one.
        """
        if given.dtype.kind not in "iu" or self.are_integers:
            return self.find(given.tolist() if given.dtype.kind not in "iu" else NodeNames.of_integers(given))
        pa, compute = _arrow()
        own, texts = self.as_arrow(), pa.array(given).cast(pa.large_string())
        at = np.flatnonzero(compute.is_in(own, value_set=texts).to_numpy(zero_copy_only=False))
        if other := next(((int(v), name) for v, name in zip(at, self.take(at)) if int(name) != v), None):
            raise InputError(
                f"{other[1]} is the number of a node, and node {other[0]} is called '{other[1]}'; give names as text"
            )
        return given.astype(np.int64)

    def find(self, names: Iterable[str]) -> IdArray:
        """Nodes with these names, int64, in the order of `names`.

        Raises:
            InputError: no node has one of the names.
        """
        pa, compute = _arrow()
        wanted = names.as_arrow() if isinstance(names, NodeNames) else pa.array(map(str, names), pa.large_string())
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
        pa, compute = _arrow()
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
            return cls.from_values([])
        offsets = np.frombuffer(starts, np.int64)[whole.offset : whole.offset + len(whole) + 1]
        letters = np.frombuffer(text, np.uint8) if text is not None else np.empty(0, np.uint8)
        return cls(letters[offsets[0] : offsets[-1]], offsets - offsets[0], False)


def _arrow() -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.compute`, which generates its functions when it is imported: type checkers see none."""
    import pyarrow.compute

    return pyarrow, pyarrow.compute


def open_names(store: Store) -> NodeNames | None:
    """Names of the nodes of a dataset store. Raises StoreError if they are damaged."""
    if "node_name_text" not in store:
        return None
    noted = store.value(INTEGER_NAMES, bool) if INTEGER_NAMES in store.meta else None
    names = NodeNames(store.read("node_name_text"), store.read("node_name_starts"), noted)
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


def name_arrays(names: Sequence[str] | None) -> tuple[dict[str, ValueArray], bool | None]:
    """Arrays of a store with the names of nodes, and its entry `INTEGER_NAMES`, if there are any."""
    if names is None:
        return {}, None
    found = NodeNames.from_values(names)
    return {"node_name_text": found.text, "node_name_starts": found.starts}, found.integers
