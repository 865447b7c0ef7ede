"""Text for a terminal: names from data and folders may hold control characters, which would move its cursor."""

import re

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def printable(text: str) -> str:
    """The text with control characters, but for line breaks and tabs, as escapes such as ``\\x1b``."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def in_table(text: object) -> str:
    """A value for a cell of a table in Markdown, as text that is not read as markup."""
    return re.sub(r"([\\`<>|]|(?<=\])\()", r"\\\1", " ".join(printable(str(text)).split()))
