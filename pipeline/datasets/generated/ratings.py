"""``ratings:...``: users who rate items as their tastes change, with times: a graph whose links are to be predicted."""

from dataclasses import dataclass

import numpy as np

from ....storage.dataset import Dataset
from ....storage.features import ArrayFeatures
from ....storage.graph import from_edges
from .spec import generator, number, one_of_each, parse_spec, split_of, unit_vectors


@dataclass(frozen=True)
class Ratings:
    """Parameters of the ratings."""

    users: int = number(1000, 1, 2**30)
    """Number of users, the first nodes."""
    items: int = number(1000, 1, 2**30)
    """Number of items, the other nodes."""
    genres: int = number(10, 1, 100_000)
    """Each item is of one genre, and each user has one that is liked best, which changes on one day."""
    degree: int = number(20, 1, 100_000)
    """Ratings of each user, before an item's further ones are left out."""
    days: int = number(365, 2, 1_000_000)
    """Times are whole numbers from 0 to days - 1."""
    taste: float = number(0.9, 0, 1)
    """Share of the ratings that are of the genre that the user likes best at the time; the others are of any item."""
    features: int = number(16, 1, 1e5)
    """Width of the features, F: an item tells its genre; a user tells nothing."""
    noise: float = number(0.3, 0, 1e6)
    """Standard deviation of each feature about its genre's mean, a random unit vector."""
    train: float = number(0.6, 1e-9, 1)
    """Share of the items whose genre trains, where nodes are to be classified."""
    val: float = number(0.2, 0, 1)
    seed: int = number(0, 0, 2**63 - 1)

    @property
    def best_auc(self) -> float:
        """AUC of a model that knows each user's taste at the time of a rating, against negatives of any item: items of
        the genre come before the others, and are alike."""
        return 0.5 + self.taste * (1 - 1 / self.genres) / 2


def generate_ratings(text: str, name: str | None) -> Dataset:
    """The graph described by `text`: each rating is an edge from the user to the item and back, at the time of the
    first rating of that item by that user. A pure function of `text`. Nodes to classify are items, by genre; users are
    unlabelled."""
    p = parse_spec(text, Ratings)
    rng = generator(p, 0)
    genre = rng.permutation(np.arange(p.items) % p.genres)
    liked, changes = rng.integers(0, p.genres, (p.users, 2)), rng.integers(0, p.days, p.users)
    user = np.repeat(np.arange(p.users), p.degree)
    time = rng.integers(0, p.days, len(user))
    wanted = liked[user, (time >= changes[user]).astype(np.int64)]
    of_genre, any_item = one_of_each(rng, genre, wanted, p.genres), rng.integers(0, p.items, len(user))
    item = p.users + np.where((rng.random(len(user)) < p.taste) & np.isin(wanted, genre), of_genre, any_item)
    order = np.argsort(time, kind="stable")
    _, first = np.unique(user[order] * (p.users + p.items) + item[order], return_index=True)
    kept = order[first]
    ends, twice = np.stack([user[kept], item[kept]]), np.concatenate([time[kept], time[kept]])
    graph = from_edges(ends.ravel(), ends[::-1].ravel(), p.users + p.items, edge_time=twice)
    means = unit_vectors(rng, p.genres, p.features)
    x = np.float32(p.noise) * rng.standard_normal((graph.num_nodes, p.features), np.float32)
    x[p.users :] += means[genre]
    labels = np.concatenate([np.full(p.users, -1), genre])
    notes = [f"Generated: as links, no model has an AUC above {p.best_auc:.3f} on average, against negatives of items."]
    parts = split_of(p, labels)
    return Dataset(name or text, graph, ArrayFeatures(x), labels, parts, p.genres, notes=tuple(notes)).check()
