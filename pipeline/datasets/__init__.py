"""Datasets: opened from files, stores, generators and other packages' objects, checked and cleaned on the way in."""

from .cleaning.options import ReadOptions
from .open import GENERATED, open_dataset
from .readers.python import from_networkx, from_pyg, from_scipy

__all__ = ["GENERATED", "ReadOptions", "from_networkx", "from_pyg", "from_scipy", "open_dataset"]
