"""Notes on what features of a dataset lose when they are kept in fewer bytes."""

from collections.abc import Sequence

from ..dataset import Dataset
from ..fingerprint import sampled_rows
from ..store.narrow import FeatureDtype, narrow, widen
from ..typed.features import TypedFeatures
from .data_card import names_in, titled
from .narrow_loss import NarrowLoss


def lost_notes(dataset: Dataset, kind: FeatureDtype, losses: Sequence[NarrowLoss]) -> list[str]:
    """Notes on what features of each node type lose. Raises InputError: see `NarrowLoss.check`."""
    types, features = dataset.graph.types, dataset.features
    parts = features.parts if isinstance(features, TypedFeatures) else (features,)
    titles, offsets = ([""], (0, dataset.num_nodes)) if types.is_single else (types.node_types, types.offsets)
    notes = []
    for title, first, stop, part, loss in zip(titles, offsets, offsets[1:], parts, losses):
        if not part.num_features:
            continue
        sampled = sampled_rows(dataset.num_nodes) - first
        before = part.gather(sampled[(sampled >= 0) & (sampled < stop - first)])
        after = widen(narrow(before, kind), kind)
        names = names_in(dataset.card, title or "nodes", part.num_features)
        notes += titled(title, loss.check(kind, names, before, after))
    return notes
