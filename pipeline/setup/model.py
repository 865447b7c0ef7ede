"""Construction of a run's model, and of its loss."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...stages.links.decoders import Decoder, decoder_of, make_decoder
from ...stages.links.edge_head import EdgeHead
from ...stages.losses import LOSSES, NamedLoss
from ...stages.messages import Loss, PairsToScore
from ...stages.models import MODELS
from ...stages.models.base import ModelConfig, as_model, reads_edges
from ...stages.models.pyg.hetero import HeteroPyGModel
from ...stages.models.pyg.model import PyGModel
from ...stages.models.pyg.weights import needs_own_weights
from ...stages.models.relational import TypedInput
from ...stages.models.small_graph import Tried, check_forward, rows_of_small_graph
from ...stages.policies import SchedulePolicy
from ...stages.random import Purpose, stream, torch_seed
from ...storage.dataset import WITHOUT_ACCURACY, Dataset, Task, outputs_of
from ...storage.errors import InputError
from ...storage.plural import counted
from ...storage.typed.features import TypedFeatures
from ...storage.typed.graph_types import GraphTypes
from ..config.load import Job, build
from ..config.schema import LossOptions
from ..config.systems import System
from ..custom.model_argument import check_widths, needed_columns
from ..custom.own_code import OwnCode
from .warm_start import start_of

PAIRS = torch.tensor([[[0, 1]], [[1, 0]], [[2, 3]]])
"""Edges that a decoder is tried on."""
TORCH_DTYPES = {"float32": torch.float32, "float64": torch.float64}
LOSSES_WITH = {
    "class_weights": ("cross_entropy", "bce", "focal"),
    "pos_weight": ("bce", "focal"),
    "label_smoothing": ("cross_entropy",),
    "gamma": ("focal",),
    "delta": ("huber",),
    "margin": ("margin",),
    "temperature": ("infonce",),
}
"""Losses that know each option."""


@dataclass(frozen=True)
class Outline:
    """Properties of a dataset that are known without its data."""

    name: str
    num_features: int
    """Columns that the model reads."""
    num_classes: int
    """See `Dataset.num_classes`; of links, the columns of a node's row."""
    task: Task
    splits: dict[str, int]
    """Number of nodes, or of pairs, in each split."""
    train_counts: list[list[int]] | None = None
    """Train nodes, or pairs, with each label, and those whose label is known, for each of C classes; None: not
    counted."""
    has_unknown: bool = False
    """True if some value of a multi-label matrix is not known."""
    types: dict[str, Any] | None = None
    """Types of nodes and edges, and the features' width of each node type: a record of `TypedInput`. None: there is one
    of each."""
    edge_width: int = 0
    """D, columns of the edges' features; 0: they have none."""
    row_width: int = 0
    """Columns of a node's row, of which the outputs of labelled edges are made; 0: nodes are labelled, or the task is
    link."""
    pair_width: int = 0
    """K, features of labelled edges that their outputs are made of; 0: they have none."""
    class_names: tuple[str, ...] = ()
    """Names of the classes; empty: they have none."""

    @property
    def graph_types(self) -> GraphTypes:
        """`types` as the graph has them."""
        return GraphTypes.of_record(self.types)

    @property
    def of_pairs(self) -> bool:
        return self.task == "link" or self.row_width > 0

    @property
    def predicted_relations(self) -> int | None:
        """Number of relations whose pairs are predicted, where there are several."""
        types = self.graph_types
        return len(types.predicted) if self.task == "link" and types.predicts_several else None

    @property
    def unit(self) -> str:
        """Word for one of the things that are labelled."""
        return "edge" if self.row_width else "pair" if self.task == "link" else "node"

    @property
    def num_outputs(self) -> int:
        """Columns that the model gives for a node."""
        return self.row_width or self.num_scores

    @property
    def num_scores(self) -> int:
        """Scores of a node or a pair."""
        return outputs_of(self.task, self.num_classes)

    @classmethod
    def from_dataset(cls, dataset: Dataset, job: Job | None = None, *, balanced: bool = False) -> "Outline":
        """The outline of a dataset, with the learnt features of a job if one is given, and `train_counts` if the loss
        is balanced by them."""
        width = dataset.num_features if job is None else job.learned.num_read(dataset.num_features)
        outputs = job.link.width if job is not None and dataset.task == "link" else dataset.num_classes
        known = dataset.name, width, outputs, dataset.task, dataset.split_sizes
        return cls(
            *known,
            train_counts=train_counts(dataset) if balanced else None,
            has_unknown=dataset.has_unknown,
            types=types_of(dataset),
            edge_width=dataset.num_edge_features,
            row_width=job.link.width if job is not None and dataset.has_edge_labels else 0,
            pair_width=dataset.num_pair_features,
            class_names=dataset.class_names or (),
        )


