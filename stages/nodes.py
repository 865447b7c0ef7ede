"""Node selections by a caller: all, ids in any form, a mask, names, or a split."""

from typing import Any

import numpy as np
from torch import Tensor

from ..storage.dataset import SPLITS, Dataset, IdArray, is_labelled
from ..storage.errors import InputError, nearest
from ..storage.node_names import NodeNames

WANTED = "expected ids of nodes (a list, an array or a tensor), a mask [V], or train, val, test, unlabelled or all"

UNLABELLED = "unlabelled"
BY_LABELS = (*SPLITS, UNLABELLED)
"""Words for nodes that depend on the labels of a dataset."""


def node_ids(nodes: Any, num_nodes: int, dataset: Dataset | None = None, first: int = 0) -> IdArray:
    """int64 [n], the selected nodes, in the caller's order; they may repeat.

    Args:
        nodes: None or ``"all"``, one id, a list, range, set, array or tensor of ids, a boolean mask [V], or, of a
            dataset, a split's name, ``"unlabelled"``, or names of nodes. Where names are integers, integers are names.
        num_nodes: V.
        dataset: has the splits and the names.
        first: number of node 0 among those of the dataset.

    Raises:
        InputError: anything else, an id outside [0, V), or a name that nodes of several types have.
    """
    if nodes is None or (isinstance(nodes, str) and nodes == "all"):
        return np.arange(num_nodes, dtype=np.int64)
    if isinstance(nodes, str) and dataset is not None and nodes in BY_LABELS:
        if dataset.of_pairs:
            lacks = f"the sets of {dataset.name} are of pairs; expected ids of nodes"
            if nodes == UNLABELLED:
                lacks = f"{dataset.name} has no labels of nodes; expected ids"
            raise InputError(f"nodes is '{nodes}', but {lacks}, or all")
        unlabelled = nodes == UNLABELLED
        return np.flatnonzero(~is_labelled(dataset.labels[:num_nodes])) if unlabelled else getattr(dataset.split, nodes)
    found = _array(nodes)
    names = None
    if found.dtype.kind in "Uiu" and found.ndim < 2 and dataset is not None and dataset.node_names is not None:
        names = NodeNames.from_values(dataset.node_names).between(range(first, first + num_nodes))
    if dataset is not None and names is not None and found.dtype.kind == "U":
        # Nodes of other types may have the same names.
        wanted = found.reshape(-1).tolist()
        if not dataset.graph.types.is_single and (name := names.repeated(wanted)) is not None:
            raise InputError(
                f"nodes of several types are called '{name}'; give the name of a node type, or in Python ids"
            )
        return names.find(wanted)
    if found.dtype.kind == "U":
        raise InputError(f"nodes are {_shown(found)}; {WANTED}{nearest(str(found.flat[0]), SPLITS)}")
    if found.dtype == object and found.size and all(type(v) is int for v in found.flat):
        raise InputError(f"nodes lie in [{found.min()}, {found.max()}]; expected [0, {num_nodes})")
    if found.dtype == bool:
        if found.shape != (num_nodes,):
            raise InputError(f"nodes are a mask {list(found.shape)}; expected [{num_nodes}], true or false per node")
        return np.flatnonzero(found)
    if found.dtype.kind not in "iu" or found.ndim > 1:
        raise InputError(f"nodes are {found.dtype}{list(found.shape)}; {WANTED}")
    if names is not None:
        found = names.meant(found.reshape(-1))
    if found.size and (found.min() < 0 or found.max() >= num_nodes):
        raise InputError(f"nodes lie in [{found.min()}, {found.max()}]; expected [0, {num_nodes})")
    return found.reshape(-1).astype(np.int64)


def _array(nodes: Any) -> np.ndarray[Any, np.dtype[Any]]:
    if isinstance(nodes, Tensor):
        return nodes.detach().cpu().numpy()
    try:
        found = np.asarray(sorted(nodes) if isinstance(nodes, set | frozenset) else nodes)
    except (TypeError, ValueError):
        raise InputError(f"nodes are a {type(nodes).__name__} that is no array; {WANTED}") from None
    # An empty list has no dtype of its own.
    return found.astype(np.int64) if found.shape == (0,) else found


def _shown(names: np.ndarray[Any, np.dtype[Any]]) -> str:
    first = ", ".join(f"'{name}'" for name in names.flat[:3])
    return first if names.size <= 3 else f"{first}, ..."
