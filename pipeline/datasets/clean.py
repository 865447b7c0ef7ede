"""From what a reader found to a checked `Dataset`."""

import numpy as np

from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.features import MemoryFeatures
from .columns import clean_features, clean_labels
from .components import in_largest_component, restricted, restricted_split
from .edges import clean_edges, clean_ordered
from .options import ReadOptions
from .raw import Raw
from .splits import make_split


def clean(raw: Raw, options: ReadOptions, split: str | None, seed: int) -> Dataset:
    """Check and mend `raw`. V is the number of labels.

    Args:
        raw: what a reader found.
        options: what to do about each defect.
        split: see `make_split`.
        seed: decides a random split, nothing else.

    Raises:
        InputError: starts with the name of the input and names what is wrong and what to change.
    """
    try:
        return _clean(raw, options, split, seed)
    except InputError as e:
        raise InputError(f"{raw.name}: {e}") from e


def _clean(raw: Raw, options: ReadOptions, split: str | None, seed: int) -> Dataset:
    notes = list(raw.notes)
    labels = np.asarray(raw.labels)
    if labels.ndim == 0 or len(labels) == 0:
        raise InputError("there are no nodes (no labels); expected one label for each node")
    if raw.ordered is not None:
        graph = clean_ordered(raw.ordered, len(labels), options, raw.hint, notes)
    else:
        graph = clean_edges(np.asarray(raw.src), np.asarray(raw.dst), raw.edge_weight, len(labels), options, raw.hint, notes)
    y, num_classes, task = clean_labels(labels, options, notes)
    x = clean_features(raw.features, graph, options, notes)
    stored = raw.split
    if options.components == "largest":
        keep = in_largest_component(graph)
        if not keep.all():
            notes.append(f"{int((~keep).sum())} nodes outside the largest connected component were left out (components=largest).")
            graph, y, x, stored = restricted(graph, keep), y[keep], x[keep], restricted_split(stored, keep)
    parts = make_split(y, stored, split, seed, options, notes)
    return Dataset(raw.name, graph, MemoryFeatures(x), y, parts, num_classes, task, tuple(notes)).check()
