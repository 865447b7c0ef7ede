"""The dataset of a run that several processes open: a committed store that all of them can read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...storage.dataset import Dataset
from ...storage.dataset_store import KIND, features_place, open_dataset_store, write_dataset
from ...storage.errors import MillraceError, StoreError
from ...storage.fingerprint import features_fingerprint
from ...storage.store.committed_folder import remove_tree
from ...storage.store.store import open_store
from ..config.load import Job

FOLDER = "data"


def share(job: Job, dataset: Dataset, out: Path, tell: Callable[[str], None] = lambda text: None) -> tuple[Path, str]:
    """A store of the dataset, and how its features are to be opened: the job's own store if it is one, else one in the
    run's folder.

    Features of a store that is made here are mapped: processes on one machine then share the pages. One that an earlier
    life of the run left is read once; where it is damaged, it is made again, and `tell` hears of it.
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
    elif (why := _damage(path)) is not None:
        remove_tree(path)
        write_dataset(path, dataset, features_format="npy")
        tell(f"the run's copy of the data was damaged, and was made again: {why}")
    return path.resolve(), "mapped"


def _damage(path: Path) -> str | None:
    """What is wrong with a store of a dataset. All of it is read; features piece by piece."""
    try:
        features = open_dataset_store(path, "mapped").features
        if features_fingerprint(features) != open_store(path, KIND).fingerprint.get("features"):
            return f"the features in {path} do not match their digest"
    except MillraceError as e:
        return str(e)
    return None


def open_shared(path: Path, name: str, features: str) -> Dataset:
    """What `share` made, under the name that the driver knows it by."""
    return replace(open_dataset_store(path, features, names=False), name=name)  # pyright: ignore[reportArgumentType]
