"""``digits``: the handwritten digits that scikit-learn ships, as a nearest-neighbour graph."""

import numpy as np

from ..cleaning.raw import Raw

NEIGHBOURS = 10


def read_digits(name: str | None = None) -> Raw:
    """1,797 nodes with 64 pixels in [0, 1], 10 classes; u and v are joined both ways when one is among the 10 nearest
    of the other (Euclidean; of nodes that are equally far the ones with smaller ids). The data is that of UCI's Optical
    Recognition of Handwritten Digits."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    # In whole numbers, and with ties broken by id: scikit-learn's own neighbours depend on the number of threads.
    x = pixels.astype(np.int64)
    n, squares = len(x), (x * x).sum(1)
    far = (squares[:, None] - 2 * (x @ x.T) + squares) * n + np.arange(n)
    np.fill_diagonal(far, np.iinfo(np.int64).max)
    nearest = np.argpartition(far, NEIGHBOURS, axis=1)[:, :NEIGHBOURS].ravel()
    rows = np.repeat(np.arange(n), NEIGHBOURS)
    pairs = np.unique(np.concatenate([rows * n + nearest, nearest * n + rows]))
    return Raw(name or "digits", pairs // n, pairs % n, labels, (pixels / 16).astype(np.float32))
