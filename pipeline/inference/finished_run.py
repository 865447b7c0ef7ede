"""Finished runs: their models with the best parameters, and their data."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...stages.learned.beside import WithLearned
from ...stages.models.small_graph import reads_weights
from ...storage.dataset import SPLITS, Dataset, Split, counted_outputs, is_labelled
from ...storage.dataset_store import KIND, features_access, graph_access
from ...storage.errors import InputError, StoreError
from ...storage.features import MappedFeatures, ReorderedFeatures
from ...storage.lazy_dataset import LazyDataset
from ...storage.optional import when_present
from ...storage.plural import are
from ...storage.store.digested_file import check_file, saved_parameters
from ...storage.store.manifest import MANIFEST
from ...storage.store.paths import expanded
from ...storage.store.store import open_store
from ...storage.stored.data_card import TREATED
from ...storage.stored.learned_nodes import learned_of
from ...storage.typed.graph_types import GraphTypes
from ...storage.urls import is_url
from ..config.load import Job, read_run_table, resolve
from ..config.named_code import allowing
from ..config.records import make_system, without_partitioner
from ..custom.model_argument import as_record_or_module
from ..datasets import ReadOptions
from ..datasets.cleaning.filling import indicators_in
from ..datasets.cleaning.kept import PAIRS, OtherOptions
from ..datasets.cleaning.splits import NO_SPLIT
from ..datasets.open import divided
from ..datasets.readers.registry import reader_of
from ..machine.gpus import own_device
from ..setup.fingerprint import changed_since
from ..setup.model import Outline, model_of, tried_on
from ..setup.open_data import open_data
from ..setup.python_inputs import check_module_importable, check_same_data, reading_before, with_kept_dataset
from ..setup.result import DATA_CARD, Result, read_card, read_result
from ..setup.run_folder import JOB, LEARNED, MODEL, NODES, RESULT, check_holds_run
from ..setup.warm_start import intact_learned
from ..telemetry.events import Caution, Emit, Note, cautioning, silent
from ..telemetry.main_metric import main_metric_of
from .relations_of_run import check_same_types, in_order_of_run


@dataclass(frozen=True, eq=False, repr=False)
class TrainedRun:
    """A finished run."""

    folder: Path
    """The run's folder."""
    model: nn.Module
    """The model with the parameters of the best validation epoch, in evaluation mode; on the device of `load`."""
    config: Job
    """The run's configuration."""
    result: Result
    """The contents of ``result.json``."""

    def open_dataset(
        self,
        source: Any = None,
        *,
        emit: Emit = cautioning,
        lazy: bool = False,
        labelled: bool = True,
        options: ReadOptions | None = None,
    ) -> Dataset:
        """Open the dataset that the run was trained on, or another one, as the run's configuration says.

        Args:
            source: anything that `millrace.open_dataset` takes; by default the run's own dataset.
            emit: called with every event.
            lazy: leave the arrays of a store on disk until they are used. Others do so where memory is short.
            labelled: false: labels of another dataset are not wanted, and need not be there.
            options: how `source` is read, where that is not as the run's own data were: see `reading`.

        Raises:
            InputError: it cannot be opened, or its features have another width than the model's.
        """
        if options is not None and (source is None or isinstance(source, Dataset)):
            what = "the run's own data are read as they were" if source is None else f"{source.name} has been read"
            raise InputError(f"options (read.*) are given, but {what}; leave them out, or give another source")
        learned = self.config.learned
        # Learnt rows are put beside arrays of a plain dataset.
        stays = not learned.width and (source is None or not labelled)
        if source is None:
            data = self._own(emit, stays)
        else:
            data = source if isinstance(source, Dataset) else self._other(source, emit, stays, labelled, options)
        if isinstance(data, LazyDataset) and source is not data and not (lazy or data.is_large):
            data = data.as_read()
        is_read = source is not None and (isinstance(source, Dataset) or _is_clean(source))
        if is_read:
            self._note_treatment(data, emit)
        data = in_order_of_run(self.result, data, self.folder)
        if source is not None and labelled and not data.hides_pairs and data.task != "link":
            data = self._in_sets(data, emit, is_read)
        self._check_weights(data)
        if learned.width and self._has_learned(data):
            return data
        seen, wanted = data.features.num_features, self.result.num_features
        if seen != wanted and (learned.beside or not learned.width):
            message = f"{data.name} has {seen} features, but {self.result.model} of {self.folder} reads {wanted}"
            raise InputError(f"{message}; give a dataset with as many")
        check_same_types(self.result, data, self.folder)
        width = self.result.num_edge_features or self.config.model.get("edge_width", 0)
        if width and data.num_edge_features != width:
            seen = f"{data.name} has {data.num_edge_features} features of edges"
            message = f"{seen}, but {self.result.model} of {self.folder} reads {width}"
            raise InputError(f"{message}; give a dataset with as many")
        return self._with_learned(data) if learned.width else data

    def reading(self, options: ReadOptions | None = None) -> ReadOptions:
        """How another dataset is read: by `options` where they are not the defaults, else as the run's own was."""
        given = reading_before(self.folder, self.config.dataset)
        try:
            own = self.config.read.over(given)
            if own.nan_features == "indicator" and own.indicators is None and (card := read_card(self.folder)):
                own = replace(own, indicators=indicators_in(card))
        except (TypeError, InputError) as e:  # options that this version does not know
            raise StoreError(f"{self.folder} does not say how its data were read ({e}); give options") from None
        return own if options is None else options.over(own.given)

    def as_before(self, options: ReadOptions | None) -> OtherOptions:
        """`reading`, with the run's columns of features and their numbers."""
        read, own = self.reading(options), self.reading()
        chosen = any(getattr(read, key) != getattr(own, key) for key in ("feature_columns", "edge_feature_columns"))
        return OtherOptions(**read.given, before=self._treatment, chosen=chosen)

    @property
    def _treatment(self) -> Mapping[str, Any]:
        card = read_card(self.folder) or {}
        check_file(self.folder / DATA_CARD, self.result.files_sha256.get(DATA_CARD) if card else None)
        return card.get(TREATED, {})

    def _note_treatment(self, data: Dataset, emit: Emit) -> None:
        """Note that data which are read already were scaled or filled by other numbers than the run's."""
        read = (data.card or {}).get(TREATED, {})
        # Names alone matter where both have some; "indicated" says where these data have gaps.
        left = {"indicated"} if self._treatment and read else {"indicated", "column"}
        alone = {PAIRS} - (self._treatment.keys() & read.keys())  # data of a run need not hold its labelled edges
        own, other = (
            {of: [{k: v for k, v in c.items() if k not in left} for c in each[of]] for of in each if of not in alone}
            for each in (self._treatment, read)
        )
        if own != other and any(map(any, (*own.values(), *other.values()))):
            told = (
                f"{data.name} was read before, by columns, values or scales of its own, which differ from those of the "
                f"data of {self.folder}: give its tables, which are read as the run's were"
            )
            if not (self._treatment and read):
                lacks = data.name if self._treatment else self.folder
                told = f"{lacks} keeps no scales and values of its columns: see that {data.name} has those of the run"
            emit(Caution(told))

    def _in_sets(self, data: Dataset, emit: Emit, is_read: bool) -> Dataset:
        """Other data in the sets that they store or were given; without any in the run's, if they are what it was
        trained on, or else as test data."""
        split, seed, folder = self.config.split, self.config.seed_of("split"), self.folder
        told = tuple(note for note in data.notes if not note.startswith(NO_SPLIT))
        if told == data.notes or (is_read and not _has_drawn(data)):
            changed = {*changed_since(self.result.fingerprint, data)} if split is not None else set()
            if changed and changed <= {"labels", "train nodes"}:
                taken = f"the sets that {data.name} stores are taken, but {folder} was trained on the same data"
                emit(Caution(f"{taken}, divided by split={split}: it may know their labels"))
            return data
        drawn = [data]
        with suppress(InputError):  # a split of the run's data, which these need not allow
            drawn.append(divided(data, split, seed))
        own = (d for d in drawn if not changed_since(self.result.fingerprint, d))
        test = np.flatnonzero(is_labelled(data.labels))
        found = next(own, replace(data, split=Split(test[:0], test[:0], test)))
        if found not in drawn:
            unit = "edges" if data.has_edge_labels else "nodes"
            emit(Caution(f"{data.name} stores no split: all its {len(test):,} labelled {unit} are test {unit}"))
        return replace(found, notes=told)

    def _check_weights(self, data: Dataset) -> None:
        """Refuse data whose edges have weights where the run's had none, or the other way round, if its model reads
        them."""
        given, tried = data.graph.is_weighted, tried_on(self.config, _outline_of(self.result, self.config))
        if (read_card(self.folder) or {}).get("weighted", given) != given and reads_weights(self.model, tried):
            how, column = ("have weights", "none") if given else ("have no weights", "COLUMN")
            raise InputError(f"the edges of {data.name} {how}, unlike those of {self.folder}; set read.weight={column}")

    def _has_learned(self, data: Dataset) -> bool:
        """True if this run's learnt features are already among those of a dataset, as `open_dataset` returns it."""
        features = data.features
        if not isinstance(features, WithLearned):
            return False
        rows = features.rows.features if isinstance(features.rows, ReorderedFeatures) else features.rows
        return isinstance(rows, MappedFeatures) and rows.path.resolve() == (self.folder / LEARNED).resolve()

    def _with_learned(self, data: Dataset) -> Dataset:
        """The dataset with the learnt features of its nodes, as the model reads them."""
        rows = learned_of(intact_learned(self.folder, self.config.learned.width), self.folder / NODES, data)
        given = data.features if self.config.learned.beside else None
        typed = not data.graph.types.is_single
        features = WithLearned(given, data.num_nodes, rows.num_features, rows.dtype, rows, typed=typed)
        return replace(data, features=features)

    def _own(self, emit: Emit, lazy: bool) -> Dataset:
        name = self.config.dataset
        if is_url(name):
            emit(Note(f"reading {name}, which {self.folder} names"))
        # Tables may have changed since: their columns are scaled and filled by the run's numbers.
        kept = not _is_clean(name) and self._treatment
        job = self.config.model_copy(update={"read": self.as_before(None)}) if kept else self.config
        try:
            data = open_data(job, None, emit, lazy=lazy)
        except InputError:
            check_same_data(self.folder, name, None)
            raise
        check_same_data(self.folder, name, data)
        if changed := changed_since(self.result.fingerprint, data):
            own = f"are not those that {self.folder} was trained on: the data have changed"
            emit(Caution(f"{' and '.join(changed)} of {data.name} {own}"))
        return data

    def _other(self, source: Any, emit: Emit, lazy: bool, labelled: bool, options: ReadOptions | None) -> Dataset:
        """Open another dataset as the run's own was read, and as what the run predicts.

        Stores and generated graphs are clean and take no options; other sources are read into memory. Of several types
        the run says which nodes are predicted.
        """
        job, result, reader, is_clean = self.config, self.result, reader_of(source), _is_clean(source)
        given = options or ReadOptions()
        read = replace(given, task=job.read.task) if is_clean else replace(self.as_before(options), is_new=True)
        if is_clean and result.task == "link":  # without pairs no edges are held out
            read = OtherOptions(**read.given, is_new=True) if labelled else given
        # What the caller gives stays, and is refused.
        if reader is not None and (unread := read.of_tables((*reader.columns, *given.given))):
            keys = ", ".join(f"read.{key}" for key in unread)
            emit(Note(f"the run's {keys} {are(len(unread))} for tables, and left out for data of another kind"))
            read = read.without(unread)
        kind: dict[str, Any] = {}
        types = GraphTypes.of_record(result.types)
        if not is_clean and (result.labels_of == "edges" or result.task == "link"):
            kind = {"labels_of": "edges"} if result.labels_of == "edges" else {"task": "link"}
            if not types.is_single:
                kind["relation"] = tuple(",".join(types.relations[r]) for r in types.predicted)
        elif not is_clean and not types.is_single:
            kind["target"] = types.node_types[0]
        # Edges that are held out are left out of the graph, so other data are divided too if they store no split.
        draws = result.task == "link" or read.labelled_edges == "hidden"
        update: dict[str, Any] = {"read": replace(read, **kind), "split": job.split if draws else None}
        if not labelled and not is_clean:
            return open_data(job.model_copy(update=update), source, emit, labelled=False)
        path = expanded(source) if isinstance(source, str | Path) else None
        store = path if path is not None and (path / MANIFEST).is_file() else None
        if job.features != "memory":
            update["features"] = "memory" if store is None else features_access(store)
        if job.graph != "memory":
            update["graph"] = "memory" if store is None else graph_access(open_store(store, KIND))
        job = job.model_copy(update=update)
        try:
            return open_data(job, source, emit if draws else _without_sets(emit), lazy=lazy)
        except InputError as e:
            if is_clean:
                raise
            try:
                open_data(job, source, silent, labelled=False)
            except InputError:
                raise e from None
            what = "an evaluation, --labels and sets of nodes need labels and a split"
            if read.labelled_edges == "hidden":
                what = "labelled_edges=hidden needs each edge's label and set, or the pairs to predict"
            raise type(e)(f"{what}, as the run's data have them: {e}") from None

    def __repr__(self) -> str:
        result = self.result
        name, value = main_metric_of(vars(result), "test")
        tested = "" if value is None else f", test {name} {value:.4f}"
        return f"TrainedRun({str(self.folder)!r}: {result.model} on {result.dataset}{tested})"


