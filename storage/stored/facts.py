"""Facts of a stored dataset: the fields of a `Dataset` that are no arrays, as its manifest has them."""

from typing import Any, cast

from ..dataset import Dataset, Task
from ..optional import present_items, when_present
from ..store.store import Store
from .data_card import CARD, card_of

FACTS = ("name", "num_classes", "task", "notes", "class_names", "hides_pairs", "read_as", CARD)
"""Entries of a manifest that `written_facts` makes: whoever writes a store of the same dataset takes them over."""


def facts_of(store: Store) -> dict[str, Any]:
    """Fields of the dataset of a store, by their names. Raises StoreError if they are damaged."""
    return {
        "name": store.value("name", str),
        "num_classes": store.value("num_classes", int),
        "task": cast(Task, store.value("task", str)),
        "notes": tuple(map(str, store.value("notes", list))),
        "class_names": tuple(map(str, store.value("class_names", list))) if "class_names" in store.meta else None,
        "hides_pairs": bool(store.meta.get("hides_pairs", False)),
        "read_as": reading_of(store),
        "card": card_of(store),
    }


def written_facts(dataset: Dataset) -> dict[str, object]:
    """Entries of a dataset's manifest that `facts_of` reads; those of what it lacks are left out."""
    facts = {"name": dataset.name, "num_classes": dataset.num_classes, "task": dataset.task}
    perhaps = {"class_names": when_present(list, dataset.class_names), CARD: when_present(dict, dataset.card)}
    marked = {"hides_pairs": dataset.hides_pairs, "read_as": dict(dataset.read_as)}
    found: dict[str, object] = {**facts, "notes": list(dataset.notes), **present_items(perhaps)}
    return found | {key: value for key, value in marked.items() if value}


def reading_of(store: Store) -> dict[str, Any]:
    """`Dataset.read_as` of a store; empty in stores of earlier versions. Raises StoreError if it is damaged."""
    return store.value("read_as", dict) if "read_as" in store.meta else {}
