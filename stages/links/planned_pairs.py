"""Pairs that a minibatch is trained on in place of its seeds, and the degrees that its layers read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.errors import StoreError
from ...storage.minibatch import MiniBatch
from ...storage.optional import when_present
from ..kernels.runtime.device_memory import to_device
from ..messages import PairsToScore, Placement, RankJob
from ..sample.temporal import degrees_until
from ..self_loops import OTHERS
from .decoders import Decoder, decoder_of
from .known import KnownTrainPairs
from .plan import Ends, LinkPlan

Degree = Callable[[], Tensor]
"""Returns the degrees of all nodes of a minibatch, [n]."""
OfSeeds = dict[str, Any]
"""What `Fetched` has of the seeds, by its fields."""


@dataclass(frozen=True, eq=False)
class PlannedPairs:
    """The plan of a run's pairs, and the decoder that scores them."""

    plan: LinkPlan
    placement: Placement
    decoder: Any
    """None: pairs come without scores."""
    ranks: int = 1
    """Ranks with plans of their own: every so many minibatches are of one plan."""
    device: torch.device | None = None
    """Place of what is trained on; None: the host."""
    has_frames: ClassVar[bool] = False

    @cached_property
    def known(self) -> KnownTrainPairs:
        """Pairs that no negative is to be."""
        return KnownTrainPairs.from_links(self.plan.links)

    @classmethod
    def from_placement(
        cls, sample: Any, placement: Placement, job: RankJob, module: nn.Module | None
    ) -> "PlannedPairs":
        """
        Args:
            sample: plans the pairs.
            placement: of this rank.
            job: of this rank.
            module: has the decoder; None: pairs come without scores.
        """
        plan: LinkPlan = sample.plan(placement, job)
        if plan.links.hidden:
            plan = replace(plan, links=placement.with_own_weights(plan.links))
        ranks = job.group.size if sample.is_isolated else 1
        return cls(plan, placement, None if module is None else decoder_of(module), ranks, job.device)

    def framed(self, frame: object) -> OfSeeds:
        raise NotImplementedError

    def targets(self, work: MiniBatch, degree: Degree) -> tuple[Degree, OfSeeds]:
        """Degrees in the graph without the minibatch's own edges, or before the pairs; and `Fetched.y` and
        `Fetched.links`.

        Args:
            work: a minibatch.
            degree: returns the degrees in the whole graph, or of samples by time on a device before the pairs; there.

        Raises:
            StoreError: its seeds are not the ends of its pairs.
        """
        plan, index = self.plan, work.index // self.ranks
        pairs = plan.pairs(index, work.epoch)
        ends = plan.ends(pairs, index, work.epoch)
        if not np.array_equal(ends.nodes, work.seeds):
            raise StoreError(
                f"minibatch {work.index} of epoch {work.epoch} has other ends than its pairs; sample it again"
            )
        there = None if self.device is None else to_device(ends.positions, self.device)
        positions, to = torch.from_numpy(ends.positions), partial(to_device, to=self.device or torch.device("cpu"))
        if (labels := plan.links.labels) is None:
            y = torch.zeros(len(pairs), dtype=torch.int64, device=self.device)
            numbers, negatives = plan.numbers(index, work.epoch), plan.links.negatives
            relation, known = plan.links.relation_indices(numbers), None
            if negatives is not None and negatives.exclude_known:
                known = self.known.mask(pairs[:, 1:], numbers)
            of, left_out = (when_present(to, a) for a in (relation, known))
            shared = None
            if negatives is not None and isinstance(self.decoder, Decoder) and plan.links.shares_all(numbers):
                shared = negatives.num_destinations
            links = PairsToScore(positions, self.decoder, there, relation=of, shared=shared, left_out=left_out)
            return cache(lambda: self._degrees(work, ends, degree)), {"y": y, "links": links}
        own = labels.take(plan.numbers(index, work.epoch))
        y, features = (when_present(to, a) for a in (own.values, own.features))
        links = PairsToScore(positions, self.decoder, there, labelled=True, features=features)
        exact = ends.moments is None and not labels.hidden
        return cache(degree if exact else lambda: self._degrees(work, ends, degree)), {"y": y, "links": links}

    def _degrees(self, work: MiniBatch, ends: Ends, degree: Degree) -> Tensor:
        if ends.moments is not None and not work.on_host:
            return degree()
        if ends.moments is not None:
            data = self.placement
            until = degrees_until(data.graph, work, ends.moments)
            return torch.from_numpy(until).to(data.degree.dtype).to(self.device or "cpu")
        found, links = degree().clone(), self.plan.links
        numbers = self.plan.numbers(work.index // self.ranks, work.epoch)
        columns = [found] if found.ndim == 1 else [found[:, 0], found[:, OTHERS]]
        for column, of in zip(columns, (numbers, numbers[links.pairs[numbers, 0] != links.pairs[numbers, 1]])):
            lost = to_device(links.lost_degree(of, work.seeds), found.device)
            column[: len(lost)] -= lost.to(found.dtype)
        return found.clamp_(min=0)
