"""Loaders of PyG that Millrace does not have; constructing one raises an error that names an alternative."""

from typing import Any

from ...storage.errors import InputError


class HGTLoader:
    """Not supported: its construction raises InputError with an alternative."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise InputError(
            "HGTLoader is not supported (nodes and edges have one type): use torch_geometric.loader.HGTLoader, or "
            "NeighborLoader with data.to_homogeneous()"
        )
