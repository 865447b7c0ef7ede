"""Train, validation and test nodes, or edges: the stored split, or one drawn from the seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....stages.random import Purpose, permutation, stream
from ....storage.array_kinds import Mask
from ....storage.dataset import SPLITS, IdArray, Split, is_labelled
from ....storage.errors import InputError, nearest
from ....storage.plural import are, counted, were
from ....storage.times.moments import Moment, moment_of_text, number_of, shown
from .kept import is_new
from .options import ReadOptions
from .raw import AnyArray

KINDS = ("public", "random", "fraction", "time", "until")
FORMS = (
    "expected public, random:20,30 (per class for train and val), fraction:0.6,0.2, time:0.7,0.15 (shares in the order "
    "of time) or until:2017,2018 (the last times of train and val, numbers or dates: until:2017-12-31,2018-06-30)"
)
SHOWN_CLASSES = 8
"""Most classes named in a note."""
NO_SPLIT = "The input stores no split:"
"""First words of the note on a split that nobody asked for."""
ENOUGH_PER_CLASS = 60
"""Labelled nodes that every class needs for the default to be random:20,30; else it is fraction:0.6,0.2."""


@dataclass(frozen=True)
class SplitSpec:
    """A parsed ``--split``."""

    kind: str
    """One of `KINDS`."""
    train: float = 0
    """random: nodes per class; fraction and time: share of the labelled nodes."""
    val: float = 0
    until: tuple[int | float | Moment, int | float | Moment] = (0, 0)
    """until: the last times of train and val."""


def parse_split(text: str) -> SplitSpec:
    """Parse ``public``, ``random:T,V``, ``fraction:T,V``, ``time:T,V`` or ``until:T,V``. Raises InputError: another
    form, or numbers out of range."""
    if not isinstance(text, str):
        raise InputError(f"split is {text!r}; {FORMS}")
    kind, _, rest = text.strip().partition(":")
    if kind not in KINDS:
        raise InputError(f"split is '{text}'; {FORMS}{nearest(kind, KINDS)}")
    if kind == "public":
        if rest:
            raise InputError(f"split is '{text}'; public takes no numbers")
        return SplitSpec("public")
    try:
        parse: Any = {"random": int, "until": moment_of_text}.get(kind, float)
        train, val = map(parse, rest.split(","))
    except ValueError:
        wanted = {"random": "whole numbers", "until": "numbers, or two dates,"}.get(kind, "numbers")
        raise InputError(f"split is '{text}'; expected two {wanted} after '{kind}:'; {FORMS}") from None
    if kind == "until":
        return _until(text, train, val)
    if kind == "random" and (train < 1 or val < 0):
        raise InputError(f"split is '{text}'; expected at least 1 train node and 0 val nodes per class")
    if kind in ("fraction", "time") and not (0 < train <= 1 and val >= 0 and train + val <= 1 + 1e-9):
        raise InputError(f"split is '{text}'; expected shares above 0 for train and from 0 for val, together at most 1")
    return SplitSpec(kind, train, val)


def _until(text: str, train: int | float | Moment, val: int | float | Moment) -> SplitSpec:
    """The split by last times of train and val."""
    if isinstance(train, Moment) and isinstance(val, Moment):
        # In the finest unit that dates of Python have, a date's last moment.
        ordered = train.number("us", "split", last=True) <= val.number("us", "split", last=True)
    elif isinstance(train, Moment) or isinstance(val, Moment):
        raise InputError(f"split is '{text}', a date and a number; expected two dates, or two numbers")
    else:
        ordered = train <= val
    if not ordered:
        raise InputError(
            f"split is '{text}', in which the future trains the past; expected the last time of train, then that of val"
        )
    return SplitSpec("until", until=(train, val))


def make_split(
    labels: AnyArray,
    stored: Mapping[str, AnyArray] | Split | None,
    text: str | None,
    seed: int,
    options: ReadOptions,
    notes: list[str],
    times: AnyArray | None = None,
    unit: str = "node",
    time_unit: str | None = None,
) -> Split:
    """The split described by `text`: a pure function of the labels, int64 [V] with -1 for unlabelled or float32 [V, C]
    with NaN, the text and the seed.

    The source may have `stored` one: a checked `Split`, or ids or masks by 'train', 'val', 'test'. Without a text (see
    `parse_split`) it is taken; else random:20,30 if every class has 60 labelled nodes; else, and for edges,
    fraction:0.6,0.2. Of data that a run did not train on, the text counts only for hidden edges without a stored split;
    nodes and other edges are then all test data. `times` [V] are for splits by time, `unit` is the word for one of what
    is labelled. Raises InputError: the text is malformed, the stored split is absent or unusable, or a class has too
    few nodes."""
    text = None if stored and is_new(options) else text
    spec = None if text is None else parse_split(text)
    if is_new(options) and not stored and options.labelled_edges != "hidden":
        test = np.flatnonzero(is_labelled(labels))
        notes.append(f"{NO_SPLIT} all {counted(len(test), f'labelled {unit}')} are test {unit}s.")
        return Split(test[:0], test[:0], test)
    if is_new(options) and spec is not None:
        notes.append(f"{NO_SPLIT} its {unit}s are divided by that of the run, {text}.")
    if spec is None:
        if stored:
            spec = SplitSpec("public")
        elif unit == "node" and labels.ndim == 1 and np.bincount(labels[labels >= 0]).min() >= ENOUGH_PER_CLASS:
            spec = SplitSpec("random", 20, 30)
            notes.append(f"{NO_SPLIT} 20 {unit}s per class train, 30 validate, the rest test (split=random:20,30).")
        else:
            spec = SplitSpec("fraction", 0.6, 0.2)
            notes.append(
                f"{NO_SPLIT} 60 % of the labelled {unit}s train, 20 % validate, the rest test (split=fraction:0.6,0.2)."
            )
    if spec.kind == "public":
        if not stored:
            raise InputError(
                "split is 'public' but the input stores no split; use split=random:20,30 or fraction:0.6,0.2"
            )
        parts = stored if isinstance(stored, Split) else clean_split(stored, labels, options, notes, unit)
    elif spec.kind in ("time", "until"):
        if times is None:
            give = "node_time" if unit == "node" else "their times"
            raise InputError(f"split is '{text}', but {unit}s have no times; give {give}, or split=fraction:0.6,0.2")
        labelled = np.flatnonzero(is_labelled(labels))
        parts = Split(*(labelled[part] for part in by_time(times[labelled], spec, str(text), time_unit)))
    elif spec.kind == "random":
        parts = _random(labels, int(spec.train), int(spec.val), seed, unit)
    else:
        parts = _fraction(labels, spec, seed)
    if spec.kind != "public":
        _require_train(parts)
    _note_unseen(parts, labels, notes, unit)
    return parts


def _note_unseen(parts: Split, labels: AnyArray, notes: list[str], unit: str) -> None:
    """Note classes that train and neither val nor test has, which are never evaluated."""
    held_out = np.concatenate([parts.val, parts.test])
    if labels.ndim == 2 or not len(held_out) or not len(parts.train):
        return
    seen = np.bincount(labels[held_out], minlength=int(labels.max()) + 1)
    trained = np.bincount(labels[parts.train], minlength=len(seen))
    if unseen := np.flatnonzero((trained > 0) & (seen == 0)).tolist():
        shown = ", ".join(map(str, unseen[:SHOWN_CLASSES])) + (", ..." if len(unseen) > SHOWN_CLASSES else "")
        notes.append(
            f"No val or test {unit} has class {shown}, which accuracy does not count: classes by number, "
            f"{len(unseen)} of {len(seen)}."
        )


def by_time(times: AnyArray, spec: SplitSpec, text: str, time_unit: str | None = None) -> list[IdArray]:
    """Three ascending sets of positions among `times` [n], no time in two of them: train before val before test. `text`
    is what `spec`, of kind time or until, was parsed of; `time_unit` is that of `Graph`. Raises InputError: a set is
    empty that was asked for, or dates are given where times are no dates."""
    train, val = spec.train, spec.val
    if spec.kind == "until":
        train, val = (number_of(m, time_unit, f"a bound of split={text}", last=True) for m in spec.until)
    asked = [True, spec.kind == "until" or val > 0, spec.kind == "until" or train + val < 1 - 1e-9]
    if spec.kind == "time" and len(times):
        ordered = np.sort(times)
        # Equal times stay together, in the earlier set.
        at = [min(len(times), max(1, round(share * len(times)))) - 1 for share in (train, train + val)]
        train, val = ordered[at]
    parts = [np.flatnonzero(p) for p in (times <= train, (times > train) & (times <= val), times > max(train, val))]
    for name, part, wanted in zip(SPLITS, parts, asked):
        if wanted and not len(part):
            seen = f"{len(times)} times" + (
                f" from {shown(times.min(), time_unit)} to {shown(times.max(), time_unit)}" if len(times) else ""
            )
            raise InputError(f"split is '{text}', but {seen} leave none for {name}; choose other bounds or shares")
    return parts


def _random(labels: AnyArray, train: int, val: int, seed: int, unit: str) -> Split:
    if labels.ndim == 2:
        raise InputError(
            f"split=random counts {unit}s per class, but the labels are a matrix (multi-label, or targets); use "
            "split=fraction:0.6,0.2"
        )
    key = stream(seed, Purpose.SPLIT)
    parts: dict[str, list[IdArray]] = {name: [np.empty(0, np.int64)] for name in SPLITS}
    for c in np.unique(labels[labels >= 0]).tolist():
        ids = permutation(key, np.flatnonzero(labels == c))
        if len(ids) < train + val:
            raise InputError(
                f"class {c} has {len(ids)} labelled {unit}s; split=random:{train},{val} needs {train + val}: ask for "
                "fewer, or use split=fraction:0.6,0.2"
            )
        for name, part in zip(SPLITS, np.split(ids, [train, train + val])):
            parts[name].append(part)
    return Split(*(np.sort(np.concatenate(parts[name])) for name in SPLITS))


def _fraction(labels: AnyArray, spec: SplitSpec, seed: int) -> Split:
    labelled = np.flatnonzero(is_labelled(labels))
    ids = permutation(stream(seed, Purpose.SPLIT), labelled)
    train = max(1, round(spec.train * len(ids)))
    val = min(len(ids) - train, round(spec.val * len(ids)))
    return Split(*(np.sort(part) for part in np.split(ids, [train, train + val])))


def clean_split(
    stored: Mapping[str, AnyArray], labels: AnyArray, options: ReadOptions, notes: list[str], unit: str = "node"
) -> Split:
    """The stored split with the repairs that `options` allow. `unit` as in `make_split`. Raises InputError: names the
    defect and the option that resolves it."""
    num_nodes = len(labels)
    none = np.empty(0, np.int64)
    ids = {name: _ids(name, np.asarray(stored.get(name, none)), num_nodes, notes, unit) for name in SPLITS}
    taken = np.zeros(num_nodes, bool)
    for name in SPLITS:
        again = ids[name][taken[ids[name]]]
        if len(again):
            if options.overlapping_splits == "error":
                raise InputError(
                    f"{counted(len(again), unit)} of the {name} split (first: {again[0]}) {are(len(again))} in an "
                    "earlier split too; make the splits disjoint, or set overlapping_splits=first"
                )
            notes.append(
                f"{counted(len(again), unit)} of the {name} split {were(len(again))} in an earlier split too and "
                "stayed there."
            )
            ids[name] = ids[name][~taken[ids[name]]]
        taken[ids[name]] = True
        ids[name] = _labelled(name, ids[name], labels, options, notes, unit)
    split = Split(*(ids[name] for name in SPLITS))
    if not is_new(options):
        _require_train(split)
    notes += [f"The stored split has no {name} {unit}s." for name in SPLITS[1:] if not len(ids[name])]
    return split


def as_flags(mask: AnyArray, what: str, otherwise: str) -> Mask:
    """A mask that is stored as 0 and 1. Raises InputError for other values, which ends with what to do `otherwise`."""
    if mask.dtype.kind not in "biuf" or not np.isin(mask, (0, 1)).all():
        raise InputError(f"{what} holds values other than 0 and 1; {otherwise}")
    return mask.astype(bool)


def _ids(name: str, values: AnyArray, num_nodes: int, notes: list[str], unit: str) -> IdArray:
    if values.dtype == np.bool_:
        if values.shape != (num_nodes,):
            raise InputError(
                f"the {name} mask has shape {list(values.shape)}; expected [{num_nodes}], one flag for each {unit} (of "
                "several splits, pass one)"
            )
        return np.flatnonzero(values)
    if values.ndim != 1:
        raise InputError(f"the {name} split has shape {list(values.shape)}; expected {unit} ids [n] or a boolean mask")
    if not len(values):
        return np.empty(0, np.int64)
    if values.dtype.kind not in "iu":
        raise InputError(f"the {name} split is {values.dtype}; expected integer {unit} ids or a boolean mask")
    if values.min() < 0 or values.max() >= num_nodes:
        raise InputError(
            f"the {name} split holds ids in [{values.min()}, {values.max()}], out of range: expected [0, {num_nodes}); "
            "correct it"
        )
    distinct = np.unique(values).astype(np.int64)
    if len(distinct) < len(values):
        again = len(values) - len(distinct)
        notes.append(f"{counted(again, 'repeated id')} of the {name} split {were(again)} dropped.")
    return distinct


def _labelled(name: str, ids: IdArray, labels: AnyArray, options: ReadOptions, notes: list[str], unit: str) -> IdArray:
    labelled = is_labelled(labels[ids])
    bare = ids[~labelled]
    if not len(bare):
        return ids
    if options.unlabelled_in_split == "error" and not options.ignored:
        raise InputError(
            f"{counted(len(bare), unit)} of the {name} split (first: {bare[0]}) {are(len(bare))} unlabelled; set "
            "unlabelled_in_split=drop, or give labels"
        )
    notes.append(f"{counted(len(bare), f'unlabelled {unit}')} of the {name} split {were(len(bare))} dropped.")
    return ids[labelled]


def _require_train(split: Split) -> None:
    if not len(split.train):
        raise InputError(
            "the train split is empty; there is nothing to learn from: use split=random:20,30 or split=fraction:0.6,0.2"
        )


# -- one of several splits that a file stores, as benchmarks publish them

Which = str | tuple[str, ...] | None
"""``read.split``: the number of a split from 0, or none; None: the first."""


def one_split(
    stored: Mapping[str, AnyArray], num_nodes: int, which: Which, what: object
) -> tuple[dict[str, AnyArray], tuple[str, ...]]:
    """The sets of one split, and notes. Stored by set are ids, masks [V], or masks [K, V] or [V, K] of K splits, of
    which `which` chooses one; `what` is the input in messages. Raises InputError: there is no such split."""
    if which == "none":
        return {}, ()
    masks = {
        part: m if m.shape[1:] == (num_nodes,) else m.T for part, m in stored.items() if m.ndim == 2 and m.dtype == bool
    }
    several = max(map(len, masks.values()), default=0)
    if which is not None and not (isinstance(which, str) and which.isdecimal() and int(which) < several):
        expected = f"0 to {several - 1}" if several else "none, as it has no several splits"
        raise InputError(f"{what}: read.split is '{which}'; expected {expected}")
    at = int(str(which or 0))
    if short := next((part for part, m in masks.items() if at >= len(m)), None):
        raise InputError(f"{what}: the {short} masks are {len(masks[short])}, others {several}; save as many of each")
    note = f"Of {several} splits that are stored, number {at} is read (read.split=1 would read the second)."
    return {**stored, **{part: m[at] for part, m in masks.items()}}, ((note,) if several > 1 else ())
