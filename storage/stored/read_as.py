"""How the input of a dataset store was read."""

from typing import Any

from ..store.store import Store


def reading_of(store: Store) -> dict[str, Any]:
    """`Dataset.read_as` of a store; empty in stores of earlier versions. Raises StoreError if it is damaged."""
    return store.value("read_as", dict) if "read_as" in store.meta else {}
