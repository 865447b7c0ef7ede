"""``tsbm:...``: nodes that move from one community to another, with times: only the past says where a node was."""

from dataclasses import dataclass

import numpy as np

from ....storage.dataset import Dataset
from ....storage.features import ArrayFeatures
from ....storage.graph import from_edges
from .spec import generator, number, one_of_each, parse_spec, split_of, unit_vectors


@dataclass(frozen=True)
class Tsbm:
    """Parameters of the temporal communities."""

    nodes: int = number(10_000, 4, 2**31 - 2)
    """Number of nodes, V. The first half have classes to predict, the others are members of communities."""
    classes: int = number(4, 2, 1000)
    """Number of communities, which are the classes."""
    days: int = number(100, 8, 1_000_000)
    """Times are whole numbers from 0 to days - 1."""
    degree: int = number(10, 1, 100_000)
    """In-edges of a node until its time, and as many later ones."""
    features: int = number(16, 1, 1e5)
    """Width of the features, F."""
    homophily: float = number(0.8, 0, 1)
    """Share of the edges that come from the right community."""
    noise: float = number(0.3, 0, 1e6)
    """Standard deviation of each feature about its community's mean, a random unit vector."""
    train: float = number(0.7, 1e-9, 1)
    """Share of train nodes, the earliest."""
    val: float = number(0.15, 0, 1)
    seed: int = number(0, 0, 2**63 - 1)


def generate_tsbm(text: str, name: str | None) -> Dataset:
    """The graph described by `text`: directed, with multi-edges. A pure function of `text`.

    A node to predict is in one community until its time and in another one afterwards; its class is the first one. Its
    in-edges come from members of the community that it is in at the edge's time, and as many are later as are not. So
    the edges until its time tell its class, while all edges together name two communities alike: without times, no
    model is right for more than half of the nodes on average. Its own features are noise. Members have in-edges from
    members of their own community, and features that tell it.
    """
    p = parse_spec(text, Tsbm)
    rng = generator(p, 0)
    half = p.nodes // 2
    members = np.arange(half, p.nodes)
    # Each community has a member if there are as many members as communities.
    community = np.concatenate([rng.integers(0, p.classes, half), rng.permutation(np.arange(len(members)) % p.classes)])
    later = (community[:half] + rng.integers(1, p.classes, half)) % p.classes
    time = np.zeros(p.nodes, np.int64)
    time[:half] = rng.integers(p.days // 4, p.days - p.days // 4, half)
    # In-edges of nodes until their time, of nodes later, and of members at any time.
    dst = np.concatenate([np.repeat(np.arange(half), p.degree)] * 2 + [np.repeat(members, p.degree)])
    until, first = np.repeat(time[:half], p.degree), half * p.degree
    at = rng.random(len(dst))
    edge_time = np.floor(at * p.days).astype(np.int64)
    edge_time[:first] = np.floor(at[:first] * (until + 1))
    edge_time[first : 2 * first] = until + 1 + np.floor(at[first : 2 * first] * (p.days - 1 - until))
    wanted = np.concatenate([community[dst[:first]], later[dst[first : 2 * first]], community[dst[2 * first :]]])
    other = rng.random(len(dst)) >= p.homophily
    wanted[other] = (wanted[other] + rng.integers(1, p.classes, int(other.sum()))) % p.classes
    src = members[one_of_each(rng, community[half:], wanted, p.classes)]
    keep = np.isin(wanted, community[half:])
    graph = from_edges(src[keep], dst[keep], p.nodes, edge_time=edge_time[keep], node_time=time)
    means = unit_vectors(rng, p.classes, p.features)
    x = np.float32(p.noise) * rng.standard_normal((p.nodes, p.features), np.float32)
    x[half:] += means[community[half:]]
    labels = np.where(np.arange(p.nodes) < half, community, -1)
    votes = np.zeros((half, p.classes))
    np.add.at(votes, (dst[:first], community[src[:first]]), 1)
    right = (votes.argmax(1) == community[:half]).mean()
    notes = [
        f"Generated: the majority of the edges until its time tells the class of {right:.1%} of the nodes; without "
        "times no model is right for more than half on average."
    ]
    parts = split_of(p, labels, "time", times=time)
    return Dataset(name or text, graph, ArrayFeatures(x), labels, parts, p.classes, notes=tuple(notes)).check()
