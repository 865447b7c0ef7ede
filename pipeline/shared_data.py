"""The dataset of a run that several processes open: a committed store that all of them can read."""

from dataclasses import replace
from pathlib import Path

from ..storage.dataset import Dataset
from ..storage.dataset_store import features_place, open_dataset_store, write_dataset
from ..storage.errors import StoreError
from .config import Job

FOLDER = "data"


def share(job: Job, dataset: Dataset, out: Path) -> tuple[Path, str]:
    """A store of the dataset, and how its features are to be opened: the job's own store if it is one, else one in the run's folder.

    Features of a store that is made here are mapped: processes on one machine then share the pages.
    """
    source = Path(job.dataset)
    if job.split is None and (source / "manifest.json").exists():
        try:
            place = features_place(source)
        except StoreError:
            pass  # a store of another kind, which the job has turned into a dataset
        else:
            return source.resolve(), place if job.features == "owned" else job.features
    path = out / FOLDER
    if not path.exists():
        write_dataset(path, dataset, features_format="npy")
    return path.resolve(), "mapped"


def open_shared(path: Path, name: str, features: str) -> Dataset:
    """What `share` made, under the name that the driver knows it by."""
    return replace(open_dataset_store(path, features, names=False), name=name)  # pyright: ignore[reportArgumentType]
