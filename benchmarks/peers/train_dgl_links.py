"""DGL's link prediction as in its example: uniform negatives, own edges and their reverses left out, three SAGEConv,
MLP on the product of two rows (dgl 2.1.0; the decoder has one dense layer less, as Millrace's). Runs in DGL's
environment."""

from typing import Any

import dgl
import torch
from serve import reverses
from torch import Tensor, nn
from torch.nn import functional as F
from train_dgl import Sage, graph_of, neighbours, sizes
from train_task import HIDDEN, PAIRS, Epoch, Task, train
from train_torch import epochs


class Model(nn.Module):
    """Rows of HIDDEN columns, and the score of a pair of them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = Sage(dropout, HIDDEN)
        self.predictor = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, graphs: list[Any], blocks: list[Any], h: Tensor) -> list[Tensor]:
        """[n, F] -> scores of the pairs of each graph."""
        h = self.layers(blocks, h)
        return [self.predictor(h[source] * h[destination]) for source, destination in (g.edges() for g in graphs)]


def start(task: Task) -> Epoch:
    """See `train_task.train`."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    graph, features = graph_of(task), torch.from_numpy(task.data()[0])
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        neighbours(),
        exclude="reverse_id",
        reverse_eids=torch.from_numpy(reverses(task.graph()[1])).to(graph.idtype),
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
    )
    edges = torch.from_numpy(task.edges()).to(graph.idtype)
    loader = dgl.dataloading.DataLoader(graph, edges, sampler, batch_size=PAIRS, shuffle=True, num_workers=0)
    model = Model(task.dropout)

    def loss(minibatch: Any, h: Any) -> Tensor:
        _, positive, negative, blocks = minibatch
        scores = model([positive, negative], blocks, h)
        y = torch.cat([torch.ones_like(scores[0]), torch.zeros_like(scores[1])])
        return F.binary_cross_entropy_with_logits(torch.cat(scores), y)

    return epochs(loader, model, loss, sizes, lambda minibatch: features.index_select(0, minibatch[0]))


if __name__ == "__main__":
    train(start)
