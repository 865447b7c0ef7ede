"""What the arguments of `NeighborLoader` mean: checked, refused by name, and turned into Millrace's own messages."""

import warnings
from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..stages.sample.neighbor import NeighborSampler
from ..storage.errors import InputError, nearest
from ..storage.graph import Graph, from_edges
from .datasets.python import TYPED

IDLE = {
    "pin_memory": False,
    "pin_memory_device": "",
    "persistent_workers": False,
    "prefetch_factor": None,
    "worker_init_fn": None,
    "multiprocessing_context": None,
    "timeout": 0,
    "in_order": True,
    "collate_fn": None,
    "dataset": None,
}
"""Arguments of torch's DataLoader that have nothing to act on here, and the values that ask for nothing."""
REFUSED = {
    "sampler": "the seeds come in the order of input_nodes, or shuffled",
    "batch_sampler": "the seeds come in the order of input_nodes, or shuffled",
    "custom_cls": "it belongs to remote feature stores",
}
"""Arguments of PyG's and torch's loaders that would change what is sampled, and why they are refused."""


class UnknownArgumentError(InputError, TypeError):
    """An argument that `NeighborLoader` does not have."""


def check_data(data: Any) -> None:
    """`data` must be a homogeneous PyG `Data` with an edge_index."""
    from torch_geometric.data import Data, HeteroData

    if isinstance(data, HeteroData):
        raise InputError(f"HeteroData is not supported, {TYPED}")
    if isinstance(data, (tuple, list)):
        raise InputError("a pair of FeatureStore and GraphStore is not supported; expected a torch_geometric.data.Data")
    if not isinstance(data, Data):
        raise InputError(f"data is {type(data).__name__}; expected a torch_geometric.data.Data")
    if data.edge_index is None:
        raise InputError("data has no edge_index; expected [2, E] (adj and adj_t are not supported: do not apply ToSparseTensor)")
    if data.edge_index.ndim != 2 or data.edge_index.shape[0] != 2:
        raise InputError(f"data.edge_index has shape {list(data.edge_index.shape)}; expected [2, E]")


def check_dataloader(given: dict[str, Any], filter_per_worker: bool | None, own: Iterable[str]) -> None:
    """Refuse or ignore, with a warning, the DataLoader's arguments in `given`; `own` are the loader's named ones, for hints."""
    for name in given:
        if name not in IDLE and name not in REFUSED:
            known = [*own, *IDLE, *REFUSED]
            raise UnknownArgumentError(f"NeighborLoader has no argument '{name}'{nearest(name, known)}")
    for name, why in REFUSED.items():
        if given.get(name) is not None:
            raise InputError(f"{name} is not supported: {why}")
    ignored = [n for n, nothing in IDLE.items() if given.get(n) is not None and (nothing is None or given[n] != nothing)]
    if filter_per_worker is not None:
        ignored.append("filter_per_worker")
    if ignored:
        text = f"NeighborLoader ignores {', '.join(ignored)}: it has no worker processes, a thread samples ahead"
        warnings.warn(text, UserWarning, stacklevel=3)


def count(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} is {value!r}; expected a whole number, {least} or more")
    return int(value)


def sampler(num_neighbors: Any, replace: bool, weighted: bool) -> NeighborSampler:
    """The sampler that PyG's arguments describe."""
    from torch_geometric.sampler import NumNeighbors

    values = num_neighbors.values if isinstance(num_neighbors, NumNeighbors) else num_neighbors
    if isinstance(values, dict):
        raise InputError("num_neighbors for each edge type is not supported; expected one number for each hop, such as [15, 10, 5]")
    try:
        fanout = tuple(index(n) for n in values)
    except TypeError:
        raise InputError(f"num_neighbors is {num_neighbors!r}; expected one number for each hop, such as [15, 10, 5]") from None
    try:
        return NeighborSampler(fanout, replace=bool(replace), weighted=weighted, edge_ids=True)
    except InputError as e:
        raise InputError(f"num_neighbors: {e}") from None


def graph(data: Any, weight_attr: str | None) -> Graph:
    """In-neighbour lists of `data`, with the columns of ``edge_index`` as edge ids."""
    edges, num_edges = _host(data.edge_index), data.edge_index.shape[1]
    weight = None
    if weight_attr is not None:
        if weight_attr not in data:
            raise InputError(f"weight_attr is '{weight_attr}', which data has not{nearest(weight_attr, list(data.keys()))}")
        weight = _host(data[weight_attr])
        if weight.shape != (num_edges,):
            raise InputError(f"weight_attr: data.{weight_attr} has shape {list(weight.shape)}; expected [{num_edges}], one for each edge")
        weight = weight.astype(np.float32)
        if not np.isfinite(weight).all() or (weight < 0).any():
            raise InputError(f"weight_attr: data.{weight_attr} holds negative, NaN or infinite values; expected finite values >= 0")
    return from_edges(edges[0], edges[1], data.num_nodes, edge_weight=weight, keep_edge_id=True)


def _host(value: Any) -> npt.NDArray[Any]:
    value = torch.as_tensor(value.as_tensor() if hasattr(value, "as_tensor") else value)
    return value.detach().cpu().numpy()


def input_nodes(given: Any, num_nodes: int) -> tuple[npt.NDArray[np.int64], Tensor]:
    """The seeds int64 [N], and what `input_id` reports for each of them, int64 [N]."""
    if given is None:
        return np.arange(num_nodes), torch.arange(num_nodes)
    if isinstance(given, str) or (isinstance(given, (tuple, list)) and given and isinstance(given[0], str)):
        raise InputError("input_nodes names a node type, which is not supported; expected node ids or a boolean mask")
    nodes = _host(given)
    if nodes.dtype == np.bool_:
        if nodes.shape != (num_nodes,):
            raise InputError(f"input_nodes is a mask of shape {list(nodes.shape)}; expected [{num_nodes}]")
        seeds = np.flatnonzero(nodes)
        return seeds, torch.from_numpy(seeds.copy())
    if nodes.ndim != 1 or (len(nodes) and not np.issubdtype(nodes.dtype, np.integer)):
        raise InputError(f"input_nodes is {nodes.dtype}{list(nodes.shape)}; expected integer node ids [N] or a boolean mask [{num_nodes}]")
    seeds = nodes.astype(np.int64)
    if len(seeds) and (seeds.min() < 0 or seeds.max() >= num_nodes):
        raise InputError(f"input_nodes lie in [{seeds.min()}, {seeds.max()}]; expected [0, {num_nodes})")
    distinct, times = np.unique(seeds, return_counts=True)
    if len(distinct) < len(seeds):
        raise InputError(f"input_nodes holds node {distinct[times > 1][0]} more than once; expected distinct ids: pass torch.unique(...)")
    return seeds, torch.arange(len(seeds))
