"""``digits``: the handwritten digits that scikit-learn ships, as a nearest-neighbour graph."""

import numpy as np

from .raw import Raw

NEIGHBOURS = 10


def read_digits(name: str | None = None) -> Raw:
    """1,797 nodes with 64 pixels in [0, 1], 10 classes; u and v are joined both ways when one is among the 10 nearest of the other
    (Euclidean). The data is that of UCI's Optical Recognition of Handwritten Digits; the graph is deterministic."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    pixels, labels = load_digits(return_X_y=True)
    nearest = kneighbors_graph(pixels, NEIGHBOURS, mode="connectivity", include_self=False)
    joined = nearest.maximum(nearest.T).tocoo()
    return Raw(name or "digits", joined.row, joined.col, labels, (pixels / 16).astype(np.float32))