def types_of(dataset: Dataset) -> dict[str, Any] | None:
    types = dataset.graph.types
    if types.is_single:
        return None
    features = dataset.features
    widths = (
        features.widths if isinstance(features, TypedFeatures) else (features.num_features,) * len(types.node_types)
    )
    return TypedInput(types, widths).record()


def record_of(job: Job, model: object) -> Any:
    """The model that a caller gave, or else the record of the job's."""
    return build("model", MODELS, job.model) if model is None else model


def with_edges(job: Job, system: System, model: Any, dataset: Dataset) -> tuple[Job, System, Any]:
    """Job, system and model as they read the features of the dataset's edges, if the model reads any: the sampler keeps
    the edges' positions, and a record of a model has their number of columns. `model` as in `prepare`.

    Raises:
        InputError: edges have no features, or the sampler does not know their positions.
    """
    record = record_of(job, model)
    given = getattr(record, "edge_width", 0) if isinstance(record, ModelConfig) else 0
    if given == -1:
        job, model = _with_edge_width(job, model, width := dataset.num_edge_features)
        record = replace(record, edge_width=width)
    weights = isinstance(record, PyGModel | HeteroPyGModel) and dataset.graph.is_weighted and needs_own_weights(record)
    if not reads_edges(record) and not weights:
        return job, system, model
    name = record.reader if isinstance(record, PyGModel) else getattr(record, "name", type(record).__name__)
    width = dataset.num_edge_features
    if not width and reads_edges(record):
        raise InputError(
            f"the model {name} reads features of edges, but {dataset.name} has none; give edge_attr (PyG, .npz) or "
            "columns of edges, or use another model"
        )
    if isinstance(record, ModelConfig):
        if given not in (-1, 0, width):
            raise InputError(
                f"model.edge_width is {given}, but edges of {dataset.name} have {counted(width, 'feature')}; leave it "
                "out"
            )
        job, model = _with_edge_width(job, model, width)
    system = keeping_positions(system, f"the model {name} reads {'weights' if weights else 'features'} of edges")
    if system.sample.sampler is not None:
        job = job.model_copy(update={"sampler": {**job.sampler, "edge_ids": True}})
    return job, system, model


def keeping_positions(system: System, why: str) -> System:
    """The system with a sampler, if it has one, that keeps the positions of the edges it draws. Raises InputError,
    which begins with `why`, if it cannot."""
    sampler: Any = system.sample.sampler
    if sampler is None:
        return system
    if "edge_ids" not in {f.name for f in fields(sampler)}:
        lacks = f"the sampler {sampler.name} does not keep which edges it drew"
        raise InputError(f"{why}, but {lacks}; use another sampler")
    return system.drawn_by(replace(sampler, edge_ids=True))


def _with_edge_width(job: Job, model: Any, width: int) -> tuple[Job, Any]:
    job = job.model_copy(update={"model": {**job.model, "edge_width": width}})
    return job, None if model is None else replace(model, edge_width=width)


@dataclass(frozen=True, eq=False)
class ModelPart:
    """The model of a job: a record or a user's module, and what it is built for."""

    job: Job
    outline: Outline
    schedule: SchedulePolicy
    record: Any
    """A `ModelConfig`, or the user's module."""
    initial: Mapping[str, Tensor] | None = None
    """State in which a user's module begins; None: the model is built of a record."""
    reads_loops: bool = False
    """True if the model, once built, reads the graph's self loops."""

    @property
    def name(self) -> str:
        """Its name in reports."""
        return self.record.name if self.initial is None else type(self.record).__name__

    @property
    def reads_edges(self) -> bool:
        """True if the model reads the features of edges."""
        return reads_edges(self.record)

    @property
    def description(self) -> dict[str, Any]:
        """What it is, as plain values, for fingerprints."""
        if self.initial is not None:
            return {"module": self.name, **{k: list(v.shape) for k, v in self.initial.items()}}
        job, outline = self.job, self.outline
        decoder = {"decoder": job.link.decoder, "width": outline.num_outputs} if outline.task == "link" else {}
        decoder |= {} if outline.predicted_relations is None else {"relations": outline.predicted_relations}
        decoder = {"head": [outline.row_width, outline.pair_width]} if outline.row_width else decoder
        # Left out where no features of edges are read, so that older checkpoints fit.
        options = {k: v for k, v in vars(self.record).items() if k != "edge_width" or v}
        return {"name": self.record.name, **options, **decoder}

    def build(self) -> nn.Module:
        """The model with its initial parameters: a pure function of the seed, and of the run in ``start_from``."""
        job, outline, record = self.job, self.outline, self.record
        if self.initial is not None:
            built: Any = record
            built.load_state_dict(self.initial)
        else:
            torch.manual_seed(torch_seed(stream(job.seed_of("initial"), Purpose.INIT)))
            given = typed_input(job, outline)
            if given is not None and record.reads_relations:
                built = record.build_typed(given, outline.num_outputs)
            else:
                built = self.schedule.build(record, outline.num_features, outline.num_outputs)
            if outline.of_pairs:
                built.decoder = head_of(job, outline)
        built = built.to(TORCH_DTYPES[job.dtype])
        if job.start_from is not None:
            start = start_of(built, job, outline)
            built.load_state_dict({**start.new, **start.taken})
        return built


