"""Arguments of `NeighborLoader`: checked, refused by name, and converted into Millrace's own messages."""

import warnings
from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...stages.sample.neighbor import NeighborSampler
from ...stages.sample.temporal import STRATEGIES, TimedGraph
from ...storage.errors import InputError, nearest
from ...storage.graph import Graph, from_edges
from .pyg_subgraphs import SUBGRAPH_TYPES

DATALOADER = {
    "sampler": None,
    "batch_sampler": None,
    "pin_memory": False,
    "pin_memory_device": "",
    "persistent_workers": False,
    "prefetch_factor": None,
    "worker_init_fn": None,
    "multiprocessing_context": None,
    "timeout": 0,
    "in_order": True,
}
"""Arguments of torch's DataLoader that `NeighborLoader` does not name itself, and their values without effect."""
DROPPED = {"collate_fn": None, "dataset": None}
"""Arguments of torch's DataLoader that PyG's loader drops."""
EFFECTIVE = ("sampler", "batch_sampler", "pin_memory")
"""Arguments in `DATALOADER` that act as in a DataLoader. The others are for worker processes."""
REFUSED = {"custom_cls": "it belongs to remote feature stores"}
"""Arguments of PyG's loaders that would change the samples, and why they are refused."""


class UnknownArgumentError(InputError, TypeError):
    """An argument that `NeighborLoader` does not have."""


def check_data(data: Any) -> None:
    """Refuse `data` unless it is a homogeneous PyG `Data` with an edge_index."""
    from torch_geometric.data import Data, HeteroData

    if isinstance(data, HeteroData):
        raise InputError(
            "data is a HeteroData, and NeighborLoader takes a Data of one node type and one edge type; train it with "
            "mr.run(mr.from_pyg(data), ...)"
        )
    if isinstance(data, (tuple, list)):
        raise InputError("a pair of FeatureStore and GraphStore is not supported; expected a torch_geometric.data.Data")
    if not isinstance(data, Data):
        raise InputError(f"data is {type(data).__name__}; expected a torch_geometric.data.Data")
    for name in ("adj", "adj_t"):
        if name in data:
            raise InputError(
                f"data has {name}, which is not supported; expected edge_index [2, E]: do not apply ToSparseTensor"
            )
    if data.edge_index is not None and (data.edge_index.ndim != 2 or data.edge_index.shape[0] != 2):
        raise InputError(f"data.edge_index has shape {list(data.edge_index.shape)}; expected [2, E]")
    if data.num_nodes is None:
        raise InputError("data has neither node attributes nor edges; expected x, edge_index or num_nodes")


def dataloader(given: dict[str, Any], filter_per_worker: bool | None, own: Iterable[str]) -> dict[str, Any]:
    """Select the arguments that torch's DataLoader takes, and warn of those without effect.

    Args:
        given: arguments that the loader does not name itself.
        filter_per_worker: the caller's value; None: not given.
        own: names of the loader's own arguments, for hints.
    """
    for name in given:
        if name not in DATALOADER and name not in DROPPED and name not in REFUSED:
            known = [*own, *DATALOADER, *DROPPED, *REFUSED]
            raise UnknownArgumentError(f"NeighborLoader has no argument '{name}'{nearest(name, known)}")
    for name, why in REFUSED.items():
        if given.get(name) is not None:
            raise InputError(f"{name} is not supported: {why}")
    for name in ("sampler", "batch_sampler"):
        if given.get(name) is not None and not (hasattr(given[name], "__iter__") and hasattr(given[name], "__len__")):
            raise InputError(
                f"{name} is {type(given[name]).__name__}; expected an iterable with a length, such as a torch Sampler"
            )
    idle = {**DATALOADER, **DROPPED}
    ignored = [
        n for n, nothing in idle.items() if n not in EFFECTIVE and given.get(n) is not None and given[n] != nothing
    ]
    if filter_per_worker is not None:
        ignored.append("filter_per_worker")
    if ignored:
        text = f"NeighborLoader ignores {', '.join(ignored)}: it has no worker processes, a thread samples ahead"
        warnings.warn(text, UserWarning, stacklevel=3)
    return {n: v for n, v in given.items() if n in DATALOADER}


