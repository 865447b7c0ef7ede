"""Fetches features that ranks own between them, ahead of the training that reads them.

Each row lies in the memory of one rank of a grid column, and travels to those that ask for it. A thread of each rank
fetches the rows of the next minibatches, unit by unit (`units`), while the last ones are trained on.
"""

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from ...storage.features import CountedFeatures, FeatureStore
from ...storage.partition.book import RangeBook
from ...storage.store.bytes_left import bytes_left
from ...storage.typed.features import stores_on_disk
from ..comm.base import Group
from ..feed.collective_feed import SampledByOwners
from ..feed.queue_feed import Sampled
from ..messages import Phase, Placement, RankJob
from ..placement.row_blocks import Grid
from ..policies import Feed, SamplePolicy
from .ahead.units import Plan, RowsAhead
from .feature_cache import HotBy, choose
from .gather import HostRows, InPlace, edge_lists
from .owned_rows import OwnedRows, opened
from .rows import Rows, RowsPolicy

if TYPE_CHECKING:
    from .gather_cuda import DeviceMemory

PREFETCH_BYTES = 512 << 20


def ahead_bytes(given: int | Literal["auto"]) -> int:
    """Bytes of rows of other ranks that are fetched ahead, from `OwnedFeatures.prefetch_bytes`."""
    return PREFETCH_BYTES if given == "auto" else given


@dataclass(frozen=True)
class OwnedFeatures(RowsPolicy):
    """The rank in row i of the grid keeps block i of the rows in memory, read once, and serves them to its column."""

    is_owned: ClassVar[bool] = True
    replication: int = 1
    """c: number of ranks that hold each block."""
    cache_fraction: float = 0.0
    """Share of all rows that each rank caches of the others', chosen before the run."""
    hot_by: HotBy = "samples"
    """Choice of cached rows: those that the rank's own minibatches of the first epoch need most, or those that the most
    in-neighbour lists hold."""
    prefetch_bytes: int | Literal["auto"] = "auto"
    """Rows that may be ready or under way beside those that are trained on; ``auto``: `PREFETCH_BYTES`. 0, or less than
    the rows of a step: fetching and training take turns."""

    def open(self, placement: Placement, job: RankJob, memory: "DeviceMemory | None") -> Rows:
        """See `RowsPolicy.open`. No rank owns rows that lie beside the minibatches."""
        if job.packed is not None:
            return InPlace(self.prefetch_bytes).open(placement, job, None)
        if memory is not None:
            # Needs Triton.
            return import_module(".exchange_cuda", __package__).opened(self, placement, job, memory)
        return ExchangedRows(self, placement, job, *self.owned(placement, job))

    def owned(self, placement: Placement, job: RankJob) -> tuple[OwnedRows, OwnedRows | None]:
        """Rows of nodes, and of edges if the model reads them. All ranks call this at the same time."""
        features, first, book, group, degree = self.open_rows(placement, job)
        size = int(book.sizes()[group.rank]) * features.num_features * features.dtype.itemsize
        stays = bool(stores_on_disk(features)) and size > bytes_left() // (2 * job.group.size)
        if stays and job.group.rank == 0:
            job.tell(
                f"features: a rank's own rows take {size / 2**20:,.0f} MiB, too much for the memory left: they stay "
                "on disk, and each rank reads its own ahead for all that ask"
            )
        owned = opened(features, first, book, group, degree, None if stays else job.arrays.features)
        edges = self.open_edges(placement, job, group)
        return owned, None if edges is None else opened(*edges, group, None, job.arrays.features)

    def open_edges(
        self, placement: Placement, job: RankJob, group: Group
    ) -> tuple[FeatureStore, int, RangeBook] | None:
        """Rows of edges, the first one of this rank, and their owners in the group; None if the model reads none."""
        if placement.edge_features is None:
            return None
        edges = CountedFeatures(placement.edge_features, job.ledger, "store")
        book, holds_own = placement.owners_of_edges(edges.num_rows, group.size)
        return edges, 0 if holds_own else int(book.offsets[group.rank]), book

    def open_rows(
        self, placement: Placement, job: RankJob, same_thread: bool = False
    ) -> tuple[FeatureStore, int, RangeBook, Group, Tensor | None]:
        """This rank's rows, and access to the others: see `OwnedRows`. All ranks call this at the same time.

        Args:
            placement: placement of this rank.
            job: job of this rank.
            same_thread: see `Group.sub`.
        """
        grid = Grid(job.group.size, self.replication)
        # One thread uses one group, for rows and for whatever else it sends within the column.
        column = placement.column if same_thread else None
        group = grid.subgroup(job.group, "rows", same_thread) if column is None else column
        features = CountedFeatures(placement.features, job.ledger, "store")
        book, holds_own = placement.owners_of_rows(grid.blocks)
        if holds_own:
            return features, 0, book, group, placement.degree
        return features, int(book.offsets[group.rank]), book, group, None


class ExchangedRows(HostRows):
    """Rows that other ranks own."""

    def __init__(
        self,
        policy: OwnedFeatures,
        placement: Placement,
        job: RankJob,
        owned: OwnedRows,
        owned_edges: OwnedRows | None = None,
    ) -> None:
        """`owned_edges` are the features of edges, if the model reads them."""
        super().__init__(placement, placement.features)
        self._policy, self._job, self.owned, self.owned_edges = policy, job, owned, owned_edges

    def ahead(self, feed: Feed, sample: SamplePolicy, phase: Phase, first: tuple[int, int]) -> Feed:
        assert isinstance(sample, Sampled | SampledByOwners)
        job, policy = self._job, self._policy
        placement: Any = self.placement
        if policy.cache_fraction and (group := self.owned.group).size > 1:
            count = int(policy.cache_fraction * self.owned.book.num_nodes)
            # The samples of any epoch are known before it begins.
            nodes = (m.nodes for m in sample.preview(placement, job, first[0]))
            self.owned.keep(choose(policy.hot_by, count, placement.graph, self.owned.book, group, nodes))
        plan = Plan(job.steps(sample.num_minibatches(placement, job)), phase.last_epoch, first)
        self._ahead = self._begun(feed, plan, ahead_bytes(policy.prefetch_bytes))
        return self._ahead

    def _begun(self, feed: Feed, plan: Plan, prefetch_bytes: int) -> Any:
        lists_of = partial(edge_lists, placement=self.placement)
        return RowsAhead(feed, self.owned, plan, prefetch_bytes, self.owned_edges, lists_of)

    @property
    def exchange_s(self) -> float:
        """See `Fetcher.exchange_s`: of the fetching thread."""
        return self._ahead.exchange_s if self._ahead else 0.0

    @property
    def hit_counts(self) -> dict[str, int]:
        owned = self.owned
        saved = owned.hits.hits * owned.row_bytes
        return {"rows": len(owned.hot_ids), "asked": owned.hits.asked, "hits": owned.hits.hits, "saved_bytes": saved}
