"""PyG's SAGEConv or GATConv with `trim_to_layer`, fed by PyG's NeighborLoader if its sampling extension is installed,
else by ours."""

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, SAGEConv
from torch_geometric.utils import trim_to_layer
from train_task import BATCH, CLASSES, FANOUT, FEATURES, HEADS, HIDDEN, LR, Epoch, Parts, Task, Work, train

OWN = any(find_spec(name) for name in ("pyg_lib", "torch_sparse"))
"""True if PyG's own sampling extension is installed."""


class Model(nn.Module):
    """Three convolutions on the part of the minibatch that each needs."""

    def __init__(self, name: str, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        if name == "sage":
            widths = [FEATURES, HIDDEN, HIDDEN, CLASSES]
            convs: list[nn.Module] = [SAGEConv(a, b) for a, b in zip(widths, widths[1:])]
        else:
            wide = HIDDEN // HEADS
            convs = [
                GATConv(FEATURES, wide, HEADS),
                GATConv(HIDDEN, wide, HEADS),
                GATConv(HIDDEN, CLASSES, HEADS, concat=False),
            ]
        self.convs = nn.ModuleList(convs)
        self.activation = F.relu if name == "sage" else F.elu

    def forward(self, m: Any) -> Tensor:
        """[n, F] -> logits, of which the first B rows count."""
        h, edges = m.x, m.edge_index
        for i, conv in enumerate(self.convs):
            h, edges, _ = trim_to_layer(i, m.num_sampled_nodes, m.num_sampled_edges, h, edges)
            h = conv(F.dropout(h, self.dropout, self.training), edges)
            if i + 1 < len(self.convs):
                h = self.activation(h)
        return h


def _aggregated(m: Any) -> int:
    """Edges of the three layers: each leaves out the outermost hop of the one before."""
    hops = m.num_sampled_edges
    return sum(sum(hops[: len(hops) - i]) for i in range(len(hops)))


def start(task: Task) -> Epoch:
    """See `train_task.train`."""
    if OWN:
        from torch_geometric.loader import NeighborLoader
    else:
        from millrace import NeighborLoader
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    indptr, indices = task.graph()
    edges = np.empty((2, len(indices)), np.int64)
    edges[0] = indices
    edges[1] = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    features, labels = (torch.from_numpy(a) for a in task.data())
    data = Data(x=features, edge_index=torch.from_numpy(edges), y=labels)
    del indptr, indices
    seeds = torch.from_numpy(task.seeds())
    loader: Any = NeighborLoader(data, num_neighbors=list(FANOUT), input_nodes=seeds, batch_size=BATCH, shuffle=True)
    model = Model(task.model, task.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    def epoch(minibatches: int, parts: Parts) -> Iterator[Work]:
        drawn = islice(loader, minibatches)
        while True:
            with parts.measure("sample and gather"):
                m = next(drawn, None)
            if m is None:
                return
            with parts.measure("train"):
                loss = F.cross_entropy(model(m)[: m.batch_size], m.y[: m.batch_size])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                value = loss.item()
            yield Work(m.edge_index.shape[1], _aggregated(m), m.num_nodes, value)

    return epoch


if __name__ == "__main__":
    train(start, loader="PyG's loader" if OWN else "Millrace's loader")
