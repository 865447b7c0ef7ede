"""Arguments of `NeighborLoader`: checked, refused by name, and converted into Millrace's own messages."""

import warnings
from collections.abc import Iterable
from inspect import signature
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ...stages.sample.neighbor import NeighborSampler
from ...stages.sample.temporal import STRATEGIES
from ...storage.array_kinds import Float32Array, Float64Array, IdArray, IntArray, NumberArray
from ...storage.errors import InputError, nearest, one_of, whole_number

SUBGRAPH_TYPES = ("directional", "bidirectional", "induced")
NAMED = ("dataset", "batch_size", "shuffle", "num_workers", "collate_fn", "drop_last", "generator")
DATALOADER = {n: p.default for n, p in signature(DataLoader.__init__).parameters.items() if n not in ("self", *NAMED)}
"""Arguments of torch's DataLoader that `NeighborLoader` does not name itself, and their values without effect."""
DROPPED = {"collate_fn": None, "dataset": None}
"""Arguments of torch's DataLoader that PyG's loader drops."""
EFFECTIVE = ("sampler", "batch_sampler", "pin_memory")
"""Arguments in `DATALOADER` that act as in a DataLoader. The others are for worker processes."""


class UnknownArgumentError(InputError, TypeError):
    """An argument that `NeighborLoader` does not have."""


def given(local: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a loader's ``__init__``, whose further ones are `dataloader`."""
    out = {name: value for name, value in local.items() if name not in ("self", "dataloader", "__class__")}
    return {**out, **local["dataloader"]}


def dataloader(
    given: dict[str, Any], filter_per_worker: bool | None, own: Iterable[str], loader: str
) -> dict[str, Any]:
    """Select the arguments that torch's DataLoader takes, and warn of those without effect.

    Args:
        given: arguments that the loader does not name itself.
        filter_per_worker: the caller's value; None: not given.
        own: names of the loader's own arguments, for hints.
        loader: the loader's name.
    """
    for name in given:
        if name not in DATALOADER and name not in DROPPED:
            known = [*own, *DATALOADER, *DROPPED]
            raise UnknownArgumentError(f"{loader} has no argument '{name}'{nearest(name, known)}")
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
        text = f"{loader} ignores {', '.join(ignored)}: it has no worker processes, a thread samples ahead"
        warnings.warn(text, UserWarning, stacklevel=5)
    return {n: v for n, v in given.items() if n in DATALOADER}


def temporal_strategy(given: Any, time_attr: Any) -> bool:
    """True if the latest edges are drawn."""
    if given not in STRATEGIES:
        raise InputError(f"temporal_strategy is {given!r}; {one_of(str(given), STRATEGIES)}")
    if given != STRATEGIES[0] and time_attr is None:
        raise InputError("temporal_strategy is given without time_attr; name the attribute that holds the times")
    return given == "last"


def subgraph_type(given: Any, directed: bool, disjoint: bool) -> str:
    """PyG's `subgraph_type` as a word; the deprecated ``directed=False`` means "induced"."""
    if not directed:
        warnings.warn("directed=False is deprecated: use subgraph_type='induced'", UserWarning, stacklevel=5)
        given = "induced"
    word = getattr(given, "value", given)
    if word not in SUBGRAPH_TYPES:
        raise InputError(f"subgraph_type is {word!r}; {one_of(str(word), SUBGRAPH_TYPES)}")
    if disjoint and word == "induced":
        raise InputError("disjoint is not supported with subgraph_type 'induced', as in PyG; set one of them")
    return word


def positions(given: Any, size: int, what: str) -> IdArray:
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


def sampler(
    num_neighbors: Any, replace: bool, weighted: bool, relations: dict[str, int | tuple[int, ...]] | None = None
) -> NeighborSampler | None:
    """The sampler described by PyG's arguments; None if there are no hops: a minibatch has its seeds only.

    Args:
        num_neighbors: one number for each hop.
        replace: draw with replacement.
        weighted: draw by weight.
        relations: numbers of single relations, see `NeighborSampler.relations`.
    """
    fanout = whole_numbers(num_neighbors, "num_neighbors", "one number for each hop, such as [15, 10, 5]")
    if not fanout:
        return None
    try:
        return NeighborSampler(
            fanout, replace=bool(replace), weighted=weighted, edge_ids=True, relations=relations or {}
        )
    except InputError as e:
        raise InputError(f"num_neighbors: {e}") from None


def whole_numbers(given: Any, name: str, expected: str) -> tuple[int, ...]:
    """A list of whole numbers."""
    try:
        return tuple(index(n) for n in given)
    except TypeError:
        raise InputError(f"{name} is {given!r}; expected {expected}") from None


def tensor(name: str, value: Any) -> Tensor:
    """The argument `name` as a tensor in host memory."""
    try:
        return torch.as_tensor(value.as_tensor() if hasattr(value, "as_tensor") else value).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} is {type(value).__name__}; expected a tensor, an array or a list") from None


