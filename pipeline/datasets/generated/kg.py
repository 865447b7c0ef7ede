"""``kg:...``: a knowledge graph whose relations follow rules, generated, with known best answers."""

from dataclasses import dataclass

import numpy as np

from ....storage.array_kinds import IdArray
from ....storage.dataset import Dataset
from ....storage.features import ArrayFeatures
from ....storage.typed.features import TypedFeatures
from ....storage.typed.graph_types import GraphTypes
from ..cleaning.relations import graph_of_relations
from .spec import generator, number, one_of_each, parse_spec, split_of, unit_vectors

NODE_TYPES = ("person", "company", "city")


@dataclass(frozen=True)
class Kg:
    """Parameters of people, the companies where they work, and cities.

    Each person works at one company, and each company is located in one city. A person lives in that city, the
    *composition* of the two relations, or with probability `noise` in another one: nothing else in the graph says
    where. ``knows`` is *symmetric*, between people of one company. Each other relation has its *inverse*. The label of
    a person is the country of the city where the person lives, or with probability `noise` another one. Only cities
    have features, which identify them.
    """

    people: int = number(2000, 2, 2**30)
    """Number of people, the nodes to classify."""
    companies: int = number(200, 1, 2**30)
    cities: int = number(20, 2, 2**30)
    """Number of cities, as many companies in each, but for one."""
    countries: int = number(4, 2, 1000)
    """Number of classes, C: each city lies in one country."""
    friends: float = number(4, 0, 1e5)
    """Colleagues whom a person knows, on average, before repeated ones are left out."""
    features: int = number(16, 1, 1e5)
    """Width of a city's features, a random unit vector."""
    noise: float = number(0.1, 0, 0.5)
    """Share of people who live in another city than their company's, and of labels that are another country."""
    train: float = number(0.3, 1e-9, 1)
    """Share of train nodes among the people."""
    val: float = number(0.2, 0, 1)
    seed: int = number(0, 0, 2**63 - 1)

    @property
    def best_mrr(self) -> float:
        """Best MRR, on average, of the pairs of ``lives_in``: the company's city first; the ranks of the others, 2 to
        the number of cities, are equally likely."""
        return 1 - self.noise + self.noise / (self.cities - 1) * float((1 / np.arange(2, self.cities + 1)).sum())


def generate_kg(text: str, name: str | None) -> Dataset:
    """The graph described by `text`. A pure function of `text`."""
    p = parse_spec(text, Kg)
    offsets = (0, p.people, p.people + p.companies, p.people + p.companies + p.cities)
    rng = generator(p, 5)

    def other_than(right: IdArray, count: int) -> IdArray:
        """`right`, but with probability `noise` one of the other numbers below `count`."""
        wrong = (right + rng.integers(1, count, len(right))) % count
        return np.where(rng.random(len(right)) < p.noise, wrong, right)

    person, company = np.arange(p.people), np.arange(p.companies)
    works_at = rng.integers(0, p.companies, p.people)
    located_in = rng.permutation(company % p.cities)
    lives_in = other_than(located_in[works_at], p.cities)
    one = rng.integers(0, p.people, round(p.people * p.friends / 2))
    other = one_of_each(rng, works_at, works_at[one], p.companies)
    a, b = np.unique(np.sort(np.stack([one, other])[:, one != other], axis=0), axis=1)
    edges = {("person", "knows", "person"): (np.concatenate([a, b]), np.concatenate([b, a]))}
    for source, relation, inverse, destination, ends in (
        ("person", "works_at", "employs", "company", (person, works_at + offsets[1])),
        ("company", "located_in", "seat_of", "city", (company + offsets[1], located_in + offsets[2])),
        ("person", "lives_in", "home_of", "city", (person, lives_in + offsets[2])),
    ):
        edges[source, relation, destination] = ends
        edges[destination, inverse, source] = ends[::-1]
    graph = graph_of_relations(edges, GraphTypes(NODE_TYPES, offsets, tuple(edges)))
    country = rng.permutation(np.arange(p.cities) % p.countries)
    labels = np.full(offsets[-1], -1)
    labels[: p.people] = other_than(country[lives_in], p.countries)
    known = unit_vectors(rng, p.cities, p.features)
    parts = (np.zeros((p.people, 0), np.float32), np.zeros((p.companies, 0), np.float32), known)
    notes = [
        f"Generated: no model is more accurate than {1 - p.noise:g} on average, or as links of lives_in has an MRR "
        f"above {p.best_mrr:.3f}."
    ]
    features, split = TypedFeatures(tuple(map(ArrayFeatures, parts)), offsets), split_of(p, labels[: p.people])
    return Dataset(name or text, graph, features, labels, split, p.countries, notes=tuple(notes)).check()
