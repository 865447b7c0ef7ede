"""The dataset of a run as a store on disk that all its processes can open."""

from collections.abc import Callable
from pathlib import Path

from ...storage import dataset_store
from ...storage.dataset import Dataset
from ...storage.dataset_store import KIND
from ...storage.errors import MillraceError, StoreError
from ...storage.fingerprint import features_fingerprint
from ...storage.queue.location import KIND as SAMPLES
from ...storage.queue.seed_data import SampledDataset
from ...storage.store.committed_folder import remove_tree
from ...storage.store.store import open_store
from ..assembly.data_part import DataPart
from ..config.load import Job

FOLDER = "data"


def share(job: Job, dataset: Dataset, out: Path, tell: Callable[[str], None] = lambda text: None) -> DataPart:
    """A store of the dataset that all processes can open: the job's own, or else a copy in the run's folder.

    The features of a copy are memory-mapped, so that processes on one machine share the pages, and so is its graph if
    the job says so. A copy from before a restart is checked once; a damaged one is written again, with a message to
    `tell`.
    """
    if isinstance(dataset, SampledDataset):
        return DataPart(dataset.samples, dataset.name, "memory", "memory", SAMPLES)
    source = Path(job.dataset)
    if job.split is None and (source / "manifest.json").exists():
        try:
            place = dataset_store.features_access(source)
            has_labels = open_store(source, KIND).value("task", str) == dataset.task
        except StoreError:
            pass  # a store of another kind, converted when it was opened
        else:
            if has_labels:
                access = place if job.features == "owned" else job.features
                return DataPart(str(source.resolve()), dataset.name, access, job.graph)
    path = out / FOLDER
    graph: dataset_store.FeaturesFormat = "npy" if job.graph == "mapped" else "zarr"
    if not path.exists():
        dataset_store.write_dataset(path, dataset, features_format="npy", graph_format=graph)
    elif (why := _damage(path, job.graph)) is not None:
        remove_tree(path)
        dataset_store.write_dataset(path, dataset, features_format="npy", graph_format=graph)
        tell(f"the run's copy of the data was damaged, and was written again: {why}")
    return DataPart(str(path.resolve()), dataset.name, "mapped", job.graph)


def _damage(path: Path, graph: dataset_store.GraphAccess) -> str | None:
    """Description of a dataset store's damage; None if it is intact. All of it is read, features piece by piece."""
    try:
        dataset_store.check_graph_access(open_store(path, KIND), graph)
        features = dataset_store.open_dataset_store(path, "mapped").features
        if features_fingerprint(features) != open_store(path, KIND).fingerprint.get("features"):
            return f"the features in {path} do not match their digest"
    except MillraceError as e:
        return str(e)
    return None
