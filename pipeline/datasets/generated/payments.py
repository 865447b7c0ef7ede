"""``payments:...``: accounts that pay each other, and which payments are frauds: a graph whose edges are labelled."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....storage.dataset import Dataset
from ....storage.features import ArrayFeatures
from ....storage.graph import from_edges
from .spec import generator, number, one_of_each, parse_spec, split_of, unit_vectors


@dataclass(frozen=True)
class Payments:
    """Parameters of the payments."""

    accounts: int = number(2000, 2, 2**30)
    """Number of nodes."""
    degree: int = number(10, 1, 100_000)
    """Payments that each account makes; several may go to one account."""
    mules: float = number(0.4, 0, 1)
    """Share of the accounts that are mules. A payment to a mule is a fraud if its amount is above 0."""
    homophily: float = number(0.8, 0, 1)
    """Share of the payments that go to an account of the payer's own kind, mule or not; the others go to any."""
    flips: float = number(0.05, 0, 0.5)
    """Share of the labels that are turned round: no model is more accurate than 1 - flips on average."""
    days: int = number(365, 2, 1_000_000)
    """Times are whole numbers from 0 to days - 1."""
    features: int = number(16, 1, 1e5)
    """Width of the features of accounts, F."""
    noise: float = number(1.0, 0, 1e6)
    """Standard deviation of each feature about its kind's mean, a random unit vector: at 1 an account alone says little
    about its kind, and its neighbourhood much."""
    train: float = number(0.6, 1e-9, 1)
    """Share of train payments."""
    val: float = number(0.2, 0, 1)
    seed: int = number(0, 0, 2**63 - 1)


def generate_payments(text: str, name: str | None) -> Dataset:
    """The graph described by `text`: an edge for each payment, from the payer, with its amount and its time. A pure
    function of `text`. Payments are labelled: 1 for
    frauds. Their amount, the only feature of an edge, is one of theirs too.
    """
    p = parse_spec(text, Payments)
    rng = generator(p, 0)
    is_mule = rng.random(p.accounts) < p.mules
    payer, n = np.repeat(np.arange(p.accounts), p.degree), p.accounts * p.degree
    of_kind = one_of_each(rng, is_mule, is_mule[payer].astype(np.int64), 2)
    payee = np.where(rng.random(n) < p.homophily, of_kind, rng.integers(0, p.accounts, n))
    amount, time = rng.standard_normal(n).astype(np.float32), np.sort(rng.integers(0, p.days, n))
    fraud = is_mule[payee] & (amount > 0)
    labels = (fraud ^ (rng.random(n) < p.flips)).astype(np.int64)
    graph = from_edges(payer, payee, p.accounts, edge_time=time, edge_features=amount[:, None])
    means = unit_vectors(rng, 2, p.features)
    x = np.float32(p.noise) * rng.standard_normal((p.accounts, p.features), np.float32)
    x += means[is_mule.astype(np.int64)]
    notes = [f"Generated: no model is more accurate than {1 - p.flips:.3f} on average."]
    parts, pairs = split_of(p, labels, unit="edge"), np.stack([payer, payee], axis=1)
    more: Any = {"pairs": pairs, "pair_features": amount[:, None], "pair_time": time, "notes": tuple(notes)}
    return Dataset(name or text, graph, ArrayFeatures(x), labels, parts, 2, **more).check()
