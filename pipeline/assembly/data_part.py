"""The data of a job, as a handle that any process can open."""

from dataclasses import dataclass
from pathlib import Path

from ...stages.messages import GraphAndSeeds
from ...storage.dataset import Dataset, pairs_of
from ...storage.dataset_store import FeaturesAccess, GraphAccess
from ...storage.lazy_dataset import LazyDataset, open_lazily


@dataclass(frozen=True)
class DataPart:
    """A dataset's store, as `setup.shared_dataset.share` gives it."""

    store: str
    """Its folder."""
    name: str
    """The dataset's name in reports."""
    features: FeaturesAccess
    """Place of the features."""
    graph: GraphAccess
    """Place of the graph."""

    def open(self) -> LazyDataset:
        """The dataset, whose arrays are read once used."""
        return open_lazily(Path(self.store), self.features, name=self.name, names=False, graph=self.graph)


def graph_and_seeds(dataset: Dataset) -> GraphAndSeeds:
    """The data that minibatches are drawn from; those of a lazy dataset are read now, without rows and labels."""
    return GraphAndSeeds(dataset.graph, dataset.split.train, pairs_of(dataset), dataset.pair_time)
