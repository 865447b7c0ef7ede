"""The result of a run, and its file ``result.json``, whose keys users rely on."""

import json
import platform
import resource
import sys
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import Field, FiniteFloat, ValidationError
from typing_extensions import TypedDict

from ...storage.dataset import Task
from ...storage.errors import NOT_READABLE, InputError, StoreError, first_line, install
from ...storage.optional import present_items
from ...storage.plural import counted
from ...storage.store.regular import file_bytes
from ...storage.stored.data_card import CARD, MOST_COLUMNS, TREATED, described
from ..config.plain_values import quoted
from ..config.records import adapter_of
from ..telemetry.main_metric import main_metric_of
from ..telemetry.run_log import RunLog, read_events
from .run_folder import LEARNED, METRICS, MODEL, NODES, RESULT, write_atomically

SCHEMA_VERSION = 1
DATA_CARD = f"{CARD}.json"
"""File of a run's folder with the data card of its dataset, its notes, and the options that it was read with."""
FILES = (MODEL, LEARNED, NODES, DATA_CARD)
"""Files of a run's folder whose digests `Result.files_sha256` has."""
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
REPORTED = ("numpy", "torch", "numba", "scipy", "zarr", "dask", "distributed", "pyarrow", "pymetis")
STOPPED = "stopped"
SECONDS = (
    "partition", "sample", "queue_wait", "fetch", "fetch_wait", "exchange", "forward_backward", "reduce", "evaluate",
    "total",
)  # fmt: skip

ONE_STEP = "Each epoch is one step of the optimiser"
"""Beginning of a note, which the report repeats."""


def versions() -> dict[str, str]:
    """Versions of Millrace, Python and the packages that affect results."""
    found = {name: _version(name) for name in ("millrace-gnn", *REPORTED)}
    return {"python": platform.python_version(), **present_items(found)}


@cache
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def by_class(counts: list[list[float]] | None) -> dict[str, list[float]] | None:
    """`Result.per_class` from the counts of `stages.evaluate.measures.Counts`."""
    if counts is None:
        return None
    right, said, true = counts
    return {
        "support": [int(n) for n in true],
        "precision": [r / n if n else 0.0 for r, n in zip(right, said)],
        "recall": [r / n if n else 0.0 for r, n in zip(right, true)],
        "f1": [2 * r / (a + b) if a + b else 0.0 for r, a, b in zip(right, said, true)],
    }


def peak_rss_bytes() -> int:
    """Largest resident size of this process so far."""
    try:
        # getrusage's maximum outlives an exec: a child begins with its parent's size at the fork.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_device_bytes() -> int:
    """Most GPU memory taken by tensors of this process so far; 0 without a GPU."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0


def read_card(folder: Path) -> dict[str, Any] | None:
    """The data card in a run's folder; None if there is none.

    Raises:
        StoreError: it is damaged.
    """
    path = folder / DATA_CARD
    try:
        card = json.loads(file_bytes(path))
        # What cannot be shown is not what a run writes.
        _ = described(card, MOST_COLUMNS), "".join(card.get("notes", ())), {**card.get(TREATED, {})}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        again = f"write it again by `millrace run --resume --out {folder}`"
        raise e if isinstance(e, StoreError) else StoreError(f"{path} is damaged; copy it again, or {again}") from None
    return card


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON file as a whole or not at all."""
    write_atomically(path, json.dumps(record, indent=2, allow_nan=False) + "\n")


def read_result(run: Path) -> dict[str, Any] | None:
    """The result in a run's folder; None if the run has not finished.

    Raises:
        StoreError: the file is damaged, or of another schema version.
    """
    path, again = run / RESULT, f"write it again by `millrace run --resume --out {run}`"
    try:
        result = json.loads(file_bytes(path))
    except FileNotFoundError:
        return None
    except PermissionError:
        raise StoreError(f"{path}: {NOT_READABLE}") from None
    except (OSError, ValueError, RecursionError) as e:
        raise StoreError(f"{path} is damaged ({first_line(e)}); {again}") from None
    seen = result.get("schema_version") if isinstance(result, dict) else None
    if seen != SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {quoted(seen)}; this Millrace reads {SCHEMA_VERSION}: copy it again, or use "
            "the version that wrote it"
        )
    if (key := _misshapen(result)) is not None:
        raise StoreError(f"{path} holds {key} = {quoted(result[key])}, which no run writes; {again}")
    return result


def known_digests(run: Path) -> dict[str, str]:
    """`Result.files_sha256` of a run's folder; none of a run that has not finished, or an earlier version's. Raises
    StoreError like `read_result`."""
    return (read_result(run) or {}).get("files_sha256", {})


