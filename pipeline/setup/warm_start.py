"""Initial parameters and learnt features from a finished run, such as a RETEXO run that SAR is to tune end to end."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...storage.dataset import Dataset
from ...storage.errors import InputError, StoreError
from ...storage.features import FeatureStore, MappedFeatures
from ...storage.optional import when_present
from ...storage.plural import counted
from ...storage.store.digested_file import check_file, saved_parameters
from ...storage.stored.data_card import TREATED
from ...storage.stored.learned_nodes import learned_of
from ...storage.typed.graph_types import GraphTypes
from ..config.load import Job, read_any_run_table, resolve
from ..config.named_code import without_code
from .result import known_digests, read_card, read_result
from .run_folder import JOB, LEARNED, MODEL, NODES, learned_rows

DECODER = "decoder."
LAYER = re.compile(r"(?:^|\.)(?:convs|layers)\.(\d+)\.")
"""In the name of a parameter of a layer: of Millrace's models and PyG's."""
NORM = re.compile(r"(?:^|\.)norms\.(\d+)\.")

SHAPELESS = ("name", "activation", "aggregator", "slope")
"""Options of a model that change its computation but not the shapes of its parameters."""


@dataclass(frozen=True)
class Start:
    """Parameters that training begins with, as far as an earlier run has them."""

    taken: Mapping[str, Tensor]
    """Parameters of the earlier run, by their names, and buffers."""
    new: Mapping[str, Tensor]
    """The others, as the model begins with them."""
    folder: Path
    """Folder of the earlier run."""

    def __str__(self) -> str:
        taken = f"{_counted(self.taken)} ({_parts(self.taken)}) begin as {self.folder} has them"
        return f"{taken}, {_counted(self.new)} ({_parts(self.new)}) are new" if self.new else taken


def start_of(model: nn.Module, job: Job, outline: Any) -> Start:
    """The parameters that a model, for an `Outline`, takes from the run in ``start_from``.

    Of a run that predicts the same it takes all, but for the head if that has other outputs or classes: the last layer
    of nodes, the decoder of pairs, also where it has weights for other relations. Of one that predicts something else
    it takes no head, and the first layers as far as their parameters have the same shapes.

    Raises:
        InputError: the run is not finished, has another model, or nothing fits.
    """
    assert job.start_from is not None
    folder = Path(job.start_from)
    path, own, unit = folder / MODEL, model.state_dict(), outline.unit
    try:
        given = saved_parameters(path, known_digests(folder).get(MODEL))
    except (OSError, StoreError) as e:
        reason = "there is no such file" if isinstance(e, FileNotFoundError) else str(e)
        raise InputError(f"start_from: {path} cannot be read ({reason}); expected a finished run's folder") from None
    before = resolve(without_code(read_any_run_table(folder / JOB)))
    _check_same_options(before, job)
    _check_same_learned(before, job)
    # The heads of a model trained layer by layer are not part of the trained network.
    given = {k: v for k, v in given.items() if k in own or not k.startswith("heads.")}
    unit_before = _unit_of(folder) or unit
    same, layers = unit == unit_before, 1 + max(map(_layer, own), default=-1)
    unlike = {part for part in {*map(_part, own), *map(_part, given)} if not _alike(part, given, own)}
    if same:
        result = read_result(folder) or {}
        of_relations = [_predicted(result.get("types")), _predicted(outline.types)]
        if unit == "pair" and max(map(len, of_relations)) > 1 and of_relations[0] != of_relations[1]:
            unlike |= {part for part in map(_part, own) if _of_decoder(part)}
        names = result.get("class_names") or ()
        if names and outline.class_names and [*names] != [*outline.class_names]:
            last = {_part(k) for k, v in own.items() if _of_decoder(_part(k)) and len(v) in (1, len(names))}
            unlike |= last if unit == "edge" else {f"layer {layers - 1}"}
        heads = {f"layer {layers - 1}"} if unit == "node" else {p for p in unlike if _of_decoder(p)}
        if unlike - heads:
            raise _other_model(path, given, own, unlike - heads)
        left_out = unlike
    else:
        left_out = unlike | {part for part in map(_part, own) if _of_decoder(part)}
        if unit == "node" and layers:
            left_out.add(f"layer {layers - 1}")
        if unit_before == "node":
            left_out.add(f"layer {max(map(_layer, given), default=-1)}")
        # A layer reads what those before it were trained to give.
        first = min((i for i in range(layers) if f"layer {i}" in left_out), default=layers)
        left_out |= {part for part in map(_part, own) if _number(part) >= first}
    start = Start(
        {k: given[k] for k in own if _part(k) not in left_out},
        {k: v for k, v in own.items() if _part(k) in left_out},
        folder,
    )
    if not start.taken or (layers and not any(_layer(k) >= 0 for k in start.taken)):
        raise InputError(
            f"start_from: nothing of {path} (of {unit_before}s) fits the model here (of {unit}s), whose head is new: "
            "the last layer of nodes, the decoder of pairs and edges; give both the same model options and features, "
            "and two layers or more"
        )
    return start


def notes_on_columns(folder: Path, card: Mapping[str, Any]) -> list[str]:
    """Notes on columns of features that are others than those of the run in a folder, or scaled by other numbers.

    Args:
        folder: of the run in ``start_from``.
        card: of the dataset that is trained on.

    Raises:
        InputError: they are the same columns in another order.
    """
    notes = []
    for of, before in (read_card(folder) or {}).get(TREATED, {}).items():
        now = card.get(TREATED, {}).get(of, before)
        named, here = ([tuple(c.get(k, "") for k in ("column", "value")) for c in own] for own in (before, now))
        ours, theirs = (", ".join(dict.fromkeys(column for column, _ in own)) for own in (here, named))
        if here != named and sorted(here) == sorted(named):
            raise InputError(
                f"start_from: the features of {of} are {ours}, and those of {folder} {theirs}; give them in that order"
            )
        if here != named:
            notes.append(f"start_from: the features of {of} are {ours}, and those of {folder} {theirs}, in that order.")
        elif now != before:
            notes.append(
                f"start_from: the features of {of} are scaled and filled by other numbers than those of {folder}."
            )
    return notes


def _unit_of(folder: Path) -> str | None:
    """What the run in a folder predicts: see `Outline.unit`; None if its record does not say."""
    record = read_result(folder) or {}
    if record.get("labels_of") == "edges":
        return "edge"
    return None if "task" not in record else "pair" if record["task"] == "link" else "node"


def _predicted(types: Mapping[str, Any] | None) -> list[list[str]]:
    """Names of the relations whose pairs are predicted, in their order."""
    found = GraphTypes.of_record(types)
    return [list(found.relations[r]) for r in found.predicted]


def _layer(name: str) -> int:
    """Number of the layer that a parameter is of; -1 if it is of none that is known."""
    found = LAYER.search(name)
    return -1 if found is None or name.startswith(DECODER) else int(found[1])


def _part(name: str) -> str:
    """The part of a model that is taken as a whole or not at all, which a parameter is of: a layer, a norm between
    layers, or another module."""
    if (layer := _layer(name)) >= 0:
        return f"layer {layer}"
    norm = NORM.search(name)
    return f"norm {norm[1]}" if norm and not name.startswith(DECODER) else name.rpartition(".")[0] or name


def _of_decoder(part: str) -> bool:
    """True for a decoder and its modules."""
    return f"{part}.".startswith(DECODER)


def _number(part: str) -> int:
    """Number of a layer or a norm; -1 of other parts."""
    kind, _, number = part.partition(" ")
    return int(number) if kind in ("layer", "norm") and number else -1


def _alike(part: str, given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    """True if both models have the same parameters in a part, in name and shape."""
    shapes = [{k: v.shape for k, v in state.items() if _part(k) == part} for state in (given, own)]
    return shapes[0] == shapes[1]


def _other_model(path: Path, given: Mapping[str, Tensor], own: Mapping[str, Tensor], parts: set[str]) -> InputError:
    names = sorted((k for k in {*own, *given} if _part(k) in parts), key=lambda k: (k not in own, k))
    shapes = {k: [list(state[k].shape) if k in state else "nothing" for state in (given, own)] for k in names}
    k, (seen, wanted) = next((k, pair) for k, pair in shapes.items() if pair[0] != pair[1])
    hint = ' (after retexo: model.norm = "layer")' if k.startswith("norms.") else ""
    message = f"it has {seen} for '{k}', and the model here {wanted}"
    return InputError(f"start_from: {path} is of another model: {message}; give this run the same model options{hint}")


def _counted(state: Mapping[str, Tensor]) -> str:
    return counted(sum(v.numel() for v in state.values()), "parameter")


def _parts(state: Mapping[str, Tensor]) -> str:
    """The parts of some parameters, in words."""
    return ", ".join(dict.fromkeys("decoder" if k.startswith(DECODER) else _part(k) for k in state))


def initial_learned(job: Job, dataset: Dataset) -> FeatureStore | None:
    """[V, D], the learnt features that the run in ``start_from`` has of a dataset's nodes, see `learned_of`; None if
    the job has no such key, or learns none.

    Raises:
        InputError: that run has none, or not of all nodes.
        StoreError: they are damaged.
    """
    rows = learned_in_order(job)
    try:
        return when_present(lambda rows: learned_of(rows, Path(str(job.start_from)) / NODES, dataset), rows)
    except InputError as e:
        raise InputError(f"start_from: {e}") from None


def learned_in_order(job: Job) -> MappedFeatures | None:
    """`initial_learned`, where nodes are those of the earlier run in their order."""
    if job.start_from is None or not job.learned.width:
        return None
    if not (path := Path(job.start_from) / LEARNED).is_file():
        raise InputError(f"start_from: there is no {path}; expected the folder of a finished run with learnt features")
    return intact_learned(path.parent, job.learned.width)


def intact_learned(folder: Path, width: int) -> MappedFeatures:
    """[V, D], the learnt features in a run's folder, whose digests are compared. Raises StoreError if one differs, or
    a file is missing."""
    known = known_digests(folder)
    for name in (LEARNED, NODES):
        if (name == LEARNED or name in known) and not (folder / name).exists():
            again = f"copy it too, or write it again by `millrace run --resume --out {folder}`"
            raise StoreError(f"{folder} has no {name} of the learnt features of its nodes; {again}")
        check_file(folder / name, known.get(name))
    return learned_rows(folder, width)


def _check_same_options(before: Job, now: Job) -> None:
    for key in SHAPELESS:
        if key in before.model and key in now.model and before.model[key] != now.model[key]:
            raise InputError(
                f"start_from: that run has model.{key} = {before.model[key]!r}, this one {now.model[key]!r}; give both "
                "the same"
            )


def _check_same_learned(before: Job, now: Job) -> None:
    """Refuse a run that reads other learnt columns, before shapes of parameters differ by them."""
    if _learns(before) != _learns(now):
        raise InputError(
            f"start_from: that run {_learns(before)}, and this one {_learns(now)}; give both the same learned.width "
            "and learned.beside"
        )


def _learns(job: Job) -> str:
    """Describe the learnt features of a run, in words."""
    if not job.learned.width:
        return "learns no features"
    where = "beside the dataset's" if job.learned.beside else "in place of the dataset's"
    return f"learns {job.learned.width} features of a node {where}"
