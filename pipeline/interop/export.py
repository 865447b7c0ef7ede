"""Conversion of minibatches to PyTorch Geometric's `Data` and to DGL's blocks."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...stages.sample.single.trees import EdgeList
from ...storage.array_kinds import IdArray, IntArray
from ...storage.errors import InputError, MissingExtraError, install
from ...storage.features import FeatureStore
from ...storage.minibatch import MiniBatch
from ...storage.optional import when_present


def sampler_output(found: EdgeList) -> Any:
    """A minibatch as a `torch_geometric.sampler.SamplerOutput`."""
    from torch_geometric.sampler import SamplerOutput

    make: Any = SamplerOutput
    return make(**{n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in vars(found).items()})


def sampled_graph(minibatch: MiniBatch, edge_id: IdArray | None = None) -> Any:
    """The single edge list of a minibatch, a `SamplerOutput`.

    Args:
        minibatch: nested, or of one layer.
        edge_id: int64 [E], an id for each edge of the graph; None keeps the minibatch's own.

    Raises:
        InputError: every layer has its own edge list.
    """
    from torch_geometric.sampler import SamplerOutput

    whole = minibatch.blocks[0]
    if not minibatch.nested and len(minibatch.blocks) > 1:
        raise InputError(
            f"the minibatch holds {len(minibatch.blocks)} edge lists, one for each layer, and PyG's Data holds one: "
            "sample with expand='new', or use to_dgl_blocks"
        )
    edge = whole.edge_id if whole.edge_id is None or edge_id is None else edge_id[whole.edge_id]
    nodes = [len(minibatch.seeds), *(b.num_src for b in reversed(minibatch.blocks))]
    edges = [0, *(b.num_edges for b in reversed(minibatch.blocks))]
    kept = torch.from_numpy(np.diff(whole.indptr))
    return SamplerOutput(
        node=_owned(whole.src),
        row=_owned(whole.indices),
        col=torch.repeat_interleave(kept, output_size=whole.num_edges),
        edge=when_present(_owned, edge),
        num_sampled_nodes=[nodes[0], *(b - a for a, b in zip(nodes, nodes[1:]))],
        num_sampled_edges=[b - a for a, b in zip(edges, edges[1:])],
    )


def to_pyg(minibatch: MiniBatch, features: Any = None, labels: Any = None, pairs: Tensor | None = None) -> Any:
    """A minibatch as a `torch_geometric.data.Data`, with the attributes that PyG's `NeighborLoader` provides.

    ``edge_index`` is int64 [2, e], source and destination as positions in ``n_id``; the first ``batch_size`` nodes are
    the seeds, whose global ids are also ``input_id``. ``e_id``, if the minibatch has edge ids, refers to the graph's
    edge arrays (which are ordered by destination; `Graph.edge_id` leads back to the input). ``edge_weight``, if it has
    weights, is `Block.weight`. ``num_sampled_nodes`` and ``num_sampled_edges`` are lists for
    `torch_geometric.utils.trim_to_layer`.

    Args:
        minibatch: nested (only newly found nodes were expanded), or of one layer.
        features: `FeatureStore`, tensor or array [V, F]; the minibatch's rows become ``x``.
        labels: tensor or array [V] or [V, C]; the minibatch's rows become ``y``.
        pairs: `Batch.pairs` of a link task, [b, 1 + k, 2]; they become ``edge_label_index`` [2, b (1 + k)], positive
            pairs first, and ``edge_label``, 1 for those and 0 for negatives. Of labelled edges [b, 2]; they become
            ``edge_label_index`` [2, b], and their labels are `Batch.y`.

    Raises:
        InputError: every layer has its own edge list, or features or labels have too few rows.
        MissingExtraError: PyTorch Geometric is not installed.
    """
    _require_minibatch(minibatch)
    require_pyg("to_pyg")
    from torch_geometric.data import Data

    graph = sampled_graph(minibatch)
    out = Data(edge_index=torch.stack([graph.row, graph.col]), num_nodes=len(graph.node))
    out.n_id, out.num_sampled_nodes, out.num_sampled_edges = (
        graph.node,
        graph.num_sampled_nodes,
        graph.num_sampled_edges,
    )
    out.input_id, out.batch_size = _owned(minibatch.seeds), len(minibatch.seeds)
    if graph.edge is not None:
        out.e_id = graph.edge
    weight = minibatch.blocks[0].weight
    if weight is not None:
        out.edge_weight = torch.from_numpy(weight.copy())
    if features is not None:
        out.x = _rows(features, graph.node, "features")
    if labels is not None:
        out.y = _rows(labels, graph.node, "labels")
    if pairs is not None and pairs.ndim == 2:
        out.edge_label_index = pairs.T.contiguous()
    elif pairs is not None:
        out.edge_label_index = pairs.transpose(0, 1).reshape(-1, 2).T.contiguous()
        out.edge_label = (torch.arange(out.edge_label_index.shape[1]) < len(pairs)).float()
    return out


def to_dgl_blocks(minibatch: MiniBatch) -> list[Any]:
    """A minibatch as DGL's blocks, outermost first: the arguments of a DGL model's layers in turn.

    Each block has ``srcdata[dgl.NID]`` and ``dstdata[dgl.NID]``, int64 global ids; ``edata[dgl.EID]``, if the minibatch
    has edge ids, as positions in the graph's edge arrays; ``edata["weight"]`` if it has weights (`Block.weight`). The
    seeds are ``blocks[-1].dstdata[dgl.NID]``. Memory is not shared with the minibatch.

    Raises:
        MissingExtraError: DGL is not installed.
    """
    try:
        import dgl
    except ImportError:
        raise MissingExtraError(
            "to_dgl_blocks needs DGL, which is not installed: see https://www.dgl.ai/pages/start.html"
        ) from None
    _require_minibatch(minibatch)
    blocks = []
    for b in minibatch.blocks:
        csc = (_owned(b.indptr), _owned(b.indices), torch.empty(0, dtype=torch.int64))
        block = dgl.create_block(("csc", csc), num_src_nodes=b.num_src, num_dst_nodes=b.num_dst)
        src = _owned(b.src)
        block.srcdata[dgl.NID], block.dstdata[dgl.NID] = src, src[: b.num_dst]
        if b.edge_id is not None:
            block.edata[dgl.EID] = _owned(b.edge_id)
        if b.weight is not None:
            block.edata["weight"] = torch.from_numpy(b.weight.copy())
        blocks.append(block)
    return blocks


def _require_minibatch(value: object) -> None:
    if not isinstance(value, MiniBatch):
        raise InputError(f"minibatch is of type {type(value).__name__}; expected a MiniBatch, such as open_queue gives")


def require_pyg(what: str) -> None:
    """Raise MissingExtraError, naming `what` as the feature that needs it, unless PyTorch Geometric can be imported."""
    try:
        import torch_geometric  # noqa: F401
    except ImportError:
        raise MissingExtraError(f"{what} needs PyTorch Geometric, which is not installed: {install('pyg')}") from None


def _owned(array: IntArray) -> Tensor:
    """A copy as int64: a view would keep the whole bulk's buffer alive."""
    return torch.from_numpy(array.astype(np.int64))


def _rows(table: Any, node: Tensor, what: str) -> Tensor:
    """A copy of table[node]."""
    rows = table.num_rows if isinstance(table, FeatureStore) else len(table)
    largest = int(node.max()) if len(node) else -1
    if largest >= rows:
        raise InputError(
            f"{what} has {rows} rows and the minibatch names node {largest}; expected a row for each node of the graph"
        )
    if isinstance(table, Tensor):
        return table.index_select(0, node.to(table.device))
    if isinstance(table, FeatureStore):
        return torch.from_numpy(table.gather(node.numpy()))
    return torch.from_numpy(np.asarray(table)[node.numpy()])
