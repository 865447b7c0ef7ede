"""Train pairs, looked up to leave them out of the negatives that are drawn."""

from dataclasses import dataclass

import numpy as np

from ...storage.array_kinds import IdArray, Mask
from ...storage.links.pairs import PairArray, contains, keys_of
from .train_pairs import TrainPairs

ALL = -1


@dataclass(frozen=True, eq=False)
class KnownTrainPairs:
    """The train pairs of each relation. Where edges of a relation are their own reverses, as in a symmetric graph, the
    reverse of a pair is one too, if that is an edge."""

    links: TrainPairs
    keys: dict[int, PairArray]
    """Ascending `keys_of` the pairs of each relation; of relation `ALL`, if pairs are of one."""

    @classmethod
    def from_links(cls, links: TrainPairs) -> "KnownTrainPairs":
        """Those of the pairs that are trained on."""
        assert links.train is not None
        pairs, types = links.pairs[links.train], links.graph.types if links.types.is_single else links.types
        relation = np.full(len(pairs), ALL) if links.relations is None else links.relations[0][links.train]
        turned = {ALL if links.relations is None else r for r in types.own_reverses} if not types.is_single else {ALL}
        keys = {}
        for r in np.unique(relation).tolist():
            ends = [pairs[relation == r]]
            if r in turned:
                ends.append(pairs[(relation == r) & links.is_edge_reversed(links.train)][:, ::-1])
            u, v = np.concatenate(ends).T
            keys[r] = np.unique(keys_of(u, v, links.num_nodes))
        return cls(links, keys)

    def mask(self, negatives: PairArray, numbers: IdArray) -> Mask:
        """bool [b, k], True for each of the negatives [b, k, 2] of the pairs `numbers` that is a train pair."""
        relations = self.links.relations
        if relations is None:
            return self._known(ALL, negatives)
        found, relation = np.zeros(negatives.shape[:2], np.bool_), relations[0][numbers]
        for r in np.unique(relation).tolist():
            found[relation == r] = self._known(r, negatives[relation == r])
        return found

    def _known(self, relation: int, negatives: PairArray) -> Mask:
        keys = self.keys.get(relation, np.empty(0, np.int64))
        return contains(keys, keys_of(negatives[..., 0], negatives[..., 1], self.links.num_nodes))