def temporal_strategy(given: Any, time_attr: Any, input_time: Any) -> bool:
    """True if the latest edges are drawn. Refuse times without `time_attr`."""
    if given not in STRATEGIES:
        hint = nearest(given, STRATEGIES) if isinstance(given, str) else ""
        raise InputError(f"temporal_strategy is {given!r}; expected one of {', '.join(STRATEGIES)}{hint}")
    for name, asked in (("input_time", input_time is not None), ("temporal_strategy", given != STRATEGIES[0])):
        if asked and time_attr is None:
            raise InputError(f"{name} is given without time_attr; name the attribute of data that holds the times")
    return given == "last"


def subgraph_type(given: Any, directed: bool, disjoint: bool) -> str:
    """PyG's `subgraph_type` as a word; the deprecated ``directed=False`` means "induced"."""
    if not directed:
        warnings.warn("directed=False is deprecated: use subgraph_type='induced'", UserWarning, stacklevel=3)
        given = "induced"
    word = getattr(given, "value", given)
    if word not in SUBGRAPH_TYPES:
        hint = nearest(word, SUBGRAPH_TYPES) if isinstance(word, str) else ""
        raise InputError(f"subgraph_type is {word!r}; expected one of {', '.join(SUBGRAPH_TYPES)}{hint}")
    if disjoint and word == "induced":
        raise InputError("disjoint is not supported with subgraph_type 'induced', as in PyG; set one of them")
    return word


def positions(given: Any, size: int, what: str) -> npt.NDArray[np.int64]:
    """Positions among `size` input nodes, int64 [B], from a tensor, an array or any sequence of whole numbers."""
    try:
        values = given.tolist() if hasattr(given, "tolist") else given
        found = np.fromiter((_whole(i) for i in values), np.int64)
    except TypeError:
        raise InputError(f"{what} is {given!r}; expected positions in input_nodes, whole numbers [B]") from None
    if len(found) and (found.min() < 0 or found.max() >= size):
        raise InputError(
            f"{what} holds positions in [{found.min()}, {found.max()}]; expected [0, {size}), positions in input_nodes"
        )
    return found


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a mask is not a list of positions")
    return index(value)


def count(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} is {value!r}; expected a whole number, {least} or more")
    return int(value)


def sampler(num_neighbors: Any, replace: bool, weighted: bool) -> NeighborSampler:
    """The sampler described by PyG's arguments."""
    from torch_geometric.sampler import NumNeighbors

    values = num_neighbors.values if isinstance(num_neighbors, NumNeighbors) else num_neighbors
    if isinstance(values, dict):
        raise InputError(
            "num_neighbors for each edge type is not supported; expected one number for each hop, such as [15, 10, 5]"
        )
    try:
        fanout = tuple(index(n) for n in values)
    except TypeError:
        raise InputError(
            f"num_neighbors is {num_neighbors!r}; expected one number for each hop, such as [15, 10, 5]"
        ) from None
    try:
        return NeighborSampler(fanout, replace=bool(replace), weighted=weighted, edge_ids=True)
    except InputError as e:
        raise InputError(f"num_neighbors: {e}") from None


def graph(data: Any, weight_attr: str | None) -> Graph:
    """In-neighbour lists of `data`, with the columns of ``edge_index`` as edge ids."""
    edges = (
        np.empty((2, 0), np.int64) if data.edge_index is None else tensor("data.edge_index", data.edge_index).numpy()
    )
    num_edges = edges.shape[1]
    weight = None
    if weight_attr is not None:
        if not isinstance(weight_attr, str):
            raise InputError(f"weight_attr is {weight_attr!r}; expected the name of an edge attribute")
        if weight_attr not in data:
            raise InputError(
                f"weight_attr is '{weight_attr}', but data has no such "
                f"attribute{nearest(weight_attr, list(data.keys()))}"
            )
        weight = tensor(f"data.{weight_attr}", data[weight_attr]).numpy()
        if weight.shape != (num_edges,):
            raise InputError(
                f"weight_attr: data.{weight_attr} has shape {list(weight.shape)}; expected [{num_edges}], one for each "
                "edge"
            )
        weight = weight.astype(np.float32)
        if not np.isfinite(weight).all() or (weight < 0).any():
            raise InputError(
                f"weight_attr: data.{weight_attr} holds negative, NaN or infinite values; expected finite values >= 0"
            )
    return from_edges(edges[0], edges[1], data.num_nodes, edge_weight=weight, keep_edge_id=True)


def tensor(name: str, value: Any) -> Tensor:
    """The argument `name` as a tensor in host memory."""
    try:
        return torch.as_tensor(value.as_tensor() if hasattr(value, "as_tensor") else value).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{name} is {type(value).__name__}; expected a tensor, an array or a list of numbers"
        ) from None


