"""A PyG `HeteroData` as a graph that `NeighborLoader` samples, and its minibatches.

All node types share one range of ids, and edge ids are columns of the ``edge_index`` of all edge types, one after the
other: so that a minibatch is sampled as one graph, and then split.
"""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...stages.kernels.row_block.relation_rows import RelationRows
from ...stages.sample.neighbor import NeighborSampler
from ...stages.sample.single.trees import Times, drawable
from ...stages.sample.temporal import TimedGraph
from ...storage.array_kinds import Float32Array, IdArray
from ...storage.errors import InputError, nearest
from ...storage.graph import Graph, index_dtype
from ...storage.typed.graph_types import GraphTypes
from ..datasets.cleaning.relations import graph_of_relations
from . import pyg_arguments as arguments

EdgeType = tuple[str, str, str]


class ManyTypes:
    """A `torch_geometric.data.HeteroData`; see `pyg_one_type.OneType`, which has the same methods."""

    def __init__(self, data: Any, weight_attr: Any) -> None:
        """
        Args:
            data: every node type has attributes or ``num_nodes``, every edge type an ``edge_index``.
            weight_attr: argument of the loader; edge types without it are drawn uniformly.

        Raises:
            InputError: names the type with the defect.
        """
        self.data, self.weighted = data, weight_attr is not None
        counts = [_num_nodes(data, t) for t in data.node_types]
        if not counts:
            raise InputError("data has no node types; expected at least one, with x or num_nodes")
        offsets = tuple(np.concatenate([[0], np.cumsum(counts)]).tolist())
        self.types = types = GraphTypes(tuple(data.node_types), offsets, tuple(data.edge_types)).check(offsets[-1])
        edges = {r: self._edges(r) for r in types.relations}
        self.first_edge = np.concatenate([[0], np.cumsum([len(src) for src, _ in edges.values()])]).astype(np.int64)
        """int64 [R+1], the first edge id of each edge type, and E."""
        if edges:
            graph = graph_of_relations(edges, types, keep_edge_id=True)
            graph = replace(graph, edge_id=graph.input_edges + self.first_edge[graph.edge_relations])
        else:
            nothing = np.empty(0, index_dtype(offsets[-1]))
            indptr, kinds = np.zeros(offsets[-1] + 1, np.int64), np.empty(0, types.edge_dtype)
            graph = Graph(indptr, nothing, None, np.empty(0, np.int64), None, types, edge_type=kinds)
        if self.weighted:
            graph = replace(graph, edge_weight=self._weights(weight_attr)[graph.edge_id])
        self.graph, self.relations = graph, RelationRows.from_graph(drawable(graph))

    def _edges(self, relation: EdgeType) -> tuple[IdArray, IdArray]:
        """Global ids of an edge type's sources and destinations."""
        store, name = self.data[relation], _name(relation)
        if "edge_index" not in store:
            other = " (adj_t is not read: do not apply ToSparseTensor)" if "adj_t" in store else ""
            raise InputError(f"{name} has no edge_index; expected [2, E]{other}")
        ends = arguments.edges(f"{name}.edge_index", store.edge_index)
        for i, (side, end) in enumerate(zip(ends, (relation[0], relation[2]))):
            if not len(side):
                continue
            if side.dtype.kind not in "iu":
                raise InputError(f"{name}.edge_index holds {side.dtype}; expected integer node ids")
            count = self.types.num_nodes(self.types.node_type(end))
            if side.min() < 0 or side.max() >= count:
                raise InputError(
                    f"{'destinations' if i else 'sources'} of {name} lie in [{side.min()}, {side.max()}]; expected "
                    f"[0, {count}), nodes of '{end}'"
                )
        first = [self.types.offsets[self.types.node_type(end)] for end in (relation[0], relation[2])]
        return ends[0].astype(np.int64) + first[0], ends[1].astype(np.int64) + first[1]

    def _attribute(self, argument: str, name: Any, kinds: tuple[Any, ...], what: str) -> list[Any]:
        """The types in `kinds` that have the attribute `name`, the value of `argument`."""
        with_it = [t for t in kinds if isinstance(name, str) and name in self.data[t]]
        if not with_it:
            known = sorted({key for t in kinds for key in self.data[t].keys()})  # noqa: SIM118
            hint = nearest(name, known) if isinstance(name, str) else ""
            raise InputError(f"{argument} is {name!r}; expected the name of an attribute of {what}{hint}")
        return with_it

    def _weights(self, weight_attr: Any) -> Float32Array:
        """float32 [E], by edge id."""
        weight = np.ones(self.first_edge[-1], np.float32)
        for r in self._attribute("weight_attr", weight_attr, self.types.relations, "an edge type"):
            first, stop = self._span(r)
            weight[first:stop] = arguments.weights(f"{_name(r)}.{weight_attr}", self.data[r][weight_attr], stop - first)
        return weight

    def _span(self, relation: EdgeType) -> tuple[int, int]:
        number = self.types.relations.index(relation)
        return int(self.first_edge[number]), int(self.first_edge[number + 1])

    def sampler(self, num_neighbors: Any, replace: bool) -> NeighborSampler | None:
        from torch_geometric.sampler import NumNeighbors

        default = None
        if isinstance(num_neighbors, NumNeighbors):
            default, num_neighbors = num_neighbors.default, num_neighbors.values
        if not isinstance(num_neighbors, dict):
            return arguments.sampler(num_neighbors, replace, self.weighted)
        given = {}
        for key, numbers in num_neighbors.items():
            relation = self.edge_type(key.to_tuple() if hasattr(key, "to_tuple") else key, "num_neighbors")
            if relation not in self.types.relations:
                names = [",".join(r) for r in self.types.relations]
                raise InputError(
                    f"num_neighbors is for the edge type {','.join(relation)}, which is not there; expected "
                    f"{' or '.join(names)}{nearest(','.join(relation), names)}"
                )
            what = f"num_neighbors of {','.join(relation)}"
            given[relation] = arguments.whole_numbers(numbers, what, "one number for each hop")
        for relation in self.types.relations:
            if relation not in given:
                if default is None:
                    raise InputError(
                        f"num_neighbors has nothing for the edge type {','.join(relation)}; expected numbers for each, "
                        "[0, ...] to leave one out"
                    )
                given[relation] = arguments.whole_numbers(default, "num_neighbors", "one number for each hop")
        lengths = {len(numbers): ",".join(r) for r, numbers in given.items()}
        if len(lengths) > 1:
            shown = " and ".join(f"{n} for {name}" for n, name in lengths.items())
            raise InputError(f"num_neighbors has {shown}: the number of hops must be the same across all edge types")
        # Each relation has numbers of its own: these are for none.
        whole = (1,) * next(iter(lengths), 0)
        return arguments.sampler(whole, replace, self.weighted, {",".join(r): given[r] for r in self.types.relations})

    def input_nodes(self, given: Any) -> tuple[str, Tensor, Tensor]:
        """The seeds' type, their ids, int64 [N], and the `input_id` of each, int64 [N]."""
        name, nodes = (given, None) if isinstance(given, str) else (None, None)
        if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], str):
            name, nodes = given
        if name is None:
            raise InputError(
                f"input_nodes is {_shown(given)}; expected a node type, or (node type, ids or a mask), such as "
                f"('{self.types.node_types[0]}', mask): data is a HeteroData"
            )
        try:
            number = self.types.node_type(name)
        except InputError as e:
            raise InputError(f"input_nodes: {e}") from None
        seeds, ids = arguments.input_nodes(nodes, self.types.num_nodes(number), f"input_nodes of '{name}'")
        return name, torch.from_numpy(seeds), ids

    def edge_type(self, given: Any, argument: str) -> EdgeType:
        """An edge type in one of PyG's forms: three names, the types of its ends, or its own name."""
        names = (given,) if isinstance(given, str) else given
        if not isinstance(names, tuple | list) or not all(isinstance(n, str) for n in names) or len(names) > 3:
            raise InputError(f"{argument} is {_shown(given)}; expected an edge type (source type, name, type)")
        if len(names) == 3:
            return names[0], names[1], names[2]
        found = [r for r in self.types.relations if (r[1],) == tuple(names) or (r[0], r[2]) == tuple(names)]
        if len(found) == 1:
            return found[0]
        if not found and len(names) == 2:
            return names[0], "to", names[1]
        shown = " or ".join(",".join(r) for r in found or self.types.relations)
        raise InputError(f"{argument} names {len(found)} edge types by {','.join(names)}; expected one of {shown}")

    def input_edges(self, given: Any) -> tuple[EdgeType, Any]:
        """The pairs' type, and the pairs [2, N] as they were given, or all edges of the type."""
        if not isinstance(given, tuple | list) or not given:
            raise InputError(
                "edge_label_index is for a HeteroData, and needs an edge type; expected (edge type, pairs [2, N]), or "
                "an edge type for all its edges"
            )
        named, pairs = (given, None) if all(isinstance(n, str) for n in given) else (given[0], given[1:])
        if pairs is not None and len(pairs) != 1:
            raise InputError(f"edge_label_index has {len(given)} parts; expected (edge type, pairs [2, N])")
        relation = self.edge_type(named, "edge_label_index")
        for end in (relation[0], relation[2]):
            try:
                self.types.node_type(end)
            except InputError as e:
                raise InputError(f"edge_label_index: {e}") from None
        if pairs is None or pairs[0] is None:
            if relation not in self.types.relations:
                raise InputError(
                    f"edge_label_index names the edge type {','.join(relation)}, which has no edges; expected pairs "
                    "[2, N] with it"
                )
            return relation, self.data[relation].edge_index
        return relation, pairs[0]

    def ends(self, edge_type: Any) -> tuple[range, range]:
        """Global ids that sources and destinations of a type may have."""
        found = [self.types.node_type(end) for end in (edge_type[0], edge_type[2])]
        source, destination = (range(self.types.offsets[t], self.types.offsets[t + 1]) for t in found)
        return source, destination

    def times(self, time_attr: Any, last: bool) -> Times:
        """The rows by relation in the order of time: an edge has its own time, or its source's. What has none is drawn
        as without times, as in PyG."""
        everywhere = (*self.types.node_types, *self.types.relations)
        with_it = self._attribute("time_attr", time_attr, everywhere, "a node type or an edge type")
        of_nodes = isinstance(with_it[0], str)
        if of_nodes != isinstance(with_it[-1], str):
            first, other = with_it[0], with_it[-1]
            raise InputError(
                f"time_attr is '{time_attr}', which both {_name(first)} and {_name(other)} have; expected times of "
                "nodes, or of edges: rename one of them"
            )
        values = {t: arguments.numbers(f"time_attr: {_name(t)}.{time_attr}", self.data[t][time_attr]) for t in with_it}
        whole = all(np.issubdtype(value.dtype, np.integer) for value in values.values())
        earliest, dtype = (np.iinfo(np.int64).min, np.int64) if whole else (-np.inf, np.float64)
        time = np.full(self.types.offsets[-1] if of_nodes else self.first_edge[-1], earliest, dtype)
        for t, value in values.items():
            first, stop = self._nodes(t) if of_nodes else self._span(t)
            if value.shape != (stop - first,):
                raise InputError(
                    f"time_attr: {_name(t)}.{time_attr} has shape {list(value.shape)}; expected [{stop - first}], one "
                    f"for each {'node' if of_nodes else 'edge'}"
                )
            if np.isnan(value).any():
                raise InputError(f"time_attr: {_name(t)}.{time_attr} holds NaN; expected numbers")
            time[first:stop] = value
        rows = self.relations.graph
        timed = TimedGraph.from_graph(rows, time[rows.indices if of_nodes else rows.input_edges])
        lasts = tuple(last and (r[0] if of_nodes else r) in values for r in self.types.relations)
        return Times(timed, lasts, time if of_nodes else None, frozenset(values if of_nodes else ()))

    def _nodes(self, node_type: str) -> tuple[int, int]:
        number = self.types.node_type(node_type)
        return self.types.offsets[number], self.types.offsets[number + 1]

    def global_ids(self, nodes: object, kind: object, what: str) -> IdArray:
        """Checked node ids of a type as those of the whole graph, int64 [n], of `what`."""
        number = self.types.node_type(str(kind))
        ids, _ = arguments.input_nodes(nodes, self.types.num_nodes(number), f"{what} of '{kind}'")
        return ids + self.types.offsets[number]

    def split(self, found: Any) -> tuple[Any, Tensor]:
        """The sample as a `HeteroSamplerOutput`, whose edges are columns of each type's ``edge_index``; and int64 [n],
        the position of each of its nodes among those of its type."""
        from torch_geometric.sampler import HeteroSamplerOutput

        types, node, hops, steps = self.types, found.node.numpy(), found.num_sampled_nodes, found.num_sampled_edges
        kinds, local = types.types_of(node), np.empty(len(node), np.int64)
        out: Any = HeteroSamplerOutput({}, {}, {}, {})
        trees, sizes, counts = {}, {}, {}
        hop, step = (np.repeat(np.arange(len(n)), n) for n in (hops or [], steps or []))
        for t, name in enumerate(types.node_types):
            at = np.flatnonzero(kinds == t)
            local[at] = np.arange(len(at))
            out.node[name] = torch.from_numpy(node[at] - types.offsets[t])
            if found.batch is not None:
                trees[name] = found.batch[torch.from_numpy(at)]
            if hops is not None:
                sizes[name] = np.bincount(hop[at], minlength=len(hops)).tolist()
        row, col, edge = found.row.numpy(), found.col.numpy(), found.edge.numpy()
        relation = (np.searchsorted(self.first_edge[1:], edge, side="right")).astype(types.edge_dtype)
        order = np.argsort(relation, kind="stable")
        ends = np.cumsum(np.bincount(relation, minlength=types.num_relations))
        for r, (name, at) in enumerate(zip(types.relations, np.split(order, ends[:-1]))):
            out.row[name], out.col[name] = torch.from_numpy(local[row[at]]), torch.from_numpy(local[col[at]])
            out.edge[name] = torch.from_numpy(edge[at] - self.first_edge[r])
            if steps is not None:
                counts[name] = np.bincount(step[at], minlength=len(steps)).tolist()
        out.batch = None if found.batch is None else trees
        out.num_sampled_nodes, out.num_sampled_edges = (None, None) if hops is None else (sizes, counts)
        return out, torch.from_numpy(local)


def _name(kind: Any) -> str:
    """A node type or an edge type of `data` as it is written."""
    return f"data[{', '.join(map(repr, (kind,) if isinstance(kind, str) else kind))}]"


def _shown(given: object) -> str:
    """An argument in a message; arrays by their class."""
    text = repr(given) if given is None or isinstance(given, str | int | tuple | list) else type(given).__name__
    return text if len(text) < 80 else type(given).__name__


def _num_nodes(data: Any, node_type: str) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns where it has no answer
        found = data[node_type].num_nodes
    if found is None:
        raise InputError(
            f"{_name(node_type)} has neither x nor num_nodes; set data['{node_type}'].num_nodes to its number of nodes"
        )
    return int(found)
