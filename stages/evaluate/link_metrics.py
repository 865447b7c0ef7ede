"""Metrics of pairs from their ranks and scores, of all and of each relation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import AnyArray, IdArray
from ...storage.graph import Graph
from ...storage.links.pairs import PairArray, by_relation, given_negatives
from ...storage.typed.graph_types import SINGLE, GraphTypes
from ..links.decoders import of_relation
from .links import HITS, KnownPairs, Turned, filtered_ranks, ranks_among, score_pairs
from .measures import Scored


@dataclass(frozen=True, eq=False)
class Ranked:
    """Positive pairs of a set as a decoder orders them."""

    ranks: Tensor
    """float64 [n], of the positive pairs."""
    positive: Tensor
    """[n], their scores."""
    negative: Tensor
    """[m], scores of the pairs that AUC and average precision are against."""

    @classmethod
    def joined(cls, parts: Sequence["Ranked"]) -> "Ranked":
        """Those of all parts."""
        return cls(*(torch.cat([getattr(p, key) for p in parts]) for key in ("ranks", "positive", "negative")))

    def metrics(self, names: Sequence[str]) -> dict[str, float]:
        """The metrics `names`; NaN if a score is not finite."""
        if not (self.positive.isfinite().all() and self.negative.isfinite().all()):
            return dict.fromkeys(names, float("nan"))
        ranks = self.ranks
        values = {"mrr": float((1 / ranks).mean()), **{f"hits@{k}": float((ranks <= k).double().mean()) for k in HITS}}
        if len(self.negative):
            from sklearn.metrics import average_precision_score, roc_auc_score

            truth = np.repeat([1, 0], [len(self.positive), len(self.negative)])
            scores = torch.cat([self.positive, self.negative]).double().cpu().numpy()
            values |= {
                "auc": float(roc_auc_score(truth, scores)),
                "average_precision": float(average_precision_score(truth, scores)),
            }
        return {wanted: values.get(wanted, float("nan")) for wanted in names}


@dataclass(frozen=True, eq=False)
class OneRelation:
    """The positive pairs of a set that are of one predicted relation."""

    name: str
    """Names of its source type, itself and its destination type, joined by commas; empty: pairs are of one relation."""
    place: int | None
    """Among those that are predicted; None: one is."""
    table: AnyArray
    """See `storage.links.pairs`; with the given negatives of this relation alone."""
    rows: IdArray
    """int64 [n], rows of all pairs."""
    types: GraphTypes

    @classmethod
    def each(cls, table: AnyArray, numbers: IdArray, types: GraphTypes) -> list["OneRelation"]:
        """The pairs `numbers` of each predicted relation; those without any are left out if there are several."""
        if not types.predicts_several:
            return [cls("", None, table, numbers, types)]
        found = []
        for place, (r, (one, own)) in enumerate(zip(types.predicted, by_relation(table, types))):
            mine = numbers[table[numbers, 3] == r]
            if len(mine):
                found.append(cls(",".join(types.relations[r]), place, table[own], mine, one))
        return found


Knows = Callable[[OneRelation], "KnownPairs"]
"""Returns the known pairs of a relation."""


def known_of(graph: Graph, labels: AnyArray) -> Knows:
    """The known pairs of each relation; made when they are first asked for."""
    made: dict[int | None, KnownPairs] = {}

    def known(one: OneRelation) -> KnownPairs:
        if one.place not in made:
            made[one.place] = KnownPairs.from_graph(graph, one.table, types=one.types)
        return made[one.place]

    return known


@dataclass(frozen=True, eq=False)
class PairsOfSet:
    """The positive pairs of a set, which are ranked."""

    labels: AnyArray
    """See `storage.links.pairs`."""
    numbers: IdArray
    """int64 [n], of the positive pairs."""
    name: str
    """train, val or test."""
    types: GraphTypes = SINGLE


def link_metrics(
    decoder: Any, rows: Tensor, of: PairsOfSet, names: Sequence[str], known: Knows, ranks_sources: bool = False
) -> Scored:
    """Metrics of the positive pairs of a set. AUC and average precision are against the given negatives of the set, or
    as many uniform pairs that are not linked; MRR and Hits@k are of ranks, see the module. Pairs of several relations
    are ranked within theirs.

    Args:
        decoder: see `links.decoders.Decoder`.
        rows: [V, D], of all nodes.
        of: the set.
        names: of `LINK_METRICS`.
        known: gives pairs that rankings leave out.
        ranks_sources: rank the source of each pair too, among all sources; there are no given negatives then.
    """
    found = {}
    for one in OneRelation.each(of.labels, of.numbers, of.types):
        own, pairs = of_relation(decoder, one.place), of.labels[one.rows, :2]
        found[one.name] = _ranked(own, rows, one, pairs, of.name, known(one))
        if ranks_sources:
            with torch.no_grad():
                turned = filtered_ranks(Turned(own), rows, pairs[:, ::-1].copy(), known(one).turned)
            found[one.name] = replace(found[one.name], ranks=torch.cat([found[one.name].ranks, turned]))
    return of_relations(found, names)


def of_relations(found: Mapping[str, Ranked], names: Sequence[str]) -> Scored:
    """Metrics of all pairs, from those of each relation by its name; and where pairs are of several, those of each,
    with the number of its ``pairs``."""
    of_each = {r: {"pairs": len(ranked.positive), **ranked.metrics(names)} for r, ranked in found.items() if r}
    return Scored(None, Ranked.joined(list(found.values())).metrics(names), by_relation=of_each)


def _ranked(decoder: Any, rows: Tensor, one: OneRelation, pairs: PairArray, name: str, known: KnownPairs) -> Ranked:
    given = given_negatives(one.table, name)
    with torch.no_grad():
        negative = score_pairs(decoder, rows, given if len(given) else known.unknown(len(pairs), name))
        positive = score_pairs(decoder, rows, pairs)
        if not (positive.isfinite().all() and negative.isfinite().all()):
            return Ranked(torch.zeros(len(pairs), dtype=torch.float64), positive, negative)
        ranks = ranks_among(positive, negative) if len(given) else filtered_ranks(decoder, rows, pairs, known)
    return Ranked(ranks, positive, negative)
