"""Checks of plain values from outside, TOML or JSON, before use: nesting, numbers that fit, text that is valid in
paths."""

import math
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from ...storage.errors import InputError
from ...storage.store.paths import is_utf8

MOST_DEPTH = 8
MOST_CHARACTERS = 1 << 20
MOST_DOTS = 64
SHOWN = 80


def quoted(value: Any) -> str:
    """A value for use within a sentence, on one line, shortened if it is long; of an array its type and shape."""
    if isinstance(shape := getattr(value, "shape", None), tuple) and shape:
        return f"of type {type(value).__name__} and shape {[*shape]}"
    try:
        text = " ".join(repr(value).split("\n"))
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text into its tables.

    Raises:
        InputError: not TOML, or refused by `require_sound`; the message is the end of a sentence.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"it has {len(text):,} characters; expected at most {MOST_CHARACTERS:,}")
    # A key of many parts takes the parser quadratic time and memory.
    if any(piece.count(".") > MOST_DOTS for piece in re.split(r"[=,{}\[\]\n]", text)):
        raise InputError(f"a key or a value has more than {MOST_DOTS} dots")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise InputError("its values are nested too deeply") from None
    except ValueError as e:
        raise InputError(str(e)) from None
    require_sound(table)
    return table


def require_sound(value: Any, key: str = "", depth: int = 0) -> None:
    """Refuse values that no setting can have, anywhere in nested tables and lists.

    Raises:
        InputError: nesting deeper than `MOST_DEPTH`, a number that is not finite or exceeds 64 bits, or a NUL in a text
            or key.
    """
    where = f"'{key[:SHOWN]}'" if key else "the configuration"
    if depth > MOST_DEPTH:
        raise InputError(f"{where} is nested too deeply; expected at most {MOST_DEPTH} levels")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            require_sound(str(name), key, depth)
            require_sound(inner, f"{key}.{name}".lstrip("."), depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            require_sound(inner, key, depth + 1)
    elif isinstance(value, str) and ("\0" in value or not is_utf8(value)):
        raise InputError(f"{where} holds a NUL character, or a byte that is not UTF-8; remove it")
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise InputError(f"{where} is a whole number of {value.bit_length()} bits; expected at most 64")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where} is {value}; expected a finite number")
