"""Loaders of PyG that Millrace does not have; constructing one raises an error that names an alternative."""

from typing import Any

from ...storage.errors import InputError


class LinkNeighborLoader:
    """Not supported: its construction raises InputError with an alternative."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise InputError(
            "LinkNeighborLoader is not supported (no link prediction): use torch_geometric.loader.LinkNeighborLoader, "
            "or NeighborLoader with the end nodes of the links as input_nodes"
        )


class HGTLoader:
    """Not supported: its construction raises InputError with an alternative."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise InputError(
            "HGTLoader is not supported (nodes and edges have one type): use torch_geometric.loader.HGTLoader, or "
            "NeighborLoader with data.to_homogeneous()"
        )
