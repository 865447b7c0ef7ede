"""The settings of a sweep: values of configuration keys, and all their combinations."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...storage.errors import InputError, whole_number
from ..config.aliases import expanded, full_key, merged
from ..config.load import Job, parse_override, resolve

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


def values_of(text: str) -> tuple[str, list[Any]]:
    """A key and its values from ``KEY=VALUE,VALUE``; commas within brackets or quotes belong to a value.

    Raises:
        InputError: the text has another form.
    """
    key, equals, values = text.partition("=")
    if not equals:
        parse_override(text)
    found = [parse_override(f"{key}={value}") for value in _split(values)]
    path, _ = found[0]
    return ".".join(full_key(path, found[0][1])), [value for _, value in found]


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
    keys = {key: list(v) if isinstance(v, list | tuple | range) else [v] for key, v in grid.items()}
    if empty := [key for key, values in keys.items() if not values]:
        raise InputError(f"'{empty[0]}' has no values; expected at least one")
    count = seeds
    for values in keys.values():
        count *= len(values)
    if count < 2:
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
            job = resolve(given)
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