class Lost(TypedDict):
    """An entry of `Result.lost`."""

    rank: int
    phase: int
    epoch: int
    step: int
    seeds: int
    epochs: int


def _misshapen(result: dict[str, object]) -> str | None:
    """The first key whose value has another type than a run writes; missing keys are fine, since later versions add
    some."""
    for key, kind in get_type_hints(Result, include_extras=True).items():
        if key in result:
            try:
                adapter_of(kind).validate_python(result[key], strict=True)
            except ValidationError:
                return key
    return None


@dataclass(frozen=True)
class Result:
    """A run that has ended. Accuracies are fractions (multi-label: micro-F1); None if a split is empty, and for a
    regression or links."""

    status: str
    """``done``; or ``stopped`` if the run was asked to end early. A stopped run has the numbers of its last checkpoint,
    no evaluation on the test split, and unknown memory (0); `--resume` continues it."""
    system: str
    """``bulk``, ``grappa``, ``retexo`` or ``sar``."""
    model: str
    """Name in the configuration, or the class of your own module."""
    dataset: str
    """Name, such as ``digits``, or the path that was given."""
    num_nodes: Count
    """V."""
    num_edges: Count
    """E, the edges trained on, after cleaning by the `read` options."""
    num_features: int
    """F."""
    num_classes: int
    """C: classes, or targets of a regression; of links, `link.width`."""
    task: Task
    """``multiclass``, ``multilabel``, ``binary``, ``regression`` or ``link``."""
    class_names: list[str] | None
    """Names of the classes or targets; None if they are numbered."""
    device: str
    """``cpu`` or ``cuda``."""
    dtype: str
    """``float32`` or ``float64``."""
    ranks: Count
    """P."""
    epochs: Count
    """Epochs trained (early stopping may end before those asked for)."""
    seed: int
    """The random seed."""
    minibatches_per_step: int
    """Minibatches in an optimiser step, over all ranks."""
    train_loss: FiniteFloat | None
    """Mean loss over the seeds of the last epoch; None if the run diverged, or was stopped in its first epoch."""
    val_accuracy: FiniteFloat | None
    """Validation accuracy of the best epoch; None for a regression, whose metrics are in `val_metrics`."""
    test_accuracy: FiniteFloat | None
    """Test accuracy with the parameters of the best epoch; None for a regression."""
    best_epoch: Annotated[int, Field(ge=-1, lt=1 << 53)]
    """Epoch with the best validation, counted from 0; -1 without validation (the run then keeps the last
    parameters)."""
    seconds: dict[str, FiniteFloat | list[FiniteFloat]]
    """Seconds by stage, the largest over ranks; stages overlap, so they need not add up. ``per_epoch`` is a list."""
    bytes: dict[str, dict[str, Count] | list[dict[str, dict[str, Count]]]]
    """Payload bytes by kind (see `storage.ledger`)."""
    waits: dict[str, dict[str, int]]
    """Messages that the first rank waited for, one after the other, by channel and kind. Each costs a network
    latency."""
    peak_rss_bytes: list[Count]
    """Largest resident size of each rank's process."""
    memory_bytes: list[dict[str, int]]
    """For each rank: the ``graph``, all ``features`` wherever they are stored, and the buffers of a ``step``, which
    later steps reuse."""
    hot_rows: list[dict[str, int]] | None
    """For each rank, if feature rows travel between ranks: ``rows`` of others in its cache, rows of others that
    minibatches ``asked`` for, the ``hits`` among them, and ``saved_bytes``. None if no rows travel."""
    peak_device_bytes: list[int]
    """For each rank: the most GPU memory that its tensors took, in bytes; 0 on a CPU."""
    minibatches: Count
    """Minibatches trained on; under `sar` and `retexo` a rank's share of a step counts as one."""
    sampled_edges: Count
    """Edges in these minibatches."""
    phases: list[dict[str, Any]]
    """In systems that train a part of the model per phase, a record for each phase: bytes read from other ranks,
    epochs, best epoch."""
    lost: list[Lost]
    """Ranks that were lost while the others continued: the lost `rank`; `phase`, `epoch` and `step` of the first step
    without it; its number of `seeds`; and the number of `epochs` that miss these, in whole or in part. Phases, epochs
    and steps count from 0."""
    clients: dict[str, Any] | None
    """Bytes that simulated clients would have sent and received; None if the ranks are the clients."""
    fingerprint: dict[str, str]
    """Digests of everything that affects the parameters."""
    parameters_sha256: str
    """SHA-256 digest of the parameters after the last step."""
    out: str
    """The run's folder."""
    val_metrics: dict[str, FiniteFloat | None] = field(default_factory=dict)
    """Further metrics of the best epoch's validation, by name: those of `train.metrics`, and your own; of a regression
    always ``rmse``, ``mae`` and ``r2``."""
    test_metrics: dict[str, FiniteFloat | None] = field(default_factory=dict)
    """The same metrics of the test split."""
    per_class: dict[str, list[FiniteFloat]] | None = None
    """The test split by class: ``support`` (nodes of the class), ``precision``, ``recall`` and ``f1``, in the order of
    classes; 0 where a divisor is 0. None if nothing was tested."""
    confusion: list[list[Count]] | None = None
    """Test nodes by their class (rows) and the class predicted (columns); None for several classes per node, and beyond
    256 classes."""
    per_relation: dict[str, dict[str, FiniteFloat | None]] | None = None
    """If links of several relations are predicted: for each relation (its three names joined by commas), the number of
    test ``pairs`` and their `test_metrics`; else None."""
    types: dict[str, Any] | None = None
    """Types of a graph with several: ``node_types``, ``offsets`` (first id of each type, and V), ``relations`` (source
    type, name, destination type) and ``widths`` of the features; else None."""
    num_edge_features: Count = 0
    """D, columns of the edges' features that the model reads; 0 if it reads none."""
    labels_of: str = "nodes"
    """What labels, splits and metrics belong to: ``nodes`` or ``edges``."""
    num_pair_features: Count = 0
    """K, the number of features of a labelled edge that its prediction reads; 0 if there are none."""
    files_sha256: dict[str, str] = field(default_factory=dict)
    """SHA-256 digests of the files ``model.pt`` and, with learnt features, ``learned.npy``. Whoever loads the run
    compares them."""
    versions: dict[str, str] = field(default_factory=versions)
    """Versions of Millrace, Python and the packages that affect results."""
    schema_version: int = SCHEMA_VERSION
    """Version of this record's keys."""

    def __fspath__(self) -> str:
        """The run's folder, which may be given by its result, as in ``start_from=result``."""
        return self.out

    def __repr__(self) -> str:
        found = {split: main_metric_of(vars(self), split) for split in ("val", "test")}
        values = {
            f"validation {found['val'][0]}": found["val"][1],
            f"test {found['test'][0]}": found["test"][1],
            "train loss": self.train_loss,
        }
        figures = ", ".join(f"{name} {value:.4f}" for name, value in present_items(values).items())
        trained = f"{self.model} on {self.dataset} by {self.system}: {counted(self.epochs, 'epoch')}"
        return f"Result({trained}, {figures or 'no finite loss'}, in {self.out})"

    @property
    def history(self) -> dict[str, list[Any]]:
        """Columns with a value for each epoch, read from the run's folder: ``epoch``, counted from 1, ``train_loss``,
        metrics of the validation (``val_accuracy``), ``seconds``, ``lr`` if a schedule changes it, and ``best``. None
        where an epoch was not validated. Raises InputError if the folder has been moved or removed."""
        return self._log().columns()

    def to_pandas(self) -> Any:
        """`history` as a pandas DataFrame, by epoch. Raises InputError like `history`, and without pandas."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise InputError("to_pandas needs pandas, which is not installed; pip install pandas") from None
        return DataFrame(self.history).set_index("epoch")

    def plot(self) -> list[Any]:
        """Draw the loss and the validation's metric by epoch. Returns matplotlib's axes; their ``figure`` can be saved.
        Raises InputError like `history`, and without matplotlib."""
        try:
            from matplotlib.pyplot import figure
        except ImportError:
            raise InputError(f"plot needs matplotlib, which is not installed; {install('report')}") from None
        from ..telemetry.curves import draw_curves

        log = self._log()
        if not log.epochs:
            raise InputError(f"no epoch has ended in {self.out}, so there is nothing to plot; resume the run")
        drawn = figure(figsize=(10.5, 3.0), layout="constrained")
        draw_curves(log, vars(self), lambda count: list(drawn.subplots(1, count, squeeze=False)[0]))
        return drawn.axes

    def _log(self) -> RunLog:
        if not (path := Path(self.out) / METRICS).is_file():
            raise InputError(f"{path} is not there; expected the folder that the run wrote, where it wrote it")
        return read_events(path)

    def to_record(self) -> dict[str, Any]:
        """Plain values, in the order of the contract."""
        record = asdict(self)
        return {"schema_version": record.pop("schema_version"), **record}
