"""PyG's SAGEConv or GATConv on the whole graph, each with the adjacency that suits it best on a processor.

SAGE: a `torch.sparse` CSR matrix, multiplied with the features. GAT has no such way: its messages are gathered for
every edge and scattered, which needs several tensors of [E, 256].
"""

from typing import Any

import numpy as np
import torch
from fullbatch_task import CLASSES, FEATURES, HEADS, HIDDEN, LR, Epoch, FullBatch, train
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, SAGEConv


class Model(nn.Module):
    """Three convolutions, without dropout."""

    def __init__(self, name: str) -> None:
        super().__init__()
        if name == "gat":
            wide, more = HIDDEN // HEADS, {"add_self_loops": False}
            convs: list[nn.Module] = [GATConv(FEATURES, wide, HEADS, **more), GATConv(HIDDEN, wide, HEADS, **more)]
            convs.append(GATConv(HIDDEN, CLASSES, HEADS, concat=False, **more))
        else:
            widths = [FEATURES, HIDDEN, HIDDEN, CLASSES]
            convs = [SAGEConv(a, b) for a, b in zip(widths, widths[1:])]
        self.convs = nn.ModuleList(convs)
        self.activation = F.elu if name == "gat" else F.relu

    def forward(self, h: Tensor, edges: Tensor) -> Tensor:
        """[V, F] -> [V, C]."""
        for conv in self.convs[:-1]:
            h = self.activation(conv(h, edges))
        return self.convs[-1](h, edges)


def adjacency(task: FullBatch) -> Tensor:
    """Whatever `Model` is given."""
    indptr, indices = task.graph(loops=task.model == "gat")
    num_nodes = len(indptr) - 1
    if task.model == "gat":
        edges = np.empty((2, len(indices)), np.int64)
        edges[0] = indices
        edges[1] = np.repeat(np.arange(num_nodes), np.diff(indptr))
        return torch.from_numpy(edges)
    columns = torch.from_numpy(indices.astype(np.int64))
    return torch.sparse_csr_tensor(torch.from_numpy(indptr), columns, torch.ones(len(indices)), (num_nodes, num_nodes))


def start(task: FullBatch) -> Epoch:
    """See `fullbatch_task.train`."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    edges: Any = adjacency(task)
    features, labels, nodes = (torch.from_numpy(task.array(name)) for name in ("features", "labels", "train"))
    y = labels[nodes]
    model = Model(task.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    def epoch() -> float:
        loss = F.cross_entropy(model(features, edges)[nodes], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return epoch


if __name__ == "__main__":
    train(start)