def _without_sets(emit: Emit) -> Emit:
    """A listener that does not pass on that a split is missing, which `TrainedRun.open_dataset` decides."""
    return lambda event: None if isinstance(event, Note) and event.text.startswith(NO_SPLIT) else emit(event)


def _has_drawn(data: Dataset) -> bool:
    """True if a dataset has the split that is drawn where none is given, and not one of the caller's own."""
    drawn = divided(data, None, 0).split
    return all(np.array_equal(getattr(drawn, name), getattr(data.split, name)) for name in SPLITS)


def _is_clean(source: object) -> bool:
    """True for data that take no reading options, such as a store."""
    reader = reader_of(source)
    return reader is not None and reader.is_clean


def load(
    run: str | Path | Result,
    *,
    model: Any = None,
    device: str | None = None,
    emit: Emit = cautioning,
    allow_code: str | Iterable[str] | None = None,
) -> TrainedRun:
    """Open a finished run.

    Args:
        run: its folder, or the result of `millrace.run`.
        model: for a run of your own module: such a module, or PyG convolutions as `millrace.run` takes them, which gets
            the parameters.
        device: ``cpu`` or ``cuda``; by default the run's, or processors if it used GPUs and this machine has none.
        emit: called with a note if that is so.
        allow_code: names MODULE:NAME of your own code that the run's folder may have imported, such as its sampler.

    Raises:
        InputError: the run is not finished, its model is a module that was not passed, its folder names code that
            was not, or there is no GPU as asked for.
        MissingExtraError: Triton is not installed, and ``cuda`` is asked for.
        StoreError: something in the folder is damaged, or the parameters do not fit the model.
    """
    if not isinstance(run, str | Path | Result):
        raise InputError(f"run is a {type(run).__name__}; expected a finished run's folder, or the result of run()")
    folder = expanded(run.out if isinstance(run, Result) else run)
    with allowing(allow_code):
        job = job_of(folder)
    record = read_result(folder)
    if record is None or not (folder / MODEL).exists():
        missing = MODEL if record is not None else RESULT
        again = f"resume it with `millrace run --resume --out {folder}`"
        raise InputError(f"{folder} holds a run that has not finished (no {missing}); {again}")
    model = as_record_or_module(model)
    if model is None:
        check_module_importable(folder, f'mr.load("{folder}", model=...)')
    result = _as_result(record if "num_features" in record else _with_outline(record, job), folder)
    device = _device(job, device, folder, emit)
    # Whoever trained on processors has not chosen who draws for a GPU.
    kernel = "cpu" if device == "cpu" else job.kernel if job.device == "cuda" else "cuda"
    # The parameters are in the run's own folder; the folder in start_from may be gone.
    job = job.model_copy(update={"start_from": None, "device": device, "kernel": kernel})
    of_host = without_partitioner(job.model_copy(update={"device": "cpu", "kernel": "cpu"}))
    part = model_of(job, _outline_of(result, job), make_system(of_host), model)
    return TrainedRun(
        folder, _with_parameters(part.build(), folder / MODEL, part.name, result).to(device).eval(), job, result
    )