def check_kinds(seed: Any, generator: Any, **functions: Any) -> None:
    """Raise InputError if `seed`, `generator` or one of `functions` has another type."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer))):
        raise InputError(f"seed is {seed!r}; expected a whole number")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputError(f"generator is {type(generator).__name__}; expected a torch.Generator")
    if seed is not None and generator is not None:
        raise InputError("both seed and generator are given; expected one of them")
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InputError(f"{name} is {type(function).__name__}; expected a function")


def input_nodes(given: Any, num_nodes: int) -> tuple[npt.NDArray[np.int64], Tensor]:
    """The seeds, int64 [N], and the `input_id` of each, int64 [N]."""
    if given is None:
        return np.arange(num_nodes), torch.arange(num_nodes)
    if isinstance(given, str) or (isinstance(given, (tuple, list)) and given and isinstance(given[0], str)):
        raise InputError("input_nodes names a node type, which is not supported; expected node ids or a boolean mask")
    nodes = tensor("input_nodes", given).numpy()
    if nodes.dtype == np.bool_:
        if nodes.shape != (num_nodes,):
            raise InputError(f"input_nodes is a mask of shape {list(nodes.shape)}; expected [{num_nodes}]")
        seeds = np.flatnonzero(nodes)
        return seeds, torch.from_numpy(seeds.copy())
    if nodes.ndim != 1 or (len(nodes) and not np.issubdtype(nodes.dtype, np.integer)):
        raise InputError(
            f"input_nodes is {nodes.dtype}{list(nodes.shape)}; expected integer node ids [N] or a boolean mask "
            f"[{num_nodes}]"
        )
    seeds = nodes.astype(np.int64)
    if len(seeds) and (seeds.min() < 0 or seeds.max() >= num_nodes):
        raise InputError(f"input_nodes lie in [{seeds.min()}, {seeds.max()}]; expected [0, {num_nodes})")
    return seeds, torch.arange(len(seeds))


def times(
    data: Any, graph: Graph, seeds: npt.NDArray[np.int64], time_attr: Any, input_time: Any, weighted: bool
) -> tuple[TimedGraph, npt.NDArray[np.number], Tensor | None]:
    """The graph with the times of its edges, and those of the seeds, [N], also as they were given.

    Args:
        data: has the attribute `time_attr` of nodes or edges. An edge of a node's time has that of its source.
        graph: of `data`, with edge ids.
        seeds: int64 [N].
        time_attr: argument of the loader.
        input_time: likewise; None: the seeds' own times.
        weighted: True if edges are drawn by weight.
    """
    if not isinstance(time_attr, str) or time_attr not in data:
        hint = nearest(time_attr, list(data.keys())) if isinstance(time_attr, str) else ""
        raise InputError(
            f"time_attr is {time_attr!r}; expected the name of an attribute of data's nodes or edges{hint}"
        )
    if weighted:
        raise InputError("both time_attr and weight_attr are given; expected one of them, as in PyG")
    time = _numbers(f"time_attr: data.{time_attr}", data[time_attr])
    of_nodes = data.is_node_attr(time_attr)
    expected = graph.num_nodes if of_nodes else graph.num_edges
    if time.shape != (expected,):
        raise InputError(
            f"time_attr: data.{time_attr} has shape {list(time.shape)}; expected [{graph.num_nodes}], one for each "
            f"node, or [{graph.num_edges}], one for each edge"
        )
    assert graph.edge_id is not None
    try:
        timed = TimedGraph.of(graph, time[graph.indices] if of_nodes else time[graph.edge_id])
    except InputError as e:
        raise InputError(f"time_attr: data.{time_attr}: {e}") from None
    if input_time is None and not of_nodes:
        raise InputError(f"time_attr is '{time_attr}', a time of edges; give the seeds theirs by input_time")
    given = None if input_time is None else tensor("input_time", input_time)
    moments = time[seeds] if given is None else _numbers("input_time", given)
    if moments.shape != (len(seeds),):
        raise InputError(
            f"input_time has shape {list(moments.shape)}; expected [{len(seeds)}], one for each input node"
        )
    if np.isnan(moments).any():
        raise InputError("input_time holds NaN; expected numbers")
    return timed, moments, given


def _numbers(name: str, value: Any) -> npt.NDArray[np.number]:
    array = tensor(name, value).numpy()
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)):
        raise InputError(f"{name} is {array.dtype}; expected numbers")
    return array
