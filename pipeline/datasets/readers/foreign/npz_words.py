"""Names of the arrays in an ``.npz`` file: other words for Millrace's own, and what is left unread."""

from collections.abc import Collection, Sequence
from pathlib import Path

from .....storage.dataset import SPLITS
from .....storage.errors import InputError
from .....storage.plural import listed
from ...schema import words

OWN = (
    "edge_index", "y", "x", "x_indptr", "x_indices", "x_data", "x_shape", "edge_weight", "edge_attr", "edge_time",
    "node_time", "num_nodes", "meta",
)  # fmt: skip
"""Names that mean what they say, besides ``train_idx``, ``train_mask`` and those of the other sets."""
OTHER = {
    "edge_index": ("edges", "edge_list"),
    "y": ("label", "labels", "node_label", "node_labels", "class"),
    "x": ("features", "feature", "feat", "node_features", "node_feat", "node_attr"),
    "edge_weight": ("edge_weights", "weight", "weights"),
    "edge_attr": ("edge_attrs", "edge_features", "edge_feat"),
    "num_nodes": ("n_nodes", "num_node"),
}
_FORMS = {"idx": ("idx", "index", "indices", "ids", "nodes", "id", "idxs"), "mask": ("mask", "flag", "flags")}
_OF_EDGES = ("edge_label", *(f"{part}_edge_label" for part in SPLITS))
"""Begin the names of arrays of labelled edges, and of pairs."""
_OF_SPLITS = {"mask", "masks", "split", "splits", "idx", *(word for part in words.PARTS.values() for word in part)}
_OF_WEIGHTS = {"weight", "weights"}
"""Words in names of arrays that are not left unread."""


def own_name(key: str) -> str | None:
    """The name that Millrace has for an array; None if it has none."""
    folded = words.fold(key)
    if folded in OWN:
        return folded
    for name, others in OTHER.items():
        if folded in others:
            return name
    first, _, second = folded.partition("_")
    for part, form in ((first, second), (second, first)):
        if (of := words.part_of(part)) is not None:
            found = next((f for f, forms in _FORMS.items() if form in forms), None)
            return None if found is None else f"{of}_{found}"
    return None


def own_names(held: Sequence[str], path: Path) -> tuple[dict[str, str], list[str]]:
    """The arrays of a file by Millrace's names, and the names of those that are not read. Raises InputError: two arrays
    mean the same, or one is not read that looks like a split or weights."""
    found: dict[str, str] = {}
    unread: list[str] = []
    for key in sorted(held, key=lambda k: k not in OWN):
        name = own_name(key)
        if name is None:
            unread.append(key)
        elif found.setdefault(name, key) != key:
            raise InputError(f"{path}: the keys {found[name]} and {key} both mean {name}; keep one of them")
    unread = [key for key in unread if not words.fold(key).startswith(_OF_EDGES)]
    check_unread(unread, found, path)
    return found, unread


def check_unread(unread: Sequence[str], found: Collection[str], path: Path) -> None:
    """Raise InputError for an array that is not read and looks like a split or weights, unless these are `found`, by
    Millrace's names."""
    telling: set[str] = set()
    if not any(name.endswith(("_idx", "_mask")) for name in found):
        telling |= _OF_SPLITS
    if "edge_weight" not in found:
        telling |= _OF_WEIGHTS
    if strange := [key for key in unread if telling & set(words.fold(key).split("_"))]:
        raise InputError(
            f"{path}: the key {listed(strange)} is not read, and looks like a split or weights; save it as train_idx, "
            "val_idx and test_idx (ids), train_mask, ... (flags) or edge_weight, or leave it out"
        )
