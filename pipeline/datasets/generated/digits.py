"""``digits``: the handwritten digits that scikit-learn ships, as a nearest-neighbour graph."""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ....storage.array_kinds import Float64Array, IdArray
from ..cleaning.raw import GivenLabels, Raw, RawEdges, RawNodes

NEIGHBOURS = 10


def read_digits(name: str | None = None) -> Raw:
    """1,797 nodes with 64 pixels in [0, 1], 10 classes; u and v are joined both ways if one is among the 10 nearest of
    the other (Euclidean; equally distant nodes in order of their ids). The data is that of UCI's Optical Recognition of
    Handwritten Digits."""
    pixels, labels = _pixels_and_labels()
    # In whole numbers, with ties broken by id: scikit-learn's own neighbours depend on the number of threads.
    x = pixels.astype(np.int64)
    n, squares = len(x), (x * x).sum(1)
    far = (squares[:, None] - 2 * (x @ x.T) + squares) * n + np.arange(n)
    np.fill_diagonal(far, np.iinfo(np.int64).max)
    nearest = np.argpartition(far, NEIGHBOURS, axis=1)[:, :NEIGHBOURS].ravel()
    rows = np.repeat(np.arange(n), NEIGHBOURS)
    pairs = np.unique(np.concatenate([rows * n + nearest, nearest * n + rows]))
    edges, nodes = RawEdges((pairs // n, pairs % n)), RawNodes((pixels / 16).astype(np.float32))
    return Raw(name or "digits", {None: edges}, GivenLabels(labels), {None: nodes})


def _pixels_and_labels() -> tuple[Float64Array, IdArray]:
    """``load_digits`` of scikit-learn, without the import of scikit-learn, which takes as long as training on them."""
    package = find_spec("sklearn")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            table = np.array(gzip.decompress(file.read_bytes()).replace(b"\n", b",").split(b",")[:-1], np.float64)
            table = table.reshape(-1, 65)
            return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return np.asarray(pixels), np.asarray(labels)
