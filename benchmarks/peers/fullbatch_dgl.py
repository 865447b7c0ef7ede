"""DGL's SAGEConv or GATConv on the whole graph (dgl 2.1.0). Runs in DGL's environment. Option: ids, int32 or int64."""

from typing import Any

import dgl
import torch
from dgl import nn as dglnn
from fullbatch_task import CLASSES, FEATURES, HEADS, HIDDEN, LR, Epoch, FullBatch, train
from torch import Tensor, nn
from torch.nn import functional as F


class Model(nn.Module):
    """Three layers, as in DGL's examples, without dropout."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.gat = name == "gat"
        if self.gat:
            wide = HIDDEN // HEADS
            convs = [dglnn.GATConv(a, b, HEADS) for a, b in ((FEATURES, wide), (HIDDEN, wide), (HIDDEN, CLASSES))]
        else:
            widths = [FEATURES, HIDDEN, HIDDEN, CLASSES]
            convs = [dglnn.SAGEConv(a, b, "mean") for a, b in zip(widths, widths[1:])]
        self.convs = nn.ModuleList(convs)

    def forward(self, graph: Any, h: Tensor) -> Tensor:
        """[V, F] -> [V, C]."""
        for conv in self.convs[:-1]:
            h = F.elu(conv(graph, h).flatten(1)) if self.gat else F.relu(conv(graph, h))
        h = self.convs[-1](graph, h)
        return h.mean(1) if self.gat else h


def start(task: FullBatch) -> Epoch:
    """See `fullbatch_task.train`."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    width = getattr(torch, task.options["ids"])
    indptr, indices = (torch.from_numpy(a).to(width) for a in task.graph(loops=task.model == "gat"))
    # GATConv's products refuse lists without edge ids.
    graph = dgl.graph(
        ("csc", (indptr, indices, torch.arange(len(indices), dtype=width))), num_nodes=len(indptr) - 1, idtype=width
    )
    features, labels, nodes = (torch.from_numpy(task.array(name)) for name in ("features", "labels", "train"))
    y = labels[nodes]
    model = Model(task.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    def epoch() -> float:
        loss = F.cross_entropy(model(graph, features)[nodes], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return epoch


if __name__ == "__main__":
    train(start)
