"""Datasets of a knowledge graph's triples."""

from typing import Any

from ...storage.dataset import Dataset
from .cleaning.options import Overlaps
from .links import links_of_sets, relations_of
from .readers.triples import as_triples


def from_triples(
    train: Any,
    val: Any = None,
    test: Any = None,
    *,
    add_reverse: bool = True,
    name: str = "triples",
    overlapping_splits: Overlaps = "error",
) -> Dataset:
    """A dataset whose task is to complete a knowledge graph: links of all of its relations.

    Edges of the graph are the train triples, from heads to tails, and with `add_reverse` also from tails to heads, by
    relations called ``rev_NAME``. Nodes are of one type, ``entity``, and have no features: they share a learnt row, or
    with ``learned=`` have each their own.

    Args:
        train: [n, 3] heads, relations and tails: names, or whole numbers from 0.
        val: likewise, of the same kind; None: none.
        test: likewise.
        add_reverse: add the reverse of each relation.
        name: name of the dataset.
        overlapping_splits: see `ReadOptions.overlapping_splits`.

    Raises:
        InputError: another shape, or a triple is in two sets.
    """
    found = as_triples({"train": train, "val": val, "test": test}, name, add_reverse=add_reverse)
    return links_of_sets(found.plain, found.sets, relations_of(found.plain.graph), overlapping_splits)
