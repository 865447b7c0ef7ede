"""Record of a dataset and a module passed to a run from Python: the dataset as a store in the run's folder, the module
by its name.

Nothing is pickled: a folder may come from anyone, so opening it must import and run only what the user names.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ...storage import dataset_store
from ...storage.dataset import Dataset
from ...storage.dataset_store import KIND
from ...storage.errors import InputError, StoreError
from ...storage.features import FeatureStore, MappedFeatures, WidenedFeatures, ZarrFeatures
from ...storage.fingerprint import dataset_fingerprint
from ...storage.node_names import INTEGER_NAMES, name_arrays
from ...storage.optional import present, when_present
from ...storage.store.manifest import MANIFEST
from ...storage.store.npy import is_map
from ...storage.store.paths import expanded
from ...storage.store.regular import file_text
from ...storage.store.store import Store, open_store
from ...storage.stored.edge_features import OF_EDGES
from ...storage.stored.facts import reading_of
from ...storage.typed.features import TypedFeatures
from ..config.load import Job
from ..custom.own_code import DECIDING, OwnCode
from ..datasets import ReadOptions
from .fingerprint import digests_of
from .result import write_json

GIVEN = "given.json"
KEPT = "dataset"
"""Name of the store, in the run's folder, of a dataset passed from Python."""
KEPT_BYTES = 64 << 20
"""Size above which a dataset is not written into the folder of a run in one process. Ranks on a cluster read it there,
whatever its size."""
DIGESTS = ("graph", "features", "labels")
"""Keys of a run's fingerprint that identify its dataset."""


def job_for_dataset(job: Job, dataset: Dataset, folder: Path) -> Job:
    """The job whose ``dataset`` finds a dataset passed from Python: in the store that its features come from, or in the
    run's folder, where `keep_inputs` writes it; or its name only, if it is too large for that."""
    store = _store_of(dataset)
    if store is None and job.executor != "dask" and _num_bytes(dataset) > KEPT_BYTES:
        return job.model_copy(update={"dataset": dataset.name})
    path = folder.resolve() / KEPT if store is None else store
    # What the caller has mapped, ranks map too.
    features, graph = job.features, "mapped" if is_map(dataset.graph.indptr) else job.graph
    if store is not None:
        features = features if features == "owned" else dataset_store.features_access(store)
        dataset_store.check_graph_access(open_store(store, KIND), graph)
    elif features == "zarr" or (features != "owned" and job.executor == "dask"):
        # Ranks that map the rows share their pages; `keep_inputs` writes them in a form that can be mapped.
        features = "mapped"
    # The data are read and cleaned already. A split that was asked for is made again, of a store that holds another one
    # or of the same dataset, passed once more; pairs keep theirs.
    update = {"dataset": str(path), "features": features, "graph": graph, "read": ReadOptions()}
    return job.model_copy(update=update | ({"split": None} if dataset.task == "link" or dataset.hides_pairs else {}))


def keep_inputs(
    folder: Path,
    job: Job,
    dataset: Dataset | None,
    module: nn.Module | None,
    fingerprint: dict[str, str],
    code: OwnCode | None = None,
) -> None:
    """Write a run's inputs from Python into its folder.

    Args:
        folder: the run's folder.
        job: the result of `job_for_dataset`, if a dataset was passed.
        dataset: the dataset passed.
        module: the model, if it is a user's module.
        fingerprint: the run's fingerprint.
        code: the user's own code, of which names are kept.
    """
    # A resumed run that read its folder's dataset has proved that it is the same.
    before = read_given(folder) if dataset is None else {}
    record: dict[str, Any] = {key: before[key] for key in ("dataset", "read_as") if key in before}
    if module is not None:
        record["module"], record["class"] = type(module).__module__, type(module).__qualname__
    if code is not None and not code.is_empty:
        record["code"] = dict(code.names)
    if dataset is not None and job.dataset == str(folder.resolve() / KEPT):
        _write(folder / KEPT, dataset, job.graph)
    elif dataset is not None and job.dataset == dataset.name:
        record["dataset"] = {name: fingerprint[name] for name in DIGESTS}
        record |= {"read_as": dict(dataset.read_as)} if dataset.read_as else {}
    if record:
        write_json(folder / GIVEN, record)
    else:
        (folder / GIVEN).unlink(missing_ok=True)


def reading_before(folder: Path, dataset: str) -> Mapping[str, object]:
    """The options by which a run's own data were read, as `ReadOptions.given`: its folder's record, then the store's.

    Raises:
        StoreError: one of them is damaged.
    """
    stored = reading_of(open_store(path, KIND)) if ((path := expanded(dataset)) / MANIFEST).is_file() else {}
    return {**read_given(folder).get("read_as", {}), **stored}


def with_kept_dataset(job: Job, folder: Path) -> Job:
    """A run's job with the dataset kept in its folder, wherever that folder has been moved to."""
    path = folder.resolve() / KEPT
    kept = Path(job.dataset).name == KEPT and Path(job.dataset).is_absolute() and (path / MANIFEST).is_file()
    return job.model_copy(update={"dataset": str(path)}) if kept else job


def check_module_importable(folder: Path, passed: str) -> None:
    """Refuse to continue without the user's module that a run trains.

    Args:
        folder: the run's folder.
        passed: the way to pass it, such as ``mr.load(run, model=...)``.

    Raises:
        InputError: the run trains a user's module.
        StoreError: the record in the folder is damaged.
    """
    given = read_given(folder)
    if "module" not in given:
        return
    module, name = given["module"], given["class"]
    if name in ("PyGModel", "HeteroPyGModel") and module.partition(".")[0] == __name__.partition(".")[0]:
        raise InputError(
            f"the model of {folder} is a {name}, whose convolutions are not kept in the folder; pass them again: "
            f"{passed}, or on the command line --model MODULE:NAME with a function of yours that makes it"
        )
    message = f"the model of {folder} is a module of your own, {name} of {module}"
    if module == "__main__" or "<locals>" in name:
        raise InputError(f"{message}, which cannot be imported; pass it from the code that defines it: {passed}")
    raise InputError(f"{message}; pass it: {passed}, or --model {module}:{name}, or a function that makes it")


