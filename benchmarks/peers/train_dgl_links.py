"""DGL's link prediction as in its example: uniform negatives, own edges and their reverses left out, three SAGEConv,
MLP on the product of two rows (dgl 2.1.0; the decoder has one dense layer less, as Millrace's). Runs in DGL's
environment.

Ids are int32 on one thread and int64 on more, as `run_dgl` found safe.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import dgl
import torch
from dgl import nn as dglnn
from serve import reverses
from torch import Tensor, nn
from torch.nn import functional as F
from train_task import FANOUT, FEATURES, HIDDEN, LR, PAIRS, Epoch, Parts, Task, Work, train


class Model(nn.Module):
    """Rows of HIDDEN columns, and the score of a pair of them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.convs = nn.ModuleList(dglnn.SAGEConv(a, HIDDEN, "mean") for a in (FEATURES, HIDDEN, HIDDEN))
        self.predictor = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, graphs: list[Any], blocks: list[Any], h: Tensor) -> list[Tensor]:
        """[n, F] -> scores of the pairs of each graph."""
        for i, (conv, block) in enumerate(zip(self.convs, blocks)):
            h = conv(block, F.dropout(h, self.dropout, self.training))
            if i + 1 < len(self.convs):
                h = F.relu(h)
        return [self.predictor(h[source] * h[destination]) for source, destination in (g.edges() for g in graphs)]


def start(task: Task) -> Epoch:
    """See `train_task.train`."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    width = torch.int32 if task.threads == 1 else torch.int64
    indptr, indices = task.graph()
    reverse_eids = torch.from_numpy(reverses(indices)).to(width)
    graph = dgl.graph(
        ("csc", (torch.from_numpy(indptr).to(width), torch.from_numpy(indices).to(width), torch.empty(0, dtype=width))),
        num_nodes=len(indptr) - 1,
        idtype=width,
    )
    features = torch.from_numpy(task.data()[0])
    # DGL lists fanouts from the input inwards.
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler(list(reversed(FANOUT))),
        exclude="reverse_id",
        reverse_eids=reverse_eids,
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
    )
    edges = torch.from_numpy(task.edges()).to(width)
    loader = dgl.dataloading.DataLoader(graph, edges, sampler, batch_size=PAIRS, shuffle=True, num_workers=0)
    model = Model(task.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    def epoch(minibatches: int, parts: Parts) -> Iterator[Work]:
        drawn = islice(loader, minibatches)
        while True:
            with parts.measure("sample"):
                minibatch = next(drawn, None)
            if minibatch is None:
                return
            nodes, positive, negative, blocks = minibatch
            with parts.measure("gather"):
                h = features.index_select(0, nodes)
            with parts.measure("train"):
                scores = model([positive, negative], blocks, h)
                y = torch.cat([torch.ones_like(scores[0]), torch.zeros_like(scores[1])])
                loss = F.binary_cross_entropy_with_logits(torch.cat(scores), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                value = loss.item()
            edges = sum(b.num_edges() for b in blocks)
            yield Work(edges, edges, len(nodes), value)

    return epoch


if __name__ == "__main__":
    train(start)