def _outline_of(result: Result, job: Job) -> Outline:
    """Outline of the dataset that a run's model was built for."""
    width = job.learned.num_read(result.num_features)
    outline = Outline(result.dataset, width, result.num_classes, result.task, {}, types=result.types)
    if result.labels_of == "edges":
        outline = replace(outline, row_width=job.link.width, pair_width=result.num_pair_features)
    return replace(outline, edge_width=result.num_edge_features)


def _device(job: Job, asked: str | None, folder: Path, emit: Emit) -> str:
    """The device that a run's model is put on."""
    if asked not in (None, "cpu", "cuda"):
        raise InputError(f"device is {asked!r}; expected cpu or cuda")
    if asked == "cuda":
        return own_device().type
    if asked == "cpu" or job.device == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    emit(Note(f"{folder} was trained on a GPU, but torch sees none here; processors do the work"))
    return "cpu"


def of_edges(folder: Path) -> bool:
    """True if a folder has a finished run whose labels are of edges."""
    return (folder / RESULT).is_file() and (read_result(folder) or {}).get("labels_of") == "edges"


def job_of(folder: Path) -> Job:
    """The configuration in a run's folder.

    Raises:
        InputError: there is none, or this version cannot read it.
    """
    check_holds_run(folder, "a finished run")
    return with_kept_dataset(resolve(read_run_table(folder / JOB)), folder)


