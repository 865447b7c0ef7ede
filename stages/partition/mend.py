"""Damaged parts in a run's folder: removed, so that `stage.partition_dataset` makes them again."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ...storage.errors import StoreError
from ...storage.partition.book import KIND as BOOK_KIND
from ...storage.partition.book import open_book
from ...storage.partition.edge_shards import open_edge_shards
from ...storage.partition.partition import open_partition
from ...storage.store.committed_folder import remove_tree
from ...storage.store.manifest import MANIFEST
from ...storage.store.store import open_store
from .stage import KIND, ROWS_KIND, quality_of

ROWS_AT_ONCE = 1 << 16
Find = Callable[[Sequence[Path], Mapping[str, str]], Iterable[tuple[Path, str | None]]]
"""Takes stores of a partitioning and what they must be made from; gives each with its damage."""


def find_here(stores: Sequence[Path], made: Mapping[str, str]) -> Iterable[tuple[Path, str | None]]:
    """Look for damage in this process, in one store after the other."""
    return ((store, damage_of(store, made)) for store in stores)


def damage_of(store: Path, made: Mapping[str, str]) -> str | None:
    """Description of the damage of a book or a part; None if it is intact. All of it is read."""
    try:
        if store.name == "book":
            open_book(store)
        else:
            _read(store, dict(made))
    except StoreError as e:
        return str(e)
    return None


def remove_damaged(folder: Path, tell: Callable[[str], None], find: Find = find_here) -> None:
    """Remove parts in `folder` that cannot be read, and report them by name. Every array is read once.

    Parts that an interrupted run has not finished are left alone: they are known to be missing.

    Args:
        folder: the partitioning.
        tell: called with a sentence about each damaged part.
        find: looks for damage; in this process by default.
    """
    book = folder / "book"
    if not book.exists():
        return
    try:
        made = dict(open_store(book, BOOK_KIND).fingerprint)
        ((_, why),) = find([book], made)
    except StoreError as e:
        why = str(e)
        made = {}
    if why is not None:
        remove_tree(folder)
        tell(f"the parts in {folder} are made again: {why}")
        return
    whole = (folder / MANIFEST).exists()
    try:
        if whole:
            quality_of(open_store(folder, KIND))
    except StoreError as e:
        (folder / MANIFEST).unlink()
        tell(f"the account of the parts is written again: {e}")
    parts = [part for part in sorted(folder.glob("part-*")) if whole or (part / "rows" / MANIFEST).exists()]
    for part, why in find(parts, made):
        if why is not None:
            # While the folder's manifest is there, it counts as complete.
            (folder / MANIFEST).unlink(missing_ok=True)
            remove_tree(part)
            tell(f"a damaged part is made again: {why}")


def _read(part: Path, made: dict[str, str]) -> None:
    partition = open_partition(part / "graph", fingerprint=made)
    shards = open_edge_shards(part / "shards", fingerprint=made)
    rows = open_store(part / "rows", ROWS_KIND, fingerprint=made)
    for name in rows.entries:
        length = rows.entries[name]["shape"][0]
        for first in range(0, max(length, 1), ROWS_AT_ONCE):
            _ = np.asarray(rows.piece(name, slice(first, first + ROWS_AT_ONCE)))
    if not partition.num_owned == shards.num_owned == rows.entries["features"]["shape"][0]:
        raise StoreError(f"{part}: its graph, edge shards and rows are not of the same nodes")
