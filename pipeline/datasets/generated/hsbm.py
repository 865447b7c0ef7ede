"""``hsbm:...``: a typed graph with known classes and a known best answer, generated."""

from dataclasses import dataclass

import numpy as np

from ....storage.dataset import Dataset
from ....storage.features import ArrayFeatures
from ....storage.typed.features import TypedFeatures
from ....storage.typed.graph_types import GraphTypes
from ..cleaning.relations import graph_of_relations
from .spec import generator, number, one_of_each, parse_spec, split_of, unit_vectors

NODE_TYPES = ("item", "user", "shop")


@dataclass(frozen=True)
class Hsbm:
    """Parameters of items, the users who like and dislike them, and the shops that sell them.

    An item of class c is liked by users of class c and disliked by users of class C - 1 - c, as many of each; shops and
    the items' own features say nothing. Over all in-neighbours the two classes are alike, so a model that does not tell
    relations apart cannot choose between c and C - 1 - c. A label differs from the item's class with probability
    `noise`: the best accuracy is 1 - noise.
    """

    nodes: int = number(3000, 4, 2**30)
    """Number of items; there are half as many users, and a tenth as many shops."""
    classes: int = number(4, 2, 1000)
    """Number of classes, C; their sizes differ by at most one."""
    degree: float = number(6, 0, 1e5)
    """Users who like an item; as many dislike it."""
    features: int = number(16, 1, 1e5)
    """Width of a user's features, the mean of the class plus noise. Those of items are half as wide; shops have
    none."""
    spread: float = number(0.5, 0, 1e6)
    """Standard deviation of a user's features about the mean of the class, a random unit vector."""
    noise: float = number(0.1, 0, 1)
    """Share of labels that are of another class than the item."""
    train: float = number(0.3, 1e-9, 1)
    """Share of train nodes among the items."""
    val: float = number(0.2, 0, 1)
    seed: int = number(0, 0, 2**63 - 1)


def generate_hsbm(text: str, name: str | None) -> Dataset:
    """The graph described by `text`, with reverse relations. A pure function of `text`."""
    p = parse_spec(text, Hsbm)
    items, users, shops = p.nodes, max(p.classes, p.nodes // 2), max(1, p.nodes // 10)
    offsets = (0, items, items + users, items + users + shops)
    rng = generator(p, 4)
    of_items = rng.permutation(np.arange(items) % p.classes)
    of_users = rng.permutation(np.arange(users) % p.classes)
    edges = {}
    for relation, wanted in (("likes", of_items), ("dislikes", p.classes - 1 - of_items)):
        item = np.repeat(np.arange(items), round(p.degree))
        user = one_of_each(rng, of_users, wanted[item], p.classes) + items
        edges["user", relation, "item"] = user, item
        edges["item", f"{relation[:-1]}d_by", "user"] = item, user
    item, shop = np.arange(items), rng.integers(0, shops, items) + items + users
    edges["shop", "sells", "item"] = shop, item
    edges["item", "sold_in", "shop"] = item, shop
    graph = graph_of_relations(edges, GraphTypes(NODE_TYPES, offsets, tuple(edges)))
    means = unit_vectors(rng, p.classes, p.features, np.float64)
    known = means[of_users] + p.spread * rng.standard_normal((users, p.features))
    blank = rng.standard_normal((items, max(1, p.features // 2)))
    parts = (blank, known, np.zeros((shops, 0)))
    moved = rng.random(items) < p.noise
    labels = np.full(offsets[-1], -1)
    labels[:items] = np.where(moved, (of_items + rng.integers(1, p.classes, items)) % p.classes, of_items)
    features = TypedFeatures(tuple(ArrayFeatures(x.astype(np.float32)) for x in parts), offsets)
    note, split = f"Generated: no model is more accurate than {1 - p.noise:g} on average.", split_of(p, labels[:items])
    return Dataset(name or text, graph, features, labels, split, p.classes, notes=(note,)).check()
