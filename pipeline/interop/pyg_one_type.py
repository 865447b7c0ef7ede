"""A PyG `Data` as a graph that `NeighborLoader` samples, and its minibatches."""

from typing import Any

import torch
from torch import Tensor

from ...stages.sample.neighbor import NeighborSampler
from ...stages.sample.single.trees import Times
from ...stages.sample.temporal import TimedGraph
from ...storage.array_kinds import IdArray
from ...storage.errors import InputError, nearest
from ...storage.graph import from_edges
from . import pyg_arguments as arguments


class OneType:
    """A homogeneous `torch_geometric.data.Data`. `pyg_many_types.ManyTypes` has the same methods."""

    relations = None

    def __init__(self, data: Any, weight_attr: Any) -> None:
        """
        Args:
            data: of one node type and one edge type.
            weight_attr: argument of the loader.

        Raises:
            InputError: `data` is something else, or its edges or weights are unusable.
        """
        _check(data)
        self.data, self.weighted = data, weight_attr is not None
        edges, weight = arguments.edges("data.edge_index", data.edge_index), None
        if weight_attr is not None:
            if not isinstance(weight_attr, str):
                raise InputError(f"weight_attr is {weight_attr!r}; expected the name of an edge attribute")
            if weight_attr not in data:
                raise InputError(
                    f"weight_attr is '{weight_attr}', but data has no such "
                    f"attribute{nearest(weight_attr, list(data.keys()))}"
                )
            weight = arguments.weights(f"data.{weight_attr}", data[weight_attr], edges.shape[1])
        self.graph = from_edges(edges[0], edges[1], data.num_nodes, edge_weight=weight, keep_edge_id=True)
        """In-neighbour lists, with the columns of ``edge_index`` as edge ids."""

    def sampler(self, num_neighbors: Any, replace: bool) -> NeighborSampler | None:
        from torch_geometric.sampler import NumNeighbors

        values = num_neighbors.values if isinstance(num_neighbors, NumNeighbors) else num_neighbors
        if isinstance(values, dict):
            raise InputError(
                "num_neighbors is for each edge type, and data has one; expected one number for each hop, such as "
                "[15, 10, 5]"
            )
        return arguments.sampler(values, replace, self.weighted)

    def input_nodes(self, given: Any) -> tuple[None, Tensor, Tensor]:
        """No type, the seeds, int64 [N], and the `input_id` of each, int64 [N]."""
        if isinstance(given, str) or (isinstance(given, (tuple, list)) and given and isinstance(given[0], str)):
            raise InputError("input_nodes names a node type, but data has one; expected node ids or a boolean mask")
        seeds, ids = arguments.input_nodes(given, self.graph.num_nodes)
        return None, torch.from_numpy(seeds), ids

    def input_edges(self, given: Any) -> tuple[None, Any]:
        """No type, and the pairs [2, N] as they were given, or all edges."""
        if isinstance(given, tuple | list) and given and isinstance(given[0], str | tuple):
            raise InputError("edge_label_index names an edge type, but data has one; expected pairs [2, N]")
        if given is None and self.data.edge_index is None:
            raise InputError("edge_label_index is None, and data has no edges; expected pairs [2, N]")
        return None, self.data.edge_index if given is None else given

    def ends(self, edge_type: Any) -> tuple[range, range]:
        """Ids that sources and destinations may have."""
        return range(self.graph.num_nodes), range(self.graph.num_nodes)

    def times(self, time_attr: Any, last: bool) -> Times:
        """The graph in the order of time: an edge has the time of the attribute, or of its source's.

        Args:
            time_attr: name of an attribute of nodes or edges.
            last: draw the latest edges.
        """
        data, graph = self.data, self.graph
        if not isinstance(time_attr, str) or time_attr not in data:
            hint = nearest(time_attr, list(data.keys())) if isinstance(time_attr, str) else ""
            raise InputError(
                f"time_attr is {time_attr!r}; expected the name of an attribute of data's nodes or edges{hint}"
            )
        time = arguments.numbers(f"time_attr: data.{time_attr}", data[time_attr])
        of_nodes = data.is_node_attr(time_attr)
        if time.shape != (graph.num_nodes if of_nodes else graph.num_edges,):
            raise InputError(
                f"time_attr: data.{time_attr} has shape {list(time.shape)}; expected [{graph.num_nodes}], one for each "
                f"node, or [{graph.num_edges}], one for each edge"
            )
        try:
            timed = TimedGraph.from_graph(graph, time[graph.indices] if of_nodes else time[graph.input_edges])
        except InputError as e:
            raise InputError(f"time_attr: data.{time_attr}: {e}") from None
        return Times(timed, (last,), time if of_nodes else None, frozenset([None] if of_nodes else []))

    def global_ids(self, nodes: object, kind: object, what: str) -> IdArray:
        """Checked node ids, int64 [n], of `what`."""
        return arguments.input_nodes(nodes, self.graph.num_nodes, what)[0]

    def split(self, found: Any) -> tuple[Any, None]:
        """The sample, and no new positions of its nodes."""
        return found, None


def _check(data: object) -> None:
    from torch_geometric.data import Data

    if not isinstance(data, Data):
        raise InputError(f"data is {type(data).__name__}; expected a torch_geometric.data.Data or HeteroData")
    for name in ("adj", "adj_t"):
        if name in data:
            raise InputError(
                f"data has {name}, which is not supported; expected edge_index [2, E]: do not apply ToSparseTensor"
            )
    if data.num_nodes is None:
        raise InputError("data has neither node attributes nor edges; expected x, edge_index or num_nodes")
