"""Other words for configuration keys: shorthands, which work everywhere, and words of other libraries, each with the
key to set here, from the tables of aliases.toml."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from ...storage.errors import InputError
from .plain_values import quoted

_SHORT = (
    "model.hidden model.layers model.dropout model.heads sampler.fanout train.batch_size train.lr "
    "train.weight_decay train.optimizer train.patience train.metrics train.minibatches_per_step train.monitor "
    "train.loss read.task read.labels_of read.pairs read.relation link.decoder link.negatives queue.reuse "
    "cluster.scheduler cluster.host"
)
SHORTHANDS: dict[str, tuple[str, ...]] = {key.rpartition(".")[2]: tuple(key.split(".")) for key in _SHORT.split()}
"""Shorthands for configuration keys: on the command line, in a job file and in Python."""

_FLAGS = "hidden layers dropout fanout batch_size lr reuse scheduler host epochs seed ranks dataset"
FLAGS = tuple(_FLAGS.split())
"""Shorthands that are flags of `run`."""

NAMED = {"model": "name", "sampler": "name", "partition": "method"}
"""Sections for which a plain string sets one key."""

NAMED_WITHIN: dict[tuple[str, ...], str] = {("train", "schedule"): "name", ("train", "loss"): "name"}
"""Tables within sections for which a plain string sets one key."""

NUMBERED = {"learned": "width"}
"""Sections for which a plain number sets one key."""

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
KEYS: dict[str, str] = _TABLES["keys"]
"""Words of other libraries for a key, between spaces."""
RENAMED: dict[str, str] = _TABLES["renamed"]
"""Keys renamed since an earlier version, with today's name."""
REMOVED: dict[str, str] = _TABLES["removed"]
"""Keys removed since an earlier version, with the reason."""
SENTENCES: dict[str, str] = _TABLES["sentences"]
"""Advice for words without a matching key, with these words between spaces."""

_KEY_OF = {word: key for key, words in KEYS.items() for word in words.split()}
_SENTENCE_OF = {word: sentence for sentence, words in SENTENCES.items() for word in words.split()}


def advice(word: str) -> str:
    """Advice for a word of another library, as the end of an error message; empty if the word is not known."""
    word = word.lower()
    if key := _KEY_OF.get(word):
        return f"; did you mean '{key}'?"
    return f"; {_SENTENCE_OF[word]}" if word in _SENTENCE_OF else ""


def instead_of_flag(flag: str, taken: Collection[str] = FLAGS) -> str | None:
    """Message for a flag that does not exist, naming the one of those `taken` to use, or a key; None if its word is not
    known."""
    word = flag.lstrip("-").replace("-", "_").lower()
    key = ".".join(SHORTHANDS.get(word, ())) or _KEY_OF.get(word)
    if key:
        short = next((short for short, path in SHORTHANDS.items() if ".".join(path) == key), key)
        return (
            f"no such option: {flag}; give {'--' + short.replace('_', '-') if short in taken else f'--set {key}=...'}"
        )
    if word not in _SENTENCE_OF:
        return None
    # Words of a sentence mean one thing, for which this command may have a flag.
    own = next((other for other in SENTENCES[_SENTENCE_OF[word]].split() if other in taken), None)
    return f"no such option: {flag}; {_SENTENCE_OF[word] if own is None else f'give --{own}'.replace('_', '-')}"


def full_key(path: Sequence[str], value: Any) -> list[str]:
    """The key that a path stands for: a shorthand's key, a section's main key if the section is set by a plain string
    or number, or the path itself."""
    if len(path) == 1 and path[0] in NAMED and isinstance(value, str):
        return [path[0], NAMED[path[0]]]
    if isinstance(value, str) and tuple(path) in NAMED_WITHIN:
        return [*path, NAMED_WITHIN[tuple(path)]]
    if len(path) == 1 and path[0] in NUMBERED and isinstance(value, Integral) and not isinstance(value, bool):
        return [path[0], NUMBERED[path[0]]]
    return list(SHORTHANDS.get(path[0], path)) if len(path) == 1 else list(path)


def merged(base: Mapping[str, Any], path: Sequence[str], value: Any, within: tuple[str, ...] = ()) -> dict[str, Any]:
    """`base` with the value at `path` replaced.

    Args:
        base: a table.
        path: keys from there.
        value: the new value.
        within: the keys that lead to `base`.

    Raises:
        InputError: a part of the path is a plain value, not a table.
    """
    table = dict(base)
    if len(path) == 1:
        table[path[0]] = value
        return table
    inner, here = table.get(path[0], {}), (*within, path[0])
    if isinstance(inner, str) and here in NAMED_WITHIN:
        inner = {NAMED_WITHIN[here]: inner}
    if not isinstance(inner, Mapping):
        raise InputError(
            f"configuration key '{'.'.join(here)}' is {quoted(inner)}; expected a table, for "
            f"'{'.'.join((*within, *path))}' to be in it"
        )
    table[path[0]] = merged(inner, path[1:], value, here)
    return table


def expanded(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with every shorthand replaced by its key.

    Raises:
        InputError: a shorthand and its key are both given, and differ.
    """
    short = {word: full_key([word], value) for word, value in table.items() if full_key([word], value) != [word]}
    # A section set by a plain string must become a table before anything is put into it.
    result = {word: value for word, value in table.items() if word not in short}
    for word, path in sorted(short.items(), key=lambda item: item[0] not in NAMED):
        section = result.get(path[0])
        held = section.get(path[1], table[word]) if isinstance(section, Mapping) else table[word]
        if held != table[word]:
            raise InputError(
                f"'{word}' is {quoted(table[word])} and '{'.'.join(path)}' is {quoted(held)}; they are one key: leave "
                "one out"
            )
        result = merged(result, path, table[word])
    return result


def with_options(table: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A table updated with keyword arguments, which may be keys or shorthands."""
    result, full = expanded(table), {word: full_key([word], value) for word, value in options.items()}
    # A section given as a whole must not overwrite a shorthand's value.
    for word in sorted(options, key=lambda word: full[word] != [word]):
        result = merged(result, full[word], options[word])
    return result
