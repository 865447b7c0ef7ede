"""Minibatches of pairs: positive ones with their negatives, or labelled edges."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...storage.array_kinds import Mask
from ...storage.errors import InputError
from ...storage.plural import counted
from ..assignment import Sizes
from ..links.exclude import WithoutOwnEdges
from ..links.plan import LinkPlan
from ..links.train_pairs import Negatives, TrainPairs
from ..messages import RankJob, Seeded
from ..placement.row_blocks import BlockRows
from ..sample.base import Sampler, reads_times
from .collective_feed import SampledByOwners
from .local_feed import Local
from .queue_feed import BySampler, Sampled


@dataclass(frozen=True)
class PairPolicy(BySampler):
    """Minibatches of pairs."""

    negatives: Negatives | None = field(default_factory=Negatives)
    """None: pairs are labelled."""

    def record(self) -> dict[str, Any]:
        of_pairs = {"labels of": "edges"} if self.negatives is None else {"negatives": self.negatives.record()}
        return {**super().record(), **of_pairs}


@dataclass(frozen=True)
class SampledLinks(PairPolicy, Sampled):
    """Minibatches of pairs, whose seeds are the ends, without the pairs' own edges unless these may be seen, or of what
    lies before the pairs."""

    @classmethod
    def of_sampler(cls, sampler: Sampler, negatives: Negatives | None, hidden: bool = True) -> "SampledLinks":
        """
        Args:
            sampler: draws the neighbourhoods of the ends.
            negatives: their law; None: pairs are labelled.
            hidden: the pairs' own edges are taken out of what it draws, unless it draws by time.
        """
        # Its name is that of the sampler inside.
        # pyrefly: ignore[bad-argument-type]
        return cls(sampler if reads_times(sampler) or not hidden else WithoutOwnEdges(sampler), negatives)

    def plan(self, placement: Seeded, sizes: Sizes) -> LinkPlan:
        assert placement.pairs is not None
        time = placement.pair_time if reads_times(self.sampler) else None
        links = TrainPairs.from_graph(placement.graph, placement.pairs, self.negatives, time)
        return LinkPlan(placement.seeds, sizes.batch_size, sizes.bulk_size, sizes.seed, links=links)


@dataclass(frozen=True)
class LinksByOwners(PairPolicy, SampledByOwners):
    """`SampledLinks` over block rows: every rank has all pairs, and takes the own edges out of the samples that the
    owners of the rows have drawn for it."""

    def plan_of_all(self, placement: BlockRows, sizes: Sizes) -> LinkPlan:
        assert placement.pairs is not None
        links = TrainPairs.of_rows(placement.graph, placement.num_nodes, placement.pairs, self.negatives)
        return LinkPlan(placement.seeds, sizes.batch_size, sizes.bulk_size, sizes.seed, links=links)

    def is_seed(self, placement: BlockRows) -> Mask:
        """See `SampledByOwners.is_seed`: any node may be the end of a negative."""
        return np.ones(placement.num_nodes, np.bool_)


@dataclass(frozen=True)
class LocalLinks(PairPolicy, Local):
    """`Local` minibatches of pairs: a rank trains on the pairs between nodes of the chunks that it sees, whose
    destination is in its own. Negatives are drawn of the nodes of these chunks."""

    def num_minibatches(self, placement: Any, job: RankJob) -> int:
        """See `Local.num_minibatches`; of a placement `Isolated`.

        Raises:
            InputError: see `Local.num_minibatches`; or no rank has a pair to train on, or one has no negatives for its
                pairs.
        """
        found, seen = super().num_minibatches(placement, job), placement.seen
        law = None if self.negatives is None else self.negatives.law
        lacking = (law == "given" and not len(seen.given)) or (law == "degree" and not placement.graph.num_edges)
        numbers = torch.tensor([len(placement.seeds), len(placement.seeds) > 0 and lacking], dtype=torch.float64)
        job.group.all_reduce(numbers, "control")
        pairs, ranks = map(int, numbers)
        if ranks:
            raise InputError(
                f"link.negatives is '{law}', but there is none for {counted(ranks, 'rank')}, which see "
                'only the nodes of their chunks; use "uniform"'
            )
        if not pairs and seen.num_train:
            raise InputError(
                'no rank sees both ends of a train pair; use grappa.rotation = "sweep", fewer ranks, or another cut'
            )
        if pairs < seen.num_train and job.group.rank == 0:
            job.tell(f"{pairs:,} of {seen.num_train:,} train pairs have both ends on one rank, and train now")
        return found

    def plan(self, placement: Any, job: RankJob) -> LinkPlan:
        plan = super().plan(placement, job)
        links = TrainPairs.of_seen(placement.graph, placement.num_visible, placement.seen, self.negatives)
        return LinkPlan(plan.seeds, plan.batch_size, plan.bulk_size, plan.seed, links=links)
