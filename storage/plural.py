"""Counts in messages: ``1 node``, ``1,797 nodes``."""


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """A number with its noun, in the plural unless the number is 1; `nouns` is the plural, by default with an s."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def are(number: int) -> str:
    """``is`` for 1, else ``are``."""
    return "is" if number == 1 else "are"


def were(number: int) -> str:
    """``was`` for 1, else ``were``."""
    return "was" if number == 1 else "were"
