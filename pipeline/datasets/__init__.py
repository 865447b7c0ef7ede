"""Datasets: opened from files, stores, generators and other packages' objects, checked and cleaned on the way in."""

from .open import open_dataset
from .options import ReadOptions
from .python import from_networkx, from_pyg, from_scipy

__all__ = ["ReadOptions", "from_networkx", "from_pyg", "from_scipy", "open_dataset"]
