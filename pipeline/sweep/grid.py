"""The settings of a sweep: values of configuration keys, and all their combinations."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...storage.errors import InputError, whole_number
from ..config.aliases import expanded, full_key, merged
from ..config.load import Job, parse_override, resolve
from ..config.records import is_record, table_of
from ..config.systems import System

OPEN, CLOSE = "[{(", "]})"


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    name: str
    """Name of its folder."""
    setting: dict[str, Any]
    """The values that this run and others differ in, by key; without the seed."""
    seed: int
    """Seed of the initial parameters."""
    job: Job


def grid_of(texts: Sequence[str]) -> dict[str, list[object]]:
    """The grid of several ``KEY=VALUE,VALUE``.

    Raises:
        InputError: a text has another form; a key is there twice.
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, values = values_of(text)
        if key in grid:
            raise InputError(f"{key} is given twice; give all its values in one --set, with commas between them")
        grid[key] = values
    return grid


def values_of(text: str) -> tuple[str, list[object]]:
    """A key and its values from ``KEY=VALUE,VALUE``; commas within brackets or quotes belong to a value.

    Raises:
        InputError: the text has another form.
    """
    key, equals, values = text.partition("=")
    if not equals:
        parse_override(text)
    found = [parse_override(f"{key}={value}") for value in _split(values)]
    full = ".".join(full_key(*found[0]))
    if full == "sampler.fanout" and len(found) > 1 and all(isinstance(value, int) for _, value in found):
        each = ",".join(f"[{value}]" for _, value in found)
        raise InputError(
            f"'{text}' may be one list or several; write {key}=[{values}] for one, or {key}={each} for several of "
            "one layer"
        )
    first, *others = [value for _, value in found]
    goes_on = any(isinstance(v, int | float) or (isinstance(v, str) and re.match(r"\w+=", v)) for v in others)
    if goes_on and isinstance(first, str) and ":" in first and values[0] not in "\"'":
        raise InputError(f"'{text}' may be one value or several; put quotes around each value: '{key}=\"{values}\"'")
    return full, [first, *others]


def _split(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        depth += (c in OPEN and not quote) - (c in CLOSE and not quote)
        if c == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def _with_setting(error: InputError, table: Mapping[str, object], setting: Mapping[str, object]) -> InputError:
    """The error of a setting, which names it unless the configuration that is varied has the same error."""
    try:
        resolve(table)
    except InputError as e:
        if str(e) == str(error):
            return error
    of = ", ".join(f"{key} = {value}" for key, value in setting.items())
    return InputError(f"with {of}: {error}") if of else error


def _in_order(key: str, values: object) -> list[object]:
    """The values of a key, from any iterable that has an order."""
    if isinstance(values, set | frozenset):
        raise InputError(f"the values of '{key}' are a set, which has no order; give a list")
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        values = [values]
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    """A value as a configuration has it: numbers of NumPy and torch, models and samplers may be given."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, System):
        raise InputError(
            "a grid has a system by its name, such as 'sar'; its options are keys of their own, such as 'sar.mode'"
        )
    if is_record(value):
        return table_of(value)
    return value.tolist() if hasattr(value, "tolist") else value


def points(base: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], seeds: int) -> list[Point]:
    """All combinations of a grid's values, each with every seed.

    Seeds are those of the initial parameters (`seeds.initial`), so that all runs of a setting share split and
    minibatches.

    Args:
        base: a configuration, resolved or not.
        grid: values by key or shorthand.
        seeds: number of seeds, the first being the configuration's.

    Raises:
        InputError: a value does not go with the rest; two runs are the same; nothing is varied.
    """
    seeds = whole_number("seeds", seeds, 1)
    keys = {key: _in_order(key, values) for key, values in grid.items()}
    if empty := [key for key, values in keys.items() if not values]:
        raise InputError(f"'{empty[0]}' has no values; expected at least one")
    if seeds * math.prod(map(len, keys.values())) < 2:
        raise InputError("nothing is varied; give several values, as in --set train.lr=0.01,0.003, or --seeds 5")
    varied = [key for key, values in keys.items() if len(values) > 1]
    if "seeds.initial" in varied and seeds > 1:
        raise InputError("seeds.initial is varied beside seeds, which sets it; leave one of them out")
    table, found = expanded(base), []
    for number, values in enumerate(itertools.product(*keys.values())):
        setting, given = dict(zip(keys, values)), table
        for key, value in setting.items():
            given = merged(given, full_key(key.split("."), value), value)
        for k in range(seeds):
            try:
                job = resolve(given)
            except InputError as e:
                raise _with_setting(e, table, {key: setting[key] for key in varied}) from None
            first = job.seed_of("initial")
            if seeds > 1:
                job = resolve(merged(given, ["seeds", "initial"], first + k))
            name = f"{number:03}" + (f"-seed{first + k}" if seeds > 1 else "")
            found.append(Point(name, {key: setting[key] for key in varied}, first + k, job))
    if len({p.job.model_dump_json() for p in found}) < len(found):
        twice = [(key, v) for key, values in keys.items() for n, v in enumerate(values) if v in values[:n]]
        seen = f": {twice[0][0]} has the value {twice[0][1]} twice" if twice else ""
        raise InputError(
            f"two runs of the sweep are the same{seen}; give each value once, and one that is a list in brackets, as "
            "in sampler.fanout=[10,5],[5,5]"
        )
    return found
