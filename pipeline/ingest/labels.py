"""Labels and split: a few values for each node, which one task holds at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.dataset import SPLITS
from ...storage.fingerprint import array_digest
from ..datasets.cleaning.labels import GivenLabels, settled_labels
from ..datasets.cleaning.options import ReadOptions
from ..datasets.cleaning.splits import make_split
from ..datasets.readers.parquet import sets_of
from .names import NodeMap
from .scan import gathered_labels, gathered_split


def settle_labels(
    nodes: NodeMap,
    spans: Sequence[tuple[int, int]],
    records: Sequence[dict[str, Any]],
    options: ReadOptions,
    split: str | None,
    seed: int,
    label_columns: tuple[str, ...],
) -> dict[str, Any]:
    """Clean the labels and make the split, as files; return what the manifest says of them."""
    folder: Path = nodes.folder
    numbers = [nodes.positions(k, first, rows) for k, (first, rows) in enumerate(spans)]
    labels, class_names = gathered_labels(folder, records, numbers, nodes.num_nodes)
    notes: list[str] = []
    nulls, stripped = (sum(record[key] for record in records) for key in ("null_labels", "stripped"))
    label_names = label_columns if options.named_labels else None
    given = GivenLabels(labels, class_names, label_names, nulls, stripped)
    y, num_classes, task, class_names = settled_labels(given, options, notes)
    del labels, given
    stored = sets_of(gathered_split(folder, len(spans), numbers, nodes.num_nodes))
    split_notes: list[str] = []
    sets = make_split(y, stored, split, seed, options, split_notes)
    y.tofile(folder / "labels")
    parts = {name: getattr(sets, name) for name in SPLITS}
    for name, ids in parts.items():
        ids.tofile(folder / name)
    return {
        "shape": list(y.shape),
        "dtype": str(y.dtype),
        "num_classes": num_classes,
        "task": task,
        "class_names": class_names,
        "has_unknown": bool(np.isnan(y).any()),
        "notes": notes,
        "split_notes": split_notes,
        "sizes": {name: len(ids) for name, ids in parts.items()},
        "digests": {name: array_digest(ids) for name, ids in parts.items()},
    }