def _with_outline(record: dict[str, object], job: Job) -> dict[str, object]:
    """The record of an earlier version's run, with what is known from its dataset."""
    data = open_data(job, None, silent, lazy=True)
    return {
        **record,
        "num_features": data.features.num_features,
        "num_classes": data.num_classes,
        "task": data.task,
        "class_names": when_present(list, data.class_names),
    }


def _as_result(record: dict[str, Any], folder: Path) -> Result:
    known = {f.name for f in fields(Result)}
    needed = {f.name for f in fields(Result) if f.default is MISSING and f.default_factory is MISSING}
    if needed - record.keys() or not _sound(record):
        again = f"write it again by `millrace run --resume --out {folder}`"
        raise StoreError(f"{folder / RESULT} is of another version, or damaged; {again}")
    return Result(**{name: value for name, value in record.items() if name in known})


def _sound(record: Mapping[str, Any]) -> bool:
    """True if a model can be built, and its classes named, with a result's values, whose types `read_result` checks."""
    classes, names = record["num_classes"], record["class_names"]
    return record["num_features"] > 0 and classes > 0 and (names is None or len(names) == classes)


def _with_parameters(model: nn.Module, path: Path, name: str, result: Result) -> nn.Module:
    found = saved_parameters(path, result.files_sha256.get(MODEL))
    try:
        model.load_state_dict(found)
    except Exception as e:
        shapes = f"{result.num_features} features and {counted_outputs(result.task, result.num_classes)}"
        reason = " ".join(str(e).split())[:300]
        raise StoreError(
            f"{path} does not fit {name} on {result.dataset} with {shapes} ({reason}); "
            "expected the parameters and the job.toml of one run: copy both again"
        ) from None
    return model
