"""``karate``: Zachary's karate club, which NetworkX ships."""

import numpy as np

from ....storage.errors import MissingExtraError, install
from ..cleaning.raw import GivenLabels, Raw, RawEdges, RawNodes

LEADERS = (0, 33)
VALIDATED = (1, 2, 3, 7, 29, 30, 31, 32)


def read_karate(name: str | None = None) -> Raw:
    """34 members, each with a feature of its own; 78 pairs that met outside the club, both ways, weighted by how often.
    The class is the club that a member joined when it split (Zachary, 1977). The two leaders train, eight members
    validate, the rest test. Raises MissingExtraError: NetworkX is not installed."""
    try:
        from networkx import karate_club_graph
    except ImportError:
        raise MissingExtraError(f"the dataset karate comes with NetworkX; install it: {install('networkx')}") from None
    club = karate_club_graph()
    u, v, weight = np.array([*club.edges(data="weight")]).T
    clubs, labels = np.unique([joined for _, joined in club.nodes(data="club")], return_inverse=True)
    edges = RawEdges((np.concatenate([u, v]), np.concatenate([v, u])), np.tile(weight.astype(np.float32), 2))
    rest = np.setdiff1d(np.arange(len(club)), (*LEADERS, *VALIDATED))
    split = {"train": np.array(LEADERS), "val": np.array(VALIDATED), "test": rest}
    given, nodes = GivenLabels(labels, class_names=tuple(clubs.tolist())), RawNodes(np.eye(len(club), dtype=np.float32))
    return Raw(name or "karate", {None: edges}, given, {None: nodes}, split=split)