def check_code_given(folder: Path, code: OwnCode) -> None:
    """Refuse to go on without the code of the user's own that a run was started with. What was changed is refused by
    the run's fingerprint.

    Args:
        folder: the run's folder.
        code: given now.

    Raises:
        InputError: names what is missing.
        StoreError: the record in the folder is damaged.
    """
    for kind, name in read_given(folder).get("code", {}).items():
        if kind not in code.names:
            argument = kind if kind in DECIDING else f"{kind}s"
            raise InputError(
                f"{folder} was started with a {kind} of your own, {name}; pass it again: mr.run(..., resume=True, "
                f"{argument}=...), or on the command line --code {kind}=MODULE:NAME"
            )


def check_same_data(folder: Path, name: str, found: Dataset | None) -> None:
    """Refuse a dataset other than the run's, if the run's folder has only its name and digests. Say where a dataset
    was that is not there any more.

    Args:
        folder: the run's folder.
        name: name of the dataset.
        found: the dataset found; None: nothing.

    Raises:
        InputError: the run's dataset was passed from Python and too large to keep, and `found` is not it; or it is not
            where it was.
        StoreError: the record in the folder is damaged.
    """
    given = read_given(folder)
    if "dataset" not in given and found is None and Path(name).is_absolute() and not Path(name).exists():
        raise InputError(f"{name}, the dataset of {folder}, is not there any more; give its new place by --dataset")
    if "dataset" not in given:
        return
    digests = {} if found is None else digests_of(found)
    if given["dataset"] == {name: digests.get(name) for name in DIGESTS}:
        return
    message = (
        f"{folder} was trained on a dataset given from Python, '{name}', too large to keep in its folder (above "
        f"{KEPT_BYTES >> 20} MiB)"
    )
    raise InputError(f"{message}; pass it, or give --dataset with its path")


def read_given(folder: Path) -> dict[str, Any]:
    """The record in a run's folder; empty if there is none.

    Raises:
        StoreError: the record is damaged.
    """
    path = folder / GIVEN
    try:
        record = json.loads(file_text(path))
        texts = (record.get("module", ""), record.get("class", ""), *record.get("dataset", {}).values())
        texts += (*record.get("code", {}), *record.get("code", {}).values())
        if ("module" in record) != ("class" in record) or not all(
            isinstance(text, str) and text.isprintable() for text in texts
        ):
            raise ValueError("expected names and digests")
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, OSError, RecursionError) as e:
        raise StoreError(
            f"{path} is damaged ({e}); resume the run from Python with its dataset and model: resume=True"
        ) from None
    return record


def _store_of(dataset: Dataset) -> Path | None:
    """The store that the dataset was opened from, if its features are still there and the rest is the same."""
    features, file = dataset.features, dataset_store.FEATURES_FILE
    if isinstance(features, TypedFeatures):
        features, file = features.parts[0], dataset_store.features_file("_0")
    features = features.kept if isinstance(features, WidenedFeatures) else features
    path, of_edges = _folder_of(features, file), dataset.graph.edge_features
    if path is None or (of_edges is not None and _folder_of(of_edges, f"{OF_EDGES}.npy") != path):
        return None
    try:
        store = open_store(path, KIND)
    except StoreError:
        return None
    return path.resolve() if _holds(store, dataset) else None


def _folder_of(features: FeatureStore, file: str) -> Path | None:
    """The store that features lie in, if any."""
    if isinstance(features, MappedFeatures) and features.path.name == file:
        return features.path.parent
    return features.path if isinstance(features, ZarrFeatures) else None


def _holds(store: Store, dataset: Dataset) -> bool:
    """True if a store holds this dataset; the numbers in its features are not compared."""
    classes = when_present(list, dataset.class_names)
    if store.meta.get("task") != dataset.task or store.meta.get("class_names") != classes:
        return False
    named, integer_names = name_arrays(dataset.node_names)
    if ("node_name_text" in store) != bool(named) or store.meta.get(INTEGER_NAMES) != integer_names:
        return False
    if not all(np.array_equal(store.read(name), array) for name, array in named.items()):
        return False
    known = (store.fingerprint.get("features", ""), store.fingerprint.get(OF_EDGES, ""))
    return dict(store.fingerprint) == dataset_fingerprint(dataset, *known)


def _write(path: Path, dataset: Dataset, graph: dataset_store.GraphAccess) -> None:
    if path.exists():
        # A resumed run has proved that its graph, features and labels are the same; the test nodes may differ.
        try:
            store = open_store(path, KIND)
            if _holds(store, dataset) and graph in ("memory", dataset_store.graph_access(store)):
                return
        except StoreError:
            pass
    graph_format: dataset_store.FeaturesFormat = "npy" if graph == "mapped" else "zarr"
    dataset_store.write_dataset(path, dataset, overwrite=True, features_format="npy", graph_format=graph_format)


def _num_bytes(dataset: Dataset) -> int:
    stores = (dataset.features, dataset.graph.edge_features)
    rows = sum(f.num_rows * f.num_features * f.dtype.itemsize for f in present(stores))
    return dataset.graph.nbytes + rows + dataset.labels.nbytes
