"""Datasets from files, stores, generators and other packages' objects, checked and cleaned when they are opened."""

from .cleaning.options import ReadOptions
from .edge_labels import edge_dataset
from .links import link_dataset
from .open import is_name, open_dataset, open_graph
from .readers.pyg import from_pyg
from .readers.python import from_networkx, from_scipy
from .readers.reader import Reader, Request
from .readers.typed import from_relations
from .triples import from_triples

__all__ = [
    "ReadOptions",
    "Reader",
    "Request",
    "from_networkx",
    "from_pyg",
    "from_relations",
    "from_scipy",
    "from_triples",
    "is_name",
    "edge_dataset",
    "link_dataset",
    "open_dataset",
    "open_graph",
]
