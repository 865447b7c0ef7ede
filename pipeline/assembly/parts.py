"""Parts of a run's dataset, opened by ranks: their own, and others' if the system reads them."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ...stages.messages import Part
from ...stages.partition.stage import open_neighbours, open_shards
from ...storage.array_checks import proving, require, require_within
from ...storage.features import ConvertedFeatures, FeatureStore
from ...storage.store.scratch import Arrays, Empty, InFiles, in_memory
from ...storage.typed.graph_types import SINGLE, GraphTypes


def arrays_at(graph: str, features: str, folder: Path) -> Arrays:
    """Makers of the large arrays of a rank's part, in files in `folder` where they are mapped: see `Job.graph`,
    `Job.features`."""
    if graph == "memory":
        return Arrays()
    in_files = InFiles(folder)
    return Arrays(in_files, in_files if features == "mapped" else in_memory)


@dataclass(frozen=True)
class Parts:
    """Parts written by `stages.partition.stage.partition_dataset`. See `Peers`."""

    folder: Path
    dtype: torch.dtype
    """The run's dtype."""
    matrix: bool
    """True if labels are a matrix, not class numbers."""
    num_classes: int | None = field(default=None, kw_only=True)
    """C, if labels are to be checked."""
    edges: bool = field(default=False, kw_only=True)
    """True if the features of edges are read."""
    types: GraphTypes = field(default=SINGLE, kw_only=True)
    """Types of the whole graph; None: there is one of each."""
    empty: Empty = field(default=in_memory, kw_only=True)
    """Makes the arrays of edges."""

    def part(self, number: int) -> Part:
        """See `Peers.part`. Raises StoreError if the part is damaged."""
        shards, owned, rows = open_shards(self.folder, number, self.empty)
        with proving(self.folder):
            if self.num_classes is not None and self.matrix:
                require(
                    rows.labels.shape[1:] == (self.num_classes,),
                    f"labels of part {number} are {list(rows.labels.shape)}",
                )
            elif self.num_classes is not None:
                require_within(
                    np.add(rows.labels, 1, dtype=np.int64), self.num_classes + 1, f"labels of part {number}, plus one,"
                )
        labels = torch.from_numpy(rows.labels)
        return Part(
            shards,
            owned,
            self._converted(rows.features),
            labels.to(self.dtype) if self.matrix else labels,
            rows.split,
            self,
            edge_features=self._of_edges(rows.edge_features, shards.num_edges),
            types=self.types,
        )

    def rows(self, number: int, loops: bool) -> tuple[FeatureStore, npt.NDArray[np.float64]]:
        """See `Peers.rows`. Raises StoreError if the part is damaged."""
        features, degree = open_neighbours(self.folder, number, loops)
        return self._converted(features), degree

    def _of_edges(self, features: FeatureStore | None, num_edges: int) -> FeatureStore | None:
        if not self.edges or features is None:
            return None
        with proving(self.folder):
            require(features.num_rows == num_edges, f"{features.num_rows} rows of features of {num_edges} edges")
        return self._converted(features)

    def _converted(self, features: FeatureStore) -> FeatureStore:
        name = str(self.dtype).removeprefix("torch.")
        return features if features.dtype == np.dtype(name) else ConvertedFeatures(features, name)