def model_of(job: Job, outline: Outline, system: System, model: object) -> ModelPart:
    """The model of a job. `model` as in `prepare`.

    Raises:
        InputError: it is a module that does not fit the data or the system.
    """
    record = record_of(job, model)
    if not isinstance(record, nn.Module):
        return ModelPart(job, outline, system.schedule, record)
    if not system.schedule.takes_modules:
        raise InputError(
            f"the model is a module of your own, {type(record).__name__}, and system '{system.name}' must give "
            "each layer a head; expected one of Millrace's models, such as GraphSAGE(...)"
        )
    module, seed = as_model(record), torch_seed(stream(job.seed_of("initial"), Purpose.INIT))
    check_widths(module, outline, seed, typed_input(job, outline))
    if outline.of_pairs and not hasattr(module, "decoder"):
        torch.manual_seed(seed)
        module.decoder = head_of(job, outline)
    if not outline.graph_types.is_single:
        vars(module)["reads_blocks"] = True  # relations are those of one block
    initial = {k: v.detach().clone() for k, v in module.state_dict().items()}
    return ModelPart(job, outline, system.schedule, record, initial)


def typed_input(job: Job, outline: Outline) -> TypedInput | None:
    """Input of a model of relations, with the columns of learnt features; None: the graph has one type."""
    if outline.types is None:
        return None
    given = TypedInput.of_record(outline.types)
    return given._replace(widths=tuple(map(job.learned.num_read, given.widths)))


def tried_on(job: Job, outline: Outline) -> Tried:
    """Widths and types of the small graph that a module is tried on: see `rows_of_small_graph`."""
    return outline.num_features, outline.edge_width, typed_input(job, outline)


def check_outputs(model: nn.Module, job: Job, outline: Outline, *, own_loss: bool) -> None:
    """Try a user's module, and its decoder of edges, on a small graph. One that fails there is not refused: training
    shows where.

    Raises:
        InputError: there are other columns than the task needs, unless the loss is the user's own, or `forward` gives
            other rows than the layers in turn.
    """
    given = tried_on(job, outline)
    check_forward(model, given)
    if own_loss:
        return
    if outline.task == "link":
        _check_relations_read(model, outline)
        return
    found = rows_of_small_graph(model, *given)
    if found is None:
        return
    (tried, rows), whose = found, f"the model {type(model).__name__} gives nodes"
    if outline.row_width:
        features = torch.zeros(len(PAIRS), outline.pair_width).to(rows) if outline.pair_width else None
        try:
            with torch.no_grad():
                rows = PairsToScore(PAIRS, decoder_of(tried), labelled=True, features=features).scores(rows)
        except InputError:
            raise
        except Exception:
            return
        whose = f"the decoder of {type(model).__name__} gives edges"
    if needed := needed_columns(rows.shape[1], outline.task, outline.num_scores):
        raise InputError(
            f"{whose} {counted(rows.shape[1], 'column')}, but {needed}; make its last layer {outline.num_scores} wide"
        )


def _check_relations_read(model: nn.Module, outline: Outline) -> None:
    """Raise InputError if links are of several relations and the model's decoder is not told which."""
    decoder = getattr(model, "decoder", None)
    if outline.predicted_relations is None or decoder is None or isinstance(decoder, Decoder):
        return
    called = decoder.forward if isinstance(decoder, nn.Module) else decoder
    try:
        # pyrefly: ignore[bad-argument-type]
        inspect.signature(called).bind(None, None, None)
    except TypeError:
        raise InputError(
            f"links are of {outline.predicted_relations} relations, but the decoder of {type(model).__name__} takes "
            "source and destination; expected decoder(source, destination, relation), with the place of each pair's "
            "relation among them"
        ) from None


