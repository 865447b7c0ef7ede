"""Each rank holds the nodes of one part, and their in-edges."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ...storage.array_checks import pieces
from ...storage.array_kinds import FloatArray, IdArray
from ...storage.dataset import SPLITS, Split
from ...storage.errors import InputError, StoreError
from ...storage.features import ArrayFeatures, CountedFeatures, FeatureStore
from ...storage.optional import moved, when_present
from ...storage.partition.book import RangeBook
from ...storage.partition.edge_shards import shard_edges
from ...storage.partition.partition import extract_partition
from ...storage.store.scratch import Empty, in_memory
from ..messages import Part, Phase, Placement, RankJob
from ..neighbourhood.full_batch import FullBatch, WantedRows, arrange
from ..neighbourhood.relations import PartTypes
from ..partition.base import Partitioner
from ..partition.metis import MetisWork
from .base import PartitionPolicy, PartTraffic
from .shared_pairs import SharedPairs, seeds_of

TYPE_BYTES = 40
"""Bytes that an edge takes beside its lists where rows and edges are divided by type, by estimate: its relation, its
place in that order, and an entry of the relations' lists and of those of all means."""


@dataclass(frozen=True, eq=False)
class Share:
    """One rank's share of data and work, in the order of `FullBatch`'s rows."""

    graph: FullBatch
    features: FeatureStore
    """[N, F], in memory."""
    labels: Tensor
    """int64 [N] or floating [N, C]."""
    splits: dict[str, Tensor]
    """Rows of each split, int64."""
    edge_rows: Tensor | None = field(default=None, kw_only=True)
    """[e, D], features of the rank's edges in the order of its part; None: they have none, or the model reads none."""
    types: PartTypes | None = field(default=None, kw_only=True)
    """Types of its rows and edges; None: there is one of each."""
    pairs: SharedPairs | None = field(default=None, kw_only=True)
    """The labelled edges that it trains on; None: nodes are labelled."""

    @cached_property
    def _copies(self) -> dict[torch.device, tuple[Tensor, Tensor, Tensor | None]]:
        return {}

    def to_device(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
        """`x`, `labels` and `edge_rows` in the memory of `device`; copied once."""
        if device not in self._copies:
            self._copies[device] = self.x.to(device), self.labels.to(device), moved(self.edge_rows, device)
        return self._copies[device]

    def new_bytes_on(self, device: torch.device) -> int:
        """Bytes that the features and the edges of all rows would add on `device` to what `on` has copied there."""
        edges = 0 if self.edge_rows is None else self.edge_rows.nbytes
        of_types = 0 if self.types is None else TYPE_BYTES * len(self.types.of_edges)
        return self.graph.nbytes + of_types + (0 if device in self._copies else self.x.nbytes + edges)

    def renew(self, columns: slice, rows: FloatArray) -> None:
        """Change some columns of the features, [N, D] in the order of the part, here and on devices."""
        ordered = torch.from_numpy(rows[self.graph.order])
        for x in (self.x, *(there[0] for there in self._copies.values())):
            x[:, columns] = ordered.to(x.device)

    @property
    def x(self) -> Tensor:
        """Features as a tensor, which shares their memory."""
        assert isinstance(self.features, ArrayFeatures)
        return torch.from_numpy(self.features.rows)


@dataclass(frozen=True)
class Sharded(PartitionPolicy):
    """Parts of any kind, one for each rank; a rank reads only its own. Costs about 1/P of the graph and the
    features."""

    evaluates_on_shares: ClassVar[bool] = True
    partitioner: Partitioner = field(default_factory=MetisWork)
    prune: bool = True
    """Leave out rows and edges of each layer that the seeds' results do not depend on."""

    def count(self, traffic: PartTraffic) -> None:
        traffic.visits(self.prune)

    def place(self, data: Placement | Part, phase: Phase, job: RankJob, before: Share | None = None) -> Share:
        """See `PartitionPolicy.place`: the same in every phase.

        Raises:
            InputError: several ranks got the whole data; divide it into parts first.
        """
        if before is not None:
            return before
        part = whole_part(data, job) if isinstance(data, Placement) else data
        pairs = part.pairs
        seeds = part.split.train if pairs is None else seeds_of(pairs, part.owned)
        of = WantedRows(seeds, job.num_layers, prune=self.prune and not job.needs_all_rows)
        batch = arrange(part.shards, part.owned, of, job.group, job.reads_loops, job.arrays.graph)
        rows = CountedFeatures(part.features, job.ledger, "store")
        of_edges = when_present(lambda store: CountedFeatures(store, job.ledger, "store"), part.edge_features)
        held = share(replace(part, features=rows, edge_features=of_edges), batch, job.arrays.features)
        if pairs is not None:
            held = replace(held, pairs=SharedPairs.divided(pairs, part.owned, batch.order, job.group))
        return held


def share(part: Part, batch: FullBatch, empty: Empty = in_memory) -> Share:
    """A part's rows in the order of `batch`, with features, those of edges too, in arrays that `empty` makes."""
    place = np.empty(len(batch.order), np.int64)
    place[batch.order] = np.arange(len(place))
    splits = {name: torch.from_numpy(place[getattr(part.split, name)]) for name in SPLITS}
    features = empty((len(batch.order), part.features.num_features), part.features.dtype)
    rows, labels = part.features.gather(batch.order, out=features), part.labels[torch.from_numpy(batch.order)]
    edges = when_present(lambda of: torch.from_numpy(_all_rows(of, empty)), part.edge_features)
    return Share(batch, ArrayFeatures(rows), labels, splits, edge_rows=edges, types=types_of(part, batch.order))


def _all_rows(features: FeatureStore, empty: Empty) -> FloatArray:
    out = empty((features.num_rows, features.num_features), features.dtype)
    for some in pieces(0, features.num_rows):
        features.gather(np.arange(some.start, some.stop), out=out[some])
    return out


def types_of(part: Part, order: IdArray) -> PartTypes | None:
    """Types of a part's rows, in that order, and edges; None if there is one of each. Raises StoreError if the part
    does not fit the graph."""
    if part.types.is_single:
        return None
    types, kinds = part.types, part.shards.edge_type
    if kinds is None or (len(kinds) and int(kinds.max()) >= types.num_relations):
        raise StoreError(f"part {part.shards.part} lacks the relations of its edges; partition the dataset again")
    return PartTypes(types, types.types_of(part.owned)[order], kinds)


def whole_part(data: Placement, job: RankJob) -> Part:
    """All data as the only part."""
    if job.group.size > 1:
        raise InputError(f"{job.group.size} ranks got the whole graph each; expected one part for each rank")
    book = RangeBook(np.array([0, data.graph.num_nodes]))
    partition = extract_partition(data.graph, book, 0)
    shards = shard_edges(partition, book, data.graph.indptr[:-1], data.graph.num_edges)
    none = np.empty(0, np.int64)
    split = data.split if data.pairs is None else Split(none, none, none)
    rows = data.features, data.labels, split
    more = {"edge_features": data.edge_features, "types": data.graph.types, "pairs": data.pairs}
    return Part(shards, partition.owned, *rows, **more)
