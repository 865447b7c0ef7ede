"""The data of a job, as a handle that any process can open."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ...stages.messages import GraphAndSeeds
from ...storage.dataset import Dataset, pairs_of
from ...storage.dataset_store import KIND as DATASET
from ...storage.dataset_store import FeaturesAccess, GraphAccess
from ...storage.errors import StoreError
from ...storage.lazy_dataset import LazyDataset, open_lazily
from ...storage.queue.location import KIND
from ...storage.queue.object_store import queue_at
from ...storage.queue.seed_data import SampledDataset
from ...storage.store.manifest import kind_in
from ...storage.urls import is_url


@dataclass(frozen=True)
class DataPart:
    """A dataset's store, as `setup.shared_dataset.share` gives it."""

    store: str
    """Its folder; or that of samples, or their URL, which hold what training reads of the dataset."""
    name: str
    """The dataset's name in reports."""
    features: FeaturesAccess
    """Place of the features."""
    graph: GraphAccess
    """Place of the graph."""
    kind: str = DATASET
    """Kind of the store: a dataset's, or samples."""

    def open(self) -> LazyDataset | SampledDataset:
        """The dataset, whose arrays are read once used."""
        if self.kind == KIND:
            if (found := sampled_at(self.store)) is None:
                raise StoreError(f"{self.store} cannot be read as samples with their features; sample again")
            return found
        return open_lazily(Path(self.store), self.features, name=self.name, names=False, graph=self.graph)


def sampled_at(source: str) -> SampledDataset | None:
    """The dataset of a store of samples with packed features, as far as it holds it; None if a source is no such store.

    Raises:
        StoreError: it is damaged.
        InputError: training reads more of the dataset than it holds.
    """
    try:
        if not is_url(source) and kind_in(Path(source)) != KIND:
            return None
    except StoreError:
        return None  # whoever opens the dataset says why
    try:
        with closing(queue_at(source).open(source)) as queue:
            seeds = None if queue.packed is None else queue.packed.seeds
    except StoreError:
        if is_url(source):
            return None
        raise
    return None if seeds is None else seeds.dataset(source)


def graph_and_seeds(dataset: Dataset) -> GraphAndSeeds:
    """The data that minibatches are drawn from; those of a lazy dataset are read now, without rows and labels."""
    return GraphAndSeeds(dataset.graph, dataset.split.train, pairs_of(dataset), dataset.pair_time)
