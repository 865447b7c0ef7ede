"""DGL's NeighborSampler behind its DataLoader (no workers), SAGEConv or GATConv (dgl 2.1.0). Runs in DGL's environment.

Ids are int32 on one thread and int64 on more, as `run_dgl` found safe. GATConv attends over the drawn edges alone:
blocks have no self loops, which Millrace and PyG add, so DGL does that much less.
"""

from collections.abc import Sequence
from typing import Any

import dgl
import torch
from dgl import nn as dglnn
from torch import Tensor, nn
from torch.nn import functional as F
from train_task import BATCH, CLASSES, FANOUT, FEATURES, HEADS, HIDDEN, Epoch, Task, train
from train_torch import epochs


class Sage(nn.Module):
    """As in DGL's examples."""

    def __init__(self, dropout: float, outputs: int = CLASSES) -> None:
        super().__init__()
        self.dropout = dropout
        widths = [FEATURES, HIDDEN, HIDDEN, outputs]
        self.convs = nn.ModuleList(dglnn.SAGEConv(a, b, "mean") for a, b in zip(widths, widths[1:]))

    def forward(self, blocks: list[Any], h: Tensor) -> Tensor:
        """[n, F] -> [B, C]."""
        for i, (conv, block) in enumerate(zip(self.convs, blocks)):
            h = conv(block, F.dropout(h, self.dropout, self.training))
            if i + 1 < len(self.convs):
                h = F.relu(h)
        return h


class Gat(nn.Module):
    """As in DGL's examples."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        wide = HIDDEN // HEADS
        shapes = [(FEATURES, wide), (HIDDEN, wide), (HIDDEN, CLASSES)]
        self.convs = nn.ModuleList(dglnn.GATConv(a, b, HEADS, allow_zero_in_degree=True) for a, b in shapes)

    def forward(self, blocks: list[Any], h: Tensor) -> Tensor:
        """[n, F] -> [B, C]."""
        for i, (conv, block) in enumerate(zip(self.convs, blocks)):
            h = conv(block, F.dropout(h, self.dropout, self.training))
            h = F.elu(h.flatten(1)) if i + 1 < len(self.convs) else h.mean(1)
        return h


def graph_of(task: Task) -> Any:
    """The task's graph; an edge's id is its position."""
    width = torch.int32 if task.threads == 1 else torch.int64
    indptr, indices = (torch.from_numpy(a).to(width) for a in task.graph())
    return dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=width))), num_nodes=len(indptr) - 1, idtype=width)


def neighbours() -> Any:
    """The sampler: DGL lists fanouts from the input inwards."""
    return dgl.dataloading.NeighborSampler(list(reversed(FANOUT)))


def sizes(minibatch: Sequence[Any]) -> tuple[int, int, int]:
    """See `train_torch.epochs`."""
    edges = sum(b.num_edges() for b in minibatch[-1])
    return edges, edges, len(minibatch[0])


def start(task: Task) -> Epoch:
    """See `train_task.train`."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    graph = graph_of(task)
    features, labels = (torch.from_numpy(a) for a in task.data())
    seeds = torch.from_numpy(task.seeds()).to(graph.idtype)
    loader = dgl.dataloading.DataLoader(graph, seeds, neighbours(), batch_size=BATCH, shuffle=True, num_workers=0)
    model = {"sage": Sage, "gat": Gat}[task.model](task.dropout)

    def gather(minibatch: Any) -> tuple[Tensor, Tensor]:
        nodes, chosen, _ = minibatch
        return features.index_select(0, nodes), labels.index_select(0, chosen)

    def loss(minibatch: Any, rows: Any) -> Tensor:
        h, y = rows
        return F.cross_entropy(model(minibatch[-1], h), y)

    return epochs(loader, model, loss, sizes, gather)


if __name__ == "__main__":
    train(start)