def head_of(job: Job, outline: Outline) -> nn.Module:
    """The part of a model that makes scores of pairs, or outputs of labelled edges, from rows of nodes."""
    if outline.task == "link":
        return make_decoder(job.link.decoder, outline.num_outputs, outline.predicted_relations)
    return EdgeHead(outline.row_width, outline.pair_width, outline.num_scores)


def loss_of(options: LossOptions, outline: Outline, code: OwnCode) -> Loss | None:
    """The user's own loss, or the one of ``train.loss``; None if that is the default of a multi-class or multi-label
    task, which `stages.forward_backward` computes without a function of its own.

    Raises:
        InputError: the loss, or an option, does not go with the task.
    """
    if code.loss is not None:
        if options != LossOptions():
            given = ", ".join(f"train.loss.{key}" for key in options.model_dump(exclude_defaults=True))
            raise InputError(f"{given} would not reach the loss, which is your own; set it there")
        return code.loss
    task, name = outline.task, options.name or LOSSES[outline.task][0]
    if name not in LOSSES[task]:
        raise InputError(
            f"train.loss is '{name}', but the task is {task}; expected {' or '.join(LOSSES[task])}, or another task "
            "(read.task)"
        )
    given = options.model_dump(exclude_defaults=True)
    for key, names in LOSSES_WITH.items():
        if key in given and name not in names:
            raise InputError(
                f"train.loss.{key} is {given[key]}, but the loss is '{name}'; it goes with {' or '.join(names)}"
            )
    if task == "link" and "class_weights" in given:
        raise InputError("train.loss.class_weights is set, but the task is link, which has no classes; leave it out")
    if task == "link" and isinstance(options.pos_weight, list):
        raise InputError('train.loss.pos_weight is a list, but the task is link; expected one number, or "balanced"')
    if task == "multilabel" and "class_weights" in given:
        raise InputError(
            f"train.loss.class_weights are factors of {outline.unit}s by their class, but the task is multilabel; use "
            "train.loss.pos_weight"
        )
    without_function = task == "multiclass" or (task == "multilabel" and not outline.has_unknown)
    if without_function and name == LOSSES[task][0] and not given.keys() - {"name"}:
        return None
    of_pairs = task == "link" and options.pos_weight == "balanced"
    positive = None if of_pairs else options.pos_weight
    return NamedLoss(
        task,
        name,
        class_weights=_numbers("class_weights", options.class_weights, outline.num_classes, _balanced, outline),
        pos_weight=_numbers(
            "pos_weight", positive, 1 if task == "link" else outline.num_scores, _balanced_positive, outline
        ),
        balanced=of_pairs,
        **options.model_dump(include={"label_smoothing", "gamma", "delta", "margin", "temperature"}),
    )


def _numbers(key: str, given: Any, count: int, balanced: Any, outline: Outline) -> Tensor | None:
    """float64 [count], the weights that an option gives."""
    if given is None:
        return None
    if given == "balanced":
        found = balanced(outline)
    elif isinstance(given, float):
        found = [given] * count
    else:
        found = list(given)
    if len(found) != count:
        raise InputError(
            f"train.loss.{key} has {len(found)} numbers; the dataset has {count} classes: expected one for each, or "
            '"balanced"'
        )
    return torch.tensor(found, dtype=torch.float64)


def train_counts(dataset: Dataset) -> list[list[int]] | None:
    """See `Outline.train_counts`; None for targets."""
    if dataset.task in WITHOUT_ACCURACY:
        return None
    own = dataset.labels[dataset.split.train]
    if dataset.task == "multilabel":
        return [(own > 0.5).sum(0).tolist(), (~np.isnan(own)).sum(0).tolist()]
    own = own[own >= 0]
    return [np.bincount(own, minlength=dataset.num_classes).tolist(), [len(own)] * dataset.num_classes]


def _balanced(outline: Outline) -> list[float]:
    """n / (C n_c) for n train nodes, n_c of class c, of C classes that occur; 1 for those that do not."""
    assert outline.train_counts is not None
    (counts, (nodes, *_)) = outline.train_counts
    occurring = sum(n > 0 for n in counts)
    return [nodes / (occurring * n) if n else 1.0 for n in counts]


def _balanced_positive(outline: Outline) -> list[float]:
    """Train nodes without the label for each one with it; 1 where there are none with it."""
    assert outline.train_counts is not None
    pairs = list(zip(*outline.train_counts))
    return [(known - there) / there if there else 1.0 for there, known in pairs[-outline.num_scores :]]