def check_kinds(seed: object, generator: object, **functions: object) -> None:
    """Raise InputError if `seed`, `generator` or one of `functions` has another type."""
    if seed is not None:
        whole_number("seed", seed)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputError(f"generator is {type(generator).__name__}; expected a torch.Generator")
    if seed is not None and generator is not None:
        raise InputError("both seed and generator are given; expected one of them")
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InputError(f"{name} is {type(function).__name__}; expected a function")


def input_nodes(given: Any, num_nodes: int, name: str = "input_nodes") -> tuple[IdArray, Tensor]:
    """The seeds, int64 [N], and the `input_id` of each, int64 [N]."""
    if given is None:
        return np.arange(num_nodes), torch.arange(num_nodes)
    nodes = tensor(name, given).numpy()
    if nodes.dtype == np.bool_:
        if nodes.shape != (num_nodes,):
            raise InputError(f"{name} is a mask of shape {list(nodes.shape)}; expected [{num_nodes}]")
        seeds = np.flatnonzero(nodes)
        return seeds, torch.from_numpy(seeds.copy())
    if nodes.ndim != 1 or (len(nodes) and not np.issubdtype(nodes.dtype, np.integer)):
        raise InputError(
            f"{name} is {nodes.dtype}{list(nodes.shape)}; expected integer node ids [N] or a boolean mask [{num_nodes}]"
        )
    seeds = nodes.astype(np.int64)
    if len(seeds) and (seeds.min() < 0 or seeds.max() >= num_nodes):
        raise InputError(f"{name} lie in [{seeds.min()}, {seeds.max()}]; expected [0, {num_nodes})")
    return seeds, torch.arange(len(seeds))


def numbers(name: str, value: Any) -> NumberArray:
    array = tensor(name, value).numpy()
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)):
        raise InputError(f"{name} is {array.dtype}; expected numbers")
    return array


def edges(name: str, given: Any) -> IntArray:
    """The edge list `name`, integers [2, E]."""
    if given is None:
        return np.empty((2, 0), np.int64)
    if given.ndim != 2 or given.shape[0] != 2:
        raise InputError(f"{name} has shape {list(given.shape)}; expected [2, E]")
    return tensor(name, given).numpy()


def weights(name: str, given: Any, num_edges: int) -> Float32Array:
    """The edge attribute `name` as weights, float32 [E], finite and non-negative."""
    weight = tensor(name, given).numpy()
    if weight.shape != (num_edges,):
        raise InputError(
            f"weight_attr: {name} has shape {list(weight.shape)}; expected [{num_edges}], one for each edge"
        )
    weight = weight.astype(np.float32)
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise InputError(f"weight_attr: {name} holds negative, NaN or infinite values; expected finite values >= 0")
    return weight


def node_weights(neg_sampling: Any, name: str, ids: range) -> Float64Array | None:
    """float64 [n], weights of the nodes `ids` as ends of negatives; None: uniform."""
    given = getattr(neg_sampling, name, None)
    if given is None:
        return None
    weight = tensor(f"neg_sampling.{name}", given).double().numpy()
    sound = weight.shape == (len(ids),) and np.isfinite(weight).all() and (weight >= 0).all()
    if not sound or not weight.sum():
        raise InputError(
            f"neg_sampling.{name} has shape {list(weight.shape)}; expected [{len(ids)}] numbers from 0, not all 0"
        )
    return weight


def moments(name: str, given: Any, count: int, of: str) -> NumberArray:
    """Times of the inputs of a loader, [N]."""
    found = numbers(name, given)
    if found.shape != (count,):
        raise InputError(f"{name} has shape {list(found.shape)}; expected [{count}], one for each {of}")
    if np.isnan(found).any():
        raise InputError(f"{name} holds NaN; expected numbers")
    return found
