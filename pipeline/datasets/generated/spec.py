"""``kind:key=value,key=value``: the text form of a generated graph."""

from dataclasses import MISSING, Field, field, fields
from typing import Any, TypeVar

import numpy as np

from ....stages.random import Purpose, stream
from ....storage.array_kinds import AnyArray, IdArray
from ....storage.dataset import Split
from ....storage.errors import InputError, nearest
from ..cleaning.options import DEFAULT_OPTIONS
from ..cleaning.splits import make_split

T = TypeVar("T")


def split_of(p: Any, labels: AnyArray, kind: str = "fraction", **more: Any) -> Split:
    """The stored split of a graph with the parameters `p`, by their shares; `more` for `make_split`."""
    return make_split(labels, None, f"{kind}:{p.train},{p.val}", p.seed, DEFAULT_OPTIONS, [], **more)


def generator(p: Any, part: int) -> np.random.Generator:
    """Random numbers for one part of a graph with the parameters `p`."""
    return np.random.Generator(np.random.Philox(key=stream(p.seed, Purpose.DATA, part)))


def one_of_each(rng: np.random.Generator, kinds: AnyArray, wanted: AnyArray, count: int) -> IdArray:
    """int64 [n], for each of the `wanted` kinds below `count` a random thing of that kind, by the kinds of all things;
    another one where no thing is of it."""
    ordered, sizes = np.argsort(kinds, kind="stable"), np.bincount(kinds, minlength=count)
    at = (np.cumsum(sizes) - sizes)[wanted] + rng.integers(0, np.maximum(sizes[wanted], 1))
    return ordered[np.minimum(at, len(kinds) - 1)]


def unit_vectors(rng: np.random.Generator, count: int, width: int, dtype: Any = np.float32) -> AnyArray:
    """[count, width], random rows of length 1."""
    rows = rng.standard_normal((count, width), dtype)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def number(default: float, low: float, high: float) -> Any:
    """Dataclass field that `parse_spec` reads and checks to lie in [low, high]."""
    return field(default=default, metadata={"low": low, "high": high})


def parse_spec(text: str, kind: type[T]) -> T:
    """Parse ``name:key=value,...``, or ``name`` alone, into a `kind`, a dataclass whose fields are `number`s of type
    int, float or bool; keys that are not given keep their defaults. Raises InputError: an unknown, repeated or
    malformed key, or a value of the wrong type or out of range."""
    name, _, rest = text.partition(":")
    # pyrefly: ignore[bad-argument-type]
    known = {f.name: f for f in fields(kind)}
    values: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            some = ",".join(f"{f.name}={f.default}" for f in list(known.values())[:2] if f.default is not MISSING)
            raise InputError(f"'{item}' in '{text}' is not key=value; expected e.g. {name}:{some}")
        if key not in known:
            raise InputError(f"'{text}': unknown key '{key}'; {name} knows {', '.join(known)}{nearest(key, known)}")
        if key in values:
            raise InputError(f"'{text}': the key '{key}' is given twice; give it once")
        values[key] = _value(text, known[key], value)
    return kind(**values)


def _value(text: str, f: "Field[Any]", value: str) -> Any:
    try:
        parsed = float(value)
    except ValueError:
        raise InputError(f"'{text}': {f.name} is '{value}'; expected a number") from None
    if f.type is not float and not parsed.is_integer():
        raise InputError(f"'{text}': {f.name} is {value}; expected a whole number")
    low, high = f.metadata["low"], f.metadata["high"]
    if not low <= parsed <= high:
        raise InputError(f"'{text}': {f.name} is {value}, out of range; expected {low} to {high}")
    return parsed if f.type is float else bool(parsed) if f.type is bool else int(parsed)
