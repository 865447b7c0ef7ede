"""The data card of a dataset: what was read, and what became of it, as plain values that a store keeps."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import StoreError
from ..store.narrow import FeatureDtype
from ..store.store import Store
from .narrow_loss import LARGEST

CARD, AS_GIVEN = "data_card", "of the input"
"""Key of a manifest, and stem of the file in a run's folder; and what a card says of a split that the data name."""
TREATED = "treatment"
"""Key of a card with what other data need to be read as these: records of all columns by what they are of."""
MOST_COLUMNS = 500
"""Most columns of features that a card lists."""
BITS: dict[FeatureDtype, int] = {"float16": 11, "bfloat16": 8}
"""Significant bits of numbers."""


def card_of(store: Store) -> Mapping[str, Any] | None:
    """The card of a dataset store; None if an earlier version wrote it. Raises StoreError if it is none."""
    card = store.value(CARD, dict) if CARD in store.meta else None
    try:
        described(card, MOST_COLUMNS)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        raise StoreError(f"{store.path}: {CARD} does not say what its columns hold: make the store again") from None
    return card


def data_card(columns: Sequence[Mapping[str, object]], **facts: object) -> dict[str, object]:
    """A card: columns of features, and other facts, of which empty ones are left out."""
    return with_columns({key: value for key, value in facts.items() if value not in (None, {})}, columns)


def with_columns(card: Mapping[str, Any], columns: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The card with more columns of features."""
    treated = {of: [*each] for of, each in card.get(TREATED, {}).items()}
    for column in columns:
        if column.get(TREATED):
            treated.setdefault(str(column["of"]), []).append(column[TREATED])
    before = card.get("columns", [])
    plain = [{key: value for key, value in column.items() if key != TREATED} for column in columns]
    listed = [*before, *plain[: max(0, MOST_COLUMNS - len(before))]]
    found = {**card} | ({TREATED: treated} if treated else {}) | {"columns": listed}
    left = len(before) + len(columns) - len(listed) + card.get("more_columns", 0)
    return found | ({"more_columns": left} if left else {})


def names_in(card: Mapping[str, Any] | None, of: str, width: int) -> list[str]:
    """Names of the columns of features of nodes, or of those of a type; numbers where the card has none."""
    columns = [] if card is None else [str(column["name"]) for column in card["columns"] if column["of"] == of]
    return columns if len(columns) == width else [f"column {i}" for i in range(width)]


def titled(node_type: str, notes: Iterable[str]) -> list[str]:
    """Notes on a node type, with its name if there are several."""
    return [f"Node type '{node_type}': {note}" if node_type else note for note in notes]


def narrower(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each column what a narrower dtype would lose, by its range; empty if nothing much. Ranges are those before
    columns were scaled."""
    of = {column["of"]: 0.0 for column in columns}
    for column in columns:
        of[column["of"]] = max(of[column["of"]], _magnitude(column))
    return [_narrower(column, of[column["of"]]) for column in columns]


def described(card: Mapping[str, Any] | None, most: int) -> list[tuple[str, str]]:
    """Lines of a card: where the split is from, and what each column of features holds, at most so many."""
    if card is None:
        return []
    columns, split, seed = card["columns"], card.get("split", ""), card.get("seed")
    lines = [("origin of the split", "the input" if split == AS_GIVEN else f"{split} (seed {seed})")] if split else []
    lines += [("ranges of columns", "as read, before scaling")] if columns and most else []
    for column, lost in list(zip(columns, narrower(columns)))[:most]:
        ends = "no value" if column["least"] is None else f"{column['least']:,.6g} to {column['largest']:,.6g}"
        # A column of one_hot, called column=value, is 0 where the cell is empty.
        counts = [f"{column['missing']:,} missing"] if column["missing"] or "=" not in column["name"] else []
        found = [ends, *counts, *(["constant"] if column["constant"] else []), *([lost] if lost else [])]
        named = str(column["name"]).removeprefix("column ")
        lines.append((f"column {named} of {column['of']}", ", ".join(found)))
    if (more := len(columns) - most + card.get("more_columns", 0)) > 0 and len(columns) > most:
        lines.append(("more columns", f"{more:,}, in {CARD}.json or the manifest"))
    return lines


def _magnitude(column: Mapping[str, Any]) -> float:
    return 0.0 if column["least"] is None else max(abs(column["least"]), abs(column["largest"]))


def _narrower(column: Mapping[str, Any], widest: float) -> str:
    largest, found = _magnitude(column), list[str]()
    if column["constant"] or not largest:
        return ""
    spread = column["largest"] - column["least"]
    for kind, bits in BITS.items():
        if largest > LARGEST[kind]:
            found.append(f"{kind} clips it")
        elif spread < 4 * 2.0 ** (np.floor(np.log2(largest)) - bits + 1):
            found.append(f"{kind} merges its values")
    if largest < widest / 254:
        found.append("int8 makes it 0 beside larger columns")
    return ", ".join(found)
