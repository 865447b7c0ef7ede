"""Counts in messages: ``1 node``, ``1,797 nodes``; and lists of names."""

from collections.abc import Sequence

SHOWN = 20
"""Names of a list in a message."""


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """A number with its noun, in the plural unless the number is 1; `nouns` is the plural, by default with an s."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def are(number: int) -> str:
    """``is`` for 1, else ``are``."""
    return "is" if number == 1 else "are"


def were(number: int) -> str:
    """``was`` for 1, else ``were``."""
    return "was" if number == 1 else "were"


def listed(names: Sequence[str], between: str = ", ") -> str:
    """Names one after the other; of many the first ones, and their number."""
    return between.join(names[:SHOWN]) + (f"{between}... ({len(names):,} in all)" if len(names) > SHOWN else "")
