"""Datasets with several types of nodes and edges, from arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ....storage.array_kinds import AnyArray
from ....storage.dataset import SPLITS, Dataset
from ....storage.errors import InputError
from ....storage.optional import when_present
from ....storage.typed.graph_types import RelationType
from ..cleaning.clean import clean
from ..cleaning.options import DEFAULT_OPTIONS, ReadOptions
from ..cleaning.raw import GivenLabels, Raw, RawEdges, RawNodes
from ..cleaning.typed import check_followed


def from_relations(
    edges: Mapping[RelationType, Any],
    labels: npt.ArrayLike | None = None,
    *,
    target: str | None = None,
    num_nodes: Mapping[str, int] | None = None,
    features: Mapping[str, Any] | None = None,
    edge_weights: Mapping[RelationType, Any] | None = None,
    edge_times: Mapping[RelationType, Any] | None = None,
    node_times: Mapping[str, Any] | None = None,
    edge_features: Mapping[RelationType, Any] | None = None,
    train: npt.ArrayLike | None = None,
    val: npt.ArrayLike | None = None,
    test: npt.ArrayLike | None = None,
    add_reverse: bool = False,
    name: str = "relations",
    options: ReadOptions = DEFAULT_OPTIONS,
    split: str | None = None,
    seed: int = 0,
) -> Dataset:
    """A dataset with several types of nodes and edges.

    Nodes of the target type keep their ids, 0 to n - 1; those of the other types follow, type by type. All edges are
    kept as they are.

    Args:
        edges: for each ``(source type, relation, destination type)`` two vectors, or integers [2, E]: ids of sources
            and of destinations, each within its type. Messages flow from sources to destinations.
        labels: of the nodes of the target type, see `from_scipy`. None: there are none, as for `link_dataset`; types
            are then in the order of `num_nodes` and `features`.
        target: the node type that is predicted, of labels.
        num_nodes: number of nodes of a type, for types without features.
        features: [n, F] numbers of a node type; F may differ from type to type. None, or no entry: it has none.
        edge_weights: [E] of a relation, finite and not negative; edges of other relations then count 1.
        edge_times: [E] numbers or dates of a relation. Edges of others have the times of their sources.
        node_times: [n] of a node type, likewise. Nodes and edges without times have been there always.
        edge_features: [E, D] finite numbers of a relation, or [E]; D may differ from relation to relation. None, or no
            entry: its edges have none.
        train: ids or a mask of nodes of the target type; if train, val and test are all None, there is no stored split.
        val: see `train`.
        test: see `train`.
        add_reverse: add the relation ``rev_NAME`` with all edges reversed, for each relation.
        name: name of the dataset.
        options: treatment of defects of features, labels and splits.
        split: of the labelled nodes, see `open_dataset`.
        seed: seed of a random split.

    Raises:
        InputError: names the relation or node type with the defect.
    """
    check_followed(name, options)
    if options.target not in (None, target):
        raise InputError(f"{name}: target is '{target}' and the option target '{options.target}'; expected one of them")
    stored = {part: host(ids) for part, ids in zip(SPLITS, (train, val, test)) if ids is not None}
    if (labels is None) != (target is None) or (labels is None and (stored or split is not None)):
        raise InputError(f"{name}: labels, target and train, val, test, split go together; give both labels and target")
    given = when_present(lambda y: GivenLabels(host(y)), labels)
    counts, rows, times = num_nodes or {}, _on_host(features), node_times or {}
    weights, attr, moments = _on_host(edge_weights), _on_host(edge_features), edge_times or {}
    for what, own in (("weights", weights), ("features of edges", attr), ("times of edges", moments)):
        _check_known(f"there are {what} of", own, edges, "no relation")
    types = dict.fromkeys(str(t) for t in (*([] if target is None else [target]), *counts, *rows))
    _check_known("there are times of nodes of", times, types, "no node type")
    of_edges = {k: RawEdges(ends, weights.get(k), attr.get(k), time=moments.get(k)) for k, ends in edges.items()}
    nodes = {t: RawNodes(rows.get(t), time=times.get(t), count=counts.get(t)) for t in types}
    raw = Raw(name, of_edges, given, nodes, target, split=stored, add_reverse=add_reverse)
    return clean(raw, options, split, seed)


def _check_known(text: str, given: Mapping[Any, Any], known: Mapping[Any, Any], what: str) -> None:
    if key := next((k for k in given if k not in known), None):
        shown = key if isinstance(key, str) else ",".join(map(str, key))
        raise InputError(f"{text} {shown}, which is {what}; leave them out")


def _on_host(given: Mapping[Any, Any] | None) -> dict[Any, Any]:
    """Arrays by name, tensors among them as arrays."""
    return {key: host(value) if hasattr(value, "detach") else value for key, value in (given or {}).items()}


def host(tensor: Any) -> AnyArray:
    """A tensor as a dense array on the host, bfloat16 as float32; what is no tensor as an array."""
    if not callable(getattr(tensor, "detach", None)):
        return np.asarray(tensor)
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    return (tensor if str(tensor.layout) == "torch.strided" else tensor.to_dense()).numpy()
