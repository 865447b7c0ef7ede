"""Numbers of things in messages: ``1 node``, ``1,797 nodes``."""


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """The number and its noun, in the plural where it is not one; `nouns` is the plural, by default with an s."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def are(number: int) -> str:
    """``is``, or ``are`` where it is not one."""
    return "is" if number == 1 else "are"


def were(number: int) -> str:
    """``was``, or ``were`` where it is not one."""
    return "was" if number == 1 else "were"
